//! LimitRanges and ResourceQuotas.

use serde_json::Value;

use super::Rules;
use super::fields::{at, child, default_to, inner, items_mut, text};
use super::pod_defaults::default_resource_list;

pub(super) const LIMIT_RANGE: Rules = Rules { default: default_limit_range, ..Rules::NONE };
pub(super) const RESOURCE_QUOTA: Rules = Rules { default: default_quota, ..Rules::NONE };

fn default_limit_range(range: &mut Value) {
    for item in items_mut(child(range, "spec"), "limits") {
        for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            if let Some(amounts) = inner(item, list) {
                default_resource_list(amounts);
            }
        }
        if text(item, "type") == "Container" {
            for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
                let amounts = at(item, &[from]).as_object().cloned().unwrap_or_default();
                for (name, amount) in amounts {
                    default_to(child(item, to), &name, amount);
                }
            }
        }
    }
}

fn default_quota(quota: &mut Value) {
    if let Some(hard) = inner(child(quota, "spec"), "hard") {
        default_resource_list(hard);
    }
}
