//! A world with Cluster API in it, and the provider under a small core that does with NodeClaims what Karpenter does: it launches,
//! registers, deletes, gives up what finds no capacity, and asks again.
//!
//! The management cluster is the world's own server behind a client of its own, which can be cut off alone. How many nodes
//! somebody needs is set by [`Rig::want`]; NodeClaims for them come and come again by a client that never fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Event;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloudprovider::CloudProvider as _;
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::nodeclass::ResourceStatus;
use karpenter_sim::cluster_api::{
    self, ClaimedMachinesLive, ClusterApi, Kind, Lag, LevelsWithinBounds, MachinesGoWithTheirClaims,
    OneMachinePerClaim, RaisedForSomebody,
};
use karpenter_sim::faults::{FaultPlan, Faults};
use karpenter_sim::kubelet::Timing;
use karpenter_sim::{Cluster, Objects, Process, World, WorldOptions, in_virtual_time};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::core;

pub(crate) const NAMESPACE: &str = "fleet";
pub(crate) const CLUSTER: &str = "c";
pub(crate) const MAX: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Everything a scenario needs.
pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) capi: ClusterApi,
    pub(crate) karpenter: Arc<Process>,
    pub(crate) hub: Faults,
    provider: core::Handle,
    demand: Arc<AtomicUsize>,
    demanding: JoinHandle<()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.demanding.abort();
    }
}

/// Runs a scenario in virtual time.
pub(crate) fn scenario<F: Future<Output = ()>>(scenario: F) {
    in_virtual_time(scenario).expect("a runtime");
}

impl Rig {
    /// A world with a Cluster, a quick template `t`, and a NodeClass `default`; Karpenter not started.
    pub(crate) async fn new(node_class: Value) -> Self {
        Self::seeded(1, node_class, FaultPlan::none(), FaultPlan::none()).await
    }

    /// A world in which one node of the MachineDeployment `m` is up, for the NodeClaim `n1`.
    pub(crate) async fn with_a_node(node_class: Value) -> Self {
        let rig = Self::new(node_class).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig
    }

    /// Another process that believes it leads.
    pub(crate) fn second_leader(&self) -> Arc<Process> {
        let hub = self.hub.clone();
        self.world
            .process("karpenter-2", FaultPlan::none(), move |life| core::live(life, hub.clone()).boxed())
    }

    /// Another process, which is not told which Cluster is ours.
    pub(crate) fn process_without_names(&self) -> Arc<Process> {
        let hub = self.hub.clone();
        self.world.process("karpenter-2", FaultPlan::none(), move |life| {
            core::live_with(life, hub.clone(), Settings::default()).boxed()
        })
    }

    /// Another process that believes it leads, with another way to the management cluster.
    pub(crate) fn leader_behind(&self, hub: &Faults) -> Arc<Process> {
        let hub = hub.clone();
        self.world
            .process("karpenter-2", FaultPlan::none(), move |life| core::live(life, hub.clone()).boxed())
    }

    /// A way to the management cluster on which nothing comes through.
    pub(crate) fn cut_off_hub(&self) -> Faults {
        let hub = Faults::new(FaultPlan::none(), self.world.cluster().entropy(), "elsewhere");
        hub.cut_off(60 * MINUTE);
        hub
    }

    /// As [`new`](Self::new), in a world where a rule has been broken before we came.
    pub(crate) async fn without_rules(node_class: Value) -> Self {
        Self::made(1, node_class, FaultPlan::none(), FaultPlan::none(), |_| Lag::none()).await
    }

    pub(crate) async fn seeded(seed: u64, node_class: Value, workload: FaultPlan, hub: FaultPlan) -> Self {
        Self::lagging(seed, node_class, workload, hub, |_| Lag::none()).await
    }

    /// With caches of Cluster API that lag behind what there is.
    pub(crate) async fn lagging(
        seed: u64,
        node_class: Value,
        workload: FaultPlan,
        hub: FaultPlan,
        lag: impl FnOnce(&Cluster) -> Lag,
    ) -> Self {
        let rig = Self::made(seed, node_class, workload, hub, lag).await;
        rig.world.cluster().watch_over([
            Box::new(OneMachinePerClaim) as Box<dyn karpenter_sim::invariants::Invariant>,
            Box::new(ClaimedMachinesLive::new("karpenter")),
            Box::new(LevelsWithinBounds::new("karpenter")),
            Box::new(RaisedForSomebody::new("karpenter")),
            Box::new(MachinesGoWithTheirClaims::new("karpenter", &rig.hub)),
        ]);
        rig
    }

