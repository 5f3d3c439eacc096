//! MachineDeployments: a MachineSet per revision of the template, and the two ways from one to the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Switches;
use super::informers::{Informers, UNSEEN_AGAIN, Unseen};
use super::kinds::{
    Kind, annotation, condition, controller_of, create, delete, is_paused, keep, label, number, owned_by,
    patch, patch_status, text, with_conditions,
};
use crate::actor::{Actor, Agenda, Source as _};
use crate::objects::{Change, Objects, is_deleting, uid};

const FINALIZER: &str = "cluster.x-k8s.io/machinedeployment";
const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
const DISABLE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";
/// Cluster API reconciles each object at most once a second.
pub(super) const RATE: Duration = Duration::from_secs(1);

/// Keeps a controller to one look at an object per [`RATE`].
#[derive(Default)]
pub(super) struct Pace(BTreeMap<ObjectKey, Instant>);

impl Pace {
    /// How long to wait yet; if it is time, the object counts as looked at.
    pub(super) fn too_soon(&mut self, key: &ObjectKey) -> Option<Duration> {
        let rest = self.0.get(key).and_then(|last| RATE.checked_sub(last.elapsed()));
        if let Some(rest) = rest.filter(|rest| !rest.is_zero()) {
            return Some(rest);
        }
        self.0.insert(key.clone(), Instant::now());
        None
    }
}

/// The controller.
pub(super) struct Deployments {
    informers: Informers,
    client: kube::Client,
    switches: Switches,
    pace: Pace,
    unseen: Unseen,
}

/// A MachineSet with what counts.
struct Set {
    object: Arc<DynamicObject>,
    replicas: i64,
    /// Machines, those that are being deleted included.
    there: i64,
    live: i64,
    available: i64,
}

impl Deployments {
    pub(super) fn new(informers: &Informers, switches: Switches) -> Self {
        Self {
            informers: informers.clone(),
            client: informers.truth().client(Self::NAME),
            switches,
            pace: Pace::default(),
            unseen: Unseen::default(),
        }
    }

    async fn reconcile(&mut self, deployment: &DynamicObject) -> Result<(), kube::Error> {
        let key = ObjectKey::of(deployment);
        let template = deployment.data.pointer("/spec/template").cloned().unwrap_or_default();
        let mut sets = self.informers.read(|objects| sets_of(objects, deployment));
        // Oldest first.
        sets.sort_by_key(|set| (revision(&set.object), set.object.metadata.name.clone()));
        let current = sets.iter().position(|set| same_template(&set.object, &template));
        let Some(current) = current else {
            if self.template_exists(deployment) {
                self.create_set(deployment, &template, sets.last().map_or(0, |set| revision(&set.object)))
                    .await?;
            }
            return Ok(());
        };
        let new = sets.remove(current);
        if let Some(change) = in_place(deployment, &new.object) {
            self.patch_set(&new.object, change).await?;
        }
        let replicas = number(deployment, "/spec/replicas");
        let on_delete = text(deployment, "/spec/rollout/strategy/type") == "OnDelete";
        let paused = deployment.data.pointer("/spec/paused") == Some(&Value::Bool(true));
        let rolling = sets.iter().any(|set| set.replicas > 0 || set.live > 0);
        let sizes: Vec<i64> = sets.iter().chain([&new]).map(|set| set.replicas).collect();
        if paused && rolling && !on_delete && sizes.iter().filter(|size| **size > 0).count() > 1 {
            // A paused rollout still scales, all its MachineSets alike.
            let shares = in_proportion(&sizes, replicas, bounds(deployment).0);
            for (set, share) in sets.iter().chain([&new]).zip(shares) {
                self.scale(set, share).await?;
            }
        } else if !rolling || paused {
            // With one MachineSet there is nothing to divide.
            self.scale(&new, replicas - sets.iter().map(|set| set.replicas).sum::<i64>()).await?;
        } else if on_delete {
            self.on_delete(&new, &sets, replicas).await?;
        } else {
            self.rolling_update(&new, &sets, replicas, bounds(deployment)).await?;
        }
        let total: i64 = new.live + sets.iter().map(|set| set.live).sum::<i64>();
        let status = json!({
            "replicas": total,
            "selector": format!("cluster.x-k8s.io/deployment-name={}", key.name),
            "conditions": with_conditions(deployment, &[
                ("RollingOut", rolling, if rolling { "RollingOut" } else { "NotRollingOut" }, ""),
            ]),
        });
        patch_status(&self.client, Kind::MachineDeployment, deployment, status).await
    }

