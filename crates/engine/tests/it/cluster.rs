//! Small clusters to place pods in.

use std::sync::Arc;

use karpenter_api::nodepool::ConsolidationPolicy;
use karpenter_engine::instance_type::{InstanceType, Offering, Overhead};
use karpenter_engine::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, NODE_POOL, OS, Text, ZONE,
};
use karpenter_engine::node::Node;
use karpenter_engine::node_pool::{InstanceTypes, NodeClassRef, NodePool};
use karpenter_engine::pod::{
    EvictionHints, Owners, Phase, Pod, PodAffinityTerm, PodSpec, PodStatus, TopologySpread, WhenUnsatisfiable,
};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::resources::{Amount, CPU, MEMORY, PODS, Resources};
use karpenter_engine::selector::LabelSelector;
use karpenter_engine::{Plan, Snapshot, StateNode};

pub(crate) const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

pub(crate) fn amounts(cpu_milli: i64, memory_mib: i64, pods: i64) -> Resources {
    [(CPU, Amount::milli(cpu_milli)), (MEMORY, Amount::units(memory_mib << 20)), (PODS, Amount::units(pods))]
        .into_iter()
        .collect()
}

pub(crate) fn instance_type(name: &str, cpus: i64) -> InstanceType {
    let offerings = ZONES
        .iter()
        .flat_map(|zone| [("spot", 0.6), ("on-demand", 1.0)].map(|(kind, share)| (*zone, kind, share)))
        .map(|(zone, kind, share)| Offering {
            requirements: [Requirement::one_of(ZONE, [zone]), Requirement::one_of(CAPACITY_TYPE, [kind])]
                .into_iter()
                .collect(),
            price: cpus as f64 * share,
            available: true,
            ..Offering::default()
        })
        .collect();
    InstanceType {
        name: name.into(),
        requirements: [
            Requirement::one_of(INSTANCE_TYPE, [name]),
            Requirement::one_of(ARCH, ["amd64"]),
            Requirement::one_of(OS, ["linux"]),
            Requirement::one_of(ZONE, ZONES),
            Requirement::one_of(CAPACITY_TYPE, ["spot", "on-demand"]),
        ]
        .into_iter()
        .collect(),
        offerings,
        capacity: amounts(cpus * 1000, cpus * 4096, 20),
        overhead: Overhead { kube_reserved: amounts(100, 10, 0), ..Overhead::default() },
        ..InstanceType::default()
    }
}

pub(crate) fn pool(name: &str, types: &Arc<[InstanceType]>) -> NodePool {
    NodePool {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        weight: 0,
        labels: Labels::default(),
        annotations: Labels::default(),
        requirements: Vec::new(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
        node_class: NodeClassRef {
            group: "karpenter.kwok.sh".into(),
            kind: "KWOKNodeClass".into(),
            name: "default".into(),
        },
        limits: Resources::new(),
        replicas: None,
        ready: true,
        deleting: false,
        consolidate_after_seconds: None,
        consolidation_policy: ConsolidationPolicy::default(),
        budgets: Vec::new(),
        instance_types: InstanceTypes::Resolved(types.clone()),
        tainted: Vec::new(),
    }
}

pub(crate) fn types() -> Arc<[InstanceType]> {
    [1, 2, 4, 8, 16].map(|cpus| instance_type(&format!("size-{cpus}"), cpus)).into()
}

pub(crate) fn snapshot(pods: Vec<Pod>) -> Snapshot {
    Snapshot {
        node_pools: vec![pool("default", &types())],
        pods: pods.into_iter().map(Arc::new).collect(),
        ..Snapshot::default()
    }
}

/// A waiting pod labelled `app: <app>`.
pub(crate) fn pod(name: &str, app: &str, cpu_milli: i64) -> Pod {
    Pod {
        namespace: "default".into(),
        name: name.into(),
        uid: name.into(),
        labels: [("app", app)].into_iter().collect(),
        spec: Arc::new(PodSpec { requests: amounts(cpu_milli, 128, 1), ..PodSpec::default() }),
        created_seconds: Some(0),
        node_name: None,
        status: PodStatus { phase: Phase::Pending, unschedulable: true, ..PodStatus::default() },
        owners: Owners::default(),
        do_not_disrupt: None,
        eviction: EvictionHints::default(),
        buffer: None,
    }
}

pub(crate) fn with(mut pod: Pod, change: impl FnOnce(&mut PodSpec)) -> Pod {
    change(Arc::make_mut(&mut pod.spec));
    pod
}

pub(crate) fn selector(app: &str) -> LabelSelector {
    LabelSelector { match_labels: [("app", app)].into_iter().collect(), expressions: Vec::new() }
}

pub(crate) fn spread(app: &str, key: &str, when: WhenUnsatisfiable) -> TopologySpread {
    TopologySpread {
        topology_key: key.into(),
        max_skew: 1,
        min_domains: None,
        when_unsatisfiable: when,
        selector: Some(selector(app)),
        match_label_keys: Vec::new(),
        node_affinity_policy: None,
        node_taints_policy: None,
    }
}

pub(crate) fn term(app: &str, key: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        selector: Some(selector(app)),
        namespaces: Vec::new(),
        namespace_selector: None,
        topology_key: key.into(),
    }
}

/// A node that Karpenter does not manage, with room for pods.
pub(crate) fn node(name: &str, zone: &str, cpus: i64) -> StateNode {
    let labels = [(HOSTNAME, name), (ZONE, zone), (ARCH, "amd64"), (NODE_POOL, "")];
    StateNode {
        node: Some(Arc::new(Node {
            name: name.into(),
            provider_id: name.into(),
            labels: labels.into_iter().filter(|(_, v)| !v.is_empty()).collect(),
            capacity: amounts(cpus * 1000, cpus * 4096, 20),
            allocatable: amounts(cpus * 1000, cpus * 4096, 20),
            ..Node::default()
        })),
        ..StateNode::default()
    }
}

/// Where everything went, in words that can be compared.
pub(crate) fn outcome(plan: &Plan) -> Vec<String> {
    let names = |pods: &[karpenter_engine::PlacedPod]| {
        pods.iter().map(|p| format!("{} {:?}", p.pod.name, p.relaxed)).collect::<Vec<_>>().join(" ")
    };
    let claims = plan.new_claims.iter().map(|c| {
        let types: Vec<&Text> = c.instance_types.iter().collect();
        format!("{}: {} | {types:?} | {:?} | {:?}", c.node_pool, names(&c.pods), c.requirements, c.requests)
    });
    let nodes = plan.existing_nodes.iter().map(|n| format!("node {}: {}", n.node, names(&n.pods)));
    let errors = plan.pod_errors.iter().map(|e| format!("{}: {}", e.pod.name, e.reason));
    claims.chain(nodes).chain(errors).collect()
}