    async fn made(
        seed: u64,
        node_class: Value,
        workload: FaultPlan,
        hub: FaultPlan,
        lag: impl FnOnce(&Cluster) -> Lag,
    ) -> Self {
        let options = WorldOptions { seed, timing: Timing::quick(), ..WorldOptions::default() };
        let world = World::new(options).await.expect("a world");
        let lag = lag(world.cluster());
        let capi = ClusterApi::install_behind(&world, &lag).await.expect("Cluster API");
        let hub = Faults::new(hub, world.cluster().entropy(), "hub");
        let behind = hub.clone();
        let provider = core::Handle::default();
        let left = Arc::clone(&provider);
        let karpenter = world.process("karpenter", workload, move |life| {
            core::live_known(life, behind.clone(), Arc::clone(&left)).boxed()
        });
        let demand = Arc::new(AtomicUsize::new(0));
        let demanding = tokio::spawn(ask_for_nodes(world.cluster().clone(), Arc::clone(&demand)));
        let rig = Self { world, capi, karpenter, hub, provider, demand, demanding };
        rig.create(ClusterAPINodeClass::crd().to_json()).await;
        rig.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await;
        rig.create(cluster_api::cluster(NAMESPACE, CLUSTER)).await;
        rig.create(cluster_api::template(NAMESPACE, "t", json!({"provisionSeconds": 3, "joinSeconds": 2})))
            .await;
        rig.create(json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "default"}, "spec": node_class,
        }))
        .await;
        rig
    }

    /// The provider of the process that runs.
    pub(crate) fn provider(&self) -> Arc<karpenter_provider_cluster_api::ClusterApi> {
        let provider = self.provider.lock().unwrap_or_else(PoisonError::into_inner).clone();
        provider.expect("a process that runs")
    }

    /// Whether any node is to be had of what the NodeClass offers.
    pub(crate) async fn is_anything_offered(&self) -> bool {
        is_anything_offered(&self.provider()).await
    }

    /// A NodeClaim of this name for a node in this zone.
    pub(crate) async fn claim_in(&self, name: &str, zone: &str) {
        let mut claim = serde_json::to_value(node_claim(name)).expect("JSON");
        claim["spec"]["requirements"] =
            json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]);
        self.create(claim).await;
    }

    pub(crate) async fn create(&self, object: Value) {
        let text = object.to_string();
        if let Err(trouble) = self.world.create(object).await {
            panic!("{trouble:?}: {text}");
        }
    }

    /// A MachineDeployment on the template `t`.
    pub(crate) async fn deployment(&self, name: &str, annotations: &[(&str, &str)]) {
        self.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, name, "t", annotations)).await;
    }

    /// Somebody needs so many nodes of 3 cores from now on. Fewer than there are: NodeClaims are left to whoever deletes them.
    pub(crate) fn want(&self, nodes: usize) {
        self.demand.store(nodes, Ordering::Relaxed);
    }

    pub(crate) async fn patch(&self, kind: Kind, name: &str, change: Value) {
        self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("a patch");
    }

    pub(crate) async fn patch_status(&self, kind: Kind, name: &str, change: Value) {
        self.api(kind)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(change))
            .await
            .expect("a patch");
    }

    pub(crate) fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1beta2", kind.as_str()));
        Api::namespaced_with(self.world.cluster().client("user"), NAMESPACE, &resource)
    }

    /// What the NodeClass's status says about a resource.
    pub(crate) async fn resource(&self, name: &str) -> ResourceStatus {
        let api: Api<ClusterAPINodeClass> = Api::all(self.world.cluster().client("user"));
        let class = api.get("default").await.expect("the NodeClass");
        let resources = class.status.and_then(|status| status.resources).unwrap_or_default();
        let found = resources.into_iter().find(|resource| resource.name.ends_with(&format!("/{name}")));
        found.unwrap_or_else(|| panic!("the NodeClass tells nothing about {name}"))
    }

    /// The messages of events of this reason.
    pub(crate) async fn events(&self, reason: &str) -> Vec<String> {
        let api: Api<Event> = Api::all(self.world.cluster().client("user"));
        let events = api.list(&ListParams::default()).await.expect("events").items;
        let of_reason = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        of_reason.filter_map(|event| event.message).collect()
    }

    /// Changes the NodeClass.
    pub(crate) async fn patch_node_class(&self, change: Value) {
        let api: Api<ClusterAPINodeClass> = Api::all(self.world.cluster().client("user"));
        api.patch("default", &PatchParams::default(), &Patch::Merge(change)).await.expect("a patch");
    }

    async fn node_class_condition(&self, kind: &str) -> Option<karpenter_api::Condition> {
        let api: Api<ClusterAPINodeClass> = Api::all(self.world.cluster().client("user"));
        let class = api.get("default").await.expect("the NodeClass");
        let conditions = class.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == kind)
    }

    /// The status of a condition of the NodeClass.
    pub(crate) async fn read_node_class_condition(&self, kind: &str) -> Option<String> {
        self.node_class_condition(kind).await.map(|condition| condition.status.as_str().to_owned())
    }

    /// The message of a condition of the NodeClass.
    pub(crate) async fn node_class_message(&self, kind: &str) -> String {
        self.node_class_condition(kind)
            .await
            .map(|condition| condition.message().to_owned())
            .unwrap_or_default()
    }

    /// Why a NodeClaim is not what it should be, if so.
    pub(crate) fn drifted(&self, name: &str) -> Option<String> {
        self.read(|objects| {
            let claim = objects.node_claims.iter().find(|(key, _)| &*key.name == name)?.1;
            let drifted =
                claim.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == "Drifted")?;
            Some(drifted.reason().to_owned())
        })
    }

    /// A NodeClaim as the Go provider left it: launched, and bound to a Machine.
    pub(crate) async fn bound_claim(&self, name: &str, machine: &str, provider_id: &str) {
        let api: Api<NodeClaim> = Api::all(self.world.cluster().client("user"));
        let mut claim = node_claim(name);
        let annotations = [("cluster.x-k8s.io/machine".to_owned(), machine.to_owned())];
        claim.metadata.annotations = Some(annotations.into());
        api.create(&PostParams::default(), &claim).await.expect("a NodeClaim");
        let status = json!({"status": {"providerID": provider_id, "conditions": [
            {"type": "Launched", "status": "True", "reason": "Launched", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
    }

    pub(crate) async fn delete_claim_if_there(&self, name: &str) {
        let api: Api<NodeClaim> = Api::all(self.world.cluster().client("user"));
        // It may have gone by itself.
        let _ = api.delete(name, &DeleteParams::default()).await;
    }

    pub(crate) async fn annotate_claim(&self, name: &str, key: &str, value: &str) {
        let api: Api<NodeClaim> = Api::all(self.world.cluster().client("user"));
        let change = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        api.patch(name, &PatchParams::default(), &change).await.expect("a NodeClaim");
    }

    /// Takes these annotations off a NodeClaim.
    pub(crate) async fn strip_claim(&self, name: &str, keys: &[&str]) {
        let api: Api<NodeClaim> = Api::all(self.world.cluster().client("user"));
        let gone: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
        let change = Patch::Merge(json!({"metadata": {"annotations": gone}}));
        api.patch(name, &PatchParams::default(), &change).await.expect("a NodeClaim");
    }

    pub(crate) async fn delete_claim(&self, name: &str) {
        let api: Api<NodeClaim> = Api::all(self.world.cluster().client("user"));
        api.delete(name, &DeleteParams::default()).await.expect("a deletion");
    }

    pub(crate) async fn until(
        &self,
        what: &str,
        within: Duration,
        holds: impl Fn(&Objects) -> bool,
    ) -> Duration {
        match self.world.wait_until(what, within, holds).await {
            Ok(took) => took,
            Err(trouble) => {
                self.dump();
                panic!("{trouble}");
            }
        }
    }

    pub(crate) async fn pass(&self, time: Duration) {
        if let Err(violation) = self.world.run_for(time).await {
            self.dump();
            panic!("{violation}");
        }
    }

    /// Ends a scenario: everything has come right.
    pub(crate) fn at_rest(&self) {
        if let Err(violation) = self.world.cluster().check_at_rest(10 * MINUTE) {
            self.dump();
            panic!("{violation}");
        }
    }

    /// The names of the NodeClaims there are.
    pub(crate) fn claims(&self) -> Vec<String> {
        self.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect())
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        self.world.cluster().read(look)
    }

    pub(crate) fn replicas(&self, name: &str) -> i64 {
        self.read(|objects| replicas(objects, name))
    }

    /// Writes of Karpenter to the management cluster whose line on the tape contains a text.
    pub(crate) fn writes(&self, text: &str) -> usize {
        self.world.cluster().tape(|tape| {
            let ours = tape.entries().iter().filter(|entry| entry.actor.starts_with("karpenter"));
            ours.filter(|entry| entry.deed.contains(text) && entry.outcome.starts_with('2')).count()
        })
    }

    /// What happened last, for a scenario that went wrong.
    pub(crate) fn dump(&self) {
        self.world.cluster().tape(|tape| {
            let lines = tape.entries();
            for entry in lines.iter().skip(lines.len().saturating_sub(60)) {
                eprintln!("{entry}");
            }
        });
        self.read(|objects| {
            for (key, claim) in &objects.node_claims {
                let conditions = claim.status.as_ref().and_then(|status| status.conditions.clone());
                let told: Vec<String> = conditions
                    .unwrap_or_default()
                    .iter()
                    .map(|c| format!("{}={}({}: {})", c.type_, c.status.as_str(), c.reason(), c.message()))
                    .collect();
                eprintln!("NodeClaim {key} {:?}: {}", claim.metadata.annotations, told.join(" "));
            }
            for (key, machine) in &objects.machines {
                eprintln!(
                    "Machine {key}: {:?} {:?}",
                    machine.metadata.annotations,
                    machine.data.get("status")
                );
            }
            for key in objects.machine_deployments.keys() {
                eprintln!("MachineDeployment {key}: {}", replicas(objects, &key.name));
            }
        });
    }
}

/// Whether any node is to be had of what the NodeClass offers.
pub(crate) async fn is_anything_offered(provider: &karpenter_provider_cluster_api::ClusterApi) -> bool {
    let mut pool = NodePool::default();
    pool.spec.template.spec.node_class_ref.name = "default".to_owned();
    let types = provider.get_instance_types(&pool).await.expect("the NodeClass");
    types.iter().any(|one| one.offerings.iter().any(|offering| offering.available))
}

pub(crate) fn replicas(objects: &Objects, name: &str) -> i64 {
    let found = objects.machine_deployments.iter().find(|(key, _)| &*key.name == name);
    found.and_then(|(_, object)| object.data.pointer("/spec/replicas").and_then(Value::as_i64)).unwrap_or(-1)
}

/// NodeClaims whose Node has joined and is ready for pods.
pub(crate) fn initialized(objects: &Objects) -> usize {
    let ready = |claim: &&Arc<NodeClaim>| {
        let conditions =
            claim.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Initialized" && c.status.as_str() == "True")
    };
    objects.node_claims.values().filter(ready).count()
}

pub(crate) fn claimed(objects: &Objects) -> usize {
    let claimed = |machine: &&Arc<DynamicObject>| {
        let annotations = machine.metadata.annotations.as_ref();
        annotations.is_some_and(|a| a.contains_key("karpenter.cluster.x-k8s.io/nodeclaim-uid"))
    };
    objects.machines.values().filter(claimed).count()
}

/// Machines that run, or are to, on clones of a template.
pub(crate) fn made_from(objects: &Objects, template: &str) -> usize {
    let is_clone = |clone: &&Arc<DynamicObject>| {
        let from =
            clone.metadata.annotations.as_ref().and_then(|a| a.get("cluster.x-k8s.io/cloned-from-name"));
        from.is_some_and(|from| from == template)
    };
    objects.sim_machines.values().filter(is_clone).count()
}

/// The reason and message of a NodeClaim's condition `Launched`.
pub(crate) fn launched(objects: &Objects) -> Vec<(String, String)> {
    let told = objects.node_claims.values().filter_map(|claim| {
        let conditions = claim.status.as_ref()?.conditions.clone()?;
        let launched = conditions.iter().find(|condition| condition.type_ == "Launched")?;
        Some((launched.reason().to_owned(), launched.message().to_owned()))
    });
    told.collect()
}

/// Makes NodeClaims for nodes that somebody needs and that nobody is getting.
async fn ask_for_nodes(cluster: Cluster, demand: Arc<AtomicUsize>) {
    let api: Api<NodeClaim> = Api::all(cluster.client("user"));
    let mut made = 0;
    loop {
        tokio::time::sleep(SECOND).await;
        let live = cluster.read(|objects| {
            objects.node_claims.values().filter(|claim| claim.metadata.deletion_timestamp.is_none()).count()
        });
        for _ in live..demand.load(Ordering::Relaxed) {
            made += 1;
            let claim = node_claim(&format!("n{made}"));
            api.create(&PostParams::default(), &claim).await.expect("a NodeClaim");
        }
    }
}

fn node_claim(name: &str) -> NodeClaim {
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": name, "finalizers": ["karpenter.sh/termination"],
            "labels": {"karpenter.sh/nodepool": "default"},
        },
        "spec": {
            "requirements": [], "resources": {"requests": {"cpu": "3"}},
            "nodeClassRef": {
                "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
            },
        },
    });
    serde_json::from_value(claim).expect("a NodeClaim")
}
