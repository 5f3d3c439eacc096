//! LimitRanges and ResourceQuotas.

use serde_json::Value;

use super::Rules;
use super::checks::{self, Errors, duplicate, forbidden, invalid};
use super::fields::{at, child, default_to, entries, has, inner, items, items_mut, text};
use super::path::At;
use super::pod_defaults::default_resource_list;
use super::quantity;

pub(super) const LIMIT_RANGE: Rules = Rules {
    default: default_limit_range,
    validate_create: validate_limit_range,
    validate_update: |new, _, _, errors| validate_limit_range(new, errors),
    ..Rules::NONE
};
pub(super) const RESOURCE_QUOTA: Rules = Rules {
    default: default_quota,
    validate_create: validate_quota,
    validate_update: |new, _, _, errors| validate_quota(new, errors),
    ..Rules::NONE
};

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

fn validate_limit_range(range: &Value, errors: &mut Errors) {
    let list_at = At::Top("spec.limits");
    let mut seen = Vec::new();
    for (index, item) in items(at(range, &["spec"]), "limits").iter().enumerate() {
        let item_at = list_at.index(index);
        let kind = text(item, "type");
        if seen.contains(&kind) {
            duplicate(errors, item_at.field("type"), kind);
        }
        seen.push(kind);
        if kind == "Pod" {
            for list in ["default", "defaultRequest"] {
                if has(item, list) {
                    forbidden(errors, item_at.field(list), "may not be specified when `type` is 'Pod'");
                }
            }
            continue;
        }
        let amount = |list: &str, name: &str| quantity::parse(at(item, &[list, name]).as_str());
        let mut names: Vec<&String> = ["min", "max", "default", "defaultRequest"]
            .iter()
            .flat_map(|list| entries(item, list).map(|(name, _)| name))
            .collect();
        names.sort();
        names.dedup();
        // (list and shown amount, smaller and greater, in words): what must not be greater than what.
        let orders = [
            ("min", "min", "min", "max", "min value", "max value"),
            (
                "defaultRequest",
                "defaultRequest",
                "min",
                "defaultRequest",
                "min value",
                "default request value",
            ),
            (
                "defaultRequest",
                "defaultRequest",
                "defaultRequest",
                "max",
                "default request value",
                "max value",
            ),
            ("default", "min", "min", "default", "min value", "default value"),
            ("default", "max", "default", "max", "default value", "max value"),
            (
                "defaultRequest",
                "defaultRequest",
                "defaultRequest",
                "default",
                "default request value",
                "default limit value",
            ),
        ];
        for name in names {
            for (list, shown, low, high, low_words, high_words) in orders {
                if let (Some(a), Some(b)) = (amount(low, name), amount(high, name))
                    && a > b
                {
                    let value = amount(shown, name).map(|q| q.to_string()).unwrap_or_default();
                    let amounts_at = item_at.field(list);
                    let detail = format!("{low_words} {a} is greater than {high_words} {b}");
                    invalid(errors, amounts_at.key(name), value, detail);
                }
            }
        }
    }
}

const QUOTA_NAMES: &[&str] = &[
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

fn validate_quota(quota: &Value, errors: &mut Errors) {
    let spec = at(quota, &["spec"]);
    let hard_at = At::Top("spec.hard");
    for (name, amount) in entries(spec, "hard") {
        let entry_at = hard_at.key(name);
        checks::qualified_name(errors, entry_at, name);
        let huge_pages = name.starts_with("requests.hugepages-") || name.starts_with("hugepages-");
        if !name.contains('/') && !QUOTA_NAMES.contains(&name.as_str()) && !huge_pages {
            invalid(errors, entry_at, name.as_str(), "must be a standard resource type or fully qualified");
            invalid(errors, entry_at, name.as_str(), "must be a standard resource for quota");
        }
        checks::non_negative_quantity(errors, entry_at, amount);
    }
    let scopes = items(spec, "scopes");
    if scopes.iter().filter_map(Value::as_str).any(|scope| !SCOPES.contains(&scope)) {
        invalid(errors, At::Top("spec.scopes"), scopes.to_vec(), "unsupported scope");
    }
}
