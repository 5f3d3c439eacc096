//! The topology of a Cluster: what it says of its MachineDeployments is set back whoever set it otherwise, replicas only where it names
//! them, and its version comes to one MachineDeployment after the other once the control plane has it.

use std::sync::Arc;

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::deployments::{Pace, RATE};
use super::kinds::{Kind, annotation, is_paused, label, patch, text};
use super::{Switches, UPGRADING};
use crate::actor::{Actor, Agenda};
use crate::cluster::Cluster;
use crate::objects::{Change, Objects, is_deleting};

/// On MachineDeployments of a topology: that they are, and which they are there.
pub(super) const OWNED: &str = "topology.cluster.x-k8s.io/owned";
pub(super) const DEPLOYMENT: &str = "topology.cluster.x-k8s.io/deployment-name";

/// The controller.
pub(super) struct Topology {
    cluster: Cluster,
    client: kube::Client,
    switches: Switches,
    pace: Pace,
}

impl Topology {
    pub(super) fn new(cluster: &Cluster, switches: Switches) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME), switches, pace: Pace::default() }
    }

    async fn reconcile(&self, cluster: &DynamicObject) -> Result<(), kube::Error> {
        let (deployments, upgrading) = self.cluster.read(|objects| {
            let deployments = deployments_of(objects, cluster);
            let upgrading = deployments.iter().any(|deployment| is_upgrading(objects, deployment));
            (deployments, upgrading)
        });
        let mut busy = upgrading || annotation(cluster, UPGRADING).is_some();
        for deployment in deployments.iter().filter(|deployment| !is_paused(deployment, None)) {
            let mut change = set_back(cluster, deployment);
            let version = text(cluster, "/spec/topology/version");
            if !busy && !version.is_empty() && text(deployment, "/spec/template/spec/version") != version {
                change["spec"]["template"]["spec"]["version"] = version.into();
                busy = true;
            }
            if change.as_object().is_some_and(|change| !change.is_empty()) {
                let key = ObjectKey::of(&**deployment);
                patch(&self.client, Kind::MachineDeployment, &key, change).await?;
            }
        }
        Ok(())
    }
}

/// The MachineDeployments of a Cluster's topology, by name.
fn deployments_of(objects: &Objects, cluster: &DynamicObject) -> Vec<Arc<DynamicObject>> {
    let ours = |deployment: &&Arc<DynamicObject>| {
        deployment.metadata.namespace == cluster.metadata.namespace
            && Some(text(deployment, "/spec/clusterName")) == cluster.metadata.name.as_deref()
            && deployment.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(OWNED))
            && !is_deleting(&***deployment)
    };
    objects.machine_deployments.values().filter(ours).cloned().collect()
}

/// Whether a MachineDeployment has Machines of another version than it is to have.
fn is_upgrading(objects: &Objects, deployment: &DynamicObject) -> bool {
    let version = text(deployment, "/spec/template/spec/version");
    let mut machines = objects.machines.values();
    machines.any(|machine| {
        machine.metadata.namespace == deployment.metadata.namespace
            && Some(label(machine, "cluster.x-k8s.io/deployment-name")) == deployment.metadata.name.as_deref()
            && text(machine, "/spec/version") != version
    })
}

/// What a topology says of a MachineDeployment.
fn said_of<'a>(cluster: &'a DynamicObject, deployment: &DynamicObject) -> Option<&'a Value> {
    let all = cluster.data.pointer("/spec/topology/workers/machineDeployments")?.as_array()?;
    all.iter().find(|said| said["name"] == label(deployment, DEPLOYMENT))
}

/// The replicas that a topology sets, if it does.
pub(super) fn replicas_of(cluster: &DynamicObject, deployment: &DynamicObject) -> Option<i64> {
    deployment.metadata.labels.as_ref().filter(|labels| labels.contains_key(OWNED))?;
    said_of(cluster, deployment)?["replicas"].as_i64()
}

/// What a topology has to write on a MachineDeployment: its replicas, and labels and annotations, which its Machines get too.
fn set_back(cluster: &DynamicObject, deployment: &DynamicObject) -> Value {
    let mut change = json!({});
    let replicas = replicas_of(cluster, deployment);
    if replicas.is_some() && deployment.data.pointer("/spec/replicas").and_then(Value::as_i64) != replicas {
        change["spec"]["replicas"] = replicas.into();
    }
    let Some(said) = said_of(cluster, deployment) else { return change };
    let meta = [("labels", &deployment.metadata.labels), ("annotations", &deployment.metadata.annotations)];
    for (map, there) in meta {
        for (key, value) in said["metadata"][map].as_object().into_iter().flatten() {
            if there.as_ref().and_then(|there| there.get(key)).map(String::as_str) != value.as_str() {
                change["metadata"][map][key] = value.clone();
            }
            let template = deployment.data.pointer(&format!("/spec/template/metadata/{map}"));
            if template.and_then(|template| template.get(key)) != Some(value) {
                change["spec"]["template"]["metadata"][map][key] = value.clone();
            }
        }
    }
    change
}

impl Actor for Topology {
    type Key = ObjectKey;
    const NAME: &'static str = "topology-controller";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::CapiCluster(edit) => agenda.now(edit.key.clone()),
            Change::MachineDeployment(edit) => {
                let Some(deployment) = edit.either() else { return };
                let cluster = text(deployment, "/spec/clusterName");
                agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), cluster));
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        if !self.switches.all_run() {
            agenda.after(key.clone(), RATE);
            return Ok(());
        }
        if let Some(rest) = self.pace.too_soon(key) {
            agenda.after(key.clone(), rest);
            return Ok(());
        }
        let cluster = self.cluster.read(|objects| objects.capi_clusters.get(key).cloned());
        let Some(cluster) = cluster.filter(|cluster| cluster.data.pointer("/spec/topology").is_some()) else {
            return Ok(());
        };
        if is_paused(&cluster, Some(&cluster)) {
            return Ok(());
        }
        self.reconcile(&cluster).await
    }
}
