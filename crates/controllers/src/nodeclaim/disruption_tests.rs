//! Drift as pure functions: the matrices of requirements and of offerings.

use karpenter_api::NodeSelectorRequirement;
use karpenter_cloudprovider::fake::instance_types;
use serde_json::json;

use super::*;

fn claim_with(labels: &[(&str, &str)]) -> NodeClaim {
    let mut claim = NodeClaim::default();
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    claim.metadata.labels = Some(labels.collect());
    claim
}

fn requiring(requirements: &serde_json::Value) -> NodePool {
    let mut pool = NodePool::default();
    pool.spec.template.spec.requirements =
        serde_json::from_value::<Vec<NodeSelectorRequirement>>(requirements.clone()).expect("requirements");
    pool
}

#[test]
fn labels_drift_from_requirements_they_contradict_or_do_not_know() {
    let claim = claim_with(&[(labels::CAPACITY_TYPE, "on-demand"), ("size", "3")]);
    let requirement = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
    for (drifted, requirement) in [
        (false, requirement(labels::CAPACITY_TYPE, "In", &["on-demand"])),
        (false, requirement(labels::CAPACITY_TYPE, "In", &["spot", "on-demand"])),
        (true, requirement(labels::CAPACITY_TYPE, "In", &["spot"])),
        (false, requirement(labels::CAPACITY_TYPE, "Exists", &[])),
        (true, requirement(labels::CAPACITY_TYPE, "DoesNotExist", &[])),
        (true, requirement(labels::ARCH, "In", &["amd64"])),
        (true, requirement(labels::ARCH, "Exists", &[])),
        (false, requirement(labels::ARCH, "DoesNotExist", &[])),
        (false, requirement(labels::ARCH, "NotIn", &["arm64"])),
        (false, requirement("size", "Gt", &["2"])),
        (true, requirement("size", "Lt", &["3"])),
    ] {
        assert_eq!(breaks_requirements(&requiring(&json!([requirement])), &claim), drifted, "{requirement}");
    }
    assert!(!breaks_requirements(&requiring(&json!([])), &claim));
}

#[test]
fn an_instance_type_is_offered_by_name_zone_and_capacity_type_available_or_not() {
    let rules = SchedulingRules::default();
    let mut types = instance_types(2);
    for offering in types.iter_mut().flat_map(|it| &mut it.offerings) {
        offering.available = false;
    }
    let claim = |it: &str, zone: &str, capacity_type: &str| {
        claim_with(&[
            (labels::INSTANCE_TYPE, it),
            (labels::TOPOLOGY_ZONE, zone),
            (labels::CAPACITY_TYPE, capacity_type),
        ])
    };
    let offered = |claim: &NodeClaim| offers(&types, claim, &rules, &BTreeSet::new());
    assert!(offered(&claim("fake-it-1", "test-zone-1", "spot")));
    assert!(!offered(&claim("fake-it-3", "test-zone-1", "spot")));
    assert!(!offered(&claim("fake-it-1", "test-zone-9", "spot")));
    assert!(!offered(&claim("fake-it-1", "test-zone-1", "other")));
    assert!(!offered(&claim_with(&[])), "no instance type at all");
}

#[test]
fn a_reserved_node_may_have_become_one_on_demand() {
    let rules = SchedulingRules::default();
    let claim = claim_with(&[
        (labels::INSTANCE_TYPE, "fake-it-1"),
        (labels::TOPOLOGY_ZONE, "test-zone-1"),
        (labels::CAPACITY_TYPE, "reserved"),
        ("example.com/reservation", "r-1"),
    ]);
    let mut types = instance_types(1);
    let reservation = BTreeSet::from(["example.com/reservation".to_owned()]);
    assert!(offers(&types, &claim, &rules, &reservation));
    types[0].offerings.retain(|offering| offering.capacity_type().is_some_and(|kind| &**kind == "spot"));
    assert!(!offers(&types, &claim, &rules, &reservation));
}
