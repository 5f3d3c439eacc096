//! What was bought: a NodeClaim becomes a Node, and a Node is described as the instance behind a NodeClaim. Pure.
//!
//! The Node is the one Go's kwok provider makes, but for two things. Its name follows from the NodeClaim's UID, so that asking
//! again finds the same Node. And it names the NodeClaim as its owner from the start, not only once it is registered: should it
//! come to be made when the NodeClaim has just gone, Kubernetes collects it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use karpenter_api::{NodeClaim, Quantity, ResourceList, labels as well_known, taints};
use karpenter_cloudprovider::conversion;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::LaunchedInstance;
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::Requirements;
use kube::{Resource, ResourceExt as _};
use sha2::{Digest as _, Sha256};

use crate::instancetypes::Catalogue;
use crate::labels;

/// What a provider id begins with; the Node's name follows.
pub(crate) const ID_PREFIX: &str = "kwok://";

/// The longest name of a Node.
const MAX_NAME: usize = 253;
/// The longest value of a label.
const MAX_LABEL: usize = 63;

/// The name of the Node behind a provider id. An id that is not one of ours says nothing about whether there is an instance.
pub(crate) fn name_in_id(provider_id: &str) -> Result<&str, ProviderError> {
    provider_id.strip_prefix(ID_PREFIX).filter(|name| !name.is_empty()).ok_or_else(|| {
        ProviderError::other(format!(
            "provider id {provider_id:?} is none of kwok's, which begin with {ID_PREFIX}"
        ))
    })
}

/// The name of the Node of this NodeClaim: from its provider id if it has one, else what it will be.
pub(crate) fn node_name(claim: &NodeClaim) -> Result<String, ProviderError> {
    match provider_id(claim) {
        Some(id) => name_in_id(id).map(str::to_owned),
        None => Ok(first_name(claim)),
    }
}

/// The name a NodeClaim's Node gets when it is launched.
pub(crate) fn first_name(claim: &NodeClaim) -> String {
    // Names of NodeClaims may be as long as those of Nodes.
    with_tail(&format!("kwok-{}", claim.name_any()), claim, MAX_NAME)
}

/// The NodeClaim's name, as far as a label can hold it.
fn host_name(claim: &NodeClaim) -> String {
    let name = claim.name_any();
    if name.len() <= MAX_LABEL { name } else { with_tail(&name, claim, MAX_LABEL) }
}

/// A name that is the NodeClaim's alone, at most `limit` bytes long.
fn with_tail(name: &str, claim: &NodeClaim, limit: usize) -> String {
    let tail: String = digest(claim).iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    let end = name.floor_char_boundary(limit - tail.len() - 1);
    // What stands before the tail must be able to end a part of a name.
    format!("{}-{tail}", name[..end].trim_end_matches(['.', '-']))
}

