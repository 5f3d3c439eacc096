//! Cluster API, as far as a provider meets it: MachineDeployments, MachineSets and Machines with the behaviour of the real
//! controllers, an infrastructure that takes its time and fails as it is told to, and Nodes that join.
//!
//! The management cluster is the world's own server: a program under test that is given a second client with faults of its
//! own sees a hub that can be cut off while the workload cluster cannot.
//!
//! | Module | What it is |
//! |---|---|
//! | `kinds` | the definitions, and reading and writing objects of them |
//! | `topology` | what a Cluster's topology says of its MachineDeployments |
//! | `deployments` | MachineDeployments: revisions, rollouts |
//! | `sets`, `preflight` | MachineSets: preflight checks, creation, the order of deletion, remediation |
//! | `informers` | what these two go by, where it lags |
//! | `machines`, `draining` | Machines: from bootstrap data to a Node, and back |
//! | `health` | a MachineHealthCheck over all of them |
//! | `infrastructure`, `bootstrap`, `misfortune` | what a template's machines do, and what becomes of them |
//! | `v1beta1` | the older version of the kinds, as a program under test sees them |
//! | `moving` | all objects made anew, as `clusterctl move` does |
//! | `unrest` | what people and their tools do while Karpenter works |
//! | `checks`, `growth`, `leaks`, `economy`, `darkness`, `turnover`, with `origins` | rules every run must keep |

mod bootstrap;
mod checks;
mod darkness;
mod deployments;
mod draining;
mod economy;
mod growth;
mod health;
mod informers;
mod infrastructure;
pub(crate) mod kinds;
mod leaks;
mod machines;
mod misfortune;
mod moving;
mod origins;
mod preflight;
mod sets;
#[cfg(test)]
mod steps;
mod topology;
mod turnover;
pub mod unrest;
pub(crate) mod v1beta1;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::actor::employ;
use crate::cluster::Cluster;
use crate::world::{Trouble, World};

pub use checks::{ClaimedMachinesLive, LevelsWithinBounds, OneMachinePerClaim, is_settled};
pub use darkness::NothingGoesInTheDark;
pub use economy::FewWrites;
pub use growth::RaisedForSomebody;
pub use informers::Lag;
pub use kinds::{Kind, definitions};
pub use leaks::MachinesGoWithTheirClaims;
pub use misfortune::Misfortune;
pub use turnover::RolloutsCount;

/// On a Cluster: its control plane is being upgraded, so MachineSets hold back (the value is what they say about it).
pub const UPGRADING: &str = "sim.karpenter.sh/control-plane-upgrading";

/// On a NodeClaim that was made for a Machine that was there already.
const ADOPTED: &str = "karpenter.cluster.x-k8s.io/adopted";

/// Cluster API, running in a world. It ends when dropped.
pub struct ClusterApi {
    cluster: Cluster,
    controllers: Vec<JoinHandle<()>>,
    switches: Switches,
    misfortune: Misfortune,
}

/// Which controllers run. A controller that is switched off does nothing and misses nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switches {
    sets_off: Arc<AtomicBool>,
    all_off: Arc<AtomicBool>,
    health_on: Arc<AtomicBool>,
    most_unhealthy: Arc<Mutex<Option<usize>>>,
    machine_every: Arc<Mutex<Option<Duration>>>,
    refused: Arc<Mutex<Option<Kind>>>,
}

impl Switches {
    pub(crate) fn sets_run(&self) -> bool {
        !self.sets_off.load(Ordering::Relaxed) && self.all_run()
    }

    pub(crate) fn all_run(&self) -> bool {
        !self.all_off.load(Ordering::Relaxed)
    }

    pub(crate) fn health_is_checked(&self) -> bool {
        self.health_on.load(Ordering::Relaxed) && self.all_run()
    }

