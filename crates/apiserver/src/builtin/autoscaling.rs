//! HorizontalPodAutoscalers: `autoscaling/v2` is what is stored, `autoscaling/v1` a narrower view of it.

use serde_json::{Value, json};

use super::Rules;
use super::checks::{Errors, invalid, required};
use super::fields::{at, child, default_to, inner, int, items, remove, set, text};
use super::path::At;

pub(super) const V2: Rules =
    Rules { default: default_v2, validate_create: validate, validate_update, ..Rules::NONE };
pub(super) const V1: Rules =
    Rules { default: default_v1, validate_create: validate, validate_update, ..Rules::NONE };

fn default_v1(autoscaler: &mut Value) {
    let spec = child(autoscaler, "spec");
    default_to(spec, "minReplicas", 1);
    // The stored form would gain this metric anyway.
    default_to(spec, "targetCPUUtilizationPercentage", 80);
}

fn default_v2(autoscaler: &mut Value) {
    let spec = child(autoscaler, "spec");
    default_to(spec, "minReplicas", 1);
    if items(spec, "metrics").is_empty() {
        set(spec, "metrics", json!([utilization("cpu", 80)]));
    }
    if let Some(behavior) = inner(spec, "behavior") {
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        let up = child(behavior, "scaleUp");
        default_to(up, "stabilizationWindowSeconds", 0);
        default_to(up, "selectPolicy", "Max");
        default_to(
            up,
            "policies",
            json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, percent.clone()]),
        );
        let down = child(behavior, "scaleDown");
        default_to(down, "selectPolicy", "Max");
        default_to(down, "policies", json!([percent]));
    }
}

fn utilization(resource: &str, percent: i64) -> Value {
    json!({
        "type": "Resource",
        "resource": {"name": resource, "target": {"type": "Utilization", "averageUtilization": percent}},
    })
}

/// `autoscaling/v1` to `autoscaling/v2`.
pub(super) fn v1_to_v2(object: &mut Value) {
    set(object, "apiVersion", "autoscaling/v2");
    let spec = child(object, "spec");
    if let Some(percent) = remove(spec, "targetCPUUtilizationPercentage").and_then(|p| p.as_i64()) {
        set(spec, "metrics", json!([utilization("cpu", percent)]));
    }
    let status = child(object, "status");
    if let Some(current) = remove(status, "currentCPUUtilizationPercentage").and_then(|p| p.as_i64()) {
        set(
            status,
            "currentMetrics",
            json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": current}}}]),
        );
    }
}

/// `autoscaling/v2` to `autoscaling/v1`: what v1 has no word for is left out.
pub(super) fn v2_to_v1(object: &mut Value) {
    set(object, "apiVersion", "autoscaling/v1");
    let spec = child(object, "spec");
    let percent = items(spec, "metrics")
        .iter()
        .find(|m| at(m, &["resource", "name"]) == "cpu")
        .and_then(|m| int(at(m, &["resource", "target"]), "averageUtilization"));
    remove(spec, "metrics");
    remove(spec, "behavior");
    if let Some(percent) = percent {
        set(spec, "targetCPUUtilizationPercentage", percent);
    }
    let status = child(object, "status");
    let current = items(status, "currentMetrics")
        .iter()
        .find(|m| at(m, &["resource", "name"]) == "cpu")
        .and_then(|m| int(at(m, &["resource", "current"]), "averageUtilization"));
    remove(status, "currentMetrics");
    remove(status, "conditions");
    if let Some(current) = current {
        set(status, "currentCPUUtilizationPercentage", current);
    }
    default_to(status, "currentReplicas", 0);
    default_to(status, "desiredReplicas", 0);
}

fn validate(autoscaler: &Value, errors: &mut Errors) {
    let spec = at(autoscaler, &["spec"]);
    let spec_at = At::Top("spec");
    let target_at = spec_at.field("scaleTargetRef");
    let target = at(spec, &["scaleTargetRef"]);
    for key in ["kind", "name"] {
        if text(target, key).is_empty() {
            required(errors, target_at.field(key), "");
        }
    }
    let version = text(target, "apiVersion");
    let core_kind = version == "v1" && text(target, "kind") == "ReplicationController";
    if !core_kind && !version.contains('/') {
        invalid(errors, target_at.field("apiVersion"), version, "apiVersion must specify API group");
    }
    let (least, most) = (int(spec, "minReplicas").unwrap_or(1), int(spec, "maxReplicas").unwrap_or(0));
    if least < 1 {
        invalid(errors, spec_at.field("minReplicas"), least, "must be greater than or equal to 1");
    }
    if most < 1 {
        required(errors, spec_at.field("maxReplicas"), "must be set and greater than 0");
    }
    if most < least {
        invalid(errors, spec_at.field("maxReplicas"), most, "must be greater than or equal to `minReplicas`");
    }
}

fn validate_update(new: &Value, _old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource.is_none() {
        validate(new, errors);
    }
}
