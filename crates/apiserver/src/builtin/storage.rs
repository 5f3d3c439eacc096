//! Volumes and what provides them: PersistentVolumes and their claims, storage classes, CSI objects, attachments.

use serde_json::{Value, json};

use super::fields::{at, child, default_to, has, inner, items, keep, set, text};
use super::pod_defaults::{default_claim_spec, default_resource_list, default_volume_source};
use super::storage_rules;
use super::{Lookup, Rules, StatusOnCreate};
use crate::status::ApiError;

pub(super) const VOLUME: Rules = Rules {
    default: default_volume,
    prepare_create: prepare_volume,
    validate_create: storage_rules::volume,
    validate_update: storage_rules::volume_update,
    status_on_create: StatusOnCreate::Kept,
    ..Rules::NONE
};
pub(super) const CLAIM: Rules = Rules {
    default: default_claim,
    prepare_create: prepare_claim,
    validate_create: storage_rules::claim,
    validate_update: storage_rules::claim_update,
    status_on_create: StatusOnCreate::Kept,
    ..Rules::NONE
};
pub(super) const STORAGE_CLASS: Rules = Rules {
    default: default_storage_class,
    validate_create: storage_rules::storage_class,
    validate_update: storage_rules::storage_class_update,
    ..Rules::NONE
};
pub(super) const ATTRIBUTES_CLASS: Rules = Rules { prepare_create: prepare_attributes_class, ..Rules::NONE };
pub(super) const CSI_DRIVER: Rules =
    Rules { default: default_csi_driver, validate_update: storage_rules::csi_driver_update, ..Rules::NONE };
pub(super) const CSI_NODE: Rules = Rules {
    validate_create: storage_rules::csi_node,
    validate_update: storage_rules::csi_node_update,
    ..Rules::NONE
};
pub(super) const ATTACHMENT: Rules = Rules {
    prepare_update: keep_metadata_in_status,
    validate_create: storage_rules::attachment,
    validate_update: storage_rules::attachment_update,
    ..Rules::NONE
};
pub(super) const CAPACITY: Rules = Rules {
    validate_create: storage_rules::capacity,
    validate_update: storage_rules::capacity_update,
    ..Rules::NONE
};

/// A status write of a younger kind leaves the metadata alone.
pub(super) fn keep_metadata_in_status(new: &mut Value, old: &Value, subresource: Option<&str>) {
    if subresource == Some("status") {
        for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
            keep(child(new, "metadata"), at(old, &["metadata"]), key);
        }
    }
}

fn default_volume(volume: &mut Value) {
    default_to(child(volume, "status"), "phase", "Pending");
    let spec = child(volume, "spec");
    default_to(spec, "persistentVolumeReclaimPolicy", "Retain");
    default_to(spec, "volumeMode", "Filesystem");
    default_volume_source(spec);
    if let Some(capacity) = inner(spec, "capacity") {
        default_resource_list(capacity);
    }
}

/// `StorageObjectInUseProtection` adds the finalizer that keeps a volume or claim while it is in use.
fn protect(object: &mut Value, finalizer: &str) {
    let metadata = child(object, "metadata");
    if !items(metadata, "finalizers").iter().any(|f| f == finalizer) {
        let mut finalizers = items(metadata, "finalizers").to_vec();
        finalizers.push(finalizer.into());
        set(metadata, "finalizers", finalizers);
    }
}

fn prepare_volume(volume: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    protect(volume, "kubernetes.io/pv-protection");
    let now = at(volume, &["metadata", "creationTimestamp"]).clone();
    let mut status = json!({"phase": "Pending"});
    if now.is_string() {
        set(&mut status, "lastPhaseTransitionTime", now);
    }
    set(volume, "status", status);
    Ok(())
}

fn prepare_attributes_class(class: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    protect(class, "kubernetes.io/vac-protection");
    Ok(())
}

fn default_claim(claim: &mut Value) {
    default_to(child(claim, "status"), "phase", "Pending");
    default_claim_spec(child(claim, "spec"));
}

fn prepare_claim(claim: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    protect(claim, "kubernetes.io/pvc-protection");
    set(claim, "status", json!({"phase": "Pending"}));
    let spec = child(claim, "spec");
    // `dataSource` and `dataSourceRef` say the same where both can.
    if let (Some(source), false) = (spec.get("dataSource").cloned(), has(spec, "dataSourceRef")) {
        set(spec, "dataSourceRef", source);
    } else if !has(spec, "dataSource")
        && let Some(reference) = spec.get("dataSourceRef").cloned()
        && !has(&reference, "namespace")
        && matches!(
            (text(&reference, "apiGroup"), text(&reference, "kind")),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    {
        set(spec, "dataSource", reference);
    }
    let legacy =
        at(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"]).is_string();
    let spec = child(claim, "spec");
    if !has(spec, "storageClassName")
        && !legacy
        && let Some(class) = default_class(cluster)
    {
        set(spec, "storageClassName", class);
    }
    Ok(())
}

/// The admission plugin `DefaultStorageClass`: of several defaults the newest, then the first by name.
fn default_class(cluster: &dyn Lookup) -> Option<String> {
    let mut classes: Vec<(String, String)> = cluster
        .list("storage.k8s.io", "storageclasses", "")
        .iter()
        .map(|class| at(class, &["metadata"]))
        .filter(|metadata| {
            [
                "storageclass.kubernetes.io/is-default-class",
                "storageclass.beta.kubernetes.io/is-default-class",
            ]
            .iter()
            .any(|key| text(at(metadata, &["annotations"]), key) == "true")
        })
        .map(|metadata| (text(metadata, "creationTimestamp").to_owned(), text(metadata, "name").to_owned()))
        .collect();
    classes.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    classes.into_iter().next().map(|(_, name)| name)
}

fn default_storage_class(class: &mut Value) {
    default_to(class, "reclaimPolicy", "Delete");
    default_to(class, "volumeBindingMode", "Immediate");
}

fn default_csi_driver(driver: &mut Value) {
    let spec = child(driver, "spec");
    default_to(spec, "attachRequired", true);
    default_to(spec, "podInfoOnMount", false);
    default_to(spec, "storageCapacity", false);
    default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    default_to(spec, "volumeLifecycleModes", json!(["Persistent"]));
    default_to(spec, "requiresRepublish", false);
    default_to(spec, "seLinuxMount", false);
}
