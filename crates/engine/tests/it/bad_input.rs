//! Whatever makes no sense is refused by name, and the rest of the batch is placed all the same.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use karpenter_engine::ingest::Ingest;
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_engine::labels::ZONE;
use karpenter_engine::node_pool::InstanceTypes;
use karpenter_engine::pod::{NodeSelectorTerm, Pod, PodVolume, PreferredNodeTerm, WhenUnsatisfiable};
use karpenter_engine::reasons::{PodRejection, SkipReason, Unplaceable};
use karpenter_engine::requirement::{Operator, Requirement, SelectorRequirement};
use karpenter_engine::resources::{Amount, CPU, MEMORY};
use karpenter_engine::selector::{Expression, LabelSelector};
use karpenter_engine::{Plan, SolveOptions, solve};

use crate::cluster::{amounts, instance_type, node, pod, pool, snapshot, spread, term, types, with};

fn decided(mut pods: Vec<Pod>) -> Plan {
    pods.push(pod("sound", "sound", 100));
    let plan = solve(&snapshot(pods), &SolveOptions::default());
    let placed = plan.new_claims.iter().flat_map(|c| &c.pods).any(|p| p.pod.name.as_ref() == "sound");
    assert!(placed, "the rest goes on: {plan:?}");
    plan
}

fn required(expressions: Vec<SelectorRequirement>) -> Option<Vec<NodeSelectorTerm>> {
    Some(vec![NodeSelectorTerm { expressions, has_match_fields: false }])
}

