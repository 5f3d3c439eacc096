//! Machines: bootstrap data, infrastructure, id, Node; and back: hooks, drain, infrastructure, bootstrap data, Node, finalizer.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::Switches;
use super::bootstrap;
use super::deployments::{RATE, cluster_of};
use super::draining::{self, Stage};
use super::kinds::{
    Kind, annotation, controller_of, delete, is_paused, label, owned_by, patch, patch_status, text,
    with_conditions,
};
use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_deleting, node_ready};

const FINALIZER: &str = "machine.cluster.x-k8s.io";
/// On Nodes until their Machine is known, and on those of older revisions.
pub(super) const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";
const OUTDATED: &str = "node.cluster.x-k8s.io/outdated-revision";
/// How often a Machine that waits for hooks or its infrastructure looks again.
const AGAIN: Duration = Duration::from_secs(5);

/// The controller.
pub(super) struct Machines {
    cluster: Cluster,
    client: kube::Client,
    switches: Switches,
}

impl Machines {
    pub(super) fn new(cluster: &Cluster, switches: Switches) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME), switches }
    }

    async fn up(&self, machine: &DynamicObject) -> Result<(), kube::Error> {
        let key = ObjectKey::of(machine);
        let finalizers = machine.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            let finalizers = json!({"metadata": {"finalizers": [FINALIZER]}});
            return patch(&self.client, Kind::Machine, &key, finalizers).await;
        }
        let infrastructure = self.infrastructure(machine);
        if let Some(found) = &infrastructure
            && controller_of(found, Kind::Machine).is_none()
        {
            let owner = json!({"metadata": {"ownerReferences": [owned_by(Kind::Machine, machine)]}});
            return patch(&self.client, Kind::SimMachine, &ObjectKey::of(&**found), owner).await;
        }
        let awaits_data = bootstrap::is_awaited(machine);
        let data = self.config(machine).map(|config| text(&config, "/status/dataSecretName").to_owned());
        if let Some(data) = data.filter(|data| awaits_data && !data.is_empty()) {
            let spec = json!({"spec": {"bootstrap": {"dataSecretName": data}}});
            return patch(&self.client, Kind::Machine, &key, spec).await;
        }
        let provisioned = |found: &Arc<DynamicObject>| {
            found.data.pointer("/status/initialization/provisioned") == Some(&Value::Bool(true))
        };
        let ready = infrastructure.as_ref().is_some_and(provisioned);
        let provider_id = infrastructure
            .as_ref()
            .map(|found| text(found, "/spec/providerID").to_owned())
            .unwrap_or_default();
        if ready && text(machine, "/spec/providerID").is_empty() && !provider_id.is_empty() {
            let spec = json!({"spec": {"providerID": provider_id}});
            return patch(&self.client, Kind::Machine, &key, spec).await;
        }
        let node = (!text(machine, "/spec/providerID").is_empty())
            .then(|| self.node(text(machine, "/spec/providerID")))
            .flatten();
        let failure = infrastructure.as_ref().map(|found| {
            (
                text(found, "/status/failureReason").to_owned(),
                text(found, "/status/failureMessage").to_owned(),
            )
        });
        let (failed, message) = failure.unwrap_or_default();
        let healthy = node.as_ref().is_some_and(|node| node_ready(node) == Some("True"));
        let stale = self.cluster.read(|objects| is_stale(objects, machine));
        let infrastructure_reason = if ready {
            "Ready"
        } else if failed.is_empty() {
            "NotReady"
        } else {
            failed.as_str()
        };
        let mut conditions = vec![
            ("BootstrapConfigReady", !awaits_data, if awaits_data { "NotReady" } else { "Ready" }, ""),
            ("InfrastructureReady", ready, infrastructure_reason, message.as_str()),
            ("NodeHealthy", healthy, if healthy { "NodeHealthy" } else { "NodeDoesNotExist" }, ""),
            ("Ready", healthy, "Ready", ""),
            ("Available", healthy, "Available", ""),
        ];
        if !label(machine, "cluster.x-k8s.io/set-name").is_empty() {
            conditions.push(("UpToDate", !stale, if stale { "NotUpToDate" } else { "UpToDate" }, ""));
        }
        let phase = match (&node, ready) {
            (Some(_), _) => "Running",
            (None, true) => "Provisioned",
            (None, false) if awaits_data => "Pending",
            (None, false) => "Provisioning",
        };
        let mut status = json!({"phase": phase, "conditions": with_conditions(machine, &conditions)});
        if let Some(node) = &node {
            status["nodeRef"] = json!({"name": node.metadata.name});
        }
        let placed = infrastructure.as_ref().and_then(|found| found.data.pointer("/status/failureDomain"));
        if let Some(domain) = placed.or_else(|| machine.data.pointer("/spec/failureDomain")) {
            status["failureDomain"] = domain.clone();
        }
        patch_status(&self.client, Kind::Machine, machine, status).await?;
        if let Some(node) = node {
            self.sync_node(machine, &node).await?;
        }
        Ok(())
    }

    /// Labels of Cluster API's domains, and who the Machine is.
    async fn sync_node(&self, machine: &DynamicObject, node: &Node) -> Result<(), kube::Error> {
        let mut labels = json!({});
        for (key, value) in machine.metadata.labels.iter().flatten() {
            if key.starts_with("node.cluster.x-k8s.io/") || key.starts_with("node-role.kubernetes.io/") {
                labels[key] = value.as_str().into();
            }
        }
        let known = node.metadata.labels.clone().unwrap_or_default();
        let stale = self.cluster.read(|objects| is_stale(objects, machine));
        let taints = with_taints(node, stale);
        let same = labels
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| known.get(key).map(String::as_str) == value.as_str());
        let annotations = node.metadata.annotations.clone().unwrap_or_default();
        let name = machine.metadata.name.clone().unwrap_or_default();
        if same && taints.is_none() && annotations.get("cluster.x-k8s.io/machine") == Some(&name) {
            return Ok(());
        }
        let mut change = json!({"metadata": {"labels": labels, "annotations": {
            "cluster.x-k8s.io/machine": name,
            "cluster.x-k8s.io/cluster-name": text(machine, "/spec/clusterName"),
            "cluster.x-k8s.io/cluster-namespace": machine.metadata.namespace,
        }}});
        if let Some(taints) = taints {
            // Others set taints, too.
            change["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
            change["spec"] = json!({"taints": taints});
        }
        let api: Api<Node> = Api::all(self.client.clone());
        let name = node.metadata.name.as_deref().unwrap_or_default();
        unless_gone(api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await).map(drop)
    }

    async fn down(&self, machine: &DynamicObject) -> Result<Option<Duration>, kube::Error> {
        let annotations = machine.metadata.annotations.clone().unwrap_or_default();
        let hooked = |prefix: &str| annotations.keys().find(|key| key.starts_with(prefix)).cloned();
        let has_node = !text(machine, "/status/nodeRef/name").is_empty();
        if let Some(hook) = hooked("pre-drain.delete.hook.machine.cluster.x-k8s.io").filter(|_| has_node) {
            self.waits(machine, "WaitingForPreDrainHook", &hook, json!({})).await?;
            return Ok(Some(AGAIN));
        }
        let node = self.node(text(machine, "/spec/providerID")).filter(|_| has_node);
        if let Some(node) = node.filter(|_| self.infrastructure(machine).is_some())
            && self.empty(machine, &node).await?
        {
            return Ok(Some(draining::AGAIN));
        }
        if let Some(hook) = hooked("pre-terminate.delete.hook.machine.cluster.x-k8s.io") {
            self.waits(machine, "WaitingForPreTerminateHook", &hook, json!({})).await?;
            return Ok(Some(AGAIN));
        }
        if let Some(infrastructure) = self.infrastructure(machine) {
            if !is_deleting(&*infrastructure) {
                delete(&self.client, Kind::SimMachine, &infrastructure).await?;
            }
            return Ok(Some(AGAIN));
        }
        if let Some(config) = self.config(machine) {
            delete(&self.client, Kind::SimConfig, &config).await?;
        }
        if let Some(node) = self.node(text(machine, "/spec/providerID")).filter(|_| has_node) {
            hands::delete(&Api::<Node>::all(self.client.clone()), &*node, None).await?;
        }
        let finalizers: Vec<String> = machine.metadata.finalizers.clone().unwrap_or_default();
        let left: Vec<String> = finalizers.into_iter().filter(|finalizer| finalizer != FINALIZER).collect();
        let change = json!({"metadata": {"finalizers": left}});
        patch(&self.client, Kind::Machine, &ObjectKey::of(machine), change).await?;
        Ok(None)
    }

    /// Empties the Node of a Machine that goes; whether that takes longer.
    async fn empty(&self, machine: &DynamicObject, node: &Node) -> Result<bool, kube::Error> {
        let now = self.cluster.now();
        let stage = self.cluster.read(|objects| draining::stage(objects, machine, node, now));
        let deletion = draining::begun(machine, &stage, now);
        let reason = match &stage {
            Stage::Drain(pods) => {
                draining::drain(&self.client, node, pods).await?;
                "DrainingNode"
            }
            Stage::Detach => "WaitingForVolumeDetach",
            Stage::Empty => return Ok(false),
        };
        self.waits(machine, reason, "", json!({"deletion": deletion})).await?;
        Ok(true)
    }

    /// Tells what a Machine that goes waits for.
    async fn waits(
        &self,
        machine: &DynamicObject,
        reason: &str,
        message: &str,
        mut status: Value,
    ) -> Result<(), kube::Error> {
        status["phase"] = "Deleting".into();
        status["conditions"] = with_conditions(machine, &[("Deleting", true, reason, message)]);
        patch_status(&self.client, Kind::Machine, machine, status).await
    }

    fn infrastructure(&self, machine: &DynamicObject) -> Option<Arc<DynamicObject>> {
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::namespaced(namespace, text(machine, "/spec/infrastructureRef/name"));
        self.cluster.read(|objects| objects.sim_machines.get(&key).cloned())
    }

    fn config(&self, machine: &DynamicObject) -> Option<Arc<DynamicObject>> {
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::namespaced(namespace, text(machine, "/spec/bootstrap/configRef/name"));
        self.cluster.read(|objects| objects.sim_configs.get(&key).cloned())
    }

    fn node(&self, provider_id: &str) -> Option<Arc<Node>> {
        let has = |node: &&Arc<Node>| {
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(provider_id)
        };
        self.cluster.read(|objects| {
            let mut found = objects.nodes.values().filter(has);
            // Which of two it is cannot be told.
            found.next().filter(|_| found.next().is_none()).cloned()
        })
    }
}

