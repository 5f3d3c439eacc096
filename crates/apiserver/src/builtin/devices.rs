//! Dynamic resource allocation: claims, their templates, device classes and slices.

use serde_json::Value;

use super::Rules;
use super::fields::{child, default_to, inner, items_mut, text};

pub(super) const CLAIM: Rules =
    Rules { default: |claim| default_requests(child(claim, "spec")), ..Rules::NONE };
pub(super) const CLAIM_TEMPLATE: Rules =
    Rules { default: |template| default_requests(child(child(template, "spec"), "spec")), ..Rules::NONE };

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