#[test]
fn a_quantity_that_does_not_parse_is_named_by_its_field() {
    let bad = |text: &str| core::Pod {
        spec: Some(core::PodSpec {
            containers: vec![core::Container {
                name: "c".into(),
                resources: Some(core::ResourceRequirements {
                    requests: Some([("cpu".to_owned(), Quantity(text.into()))].into()),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    for text in ["lots", "1Gx", "", "1e", "--1", "1.2.3", "0x10", "１"] {
        let error = Ingest::default().pod(&bad(text)).expect_err(text);
        assert_eq!(error.field, "spec.containers[0].resources.requests[cpu]", "{text}");
    }
}

#[test]
fn requirements_that_contradict_each_other_leave_only_their_own_pod_without_a_place() {
    let torn = with(pod("torn", "web", 100), |s| {
        s.required_node_affinity = required(vec![
            SelectorRequirement::new(ZONE, Operator::In, ["zone-a"]),
            SelectorRequirement::new(ZONE, Operator::NotIn, ["zone-a"]),
        ]);
    });
    let plan = decided(vec![torn]);
    assert_eq!(plan.pod_errors.len(), 1);
    assert!(plan.pod_errors[0].reason.to_string().contains(ZONE), "{}", plan.pod_errors[0].reason);
}

#[test]
fn an_operator_nobody_knows_is_refused_wherever_it_stands() {
    let near = SelectorRequirement {
        operator: "Near".into(),
        ..SelectorRequirement::new(ZONE, Operator::In, ["zone-a"])
    };
    let demanding =
        with(pod("demanding", "web", 100), |s| s.required_node_affinity = required(vec![near.clone()]));
    let wishing = with(pod("wishing", "web", 100), |s| {
        let term = NodeSelectorTerm { expressions: vec![near.clone()], has_match_fields: false };
        s.preferred_node_affinity = vec![PreferredNodeTerm { weight: 1, term }];
    });
    let plan = decided(vec![demanding, wishing]);
    let ignored = &plan.ignored_pods[0];
    assert_eq!(ignored.pod.name.as_ref(), "demanding");
    assert!(
        matches!(&ignored.reasons[0], PodRejection::NodeSelection { problem, .. } if problem.contains("Near"))
    );
    // Preferences are not validated beforehand, as upstream; one without a meaning is given up like one that cannot be met.
    let mut placed = plan.new_claims.iter().flat_map(|c| &c.pods);
    let wishing = placed.find(|p| p.pod.name.as_ref() == "wishing").expect("placed");
    assert_eq!(wishing.relaxed.len(), 1);
}

#[test]
fn bounds_that_are_no_numbers_or_below_nothing_are_refused() {
    for value in ["many", "-1", "1.5", "99999999999999999999"] {
        let bounded = with(pod("bounded", "web", 100), |s| {
            s.required_node_affinity =
                required(vec![SelectorRequirement::new("example.com/cores", Operator::Gt, [value])]);
        });
        let plan = decided(vec![bounded]);
        assert_eq!((plan.ignored_pods.len(), plan.pod_errors.len()), (1, 0), "{value}");
    }
}

#[test]
fn a_selector_that_means_nothing_selects_nothing() {
    let nonsense = LabelSelector {
        match_labels: Default::default(),
        expressions: vec![Expression { key: "app".into(), operator: "Near".into(), values: vec![] }],
    };
    let spreading = with(pod("spreading", "web", 100), |s| {
        let mut constraint = spread("web", ZONE, WhenUnsatisfiable::DoNotSchedule);
        constraint.selector = Some(nonsense.clone());
        s.topology_spread = vec![constraint];
    });
    let near_namespaces = with(pod("near", "web", 100), |s| {
        let mut near = term("web", ZONE);
        near.namespace_selector = Some(nonsense.clone());
        s.pod_affinity.required = vec![near];
    });
    let plan = decided(vec![spreading, near_namespaces]);
    assert_eq!(plan.pod_errors.len(), 1, "{:?}", plan.pod_errors);
    assert_eq!(plan.pod_errors[0].pod.name.as_ref(), "near");
    assert!(matches!(&plan.pod_errors[0].reason, Unplaceable::Invalid(p) if p.contains("namespaces")));
}

#[test]
fn amounts_below_nothing_or_beyond_all_measure_are_refused_and_never_wrap() {
    let asks = |name: &str, amount: Amount| with(pod(name, "web", 100), |s| s.requests.set(CPU, amount));
    let plan = decided(vec![
        asks("below", Amount::milli(-1)),
        asks("far-below", Amount::nanos(i128::MIN)),
        asks("beyond", Amount::nanos(i128::MAX)),
        asks("beyond-too", Amount::nanos(i128::MAX)),
    ]);
    assert_eq!(plan.pod_errors.len(), 4);
    let below = plan.pod_errors.iter().find(|e| e.pod.name.as_ref() == "below").expect("refused");
    assert!(below.reason.to_string().contains("cpu must not be negative"), "{}", below.reason);
}

#[test]
fn machines_and_limits_with_absurd_numbers_hold_nothing_and_break_nothing() {
    let mut cluster = snapshot(vec![pod("a", "web", 100)]);
    let mut owing = node("owing", "zone-a", 1);
    let mut vast = node("vast", "zone-a", 1);
    for (machine, amount) in [(&mut owing, i128::MIN), (&mut vast, i128::MAX)] {
        let node = Arc::make_mut(machine.node.as_mut().expect("a node"));
        node.allocatable.set(MEMORY, Amount::nanos(amount));
        node.capacity.set(MEMORY, Amount::nanos(amount));
    }
    cluster.nodes = vec![owing, vast];
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.existing_nodes[0].node.as_ref(), "vast");
    cluster.nodes.clear();
    cluster.node_pools[0].limits = [(CPU, Amount::nanos(i128::MIN))].into_iter().collect();
    assert_eq!(solve(&cluster, &SolveOptions::default()).pod_errors.len(), 1);
}

#[test]
fn a_missing_volume_claim_or_storage_class_is_named() {
    let wants = |name: &str, claim: &str| {
        with(pod(name, "web", 100), |s| s.volumes = vec![PodVolume::Claim(claim.into())])
    };
    let mut cluster =
        snapshot(vec![wants("no-claim", "gone"), wants("no-class", "data"), pod("sound", "web", 100)]);
    let claim = karpenter_engine::cluster::VolumeClaim {
        volume_name: "".into(),
        storage_class: "nowhere".into(),
        deleting: false,
        lost: false,
        bind_completed: false,
    };
    cluster.storage.claims.insert(("default".into(), "data".into()), claim);
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.new_claims[0].pods[0].pod.name.as_ref(), "sound");
    let told: Vec<String> =
        plan.ignored_pods.iter().map(|p| format!("{}: {}", p.pod.name, p.reasons[0])).collect();
    assert!(told[0].contains("no-claim") && told[0].contains("gone"), "{told:?}");
    assert!(told[1].contains("no-class") && told[1].contains("nowhere"), "{told:?}");
}

#[test]
fn the_first_of_two_pools_with_one_name_counts_and_the_other_is_told() {
    let mut cluster = snapshot(vec![pod("a", "web", 100)]);
    cluster.node_pools.push(pool("default", &types()));
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.new_claims.len(), 1);
    assert!(plan.rejected.iter().any(|r| r.object == "NodePool default" && r.field == "metadata.name"));
}

#[test]
fn pods_and_nodes_that_share_a_name_do_not_upset_the_rest() {
    let mut cluster = snapshot(vec![pod("twin", "web", 100), pod("twin", "web", 100)]);
    cluster.nodes = vec![node("n", "zone-a", 4), node("n", "zone-b", 4)];
    let plan = solve(&cluster, &SolveOptions::default());
    let placed: usize = plan.existing_nodes.iter().map(|n| n.pods.len()).sum();
    assert_eq!((placed, plan.pod_errors.len()), (2, 0));
}

#[test]
fn a_pool_without_instance_types_is_skipped_and_the_next_one_serves() {
    let mut cluster = snapshot(vec![pod("a", "web", 100)]);
    let mut empty = pool("empty", &Arc::from([]));
    empty.weight = 10;
    let mut unknown = pool("unknown", &types());
    unknown.weight = 20;
    unknown.instance_types = InstanceTypes::Unresolved { reason: "the cloud is not answering".into() };
    cluster.node_pools.extend([empty, unknown]);
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(plan.new_claims[0].node_pool.as_ref(), "default");
    let why =
        |name: &str| plan.skipped_pools.iter().find(|p| p.node_pool.as_ref() == name).map(|p| &p.reason);
    assert_eq!(why("empty"), Some(&SkipReason::NoInstanceTypes));
    assert_eq!(why("unknown"), Some(&SkipReason::Unresolved("the cloud is not answering".into())));
}

#[test]
fn types_that_make_no_sense_are_never_chosen_over_those_that_do() {
    let broken: Vec<InstanceType> = vec![
        InstanceType { offerings: Vec::new(), ..instance_type("unsold", 8) },
        InstanceType { capacity: amounts(-1000, -1000, -5), ..instance_type("negative", 8) },
        InstanceType { name: "".into(), ..InstanceType::default() },
        InstanceType {
            offerings: vec![Offering { price: f64::NAN, available: true, ..Offering::default() }],
            ..instance_type("priceless", 2)
        },
        instance_type("size-2", 2),
        instance_type("size-2", 2),
    ];
    let mut cluster = snapshot(vec![pod("a", "web", 100)]);
    cluster.node_pools = vec![pool("default", &broken.into())];
    let plan = solve(&cluster, &SolveOptions::default());
    assert_eq!(
        plan.new_claims[0].instance_types[0].as_ref(),
        "size-2",
        "{:?}",
        plan.new_claims[0].instance_types
    );
}

#[test]
fn a_comparison_with_a_number_beyond_64_bits_is_one_with_the_last_within() {
    let compared = |operator: Operator, value: &str| {
        Requirement::from_selector(&SelectorRequirement::new("size", operator, [value]))
            .expect("a requirement")
    };
    let (above, below) = ("99999999999999999999", "-99999999999999999999");
    assert_eq!(compared(Operator::Lt, above).lte, Some(i64::MAX - 1));
    assert_eq!(compared(Operator::Lte, above).lte, Some(i64::MAX));
    assert_eq!(compared(Operator::Gte, below).gte, Some(i64::MIN));
    assert_eq!(compared(Operator::Gt, above).operator(), Operator::DoesNotExist, "nothing is greater");
    assert_eq!(compared(Operator::Lte, "many").lte, Some(0), "no number at all");
    assert!(!compared(Operator::Gte, "1").has(above), "a label beyond compares with nothing");
}
