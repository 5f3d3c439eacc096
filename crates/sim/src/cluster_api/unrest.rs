//! What people and their tools do to a Cluster while Karpenter works: pauses, upgrades, rollouts, labels and annotations that come and
//! go, Machines deleted by hand, replicas set by someone else, controllers that are down, objects moved, machines that do not go,
//! pods that must not be evicted, machines that are to be taken away, broken nodes, versions no longer served, credentials that ran out,
//! quotas, updates in place. Everything that can be undone is undone in the end.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::infrastructure::STUCK;
use super::kinds::{Kind, annotation, create, is_standalone, text, with_conditions};
use super::{ClusterApi, UPGRADING, moving};
use crate::chance::{Chance, Span};
use crate::faults::{Faults, Refusal};
use crate::objects::is_deleting;

const MEMBER: &str = "node.cluster.x-k8s.io/karpenter-member";
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
const CPU: &str = "capacity.cluster-autoscaler.kubernetes.io/cpu";
/// Hooks of others, before a drain and after it.
const HOOKS: [&str; 2] = [
    "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup",
    "pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup",
];

/// On a Machine or a Node: its machine is about to be taken away, where a NodeClass says that this announces it.
pub const TO_BE_TAKEN: &str = "SpotTermination";
/// On a Node: it is broken, where a NodeClass says that this means so.
pub const BROKEN: &str = "Broken";

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    PauseCluster,
    PauseDeployment,
    PauseRollout,
    UpgradeControlPlane,
    StopMachineSets,
    StopControllers,
    CutOffHub,
    RollOut,
    DeleteMachine,
    DeleteInfrastructure,
    DeleteDeployment,
    SetReplicas,
    RemoveMemberLabel,
    SpoilAnnotation,
    RemoveTemplate,
    HookMachine,
    CondemnMachines,
    CopyElsewhere,
    Move,
    StickInfrastructure,
    ForbidEvictions,
    StopServingTheOldVersion,
    MarkMachine,
    RefuseKarpenter,
    RefuseCreation,
    PauseMachineSet,
    ScaleWithoutMemberLabel,
    ChangeAdoption,
    UpdateInPlace,
    OwnReplicas,
    RotateTemplate,
    AnnounceEnd,
    BreakNode,
    HideCapacity,
}

impl Act {
    /// What people do as well; what came later is drawn apart, so that seeds are what they were without it.
    const MORE: [Self; 3] = [Self::AnnounceEnd, Self::BreakNode, Self::HideCapacity];

    const ALL: [Self; 31] = [
        Self::PauseCluster,
        Self::PauseDeployment,
        Self::PauseRollout,
        Self::UpgradeControlPlane,
        Self::StopMachineSets,
        Self::StopControllers,
        Self::CutOffHub,
        Self::RollOut,
        Self::DeleteMachine,
        Self::DeleteInfrastructure,
        Self::DeleteDeployment,
        Self::SetReplicas,
        Self::RemoveMemberLabel,
        Self::SpoilAnnotation,
        Self::RemoveTemplate,
        Self::HookMachine,
        Self::CondemnMachines,
        Self::CopyElsewhere,
        Self::Move,
        Self::StickInfrastructure,
        Self::ForbidEvictions,
        Self::StopServingTheOldVersion,
        Self::MarkMachine,
        Self::RefuseKarpenter,
        Self::RefuseCreation,
        Self::PauseMachineSet,
        Self::ScaleWithoutMemberLabel,
        Self::ChangeAdoption,
        Self::UpdateInPlace,
        Self::OwnReplicas,
        Self::RotateTemplate,
    ];
}

/// Unrest in one Cluster.
pub struct Unrest<'a> {
    capi: &'a ClusterApi,
    hub: Faults,
    client: kube::Client,
    chance: Chance,
    /// Which waits are long, and how long.
    patience: Chance,
    /// Which of the things that came later are done, and to what.
    later: Chance,
    namespace: String,
    cluster: String,
}

/// How likely creation is held up for longer than a launch may take.
const LONG: f64 = 0.15;

