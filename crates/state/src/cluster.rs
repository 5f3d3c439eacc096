//! The mirror itself: what exists, by kind and key, kept as compact facts.
//!
//! It is owned by one task that hands it every object as it is read or watched. Applying an object twice changes nothing;
//! applying objects in another order ends in the same state.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_engine::cluster::{DaemonSet, DisruptionBudget, Storage, Workloads};
use karpenter_engine::ingest::{FieldError, Ingest};
use karpenter_engine::labels::{Labels, Text};
use karpenter_engine::node_pool::{InstanceTypes, NodeOverlay, NodePool};
use karpenter_engine::pod::Pod;
use karpenter_engine::{Provider, Snapshot, StateNode};

use crate::buffers::{Buffers, TemplateFacts, TemplateKind, TemplateRef};
use crate::convert;
use crate::machines::Machines;
use crate::memory::Memory;
use crate::pods::Pods;

/// Namespace and name.
pub type Key = (Text, Text);

/// A mirror of the cluster.
#[derive(Default)]
pub struct Cluster {
    pub(crate) ingest: Ingest,
    pub(crate) machines: Machines,
    pub(crate) node_pools: BTreeMap<Text, NodePool>,
    pub(crate) overlays: BTreeMap<Text, NodeOverlay>,
    pub(crate) pods: Pods,
    pub(crate) daemon_sets: BTreeMap<Key, DaemonSet>,
    pub(crate) namespaces: BTreeMap<Text, Labels>,
    pub(crate) storage: Storage,
    pub(crate) services: BTreeMap<Key, Option<Labels>>,
    pub(crate) workloads: Workloads,
    pub(crate) budgets: BTreeMap<Key, DisruptionBudget>,
    pub(crate) buffers: Buffers,
    pub(crate) memory: Memory,
}

impl Cluster {
    /// Nothing exists yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shares equal strings, label maps and specs; for objects converted outside.
    pub fn ingest(&mut self) -> &mut Ingest {
        &mut self.ingest
    }

    fn key(&mut self, meta: &ObjectMeta) -> Key {
        convert::key(&mut self.ingest, meta)
    }

    fn name(&mut self, meta: &ObjectMeta) -> Text {
        convert::text(&mut self.ingest, meta.name.as_ref())
    }

