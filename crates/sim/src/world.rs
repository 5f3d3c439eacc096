//! Everything together: a cluster with its components, a cloud, and ways to let time pass and to wait for things.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::actor::employ;
use crate::attach_detach::AttachDetach;
use crate::cloud::{Cloud, CloudOptions};
use crate::cluster::{Cluster, EPOCH};
use crate::disruption_budgets::DisruptionBudgets;
use crate::faults::{FaultPlan, Faults};
use crate::invariants::Violation;
use crate::kubelet::{Kubelet, Timing};
use crate::node_lifecycle::NodeLifecycle;
use crate::objects::Objects;
use crate::pod_gc::PodGc;
use crate::process::{Life, Process};
use crate::scheduler::Scheduler;
use crate::taint_eviction::TaintEviction;
use crate::volume_binder::VolumeBinder;
use crate::workloads::daemon_set::DaemonSets;
use crate::workloads::deployment::Deployments;
use crate::workloads::job::Jobs;
use crate::workloads::replica_set::ReplicaSets;
use crate::workloads::stateful_set::StatefulSets;

/// How a world is made.
#[derive(Clone, Debug, Default)]
pub struct WorldOptions {
    /// Everything random follows from it.
    pub seed: u64,
    /// What the clock says at first; [`EPOCH`](crate::cluster::EPOCH) if not given.
    pub epoch: Option<jiff::Timestamp>,
    /// How long things take on nodes.
    pub timing: Timing,
    /// How the cloud behaves.
    pub cloud: CloudOptions,
}

/// A simulated cluster with its cloud. It ends when dropped.
pub struct World {
    cluster: Cluster,
    cloud: Cloud,
    components: Vec<JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        for component in &self.components {
            component.abort();
        }
    }
}

/// Why a world did not get where it should.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A rule was broken on the way.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// It took too long.
    #[error("{what} did not happen within {within:?} (at {at:?})")]
    TooLong {
        /// What was waited for.
        what: String,
        /// For how long.
        within: Duration,
        /// The time in the world.
        at: Duration,
    },
    /// An object could not be made.
    #[error("{what} was refused")]
    Refused {
        /// Which.
        what: String,
        /// The server's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// An object names no kind.
    #[error("an object needs apiVersion and kind: {0}")]
    NoKind(String),
}

/// Runs a future on one thread under virtual time: whenever nothing can go on, the clock jumps to what is next.
pub fn in_virtual_time<F: Future>(future: F) -> std::io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(future))
}

impl World {
    /// A world with all components running and Karpenter's definitions installed.
    ///
    /// # Errors
    ///
    /// If the server refuses the definitions.
    pub async fn new(options: WorldOptions) -> Result<Self, Trouble> {
        let world = Self::bare(options);
        for definition in karpenter_api::crds() {
            world.create(definition.to_json()).await?;
        }
        Ok(world)
    }

