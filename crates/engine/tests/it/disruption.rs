//! Taking nodes away: the same answer whoever looks, and a reason for every node that stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_engine::cluster::DisruptionBudget;
use karpenter_engine::disruption::{DisruptionOptions, Memory, Method, Outcome, Pass, Verdict, Why, explain};
use karpenter_engine::labels::{
    CAPACITY_TYPE, INITIALIZED, INSTANCE_TYPE, Labels, NODE_POOL, REGISTERED, Text, ZONE,
};
use karpenter_engine::node::{ClaimConditions, Node, NodeClaim, StateNode};
use karpenter_engine::pod::{Phase, Pod, PodStatus};
use karpenter_engine::requirement::SelectorRequirement;
use karpenter_engine::{DrainPatience, Snapshot, SolveOptions, solve};

use crate::cluster::{amounts, pod, pool, selector, snapshot, term, types, with};

/// A node of instance type `kind`, fully up and long at rest.
fn node(name: &str, kind: &str, cpus: i64) -> StateNode {
    let labels: Labels = [
        (NODE_POOL, "default"),
        (INSTANCE_TYPE, kind),
        (CAPACITY_TYPE, "spot"),
        (ZONE, "zone-a"),
        (REGISTERED, "true"),
        (INITIALIZED, "true"),
        ("kubernetes.io/hostname", name),
    ]
    .into_iter()
    .collect();
    let resources = amounts(cpus * 1000, cpus * 4096, 110);
    StateNode {
        node: Some(Arc::new(Node {
            name: name.into(),
            provider_id: format!("sim://{name}").into(),
            labels: labels.clone(),
            capacity: resources.clone(),
            allocatable: resources.clone(),
            ready: true,
            ..Node::default()
        })),
        claim: Some(Arc::new(NodeClaim {
            name: format!("claim-{name}").into(),
            provider_id: format!("sim://{name}").into(),
            labels,
            capacity: resources.clone(),
            allocatable: resources,
            conditions: ClaimConditions {
                initialized_since_seconds: Some(0),
                consolidatable: true,
                ..ClaimConditions::default()
            },
            ..NodeClaim::default()
        })),
        ..StateNode::default()
    }
}

fn running(name: &str, cpu_milli: i64, node: &str) -> Pod {
    Pod {
        node_name: Some(node.into()),
        status: PodStatus { phase: Phase::Running, ..PodStatus::default() },
        ..pod(name, "web", cpu_milli)
    }
}

/// `count` full nodes: none of them can go.
fn packed(count: usize) -> Snapshot {
    let mut cluster = snapshot(
        (0..count).map(|i| running(&format!("pod-{i:04}"), 3_500, &format!("node-{i:04}"))).collect(),
    );
    cluster.node_pools = vec![consolidating()];
    cluster.nodes = (0..count).map(|i| node(&format!("node-{i:04}"), "size-4", 4)).collect();
    cluster
}

fn consolidating() -> karpenter_engine::node_pool::NodePool {
    let mut pool = pool("default", &types());
    pool.consolidate_after_seconds = Some(0);
    pool
}

fn all(snapshot: &Snapshot, options: &DisruptionOptions, memory: &Memory) -> Vec<Outcome> {
    let mut pass = Pass::new(snapshot, options, memory);
    options.methods().map(|method| pass.run(method)).collect()
}

#[test]
fn any_number_of_threads_gives_the_same_outcome() {
    let mut cluster = packed(400);
    // One node late in the order that can go: its pod fits beside another one.
    cluster.pods.push(Arc::new(running("small", 100, "node-9999")));
    cluster.nodes.push(node("node-9999", "size-4", 4));
    let outcome = |threads| {
        let options = DisruptionOptions { threads, ..DisruptionOptions::default() };
        let memory = Memory::default();
        let mut pass = Pass::new(&cluster, &options, &memory);
        format!("{:?}", pass.run(Method::SingleNodeConsolidation))
    };
    let alone = outcome(1);
    for threads in [2, 3, 8] {
        assert_eq!(alone, outcome(threads), "{threads} threads");
    }
}

#[test]
fn one_simulation_leaves_no_trace_in_the_next() {
    let mut cluster = packed(3);
    cluster.pods.push(Arc::new(running("small", 100, "spare")));
    cluster.nodes.push(node("spare", "size-4", 4));
    let options = DisruptionOptions::default();
    let memory = Memory::default();
    let mut pass = Pass::new(&cluster, &options, &memory);
    let first = format!("{:?}", pass.run(Method::SingleNodeConsolidation));
    let _ = pass.run(Method::MultiNodeConsolidation);
    assert_eq!(first, format!("{:?}", pass.run(Method::SingleNodeConsolidation)));
}