/// The taints a Node should have, if it has others: it is initialized once its Machine is known, and of an older revision or not.
fn with_taints(node: &Node, stale: bool) -> Option<Vec<Value>> {
    let spec = node.spec.as_ref();
    let has = |key: &str| {
        spec.and_then(|spec| spec.taints.as_ref()).is_some_and(|all| all.iter().any(|t| t.key == key))
    };
    if !has(UNINITIALIZED) && has(OUTDATED) == stale {
        return None;
    }
    let others = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let others = others.filter(|taint| taint.key != UNINITIALIZED && taint.key != OUTDATED);
    let outdated = stale.then(|| json!({"key": OUTDATED, "effect": "PreferNoSchedule"}));
    Some(others.map(|taint| json!(taint)).chain(outdated).collect())
}

/// Whether a Machine's MachineSet is not the one of its MachineDeployment's newest revision.
fn is_stale(objects: &Objects, machine: &DynamicObject) -> bool {
    const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let get = |name: &str| ObjectKey::namespaced(namespace, name);
    let set = objects.machine_sets.get(&get(label(machine, "cluster.x-k8s.io/set-name")));
    let deployment =
        objects.machine_deployments.get(&get(label(machine, "cluster.x-k8s.io/deployment-name")));
    match (set, deployment) {
        (Some(set), Some(deployment)) => annotation(set, REVISION) != annotation(deployment, REVISION),
        _ => false,
    }
}

