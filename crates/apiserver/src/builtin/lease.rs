//! Leases.

use serde_json::Value;

use super::Rules;
use super::checks::{Errors, invalid, non_negative};
use super::fields::{at, int};
use super::path::At;

pub(super) const RULES: Rules = Rules {
    validate_create: validate,
    validate_update: |new, _, _, errors| validate(new, errors),
    ..Rules::NONE
};

fn validate(lease: &Value, errors: &mut Errors) {
    let spec = at(lease, &["spec"]);
    let spec_at = At::Top("spec");
    if let Some(seconds) = int(spec, "leaseDurationSeconds").filter(|s| *s <= 0) {
        invalid(errors, spec_at.field("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    non_negative(errors, spec_at.field("leaseTransitions"), int(spec, "leaseTransitions"));
}
