//! Writes one after another, as rules see them: what their tests are made of.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::checks::CLAIM;
use crate::invariants::{Invariant, Rest, Step};
use crate::inventory::Inventory;
use crate::objects::{Change, Edit, Objects};
use crate::tape::Entry;

/// A rule and what there is.
pub(super) struct Trial<R> {
    rule: R,
    objects: Objects,
    second: i64,
}

impl<R: Invariant> Trial<R> {
    pub(super) fn of(rule: R) -> Self {
        Self { rule, objects: Objects::default(), second: 100_000 }
    }

    /// Lets so many seconds pass.
    pub(super) fn pass(&mut self, seconds: i64) {
        self.second += seconds;
    }

    /// Somebody writes a MachineDeployment `d` with these replicas and annotations.
    pub(super) fn deployment(
        &mut self,
        actor: &str,
        replicas: i64,
        annotations: Value,
    ) -> Result<(), String> {
        let new: Arc<DynamicObject> = read(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "d", "namespace": "fleet", "uid": "d-uid", "annotations": annotations},
            "spec": {"clusterName": "c", "replicas": replicas},
        }));
        let key = ObjectKey::namespaced("fleet", "d");
        let old = self.objects.machine_deployments.insert(key.clone(), Arc::clone(&new));
        self.judge(actor, Change::MachineDeployment(Edit { key, old, new: Some(new) }))
    }

    /// There is a Cluster `c`, paused or not.
    pub(super) fn cluster(&mut self, paused: bool) -> Result<(), String> {
        let new: Arc<DynamicObject> = read(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "fleet", "uid": "c-uid"}, "spec": {"paused": paused},
        }));
        let key = ObjectKey::namespaced("fleet", "c");
        let old = self.objects.capi_clusters.insert(key.clone(), Arc::clone(&new));
        self.judge("user", Change::CapiCluster(Edit { key, old, new: Some(new) }))
    }

    /// Somebody writes a Machine of `d` with these annotations.
    pub(super) fn machine(&mut self, actor: &str, name: &str, annotations: Value) -> Result<(), String> {
        self.write_machine(actor, name, json!({"annotations": annotations}))
    }

    /// Somebody deletes a Machine, as far as it goes by that.
    pub(super) fn delete_machine(&mut self, actor: &str, name: &str) -> Result<(), String> {
        let there = &self.objects.machines[&ObjectKey::namespaced("fleet", name)];
        let annotations = json!(there.metadata.annotations);
        let meta = json!({"annotations": annotations, "deletionTimestamp": "2026-01-01T00:00:00Z"});
        self.write_machine(actor, name, meta)
    }

    fn write_machine(&mut self, actor: &str, name: &str, meta: Value) -> Result<(), String> {
        let mut object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {
                "name": name, "namespace": "fleet", "uid": format!("{name}-uid"),
                "labels": {"cluster.x-k8s.io/deployment-name": "d"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"clusterName": "c"},
        });
        for (field, value) in meta.as_object().into_iter().flatten() {
            object["metadata"][field] = value.clone();
        }
        let (new, key): (Arc<DynamicObject>, _) = (read(object), ObjectKey::namespaced("fleet", name));
        let old = self.objects.machines.insert(key.clone(), Arc::clone(&new));
        self.judge(actor, Change::Machine(Edit { key, old, new: Some(new) }))
    }

    /// Somebody makes what a Machine of the Cluster `c` is to be made of, or deletes it.
    pub(super) fn part(&mut self, actor: &str, name: &str, made: bool) -> Result<(), String> {
        let new: Option<Arc<DynamicObject>> = made.then(|| {
            read(json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "SimMachine",
                "metadata": {"name": name, "namespace": "fleet", "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
            }))
        });
        let key = ObjectKey::namespaced("fleet", name);
        let old = match &new {
            Some(new) => self.objects.sim_machines.insert(key.clone(), Arc::clone(new)),
            None => self.objects.sim_machines.remove(&key),
        };
        self.judge(actor, Change::SimMachine(Edit { key, old, new }))
    }

    /// Somebody writes a NodeClaim of the pool `p` with these annotations and this status.
    pub(super) fn claim(
        &mut self,
        actor: &str,
        name: &str,
        annotations: Value,
        status: Value,
    ) -> Result<(), String> {
        let new: Arc<NodeClaim> = read(json!({
            "metadata": {
                "name": name, "uid": format!("{name}-uid"), "annotations": annotations,
                "labels": {"karpenter.sh/nodepool": "p"},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
            "status": status,
        }));
        let key = ObjectKey::cluster(name);
        let old = self.objects.node_claims.insert(key.clone(), Arc::clone(&new));
        self.judge(actor, Change::NodeClaim(Edit { key, old, new: Some(new) }))
    }

    /// Somebody lets a NodeClaim go.
    pub(super) fn let_go(&mut self, actor: &str, name: &str) -> Result<(), String> {
        let key = ObjectKey::cluster(name);
        let old = self.objects.node_claims.remove(&key);
        self.judge(actor, Change::NodeClaim(Edit { key, old, new: None }))
    }

    /// What else there is.
    pub(super) fn objects(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Whether all is well in the end.
    pub(super) fn at_rest(&mut self) -> Result<(), String> {
        let now = Timestamp::from_second(self.second).expect("a time");
        let (objects, inventory) = (&self.objects, &Inventory::default());
        self.rule.check_at_rest(&Rest { objects, inventory, now, healed_for: Duration::from_secs(600) })
    }

    fn judge(&mut self, actor: &str, change: Change) -> Result<(), String> {
        let entry = Entry {
            sequence: 0,
            at: Duration::ZERO,
            actor: actor.into(),
            deed: String::new(),
            outcome: String::new(),
            revision: 0,
        };
        let now = Timestamp::from_second(self.second).expect("a time");
        let (changes, inventory) = (&[Arc::new(change)], &Inventory::default());
        let objects = &self.objects;
        self.rule.check(&Step {
            entry: &entry,
            body: &[],
            asked: None,
            changes,
            raw: &[],
            objects,
            inventory,
            now,
        })
    }
}

pub(super) fn read<K: serde::de::DeserializeOwned>(object: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).expect("an object"))
}

/// The annotation of a Machine that is claimed for a NodeClaim.
pub(super) fn claimed_for(claim: &str) -> Value {
    json!({CLAIM: format!("{claim}-uid")})
}