    pub(crate) fn machine_every(&self) -> Option<Duration> {
        *self.machine_every.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why an object of a kind is not admitted, if it is not.
    pub(crate) fn refusal(&self, kind: Kind) -> Option<String> {
        let refused = *self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let resource = kind.resource().plural;
        (refused == Some(kind))
            .then(|| format!("{resource}.{} is forbidden: exceeded quota: {resource}", kind.group()))
    }

    pub(crate) fn most_unhealthy(&self) -> Option<usize> {
        *self.most_unhealthy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClusterApi {
    fn drop(&mut self) {
        for controller in &self.controllers {
            controller.abort();
        }
    }
}

impl ClusterApi {
    /// Installs the definitions and starts the controllers.
    ///
    /// # Errors
    ///
    /// If the server refuses a definition.
    pub async fn install(world: &World) -> Result<Self, Trouble> {
        Self::install_behind(world, &Lag::none()).await
    }

    /// As [`Self::install`], with caches that lag behind what there is.
    ///
    /// # Errors
    ///
    /// If the server refuses a definition.
    pub async fn install_behind(world: &World, lag: &Lag) -> Result<Self, Trouble> {
        for definition in definitions(&["v1beta2", "v1beta1"]) {
            world.create(definition).await?;
        }
        let cluster = world.cluster();
        let switches = Switches::default();
        let misfortune = Misfortune::none(cluster.entropy());
        let (informers, filling) = informers::Informers::begin(cluster, lag);
        let mut controllers = vec![
            employ(&informers, deployments::Deployments::new(&informers, switches.clone())),
            employ(cluster, topology::Topology::new(cluster, switches.clone())),
            employ(&informers, sets::Sets::new(&informers, switches.clone())),
            employ(cluster, machines::Machines::new(cluster, switches.clone())),
            employ(cluster, infrastructure::Infrastructure::new(cluster, misfortune.clone())),
            employ(cluster, bootstrap::Bootstrap::new(cluster)),
            employ(cluster, health::HealthChecks::new(cluster, switches.clone())),
        ];
        controllers.extend(filling);
        Ok(Self { cluster: cluster.clone(), controllers, switches, misfortune })
    }

    /// Stops or starts the MachineSet controller.
    pub fn run_machine_sets(&self, run: bool) {
        self.switches.sets_off.store(!run, Ordering::Relaxed);
    }

    /// Stops or starts all controllers of Cluster API; the infrastructure goes on.
    pub fn run_controllers(&self, run: bool) {
        self.switches.all_off.store(!run, Ordering::Relaxed);
    }

    /// Starts or stops checking the health of Machines; nobody does at first.
    pub fn check_health(&self, check: bool) {
        self.switches.health_on.store(check, Ordering::Relaxed);
    }

    /// From now on a MachineSet makes one Machine after the other, this long apart, as the real controller does when it is short of time.
    pub fn make_a_machine_every(&self, time: Duration) {
        *self.switches.machine_every.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
    }

    /// From now on MachineSets are refused objects of this kind, as a quota or a webhook does; without one they are admitted again.
    pub fn refuse_creation_of(&self, kind: Option<Kind>) {
        *self.switches.refused.lock().unwrap_or_else(PoisonError::into_inner) = kind;
    }

    /// While more Machines than this are unhealthy, none is to be replaced; without a number all are.
    pub fn remediate_at_most(&self, unhealthy: Option<usize>) {
        *self.switches.most_unhealthy.lock().unwrap_or_else(PoisonError::into_inner) = unhealthy;
    }

    /// From now on only these versions are served, as when Cluster API is upgraded.
    ///
    /// # Errors
    ///
    /// If the server refuses a definition.
    pub async fn serve(&self, versions: &[&str]) -> Result<(), kube::Error> {
        let api: Api<CustomResourceDefinition> = Api::all(self.cluster.client("user"));
        for kind in kinds::Kind::ALL {
            let definition = kinds::serving(kind, versions);
            let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
            api.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Has a Cluster tell in which failure domains machines can be.
    ///
    /// # Errors
    ///
    /// If the server refuses it.
    pub async fn have_failure_domains(
        &self,
        namespace: &str,
        cluster: &str,
        names: &[&str],
    ) -> Result<(), kube::Error> {
        let domains: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        let patch = Patch::Merge(json!({"status": {"failureDomains": domains}}));
        let api = Kind::Cluster.api(&self.cluster.client("user"), namespace);
        api.patch_status(cluster, &PatchParams::default(), &patch).await.map(drop)
    }

    /// What becomes of machines.
    pub fn misfortune(&self) -> &Misfortune {
        &self.misfortune
    }

    /// Puts on the tape which NodeClaims there are for Machines that were there before Karpenter.
    pub fn note_adopted(&self) {
        let adopted: Vec<String> = self.cluster.read(|objects| {
            let claims = objects.node_claims.iter();
            let existing = |claim: &karpenter_api::NodeClaim| {
                claim
                    .metadata
                    .annotations
                    .as_ref()
                    .and_then(|all| all.get(ADOPTED))
                    .is_some_and(|how| how == "existing")
            };
            claims.filter(|(_, claim)| existing(claim)).map(|(key, _)| key.name.to_string()).collect()
        });
        for name in adopted {
            self.cluster.record(
                &"census".into(),
                format!("NodeClaim {name} was adopted"),
                "counted".to_owned(),
                &[],
            );
        }
    }

    /// The cluster it runs in.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

/// A Cluster.
pub fn cluster(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
    })
}

/// Has a Cluster's topology own these MachineDeployments, with a version of its own and no word of their replicas.
pub fn own(cluster: &mut Value, deployments: &mut [&mut Value]) {
    let mut workers = Vec::new();
    for deployment in deployments {
        let name = deployment["metadata"]["name"].clone();
        deployment["metadata"]["labels"][topology::OWNED] = "".into();
        deployment["metadata"]["labels"][topology::DEPLOYMENT] = name.clone();
        workers.push(json!({"class": "worker", "name": name}));
    }
    cluster["spec"]["topology"] = json!({
        "classRef": {"name": "class"}, "version": "v1.36.0", "workers": {"machineDeployments": workers},
    });
}

/// A template of the simulated infrastructure; `behaviour` says what its machines have and do: see
/// `infrastructure::Behaviour`.
pub fn template(namespace: &str, name: &str, behaviour: Value) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "SimMachineTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": behaviour}},
    })
}

