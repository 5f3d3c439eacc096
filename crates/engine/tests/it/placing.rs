//! Single rules, each in a cluster small enough to see through.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_engine::labels::{HOSTNAME, ZONE};
use karpenter_engine::node_pool::{InstanceTypes, TaintedTypes};
use karpenter_engine::pod::Pod;
use karpenter_engine::pod::{HostPort, WhenUnsatisfiable};
use karpenter_engine::reasons::{Rejection, Unplaceable};
use karpenter_engine::requirement::{Operator, SelectorRequirement};
use karpenter_engine::resources::{Amount, CPU};
use karpenter_engine::taints::{Taint, Toleration};
use karpenter_engine::{Snapshot, SolveOptions, solve, solve_within};

use crate::cluster::{node, pod, pool, snapshot, spread, term, types, with};

#[test]
fn pods_share_a_claim_whose_types_hold_them_all() {
    let plan = solve(&snapshot(vec![pod("a", "web", 500), pod("b", "web", 500)]), &SolveOptions::default());
    assert_eq!(plan.new_claims.len(), 1);
    assert_eq!(plan.new_claims[0].pods.len(), 2);
    let names: Vec<&str> = plan.new_claims[0].instance_types.iter().map(|t| t.as_ref()).collect();
    assert_eq!(names, ["size-2", "size-4", "size-8", "size-16"], "one core less overhead is too small");
}

#[test]
fn out_of_time_a_pass_still_gets_somewhere_and_says_nothing_of_who_is_left() {
    let late = |pods| solve_within(&snapshot(pods), &SolveOptions::default(), &|| true);
    let (plan, left) = late(vec![pod("a", "web", 500), pod("b", "web", 500)]);
    assert_eq!((plan.new_claims[0].pods.len(), left), (1, 1));
    // The large one was refused, but might have been tried again.
    let (plan, left) = late(vec![pod("a", "web", 500), pod("large", "web", 1_000_000)]);
    assert_eq!((plan.new_claims.len(), plan.pod_errors.len(), left), (0, 0, 2));
}

#[test]
fn a_node_with_room_is_used_before_anything_is_bought() {
    let mut cluster = snapshot(vec![pod("a", "web", 500)]);
    cluster.nodes.push(node("n1", "zone-a", 4));
    let plan = solve(&cluster, &SolveOptions::default());
    assert!(plan.new_claims.is_empty());
    assert_eq!(plan.existing_nodes[0].node.as_ref(), "n1");
}

#[test]
fn a_node_that_a_rollout_has_yet_to_replace_is_used_before_anything_is_bought() {
    let with_taint = |key: &str| {
        let mut cluster = snapshot(vec![pod("a", "web", 500)]);
        let mut machine = node("n1", "zone-a", 4);
        let taint = Taint { key: key.into(), value: "".into(), effect: "PreferNoSchedule".into() };
        Arc::make_mut(machine.node.as_mut().expect("a node")).taints = vec![taint];
        cluster.nodes.push(machine);
        solve(&cluster, &SolveOptions::default()).new_claims.len()
    };
    assert_eq!(with_taint("node.cluster.x-k8s.io/outdated-revision"), 0);
    assert_eq!(with_taint("team"), 1, "whoever else prefers no pods there is heeded");
}

/// A pool of small nodes, with large ones that have a taint besides its own.
fn partly_tainted(pods: Vec<Pod>) -> Snapshot {
    let taint = |key: &str| Taint { key: key.into(), value: "".into(), effect: "NoSchedule".into() };
    let all = types();
    let mut cluster = snapshot(pods);
    let pool = &mut cluster.node_pools[0];
    pool.taints = vec![taint("team")];
    pool.instance_types = InstanceTypes::Resolved(all[..2].into());
    pool.tainted = vec![TaintedTypes { taints: vec![taint("gpu")], instance_types: all[2..].into() }];
    cluster
}