impl Actor for Machines {
    type Key = ObjectKey;
    const NAME: &'static str = "machine-controller";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::Machine(edit) => agenda.now(edit.key.clone()),
            // A clone has its Machine's name.
            Change::SimMachine(edit) | Change::SimConfig(edit) => agenda.now(edit.key.clone()),
            Change::Node(edit) => {
                let id = edit
                    .either()
                    .and_then(|node| node.spec.as_ref()?.provider_id.clone())
                    .unwrap_or_default();
                let theirs =
                    objects.machines.iter().find(|(_, machine)| text(machine, "/spec/providerID") == id);
                if let Some((key, _)) = theirs.filter(|_| !id.is_empty()) {
                    agenda.now(key.clone());
                }
            }
            Change::MachineDeployment(edit) => {
                let theirs = objects.machines.iter().filter(|(_, machine)| {
                    label(machine, "cluster.x-k8s.io/deployment-name") == &*edit.key.name
                });
                for (key, _) in theirs {
                    agenda.now(key.clone());
                }
            }
            Change::CapiCluster(_) => {
                for key in objects.machines.keys() {
                    agenda.now(key.clone());
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        if !self.switches.all_run() {
            agenda.after(key.clone(), RATE);
            return Ok(());
        }
        let (machine, paused) = self.cluster.read(|objects| {
            let machine = objects.machines.get(key).cloned();
            let paused =
                machine.as_ref().is_some_and(|machine| is_paused(machine, cluster_of(objects, machine)));
            (machine, paused)
        });
        let Some(machine) = machine.filter(|_| !paused) else { return Ok(()) };
        if !is_deleting(&*machine) {
            return self.up(&machine).await;
        }
        if let Some(again) = self.down(&machine).await? {
            agenda.after(key.clone(), again);
        }
        Ok(())
    }
}
