//! Why: what a plan says about places pods did not get, and about those they got.

use std::sync::Arc;

use karpenter_engine::labels::{HOSTNAME, ZONE};
use karpenter_engine::misses::{MissedPlace, Misses};
use karpenter_engine::node::Node;
use karpenter_engine::pod::{HostPort, Pod, PodVolume, WhenUnsatisfiable};
use karpenter_engine::reasons::{Rejection, Rule, TopologyKind, VolumeLimit};
use karpenter_engine::requirement::{Operator, Requirement};
use karpenter_engine::requirements::Incompatibility;
use karpenter_engine::resources::{Amount, CPU};
use karpenter_engine::taints::Taint;
use karpenter_engine::{Plan, Snapshot, SolveOptions, StateNode, Why, solve};

use crate::cluster::{amounts, node, pod, pool, snapshot, spread, term, types, with};

fn explained(cluster: &Snapshot) -> Plan {
    solve(cluster, &SolveOptions { explain: true, ..SolveOptions::default() })
}

/// What `pod`, which nothing can be bought for, is told by `nodes`.
fn told(pod: Pod, nodes: Vec<StateNode>) -> Arc<Misses> {
    let mut cluster = snapshot(vec![pod]);
    cluster.node_pools[0].limits = [(CPU, Amount::units(0))].into_iter().collect();
    cluster.nodes = nodes;
    let plan = explained(&cluster);
    plan.pod_errors[0].misses.clone().expect("told")
}

fn changed(mut node: StateNode, change: impl FnOnce(&mut Node)) -> StateNode {
    change(Arc::make_mut(node.node.as_mut().expect("a node")));
    node
}

/// The only reason of the only node.
fn only(misses: &Misses) -> (Rule, &Rejection) {
    assert_eq!((misses.nodes.len(), misses.nodes[0].count), (1, 1), "{misses:?}");
    (misses.nodes[0].rule, &misses.nodes[0].nearest[0].reason)
}

#[test]
fn a_node_that_is_too_small_says_how_much_of_what_is_missing() {
    let misses = told(pod("a", "web", 3000), vec![node("n1", "zone-a", 2)]);
    let (rule, Rejection::NodeResources(short)) = only(&misses) else { panic!("{misses:?}") };
    assert_eq!(rule, Rule::Resources);
    assert_eq!(
        (short.resource.as_ref(), short.need, short.left),
        (CPU, Amount::milli(3000), Amount::milli(2000))
    );
}

#[test]
fn of_many_nodes_the_nearest_few_are_told_and_the_rest_counted() {
    let nodes = (1..=2000).map(|i| node(&format!("n{i:04}"), "zone-a", i % 7 + 1)).collect();
    let misses = told(pod("a", "web", 9000), nodes);
    assert_eq!((misses.nodes[0].rule, misses.nodes[0].count), (Rule::Resources, 2000));
    let named: Vec<&MissedPlace> = misses.nodes[0].nearest.iter().map(|m| &m.place).collect();
    // The largest have seven cores; among equals the first by name.
    let want = ["n0006", "n0013", "n0020"].map(|n| MissedPlace::Node(n.into()));
    assert_eq!(named, want.iter().collect::<Vec<_>>());
}

#[test]
fn each_rule_has_its_own_count() {
    let tainted = |name: &str| {
        changed(node(name, "zone-a", 8), |n| {
            n.taints = vec![Taint { key: "team".into(), value: "x".into(), effect: "NoSchedule".into() }];
        })
    };
    let nodes = vec![tainted("t1"), node("s1", "zone-a", 1), tainted("t2")];
    let misses = told(pod("a", "web", 2000), nodes);
    let counts: Vec<(Rule, usize)> = misses.nodes.iter().map(|r| (r.rule, r.count)).collect();
    assert_eq!(counts, [(Rule::Taints, 2), (Rule::Resources, 1)]);
    let Rejection::Taints(taints) = &misses.nodes[0].nearest[0].reason else { panic!("{misses:?}") };
    assert_eq!(taints[0].key.as_ref(), "team");
}