fn tolerating(pod: Pod, keys: &[&str]) -> Pod {
    let toleration = |key: &&str| Toleration {
        key: (*key).into(),
        operator: "Exists".into(),
        value: "".into(),
        effect: "".into(),
        seconds: None,
    };
    with(pod, |spec| spec.tolerations = keys.iter().map(toleration).collect())
}

#[test]
fn nodes_with_further_taints_are_bought_for_pods_that_tolerate_them_and_find_no_others() {
    let pods = vec![
        tolerating(pod("small", "web", 500), &["team"]),
        tolerating(pod("large", "web", 3000), &["team", "gpu"]),
        tolerating(pod("shy", "web", 3000), &["team"]),
    ];
    let plan = solve(&partly_tainted(pods), &SolveOptions::default());
    let mut bought: Vec<(Vec<&str>, Vec<&str>)> = plan
        .new_claims
        .iter()
        .map(|claim| {
            (
                claim.taints.iter().map(|taint| taint.key.as_ref()).collect(),
                claim.instance_types.iter().map(|name| name.as_ref()).collect(),
            )
        })
        .collect();
    bought.sort();
    assert_eq!(
        bought,
        [
            (vec!["team"], vec!["size-1", "size-2"]),
            (vec!["team", "gpu"], vec!["size-4", "size-8", "size-16"])
        ]
    );
    assert_eq!(plan.pod_errors.len(), 1, "one that does not tolerate them waits");
}

#[test]
fn nodes_with_further_taints_count_against_the_limits_of_their_pool() {
    let pods = vec![
        tolerating(pod("small", "web", 1500), &["team"]),
        tolerating(pod("large", "web", 3000), &["team", "gpu"]),
    ];
    let placed = |limit: i64| {
        let mut cluster = partly_tainted(pods.clone());
        cluster.node_pools[0].limits = [(CPU, Amount::units(limit))].into_iter().collect();
        solve(&cluster, &SolveOptions::default()).new_claims.len()
    };
    assert_eq!((placed(18), placed(16)), (2, 1), "as large as the claim could become");
}

#[test]
fn a_pod_that_tolerates_nothing_never_lands_on_a_tainted_pool() {
    let mut cluster = snapshot(vec![pod("a", "web", 500)]);
    let taint = Taint { key: "team".into(), value: "x".into(), effect: "NoSchedule".into() };
    cluster.node_pools[0].taints = vec![taint.clone()];
    let plan = solve(&cluster, &SolveOptions::default());
    let Unplaceable::AllPools(pools) = &plan.pod_errors[0].reason else { panic!("{:?}", plan.pod_errors) };
    assert_eq!(pools[0].reason, Rejection::Taints(vec![taint]));
}

