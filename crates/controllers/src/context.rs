//! What every controller is given: a client, the state, what was last seen of each kind, and whom to tell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::{CapacityBuffer, NodeClaim, NodeClassReference, NodePool};
use karpenter_cloudprovider::Registry;
use karpenter_runtime::compute::Compute;
use karpenter_runtime::controller::{Controller, Reconciler};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events::Recorder;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::options::Options;
use karpenter_runtime::program::Program;
use karpenter_runtime::store::Store;
use karpenter_state::Cluster;
use kube::Client;
use kube::api::DynamicObject;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::seen_pod::SeenPod;

/// How often the stores are looked at until all have been listed.
const SYNC_POLL: Duration = Duration::from_millis(10);
/// The same once that takes longer than [`PROMPT`]: something is refused, which a person has to mend.
const LATE_SYNC_POLL: Duration = Duration::from_secs(1);
/// How long listing everything takes at most where nothing is wrong.
const PROMPT: Duration = Duration::from_secs(10);
/// When what its platform can do nothing with is looked at again: nobody tells when that is over. See [`Context::is_stuck`].
pub(crate) const STUCK_RETRY: Duration = Duration::from_secs(15);

/// What every controller is given; clones share everything.
#[derive(Clone)]
pub struct Context {
    /// Requests to the cluster.
    pub client: Client,
    /// Clock, randomness, metrics.
    pub environment: Environment,
    /// What the program was told.
    pub options: Arc<Options>,
    /// Who launches machines.
    pub providers: Registry,
    /// Whom to tell what happened.
    pub recorder: Recorder,
    /// The mirror that decisions are made from.
    pub cluster: SharedCluster,
    /// What was last seen of each kind.
    pub stores: Stores,
    /// Where the engine thinks.
    pub compute: Compute,
}

impl Context {
    /// The moment.
    pub fn now(&self) -> jiff::Timestamp {
        self.environment.clock.now()
    }

    /// The moment without a leap of the clock that is doubted: for whatever ends something by its time.
    pub(crate) fn undoubted_now(&self) -> jiff::Timestamp {
        self.environment.clock.undoubted_now()
    }

    /// Whether this moment has passed, and not by such a leap.
    pub(crate) fn is_past(&self, deadline: jiff::Timestamp) -> bool {
        self.undoubted_now() > deadline
    }

    /// Whether its platform can neither end nor replace what a claim is for.
    pub(crate) fn is_stuck(&self, claim: &NodeClaim) -> bool {
        let hold = self.providers.for_claim(claim).ok().and_then(|provider| provider.disruption_hold(claim));
        hold.is_some_and(|hold| hold.stuck)
    }

    /// Makes a controller part of the program. It starts once everything has been listed: from then on what is not in a store
    /// does not exist, and reconcilers may act on it.
    pub(crate) fn run<R: Reconciler>(&self, program: &mut Program, controller: Controller<R>) {
        let stores = self.stores.clone();
        program.while_leading(controller.name().to_owned(), move |stop: CancellationToken| {
            async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = stores.wait_synced() => {}
                }
                controller.run(stop).await;
            }
            .boxed()
        });
    }
}

/// The mirror, shared: watches write into it, controllers take snapshots. It is locked for moments only, never over an await.
#[derive(Clone, Default)]
pub struct SharedCluster(Arc<Mutex<Cluster>>);

impl SharedCluster {
    /// Looks something up.
    pub fn read<T>(&self, look: impl FnOnce(&Cluster) -> T) -> T {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes something.
    pub fn update<T>(&self, change: impl FnOnce(&mut Cluster) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was last seen of the kinds controllers read themselves. Kinds that only the state needs are not kept.
#[derive(Clone)]
pub struct Stores {
    /// Pods, trimmed to what controllers read; by node: [`PODS_BY_NODE`].
    pub pods: Store<SeenPod>,
    /// Nodes; by provider id: [`BY_PROVIDER_ID`].
    pub nodes: Store<Node>,
    /// NodeClaims; by provider id: [`BY_PROVIDER_ID`], by NodePool: [`BY_NODE_POOL`].
    pub node_claims: Store<NodeClaim>,
    /// NodePools.
    pub node_pools: Store<NodePool>,
    /// DaemonSets.
    pub daemon_sets: Store<DaemonSet>,
    /// PodDisruptionBudgets.
    pub disruption_budgets: Store<PodDisruptionBudget>,
    /// PersistentVolumeClaims.
    pub volume_claims: Store<PersistentVolumeClaim>,
    /// PersistentVolumes.
    pub volumes: Store<PersistentVolume>,
    /// VolumeAttachments; by node: [`ATTACHMENTS_BY_NODE`].
    pub attachments: Store<VolumeAttachment>,
    /// CapacityBuffers, with their gate.
    pub capacity_buffers: Option<Store<CapacityBuffer>>,
    /// NodeClasses, by group and kind.
    pub node_classes: BTreeMap<(String, String), Store<DynamicObject>>,
    /// Of everything that is watched, also of what only the state keeps.
    pub(crate) lists: Arc<[Listed]>,
}

/// Tells whether everything of a kind has been listed once.
pub(crate) type Listed = Box<dyn Fn() -> bool + Send + Sync>;

/// Index of pods by `spec.nodeName`.
pub const PODS_BY_NODE: &str = "spec.nodeName";
/// Index of nodes and claims by their provider id; those that have none, or an empty one, are not in it.
pub const BY_PROVIDER_ID: &str = "providerID";
/// Index of claims by the label of their NodePool.
pub const BY_NODE_POOL: &str = "karpenter.sh/nodepool";
/// Index of volume attachments by `spec.nodeName`.
pub const ATTACHMENTS_BY_NODE: &str = "spec.nodeName";

impl Stores {
    /// The NodeClass a NodePool or NodeClaim refers to, if its kind is served and the object exists.
    pub fn node_class(&self, reference: &NodeClassReference) -> Option<Arc<DynamicObject>> {
        let kind = (reference.group.clone(), reference.kind.clone());
        self.node_classes.get(&kind)?.get(&ObjectKey::cluster(reference.name.as_str()))
    }

    /// Pods on this node.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<SeenPod>> {
        self.pods.by_index(PODS_BY_NODE, node)
    }

    /// NodeClaims of this provider id; more than one is something wrong.
    pub fn claims_of(&self, provider_id: &str) -> Vec<Arc<NodeClaim>> {
        self.node_claims.by_index(BY_PROVIDER_ID, provider_id)
    }

    /// Nodes of this provider id; more than one is something wrong.
    pub fn nodes_of(&self, provider_id: &str) -> Vec<Arc<Node>> {
        self.nodes.by_index(BY_PROVIDER_ID, provider_id)
    }

    /// Whether everything has been listed once, whoever needs it: what is not there does not exist.
    pub fn are_synced(&self) -> bool {
        self.lists.iter().all(|listed| listed())
    }

    /// Waits until [`are_synced`](Self::are_synced).
    ///
    /// It looks again and again instead of being told: tokio wakes those who wait for one thing in random order, and what
    /// comes first decides what a simulation sees.
    pub async fn wait_synced(&self) {
        let started = Instant::now();
        while !self.are_synced() {
            let poll = if started.elapsed() < PROMPT { SYNC_POLL } else { LATE_SYNC_POLL };
            tokio::time::sleep(poll).await;
        }
    }
}