#[test]
fn every_node_has_a_verdict() {
    let mut cluster = packed(6);
    Arc::make_mut(cluster.nodes[0].claim.as_mut().expect("claim")).deleting = true;
    cluster.nodes[1].nominated = true;
    Arc::make_mut(&mut cluster.pods[2]).do_not_disrupt = Some("true".into());
    Arc::make_mut(cluster.nodes[3].claim.as_mut().expect("claim")).conditions.consolidatable = false;
    let options = DisruptionOptions::default();
    let verdicts = explain(&all(&cluster, &options, &Memory::default()));
    let why = |name: &str| match verdicts.get(&Text::from(name)) {
        Some(Verdict::Stays { why, .. }) => why.rule(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(verdicts.len(), 6);
    assert_eq!(why("node-0000"), "deleting");
    assert_eq!(why("node-0001"), "nominated");
    assert_eq!(why("node-0002"), "podDoNotDisrupt");
    assert_eq!(why("node-0003"), "consolidateAfter");
}

#[test]
fn a_budget_nobody_understands_allows_nothing_and_says_so() {
    let mut cluster = packed(2);
    cluster.node_pools[0].budgets = vec![karpenter_api::nodepool::Budget {
        nodes: "10%".into(),
        schedule: Some("every other tuesday".into()),
        duration: Some(karpenter_api::Duration::from_secs(3600)),
        ..Default::default()
    }];
    let options = DisruptionOptions::default();
    let memory = Memory::default();
    let outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
    assert!(outcome.commands.is_empty());
    assert!(
        outcome
            .stays
            .iter()
            .all(|s| matches!(&s.why, Why::Budget { standing, .. } if !standing.errors.is_empty()))
    );
    assert!(outcome.stays[0].why.to_string().contains("cannot be understood"), "{}", outcome.stays[0].why);
}

/// A node of type `size-8` that is not spot.
fn on_demand(name: &str) -> StateNode {
    let mut node = node(name, "size-8", 8);
    for labels in [
        &mut Arc::make_mut(node.node.as_mut().expect("a node")).labels,
        &mut Arc::make_mut(node.claim.as_mut().expect("a claim")).labels,
    ] {
        *labels = labels
            .iter()
            .map(|(key, value)| (&**key, if &**key == CAPACITY_TYPE { "on-demand" } else { &**value }))
            .collect();
    }
    node
}

/// Whether the replacement of a half-empty node on demand asks for spot, where types are sold as `sold` by a provider of which
/// `sells_spot` is true.
fn asks_for_spot(sold: &[&str], sells_spot: bool) -> bool {
    let mut cluster = packed(1);
    cluster.provider.sells_spot = sells_spot;
    cluster.nodes.push(on_demand("large"));
    cluster.pods.push(Arc::new(running("small", 1_500, "large")));
    let mut types = types().to_vec();
    for kind in &mut types {
        kind.offerings.retain(|offering| {
            offering.requirements.iter().any(|r| &*r.key == CAPACITY_TYPE && sold.iter().any(|s| r.has(s)))
        });
    }
    cluster.node_pools = vec![karpenter_engine::node_pool::NodePool {
        consolidate_after_seconds: Some(0),
        ..pool("default", &types.into())
    }];
    let (options, memory) = (DisruptionOptions::default(), Memory::default());
    let outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
    let [command] = outcome.commands.as_slice() else { panic!("{:?}", outcome.stays) };
    let [replacement] = command.replacements.as_slice() else { panic!("{command:?}") };
    let wanted = replacement.requirements.iter().find(|requirement| &*requirement.key == CAPACITY_TYPE);
    wanted.is_some_and(|requirement| requirement.values.iter().map(|value| &**value).eq(["spot"]))
}

#[test]
fn a_replacement_asks_for_spot_unless_its_provider_hardly_sells_it() {
    for sells_spot in [true, false] {
        let asks = asks_for_spot(&["spot", "on-demand"], sells_spot);
        assert!(asks, "it is cheaper as spot, and must not become on-demand");
    }
    assert!(!asks_for_spot(&["on-demand"], false), "it would never come");
    assert!(asks_for_spot(&["on-demand"], true), "as upstream decides");
}

#[test]
fn a_type_with_a_price_that_is_no_number_is_not_cheaper_wherever_that_price_is_listed() {
    for odd in [0, 1] {
        let mut cluster = packed(0);
        cluster.nodes.push(node("large", "size-8", 8));
        cluster.pods.push(Arc::new(running("small", 1_500, "large")));
        let mut types = types().to_vec();
        for kind in types.iter_mut().filter(|kind| &*kind.name != "size-8") {
            let mut twice = kind.offerings.clone();
            twice.truncate(1);
            twice.push(twice[0].clone());
            twice[odd].price = f64::NAN;
            kind.offerings = twice;
        }
        cluster.node_pools = vec![karpenter_engine::node_pool::NodePool {
            consolidate_after_seconds: Some(0),
            ..pool("default", &types.into())
        }];
        let mut options = DisruptionOptions::default();
        options.gates.spot_to_spot_consolidation = true;
        let memory = Memory::default();
        let outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
        assert!(outcome.commands.is_empty(), "{odd}: {:?}", outcome.commands);
        let large = outcome.stays.iter().find(|stays| &*stays.node == "large").expect("a reason");
        assert!(matches!(large.why, Why::NotCheaper { .. }), "{odd}: {}", large.why);
    }
}

#[test]
fn a_node_is_not_blamed_for_pods_of_others_that_need_a_new_one() {
    let mut cluster = packed(2);
    let (options, memory) = (DisruptionOptions::default(), Memory::default());
    let why = |cluster: &Snapshot| {
        let outcome = Pass::new(cluster, &options, &memory).run(Method::SingleNodeConsolidation);
        outcome.stays.into_iter().find(|stays| &*stays.node == "spare").expect("it stays").why
    };
    cluster.nodes.push(node("spare", "size-4", 4));
    cluster.pods.push(Arc::new(running("small", 100, "spare")));
    // Fits nowhere that is; what is on the spare node does.
    cluster.pods.push(Arc::new(pod("large", "web", 7_500)));
    let said = why(&cluster);
    assert_eq!(
        said.to_string(),
        "pod default/large on other nodes or none needs a new node anyway, and nothing is consolidated before that"
    );
    let told = said.event(Method::SingleNodeConsolidation).map(|(_, text)| text);
    assert_eq!(
        told.as_deref(),
        Some("SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"),
        "upstream's words"
    );
}

#[test]
fn a_replacement_with_too_few_values_left_is_planned_as_upstream_does_and_not_left_out() {
    let mut cluster = packed(0);
    cluster.nodes.push(on_demand("large"));
    cluster.pods.push(Arc::new(running("small", 1_500, "large")));
    cluster.node_pools[0].requirements = vec![SelectorRequirement {
        key: CAPACITY_TYPE.into(),
        operator: "In".into(),
        values: vec!["spot".into(), "on-demand".into()],
        min_values: Some(2),
    }];
    let (options, memory) = (DisruptionOptions::default(), Memory::default());
    let outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
    let [command] = outcome.commands.as_slice() else { panic!("{:?}", outcome.stays) };
    let [replacement] = command.replacements.as_slice() else { panic!("{command:?}") };
    let pinned = replacement.requirements.iter().find(|requirement| &*requirement.key == CAPACITY_TYPE);
    let pinned = pinned.expect("a capacity type");
    assert_eq!((pinned.values.as_slice(), pinned.min_values), (&["spot".into()][..], Some(2)));
}

#[test]
fn nodes_that_cannot_go_together_are_not_told_that_another_was_found() {
    let cluster = packed(3);
    let (options, memory) = (DisruptionOptions::default(), Memory::default());
    let outcome = Pass::new(&cluster, &options, &memory).run(Method::MultiNodeConsolidation);
    assert!(outcome.commands.is_empty());
    assert!(outcome.stays.iter().all(|stays| stays.why == Why::NoBatch), "{:?}", outcome.stays);
}

#[test]
fn a_budget_beyond_32_bits_is_told_as_one_that_allows_nothing() {
    let mut cluster = packed(2);
    cluster.node_pools[0].budgets =
        vec![karpenter_api::nodepool::Budget { nodes: "2147483648".into(), ..Default::default() }];
    let (options, memory) = (DisruptionOptions::default(), Memory::default());
    let outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
    assert!(outcome.commands.is_empty() && outcome.budgets["default"].blocks_all());
    let said = outcome.stays[0].why.to_string();
    assert_eq!(said, "NodePool default allows no disruption (Underutilized) at the moment");
}

#[test]
fn a_node_is_told_what_is_true_of_its_claim_and_of_what_its_pool_offers() {
    let why = |change: &dyn Fn(&mut Snapshot)| {
        let mut cluster = packed(1);
        change(&mut cluster);
        let (options, memory) = (DisruptionOptions::default(), Memory::default());
        let mut outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
        outcome.stays.remove(0).why.to_string()
    };
    let said = why(&|cluster| cluster.nodes[0].claim = None);
    assert_eq!(said, "it is of NodePool default, but its NodeClaim is gone");
    let said = why(&|cluster| {
        cluster.node_pools[0].instance_types =
            karpenter_engine::node_pool::InstanceTypes::Unresolved { reason: "no answer".into() };
    });
    assert_eq!(said, "what its NodePool default can buy is not known: no answer");
    let said = why(&|cluster| {
        Arc::make_mut(cluster.nodes[0].claim.as_mut().expect("a claim")).conditions.consolidatable = false;
    });
    assert_eq!(said, "its NodeClaim does not say Consolidatable yet");
}

/// A node with room that has been waiting for its reboot, its scheduling fenced off, since the epoch.
fn rebooting(name: &str) -> StateNode {
    let mut machine = node(name, "size-4", 4);
    Arc::make_mut(machine.node.as_mut().expect("a node")).taints = vec![karpenter_engine::taints::Taint {
        key: "karpenter.sh/rebooting".into(),
        value: "".into(),
        effect: "NoSchedule".into(),
    }];
    let conditions = &mut Arc::make_mut(machine.claim.as_mut().expect("a claim")).conditions;
    conditions.rebooting = true;
    conditions.reboot_waits_since_seconds = Some(0);
    machine
}

#[test]
fn no_node_is_emptied_onto_one_that_reboots() {
    let mut cluster = packed(1);
    cluster.pods.push(Arc::new(running("small", 600, "spare")));
    cluster.nodes.push(node("spare", "size-1", 1));
    let goes = |cluster: &Snapshot| {
        let (options, memory) = (DisruptionOptions::default(), Memory::default());
        let outcome = Pass::new(cluster, &options, &memory).run(Method::SingleNodeConsolidation);
        let why = explain(std::slice::from_ref(&outcome));
        (outcome.commands.iter().any(|c| c.replacements.is_empty()), format!("{why:?}"))
    };
    cluster.nodes.push(node("room", "size-4", 4));
    assert!(goes(&cluster).0, "beside a node with room it goes");
    cluster.nodes[2] = rebooting("room");
    let (gone, why) = goes(&cluster);
    assert!(!gone, "nobody knows when the other is back");
    assert!(why.contains("rebooting: true"), "{why}");
    cluster.nodes.push(node("zone-of-its-own", "size-4", 4));
    assert!(goes(&cluster).0, "a node that is up takes the pods, though its name comes later");
}

#[test]
fn pods_do_not_wait_for_ever_for_a_node_whose_drain_before_a_reboot_does_not_end() {
    let launches = |seconds: i64, issued: bool| {
        let mut cluster = snapshot(vec![pod("waits", "web", 500)]);
        cluster.node_pools = vec![consolidating()];
        cluster.now = jiff::Timestamp::from_second(seconds).expect("a time");
        cluster.nodes = vec![rebooting("room")];
        if issued {
            let claim = Arc::make_mut(cluster.nodes[0].claim.as_mut().expect("a claim"));
            claim.conditions.reboot_waits_since_seconds = None;
        }
        let drain_patience = DrainPatience::Seconds(600);
        solve(&cluster, &SolveOptions { drain_patience, ..SolveOptions::default() }).new_claims.len()
    };
    assert_eq!(launches(599, false), 0, "its room counts as coming back");
    assert_eq!(launches(600, false), 1, "the drain may wait for this very pod");
    assert_eq!(launches(6000, true), 0, "what the provider was told to do ends by itself");
}

#[test]
fn pods_that_a_budget_has_held_on_a_deleting_node_for_long_count_where_they_are() {
    // Both want to be in one zone. The first is held in zone-a until the second, which has no place, is ready.
    let together = |pod: Pod| with(pod, |spec| spec.pod_affinity.required = vec![term("web", ZONE)]);
    let mut cluster =
        snapshot(vec![together(running("held", 500, "goes")), together(pod("waits", "web", 500))]);
    cluster.node_pools = vec![consolidating()];
    cluster.now = jiff::Timestamp::from_second(600).expect("a time");
    let mut goes = node("goes", "size-4", 4);
    let claim = Arc::make_mut(goes.claim.as_mut().expect("a claim"));
    (claim.deleting, claim.deleting_since_seconds) = (true, Some(0));
    let mut room = node("room", "size-4", 4);
    let there = Arc::make_mut(room.node.as_mut().expect("a node"));
    let elsewhere = there.labels.iter().map(|(key, value)| match &**key {
        ZONE => (ZONE, "zone-b"),
        _ => (&**key, &**value),
    });
    there.labels = elsewhere.collect();
    cluster.nodes = vec![goes, room];
    cluster.budgets = vec![DisruptionBudget {
        namespace: "default".into(),
        name: "web".into(),
        selector: Some(selector("web")),
        disruptions_allowed: 0,
        fully_blocking: false,
        always_allows_unhealthy: false,
    }];
    let placed = |drain_patience| {
        let plan = solve(&cluster, &SolveOptions { drain_patience, ..SolveOptions::default() });
        let there: usize = plan.existing_nodes.iter().map(|node| node.pods.len()).sum();
        (there, plan.new_claims.len())
    };
    assert_eq!(placed(DrainPatience::Endless), (2, 0), "upstream has both move to zone-b");
    assert_eq!(placed(DrainPatience::Seconds(601)), (2, 0), "the drain may still end");
    assert_eq!(placed(DrainPatience::Seconds(600)), (0, 1), "where the scheduler would let it go: to zone-a");
    let claims = |cluster: &Snapshot| {
        let drain_patience = DrainPatience::Seconds(600);
        solve(cluster, &SolveOptions { drain_patience, ..SolveOptions::default() }).new_claims.len()
    };
    let mut bounded = cluster.clone();
    let claim = Arc::make_mut(bounded.nodes[0].claim.as_mut().expect("a claim"));
    claim.termination_grace_period_seconds = Some(86_400);
    assert_eq!(claims(&bounded), 0, "with a deadline the drain will end");
    let mut of_others = cluster.clone();
    of_others.pods[1] = Arc::new(pod("waits", "other", 500));
    let options = SolveOptions { drain_patience: DrainPatience::Seconds(600), ..SolveOptions::default() };
    let moved: usize = solve(&of_others, &options).existing_nodes.iter().map(|node| node.pods.len()).sum();
    assert_eq!(moved, 2, "the budget does not wait for the pod without a place: both are planned for");
    cluster.budgets[0].disruptions_allowed = 1;
    assert_eq!(claims(&cluster), 0, "nothing holds it any more");
}

#[test]
fn a_node_its_platform_is_at_work_on_goes_only_if_nothing_runs_on_it() {
    let mut cluster = packed(1);
    cluster.pods.push(Arc::new(running("small", 100, "spare")));
    cluster.nodes.push(node("spare", "size-4", 4));
    cluster.nodes.push(node("empty", "size-4", 4));
    let options = DisruptionOptions::default();
    let gone = |memory: &Memory| -> Vec<String> {
        let outcomes = all(&cluster, &options, memory);
        let commands = outcomes.iter().flat_map(|outcome| &outcome.commands);
        let mut gone: Vec<String> =
            commands.flat_map(|command| &command.candidates).map(|c| c.node.to_string()).collect();
        gone.sort();
        gone.dedup();
        gone
    };
    assert!(gone(&Memory::default()).contains(&"spare".to_owned()), "{:?}", gone(&Memory::default()));
    let held = ["sim://spare", "sim://empty"].map(|id| (Text::from(id), Text::from("it is rolling out")));
    let memory = Memory { held: held.into(), ..Memory::default() };
    let (spare, empty) = ("spare".to_owned(), "empty".to_owned());
    assert!(gone(&memory).contains(&empty) && !gone(&memory).contains(&spare), "{:?}", gone(&memory));
    let mut pass = Pass::new(&cluster, &options, &memory);
    let told = pass.run(Method::SingleNodeConsolidation);
    let why = told.stays.iter().find(|stays| &*stays.node == "spare").map(|stays| stays.why.clone());
    assert_eq!(why, Some(Why::HeldByProvider("it is rolling out".into())));
    let kept = ["sim://spare", "sim://empty"].map(|id| (Text::from(id), Text::from("it is away")));
    let memory = Memory { kept: kept.into(), ..Memory::default() };
    assert!(!gone(&memory).contains(&empty) && !gone(&memory).contains(&spare), "{:?}", gone(&memory));
    let told = Pass::new(&cluster, &options, &memory).run(Method::Emptiness);
    let why = told.stays.iter().find(|stays| &*stays.node == "empty").map(|stays| stays.why.clone());
    assert_eq!(why, Some(Why::HeldByProvider("it is away".into())), "not even what is empty");
}

#[test]
fn a_node_that_is_passed_over_stays_and_is_not_said_to_be_disrupted() {
    let mut cluster = packed(1);
    cluster.nodes.push(node("empty", "size-4", 4));
    let options = DisruptionOptions::default();
    let ids = || BTreeSet::from([Text::from("sim://empty")]);
    let queued = Memory { queued: ids(), ..Memory::default() };
    let passed_over = Memory { passed_over: ids(), ..Memory::default() };
    let verdict = |memory: &Memory| explain(&all(&cluster, &options, memory)).remove("empty");
    assert!(matches!(verdict(&Memory::default()), Some(Verdict::Goes { .. })));
    for (memory, expected) in [(queued, Why::UnderWay), (passed_over, Why::PassedOver)] {
        let Some(Verdict::Stays { why, .. }) = verdict(&memory) else { panic!("{memory:?}") };
        assert_eq!(why, expected);
        assert_eq!(why.event(Method::Emptiness), None, "upstream tells nobody");
    }
    let said = Why::PassedOver.to_string();
    assert!(said.contains("could not be made") && !said.contains("disrupted already"), "{said}");
}

#[test]
fn nodes_that_somebody_else_takes_away_count_against_budgets() {
    let mut cluster = packed(10);
    cluster.pods.push(Arc::new(running("small", 100, "node-0000")));
    let options = DisruptionOptions::default();
    let disrupting = |memory: &Memory| {
        let mut pass = Pass::new(&cluster, &options, memory);
        pass.run(Method::SingleNodeConsolidation).budgets["default"].disrupting
    };
    assert_eq!(disrupting(&Memory::default()), 0);
    let leaving = [Text::from("sim://node-0003")].into();
    assert_eq!(disrupting(&Memory { leaving, ..Memory::default() }), 1);
}

/// The machine without these labels on its Node.
fn without(mut machine: StateNode, keys: &[&str]) -> StateNode {
    let there = Arc::make_mut(machine.node.as_mut().expect("a node"));
    let left = there.labels.iter().filter(|(key, _)| !keys.contains(&key.as_ref()));
    there.labels = left.map(|(key, value)| (key.clone(), value.clone())).collect();
    machine
}

#[test]
fn pods_of_a_node_that_goes_before_it_registered_may_wait_for_one_that_comes_up() {
    let mut cluster = packed(1);
    cluster.pods.push(Arc::new(running("small", 600, "spare")));
    cluster.nodes.push(node("spare", "size-1", 1));
    cluster.nodes.push(node("room", "size-4", 4));
    // The only node of its zone has not come up yet. It takes the pod of the one that goes.
    let mut coming = without(node("coming", "size-4", 4), &[INITIALIZED]);
    let there = Arc::make_mut(coming.node.as_mut().expect("a node"));
    let labels = there.labels.iter().map(|(key, value)| (&**key, &**value));
    there.labels = labels.chain([(ZONE, "zone-b")]).collect();
    cluster.nodes.push(coming);
    let mut goes = without(node("goes", "size-4", 4), &[INITIALIZED, REGISTERED]);
    Arc::make_mut(goes.claim.as_mut().expect("a claim")).deleting = true;
    cluster.nodes.push(goes);
    let moves = with(running("moves", 500, "goes"), |spec| {
        spec.node_selector = [(ZONE, "zone-b")].into_iter().collect();
    });
    cluster.pods.push(Arc::new(moves));
    let (options, memory) = (DisruptionOptions::default(), Memory::default());
    let outcome = Pass::new(&cluster, &options, &memory).run(Method::SingleNodeConsolidation);
    assert!(outcome.commands.iter().any(|c| c.replacements.is_empty()), "{:?}", outcome.stays);
}