    /// A world with all components running and no definitions.
    pub fn bare(options: WorldOptions) -> Self {
        let cluster = Cluster::starting_at(options.epoch.unwrap_or(EPOCH), options.seed);
        let components = vec![
            employ(&cluster, Scheduler::new(&cluster)),
            employ(&cluster, Kubelet::new(&cluster, options.timing)),
            employ(&cluster, NodeLifecycle::new(&cluster)),
            employ(&cluster, TaintEviction::new(&cluster)),
            employ(&cluster, PodGc::new(&cluster)),
            employ(&cluster, ReplicaSets::new(&cluster)),
            employ(&cluster, Deployments::new(&cluster)),
            employ(&cluster, StatefulSets::new(&cluster)),
            employ(&cluster, DaemonSets::new(&cluster)),
            employ(&cluster, Jobs::new(&cluster)),
            employ(&cluster, DisruptionBudgets::new(&cluster)),
            employ(&cluster, VolumeBinder::new(&cluster)),
            employ(&cluster, AttachDetach::new(&cluster)),
        ];
        let cloud = Cloud::new(&cluster, options.cloud);
        Self { cluster, cloud, components }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cloud.
    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    /// Looks every so often for writes that came by another road, as when the server is served over HTTP.
    pub fn follow_outside(&mut self, period: Duration) {
        let cluster = self.cluster.clone();
        self.components.push(tokio::spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                cluster.catch_up();
            }
        }));
    }

    /// A program under test, not started yet.
    pub fn process(
        &self,
        name: &str,
        plan: FaultPlan,
        start: impl Fn(Life) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Process> {
        let faults = Faults::new(plan, self.cluster.entropy(), name);
        Arc::new(Process::new(name, &self.cluster, &self.cloud, faults, start))
    }

    /// Creates an object, whatever its kind, as a user would.
    ///
    /// # Errors
    ///
    /// If it names no kind or the server refuses it.
    pub async fn create(&self, object: Value) -> Result<DynamicObject, Trouble> {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
        if api_version.is_empty() || kind.is_empty() {
            return Err(Trouble::NoKind(object.to_string()));
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let client = self.cluster.client("user");
        let api: Api<DynamicObject> = match (&namespace, is_namespaced(&kind)) {
            (Some(namespace), _) => Api::namespaced_with(client, namespace, &resource),
            (None, true) => Api::default_namespaced_with(client, &resource),
            (None, false) => Api::all_with(client, &resource),
        };
        let refused = |source: kube::Error| Trouble::Refused {
            what: format!("{kind} {name}"),
            source: Box::new(source),
        };
        let object: DynamicObject =
            serde_json::from_value(object).map_err(|error| refused(kube::Error::SerdeError(error)))?;
        api.create(&PostParams::default(), &object).await.map_err(refused)
    }

    /// Lets everything run that can run now, without letting more than some milliseconds pass.
    pub async fn settle(&self) {
        let mut seen = None;
        loop {
            let entries = self.cluster.tape(|tape| tape.entries().len());
            if seen == Some(entries) {
                return;
            }
            seen = Some(entries);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets time pass.
    ///
    /// # Errors
    ///
    /// The first broken invariant.
    pub async fn run_for(&self, time: Duration) -> Result<(), Violation> {
        tokio::time::sleep(time).await;
        self.cluster.violation().map_or(Ok(()), Err)
    }

    /// Waits until something holds, and gives back how long that took.
    ///
    /// # Errors
    ///
    /// If it takes longer than `within`, or an invariant is broken meanwhile.
    pub async fn wait_until(
        &self,
        what: &str,
        within: Duration,
        holds: impl Fn(&Objects) -> bool,
    ) -> Result<Duration, Trouble> {
        /// How long changes are gathered before the next look.
        const GATHER: Duration = Duration::from_millis(100);
        let started = Instant::now();
        let mut changes = self.cluster.subscribe();
        loop {
            while changes.try_recv().is_ok() {}
            if let Some(violation) = self.cluster.violation() {
                return Err(violation.into());
            }
            if self.cluster.read(|objects| holds(objects)) {
                return Ok(started.elapsed());
            }
            let left = within.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(Trouble::TooLong { what: what.to_owned(), within, at: self.cluster.elapsed() });
            }
            // Ends by itself when there is news, or when time is up.
            let _ = tokio::time::timeout(left, changes.recv()).await;
            tokio::time::sleep(GATHER.min(within.saturating_sub(started.elapsed()))).await;
        }
    }

    /// Waits until nothing has been written for a while.
    ///
    /// # Errors
    ///
    /// If it takes longer than `within`, or an invariant is broken meanwhile.
    pub async fn wait_quiet(&self, quiet: Duration, within: Duration) -> Result<(), Trouble> {
        let started = Instant::now();
        loop {
            let before = self.cluster.tape(|tape| tape.entries().len());
            self.run_for(quiet).await?;
            if self.cluster.tape(|tape| tape.entries().len()) == before {
                return Ok(());
            }
            if started.elapsed() > within {
                let what = format!("{quiet:?} without a write");
                return Err(Trouble::TooLong { what, within, at: self.cluster.elapsed() });
            }
        }
    }
}

/// Whether objects of a kind live in namespaces: of those a user of a simulation makes, all but these do.
fn is_namespaced(kind: &str) -> bool {
    let cluster_scoped = [
        "Node",
        "Namespace",
        "PersistentVolume",
        "StorageClass",
        "CSINode",
        "CSIDriver",
        "PriorityClass",
        "VolumeAttachment",
        "CustomResourceDefinition",
        "NodePool",
        "NodeClaim",
        "NodeOverlay",
    ];
    !cluster_scoped.contains(&kind) && !kind.ends_with("NodeClass")
}
