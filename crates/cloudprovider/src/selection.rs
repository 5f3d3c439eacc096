//! What a NodeClaim could be launched as, and what an instance of it looks like: what every provider that chooses itself needs.

use std::collections::BTreeMap;

use karpenter_api::{NodeClaim, labels};
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_engine::labels::WELL_KNOWN;
use karpenter_engine::requirement::{Requirement, RequirementError};
use karpenter_engine::requirements::Requirements;

use crate::conversion;
use crate::provider::LaunchedInstance;

/// Everything on offer that fits the NodeClaim, cheapest first; of equal prices, in the order offered.
///
/// `own_labels` are the labels the provider describes its offerings by: a NodeClaim that does not speak of them takes any value.
///
/// # Errors
///
/// If the NodeClaim's requirements make no sense.
pub fn by_price<'a>(
    types: &'a [InstanceType],
    claim: &NodeClaim,
    own_labels: &[&str],
) -> Result<Vec<(&'a InstanceType, &'a Offering)>, RequirementError> {
    let wanted = conversion::requirements(claim)?;
    let requests = conversion::requests(claim);
    let well_known = |key: &str| WELL_KNOWN.contains(&key) || own_labels.contains(&key);
    let allows = |offered: &Requirements| wanted.compatible(offered, well_known).is_ok();
    let mut choices: Vec<_> = types
        .iter()
        .filter(|it| {
            wanted.intersects(&it.requirements).is_ok() && requests.fits(&conversion::allocatable(it))
        })
        .flat_map(|it| it.offerings.iter().map(move |offering| (it, offering)))
        .filter(|(_, offering)| offering.launchable() && allows(&offering.requirements))
        .collect();
    choices.sort_by(|(_, a), (_, b)| a.price.total_cmp(&b.price));
    Ok(choices)
}

/// An instance of this offering: labels that have one value, capacity, what pods may use.
pub fn describe(provider_id: &str, instance_type: &InstanceType, offering: &Offering) -> LaunchedInstance {
    let single = |requirement: &Requirement| {
        let value = requirement
            .values
            .first()
            .filter(|_| !requirement.complement && requirement.values.len() == 1)?;
        Some((requirement.key.to_string(), value.to_string()))
    };
    let mut labels: BTreeMap<String, String> =
        instance_type.requirements.iter().chain(offering.requirements.iter()).filter_map(single).collect();
    labels.insert(labels::INSTANCE_TYPE.to_owned(), instance_type.name.to_string());
    LaunchedInstance {
        provider_id: provider_id.to_owned(),
        labels,
        capacity: conversion::resource_list(&instance_type.capacity),
        allocatable: conversion::resource_list(&conversion::allocatable(instance_type)),
        ..LaunchedInstance::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_label_of_the_providers_own_excludes_only_claims_that_ask_for_another_value() {
        let key = "example.com/zone-id";
        let requirements: Requirements = [Requirement::one_of(key, ["z1"])].into_iter().collect();
        let offering = Offering { requirements, available: true, ..Offering::default() };
        let types = [InstanceType { offerings: vec![offering], ..InstanceType::default() }];
        let claim = |requirements: serde_json::Value| -> NodeClaim {
            let spec = json!({"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": requirements});
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).expect("a NodeClaim")
        };
        let choices = |claim: &NodeClaim, own: &[&str]| by_price(&types, claim, own).expect("choices").len();
        let silent = claim(json!([]));
        assert_eq!(choices(&silent, &[key]), 1);
        assert_eq!(choices(&silent, &[]), 0, "a label nobody knows must be asked for");
        let other = claim(json!([{"key": key, "operator": "In", "values": ["z2"]}]));
        assert_eq!(choices(&other, &[key]), 0);
    }
    #[test]
    fn what_an_overlay_adds_to_a_type_refuses_no_claim_for_it() {
        let offering = Offering { available: true, ..Offering::default() };
        let capacity = json!({"cpu": "4", "memory": "8Gi"});
        let list = serde_json::from_value(capacity).expect("resources");
        let types = [InstanceType {
            capacity: conversion::resources(&list),
            offerings: vec![offering],
            ..InstanceType::default()
        }];
        let choices = |requests: serde_json::Value, annotations: serde_json::Value| {
            let spec = json!({
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": [],
                "resources": {"requests": requests},
            });
            let claim = json!({"metadata": {"name": "a", "annotations": annotations}, "spec": spec});
            by_price(&types, &serde_json::from_value(claim).expect("a NodeClaim"), &[])
                .expect("choices")
                .len()
        };
        let overlaid = json!({"karpenter.sh/capacity-overlay-applied": "true"});
        let fused = json!({"cpu": "1", "example.com/fuse": "1"});
        assert_eq!(choices(fused.clone(), json!({})), 0);
        assert_eq!(choices(fused, overlaid.clone()), 1);
        assert_eq!(
            choices(json!({"cpu": "5", "example.com/fuse": "1"}), overlaid),
            0,
            "of cores it has four"
        );
    }
}
