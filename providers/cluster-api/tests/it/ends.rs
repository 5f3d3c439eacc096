//! Many nodes that end together: what that asks of the management cluster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Method, Request};
use karpenter_runtime::metrics::Registry;
use karpenter_sim::cluster_api::{self, Kind, UPGRADING};
use karpenter_sim::faults::{FaultPlan, Lens};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::core;
use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, initialized, scenario};

/// Counts reads of single Machines, and lists of Machines and MachineSets that are no watches.
#[derive(Default)]
struct Reads {
    single: AtomicUsize,
    lists: AtomicUsize,
    lists_of_sets: AtomicUsize,
}

impl Lens for Reads {
    fn sent(&self, request: &mut Request<Bytes>) {
        let uri = request.uri();
        let watches = uri.query().is_some_and(|query| query.contains("watch="));
        if request.method() != Method::GET || watches {
            return;
        }
        if uri.path().contains("/machines/") {
            self.single.fetch_add(1, Ordering::Relaxed);
        } else if uri.path().ends_with("/machines") {
            self.lists.fetch_add(1, Ordering::Relaxed);
        } else if uri.path().ends_with("/machinesets") {
            self.lists_of_sets.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A world in which this many nodes of one MachineDeployment are up, and take a minute to go.
async fn with_nodes(nodes: usize) -> Rig {
    let rig = Rig::new(json!({})).await;
    let slow = json!({"provisionSeconds": 3, "joinSeconds": 2, "deleteSeconds": 60});
    rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
    rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "100")])).await;
    rig.karpenter.start();
    rig.pass(20 * SECOND).await;
    rig.want(nodes);
    rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == nodes).await;
    rig
}

async fn end_all(rig: &Rig) {
    rig.want(0);
    let names = |objects: &karpenter_sim::Objects| {
        objects.node_claims.keys().map(|key| key.name.to_string()).collect::<Vec<_>>()
    };
    for name in rig.read(names) {
        rig.delete_claim(&name).await;
    }
    rig.until("they are gone", 20 * MINUTE, |objects| objects.node_claims.is_empty()).await;
    rig.pass(MINUTE).await;
    assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (0, 0));
    rig.at_rest();
}

#[test]
fn nodes_that_end_together_take_few_requests() {
    scenario(async {
        let rig = with_nodes(40).await;
        let scaled = rig.writes("/scale");
        let reads = Arc::new(Reads::default());
        rig.hub.plant(Arc::clone(&reads) as Arc<dyn Lens>);
        end_all(&rig).await;
        let (single, lists) = (reads.single.load(Ordering::Relaxed), reads.lists.load(Ordering::Relaxed));
        assert!(single <= 40, "{single} reads of Machines, one for each before it is marked");
        // Answers take no time here, so that those who ask at once do not share one.
        assert!(lists <= 50, "{lists} lists of Machines, one for each end and each level");
        let scaled = rig.writes("/scale") - scaled;
        assert!(scaled <= 5, "{scaled} scale writes");
        let sets = reads.lists_of_sets.load(Ordering::Relaxed);
        assert!(
            (scaled..=20).contains(&sets),
            "{sets} lists of MachineSets: before each level, and no more than looks"
        );
    });
}

/// Starts Karpenter; where it counts.
fn start_counted(rig: &Rig) -> Arc<Mutex<Option<Registry>>> {
    let registry: Arc<Mutex<Option<Registry>>> = Arc::default();
    let (hub, seen) = (rig.hub.clone(), Arc::clone(&registry));
    let karpenter = rig.world.process("karpenter-2", FaultPlan::none(), move |life| {
        *seen.lock().expect("a registry") = Some(life.environment.registry.clone());
        core::live(life, hub.clone()).boxed()
    });
    karpenter.start();
    registry
}

