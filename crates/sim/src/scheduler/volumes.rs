//! What a pod's volumes have to do with it: where they can be reached, and how many a node can attach.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use karpenter_runtime::object_key::ObjectKey;

use crate::objects::{Objects, is_deleting, is_finished, uid};
use crate::placement;
use crate::volume_binder::{class_of, topology_accepts};

pub(super) const NODE_AFFINITY: &str = "node(s) didn't match PersistentVolume's node affinity";
pub(super) const NO_VOLUMES: &str = "node(s) didn't find available persistent volumes to bind";
pub(super) const TOO_MANY: &str = "node(s) exceed max volume count";

/// A pod's claims, looked up.
pub(super) struct Volumes {
    /// Claims with a volume.
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Claims whose volume is made where the pod goes.
    waiting: Vec<(Arc<PersistentVolumeClaim>, Option<Arc<StorageClass>>)>,
}

impl Volumes {
    /// The pod's claims; or, in the scheduler's words, why no node will do.
    pub(super) fn of(pod: &Pod, objects: &Objects) -> Result<Self, String> {
        let mut volumes = Self { bound: Vec::new(), waiting: Vec::new() };
        for name in claim_names(pod) {
            let key =
                ObjectKey::namespaced(pod.metadata.namespace.as_deref().unwrap_or_default(), name.as_str());
            let Some(claim) = objects.volume_claims.get(&key) else {
                return Err(format!("persistentvolumeclaim {name:?} not found"));
            };
            if is_deleting(&**claim) {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if is_bound(claim) {
                volumes.bound.push(Arc::clone(claim));
                continue;
            }
            let class = class_of(claim, objects).cloned();
            let mode = class.as_ref().and_then(|class| class.volume_binding_mode.as_deref());
            if mode != Some("WaitForFirstConsumer") {
                return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
            }
            volumes.waiting.push((Arc::clone(claim), class));
        }
        Ok(volumes)
    }

    /// The claims that have to be given a volume before the pod can be bound.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Arc<PersistentVolumeClaim>> {
        self.waiting.iter().map(|(claim, _)| claim)
    }

    /// Why this node does not do.
    pub(super) fn objection(&self, node: &Node, objects: &Objects) -> Option<&'static str> {
        for claim in &self.bound {
            let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
            let volume = objects.volumes.get(&ObjectKey::cluster(name));
            let required = volume
                .and_then(|volume| volume.spec.as_ref())
                .and_then(|spec| spec.node_affinity.as_ref())
                .and_then(|affinity| affinity.required.as_ref());
            if required.is_some_and(|selector| !placement::selector_matches(selector, node)) {
                return Some(NODE_AFFINITY);
            }
        }
        let misplaced = |class: &Option<Arc<StorageClass>>| {
            class.as_ref().is_some_and(|class| !topology_accepts(class, placement::labels(node)))
        };
        if self.waiting.iter().any(|(_, class)| misplaced(class)) {
            return Some(NO_VOLUMES);
        }
        self.exceeds(node, objects).then_some(TOO_MANY)
    }

    /// Whether a driver would have to attach more volumes than it can.
    fn exceeds(&self, node: &Node, objects: &Objects) -> bool {
        let Some(csi_node) = objects.csi_nodes.get(&ObjectKey::cluster(placement::name(node))) else {
            return false;
        };
        let claims = || self.bound.iter().chain(self.waiting());
        csi_node.spec.drivers.iter().any(|driver| {
            let Some(limit) = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count) else {
                return false;
            };
            let of_driver = |claim: &&Arc<PersistentVolumeClaim>| {
                class_of(claim, objects).is_some_and(|class| class.provisioner == driver.name)
            };
            let mut attached: BTreeSet<String> =
                claims().filter(of_driver).map(|c| uid(&**c).to_owned()).collect();
            if attached.is_empty() {
                return false;
            }
            for pod in objects.pods_on(placement::name(node)).filter(|pod| !is_finished(pod)) {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let theirs = claim_names(pod).into_iter().filter_map(|name| {
                    objects.volume_claims.get(&ObjectKey::namespaced(namespace, name.as_str()))
                });
                attached.extend(theirs.filter(of_driver).map(|claim| uid(&**claim).to_owned()));
            }
            attached.len() > usize::try_from(limit).unwrap_or(0)
        })
    }
}

/// The names of the claims a pod mounts.
pub(crate) fn claim_names(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => Some(source.claim_name.clone()),
            (None, Some(_)) => {
                Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name))
            }
            _ => None,
        })
        .collect()
}

/// Whether a claim has its volume.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}