    /// Its MachineSets go first, and with them their Machines.
    async fn take_down(&mut self, deployment: &DynamicObject) -> Result<(), kube::Error> {
        let sets: Vec<Arc<DynamicObject>> = self.informers.read(|objects| {
            let owned = objects.machine_sets.values();
            owned
                .filter(|set| controller_of(set, Kind::MachineDeployment) == Some(uid(deployment)))
                .cloned()
                .collect()
        });
        if sets.is_empty() {
            let free = json!({"metadata": {"finalizers": null}});
            return patch(&self.client, Kind::MachineDeployment, &ObjectKey::of(deployment), free).await;
        }
        for set in sets.iter().filter(|set| !is_deleting(&***set)) {
            delete(&self.client, Kind::MachineSet, set).await?;
        }
        Ok(())
    }

    fn template_exists(&self, deployment: &DynamicObject) -> bool {
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        let name = text(deployment, "/spec/template/spec/infrastructureRef/name");
        let key = ObjectKey::namespaced(namespace, name);
        self.informers.read(|objects| objects.sim_machine_templates.contains_key(&key))
    }

    async fn create_set(
        &mut self,
        deployment: &DynamicObject,
        template: &Value,
        last: i64,
    ) -> Result<(), kube::Error> {
        let key = ObjectKey::of(deployment);
        let name = format!("{}-{:05}", key.name, last + 1);
        let mut template = template.clone();
        let labels = json!({
            "cluster.x-k8s.io/deployment-name": &*key.name,
            "cluster.x-k8s.io/cluster-name": text(deployment, "/spec/clusterName"),
            "machine-template-hash": name,
        });
        merge(&mut template["metadata"]["labels"], &labels);
        // Every annotation of the MachineDeployment is copied.
        let mut annotations = json!(deployment.metadata.annotations.clone().unwrap_or_default());
        annotations[REVISION] = (last + 1).to_string().into();
        let set = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
            "metadata": {
                "name": name, "namespace": &*key.namespace, "labels": labels, "annotations": annotations,
                "ownerReferences": [owned_by(Kind::MachineDeployment, deployment)],
            },
            "spec": {
                "clusterName": text(deployment, "/spec/clusterName"), "replicas": 0, "template": template,
                "selector": {"matchLabels": {"machine-template-hash": name}},
                "deletion": deployment.data.pointer("/spec/deletion").cloned().unwrap_or_default(),
            },
        });
        create(&self.client, Kind::MachineSet, set).await?;
        let made = ObjectKey::namespaced(key.namespace.clone(), name.as_str());
        self.unseen.expect(&self.informers, &key, Kind::MachineSet, made);
        let revision = json!({"metadata": {"annotations": {REVISION: (last + 1).to_string()}}});
        patch(&self.client, Kind::MachineDeployment, &key, revision).await
    }

    async fn scale(&mut self, set: &Set, replicas: i64) -> Result<(), kube::Error> {
        let replicas = replicas.max(0);
        if replicas == set.replicas {
            return Ok(());
        }
        self.patch_set(&set.object, json!({"spec": {"replicas": replicas}})).await
    }

    async fn patch_set(&mut self, set: &DynamicObject, change: Value) -> Result<(), kube::Error> {
        let key = ObjectKey::of(set);
        patch(&self.client, Kind::MachineSet, &key, change).await?;
        let owner = label(set, "cluster.x-k8s.io/deployment-name");
        let owner = ObjectKey::namespaced(key.namespace.clone(), owner);
        self.unseen.expect(&self.informers, &owner, Kind::MachineSet, key);
        Ok(())
    }

    /// No more than the surge above what is wanted, and no fewer available than may be missing; the oldest MachineSet shrinks first,
    /// its unavailable Machines before the others.
    async fn rolling_update(
        &mut self,
        new: &Set,
        old: &[Set],
        replicas: i64,
        (max_surge, max_unavailable): (i64, i64),
    ) -> Result<(), kube::Error> {
        let least = replicas - max_unavailable;
        // For growing, Machines on their way out count until they are gone.
        let total: i64 = old.iter().chain([new]).map(|set| set.replicas.max(set.there)).sum();
        let mut wanted = new.replicas.min(replicas);
        if new.replicas < replicas {
            wanted = new.replicas + (replicas + max_surge - total).clamp(0, replicas - new.replicas);
        }
        self.scale(new, wanted).await?;
        let new_unavailable = wanted - new.available;
        let old_replicas: i64 = old.iter().map(|set| set.replicas).sum();
        let mut room = old_replicas + wanted - least - new_unavailable.max(0);
        let available: i64 = new.available + old.iter().map(|set| set.available).sum::<i64>();
        let mut spare = available - least;
        for set in old {
            let unavailable = (set.replicas - set.available).clamp(0, room.max(0));
            let less = (unavailable + spare.clamp(0, (room - unavailable).max(0))).min(set.replicas);
            spare -= (less - unavailable).max(0);
            room -= less;
            self.scale(set, set.replicas - less).await?;
        }
        Ok(())
    }

    /// Old MachineSets only follow what is deleted, and the new one fills up; of what is too much nevertheless the oldest gives first.
    async fn on_delete(&mut self, new: &Set, old: &[Set], replicas: i64) -> Result<(), kube::Error> {
        let all = || old.iter().chain([new]);
        let sum: i64 = all().map(|set| set.replicas.max(set.there)).sum();
        let wanted = if new.replicas > replicas { replicas } else { new.replicas + (replicas - sum).max(0) };
        self.scale(new, wanted).await?;
        let mut excess = wanted + old.iter().map(|set| set.replicas).sum::<i64>() - replicas;
        excess -= old.iter().map(|set| (set.replicas - set.there).max(0)).sum::<i64>();
        for set in old {
            if annotation(&set.object, DISABLE_CREATE).is_none() {
                let disable = json!({"metadata": {"annotations": {DISABLE_CREATE: "true"}}});
                self.patch_set(&set.object, disable).await?;
            }
            let aligned = set.replicas.min(set.there);
            let less = excess.clamp(0, aligned);
            excess -= less;
            self.scale(set, aligned - less).await?;
        }
        Ok(())
    }
}

