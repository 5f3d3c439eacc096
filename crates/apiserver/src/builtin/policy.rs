//! PodDisruptionBudgets.

use serde_json::Value;

use super::Rules;
use super::checks::{
    self, Errors, invalid, label_selector, non_negative, not_above_100_percent, unsupported,
};
use super::fields::{at, has, int, text};
use super::path::At;

pub(super) const DISRUPTION_BUDGET: Rules =
    Rules { validate_create: |budget, errors| validate(budget, errors), validate_update, ..Rules::NONE };

fn validate(budget: &Value, errors: &mut Errors) {
    let spec = at(budget, &["spec"]);
    let spec_at = At::Top("spec");
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        invalid(errors, spec_at, Value::Null, "minAvailable and maxUnavailable cannot be both set");
        checks::last_shown_as(
            errors,
            format!(
                r#"{{"MinAvailable":{},"Selector":{},"MaxUnavailable":{},"UnhealthyPodEvictionPolicy":{}}}"#,
                at(spec, &["minAvailable"]),
                at(spec, &["selector"]),
                at(spec, &["maxUnavailable"]),
                at(spec, &["unhealthyPodEvictionPolicy"])
            ),
        );
    }
    for key in ["minAvailable", "maxUnavailable"] {
        let Some(value) = spec.get(key) else { continue };
        if checks::int_or_percent(errors, spec_at.field(key), value) {
            not_above_100_percent(errors, spec_at.field(key), value);
        }
    }
    if let Some(selector) = spec.get("selector") {
        label_selector(errors, spec_at.field("selector"), selector);
    }
    let policy = text(spec, "unhealthyPodEvictionPolicy");
    if has(spec, "unhealthyPodEvictionPolicy") && !matches!(policy, "AlwaysAllow" | "IfHealthyBudget") {
        unsupported(
            errors,
            spec_at.field("unhealthyPodEvictionPolicy"),
            policy,
            &["AlwaysAllow", "IfHealthyBudget"],
        );
    }
}

fn validate_update(new: &Value, _old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource != Some("status") {
        validate(new, errors);
        return;
    }
    let status = at(new, &["status"]);
    let status_at = At::Top("status");
    for key in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        non_negative(errors, status_at.field(key), int(status, key));
    }
}
