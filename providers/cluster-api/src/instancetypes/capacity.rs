//! What a node has. The first source that knows a resource wins: annotations of the scalable resource (those of
//! cluster-autoscaler, and ours for anything else), those of its newest MachineSet, the infrastructure template's status, the NodeClass;
//! and last a Node of it, see [`super::blueprint`].

use std::collections::BTreeMap;

use karpenter_api::{Quantity, ResourceList};
use karpenter_primitives::names::{dns1123_subdomain_errors, qualified_name_errors};

use super::annotated::Annotated;
use crate::client::fields::Malformed;
use crate::client::template::Template;
use crate::names::{CAPACITY_DOMAIN, RESOURCE_PREFIX};

/// Annotations of cluster-autoscaler's domain and the resources they are about.
const ANNOTATED: &[(&str, &str)] =
    &[("cpu", "cpu"), ("memory", "memory"), ("ephemeral-disk", "ephemeral-storage"), ("maxPods", "pods")];

/// How the problem begins where nobody says how much there is.
const MISSING: &str = "is missing";

/// What no node is without.
const NEEDED: [&str; 2] = ["cpu", "memory"];

/// What a node of this resource is said to have. Without cpu and memory nothing can be planned, so their absence is an error, and so is
/// none of them: such a node would seem to cost next to nothing.
pub(crate) fn capacity(
    told: Annotated<'_>,
    template: Option<&Template>,
    override_capacity: Option<&ResourceList>,
    max_pods: Option<i32>,
) -> Result<ResourceList, Malformed> {
    let mut capacity = annotated(told)?;
    if let Some(template) = template {
        for (name, text) in &template.capacity {
            if !capacity.contains_key(name) {
                let key = format!("infrastructure template: status.capacity.{name}");
                capacity.insert(name.clone(), parse(told, &key, name, text)?);
            }
        }
    }
    for (name, quantity) in override_capacity.into_iter().flatten() {
        capacity.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
    for needed in NEEDED {
        if capacity.get(needed).is_some_and(Quantity::is_zero) {
            let problem = format!("the NodeClass's instanceTypes, or a Node, say that there is no {needed}");
            return Err(told.malformed(&format!("{CAPACITY_DOMAIN}{needed}"), problem));
        }
        if !capacity.contains_key(needed) {
            let problem = format!(
                "{MISSING}: how much {needed} a node has is told neither by this annotation, nor by the infrastructure template's status.capacity, nor by the NodeClass's instanceTypes, nor by a Node of it"
            );
            return Err(told.malformed(&format!("{CAPACITY_DOMAIN}{needed}"), problem));
        }
    }
    if let Some(max_pods) = max_pods {
        capacity.insert(
            "pods".to_owned(),
            Quantity::new(max_pods.into(), karpenter_primitives::Format::DecimalSi),
        );
    }
    Ok(capacity)
}

/// Whether that is what is wrong: nobody says how much there is of what no node is without.
pub(crate) fn is_missing(malformed: &Malformed) -> bool {
    malformed.problem.starts_with(MISSING)
}

/// How many pods kubelet allows when nobody says.
pub(crate) fn default_pods() -> Quantity {
    Quantity::new(110, karpenter_primitives::Format::DecimalSi)
}

fn annotated(told: Annotated<'_>) -> Result<ResourceList, Malformed> {
    let annotation = |name: &str| {
        let key = format!("{CAPACITY_DOMAIN}{name}");
        told.get(&key).map(|text| (key, text))
    };
    let mut capacity: BTreeMap<String, Quantity> = BTreeMap::new();
    for (name, resource) in ANNOTATED {
        if let Some((key, text)) = annotation(name) {
            capacity.insert((*resource).to_owned(), parse(told, &key, resource, text)?);
        }
    }
    // A count says nothing without the name of what is counted.
    if let (Some((count_key, count)), Some((key, kind))) = (annotation("gpu-count"), annotation("gpu-type"))
        && !kind.trim().is_empty()
    {
        let kind = resource_name(told, &key, kind.trim())?;
        let count = parse(told, &count_key, kind, count)?;
        capacity.insert(kind.to_owned(), count);
    }
    for (name, text) in told.with_prefix(RESOURCE_PREFIX) {
        let key = format!("{RESOURCE_PREFIX}{name}");
        // A key has room for one slash only, and ours has it.
        let resource = name.replacen('_', "/", 1);
        let quantity = parse(told, &key, resource_name(told, &key, &resource)?, text)?;
        capacity.entry(resource).or_insert(quantity);
    }
    Ok(capacity)
}

/// The name of a resource, if it can be one.
fn resource_name<'a>(told: Annotated<'_>, key: &str, name: &'a str) -> Result<&'a str, Malformed> {
    match qualified_name_errors(name).first() {
        Some(error) => Err(told.malformed(key, format!("{name:?} is not the name of a resource: {error}"))),
        None => Ok(name),
    }
}

fn parse(told: Annotated<'_>, key: &str, resource: &str, text: &str) -> Result<Quantity, Malformed> {
    let quantity = Quantity::parse(text.trim());
    let quantity =
        quantity.map_err(|_| told.malformed(key, format!("{text:?} is not a quantity such as 4 or 16Gi")))?;
    if quantity.is_negative() {
        return Err(told.malformed(key, format!("{text:?} is negative")));
    }
    if quantity.is_zero() && NEEDED.contains(&resource) {
        return Err(told.malformed(key, format!("{text:?} would be a node without {resource}")));
    }
    Ok(quantity)
}

/// The CSI drivers' volume limits of the annotation `csi-driver`: `name=limit`, separated by commas; a driver without a limit
/// has none.
pub(crate) fn volume_limits(told: Annotated<'_>) -> Result<BTreeMap<String, i64>, Malformed> {
    let key = format!("{CAPACITY_DOMAIN}csi-driver");
    let mut limits = BTreeMap::new();
    let items = told.get(&key).unwrap_or_default().split(',').map(str::trim);
    for item in items.filter(|item| !item.is_empty()) {
        let (name, limit) = match item.split_once('=') {
            Some((name, limit)) => (name.trim(), Some(limit.trim())),
            None => (item, None),
        };
        // As Kubernetes has it: capitals are allowed.
        if let Some(error) = dns1123_subdomain_errors(&name.to_lowercase()).first() {
            return Err(told.malformed(&key, format!("{item:?} does not name a CSI driver: {error}")));
        }
        let Some(limit) = limit else { continue };
        // `name=volume-limit=N` is cluster-autoscaler's spelling.
        let limit = limit.strip_prefix("volume-limit=").unwrap_or(limit).trim();
        let limit = limit.parse().ok().filter(|limit| *limit >= 0);
        let limit = limit.ok_or_else(|| {
            told.malformed(&key, format!("{item:?} is not name=limit with a number of volumes"))
        })?;
        limits.insert(name.to_owned(), limit);
    }
    Ok(limits)
}
