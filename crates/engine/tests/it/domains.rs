//! Labels that name the domains of a topology: the deprecated ones, and those that are there and empty.

use std::sync::Arc;

use karpenter_engine::labels::ZONE;
use karpenter_engine::node::StateNode;
use karpenter_engine::pod::{Phase, Pod, PodStatus, WhenUnsatisfiable};
use karpenter_engine::requirement::{Operator, SelectorRequirement};
use karpenter_engine::{Plan, Snapshot, SolveOptions, solve};

use crate::cluster::{node, outcome, pod, snapshot, spread, term, with};

const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";

/// The node with one more label.
fn labelled(mut node: StateNode, key: &str, value: &str) -> StateNode {
    let there = Arc::make_mut(node.node.as_mut().expect("a node"));
    let own = there.labels.iter().map(|(key, value)| (&**key, &**value));
    there.labels = own.chain([(key, value)]).collect();
    node
}

fn running(name: &str, on: &str) -> Pod {
    Pod {
        node_name: Some(on.into()),
        status: PodStatus { phase: Phase::Running, ..PodStatus::default() },
        ..pod(name, "web", 100)
    }
}

fn spread_over(key: &str, pod: Pod) -> Pod {
    with(pod, |spec| spec.topology_spread = vec![spread("web", key, WhenUnsatisfiable::DoNotSchedule)])
}

/// A node in each of two zones, by the old label and the new one, with a pod in the first; and this pod, which waits.
fn two_zones(waiting: Pod) -> Snapshot {
    let mut cluster = snapshot(vec![waiting, running("there", "zone-a")]);
    cluster.nodes = ["zone-a", "zone-b"].map(|zone| labelled(node(zone, zone, 4), BETA_ZONE, zone)).into();
    cluster
}

/// The plan, the same with and without shortcuts.
fn decided(cluster: &Snapshot) -> Plan {
    let plan = solve(cluster, &SolveOptions::default());
    let anew = solve(cluster, &SolveOptions { caching: false, ..SolveOptions::default() });
    assert_eq!(outcome(&plan), outcome(&anew));
    plan
}

/// The nodes that got pods.
fn nodes(plan: &Plan) -> Vec<&str> {
    plan.existing_nodes.iter().filter(|n| !n.pods.is_empty()).map(|n| n.node.as_ref()).collect()
}

#[test]
fn a_spread_over_a_deprecated_label_is_met_by_nodes_that_have_it() {
    let plan = decided(&two_zones(spread_over(BETA_ZONE, pod("p", "web", 100))));
    assert_eq!(nodes(&plan), ["zone-b"], "{:?}", outcome(&plan));
}

#[test]
fn affinity_over_a_deprecated_label_is_met_by_nodes_that_have_it() {
    let near = with(pod("p", "db", 100), |spec| spec.pod_affinity.required = vec![term("web", BETA_ZONE)]);
    let plan = decided(&two_zones(near));
    assert_eq!(nodes(&plan), ["zone-a"], "{:?}", outcome(&plan));
    let away =
        with(pod("p", "db", 100), |spec| spec.pod_anti_affinity.required = vec![term("web", BETA_ZONE)]);
    let plan = decided(&two_zones(away));
    assert_eq!(nodes(&plan), ["zone-b"], "{:?}", outcome(&plan));
}

#[test]
fn a_claim_for_a_spread_over_a_deprecated_label_speaks_of_its_successor() {
    let plan = decided(&two_zones(spread_over(BETA_ZONE, pod("large", "web", 6000))));
    let requirements = &plan.new_claims[0].requirements;
    let values = |key: &str| requirements.iter().find(|r| &*r.key == key).map(|r| r.values.clone());
    assert_eq!(values(ZONE), Some(vec!["zone-b".into()]));
    assert_eq!(values(BETA_ZONE), None);
}

/// Two nodes, of which the first has an empty `rack`; and a pod that spreads over racks.
fn racks() -> Snapshot {
    let mut cluster = snapshot(vec![spread_over("rack", pod("p", "web", 100))]);
    cluster.nodes =
        vec![labelled(node("n1", "zone-a", 4), "rack", ""), labelled(node("n2", "zone-a", 4), "rack", "r1")];
    cluster
}

#[test]
fn a_spread_does_not_choose_nodes_whose_label_is_empty() {
    let mut cluster = racks();
    assert_eq!(nodes(&decided(&cluster)), ["n2"]);
    cluster.pods.push(Arc::new(running("there", "n2")));
    let plan = decided(&cluster);
    assert_eq!((nodes(&plan).len(), plan.new_claims.len(), plan.pod_errors.len()), (0, 0, 1));
}

#[test]
fn a_spread_prefers_a_value_to_the_empty_one() {
    let mut cluster = snapshot(vec![spread_over("rack", pod("p", "web", 100))]);
    cluster.node_pools[0].requirements = vec![SelectorRequirement::new("rack", Operator::In, ["", "r1"])];
    let plan = decided(&cluster);
    assert_eq!(plan.new_claims[0].labels.get("rack").map(|value| &**value), Some("r1"));
}

#[test]
fn a_requirement_of_the_empty_value_alone_makes_no_label() {
    let mut cluster = snapshot(vec![pod("p", "web", 100)]);
    cluster.node_pools[0].requirements = vec![SelectorRequirement::new("team", Operator::In, [""])];
    let plan = decided(&cluster);
    let claim = &plan.new_claims[0];
    assert_eq!((claim.labels.get("team"), claim.open_labels.len()), (None, 0));
}
