//! Puts a snapshot together from Kubernetes objects, one object at a time.
//!
//! Pairs Nodes with their NodeClaims, finds the pod that stands for a DaemonSet, and keeps a list of whatever made no sense.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cluster::{DaemonSet, DisruptionBudget, StorageClass, Volume, VolumeClaim};
use crate::ingest::{self, FieldError, Ingest};
use crate::labels::{INITIALIZED, INSTANCE_TYPE, NODE_POOL, Text};
use crate::node::{Node, NodeClaim, StateNode};
use crate::node_pool::{NodeOverlay, NodePool};
use crate::plan::RejectedObject;
use crate::snapshot::Snapshot;

/// Collects objects into a [`Snapshot`].
#[derive(Default)]
pub struct SnapshotBuilder {
    /// Shares equal strings, labels and specs; also converts single objects.
    pub ingest: Ingest,
    snapshot: Snapshot,
    nodes: Vec<Node>,
    claims: Vec<NodeClaim>,
    csi_limits: BTreeMap<Text, BTreeMap<Text, Option<i64>>>,
    marked: Vec<Text>,
    nominated: Vec<Text>,
    rejected: Vec<RejectedObject>,
}

fn named(kind: &str, meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or("?");
    match meta.namespace.as_deref() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

impl SnapshotBuilder {
    /// An empty cluster at `now`.
    pub fn new(now: Timestamp) -> Self {
        SnapshotBuilder { snapshot: Snapshot { now, ..Snapshot::default() }, ..SnapshotBuilder::default() }
    }

    /// The snapshot so far, for fields no object stands for (provider, overlays).
    pub fn snapshot_mut(&mut self) -> &mut Snapshot {
        &mut self.snapshot
    }

    /// Records that an object makes no sense and is left out.
    pub fn reject(&mut self, rejected: RejectedObject) {
        self.rejected.push(rejected);
    }

    fn name(&mut self, meta: &ObjectMeta) -> Text {
        self.ingest.text(meta.name.as_deref().unwrap_or_default())
    }

    fn key(&mut self, meta: &ObjectMeta) -> (Text, Text) {
        (self.ingest.text(meta.namespace.as_deref().unwrap_or_default()), self.name(meta))
    }

    /// A Pod.
    pub fn add_pod(&mut self, pod: &core::Pod) {
        match self.ingest.pod(pod) {
            Ok(pod) => self.snapshot.pods.push(pod),
            Err(error) => self.rejected.push(error.of(named("Pod", &pod.metadata))),
        }
    }

    /// A NodePool.
    pub fn add_node_pool(&mut self, pool: NodePool) {
        self.snapshot.node_pools.push(pool);
    }

    /// A NodeOverlay.
    pub fn add_node_overlay(&mut self, overlay: NodeOverlay) {
        self.snapshot.overlays.push(overlay);
    }

    /// A NodeClaim.
    pub fn add_node_claim(&mut self, claim: NodeClaim) {
        self.claims.push(claim);
    }

    /// A Node.
    pub fn add_node(&mut self, node: &core::Node) {
        match self.node(node) {
            Ok(node) => self.nodes.push(node),
            Err(error) => self.rejected.push(error.of(named("Node", &node.metadata))),
        }
    }

    fn node(&mut self, node: &core::Node) -> Result<Node, FieldError> {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let ingest = &mut self.ingest;
        Ok(Node {
            name: ingest.text(node.metadata.name.as_deref().unwrap_or_default()),
            provider_id: spec.and_then(|s| s.provider_id.as_deref()).unwrap_or_default().into(),
            labels: ingest.map(node.metadata.labels.as_ref()),
            annotations: ingest.map(node.metadata.annotations.as_ref()),
            taints: ingest.taints(spec.and_then(|s| s.taints.as_ref())),
            capacity: ingest.resources(status.and_then(|s| s.capacity.as_ref()), "status.capacity")?,
            allocatable: ingest
                .resources(status.and_then(|s| s.allocatable.as_ref()), "status.allocatable")?,
            deleting: node.metadata.deletion_timestamp.is_some(),
            created_seconds: node.metadata.creation_timestamp.as_ref().map(|t| t.0.as_second()),
            ready: ingest::is_ready(status),
            conditions: ingest.node_conditions(status),
            csi_limits: BTreeMap::new(),
        })
    }

    /// A CSINode: how many volumes a node takes.
    pub fn add_csi_node(&mut self, csi: &storage::CSINode) {
        let name = self.name(&csi.metadata);
        let limits = csi
            .spec
            .drivers
            .iter()
            .map(|d| (self.ingest.text(&d.name), d.allocatable.as_ref().and_then(|a| a.count).map(i64::from)))
            .collect();
        self.csi_limits.insert(name, limits);
    }

    /// A DaemonSet.
    pub fn add_daemon_set(&mut self, daemon_set: &apps::DaemonSet) {
        let (namespace, name) = self.key(&daemon_set.metadata);
        let template = daemon_set.spec.as_ref().and_then(|s| s.template.spec.clone()).unwrap_or_default();
        let pod = core::Pod {
            metadata: ObjectMeta {
                name: daemon_set.metadata.name.clone(),
                namespace: daemon_set.metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(with_limits_as_requests(template)),
            status: None,
        };
        match self.ingest.pod(&pod) {
            Ok(template) => self.snapshot.daemon_sets.push(DaemonSet {
                namespace,
                name,
                uid: daemon_set.metadata.uid.as_deref().unwrap_or_default().into(),
                template,
            }),
            Err(error) => self.rejected.push(error.of(named("DaemonSet", &daemon_set.metadata))),
        }
    }

    /// A PersistentVolumeClaim.
    pub fn add_volume_claim(&mut self, claim: &core::PersistentVolumeClaim) {
        let key = self.key(&claim.metadata);
        let spec = claim.spec.as_ref();
        let annotations = claim.metadata.annotations.as_ref();
        let converted = VolumeClaim {
            volume_name: spec.and_then(|s| s.volume_name.as_deref()).unwrap_or_default().into(),
            storage_class: spec.and_then(|s| s.storage_class_name.as_deref()).unwrap_or_default().into(),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            lost: claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost"),
            bind_completed: annotations.is_some_and(|a| a.contains_key("pv.kubernetes.io/bind-completed")),
        };
        self.snapshot.storage.claims.insert(key, converted);
    }

    /// A PersistentVolume.
    pub fn add_volume(&mut self, volume: &core::PersistentVolume) {
        let name = self.name(&volume.metadata);
        let spec = volume.spec.as_ref();
        let driver = match spec {
            Some(core::PersistentVolumeSpec { csi: Some(csi), .. }) => csi.driver.as_str(),
            Some(core::PersistentVolumeSpec { aws_elastic_block_store: Some(_), .. }) => "ebs.csi.aws.com",
            _ => "",
        };
        let required = spec.and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
        let converted = Volume {
            node_affinity: required.map(|r| self.ingest.node_terms(&r.node_selector_terms)),
            host_bound: spec.is_some_and(|s| s.local.is_some() || s.host_path.is_some()),
            driver: self.ingest.text(driver),
            deleting: volume.metadata.deletion_timestamp.is_some(),
        };
        self.snapshot.storage.volumes.insert(name, converted);
    }

    /// A StorageClass.
    pub fn add_storage_class(&mut self, class: &storage::StorageClass) {
        let name = self.name(&class.metadata);
        let allowed_topologies = class
            .allowed_topologies
            .iter()
            .flatten()
            .map(|term| {
                term.match_label_expressions
                    .iter()
                    .flatten()
                    .map(|e| {
                        let values = e.values.iter().map(|v| self.ingest.text(v)).collect();
                        (self.ingest.text(&e.key), values)
                    })
                    .collect()
            })
            .collect();
        let converted = StorageClass {
            provisioner: self.ingest.text(&class.provisioner),
            binds_immediately: class.volume_binding_mode.as_deref() == Some("Immediate"),
            allowed_topologies,
        };
        self.snapshot.storage.classes.insert(name, converted);
    }

    /// A PodDisruptionBudget.
    pub fn add_disruption_budget(&mut self, budget: &policy::PodDisruptionBudget) {
        let (namespace, name) = self.key(&budget.metadata);
        let spec = budget.spec.as_ref();
        let max_unavailable = spec.and_then(|s| s.max_unavailable.as_ref());
        let min_available = spec.and_then(|s| s.min_available.as_ref());
        let converted = DisruptionBudget {
            namespace,
            name,
            selector: self.ingest.selector(spec.and_then(|s| s.selector.as_ref())),
            disruptions_allowed: budget.status.as_ref().and_then(|s| s.disruptions_allowed).unwrap_or(0),
            fully_blocking: match (max_unavailable, min_available) {
                (Some(IntOrString::Int(0)), _) => true,
                (Some(IntOrString::String(s)), _) if s == "0%" => true,
                (_, Some(IntOrString::String(s))) => s == "100%",
                _ => false,
            },
            always_allows_unhealthy: spec.and_then(|s| s.unhealthy_pod_eviction_policy.as_deref())
                == Some("AlwaysAllow"),
        };
        self.snapshot.budgets.push(converted);
    }

    /// A Namespace.
    pub fn add_namespace(&mut self, namespace: &core::Namespace) {
        let name = self.name(&namespace.metadata);
        let labels = self.ingest.map(namespace.metadata.labels.as_ref());
        self.snapshot.namespaces.insert(name, labels);
    }

    /// A Service. Add them in name order: where several select a pod, the last one's labels win.
    pub fn add_service(&mut self, service: &core::Service) {
        let (namespace, _) = self.key(&service.metadata);
        if let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) {
            let selector = self.ingest.map(Some(selector));
            self.snapshot.workloads.services.entry(namespace).or_default().push(selector);
        }
    }

    /// A ReplicationController.
    pub fn add_replication_controller(&mut self, owner: &core::ReplicationController) {
        let key = self.key(&owner.metadata);
        let selector = self.ingest.map(owner.spec.as_ref().and_then(|s| s.selector.as_ref()));
        self.snapshot.workloads.replication_controllers.insert(key, selector);
    }

    /// A ReplicaSet.
    pub fn add_replica_set(&mut self, owner: &apps::ReplicaSet) {
        let key = self.key(&owner.metadata);
        let selector = self.ingest.selector(owner.spec.as_ref().map(|s| &s.selector));
        self.snapshot.workloads.replica_sets.insert(key, selector);
    }

    /// A StatefulSet.
    pub fn add_stateful_set(&mut self, owner: &apps::StatefulSet) {
        let key = self.key(&owner.metadata);
        let selector = self.ingest.selector(owner.spec.as_ref().map(|s| &s.selector));
        self.snapshot.workloads.stateful_sets.insert(key, selector);
    }

    /// Marks the machine called `name` for deletion, in memory only.
    pub fn mark_for_deletion(&mut self, name: &str) {
        self.marked.push(name.into());
    }

    /// Notes that a recent pass counts on the machine called `name`.
    pub fn nominate(&mut self, name: &str) {
        self.nominated.push(name.into());
    }

    /// The snapshot, and what was left out of it.
    pub fn finish(mut self) -> (Snapshot, Vec<RejectedObject>) {
        let mut machines: BTreeMap<Text, StateNode> = BTreeMap::new();
        for claim in self.claims {
            // Without a provider id nothing has been launched yet: there is no machine to place pods on.
            if claim.provider_id.is_empty() {
                self.snapshot.unlaunched.push(Arc::new(claim));
            } else {
                let machine = machines.entry(claim.provider_id.clone()).or_default();
                machine.claim = Some(Arc::new(claim));
            }
        }
        for mut node in self.nodes {
            let managed = !node.labels.get_or_empty(NODE_POOL).is_empty();
            if node.provider_id.is_empty() {
                if managed {
                    self.snapshot.other_nodes.push(node);
                    continue;
                }
                node.provider_id = node.name.clone();
            }
            let initialized = !node.labels.get_or_empty(INITIALIZED).is_empty();
            if managed && !initialized && node.labels.get_or_empty(INSTANCE_TYPE).is_empty() {
                self.snapshot.other_nodes.push(node);
                continue;
            }
            node.csi_limits = self.csi_limits.get(&node.name).cloned().unwrap_or_default();
            let machine = machines.entry(node.provider_id.clone()).or_default();
            machine.node = Some(Arc::new(node));
        }
        self.snapshot.nodes = machines.into_values().collect();
        self.snapshot.nodes.sort_by(|a, b| a.name().cmp(b.name()));
        for node in &mut self.snapshot.nodes {
            node.marked_for_deletion = self.marked.contains(node.name());
            node.nominated = self.nominated.contains(node.name());
        }
        self.snapshot.pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        (self.snapshot, self.rejected)
    }
}

/// The API server gives pods their limits as requests where they have none; a template has not been through it.
fn with_limits_as_requests(mut spec: core::PodSpec) -> core::PodSpec {
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        let Some(resources) = &mut container.resources else { continue };
        for (name, limit) in resources.limits.clone().unwrap_or_default() {
            resources.requests.get_or_insert_default().entry(name).or_insert(limit);
        }
    }
    spec
}
