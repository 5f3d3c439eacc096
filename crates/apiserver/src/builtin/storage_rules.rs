//! What volumes, claims, storage classes and CSI objects must satisfy.

use karpenter_primitives::names;
use serde_json::{Value, json};

use super::checks::{
    self, Errors, IMMUTABLE, dns_subdomain, duplicate, forbidden, immutable, invalid, label_selector,
    non_negative, required, unsupported,
};
use super::fields::{at, child, entries, has, int, items, keep, remove, set, text};
use super::path::At;
use super::quantity;
use super::scheduling_rules::node_selector;
use super::volumes::host_path;

const SPEC: At<'static> = At::Top("spec");
const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

fn access_modes(errors: &mut Errors, at: At<'_>, spec: &Value) {
    let modes: Vec<&str> = items(spec, "accessModes").iter().filter_map(Value::as_str).collect();
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(mode)) {
        unsupported(errors, at, *mode, ACCESS_MODES);
    }
    let once = modes.contains(&"ReadWriteOncePod");
    if once && modes.iter().any(|mode| *mode != "ReadWriteOncePod" && ACCESS_MODES.contains(mode)) {
        forbidden(errors, at, "may not use ReadWriteOncePod with other access modes");
    }
}

fn volume_mode(errors: &mut Errors, at: At<'_>, spec: &Value) {
    if has(spec, "volumeMode") && !VOLUME_MODES.contains(&text(spec, "volumeMode")) {
        unsupported(errors, at, text(spec, "volumeMode"), VOLUME_MODES);
    }
}

/// The spec of a claim, also within a pod or a StatefulSet.
pub(super) fn claim_spec(errors: &mut Errors, spec_at: At<'_>, spec: &Value) {
    if items(spec, "accessModes").is_empty() {
        required(errors, spec_at.field("accessModes"), "at least 1 access mode is required");
    }
    if let Some(selector) = spec.get("selector") {
        label_selector(errors, spec_at.field("selector"), selector);
    }
    access_modes(errors, spec_at.field("accessModes"), spec);
    let resources_at = spec_at.field("resources");
    let storage = at(spec, &["resources", "requests", "storage"]);
    match quantity::parse(storage.as_str()) {
        None => required(errors, resources_at.key("storage"), ""),
        Some(amount) if amount.is_zero() || amount.is_negative() => {
            invalid(errors, resources_at.key("storage"), storage.clone(), "must be greater than zero");
        }
        Some(_) => {}
    }
    if !text(spec, "storageClassName").is_empty() {
        dns_subdomain(errors, spec_at.field("storageClassName"), text(spec, "storageClassName"));
    }
    volume_mode(errors, spec_at.field("volumeMode"), spec);
}

pub(super) fn claim(object: &Value, errors: &mut Errors) {
    claim_spec(errors, SPEC, at(object, &["spec"]));
}