/// The provider id of a NodeClaim that was launched.
pub(crate) fn provider_id(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

/// Whether this Node is an instance of ours; `false` for a Node that only has the name of one.
pub(crate) fn is_instance(node: &Node) -> bool {
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    id.strip_prefix(ID_PREFIX).is_some_and(|name| Some(name) == node.metadata.name.as_deref())
}

/// The Node this NodeClaim gets.
pub(crate) fn node(claim: &NodeClaim, catalogue: &Catalogue) -> Result<Node, ProviderError> {
    let (instance_type, offering) = choose(claim, catalogue)?;
    let name = node_name(claim)?;
    let requests = claim.spec.resources.as_ref().and_then(|resources| resources.requests.clone());
    let requests = requests.unwrap_or_default();
    let mut allocatable = requests.clone();
    allocatable.extend(conversion::resource_list(&conversion::allocatable(instance_type)));
    Ok(Node {
        metadata: ObjectMeta {
            labels: Some(node_labels(claim, instance_type, offering)),
            annotations: Some(annotations(claim.metadata.annotations.as_ref())),
            owner_references: owner(claim).map(|owner| vec![owner]),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("{ID_PREFIX}{name}")),
            taints: Some(vec![taints::UNREGISTERED.to_taint()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            // What was asked for, not what the type has: so it is with Go's provider, and limits of NodePools count it.
            capacity: Some(quantities(&requests)).filter(|list| !list.is_empty()),
            allocatable: Some(quantities(&allocatable)),
            phase: Some("Pending".to_owned()),
            ..NodeStatus::default()
        }),
    })
}

/// What is known of the instance behind this Node.
pub(crate) fn describe(node: &Node) -> LaunchedInstance {
    let status = node.status.clone().unwrap_or_default();
    LaunchedInstance {
        provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
        image_id: String::new(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        annotations: annotations(node.metadata.annotations.as_ref()),
        capacity: resource_list(status.capacity.as_ref()),
        allocatable: resource_list(status.allocatable.as_ref()),
    }
}

/// The Node as a NodeClaim, which is how instances are listed.
pub(crate) fn as_claim(node: &Node) -> NodeClaim {
    let mut claim = NodeClaim::default();
    claim.metadata.name = node.metadata.name.clone();
    describe(node).write_into(&mut claim);
    claim.status.get_or_insert_default().node_name = node.metadata.name.clone();
    claim
}

/// The cheapest offering the NodeClaim allows. Of several at one price (zones, mostly) the NodeClaim's UID picks, which spreads
/// NodeClaims over them and gives each the same answer every time.
fn choose<'a>(
    claim: &NodeClaim,
    catalogue: &'a Catalogue,
) -> Result<(&'a InstanceType, &'a Offering), ProviderError> {
    let named = |what: &str| format!("translating nodeclaim to node, {what}");
    let mut wanted = conversion::requirements(claim).map_err(ProviderError::other)?;
    if provider_id(claim).is_some() {
        narrow_to_labels(&mut wanted, claim);
    }
    let listed = claim.spec.requirements.iter().find(|r| r.key == well_known::INSTANCE_TYPE);
    let listed = listed.ok_or_else(|| ProviderError::other(named("instance type requirement not found")))?;
    let allowed = |name: &&String| wanted.get(well_known::INSTANCE_TYPE).is_none_or(|r| r.has(name));
    let known: Vec<&InstanceType> =
        listed.values().iter().filter(allowed).filter_map(|name| catalogue.get(name)).collect();
    if known.is_empty() {
        let missing = listed.values().first().map(String::as_str).unwrap_or_default();
        return Err(ProviderError::other(named(&format!(
            "instance type not found (instance-type={missing}); the catalogue in use has none that NodeClaim {} allows",
            claim.name_any()
        ))));
    }
    let is_known = |key: &str| {
        karpenter_engine::labels::WELL_KNOWN.contains(&key)
            || labels::WELL_KNOWN.contains(&key)
            || catalogue.labels.contains(key)
    };
    let fits = |offering: &&Offering| {
        offering.available && wanted.compatible(&offering.requirements, is_known).is_ok()
    };
    let mut best: Option<(&InstanceType, f64)> = None;
    for instance_type in known {
        let prices = instance_type.offerings.iter().filter(fits).map(|offering| offering.price);
        if let Some(price) = prices.min_by(f64::total_cmp)
            && best.is_none_or(|(_, least)| price < least)
        {
            best = Some((instance_type, price));
        }
    }
    let (instance_type, price) = best.ok_or_else(|| {
        ProviderError::insufficient_capacity(format!(
            "no offering of its instance types satisfies the requirements of NodeClaim {}",
            claim.name_any()
        ))
    })?;
    let equal: Vec<&Offering> = (instance_type.offerings.iter().filter(fits))
        .filter(|offering| offering.price.total_cmp(&price).is_eq())
        .collect();
    let pick = digest(claim).iter().skip(5).take(4).fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
    let offering = equal.get(pick % equal.len().max(1)).copied();
    offering
        .map(|offering| (instance_type, offering))
        .ok_or_else(|| ProviderError::insufficient_capacity("no offering"))
}

/// A NodeClaim that was launched has its type, zone and capacity type as labels; they are not chosen anew.
fn narrow_to_labels(wanted: &mut Requirements, claim: &NodeClaim) {
    for key in [well_known::INSTANCE_TYPE, well_known::TOPOLOGY_ZONE, well_known::CAPACITY_TYPE] {
        if let Some(value) = claim.labels().get(key) {
            wanted.add(Requirement::one_of(key, [value.as_str()]));
        }
    }
}

fn node_labels(
    claim: &NodeClaim,
    instance_type: &InstanceType,
    offering: &Offering,
) -> BTreeMap<String, String> {
    let mut all = claim.metadata.labels.clone().unwrap_or_default();
    for requirement in &claim.spec.requirements {
        if let ("In", [value]) = (requirement.operator.as_str(), requirement.values()) {
            all.insert(requirement.key.clone(), value.clone());
        }
    }
    all.insert(well_known::INSTANCE_TYPE.to_owned(), instance_type.name.to_string());
    for requirement in instance_type.requirements.iter().chain(offering.requirements.iter()) {
        if let Some(value) = single(requirement) {
            all.insert(requirement.key.to_string(), value);
        }
    }
    for (key, value) in [
        (labels::NODE_PRICE, format!("{:.6}", offering.price)),
        (labels::PARTITION, labels::PARTITION_VALUE.to_owned()),
        (well_known::HOSTNAME, host_name(claim)),
        (labels::NODE, labels::NODE_VALUE.to_owned()),
    ] {
        all.insert(key.to_owned(), value);
    }
    all
}

/// The one value a requirement allows.
fn single(requirement: &Requirement) -> Option<String> {
    let only = !requirement.complement && requirement.values.len() == 1;
    requirement.values.first().filter(|_| only).map(ToString::to_string)
}

fn annotations(of: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut all = of.cloned().unwrap_or_default();
    all.insert(labels::NODE.to_owned(), labels::NODE_VALUE.to_owned());
    all
}

/// As the core writes it when it registers the Node.
fn owner(claim: &NodeClaim) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: NodeClaim::api_version(&()).into_owned(),
        kind: NodeClaim::kind(&()).into_owned(),
        name: claim.metadata.name.clone()?,
        uid: claim.metadata.uid.clone()?,
        block_owner_deletion: Some(true),
        controller: None,
    })
}

fn digest(claim: &NodeClaim) -> [u8; 32] {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    Sha256::digest(uid.as_bytes()).into()
}

fn quantities(list: &ResourceList) -> BTreeMap<String, ApiQuantity> {
    list.iter().map(|(name, quantity)| (name.clone(), ApiQuantity(quantity.to_string()))).collect()
}

/// A quantity the server accepted parses; one that does not is as good as none.
fn resource_list(list: Option<&BTreeMap<String, ApiQuantity>>) -> ResourceList {
    let parsed = |(name, text): (&String, &ApiQuantity)| Some((name.clone(), Quantity::parse(&text.0).ok()?));
    list.into_iter().flatten().filter_map(parsed).collect()
}

#[cfg(test)]
#[path = "instances_tests.rs"]
mod tests;