#[test]
fn a_zonal_spread_uses_every_zone_once_before_any_twice() {
    let pods = (0..6)
        .map(|i| {
            with(pod(&format!("p{i}"), "web", 3000), |s| {
                s.topology_spread = vec![spread("web", ZONE, WhenUnsatisfiable::DoNotSchedule)];
            })
        })
        .collect();
    let plan = solve(&snapshot(pods), &SolveOptions::default());
    assert!(plan.pod_errors.is_empty());
    let mut per_zone = std::collections::BTreeMap::new();
    for claim in &plan.new_claims {
        let zone = claim.requirements.iter().find(|r| r.key.as_ref() == ZONE).map(|r| r.values.clone());
        *per_zone.entry(zone).or_insert(0) += claim.pods.len();
    }
    assert_eq!(per_zone.into_values().collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn hosts_of_pods_that_avoid_each_other_are_all_different() {
    let pods = (0..20)
        .map(|i| {
            with(pod(&format!("p{i:02}"), "db", 100), |s| {
                s.pod_anti_affinity.required = vec![term("db", HOSTNAME)];
            })
        })
        .collect();
    let plan = solve(&snapshot(pods), &SolveOptions::default());
    assert_eq!(plan.new_claims.len(), 20);
}

#[test]
fn a_preference_that_cannot_be_met_is_given_up_and_told() {
    let asks = |zone: &str| karpenter_engine::pod::PreferredNodeTerm {
        weight: 1,
        term: karpenter_engine::pod::NodeSelectorTerm {
            expressions: vec![SelectorRequirement::new(ZONE, Operator::In, [zone])],
            has_match_fields: false,
        },
    };
    let wishful = with(pod("a", "web", 100), |s| s.preferred_node_affinity = vec![asks("zone-z")]);
    let plan = solve(&snapshot(vec![wishful]), &SolveOptions::default());
    assert_eq!(plan.new_claims[0].pods[0].relaxed.len(), 1);
}

#[test]
fn two_pods_with_one_host_port_need_two_hosts() {
    let port = HostPort { ip: "0.0.0.0".parse().ok(), port: 80, protocol: "TCP".into() };
    let pods = ["a", "b"].map(|n| with(pod(n, "web", 100), |s| s.host_ports = vec![port.clone()]));
    let plan = solve(&snapshot(pods.into()), &SolveOptions::default());
    assert_eq!(plan.new_claims.len(), 2);
}

#[test]
fn heavier_pools_come_first_and_equals_in_reverse_order_of_name() {
    let types = types();
    let mut cluster = snapshot(vec![pod("a", "web", 100)]);
    cluster.node_pools = vec![pool("a", &types), pool("b", &types)];
    assert_eq!(solve(&cluster, &SolveOptions::default()).new_claims[0].node_pool.as_ref(), "b");
    cluster.node_pools[0].weight = 1;
    assert_eq!(solve(&cluster, &SolveOptions::default()).new_claims[0].node_pool.as_ref(), "a");
}

#[test]
fn limits_count_the_largest_type_a_claim_could_become() {
    let pods = (0..3)
        .map(|i| {
            with(pod(&format!("p{i}"), "web", 900), |s| {
                s.pod_anti_affinity.required = vec![term("web", HOSTNAME)];
            })
        })
        .collect();
    let mut cluster = snapshot(pods);
    cluster.node_pools[0].limits = [(CPU, Amount::units(18))].into_iter().collect();
    let plan = solve(&cluster, &SolveOptions::default());
    // The first claim could take 16 of the 18 cores, the second is held to the 2 that remain, the third finds none.
    assert_eq!(plan.new_claims.len(), 2);
    let Unplaceable::AllPools(pools) = &plan.pod_errors[0].reason else { panic!("{:?}", plan.pod_errors) };
    assert_eq!(pools[0].reason, Rejection::LimitsExceeded);
}

#[test]
fn a_pool_whose_requirements_mean_nothing_is_left_out_and_the_rest_goes_on() {
    let types = types();
    let mut cluster = snapshot(vec![pod("a", "web", 100)]);
    let mut nonsense = pool("nonsense", &types);
    nonsense.weight = 10;
    nonsense.requirements = vec![SelectorRequirement {
        operator: "Near".into(),
        ..SelectorRequirement::new(ZONE, Operator::In, ["x"])
    }];
    cluster.node_pools.push(nonsense);
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.new_claims[0].node_pool.as_ref(), "default");
    assert!(
        plan.rejected.iter().any(|r| r.object == "NodePool nonsense" && r.field.contains("requirements"))
    );
}

#[test]
fn absurd_numbers_are_refused_not_wrapped() {
    let mut greedy = pod("greedy", "web", 100);
    Arc::make_mut(&mut greedy.spec).requests.set(CPU, Amount::nanos(i128::MAX));
    let mut owing = pod("owing", "web", 100);
    Arc::make_mut(&mut owing.spec).requests.set(CPU, Amount::nanos(i128::MIN));
    let plan = solve(&snapshot(vec![greedy, owing]), &SolveOptions::default());
    let failed: BTreeSet<&str> = plan.pod_errors.iter().map(|e| e.pod.name.as_ref()).collect();
    assert_eq!(failed, BTreeSet::from(["greedy", "owing"]));
}

#[test]
fn an_empty_cluster_has_an_empty_plan() {
    let plan = solve(&Snapshot::default(), &SolveOptions::default());
    assert!(plan.new_claims.is_empty() && plan.pod_errors.is_empty() && plan.error.is_none());
}
