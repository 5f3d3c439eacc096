//! Rules the recorded decisions of Go Karpenter cannot show: capacity buffers, instance types per NodePool, static
//! NodePools, nominations; and pods of nodes that go away.

use std::sync::Arc;

use karpenter_engine::cluster::DaemonSet;
use karpenter_engine::labels::{HOSTNAME, NODE_POOL, ZONE};
use karpenter_engine::pod::{Controller, Owners, Phase, Pod, PodStatus};
use karpenter_engine::reasons::SkipReason;
use karpenter_engine::resources::{Amount, CPU};
use karpenter_engine::{FeatureGates, Plan, Snapshot, SolveOptions, solve};

use crate::cluster::{instance_type, node, pod, pool, snapshot, term, types, with};

fn with_buffers() -> SolveOptions {
    let gates = FeatureGates { capacity_buffer: true, ..FeatureGates::default() };
    SolveOptions { gates, ..SolveOptions::default() }
}

/// A virtual pod of the buffer `spare`.
fn virtual_pod(number: usize, cpu_milli: i64) -> Arc<Pod> {
    let mut pod = pod(&format!("capacity-buffer-spare-{number}"), "web", cpu_milli);
    pod.buffer = Some("spare".into());
    pod.status = PodStatus { unschedulable: true, ..PodStatus::default() };
    Arc::new(pod)
}

fn running(name: &str, on: &str) -> Pod {
    let mut pod = pod(name, "web", 500);
    pod.node_name = Some(on.into());
    pod.status = PodStatus { phase: Phase::Running, ..PodStatus::default() };
    pod
}

fn on_new(plan: &Plan) -> Vec<&str> {
    let mut names: Vec<&str> =
        plan.new_claims.iter().flat_map(|c| &c.pods).map(|p| p.pod.name.as_ref()).collect();
    names.sort_unstable();
    names
}

#[test]
fn virtual_pods_are_placed_like_others_and_only_with_their_gate() {
    let mut cluster = snapshot(vec![pod("real", "web", 100)]);
    cluster.buffer_pods = vec![virtual_pod(1, 2000), virtual_pod(2, 2000)];
    assert_eq!(on_new(&solve(&cluster, &SolveOptions::default())), ["real"]);
    let plan = solve(&cluster, &with_buffers());
    assert_eq!(on_new(&plan), ["capacity-buffer-spare-1", "capacity-buffer-spare-2", "real"]);
    // They come by size: the larger virtual pods open the claim that the real one then shares.
    assert_eq!(plan.new_claims[0].pods[0].pod.name.as_ref(), "capacity-buffer-spare-1");
}

#[test]
fn each_pool_buys_from_the_types_its_own_provider_offers() {
    let large = [instance_type("large", 32)].into();
    let small = [instance_type("small", 2)].into();
    let mut cluster = snapshot(vec![pod("big", "web", 20_000), pod("little", "web", 1000)]);
    cluster.node_pools = vec![pool("large", &large), pool("small", &small)];
    cluster.node_pools[1].weight = 10;
    let plan = solve(&cluster, &SolveOptions::default());
    let bought: Vec<(&str, &str)> =
        plan.new_claims.iter().map(|c| (c.node_pool.as_ref(), c.instance_types[0].as_ref())).collect();
    // The little pod shares the node made for the big one: what is in flight comes before what could be bought.
    assert_eq!(bought, [("large", "large")]);
    cluster.pods.remove(0);
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.new_claims[0].node_pool.as_ref(), "small");
}

#[test]
fn domains_come_from_the_types_of_the_pools_that_can_be_used() {
    let mut west = instance_type("west", 8);
    west.offerings.retain(|o| o.requirements.get(ZONE).is_some_and(|r| r.has("zone-c")));
    west.requirements.add(karpenter_engine::requirement::Requirement::one_of(ZONE, ["zone-c"]));
    let apart =
        |name: &str| with(pod(name, "db", 100), |s| s.pod_anti_affinity.required = vec![term("db", ZONE)]);
    let mut cluster = snapshot(vec![apart("a"), apart("b")]);
    cluster.node_pools = vec![pool("west", &[west].into())];
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!((plan.new_claims.len(), plan.pod_errors.len()), (1, 1), "there is one zone only");
}

#[test]
fn a_static_pool_buys_nothing_for_pods_but_its_nodes_take_them() {
    let mut cluster = snapshot(vec![pod("a", "web", 500), pod("b", "web", 9000)]);
    let mut fixed = pool("fixed", &types());
    (fixed.replicas, fixed.weight) = (Some(2), 100);
    cluster.node_pools.push(fixed);
    let mut own = node("fixed-1", "zone-a", 2);
    let labels = [(HOSTNAME, "fixed-1"), (ZONE, "zone-a"), (NODE_POOL, "fixed")];
    Arc::make_mut(own.node.as_mut().expect("a node")).labels = labels.into_iter().collect();
    cluster.nodes = vec![own];
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.existing_nodes[0].node.as_ref(), "fixed-1");
    assert_eq!(plan.new_claims[0].node_pool.as_ref(), "default");
    assert!(
        plan.skipped_pools.iter().any(|p| p.node_pool.as_ref() == "fixed" && p.reason == SkipReason::Static)
    );
}

