//! Between the words of the API and those of the engine: requirements and resources of NodeClaims and instance types.

use karpenter_api::annotations::CAPACITY_OVERLAY_APPLIED;
use karpenter_api::resources::WELL_KNOWN;
use karpenter_api::{NodeClaim, NodeSelectorRequirement, Quantity, ResourceList};
use karpenter_engine::ingest::Ingest;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::requirement::{RequirementError, SelectorRequirement};
use karpenter_engine::requirements::Requirements;
use karpenter_engine::resources::{Amount, Resources};
use karpenter_primitives::Format;

/// What a NodeClaim requires of its node.
pub fn requirements(claim: &NodeClaim) -> Result<Requirements, RequirementError> {
    let selectors: Vec<SelectorRequirement> = claim.spec.requirements.iter().map(selector).collect();
    Requirements::from_selectors(&selectors)
}

/// A requirement as the engine reads it.
pub fn selector(requirement: &NodeSelectorRequirement) -> SelectorRequirement {
    SelectorRequirement {
        key: requirement.key.as_str().into(),
        operator: requirement.operator.as_str().into(),
        values: requirement.values().iter().map(|value| value.as_str().into()).collect(),
        min_values: requirement.min_values,
    }
}

/// Resources as the API writes them: memory and storage in powers of two, the rest in tens.
pub fn resource_list(resources: &Resources) -> ResourceList {
    resources.iter().map(|(name, amount)| (name.to_string(), quantity(name, *amount))).collect()
}

/// Resources as the engine reckons with them.
pub fn resources(list: &ResourceList) -> Resources {
    let mut resources = Resources::new();
    for (name, quantity) in list {
        resources.set(name.as_str(), amount(quantity));
    }
    resources
}

/// What a NodeClaim asks of an instance type as its provider knows it. Where a NodeOverlay had a hand in it, extended resources are not
/// among that: overlays give types amounts that the provider does not know, and the NodeClaim names the types that have enough.
pub fn requests(claim: &NodeClaim) -> Resources {
    let requests = claim.spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let mut requests = requests.map(resources).unwrap_or_default();
    let annotations = claim.metadata.annotations.as_ref();
    if annotations.is_some_and(|all| all.get(CAPACITY_OVERLAY_APPLIED).is_some_and(|said| said == "true")) {
        requests = requests
            .iter()
            .filter(|(name, _)| WELL_KNOWN.contains(&name.as_ref()))
            .map(|(name, amount)| (name.clone(), *amount))
            .collect();
    }
    requests
}

/// What pods may use of an instance type: its capacity less what kubelet and system keep.
pub fn allocatable(instance_type: &InstanceType) -> Resources {
    let mut allocatable = instance_type.capacity.minus(&instance_type.overhead.total());
    // Memory set aside as huge pages is not there as memory (rule S5.4).
    let memory = instance_type
        .capacity
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .fold(allocatable.amount("memory"), |memory, (_, pages)| memory.minus(*pages).max(Amount::ZERO));
    if allocatable.get("memory").is_some() {
        allocatable.set("memory", memory);
    }
    allocatable
}

fn quantity(name: &str, amount: Amount) -> Quantity {
    let binary = matches!(name, "memory" | "ephemeral-storage" | "storage") || name.starts_with("hugepages-");
    let whole = |amount: i128| i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX });
    let nanos = amount.as_nanos();
    if nanos % 1_000_000_000 == 0 {
        let format = if binary { Format::BinarySi } else { Format::DecimalSi };
        Quantity::new(whole(nanos / 1_000_000_000), format)
    } else {
        Quantity::from_milli(whole(amount.as_milli_ceil()), Format::DecimalSi)
    }
}

/// The exact amount, or the nearest whole number of one that is too large or too fine to reckon with.
fn amount(quantity: &Quantity) -> Amount {
    Ingest::new().amount(&quantity.to_string()).unwrap_or_else(|_| Amount::units(quantity.value()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).expect("a quantity")))
            .collect()
    }

    #[test]
    fn resources_come_back_as_they_went() {
        let there = list(&[
            ("cpu", "1500m"),
            ("memory", "16Gi"),
            ("pods", "110"),
            ("ephemeral-storage", "20Gi"),
            ("x/gpu", "2"),
        ]);
        let back = resource_list(&resources(&there));
        let text =
            |list: &ResourceList| list.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ");
        assert_eq!(text(&back), text(&there));
        let huge = list(&[("memory", "64Ti")]);
        assert_eq!(resources(&huge).amount("memory"), Amount::units(64 << 40));
    }

    #[test]
    fn extended_resources_are_asked_for_unless_an_overlay_may_have_added_them() {
        let wanted = list(&[("cpu", "1"), ("pods", "3"), ("example.com/fuse", "1")]);
        let mut claim: NodeClaim = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "c"},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": [],
                "resources": {"requests": wanted},
            },
        }))
        .expect("a NodeClaim");
        assert_eq!(requests(&claim), resources(&wanted));
        claim.metadata.annotations = Some([(CAPACITY_OVERLAY_APPLIED.to_owned(), "true".to_owned())].into());
        assert_eq!(requests(&claim), resources(&list(&[("cpu", "1"), ("pods", "3")])));
    }

    #[test]
    fn huge_pages_and_overhead_are_not_for_pods() {
        let mut instance_type = InstanceType {
            capacity: resources(&list(&[("cpu", "4"), ("memory", "8Gi"), ("hugepages-2Mi", "1Gi")])),
            ..InstanceType::default()
        };
        instance_type.overhead.kube_reserved = resources(&list(&[("cpu", "100m"), ("memory", "1Gi")]));
        let left = resource_list(&allocatable(&instance_type));
        assert_eq!((left["cpu"].to_string(), left["memory"].to_string()), ("3900m".into(), "6Gi".into()));
    }
}