#[test]
fn a_node_elsewhere_says_which_requirement_it_does_not_meet() {
    let choosy = with(pod("a", "web", 100), |s| s.node_selector = [(ZONE, "zone-b")].into_iter().collect());
    let misses = told(choosy, vec![node("n1", "zone-a", 4)]);
    let (rule, Rejection::Requirements(Incompatibility::NoOverlap { incoming, existing })) = only(&misses)
    else {
        panic!("{misses:?}")
    };
    assert_eq!(rule, Rule::Requirements);
    assert_eq!(**incoming, Requirement::one_of(ZONE, ["zone-b"]));
    assert_eq!(**existing, Requirement::one_of(ZONE, ["zone-a"]));
    let custom = with(pod("a", "web", 100), |s| s.node_selector = [("disk", "ssd")].into_iter().collect());
    let misses = told(custom, vec![node("n1", "zone-a", 4)]);
    let (_, Rejection::Requirements(Incompatibility::UndefinedLabel { key, .. })) = only(&misses) else {
        panic!("{misses:?}")
    };
    assert_eq!(key.as_ref(), "disk");
}

#[test]
fn a_taken_host_port_is_named() {
    let port = HostPort { ip: "0.0.0.0".parse().ok(), port: 8080, protocol: "TCP".into() };
    let wants = |name: &str| with(pod(name, "web", 100), |s| s.host_ports = vec![port.clone()]);
    let mut cluster = snapshot(vec![wants("new")]);
    let holder = Pod { node_name: Some("n1".into()), ..wants("old") };
    cluster.pods.push(Arc::new(holder));
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    cluster.node_pools[0].limits = [(CPU, Amount::units(0))].into_iter().collect();
    let plan = explained(&cluster);
    let misses = plan.pod_errors[0].misses.clone().expect("told");
    assert_eq!(only(&misses).1, &Rejection::HostPort { port: 8080, protocol: "TCP".into() });
}

#[test]
fn a_full_volume_limit_is_told_with_driver_and_numbers() {
    let mut cluster = snapshot(vec![with(pod("a", "web", 100), |s| {
        s.volumes = vec![PodVolume::Claim("data".into())];
    })]);
    let class = karpenter_engine::cluster::StorageClass {
        provisioner: "ebs".into(),
        binds_immediately: false,
        allowed_topologies: Vec::new(),
    };
    cluster.storage.classes.insert("fast".into(), class);
    let claim = karpenter_engine::cluster::VolumeClaim {
        volume_name: "".into(),
        storage_class: "fast".into(),
        deleting: false,
        lost: false,
        bind_completed: false,
    };
    cluster.storage.claims.insert(("default".into(), "data".into()), claim);
    cluster.node_pools[0].limits = [(CPU, Amount::units(0))].into_iter().collect();
    cluster.nodes = vec![changed(node("n1", "zone-a", 4), |n| {
        n.csi_limits.insert("ebs".into(), Some(0));
    })];
    let plan = explained(&cluster);
    let misses = plan.pod_errors[0].misses.clone().expect("told");
    let want = VolumeLimit { driver: "ebs".into(), count: 1, limit: 0 };
    assert_eq!(only(&misses).1, &Rejection::VolumeLimit(Some(want)));
}

#[test]
fn a_spread_names_its_key_and_the_pods_in_each_domain() {
    let spreading = |name: &str| {
        with(pod(name, "web", 100), |s| {
            s.topology_spread = vec![spread("web", HOSTNAME, WhenUnsatisfiable::DoNotSchedule)];
        })
    };
    let mut cluster = snapshot(vec![spreading("new")]);
    cluster.pods.push(Arc::new(Pod { node_name: Some("n1".into()), ..spreading("old") }));
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    cluster.node_pools[0].limits = [(CPU, Amount::units(0))].into_iter().collect();
    let plan = explained(&cluster);
    let misses = plan.pod_errors[0].misses.clone().expect("told");
    let (Rule::Topology, Rejection::Topology(why)) = only(&misses) else { panic!("{misses:?}") };
    assert_eq!((why.kind, why.key.as_ref()), (TopologyKind::Spread, HOSTNAME));
    assert_eq!(why.counts, [("n1".into(), 1)]);
}

