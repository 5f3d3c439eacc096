//! The rest of the cluster that decisions read: storage, workloads, budgets, namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::labels::{Labels, Text};
use crate::pod::{NodeSelectorTerm, Pod};
use crate::selector::LabelSelector;

/// Claims, volumes and classes by name.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// PersistentVolumeClaims by (namespace, name).
    pub claims: BTreeMap<(Text, Text), VolumeClaim>,
    /// PersistentVolumes by name.
    pub volumes: BTreeMap<Text, Volume>,
    /// StorageClasses by name.
    pub classes: BTreeMap<Text, StorageClass>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeClaim {
    /// The volume it is bound to; empty while unbound.
    pub volume_name: Text,
    /// The class it asks for; empty when none.
    pub storage_class: Text,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its phase is `Lost`.
    pub lost: bool,
    /// Whether it has the annotation `pv.kubernetes.io/bind-completed`.
    pub bind_completed: bool,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Where it can be mounted: alternatives. `None` when it does not say.
    pub node_affinity: Option<Vec<NodeSelectorTerm>>,
    /// Whether it lives on one host (`local` or `hostPath`), so that its hostname affinity is ignored.
    pub host_bound: bool,
    /// CSI driver; empty when it has none.
    pub driver: Text,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClass {
    /// Provisioner, in-tree names included.
    pub provisioner: Text,
    /// Whether volumes are bound before a pod uses them.
    pub binds_immediately: bool,
    /// Where its volumes can be: alternatives of (key, values).
    pub allowed_topologies: Vec<Vec<(Text, Vec<Text>)>>,
}

/// A DaemonSet with the pod that stands for all of its pods.
#[derive(Clone, Debug)]
pub struct DaemonSet {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// UID.
    pub uid: Text,
    /// A pod made from the template (limits copied into missing requests). Used until a real pod was seen.
    pub template: Arc<Pod>,
    /// The newest pod of those that are gone. Used while no real pod exists.
    pub last_pod: Option<Arc<Pod>>,
}

/// What deduces the selector of default topology spread constraints.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// Selectors of Services by namespace, in name order; absent selectors left out.
    pub services: BTreeMap<Text, Vec<Labels>>,
    /// Selectors of ReplicationControllers by (namespace, name).
    pub replication_controllers: BTreeMap<(Text, Text), Labels>,
    /// Selectors of ReplicaSets by (namespace, name).
    pub replica_sets: BTreeMap<(Text, Text), Option<LabelSelector>>,
    /// Selectors of StatefulSets by (namespace, name).
    pub stateful_sets: BTreeMap<(Text, Text), Option<LabelSelector>>,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default)]
pub struct DisruptionBudget {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// The pods it protects.
    pub selector: Option<LabelSelector>,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// `maxUnavailable` 0 or 0 %, or `minAvailable` 100 %: nothing may ever be evicted.
    pub fully_blocking: bool,
    /// Whether unready pods may be evicted regardless.
    pub always_allows_unhealthy: bool,
}