/// How many more Machines than wanted there may be during a rollout, and how many fewer: one and none unless it says so.
pub(super) fn bounds(deployment: &DynamicObject) -> (i64, i64) {
    let read = |field: &str| {
        let pointer = format!("/spec/rollout/strategy/rollingUpdate/{field}");
        deployment.data.pointer(&pointer).and_then(Value::as_i64)
    };
    (read("maxSurge").unwrap_or(1), read("maxUnavailable").unwrap_or(0))
}

/// How MachineSets, oldest first, share this many replicas: each grows or shrinks by its part of what there is, and what is left over is
/// for the largest.
fn in_proportion(sizes: &[i64], replicas: i64, max_surge: i64) -> Vec<i64> {
    let total: i64 = sizes.iter().sum();
    let change = if replicas > 0 { replicas + max_surge - total } else { -total };
    let mut order: Vec<usize> = (0..sizes.len()).filter(|at| sizes[*at] > 0).collect();
    // The largest first; of equals the newer when there is something to give, the older when there is something to take.
    order.sort_by_key(|at| {
        let age = if change > 0 { sizes.len() - at } else { *at };
        (std::cmp::Reverse(sizes[*at]), age)
    });
    let (mut shares, mut left) = (sizes.to_vec(), change);
    for at in &order {
        // Rounded, halves away from nothing.
        let part = (2 * sizes[*at] * change + total * change.signum()) / (2 * total.max(1));
        let part = part.clamp(left.min(0), left.max(0));
        shares[*at] += part;
        left -= part;
    }
    if let Some(first) = order.first() {
        shares[*first] = (shares[*first] + left).max(0);
    }
    shares
}

fn sets_of(objects: &Objects, deployment: &DynamicObject) -> Vec<Set> {
    let owned = objects.machine_sets.values().filter(|set| {
        controller_of(set, Kind::MachineDeployment) == Some(uid(deployment)) && !is_deleting(&***set)
    });
    let count = |set: &DynamicObject, counts: fn(&DynamicObject) -> bool| {
        let machines =
            objects.machines.values().filter(|m| controller_of(m, Kind::MachineSet) == Some(uid(set)));
        i64::try_from(machines.filter(|machine| counts(machine)).count()).unwrap_or(i64::MAX)
    };
    let set = |set: &Arc<DynamicObject>| Set {
        replicas: number(set, "/spec/replicas"),
        there: count(set, |_| true),
        live: count(set, |machine| !is_deleting(machine)),
        available: count(set, |machine| !is_deleting(machine) && condition(machine, "Available") == "True"),
        object: Arc::clone(set),
    };
    owned.map(set).collect()
}