#[test]
fn claims_of_the_plan_say_what_they_lack_as_well() {
    let alone = |name: &str| {
        with(pod(name, "db", 900), |s| s.pod_anti_affinity.required = vec![term("db", HOSTNAME)])
    };
    let mut cluster = snapshot(vec![alone("a"), alone("b"), alone("c")]);
    cluster.node_pools[0].limits = [(CPU, Amount::units(18))].into_iter().collect();
    let plan = explained(&cluster);
    assert_eq!((plan.new_claims.len(), plan.pod_errors.len()), (2, 1));
    let misses = plan.pod_errors[0].misses.clone().expect("told");
    assert_eq!((misses.claims[0].rule, misses.claims[0].count), (Rule::Topology, 2));
    let MissedPlace::Claim { index, node_pool } = &misses.claims[0].nearest[0].place else {
        panic!("{misses:?}")
    };
    assert!(*index < 2 && node_pool.as_ref() == "default");
}

#[test]
fn a_pod_too_large_for_every_type_is_told_what_the_largest_leaves_beside_daemons() {
    let plan = explained(&snapshot(vec![pod("a", "web", 20_000)]));
    let text = format!("{:?}", plan.pod_errors[0].reason);
    assert!(text.contains("nearest: Some(Shortage { resource: \"cpu\""), "{text}");
    assert!(plan.pod_errors[0].misses.as_ref().is_some_and(|m| m.nodes.is_empty() && m.claims.is_empty()));
}

#[test]
fn pods_that_are_alike_share_what_they_are_told() {
    let mut cluster = snapshot((0..50).map(|i| pod(&format!("p{i:02}"), "web", 90_000)).collect());
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    let plan = explained(&cluster);
    let first = plan.pod_errors[0].misses.clone().expect("told");
    assert!(plan.pod_errors.iter().all(|e| e.misses.as_ref().is_some_and(|m| Arc::ptr_eq(m, &first))));
}

#[test]
fn nothing_of_this_is_worked_out_unless_asked_for() {
    let mut cluster = snapshot(vec![pod("a", "web", 90_000)]);
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    assert_eq!(solve(&cluster, &SolveOptions::default()).pod_errors[0].misses, None);
}

#[test]
fn a_placed_pod_says_why_there() {
    let mut cluster = snapshot(vec![
        pod("a", "web", 3500),
        pod("b", "web", 3000),
        pod("c", "web", 2000),
        pod("d", "web", 9000),
    ]);
    let mut heavy = pool("heavy", &types());
    heavy.weight = 10;
    heavy.taints = vec![Taint { key: "team".into(), value: "x".into(), effect: "NoSchedule".into() }];
    cluster.node_pools.push(heavy);
    cluster.nodes = vec![changed(node("n1", "zone-a", 4), |n| n.allocatable = amounts(3600, 8192, 20))];
    let plan = explained(&cluster);
    assert_eq!(plan.existing_nodes[0].pods[0].why, Why::FirstNode);
    let pods = &plan.new_claims[0].pods;
    let Why::NewClaim { passed_over } = &pods[0].why else { panic!("{pods:?}") };
    assert_eq!((passed_over[0].node_pool.as_ref(), passed_over[0].reason.rule()), ("heavy", Rule::Taints));
    assert!(pods[1..].iter().all(|p| p.why == Why::SharedClaim), "{pods:?}");
}

#[test]
fn what_was_given_up_reads_as_words() {
    let wishful = with(pod("a", "web", 100), |s| {
        s.preferred_node_affinity = vec![karpenter_engine::pod::PreferredNodeTerm {
            weight: 1,
            term: karpenter_engine::pod::NodeSelectorTerm {
                expressions: vec![karpenter_engine::requirement::SelectorRequirement::new(
                    ZONE,
                    Operator::In,
                    ["zone-z"],
                )],
                has_match_fields: false,
            },
        }];
    });
    let plan = explained(&snapshot(vec![wishful]));
    assert_eq!(
        plan.new_claims[0].pods[0].relaxed[0].to_string(),
        "a preferred node affinity: topology.kubernetes.io/zone In [zone-z]"
    );
}
