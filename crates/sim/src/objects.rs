//! What exists, typed, as of the last committed write.
//!
//! The world's actors live in the server's process and see every write the moment it is committed, so they need neither
//! watches nor expectations about writes they have not seen yet. What real components add in delay, the actors add on
//! their own, from the seed. Karpenter, which is what is being tested, watches the server like anyone else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::object_key::ObjectKey;
use kube::Resource;
use kube::api::DynamicObject;

/// A Cluster of Cluster API.
pub type CapiCluster = DynamicObject;
/// A MachineDeployment of Cluster API.
pub type MachineDeployment = DynamicObject;
/// A MachineSet of Cluster API.
pub type MachineSet = DynamicObject;
/// A Machine of Cluster API.
pub type Machine = DynamicObject;
/// A machine of the simulated infrastructure.
pub type SimMachine = DynamicObject;
/// A template of the simulated infrastructure.
pub type SimMachineTemplate = DynamicObject;
/// Bootstrap data.
pub type SimConfig = DynamicObject;
/// A control plane.
pub type SimControlPlane = DynamicObject;
/// A template of bootstrap data.
pub type SimConfigTemplate = DynamicObject;

/// A change of one object: new, different or gone.
#[derive(Clone, Debug)]
pub struct Edit<K> {
    /// Which object.
    pub key: ObjectKey,
    /// As it was.
    pub old: Option<Arc<K>>,
    /// As it is.
    pub new: Option<Arc<K>>,
}

