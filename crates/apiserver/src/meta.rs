//! The rules every object's `metadata` follows, whatever its kind: what the server fills in, and what it refuses.

use jiff::Timestamp;
use karpenter_primitives::names;
use serde_json::{Map, Value};

use crate::environment::rfc3339;
use crate::field_error::FieldError;
use crate::object::{self, metadata, metadata_mut};
use crate::registry::{Handling, Resource};

/// The finalizers of the garbage collector; names that need no domain.
pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

/// What kube-apiserver accepts as a name of this resource.
pub(crate) fn name_errors(resource: &Resource, name: &str) -> Vec<String> {
    match &resource.handling {
        Handling::Builtin(kind) => (kind.name_errors)(name),
        Handling::Custom(_) => names::dns1123_subdomain_errors(name),
    }
}

/// The metadata only the server sets: wiped and set anew on everything that is created.
pub(crate) fn fill_system_fields(object: &mut Value, uid: String, now: Timestamp) {
    let metadata = metadata_mut(object);
    for wiped in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
        metadata.remove(wiped);
    }
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), rfc3339(now).into());
}

/// Carries over from the old object what an update can neither change nor leave out.
pub(crate) fn keep_system_fields(new: &mut Value, old: &Value) {
    let empty = Map::new();
    let old = metadata(old).unwrap_or(&empty);
    let new = metadata_mut(new);
    new.remove("managedFields");
    new.remove("selfLink");
    if new.get("uid").and_then(Value::as_str).unwrap_or_default().is_empty() {
        copy(new, old, "uid");
    }
    for fixed in ["creationTimestamp", "deletionTimestamp"] {
        if old.contains_key(fixed) {
            copy(new, old, fixed);
        }
    }
    if !new.contains_key("deletionGracePeriodSeconds") {
        copy(new, old, "deletionGracePeriodSeconds");
    }
}

/// Keeps one of several references to the same owner.
pub(crate) fn drop_repeated_owners(object: &mut Value) {
    let Some(Value::Array(owners)) = metadata_mut(object).get_mut("ownerReferences") else { return };
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    for owner in owners.drain(..) {
        if !kept.contains(&owner) {
            kept.push(owner);
        }
    }
    *owners = kept;
}

/// The warning about owners that are named twice, if any are.
pub(crate) fn repeated_owners(object: &Value) -> Option<String> {
    let owners = metadata(object)?.get("ownerReferences")?.as_array()?;
    let twice: Vec<&str> = owners
        .iter()
        .enumerate()
        .filter(|(at, owner)| owners[..*at].contains(owner))
        .filter_map(|(_, owner)| owner.get("uid")?.as_str())
        .collect();
    (!twice.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        )
    })
}

/// Makes a field what it is in `from`, absent if absent there.
pub(crate) fn copy(to: &mut Map<String, Value>, from: &Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => drop(to.insert(field.to_owned(), value.clone())),
        None => drop(to.remove(field)),
    }
}

/// What is wrong with the metadata of a new object.
pub(crate) fn validate(object: &Value, resource: &Resource) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |field| object::meta_str(object, field);
    let string = |text: &str| Value::String(text.to_owned());
    let generate_name = text("generateName");
    if !generate_name.is_empty() {
        for why in name_errors(resource, &names::mask_trailing_dash(generate_name)) {
            errors.push(FieldError::invalid("metadata.generateName", &string(generate_name), why));
        }
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for why in name_errors(resource, name) {
            errors.push(FieldError::invalid("metadata.name", &string(name), why));
        }
    }
    let empty = Map::new();
    let metadata = metadata(object).unwrap_or(&empty);
    if let Some(generation) = metadata.get("generation").filter(|g| g.as_i64().is_some_and(|g| g < 0)) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("metadata.generation", generation, why));
    }
    let namespace = text("namespace");
    if resource.namespaced {
        for why in names::dns1123_label_errors(namespace) {
            errors.push(FieldError::invalid("metadata.namespace", &string(namespace), why));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    validate_descriptions(metadata, &mut errors);
    validate_finalizers(metadata, !resource.is_custom(), &mut errors);
    errors
}

/// What is wrong with the metadata of a changed object.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if object::is_deleting(old) {
        let before = object::finalizers(old);
        let added: Vec<String> = object::finalizers(new)
            .into_iter()
            .filter(|finalizer| !before.contains(finalizer))
            .map(crate::go_format::quote)
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", detail));
        }
    }
    let empty = Map::new();
    let (new, old) = (metadata(new).unwrap_or(&empty), metadata(old).unwrap_or(&empty));
    let fixed =
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];
    for field in fixed {
        if new.get(field) != old.get(field) {
            let shown = new.get(field).unwrap_or(&Value::Null);
            errors.push(FieldError::invalid(format!("metadata.{field}"), shown, "field is immutable"));
        }
    }
    validate_descriptions(new, &mut errors);
    errors
}