pub(super) fn claim_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        return;
    }
    claim(new, errors);
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    let (mut mine, mut theirs) = (spec.clone(), before.clone());
    if !has(before, "volumeName") {
        keep(&mut theirs, spec, "volumeName");
    }
    if !has(before, "storageClassName") {
        keep(&mut theirs, spec, "storageClassName");
    }
    if text(at(new, &["status"]), "phase") == "Bound" {
        let size = at(before, &["resources", "requests", "storage"]).clone();
        set(child(child(&mut mine, "resources"), "requests"), "storage", size);
        keep(&mut mine, before, "volumeAttributesClassName");
    }
    if mine != theirs {
        forbidden(
            errors,
            SPEC,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    let size = |spec: &Value| quantity::parse(at(spec, &["resources", "requests", "storage"]).as_str());
    let held = quantity::parse(at(old, &["status", "capacity", "storage"]).as_str()).unwrap_or_default();
    if let (Some(wanted), Some(had)) = (size(spec), size(before))
        && wanted < had
        && wanted <= held
    {
        let requests_at = At::Top("spec.resources.requests.storage");
        forbidden(errors, requests_at, "field can not be less than status.capacity");
    }
    immutable(errors, At::Top("volumeMode"), at(spec, &["volumeMode"]), at(before, &["volumeMode"]));
}

/// The fields of a PersistentVolume's spec that are no source.
const NOT_A_SOURCE: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn source(spec: &Value) -> Value {
    let mut source = spec.clone();
    for key in NOT_A_SOURCE {
        remove(&mut source, key);
    }
    source
}

pub(super) fn volume(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    if items(spec, "accessModes").is_empty() {
        required(errors, SPEC.field("accessModes"), "");
    }
    access_modes(errors, SPEC.field("accessModes"), spec);
    let capacity_at = SPEC.field("capacity");
    let capacity = at(spec, &["capacity"]);
    if !has(spec, "capacity") {
        required(errors, capacity_at, "");
    }
    if capacity.get("storage").is_none() || entries(spec, "capacity").count() > 1 {
        unsupported(errors, capacity_at, capacity.clone(), &["storage"]);
    }
    for (name, amount) in entries(spec, "capacity") {
        let Some(parsed) = quantity::parse(amount.as_str()) else { continue };
        if parsed.is_negative() {
            let value = parsed.as_i64().map_or_else(|| amount.clone(), Value::from);
            invalid(errors, capacity_at.key(name), value, "must be a valid resource quantity");
        }
        if parsed.is_negative() || parsed.is_zero() {
            invalid(errors, capacity_at.key(name), amount.clone(), "must be greater than zero");
        }
    }
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    if !matches!(policy, "Delete" | "Recycle" | "Retain") {
        unsupported(
            errors,
            SPEC.field("persistentVolumeReclaimPolicy"),
            policy,
            &["Delete", "Recycle", "Retain"],
        );
    }
    if let Some(affinity) = at(spec, &["nodeAffinity"]).get("required") {
        node_selector(errors, SPEC.field("nodeAffinity").field("required"), affinity);
    }
    volume_source(errors, spec);
    if !text(spec, "storageClassName").is_empty() {
        dns_subdomain(errors, SPEC.field("storageClassName"), text(spec, "storageClassName"));
    }
    volume_mode(errors, SPEC.field("volumeMode"), spec);
}

fn volume_source(errors: &mut Errors, spec: &Value) {
    let given = source(spec);
    // Of several sources the one kube-apiserver looks at first counts; `hostPath` comes early, `csi` last.
    let mut kinds: Vec<&str> = given.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    kinds.sort_by_key(|kind| match *kind {
        "hostPath" => 0,
        "csi" => 2,
        _ => 1,
    });
    let Some((first, others)) = kinds.split_first() else {
        required(errors, SPEC, "must specify a volume type");
        return;
    };
    for other in others {
        forbidden(errors, SPEC.field(other), "may not specify more than 1 volume type");
    }
    let source = at(spec, &[first]);
    match *first {
        "hostPath" => host_path(errors, SPEC.field("hostPath"), source),
        "csi" => {
            for key in ["driver", "volumeHandle"] {
                if text(source, key).is_empty() {
                    required(errors, SPEC.field("csi").field(key), "");
                }
            }
        }
        "local" => {
            if text(source, "path").is_empty() {
                required(errors, SPEC.field("local").field("path"), "");
            }
            if !has(spec, "nodeAffinity") {
                required(errors, SPEC.field("nodeAffinity"), "Local volume requires node affinity");
            }
        }
        _ => {}
    }
}

pub(super) fn volume_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        return;
    }
    volume(new, errors);
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    if source(spec) != source(before) {
        let detail = "spec.persistentvolumesource is immutable after creation";
        forbidden(errors, SPEC.field("persistentvolumesource"), detail);
    }
    immutable(errors, At::Top("volumeMode"), at(spec, &["volumeMode"]), at(before, &["volumeMode"]));
}

pub(super) fn storage_class(class: &Value, errors: &mut Errors) {
    match text(class, "provisioner") {
        "" => required(errors, At::Top("provisioner"), ""),
        provisioner => {
            checks::name(
                errors,
                At::Top("provisioner"),
                &provisioner.to_lowercase(),
                names::qualified_name_errors,
            );
        }
    }
    if entries(class, "parameters").any(|(key, _)| key.is_empty()) {
        invalid(errors, At::Top("parameters"), "", "field can not be empty.");
    }
    let policy = text(class, "reclaimPolicy");
    if !matches!(policy, "Delete" | "Retain") {
        unsupported(errors, At::Top("reclaimPolicy"), policy, &["Delete", "Retain"]);
    }
    let mode = text(class, "volumeBindingMode");
    if !matches!(mode, "Immediate" | "WaitForFirstConsumer") {
        unsupported(errors, At::Top("volumeBindingMode"), mode, &["Immediate", "WaitForFirstConsumer"]);
    }
}

