//! What a node has. The first source that knows a resource wins: annotations of the scalable resource (those of
//! cluster-autoscaler, and ours for anything else), the infrastructure template's status, the NodeClass.

use std::collections::BTreeMap;

use karpenter_api::{Quantity, ResourceList};

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::client::template::Template;
use crate::names::{CAPACITY_DOMAIN, RESOURCE_PREFIX};

/// Annotations of cluster-autoscaler's domain and the resources they are about.
const ANNOTATED: &[(&str, &str)] =
    &[("cpu", "cpu"), ("memory", "memory"), ("ephemeral-disk", "ephemeral-storage"), ("maxPods", "pods")];

/// How many pods kubelet allows when nobody says.
const DEFAULT_PODS: &str = "110";

/// What no node is without.
const NEEDED: [&str; 2] = ["cpu", "memory"];

/// What a node of this resource has. Without cpu and memory nothing can be planned, so their absence is an error, and so is none of
/// them: such a node would seem to cost next to nothing.
pub fn capacity(
    scalable: &Scalable,
    template: Option<&Template>,
    override_capacity: Option<&ResourceList>,
    max_pods: Option<i32>,
) -> Result<ResourceList, Malformed> {
    let mut capacity = annotated(scalable)?;
    if let Some(template) = template {
        for (name, text) in &template.capacity {
            if !capacity.contains_key(name) {
                let key = format!("infrastructure template: status.capacity.{name}");
                capacity.insert(name.clone(), parse(scalable, &key, name, text)?);
            }
        }
    }
    for (name, quantity) in override_capacity.into_iter().flatten() {
        capacity.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
    for needed in NEEDED {
        if capacity.get(needed).is_some_and(Quantity::is_zero) {
            let problem = format!("the NodeClass's instanceTypes, or a Node, say that there is no {needed}");
            return Err(scalable.malformed(format!("{CAPACITY_DOMAIN}{needed}"), problem));
        }
        if !capacity.contains_key(needed) {
            let problem = format!(
                "is missing: how much {needed} a node has is told neither by this annotation, nor by the infrastructure template's status.capacity, nor by the NodeClass's instanceTypes, nor by a Node of it"
            );
            return Err(scalable.malformed(format!("{CAPACITY_DOMAIN}{needed}"), problem));
        }
    }
    if let Some(max_pods) = max_pods {
        capacity.insert(
            "pods".to_owned(),
            Quantity::new(max_pods.into(), karpenter_primitives::Format::DecimalSi),
        );
    } else if !capacity.contains_key("pods") {
        capacity.insert("pods".to_owned(), parse(scalable, "pods", "pods", DEFAULT_PODS)?);
    }
    Ok(capacity)
}

fn annotated(scalable: &Scalable) -> Result<ResourceList, Malformed> {
    let annotation = |name: &str| {
        let key = format!("{CAPACITY_DOMAIN}{name}");
        scalable.annotations.get(&key).map(|text| (key, text.as_str()))
    };
    let mut capacity: BTreeMap<String, Quantity> = BTreeMap::new();
    for (name, resource) in ANNOTATED {
        if let Some((key, text)) = annotation(name) {
            capacity.insert((*resource).to_owned(), parse(scalable, &key, resource, text)?);
        }
    }
    // A count says nothing without the name of what is counted.
    if let (Some((key, count)), Some((_, kind))) = (annotation("gpu-count"), annotation("gpu-type"))
        && !kind.trim().is_empty()
    {
        capacity.insert(kind.trim().to_owned(), parse(scalable, &key, kind.trim(), count)?);
    }
    for (key, text) in &scalable.annotations {
        if let Some(name) = key.strip_prefix(RESOURCE_PREFIX) {
            // A key has room for one slash only, and ours has it.
            let resource = name.replacen('_', "/", 1);
            let quantity = parse(scalable, key, &resource, text)?;
            capacity.insert(resource, quantity);
        }
    }
    Ok(capacity)
}

fn parse(scalable: &Scalable, key: &str, resource: &str, text: &str) -> Result<Quantity, Malformed> {
    let quantity = Quantity::parse(text.trim());
    let quantity = quantity
        .map_err(|_| scalable.malformed(key, format!("{text:?} is not a quantity such as 4 or 16Gi")))?;
    if quantity.is_negative() {
        return Err(scalable.malformed(key, format!("{text:?} is negative")));
    }
    if quantity.is_zero() && NEEDED.contains(&resource) {
        return Err(scalable.malformed(key, format!("{text:?} would be a node without {resource}")));
    }
    Ok(quantity)
}

/// The CSI drivers' volume limits of the annotation `csi-driver`: `name=limit`, separated by commas; a driver without a limit
/// has none.
pub fn volume_limits(scalable: &Scalable) -> Result<BTreeMap<String, i64>, Malformed> {
    let key = format!("{CAPACITY_DOMAIN}csi-driver");
    let Some(text) = scalable.annotations.get(&key) else { return Ok(BTreeMap::new()) };
    let mut limits = BTreeMap::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        // `name=volume-limit=N` is cluster-autoscaler's spelling.
        let Some((name, limit)) = item.split_once('=') else { continue };
        let limit = limit.trim().trim_start_matches("volume-limit=");
        let limit = limit.parse().map_err(|_| {
            scalable.malformed(key.clone(), format!("{item:?} is not name=limit with a number of volumes"))
        })?;
        limits.insert(name.trim().to_owned(), limit);
    }
    Ok(limits)
}
