//! Namespaces.

use serde_json::{Value, json};

use super::checks::{Errors, invalid, qualified_name};
use super::fields::{at, child, default_to, items, keep, set, text};
use super::path::At;
use super::{Lookup, Rules, StatusOnCreate};
use crate::status::ApiError;

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create,
    prepare_update,
    validate_create: validate,
    validate_update: |new, _, _, errors| validate(new, errors),
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

fn validate(namespace: &Value, errors: &mut Errors) {
    let at_finalizers = At::Top("spec.finalizers");
    for finalizer in items(at(namespace, &["spec"]), "finalizers").iter().filter_map(Value::as_str) {
        qualified_name(errors, at_finalizers, finalizer);
        if !finalizer.contains('/') && finalizer != "kubernetes" {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            invalid(errors, at_finalizers, finalizer, detail);
        }
    }
}