impl<'a> Unrest<'a> {
    /// In this Cluster; `hub` is how the program under test reaches it.
    pub fn new(capi: &'a ClusterApi, hub: &Faults, namespace: &str, cluster: &str) -> Self {
        let world = capi.cluster();
        Self {
            capi,
            hub: hub.clone(),
            client: world.client("user"),
            chance: Chance::new(world.entropy(), "cluster-api unrest"),
            patience: Chance::new(world.entropy(), "cluster-api patience"),
            later: Chance::new(world.entropy(), "cluster-api later unrest"),
            namespace: namespace.to_owned(),
            cluster: cluster.to_owned(),
        }
    }

    /// Does things for this long, one after another: about half of the kinds there are.
    pub async fn reign(&mut self, period: Duration) {
        let mut acts: Vec<Act> = Act::ALL.into_iter().filter(|_| self.chance.happens(0.5)).collect();
        acts.extend(Act::MORE.into_iter().filter(|_| self.later.happens(0.3)));
        let end = tokio::time::Instant::now() + period;
        while tokio::time::Instant::now() < end {
            sleep(self.chance.duration(&Span::secs(5, 90))).await;
            let Some(act) = self.chance.pick(&acts).copied() else { return };
            self.note(act);
            if let Err(error) = self.act(act).await {
                // Somebody else was first: what was to be changed is gone or was changed.
                tracing::debug!(?act, %error, "came to nothing");
            }
        }
    }

    fn note(&self, act: Act) {
        let deed = format!("somebody: {act:?}");
        self.capi.cluster().record(&"user".into(), deed, "done".to_owned(), &[]);
    }

