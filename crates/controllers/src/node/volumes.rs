//! Which volumes a drain waits for (rule T1.8): those still attached to the node, but for volumes of pods that stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_runtime::object_key::ObjectKey;

use crate::context::{ATTACHMENTS_BY_NODE, Stores};
use crate::pods;
use crate::seen_pod::SeenPod;

/// The attachments that must go before the node does.
pub(super) fn pending(stores: &Stores, node: &str, now: Timestamp) -> Vec<Arc<VolumeAttachment>> {
    let mut attachments = stores.attachments.by_index(ATTACHMENTS_BY_NODE, node);
    if attachments.is_empty() {
        return attachments;
    }
    let staying = stores.pods_on(node);
    let staying = staying.iter().filter(|pod| !pods::is_drainable(pod, now));
    let kept: BTreeSet<String> = staying.flat_map(|pod| volumes_of(stores, pod)).collect();
    attachments.retain(|attachment| {
        let volume = attachment.spec.source.persistent_volume_name.as_ref();
        volume.is_some_and(|volume| !kept.contains(volume))
    });
    attachments
}

/// The names of the PersistentVolumes a pod uses.
fn volumes_of(stores: &Stores, pod: &SeenPod) -> Vec<String> {
    let claims = pod.volume_claims.iter().filter_map(|name| {
        let claim = stores.volume_claims.get(&ObjectKey::namespaced(pod.key.namespace.clone(), &**name))?;
        claim.spec.as_ref()?.volume_name.clone()
    });
    claims.collect()
}
