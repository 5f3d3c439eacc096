//! What pods ask of their nodes beside cpu and memory: resource claims and slices, runtime classes.

use serde_json::{Value, json};

use super::Rules;
use super::checks::{
    self, Errors, IMMUTABLE, dns_label, dns_subdomain, duplicate, invalid, non_negative, required,
};
use super::fields::{at, child, default_to, has, inner, int, items, items_mut, text};
use super::path::At;
use super::storage::keep_metadata_in_status;

pub(super) const CLAIM: Rules = Rules {
    default: |claim| default_requests(child(claim, "spec")),
    prepare_update: keep_metadata_in_status,
    validate_create: |claim, errors| validate_requests(errors, At::Top("spec"), at(claim, &["spec"])),
    validate_update: validate_claim_update,
    ..Rules::NONE
};
pub(super) const CLAIM_TEMPLATE: Rules = Rules {
    default: |template| default_requests(child(child(template, "spec"), "spec")),
    validate_create: |template, errors| {
        validate_requests(errors, At::Top("spec.spec"), at(template, &["spec", "spec"]));
    },
    validate_update: |new, old, _, errors| {
        checks::immutable(errors, At::Top("spec"), at(new, &["spec"]), at(old, &["spec"]));
    },
    ..Rules::NONE
};
pub(super) const SLICE: Rules =
    Rules { validate_create: validate_slice, validate_update: validate_slice_update, ..Rules::NONE };
pub(super) const RUNTIME_CLASS: Rules = Rules {
    validate_create: validate_runtime_class,
    validate_update: validate_runtime_class_update,
    ..Rules::NONE
};

fn default_requests(spec: &mut Value) {
    let Some(devices) = inner(spec, "devices") else { return };
    for request in items_mut(devices, "requests") {
        if let Some(exactly) = inner(request, "exactly") {
            default_count(exactly);
        }
        for alternative in items_mut(request, "firstAvailable") {
            default_count(alternative);
        }
    }
}

fn default_count(request: &mut Value) {
    default_to(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        default_to(request, "count", 1);
    }
}

fn validate_requests(errors: &mut Errors, spec_at: At<'_>, spec: &Value) {
    let devices_at = spec_at.field("devices");
    let list_at = devices_at.field("requests");
    let mut seen = Vec::new();
    for (index, request) in items(at(spec, &["devices"]), "requests").iter().enumerate() {
        let request_at = list_at.index(index);
        let name = text(request, "name");
        match (request.get("exactly"), items(request, "firstAvailable")) {
            (None, []) => {
                required(errors, request_at, "exactly one of `exactly` or `firstAvailable` is required");
            }
            (Some(exactly), []) => class_name(errors, request_at.field("exactly"), exactly),
            (None, alternatives) => {
                let alternatives_at = request_at.field("firstAvailable");
                for (index, alternative) in alternatives.iter().enumerate() {
                    class_name(errors, alternatives_at.index(index), alternative);
                }
            }
            (Some(_), _) => {
                let detail =
                    "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
                invalid(errors, request_at, json!({"Name": name}), detail);
            }
        }
        if name.is_empty() {
            required(errors, request_at.field("name"), "");
        } else if seen.contains(&name) {
            duplicate(errors, request_at, name);
        } else {
            dns_label(errors, request_at.field("name"), name);
        }
        seen.push(name);
    }
}

fn class_name(errors: &mut Errors, request_at: At<'_>, request: &Value) {
    match text(request, "deviceClassName") {
        "" => required(errors, request_at.field("deviceClassName"), ""),
        name => dns_subdomain(errors, request_at.field("deviceClassName"), name),
    }
}

fn validate_claim_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource.is_none() && at(new, &["spec"]) != at(old, &["spec"]) {
        // kube-apiserver prints its own type here.
        invalid(errors, At::Top("spec"), json!({"Devices": at(new, &["spec", "devices"])}), IMMUTABLE);
    }
}

fn validate_slice(slice: &Value, errors: &mut Errors) {
    let spec = at(slice, &["spec"]);
    let spec_at = At::Top("spec");
    match text(spec, "driver") {
        "" => required(errors, spec_at.field("driver"), ""),
        driver => dns_subdomain(errors, spec_at.field("driver"), driver),
    }
    let pool = at(spec, &["pool"]);
    let pool_at = spec_at.field("pool");
    if text(pool, "name").is_empty() {
        required(errors, pool_at.field("name"), "");
    }
    let count = int(pool, "resourceSliceCount").unwrap_or(0);
    if count <= 0 {
        invalid(errors, pool_at.field("resourceSliceCount"), count, "must be greater than zero");
    }
    non_negative(errors, pool_at.field("generation"), int(pool, "generation"));
    let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    let given = places.iter().filter(|key| has(spec, key)).count();
    if given == 0 {
        let detail =
            "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
        required(errors, spec_at, detail);
    }
    let list_at = spec_at.field("devices");
    let mut seen = Vec::new();
    for (index, device) in items(spec, "devices").iter().enumerate() {
        let device_at = list_at.index(index);
        let name = text(device, "name");
        dns_label(errors, device_at.field("name"), name);
        if seen.contains(&name) {
            duplicate(errors, device_at.field("name"), name);
        }
        seen.push(name);
    }
}

fn validate_slice_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    validate_slice(new, errors);
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    let spec_at = At::Top("spec");
    for key in ["driver", "nodeName"] {
        checks::immutable(errors, spec_at.field(key), at(spec, &[key]), at(before, &[key]));
    }
    let pool_at = spec_at.field("pool");
    checks::immutable(
        errors,
        pool_at.field("name"),
        at(spec, &["pool", "name"]),
        at(before, &["pool", "name"]),
    );
}

fn validate_runtime_class(class: &Value, errors: &mut Errors) {
    match text(class, "handler") {
        "" => required(errors, At::Top("handler"), ""),
        handler => dns_label(errors, At::Top("handler"), handler),
    }
}

fn validate_runtime_class_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    checks::immutable(errors, At::Top("handler"), at(new, &["handler"]), at(old, &["handler"]));
}