/// Labels, annotations and owners: checked on create and on update alike.
fn validate_descriptions(metadata: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let strings = |field: &str| metadata.get(field).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in strings("labels") {
        for why in names::qualified_name_errors(key) {
            errors.push(FieldError::invalid("metadata.labels", &Value::String(key.clone()), why));
        }
        for why in names::label_value_errors(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.labels", value, why));
        }
    }
    let mut size_bytes = 0;
    for (key, value) in strings("annotations") {
        for why in names::qualified_name_errors(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &Value::String(key.clone()), why));
        }
        size_bytes += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size_bytes > ANNOTATIONS_MAX_BYTES {
        errors.push(FieldError::too_long("metadata.annotations", ANNOTATIONS_MAX_BYTES));
    }
    validate_owners(metadata, errors);
}

fn validate_owners(metadata: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let path = "metadata.ownerReferences";
    let owners = metadata.get("ownerReferences");
    let mut controller: Option<String> = None;
    for owner in owners.and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let api_version = text("apiVersion");
        let version = api_version.split_once('/').map_or(api_version, |(_, version)| version);
        // More than one slash is no version at all.
        if version.is_empty() || version.contains('/') {
            let shown = Value::String(api_version.to_owned());
            errors.push(FieldError::invalid(
                format!("{path}.apiVersion"),
                &shown,
                "version must not be empty",
            ));
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                let shown = Value::String(String::new());
                errors.push(FieldError::invalid(format!("{path}.{field}"), &shown, "must not be empty"));
            }
        }
        if (api_version, text("kind")) == ("v1", "Event") {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner, why));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            let this = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    let mut error = FieldError::invalid(path, &Value::Null, why);
                    error.shown = Some(show_owners(owners.unwrap_or(&Value::Null)));
                    errors.push(error);
                }
            }
        }
    }
}

/// Owner references as Go prints them: fields in the order of its struct.
fn show_owners(owners: &Value) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let shown = owners.as_array().into_iter().flatten().map(|owner| {
        let members = fields.iter().filter_map(|field| Some(format!("\"{field}\":{}", owner.get(field)?)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(","))
}

/// `strict` asks for a domain on every finalizer that is not one of the server's own.
fn validate_finalizers(metadata: &Map<String, Value>, strict: bool, errors: &mut Vec<FieldError>) {
    let list = metadata.get("finalizers");
    let finalizers: Vec<&str> =
        list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let shown = |finalizer: &str| Value::String(finalizer.to_owned());
    for finalizer in &finalizers {
        for why in names::qualified_name_errors(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", &shown(finalizer), why));
        }
    }
    if finalizers.contains(&ORPHAN) && finalizers.contains(&FOREGROUND) {
        let why = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(FieldError::invalid("metadata.finalizers", list.unwrap_or(&Value::Null), why));
    }
    for (at, finalizer) in finalizers.iter().enumerate().filter(|_| strict) {
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(finalizer) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("metadata.finalizers[{at}]"), &shown(finalizer), why));
        }
    }
}
