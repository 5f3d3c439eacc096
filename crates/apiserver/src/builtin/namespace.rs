//! Namespaces.

use serde_json::{Value, json};

use super::checks::{Errors, invalid, qualified_name};
use super::fields::{at, child, default_to, has, items, keep, set, text};
use super::path::At;
use super::{Lookup, Rules, StatusOnCreate};
use crate::status::ApiError;

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create,
    prepare_update,
    validate_create: validate,
    validate_update,
    status_on_create: StatusOnCreate::Kept,
};

fn default(namespace: &mut Value) {
    let metadata = child(namespace, "metadata");
    let name = text(metadata, "name").to_owned();
    if !name.is_empty() {
        set(child(metadata, "labels"), "kubernetes.io/metadata.name", name);
    }
    default_to(child(namespace, "status"), "phase", "Active");
}

fn prepare_create(namespace: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    set(namespace, "status", json!({"phase": "Active"}));
    // The name may have been drawn only now.
    default(namespace);
    let spec = child(namespace, "spec");
    if !items(spec, "finalizers").iter().any(|f| f == "kubernetes") {
        let mut finalizers = items(spec, "finalizers").to_vec();
        finalizers.push("kubernetes".into());
        set(spec, "finalizers", finalizers);
    }
    Ok(())
}

fn prepare_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    if subresource != Some("finalize") {
        keep(child(new, "spec"), at(old, &["spec"]), "finalizers");
    }
}

fn validate_update(new: &Value, _old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    finalizers(new, errors, subresource == Some("finalize"));
    let phase = text(at(new, &["status"]), "phase");
    let (only, deleting) = match has(at(new, &["metadata"]), "deletionTimestamp") {
        true => ("Terminating", "is not empty"),
        false => ("Active", "is empty"),
    };
    if subresource == Some("status") && phase != only {
        // The path is spelt so on the wire.
        let detail = format!("may only be '{only}' if `deletionTimestamp` {deleting}");
        invalid(errors, At::Top("status.Phase"), phase, detail);
    }
}

fn validate(namespace: &Value, errors: &mut Errors) {
    finalizers(namespace, errors, false);
}

/// `indexed`: the check of the `finalize` part also says which one is wrong.
fn finalizers(namespace: &Value, errors: &mut Errors, indexed: bool) {
    let list_at = At::Top("spec.finalizers");
    let finalizers = items(at(namespace, &["spec"]), "finalizers").iter().filter_map(Value::as_str);
    for (index, finalizer) in finalizers.enumerate() {
        let finalizer_at = if indexed { list_at.index(index) } else { list_at };
        qualified_name(errors, finalizer_at, finalizer);
        if !finalizer.contains('/') && finalizer != "kubernetes" {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            invalid(errors, finalizer_at, finalizer, detail);
        }
    }
}