    async fn act(&mut self, act: Act) -> Result<(), kube::Error> {
        let set = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
        let paused = "cluster.x-k8s.io/paused";
        match act {
            Act::PauseCluster => {
                let change = |paused: bool| json!({"spec": {"paused": paused}});
                let (hold, free) = match self.chance.happens(0.5) {
                    true => (change(true), change(false)),
                    false => (set(paused, "".into()), set(paused, Value::Null)),
                };
                self.hold_up(Kind::Cluster, &self.cluster.clone(), hold, free).await
            }
            Act::PauseMachineSet => {
                let Some(name) = self.machine_set() else { return Ok(()) };
                let (hold, free) = (set(paused, "".into()), set(paused, Value::Null));
                self.hold_up(Kind::MachineSet, &name, hold, free).await
            }
            Act::UpgradeControlPlane => {
                let (hold, free) = (set(UPGRADING, "the control plane".into()), set(UPGRADING, Value::Null));
                self.hold_up(Kind::Cluster, &self.cluster.clone(), hold, free).await
            }
            Act::PauseDeployment => {
                let Some((kind, name)) = self.scalable() else { return Ok(()) };
                let (hold, free) = (set(paused, "".into()), set(paused, Value::Null));
                self.hold_up(kind, &name, hold, free).await
            }
            Act::PauseRollout => {
                let Some(name) = self.deployment() else { return Ok(()) };
                let change = |paused: bool| json!({"spec": {"paused": paused}});
                self.hold_up(Kind::MachineDeployment, &name, change(true), change(false)).await
            }
            Act::RemoveMemberLabel => {
                let Some((kind, name)) = self.scalable() else { return Ok(()) };
                let label = |value: Value| json!({"metadata": {"labels": {MEMBER: value}}});
                self.for_a_while(kind, &name, label(Value::Null), label("".into())).await
            }
            Act::ScaleWithoutMemberLabel => {
                let Some((kind, name)) = self.scalable() else { return Ok(()) };
                let label = |value: Value| json!({"metadata": {"labels": {MEMBER: value}}});
                self.patch(kind, &name, label(Value::Null)).await?;
                self.wait().await;
                let replicas = json!({"spec": {"replicas": self.chance.below(4)}});
                self.patch(kind, &name, replicas).await?;
                self.wait().await;
                self.patch(kind, &name, label("".into())).await
            }
            Act::SpoilAnnotation => {
                let Some((kind, name)) = self.scalable() else { return Ok(()) };
                let (bad, good) = (set(CPU, "sixteen".into()), set(CPU, "4".into()));
                self.for_a_while(kind, &name, bad, good).await
            }
            Act::HookMachine => {
                let Some(name) = self.machine() else { return Ok(()) };
                let hook = self.chance.pick(&HOOKS).copied().unwrap_or_default();
                let (hook, free) = (set(hook, "".into()), set(hook, Value::Null));
                self.for_a_while(Kind::Machine, &name, hook, free).await
            }
            Act::StickInfrastructure => {
                let leaving = self.leaving_machine();
                let Some(name) = leaving.or_else(|| self.machine()) else { return Ok(()) };
                let (stuck, free) = (set(STUCK, "".into()), set(STUCK, Value::Null));
                self.for_a_while(Kind::SimMachine, &name, stuck, free).await
            }
            Act::ForbidEvictions => self.forbid_evictions().await,
            Act::StopServingTheOldVersion => self.capi.serve(&["v1beta2"]).await,
            Act::StopMachineSets => {
                self.capi.run_machine_sets(false);
                self.wait_or_longer().await;
                self.capi.run_machine_sets(true);
                Ok(())
            }
            Act::StopControllers => {
                self.capi.run_controllers(false);
                self.wait_or_longer().await;
                self.capi.run_controllers(true);
                Ok(())
            }
            Act::CutOffHub => {
                self.hub.cut_off(self.chance.duration(&Span::secs(30, 420)));
                Ok(())
            }
            Act::RefuseKarpenter => {
                let refusals = [Refusal::Unauthorized, Refusal::Forbidden];
                let refusal = self.chance.pick(&refusals).copied().unwrap_or(Refusal::Forbidden);
                self.hub.refuse(refusal, self.chance.duration(&Span::secs(30, 420)));
                Ok(())
            }
            Act::RefuseCreation => {
                let kind = self.chance.pick(&[Kind::Machine, Kind::SimMachine]).copied();
                self.capi.refuse_creation_of(kind);
                self.wait_or_longer().await;
                self.capi.refuse_creation_of(None);
                Ok(())
            }
            Act::ChangeAdoption => self.change_adoption().await,
            Act::UpdateInPlace => self.update_in_place().await,
            Act::OwnReplicas => self.own_replicas().await,
            Act::RotateTemplate => self.rotate_template().await,
            Act::RollOut => {
                let Some(name) = self.deployment() else { return Ok(()) };
                let version = format!("v1.36.{}", self.chance.between(1, 30));
                if self.topology().is_some() {
                    let change = json!({"spec": {"topology": {"version": version}}});
                    return self.patch(Kind::Cluster, &self.cluster, change).await;
                }
                let change = json!({"spec": {"template": {"spec": {"version": version}}}});
                self.patch(Kind::MachineDeployment, &name, change).await
            }
            Act::SetReplicas => {
                let Some((kind, name)) = self.scalable() else { return Ok(()) };
                // As a tool does that applies what is in its repository.
                let replicas = self.chance.below(3);
                for _ in 0..self.chance.between(1, 3) {
                    let change = json!({"spec": {"replicas": replicas}});
                    self.patch(kind, &name, change).await?;
                    sleep(self.chance.duration(&Span::secs(20, 180))).await;
                }
                Ok(())
            }
            Act::DeleteMachine => {
                let Some(name) = self.machine() else { return Ok(()) };
                self.delete(Kind::Machine, &name).await
            }
            Act::DeleteInfrastructure => {
                let Some(name) = self.machine() else { return Ok(()) };
                self.delete(Kind::SimMachine, &name).await
            }
            Act::DeleteDeployment => self.delete_scalable().await,
            Act::RemoveTemplate => self.remove_template().await,
            Act::CondemnMachines => self.condemn().await,
            Act::CopyElsewhere => self.copy_elsewhere().await,
            Act::Move => self.move_everything().await,
            Act::MarkMachine => self.mark_machine().await,
            Act::AnnounceEnd => self.announce_end().await,
            Act::BreakNode => self.break_node().await,
            Act::HideCapacity => self.hide_capacity().await,
        }
    }

    async fn for_a_while(
        &mut self,
        kind: Kind,
        name: &str,
        change: Value,
        back: Value,
    ) -> Result<(), kube::Error> {
        self.patch(kind, name, change).await?;
        self.wait().await;
        self.patch(kind, name, back).await
    }

    async fn wait(&mut self) {
        sleep(self.chance.duration(&Span::secs(5, 240))).await;
    }