pub(super) fn storage_class_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    storage_class(new, errors);
    for key in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        immutable(errors, At::Top(key), at(new, &[key]), at(old, &[key]));
    }
}

pub(super) fn csi_node(node: &Value, errors: &mut Errors) {
    let list_at = At::Top("spec.drivers");
    let mut seen = Vec::new();
    for (index, driver) in items(at(node, &["spec"]), "drivers").iter().enumerate() {
        let driver_at = list_at.index(index);
        let name = text(driver, "name");
        if name.is_empty() {
            required(errors, driver_at.field("name"), "");
        } else if seen.contains(&name) {
            duplicate(errors, driver_at.field("name"), name);
        }
        seen.push(name);
        if text(driver, "nodeID").is_empty() {
            required(errors, driver_at.field("nodeID"), "");
        }
        let allocatable_at = driver_at.field("allocatable");
        non_negative(errors, allocatable_at.field("count"), int(at(driver, &["allocatable"]), "count"));
        for key in items(driver, "topologyKeys").iter().filter_map(Value::as_str) {
            checks::qualified_name(errors, driver_at, key);
        }
    }
}

pub(super) fn csi_node_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    csi_node(new, errors);
    for driver in items(at(new, &["spec"]), "drivers") {
        let name = text(driver, "name");
        let before = items(at(old, &["spec"]), "drivers").iter().find(|other| text(other, "name") == name);
        let fixed =
            |driver: &Value| (text(driver, "nodeID").to_owned(), items(driver, "topologyKeys").to_vec());
        if before.is_some_and(|before| fixed(before) != fixed(driver)) {
            let shown = json!({"Name": name, "NodeID": text(driver, "nodeID")});
            invalid(errors, At::Top("spec.drivers"), shown, IMMUTABLE);
        }
    }
}

pub(super) fn csi_driver_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    // The path is misspelt on the wire.
    for (key, shown) in
        [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
    {
        immutable(errors, SPEC.field(shown), at(spec, &[key]), at(before, &[key]));
    }
}

pub(super) fn attachment(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    if text(spec, "attacher").is_empty() {
        required(errors, SPEC.field("attacher"), "");
    }
    let source = at(spec, &["source"]);
    match (has(source, "inlineVolumeSpec"), has(source, "persistentVolumeName")) {
        (false, false) => {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            required(errors, SPEC.field("source"), detail);
        }
        (true, true) => {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            forbidden(errors, SPEC.field("source"), detail);
        }
        (false, true) if text(source, "persistentVolumeName").is_empty() => {
            required(
                errors,
                SPEC.field("source").field("persistentVolumeName"),
                "must specify non empty persistentVolumeName",
            );
        }
        _ => {}
    }
    dns_subdomain(errors, SPEC.field("nodeName"), text(spec, "nodeName"));
}

pub(super) fn attachment_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    attachment(new, errors);
    if subresource.is_none() && at(new, &["spec"]) != at(old, &["spec"]) {
        invalid(errors, SPEC, json!({"Attacher": text(at(new, &["spec"]), "attacher")}), IMMUTABLE);
    }
}

pub(super) fn capacity(object: &Value, errors: &mut Errors) {
    dns_subdomain(errors, At::Top("storageClassName"), text(object, "storageClassName"));
    if let Some(amount) = object.get("capacity") {
        checks::non_negative_quantity(errors, At::Top("capacity"), amount);
    }
    if let Some(selector) = object.get("nodeTopology") {
        label_selector(errors, At::Top("nodeTopology"), selector);
    }
}

pub(super) fn capacity_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    capacity(new, errors);
    for key in ["nodeTopology", "storageClassName"] {
        immutable(errors, At::Top(key), at(new, &[key]), at(old, &[key]));
    }
}