    /// A Pod. One that makes no sense is forgotten, whatever was known of it before.
    pub fn apply_pod(&mut self, pod: &core::Pod) -> Result<(), FieldError> {
        match self.ingest.pod(pod) {
            Ok(pod) => self.put_pod(pod),
            Err(error) => {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let namespace = convert::text(&mut self.ingest, pod.metadata.namespace.as_ref());
                self.remove_pod(&namespace, name);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn put_pod(&mut self, pod: Arc<Pod>) {
        let on = pod.node_name.is_some();
        let old = self.pods.insert(pod.clone());
        if on && old.is_none_or(|old| old.node_name != pod.node_name) {
            self.mark_unconsolidated();
        }
    }

    /// A Pod is gone.
    pub fn delete_pod(&mut self, namespace: &str, name: &str) {
        self.remove_pod(namespace, name);
        self.memory.timings.forget(namespace, name);
        self.mark_unconsolidated();
    }

    /// Forgets a pod, unless it is the newest of its DaemonSet's that are gone: should it be the last of all, it goes on standing for
    /// the pods a new node will get.
    fn remove_pod(&mut self, namespace: &str, name: &str) {
        let Some(pod) = self.pods.remove(namespace, name) else { return };
        let Some(owner) = pod.owners.controller.as_ref().filter(|_| pod.owners.daemon_set) else { return };
        let Some(daemon_set) = self.daemon_sets.get_mut(&(pod.namespace.clone(), owner.name.clone())) else {
            return;
        };
        // Of equals the first by name, as among those that are there: which of them goes last does not matter.
        let rank = |pod: &Pod| (pod.created_seconds, Reverse(pod.name.clone()));
        let newest = daemon_set.last_pod.as_ref().is_none_or(|last| rank(&pod) > rank(last));
        if daemon_set.uid == owner.uid && newest {
            daemon_set.last_pod = Some(pod);
        }
    }

    /// A Node.
    pub fn apply_node(&mut self, node: &core::Node) -> Result<(), FieldError> {
        let name = self.name(&node.metadata);
        match convert::node(&mut self.ingest, node) {
            Ok(node) => self.machines.apply_node(node),
            Err(error) => {
                self.memory.unreadable_nodes.insert(name);
                return Err(error);
            }
        }
        self.memory.unreadable_nodes.remove(&name);
        Ok(())
    }

    /// A Node is gone.
    pub fn delete_node(&mut self, name: &str) {
        self.machines.delete_node(name);
        self.memory.unreadable_nodes.remove(name);
    }

    /// A NodeClaim.
    pub fn apply_node_claim(&mut self, claim: &karpenter_api::NodeClaim) -> Result<(), FieldError> {
        let name = self.name(&claim.metadata);
        match crate::karpenter::node_claim(&mut self.ingest, claim) {
            Ok(claim) => self.machines.apply_claim(claim),
            Err(error) => {
                self.memory.unreadable_claims.insert(name);
                return Err(error);
            }
        }
        self.memory.unreadable_claims.remove(&name);
        Ok(())
    }

    /// A NodeClaim whose launch is under way, with the labels, capacity and allocatable it is expected to have once that is
    /// done. Decisions then count on it instead of waiting, until it is launched or gone. Nothing else is taken from this copy
    /// of it; without allocatable it is as good as [`expect_nothing`](Self::expect_nothing).
    pub fn expect_launch(&mut self, claim: &karpenter_api::NodeClaim) -> Result<(), FieldError> {
        let claim = crate::karpenter::node_claim(&mut self.ingest, claim)?;
        self.machines.expect(claim);
        Ok(())
    }

    /// What the launch of this NodeClaim will come to is not known any more. Decisions wait for it.
    pub fn expect_nothing(&mut self, claim: &karpenter_api::NodeClaim) {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        self.machines.expect_nothing(name, claim.metadata.uid.as_deref().unwrap_or_default());
    }

    /// A NodeClaim is gone.
    pub fn delete_node_claim(&mut self, name: &str) {
        self.machines.delete_claim(name);
        self.memory.unreadable_claims.remove(name);
    }

    /// A NodePool.
    pub fn apply_node_pool(&mut self, pool: &karpenter_api::NodePool) -> Result<(), FieldError> {
        let name = self.name(&pool.metadata);
        let generation = pool.metadata.generation.unwrap_or_default();
        if self.memory.pool_generations.insert(name.clone(), generation) != Some(generation) {
            self.mark_unconsolidated();
        }
        match crate::karpenter::node_pool(&mut self.ingest, pool) {
            Ok(pool) => drop(self.node_pools.insert(name, pool)),
            Err(error) => {
                self.node_pools.remove(&name);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A NodePool is gone.
    pub fn delete_node_pool(&mut self, name: &str) {
        self.node_pools.remove(name);
        self.memory.pool_generations.remove(name);
    }

    /// A NodeOverlay.
    pub fn apply_node_overlay(&mut self, overlay: &karpenter_api::NodeOverlay) -> Result<(), FieldError> {
        let name = self.name(&overlay.metadata);
        match crate::karpenter::node_overlay(&mut self.ingest, overlay) {
            Ok(overlay) => drop(self.overlays.insert(name, overlay)),
            Err(error) => {
                self.overlays.remove(&name);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A NodeOverlay is gone.
    pub fn delete_node_overlay(&mut self, name: &str) {
        self.overlays.remove(name);
    }

    /// A DaemonSet.
    pub fn apply_daemon_set(&mut self, daemon_set: &apps::DaemonSet) -> Result<(), FieldError> {
        let key = self.key(&daemon_set.metadata);
        match convert::daemon_set(&mut self.ingest, daemon_set) {
            Ok(mut daemon_set) => {
                let known = self.daemon_sets.get(&key).filter(|known| known.uid == daemon_set.uid);
                daemon_set.last_pod = known.and_then(|known| known.last_pod.clone());
                self.daemon_sets.insert(key, daemon_set);
            }
            Err(error) => {
                self.daemon_sets.remove(&key);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A DaemonSet is gone.
    pub fn delete_daemon_set(&mut self, namespace: &str, name: &str) {
        self.daemon_sets.remove(&(namespace.into(), name.into()));
    }

    /// A CSINode: how many volumes the Node of the same name takes.
    pub fn apply_csi_node(&mut self, csi: &storage::CSINode) {
        let name = self.name(&csi.metadata);
        let limits = convert::csi_limits(&mut self.ingest, csi);
        self.machines.set_csi_limits(name, Some(limits));
    }

    /// A CSINode is gone.
    pub fn delete_csi_node(&mut self, name: &str) {
        self.machines.set_csi_limits(name.into(), None);
    }

    /// A PersistentVolumeClaim.
    pub fn apply_volume_claim(&mut self, claim: &core::PersistentVolumeClaim) {
        let key = self.key(&claim.metadata);
        self.storage.claims.insert(key, convert::volume_claim(&mut self.ingest, claim));
    }

    /// A PersistentVolumeClaim is gone.
    pub fn delete_volume_claim(&mut self, namespace: &str, name: &str) {
        self.storage.claims.remove(&(namespace.into(), name.into()));
    }

    /// A PersistentVolume.
    pub fn apply_volume(&mut self, volume: &core::PersistentVolume) {
        let name = self.name(&volume.metadata);
        self.storage.volumes.insert(name, convert::volume(&mut self.ingest, volume));
    }

    /// A PersistentVolume is gone.
    pub fn delete_volume(&mut self, name: &str) {
        self.storage.volumes.remove(name);
    }

    /// A StorageClass.
    pub fn apply_storage_class(&mut self, class: &storage::StorageClass) {
        let name = self.name(&class.metadata);
        self.storage.classes.insert(name, convert::storage_class(&mut self.ingest, class));
    }

    /// A StorageClass is gone.
    pub fn delete_storage_class(&mut self, name: &str) {
        self.storage.classes.remove(name);
    }

    /// A PodDisruptionBudget.
    pub fn apply_disruption_budget(&mut self, budget: &policy::PodDisruptionBudget) {
        let key = self.key(&budget.metadata);
        self.budgets.insert(key, convert::disruption_budget(&mut self.ingest, budget));
    }

    /// A PodDisruptionBudget is gone.
    pub fn delete_disruption_budget(&mut self, namespace: &str, name: &str) {
        self.budgets.remove(&(namespace.into(), name.into()));
    }

    /// A Namespace.
    pub fn apply_namespace(&mut self, namespace: &core::Namespace) {
        let name = self.name(&namespace.metadata);
        let labels = self.ingest.map(namespace.metadata.labels.as_ref());
        self.namespaces.insert(name, labels);
    }

    /// A Namespace is gone.
    pub fn delete_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// A Service: its selector may become that of a default spread constraint.
    pub fn apply_service(&mut self, service: &core::Service) {
        let key = self.key(&service.metadata);
        let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
        let selector = selector.map(|s| self.ingest.map(Some(s)));
        self.services.insert(key, selector);
    }

    /// A Service is gone.
    pub fn delete_service(&mut self, namespace: &str, name: &str) {
        self.services.remove(&(namespace.into(), name.into()));
    }

    /// A ReplicationController.
    pub fn apply_replication_controller(&mut self, owner: &core::ReplicationController) {
        let key = self.key(&owner.metadata);
        let selector = self.ingest.map(owner.spec.as_ref().and_then(|s| s.selector.as_ref()));
        self.workloads.replication_controllers.insert(key, selector);
    }

    /// A ReplicationController is gone.
    pub fn delete_replication_controller(&mut self, namespace: &str, name: &str) {
        self.workloads.replication_controllers.remove(&(namespace.into(), name.into()));
    }

    /// A ReplicaSet: its selector, and its template for capacity buffers.
    pub fn apply_replica_set(&mut self, owner: &apps::ReplicaSet) -> Result<(), FieldError> {
        let key = self.key(&owner.metadata);
        let selector = self.ingest.selector(owner.spec.as_ref().map(|s| &s.selector));
        self.workloads.replica_sets.insert(key, selector);
        let spec = owner.spec.as_ref();
        let (replicas, template) = (spec.and_then(|s| s.replicas), spec.and_then(|s| s.template.as_ref()));
        self.apply_template(TemplateKind::ReplicaSet, &owner.metadata, replicas.or(Some(1)), template)
    }

    /// A ReplicaSet is gone.
    pub fn delete_replica_set(&mut self, namespace: &str, name: &str) {
        self.workloads.replica_sets.remove(&(namespace.into(), name.into()));
        self.buffers.delete_template(TemplateKind::ReplicaSet, (namespace.into(), name.into()));
    }

    /// A StatefulSet: its selector, and its template for capacity buffers.
    pub fn apply_stateful_set(&mut self, owner: &apps::StatefulSet) -> Result<(), FieldError> {
        let key = self.key(&owner.metadata);
        let selector = self.ingest.selector(owner.spec.as_ref().map(|s| &s.selector));
        self.workloads.stateful_sets.insert(key, selector);
        let spec = owner.spec.as_ref();
        let (replicas, template) = (spec.and_then(|s| s.replicas), spec.map(|s| &s.template));
        self.apply_template(TemplateKind::StatefulSet, &owner.metadata, replicas.or(Some(1)), template)
    }

    /// A StatefulSet is gone.
    pub fn delete_stateful_set(&mut self, namespace: &str, name: &str) {
        self.workloads.stateful_sets.remove(&(namespace.into(), name.into()));
        self.buffers.delete_template(TemplateKind::StatefulSet, (namespace.into(), name.into()));
    }

    /// A Deployment: its template, for capacity buffers.
    pub fn apply_deployment(&mut self, owner: &apps::Deployment) -> Result<(), FieldError> {
        let spec = owner.spec.as_ref();
        let (replicas, template) = (spec.and_then(|s| s.replicas), spec.map(|s| &s.template));
        self.apply_template(TemplateKind::Deployment, &owner.metadata, replicas.or(Some(1)), template)
    }

    /// A Deployment is gone.
    pub fn delete_deployment(&mut self, namespace: &str, name: &str) {
        self.buffers.delete_template(TemplateKind::Deployment, (namespace.into(), name.into()));
    }

    /// A PodTemplate, for capacity buffers.
    pub fn apply_pod_template(&mut self, template: &core::PodTemplate) -> Result<(), FieldError> {
        self.apply_template(TemplateKind::PodTemplate, &template.metadata, None, template.template.as_ref())
    }

    fn apply_template(
        &mut self,
        kind: TemplateKind,
        meta: &ObjectMeta,
        replicas: Option<i32>,
        template: Option<&core::PodTemplateSpec>,
    ) -> Result<(), FieldError> {
        self.buffers.apply_template(&mut self.ingest, kind, meta, replicas, template)
    }

    /// What a buffer of this namespace that refers to this template is reckoned from, if it exists.
    pub fn buffer_template(&self, namespace: &str, template: &TemplateRef) -> Option<&TemplateFacts> {
        self.buffers.facts(namespace, template)
    }

    /// A PodTemplate is gone.
    pub fn delete_pod_template(&mut self, namespace: &str, name: &str) {
        self.buffers.delete_template(TemplateKind::PodTemplate, (namespace.into(), name.into()));
    }

    /// A CapacityBuffer.
    pub fn apply_capacity_buffer(&mut self, buffer: &karpenter_api::CapacityBuffer) {
        let key = self.key(&buffer.metadata);
        self.buffers.apply(key, buffer);
    }

    /// A CapacityBuffer is gone.
    pub fn delete_capacity_buffer(&mut self, namespace: &str, name: &str) {
        self.buffers.delete(&(namespace.into(), name.into()));
    }

    /// Machines, by provider id.
    pub fn machines(&self) -> impl Iterator<Item = &StateNode> {
        self.machines.iter()
    }

    /// The generation of a NodePool that was seen last.
    pub fn node_pool_generation(&self, name: &str) -> Option<i64> {
        self.memory.pool_generations.get(name).copied()
    }

    /// NodePools by name; their instance types are filled in by [`Self::snapshot`].
    pub fn node_pools(&self) -> impl Iterator<Item = &NodePool> {
        self.node_pools.values()
    }

    /// The pod of this name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.pods.get(namespace, name)
    }

    /// Every pod, in (namespace, name) order.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = &Arc<Pod>> {
        self.pods.iter()
    }

    /// The cluster at this moment, for the engine. `offered` says what each NodePool can buy.
    pub fn snapshot(
        &self,
        now: Timestamp,
        provider: Provider,
        mut offered: impl FnMut(&NodePool) -> InstanceTypes,
    ) -> Snapshot {
        let mut workloads = self.workloads.clone();
        for ((namespace, _), selector) in &self.services {
            if let Some(selector) = selector {
                workloads.services.entry(namespace.clone()).or_default().push(selector.clone());
            }
        }
        Snapshot {
            now,
            node_pools: self
                .node_pools
                .values()
                .map(|pool| NodePool { instance_types: offered(pool), ..pool.clone() })
                .collect(),
            overlays: self.overlays.values().cloned().collect(),
            nodes: self.machines.snapshot(),
            other_nodes: self.machines.others(),
            unlaunched: self.machines.unlaunched(),
            pods: self.pods.iter().cloned().collect(),
            buffer_pods: self.buffers.pods(now),
            daemon_sets: self.daemon_sets.values().cloned().collect(),
            namespaces: self.namespaces.clone(),
            storage: self.storage.clone(),
            workloads,
            budgets: self.budgets.values().cloned().collect(),
            provider,
        }
    }
}