    /// As [`wait`](Self::wait); some upgrades and pauses outlast several launches.
    async fn wait_or_longer(&mut self) {
        let short = self.chance.duration(&Span::secs(5, 240));
        if !self.patience.happens(LONG) {
            return sleep(short).await;
        }
        let long = self.patience.duration(&Span::secs(600, 1800));
        let deed = format!("somebody: takes {} minutes", long.as_secs() / 60);
        self.capi.cluster().record(&"user".into(), deed, "done".to_owned(), &[]);
        sleep(long).await;
    }

    /// As [`for_a_while`](Self::for_a_while), for what holds up creation.
    async fn hold_up(
        &mut self,
        kind: Kind,
        name: &str,
        change: Value,
        back: Value,
    ) -> Result<(), kube::Error> {
        self.patch(kind, name, change).await?;
        self.wait_or_longer().await;
        self.patch(kind, name, back).await
    }

    async fn patch(&self, kind: Kind, name: &str, change: Value) -> Result<(), kube::Error> {
        let api = kind.api(&self.client, &self.namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.map(drop)
    }

    async fn delete(&self, kind: Kind, name: &str) -> Result<(), kube::Error> {
        kind.api(&self.client, &self.namespace).delete(name, &DeleteParams::background()).await.map(drop)
    }

    fn deployment(&mut self) -> Option<String> {
        let names: Vec<String> = self.capi.cluster().read(|objects| {
            let ours = objects.machine_deployments.keys().filter(|key| *key.namespace == *self.namespace);
            ours.map(|key| key.name.to_string()).collect()
        });
        self.chance.pick(&names).cloned()
    }

    /// A MachineDeployment, or a MachineSet that belongs to none.
    fn scalable(&mut self) -> Option<(Kind, String)> {
        let found: Vec<(Kind, String)> = self.capi.cluster().read(|objects| {
            let deployments = objects.machine_deployments.keys().map(|key| (Kind::MachineDeployment, key));
            let sets = objects.machine_sets.iter().filter(|(_, set)| is_standalone(set));
            let all = deployments.chain(sets.map(|(key, _)| (Kind::MachineSet, key)));
            let ours = all.filter(|(_, key)| *key.namespace == *self.namespace);
            ours.map(|(kind, key)| (kind, key.name.to_string())).collect()
        });
        self.chance.pick(&found).cloned()
    }

    /// A MachineSet, of a MachineDeployment or of none.
    fn machine_set(&mut self) -> Option<String> {
        let names: Vec<String> = self.capi.cluster().read(|objects| {
            let ours = objects.machine_sets.keys().filter(|key| *key.namespace == *self.namespace);
            ours.map(|key| key.name.to_string()).collect()
        });
        self.chance.pick(&names).cloned()
    }

    fn machine(&mut self) -> Option<String> {
        self.machine_that(|machine| !is_deleting(machine))
    }

    /// A Machine that is on its way out.
    fn leaving_machine(&mut self) -> Option<String> {
        self.machine_that(is_deleting)
    }

    fn machine_that(&mut self, suits: fn(&DynamicObject) -> bool) -> Option<String> {
        let names: Vec<String> = self.capi.cluster().read(|objects| {
            let ours = objects
                .machines
                .iter()
                .filter(|(key, machine)| *key.namespace == *self.namespace && suits(machine));
            ours.map(|(key, _)| key.name.to_string()).collect()
        });
        self.chance.pick(&names).cloned()
    }

    /// No pod of a workload may be evicted for a while: its budget allows none, or it gets one that does not.
    async fn forbid_evictions(&mut self) -> Result<(), kube::Error> {
        let apps: BTreeSet<String> = self.capi.cluster().read(|objects| {
            let pods = objects.pods.keys().zip(objects.pods.values());
            let users = pods.filter(|(key, _)| &*key.namespace == "default");
            users.filter_map(|(_, pod)| pod.metadata.labels.as_ref()?.get("app").cloned()).collect()
        });
        let apps: Vec<String> = apps.into_iter().collect();
        let Some(app) = self.chance.pick(&apps).cloned() else { return Ok(()) };
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), "default");
        let before = budgets.get_opt(&app).await?;
        let none = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app},
            "spec": {"maxUnavailable": 0, "minAvailable": null, "selector": {"matchLabels": {"app": app}}},
        });
        let params = PatchParams::default();
        match &before {
            Some(_) => budgets.patch(&app, &params, &Patch::Merge(&none)).await.map(drop)?,
            None => {
                let budget = serde_json::from_value(none).map_err(kube::Error::SerdeError)?;
                budgets.create(&PostParams::default(), &budget).await.map(drop)?;
            }
        }
        sleep(self.chance.duration(&Span::secs(60, 600))).await;
        match before.and_then(|before| before.spec) {
            Some(spec) => {
                let back = json!({"spec": {
                    "maxUnavailable": spec.max_unavailable, "minAvailable": spec.min_available,
                }});
                budgets.patch(&app, &params, &Patch::Merge(back)).await.map(drop)
            }
            None => budgets.delete(&app, &DeleteParams::default()).await.map(drop),
        }
    }

    /// Has the NodeClass adopt otherwise for a while.
    async fn change_adoption(&mut self) -> Result<(), kube::Error> {
        let kind = GroupVersionKind::gvk("karpenter.cluster.x-k8s.io", "v1alpha1", "ClusterAPINodeClass");
        let classes: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        let Some(class) = classes.list(&ListParams::default()).await?.items.into_iter().next() else {
            return Ok(());
        };
        let name = class.metadata.name.clone().unwrap_or_default();
        let before = class.data.pointer("/spec/adoption").cloned().unwrap_or_default();
        let other = self.chance.pick(&["Never", "Unclaimed", "Existing"]).copied().unwrap_or_default();
        let adopt = |how: Value| Patch::Merge(json!({"spec": {"adoption": how}}));
        classes.patch(&name, &PatchParams::default(), &adopt(other.into())).await?;
        self.wait().await;
        classes.patch(&name, &PatchParams::default(), &adopt(before)).await.map(drop)
    }

    /// What the Cluster's topology says of its MachineDeployments, if it has one.
    fn topology(&self) -> Option<Vec<Value>> {
        let key = ObjectKey::namespaced(self.namespace.as_str(), self.cluster.as_str());
        self.capi.cluster().read(|objects| {
            let workers = objects.capi_clusters.get(&key)?.data.pointer("/spec/topology/workers")?;
            workers["machineDeployments"].as_array().cloned()
        })
    }

    /// Has the topology set the replicas of one of its MachineDeployments for a while.
    async fn own_replicas(&mut self) -> Result<(), kube::Error> {
        let Some(before) = self.topology() else { return Ok(()) };
        let mut owned = before.clone();
        let which = self.chance.below(owned.len() as u64);
        if let Some(said) = usize::try_from(which).ok().and_then(|which| owned.get_mut(which)) {
            said["replicas"] = self.chance.below(4).into();
        }
        let say = |said: Vec<Value>| json!({"spec": {"topology": {"workers": {"machineDeployments": said}}}});
        self.for_a_while(Kind::Cluster, &self.cluster.clone(), say(owned), say(before)).await
    }

    /// Has a MachineDeployment refer to a copy of its template, as templates are changed.
    async fn rotate_template(&mut self) -> Result<(), kube::Error> {
        let Some(name) = self.deployment() else { return Ok(()) };
        let deployment = Kind::MachineDeployment.api(&self.client, &self.namespace).get(&name).await?;
        let from = text(&deployment, "/spec/template/spec/infrastructureRef/name");
        let template = Kind::SimMachineTemplate.api(&self.client, &self.namespace).get(from).await?;
        let mut copy = as_applied(&template);
        let to = format!("{name}-{}", self.chance.between(1, 99));
        copy["metadata"]["name"] = to.clone().into();
        create(&self.client, Kind::SimMachineTemplate, copy).await?;
        let change = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": to}}}}});
        self.patch(Kind::MachineDeployment, &name, change).await
    }

    /// Cluster API changes a Machine without replacing it, which shows for as long as it takes.
    async fn update_in_place(&mut self) -> Result<(), kube::Error> {
        let Some(name) = self.machine() else { return Ok(()) };
        let mark = |value: Value| json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: value}}});
        let api = Kind::Machine.api(&self.client, &self.namespace);
        for (updating, value) in [(true, "".into()), (false, Value::Null)] {
            self.patch(Kind::Machine, &name, mark(value)).await?;
            let reason = if updating { "InPlaceUpdating" } else { "NotUpdating" };
            let machine = api.get(&name).await?;
            let conditions = with_conditions(&machine, &[("Updating", updating, reason, "")]);
            let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
            api.patch_status(&name, &PatchParams::default(), &status).await?;
            if updating {
                self.wait().await;
            }
        }
        Ok(())
    }

    /// Deletes a MachineDeployment or MachineSet with all its Machines, and makes it anew a while later.
    async fn delete_scalable(&mut self) -> Result<(), kube::Error> {
        let Some((kind, name)) = self.scalable() else { return Ok(()) };
        let api = kind.api(&self.client, &self.namespace);
        let found = api.get(&name).await?;
        self.delete(kind, &name).await?;
        loop {
            self.wait().await;
            if api.get_opt(&name).await?.is_none() {
                break;
            }
        }
        create(&self.client, kind, as_applied(&found)).await
    }

    async fn remove_template(&mut self) -> Result<(), kube::Error> {
        let templates: Vec<_> =
            self.capi.cluster().read(|objects| objects.sim_machine_templates.values().cloned().collect());
        let Some(template) = self.chance.pick(&templates).cloned() else { return Ok(()) };
        self.delete(Kind::SimMachineTemplate, template.metadata.name.as_deref().unwrap_or_default()).await?;
        self.wait_or_longer().await;
        create(&self.client, Kind::SimMachineTemplate, as_applied(&template)).await
    }

    /// A health check that takes offence at healthy Machines.
    async fn condemn(&mut self) -> Result<(), kube::Error> {
        for _ in 0..self.chance.between(1, 3) {
            let Some(name) = self.machine() else { return Ok(()) };
            let api = Kind::Machine.api(&self.client, &self.namespace);
            let machine = api.get(&name).await?;
            let conditions = with_conditions(
                &machine,
                &[
                    ("HealthCheckSucceeded", false, "UnhealthyNode", "so it is said"),
                    ("OwnerRemediated", false, "WaitingForRemediation", ""),
                ],
            );
            let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
            api.patch_status(&name, &PatchParams::default(), &status).await?;
        }
        Ok(())
    }

    /// Has a Machine, or its Node, say that it will be taken away. That ends with the Machine, or was a mistake.
    async fn announce_end(&mut self) -> Result<(), kube::Error> {
        if self.chance.happens(0.5) {
            return self.say_of_a_node(TO_BE_TAKEN).await;
        }
        let Some(name) = self.machine() else { return Ok(()) };
        let api = Kind::Machine.api(&self.client, &self.namespace);
        for announced in [true, false] {
            let machine = api.get(&name).await?;
            let conditions =
                with_conditions(&machine, &[(TO_BE_TAKEN, announced, "Notice", "in two minutes")]);
            let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
            api.patch_status(&name, &PatchParams::default(), &status).await?;
            if announced {
                self.wait().await;
            }
        }
        Ok(())
    }

    /// Has a Node say that it is broken, for long enough that it is repaired, or not.
    async fn break_node(&mut self) -> Result<(), kube::Error> {
        self.say_of_a_node(BROKEN).await
    }

    async fn say_of_a_node(&mut self, what: &str) -> Result<(), kube::Error> {
        let names: Vec<String> = self
            .capi
            .cluster()
            .read(|objects| objects.nodes.keys().map(|key| key.name.to_string()).collect());
        let Some(name) = self.chance.pick(&names).cloned() else { return Ok(()) };
        let nodes: Api<Node> = Api::all(self.client.clone());
        for status in ["True", "False"] {
            let condition = json!({
                "type": what, "status": status, "reason": "Said", "message": "so it is said",
                "lastTransitionTime": self.capi.cluster().now().to_string(),
            });
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            nodes.patch_status(&name, &PatchParams::default(), &patch).await?;
            if status == "True" {
                self.wait().await;
            }
        }
        Ok(())
    }

    /// Has a template not say for a while what its machines have.
    async fn hide_capacity(&mut self) -> Result<(), kube::Error> {
        let tells = |template: &&std::sync::Arc<DynamicObject>| {
            template.data.pointer("/spec/template/spec/tellsCapacity") == Some(&Value::Bool(true))
        };
        let names: Vec<String> = self.capi.cluster().read(|objects| {
            let telling = objects.sim_machine_templates.values().filter(tells);
            telling.filter_map(|template| template.metadata.name.clone()).collect()
        });
        let Some(name) = self.chance.pick(&names).cloned() else { return Ok(()) };
        let tells = |tells: bool| json!({"spec": {"template": {"spec": {"tellsCapacity": tells}}}});
        self.patch(Kind::SimMachineTemplate, &name, tells(false)).await?;
        let nothing = Patch::Merge(json!({"status": {"capacity": null}}));
        let api = Kind::SimMachineTemplate.api(&self.client, &self.namespace);
        api.patch_status(&name, &PatchParams::default(), &nothing).await?;
        self.wait().await;
        self.patch(Kind::SimMachineTemplate, &name, tells(true)).await
    }

    /// Marks a Machine that is not marked for deletion, as tools do that mean to scale and do not; and takes the mark off, if it still is
    /// theirs.
    async fn mark_machine(&mut self) -> Result<(), kube::Error> {
        let Some(name) =
            self.machine_that(|machine| !is_deleting(machine) && annotation(machine, MARK).is_none())
        else {
            return Ok(());
        };
        let change = |by: Value| json!({"metadata": {"annotations": {MARK: by}}});
        self.patch(Kind::Machine, &name, change("by hand".into())).await?;
        self.wait().await;
        let machine = Kind::Machine.api(&self.client, &self.namespace).get(&name).await?;
        if annotation(&machine, MARK) != Some("by hand") {
            return Ok(());
        }
        let mut back = change(Value::Null);
        back["metadata"]["resourceVersion"] = machine.metadata.resource_version.into();
        self.patch(Kind::Machine, &name, back).await
    }

    /// A Machine of the same name and id in a Cluster of the same name in another namespace.
    async fn copy_elsewhere(&mut self) -> Result<(), kube::Error> {
        let Some(name) = self.machine() else { return Ok(()) };
        let elsewhere = format!("{}-2", self.namespace);
        let mut cluster = super::cluster(&elsewhere, &self.cluster);
        cluster["spec"]["paused"] = true.into();
        create(&self.client, Kind::Cluster, cluster).await?;
        let found = Kind::Machine.api(&self.client, &self.namespace).get(&name).await?;
        let mut copy = as_applied(&found);
        copy["metadata"]["namespace"] = elsewhere.into();
        create(&self.client, Kind::Machine, copy).await
    }

    /// Moves the Cluster to another management cluster, as far as its objects show it: paused, made anew, set free.
    ///
    /// # Errors
    ///
    /// If the server refuses something.
    pub async fn move_everything(&mut self) -> Result<(), kube::Error> {
        let name = self.cluster.clone();
        self.patch(Kind::Cluster, &name, json!({"spec": {"paused": true}})).await?;
        // Who is at work finishes.
        sleep(Duration::from_secs(10)).await;
        let moved = moving::make_anew(self.capi.cluster(), &self.client, &self.namespace).await;
        // A Cluster is let go on once the watches of controllers have caught up with what was made, however far they lag.
        sleep(self.chance.duration(&Span::secs(1, 120)).max(Duration::from_secs(5))).await;
        self.patch(Kind::Cluster, &name, json!({"spec": {"paused": false}})).await?;
        moved
    }
}

/// An object as somebody would apply it again: without what the server, its controllers and Karpenter added.
fn as_applied(object: &DynamicObject) -> Value {
    let mut copy = serde_json::to_value(object).unwrap_or_default();
    if let Some(copy) = copy.as_object_mut() {
        copy.remove("status");
    }
    let annotations: serde_json::Map<String, Value> = object
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| {
            let own = ["/price", "/instance-type", "/capacity-type"].iter().any(|end| key.ends_with(end));
            own || !(key.starts_with("karpenter.cluster.x-k8s.io/") || key.contains("revision"))
        })
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    if let Some(metadata) = copy.get_mut("metadata").and_then(Value::as_object_mut) {
        for given in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "managedFields",
            "finalizers",
            "ownerReferences",
        ] {
            metadata.remove(given);
        }
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    // Replicas are Karpenter's from here on.
    if let Some(spec) = copy.get_mut("spec").filter(|spec| spec.get("replicas").is_some()) {
        spec["replicas"] = 0.into();
    }
    copy
}