fn revision(set: &DynamicObject) -> i64 {
    annotation(set, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Labels and annotations of the template change in place; these fields decide whether a Machine is another one.
fn same_template(set: &DynamicObject, template: &Value) -> bool {
    let ours = set.data.pointer("/spec/template/spec").cloned().unwrap_or_default();
    let theirs = template.get("spec").cloned().unwrap_or_default();
    ["version", "bootstrap", "infrastructureRef", "failureDomain"]
        .iter()
        .all(|field| ours[*field] == theirs[*field])
}

/// What a MachineDeployment writes on its newest MachineSet whenever it looks: its annotations, and what of its template makes no other
/// Machines. `None` if all is as it is to be.
fn in_place(deployment: &DynamicObject, set: &DynamicObject) -> Option<Value> {
    let mut change = json!({});
    for (key, value) in deployment.metadata.annotations.iter().flatten().filter(|(key, _)| *key != REVISION) {
        if annotation(set, key) != Some(value) {
            change["metadata"]["annotations"][key] = value.as_str().into();
        }
    }
    for map in ["metadata/labels", "metadata/annotations", "spec/deletion"] {
        let (part, field) = map.split_once('/').unwrap_or_default();
        let at = |object: &DynamicObject| object.data.pointer(&format!("/spec/template/{map}")).cloned();
        let there = at(set).unwrap_or_default();
        for (key, value) in at(deployment).unwrap_or_default().as_object().into_iter().flatten() {
            if there.get(key) != Some(value) {
                change["spec"]["template"][part][field][key] = value.clone();
            }
        }
    }
    change.as_object().is_some_and(|change| !change.is_empty()).then_some(change)
}

pub(super) fn merge(target: &mut Value, from: &Value) {
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in from.as_object().into_iter().flatten() {
        target[key] = value.clone();
    }
}

impl Actor for Deployments {
    type Key = ObjectKey;
    const NAME: &'static str = "machinedeployment-controller";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::MachineDeployment(edit) => agenda.now(edit.key.clone()),
            Change::MachineSet(edit) | Change::Machine(edit) => {
                let Some(object) = edit.either() else { return };
                let name = label(object, "cluster.x-k8s.io/deployment-name");
                if !name.is_empty() {
                    agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), name));
                }
            }
            Change::CapiCluster(_) | Change::SimMachineTemplate(_) => {
                for key in objects.machine_deployments.keys() {
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
        if self.unseen.is_awaited(&self.informers, key) {
            agenda.after(key.clone(), UNSEEN_AGAIN);
            return Ok(());
        }
        if let Some(rest) = self.pace.too_soon(key) {
            agenda.after(key.clone(), rest);
            return Ok(());
        }
        let (deployment, paused) = self.informers.read(|objects| {
            let deployment = objects.machine_deployments.get(key).cloned();
            let paused = deployment.as_ref().is_some_and(|d| is_paused(d, cluster_of(objects, d)));
            (deployment, paused)
        });
        match deployment.filter(|_| !paused) {
            Some(deployment) if is_deleting(&*deployment) => self.take_down(&deployment).await,
            Some(deployment) => {
                match keep(&self.client, Kind::MachineDeployment, &deployment, FINALIZER).await? {
                    true => self.reconcile(&deployment).await,
                    false => Ok(()),
                }
            }
            None => Ok(()),
        }
    }
}

/// The Cluster an object belongs to.
pub(super) fn cluster_of<'a>(objects: &'a Objects, object: &DynamicObject) -> Option<&'a DynamicObject> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let key = ObjectKey::namespaced(namespace, text(object, "/spec/clusterName"));
    objects.capi_clusters.get(&key).map(|cluster| &**cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_sets_of_a_paused_rollout_grow_and_shrink_alike() {
        assert_eq!(in_proportion(&[5, 4], 8, 1), [5, 4], "with its surge it has as many as it is to have");
        assert_eq!(in_proportion(&[6, 3], 11, 1), [8, 4]);
        assert_eq!(in_proportion(&[6, 3], 5, 1), [4, 2]);
        assert_eq!(in_proportion(&[2, 2], 4, 1), [2, 3], "one more is for the newer");
        assert_eq!(in_proportion(&[2, 2], 2, 1), [1, 2], "one less is for the older");
        assert_eq!(in_proportion(&[3, 0, 1], 0, 1), [0, 0, 0]);
    }
}