/// A template of bootstrap data, which is there after so many seconds.
pub fn config_template(namespace: &str, name: &str, ready_seconds: u64) -> Value {
    json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "SimConfigTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {"readySeconds": ready_seconds}}},
    })
}

/// A MachineDeployment of a Cluster that takes part in Karpenter: 4 cores and 16Gi unless `annotations` say otherwise.
pub fn machine_deployment(
    namespace: &str,
    cluster: &str,
    name: &str,
    template: &str,
    annotations: &[(&str, &str)],
) -> Value {
    let mut all = json!({
        "capacity.cluster-autoscaler.kubernetes.io/cpu": "4",
        "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi",
    });
    for (key, value) in annotations {
        all[*key] = (*value).into();
    }
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {
            "name": name, "namespace": namespace, "annotations": all,
            "labels": {
                "node.cluster.x-k8s.io/karpenter-member": "", "cluster.x-k8s.io/cluster-name": cluster,
            },
        },
        "spec": {
            "clusterName": cluster, "replicas": 0,
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": name}},
            "template": {
                "metadata": {"labels": {"cluster.x-k8s.io/cluster-name": cluster}},
                "spec": {
                    "clusterName": cluster, "version": "v1.36.0",
                    "bootstrap": {"dataSecretName": "bootstrap"},
                    "infrastructureRef": {
                        "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimMachineTemplate", "name": template,
                    },
                },
            },
        },
    })
}