/// What a metric says: its one line with all of these labels.
fn counted(registry: &Arc<Mutex<Option<Registry>>>, name: &str, labels: &[&str]) -> f64 {
    let text = registry.lock().expect("a registry").clone().expect("a life").encode();
    let name = format!("karpenter_cluster_api_{name}");
    let mut lines = text.lines().filter(|line| line.starts_with(&name));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn launches_are_counted_by_the_batch_and_failures_by_what_they_failed_of() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"launch": "2m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let registry = start_counted(&rig);
        rig.pass(20 * SECOND).await;
        rig.want(3);
        rig.until("three nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        let batches = ["count", "sum"].map(|what| counted(&registry, &format!("batch_size_{what}"), &[]));
        assert_eq!(batches, [1.0, 3.0], "one write for three");
        let failures = |reason: &str| {
            let (resource, reason) = ("fleet/m\"", format!("reason=\"{reason}\""));
            counted(&registry, "launch_failures_total", &[resource, &reason])
        };
        // What Cluster API holds back for longer than a launch may take.
        let upgrading = |how: Value| json!({"metadata": {"annotations": {UPGRADING: how}}});
        rig.patch(Kind::Cluster, CLUSTER, upgrading("KubeadmControlPlane c".into())).await;
        rig.pass(5 * SECOND).await;
        rig.want(4);
        rig.pass(10 * SECOND).await;
        rig.want(3);
        rig.until("it is given up", 4 * MINUTE, |objects| objects.node_claims.len() == 3).await;
        assert_eq!(failures("ControlPlaneUpgrading"), 1.0);
        rig.patch(Kind::Cluster, CLUSTER, upgrading(Value::Null)).await;
        rig.pass(5 * MINUTE).await;
        // More than there is room for since its owner set a greatest size.
        rig.capi.run_machine_sets(false);
        rig.want(5);
        rig.pass(10 * SECOND).await;
        rig.want(3);
        rig.patch(Kind::MachineDeployment, "m", json!({"metadata": {"annotations": {MAX: "4"}}})).await;
        rig.until("one is turned away", MINUTE, |objects| objects.node_claims.len() == 4).await;
        rig.pass(30 * SECOND).await;
        assert_eq!(failures("NoRoom"), 1.0, "once, however often it is looked at");
    });
}

#[test]
fn each_phase_of_a_launch_is_timed() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let slow = json!({"provisionSeconds": 30, "joinSeconds": 60});
        rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "9")])).await;
        let registry = start_counted(&rig);
        rig.pass(20 * SECOND).await;
        rig.want(1);
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let text = registry.lock().expect("a registry").clone().expect("a life").encode();
        let took = |phase: &str| -> f64 {
            let name = "karpenter_cluster_api_launch_phase_duration_seconds_sum{";
            let phase = format!("phase=\"{phase}\"");
            let mut lines = text.lines().filter(|line| line.starts_with(name));
            let line = lines.find(|line| line.contains(&phase)).unwrap_or_else(|| panic!("{phase}: {text}"));
            line.rsplit(' ').next().and_then(|seconds| seconds.parse().ok()).expect("seconds")
        };
        let seconds = ["scale", "machine", "bootstrap", "infrastructure", "node"].map(took);
        let [scale, machine, bootstrap, infrastructure, node] = seconds;
        assert!(scale > 0.0 && scale + machine + bootstrap < 15.0, "{seconds:?}");
        assert!((25.0..45.0).contains(&infrastructure) && node >= 55.0, "{seconds:?}");
    });
}

#[test]
fn nothing_is_told_of_a_deployment_that_is_gone() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let registry = start_counted(&rig);
        rig.want(1);
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let told = || {
            let registry = registry.lock().expect("a registry").clone();
            registry.expect("a life").encode().contains("karpenter_cluster_api_machines{")
        };
        assert!(told());
        end_all(&rig).await;
        rig.api(Kind::MachineDeployment).delete("m", &DeleteParams::default()).await.expect("a deletion");
        rig.pass(MINUTE).await;
        assert!(!told());
    });
}
