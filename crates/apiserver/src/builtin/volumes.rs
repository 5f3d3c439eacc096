//! What the volumes of a pod must satisfy.

use serde_json::Value;

use super::checks::{self, Errors, dns_label, duplicate, forbidden, invalid, required, unsupported};
use super::containers::{descending_path, field_reference, no_backsteps};
use super::fields::{at as value_at, has, int, items, text};
use super::path::At;
use super::pod_spec::Owner;

/// The sources in the order kube-apiserver looks for them: of several the later ones are refused.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "scaleIO",
    "projected",
    "csi",
    "ephemeral",
    "image",
];

pub(super) fn volumes(errors: &mut Errors, at: At<'_>, spec: &Value, owner: Owner) {
    let mut seen = Vec::new();
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let at = at.index(index);
        let name = text(volume, "name");
        let before = errors.len();
        if name.is_empty() {
            required(errors, at.field("name"), "");
        } else {
            dns_label(errors, at.field("name"), name);
        }
        if errors.len() == before {
            if seen.contains(&name) {
                duplicate(errors, at.field("name"), name);
            }
            seen.push(name);
        }
        let mut count = 0;
        let given = volume.as_object().into_iter().flatten().filter(|(key, _)| *key != "name").count();
        for source in SOURCES {
            // Nearly every volume has exactly one source: nothing is left to look for after it.
            if count == given {
                break;
            }
            let Some(value) = volume.get(source) else { continue };
            count += 1;
            if count > 1 {
                forbidden(errors, at.field(source), "may not specify more than 1 volume type");
            } else {
                source_itself(errors, at.field(source), source, value, spec, owner);
            }
        }
        if count == 0 {
            required(errors, at, "must specify a volume type");
        }
    }
}

fn source_itself(errors: &mut Errors, at: At<'_>, kind: &str, source: &Value, spec: &Value, owner: Owner) {
    match kind {
        "hostPath" => host_path(errors, at, source),
        "emptyDir" => {
            checks::non_negative_quantity(errors, at.field("sizeLimit"), value_at(source, &["sizeLimit"]))
        }
        "secret" => {
            if text(source, "secretName").is_empty() {
                required(errors, at.field("secretName"), "");
            }
            mode(errors, at, source);
            keys_to_paths(errors, at, source);
        }
        "configMap" => {
            if text(source, "name").is_empty() {
                required(errors, at.field("name"), "");
            }
            mode(errors, at, source);
            keys_to_paths(errors, at, source);
        }
        "persistentVolumeClaim" if text(source, "claimName").is_empty() => {
            required(errors, at.field("claimName"), "")
        }
        "downwardAPI" => {
            mode(errors, at, source);
            downward_items(errors, at, source);
        }
        "projected" => {
            mode(errors, at, source);
            projected(errors, at.field("sources"), items(source, "sources"), spec, owner);
        }
        "csi" if text(source, "driver").is_empty() => required(errors, at.field("driver"), ""),
        "nfs" => {
            for key in ["server", "path"] {
                if text(source, key).is_empty() {
                    required(errors, at.field(key), "");
                }
            }
        }
        "ephemeral" => {
            let template = value_at(source, &["volumeClaimTemplate"]);
            if template.is_null() {
                required(errors, at.field("volumeClaimTemplate"), "");
            } else {
                let at = at.field("volumeClaimTemplate");
                super::storage_rules::claim_spec(errors, at.field("spec"), value_at(template, &["spec"]));
            }
        }
        _ => {}
    }
}

/// A directory or file of the node, in a pod or a PersistentVolume.
pub(super) fn host_path(errors: &mut Errors, at: At<'_>, source: &Value) {
    const TYPES: &[&str] = &[
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    let path = text(source, "path");
    if path.is_empty() {
        required(errors, at.field("path"), "");
        return;
    }
    no_backsteps(errors, at.field("path"), path);
    let kind = text(source, "type");
    if !TYPES.contains(&kind) {
        unsupported(errors, at.field("type"), kind, TYPES);
    }
}

fn mode(errors: &mut Errors, at: At<'_>, source: &Value) {
    if let Some(mode) = int(source, "defaultMode").filter(|m| !(0..=0o777).contains(m)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        invalid(errors, at.field("defaultMode"), mode, detail);
    }
}

fn keys_to_paths(errors: &mut Errors, at: At<'_>, source: &Value) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let list = at.field("items");
        let at = list.index(index);
        if text(item, "key").is_empty() {
            required(errors, at.field("key"), "");
        }
        item_path(errors, at, item);
    }
}

fn item_path(errors: &mut Errors, at: At<'_>, item: &Value) {
    match text(item, "path") {
        "" => required(errors, at.field("path"), ""),
        path => descending_path(errors, at.field("path"), path),
    }
}

fn downward_items(errors: &mut Errors, at: At<'_>, source: &Value) {
    const FIELDS: &[&str] =
        &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
    for (index, item) in items(source, "items").iter().enumerate() {
        let list = at.field("items");
        let at = list.index(index);
        item_path(errors, at, item);
        match (item.get("fieldRef"), item.get("resourceFieldRef")) {
            (Some(reference), None) => field_reference(errors, at.field("fieldRef"), reference, FIELDS),
            (Some(_), Some(_)) => {
                invalid(
                    errors,
                    at,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
            (None, Some(_)) => {}
            (None, None) => required(errors, at, "one of fieldRef and resourceFieldRef is required"),
        }
    }
}

fn projected(errors: &mut Errors, at: At<'_>, sources: &[Value], spec: &Value, owner: Owner) {
    for (index, source) in sources.iter().enumerate() {
        let at = at.index(index);
        for key in ["secret", "configMap"] {
            if let Some(named) = source.get(key) {
                if text(named, "name").is_empty() {
                    required(errors, at.field(key).field("name"), "");
                }
                keys_to_paths(errors, at.field(key), named);
            }
        }
        if let Some(downward) = source.get("downwardAPI") {
            downward_items(errors, at.field("downwardAPI"), downward);
        }
        if let Some(token) = source.get("serviceAccountToken") {
            let at = at.field("serviceAccountToken");
            if owner == Owner::Pod && !has(spec, "serviceAccountName") {
                forbidden(errors, at, "must not be specified when serviceAccountName is not set");
            }
            if int(token, "expirationSeconds").is_some_and(|s| s < 600) {
                let seconds = int(token, "expirationSeconds").unwrap_or(0);
                invalid(
                    errors,
                    at.field("expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            }
            if text(token, "path").is_empty() {
                required(errors, at.field("path"), "");
            }
        }
    }
}