#[test]
fn with_static_pools_alone_nothing_is_decided() {
    let mut cluster = snapshot(vec![pod("a", "web", 500)]);
    cluster.node_pools[0].replicas = Some(1);
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    let plan = solve(&cluster, &SolveOptions::default());
    assert!(plan.new_claims.is_empty() && plan.existing_nodes.is_empty() && plan.pod_errors.is_empty());
}

#[test]
fn pods_of_nodes_that_go_away_need_a_place_and_do_not_go_back() {
    let mut cluster = snapshot(vec![running("moves", "n1")]);
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    assert!(solve(&cluster, &SolveOptions::default()).new_claims.is_empty(), "nobody waits yet");
    for how in ["marked", "deleted"] {
        let mut going = cluster.clone();
        match how {
            "marked" => going.nodes[0].marked_for_deletion = true,
            _ => Arc::make_mut(going.nodes[0].node.as_mut().expect("a node")).deleting = true,
        }
        assert_eq!(on_new(&solve(&going, &SolveOptions::default())), ["moves"], "{how}");
    }
}

#[test]
fn daemons_mirror_pods_and_finished_pods_of_a_node_that_goes_away_stay_behind() {
    let mut daemon = running("daemon", "n1");
    daemon.owners = Owners { daemon_set: true, ..Owners::default() };
    let mut mirror = running("mirror", "n1");
    mirror.owners = Owners { node: true, ..Owners::default() };
    let mut done = running("done", "n1");
    done.status.phase = Phase::Succeeded;
    let mut cluster = snapshot(vec![daemon, mirror, done, running("moves", "n1")]);
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    cluster.nodes[0].marked_for_deletion = true;
    assert_eq!(on_new(&solve(&cluster, &SolveOptions::default())), ["moves"]);
}

#[test]
fn a_pod_preemption_has_promised_a_node_waits_for_it() {
    let mut promised = pod("promised", "web", 500);
    promised.status.nominated = true;
    let plan = solve(&snapshot(vec![promised]), &SolveOptions::default());
    assert!(plan.new_claims.is_empty() && plan.pod_errors.is_empty() && plan.ignored_pods.is_empty());
}

#[test]
fn a_nominated_node_takes_pods_like_any_other() {
    let mut cluster: Snapshot = snapshot(vec![pod("a", "web", 500)]);
    cluster.nodes = vec![node("n1", "zone-a", 4)];
    cluster.nodes[0].nominated = true;
    assert_eq!(solve(&cluster, &SolveOptions::default()).existing_nodes[0].node.as_ref(), "n1");
}

#[test]
fn capacity_of_a_node_that_goes_away_no_longer_counts_against_its_pools_limits() {
    let mut cluster = snapshot(vec![pod("a", "web", 500)]);
    cluster.node_pools[0].limits = [(CPU, Amount::units(4))].into_iter().collect();
    let mut own = node("n1", "zone-a", 4);
    let labels = [(HOSTNAME, "n1"), (ZONE, "zone-b"), (NODE_POOL, "default")];
    let of_node = Arc::make_mut(own.node.as_mut().expect("a node"));
    of_node.labels = labels.into_iter().collect();
    of_node.allocatable.set(CPU, Amount::milli(100));
    cluster.nodes = vec![own];
    assert_eq!(solve(&cluster, &SolveOptions::default()).pod_errors.len(), 1);
    cluster.nodes[0].marked_for_deletion = true;
    assert_eq!(on_new(&solve(&cluster, &SolveOptions::default())), ["a"]);
}

#[test]
fn the_last_pod_of_a_daemon_set_stands_for_it_until_there_is_another() {
    let mut cluster = snapshot(vec![pod("a", "web", 500)]);
    cluster.daemon_sets = vec![DaemonSet {
        namespace: "default".into(),
        name: "agent".into(),
        uid: "agent-uid".into(),
        template: Arc::new(pod("agent", "agent", 100)),
        last_pod: None,
    }];
    let smallest = |cluster: &Snapshot| {
        let plan = solve(cluster, &SolveOptions::default());
        plan.new_claims[0].instance_types[0].to_string()
    };
    assert_eq!(smallest(&cluster), "size-1", "no pod was ever seen: as the template says");
    cluster.daemon_sets[0].last_pod = Some(Arc::new(pod("agent-1", "agent", 3000)));
    assert_eq!(smallest(&cluster), "size-4");
    let mut there = running("agent-2", "elsewhere");
    there.owners.daemon_set = true;
    there.owners.controller = Some(Controller {
        api_version: "apps/v1".into(),
        kind: "DaemonSet".into(),
        name: "agent".into(),
        uid: "agent-uid".into(),
    });
    cluster.pods.push(Arc::new(there));
    assert_eq!(smallest(&cluster), "size-2", "half a core, as that of the pod that is there");
}