impl<K> Edit<K> {
    /// The object as it is, or as it was last.
    pub fn either(&self) -> Option<&Arc<K>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $field:ident: $kind:ident, $group:literal / $plural:literal;)*) => {
        /// All objects of the kinds the world knows, by namespace and name.
        #[derive(Clone, Debug, Default)]
        pub struct Objects {
            $($(#[$doc])* pub $field: BTreeMap<ObjectKey, Arc<$kind>>,)*
            /// Pods by the name of their node.
            pods_by_node: BTreeMap<String, BTreeSet<ObjectKey>>,
            /// Pods by the uid of their controller.
            pods_by_owner: BTreeMap<String, BTreeSet<ObjectKey>>,
        }

        /// Something happened.
        #[derive(Clone, Debug)]
        pub enum Change {
            $($(#[$doc])* $kind(Edit<$kind>),)*
            /// A machine's kubelet fell silent or came back.
            Kubelet {
                /// The node it serves.
                node: String,
                /// Whether it is there.
                alive: bool,
            },
        }

        impl Objects {
            /// Everything that is there, as if it had just been made.
            pub(crate) fn everything(&self) -> Vec<Change> {
                let mut all = Vec::new();
                $(all.extend(self.$field.iter().map(|(key, object)| {
                    Change::$kind(Edit { key: key.clone(), old: None, new: Some(Arc::clone(object)) })
                }));)*
                all
            }

            /// Takes over one change of the server; `None` if it is of no kind known here.
            pub(crate) fn apply(&mut self, change: &karpenter_apiserver::Change) -> Option<Change> {
                let key = if change.namespace().is_empty() {
                    ObjectKey::cluster(change.name())
                } else {
                    ObjectKey::namespaced(change.namespace(), change.name())
                };
                match (change.group(), change.plural()) {
                    $(($group, $plural) => {
                        let edit = edit(&mut self.$field, key, change);
                        Some(Change::$kind(edit))
                    })*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Pods.
    pods: Pod, "" / "pods";
    /// Nodes.
    nodes: Node, "" / "nodes";
    /// Namespaces.
    namespaces: Namespace, "" / "namespaces";
    /// PersistentVolumeClaims.
    volume_claims: PersistentVolumeClaim, "" / "persistentvolumeclaims";
    /// PersistentVolumes.
    volumes: PersistentVolume, "" / "persistentvolumes";
    /// Deployments.
    deployments: Deployment, "apps" / "deployments";
    /// ReplicaSets.
    replica_sets: ReplicaSet, "apps" / "replicasets";
    /// StatefulSets.
    stateful_sets: StatefulSet, "apps" / "statefulsets";
    /// DaemonSets.
    daemon_sets: DaemonSet, "apps" / "daemonsets";
    /// Jobs.
    jobs: Job, "batch" / "jobs";
    /// PodDisruptionBudgets.
    disruption_budgets: PodDisruptionBudget, "policy" / "poddisruptionbudgets";
    /// StorageClasses.
    storage_classes: StorageClass, "storage.k8s.io" / "storageclasses";
    /// CSINodes.
    csi_nodes: CSINode, "storage.k8s.io" / "csinodes";
    /// VolumeAttachments.
    volume_attachments: VolumeAttachment, "storage.k8s.io" / "volumeattachments";
    /// NodeClaims.
    node_claims: NodeClaim, "karpenter.sh" / "nodeclaims";
    /// NodePools.
    node_pools: NodePool, "karpenter.sh" / "nodepools";
    /// Clusters of Cluster API.
    capi_clusters: CapiCluster, "cluster.x-k8s.io" / "clusters";
    /// MachineDeployments of Cluster API.
    machine_deployments: MachineDeployment, "cluster.x-k8s.io" / "machinedeployments";
    /// MachineSets of Cluster API.
    machine_sets: MachineSet, "cluster.x-k8s.io" / "machinesets";
    /// Machines of Cluster API.
    machines: Machine, "cluster.x-k8s.io" / "machines";
    /// Machines of the simulated infrastructure.
    sim_machines: SimMachine, "infrastructure.cluster.x-k8s.io" / "simmachines";
    /// Templates of the simulated infrastructure.
    sim_machine_templates: SimMachineTemplate, "infrastructure.cluster.x-k8s.io" / "simmachinetemplates";
    /// Bootstrap data.
    sim_configs: SimConfig, "bootstrap.cluster.x-k8s.io" / "simconfigs";
    /// Control planes.
    sim_control_planes: SimControlPlane, "controlplane.cluster.x-k8s.io" / "simcontrolplanes";
    /// Templates of bootstrap data.
    sim_config_templates: SimConfigTemplate, "bootstrap.cluster.x-k8s.io" / "simconfigtemplates";
}

impl Objects {
    /// Takes over one change and keeps the indexes true.
    pub(crate) fn follow(&mut self, change: &karpenter_apiserver::Change) -> Option<Change> {
        let change = self.apply(change)?;
        if let Change::Pod(edit) = &change {
            if let Some(old) = &edit.old {
                unindex(&mut self.pods_by_node, node_of(old), &edit.key);
                unindex(&mut self.pods_by_owner, controller_uid(&**old), &edit.key);
            }
            if let Some(new) = &edit.new {
                index(&mut self.pods_by_node, node_of(new), &edit.key);
                index(&mut self.pods_by_owner, controller_uid(&**new), &edit.key);
            }
        }
        Some(change)
    }

    /// The pods on a node, finished and ending ones included, in key order.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods_by_node.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// The pods a controller owns, in key order.
    pub fn pods_of(&self, owner_uid: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods_by_owner.get(owner_uid).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(&ObjectKey::cluster(name))
    }
}

fn edit<K: serde::de::DeserializeOwned>(
    objects: &mut BTreeMap<ObjectKey, Arc<K>>,
    key: ObjectKey,
    change: &karpenter_apiserver::Change,
) -> Edit<K> {
    let new = change.after().and_then(|bytes| match serde_json::from_slice::<K>(&bytes) {
        Ok(object) => Some(Arc::new(object)),
        Err(error) => {
            tracing::error!(%error, ?change, "the server accepted an object that cannot be read");
            None
        }
    });
    let old = match &new {
        Some(new) => objects.insert(key.clone(), Arc::clone(new)),
        None => objects.remove(&key),
    };
    Edit { key, old, new }
}

fn index(map: &mut BTreeMap<String, BTreeSet<ObjectKey>>, under: Option<&str>, key: &ObjectKey) {
    if let Some(under) = under {
        map.entry(under.to_owned()).or_default().insert(key.clone());
    }
}

fn unindex(map: &mut BTreeMap<String, BTreeSet<ObjectKey>>, under: Option<&str>, key: &ObjectKey) {
    let Some(under) = under else { return };
    if let Some(keys) = map.get_mut(under) {
        keys.remove(key);
        if keys.is_empty() {
            map.remove(under);
        }
    }
}

/// The node a pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// The uid of the object's controller.
pub fn controller_uid<K: Resource>(object: &K) -> Option<&str> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

/// The phase of a pod.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether a pod has run to its end.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether an object is on its way out.
pub fn is_deleting<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether a pod is neither finished nor on its way out.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready") == Some("True")
}

/// The status of a pod's condition.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
}

/// The status of a node's `Ready` condition.
pub fn node_ready(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status.as_str())
}

/// An object's uid; empty if it has none.
pub fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}
