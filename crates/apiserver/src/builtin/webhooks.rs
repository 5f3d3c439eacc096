//! Webhook configurations and admission policies: stored and shown, never called.

use serde_json::{Value, json};

use super::Rules;
use super::fields::{child, default_to, inner, items_mut};

pub(super) const VALIDATING: Rules =
    Rules { default: |config| default_webhooks(config, false), ..Rules::NONE };
pub(super) const MUTATING: Rules = Rules { default: |config| default_webhooks(config, true), ..Rules::NONE };
pub(super) const POLICY: Rules = Rules { default: default_policy, ..Rules::NONE };
pub(super) const POLICY_BINDING: Rules = Rules { default: default_policy_binding, ..Rules::NONE };

fn default_webhooks(configuration: &mut Value, mutating: bool) {
    for webhook in items_mut(configuration, "webhooks") {
        default_to(webhook, "failurePolicy", "Fail");
        default_to(webhook, "matchPolicy", "Equivalent");
        default_to(webhook, "namespaceSelector", json!({}));
        default_to(webhook, "objectSelector", json!({}));
        default_to(webhook, "timeoutSeconds", 10);
        if mutating {
            default_to(webhook, "reinvocationPolicy", "Never");
        }
        if let Some(service) = inner(child(webhook, "clientConfig"), "service") {
            default_to(service, "port", 443);
        }
        default_scopes(webhook, "rules");
    }
}

fn default_scopes(owner: &mut Value, list: &str) {
    for rule in items_mut(owner, list) {
        default_to(rule, "scope", "*");
    }
}

fn default_match(resources: &mut Value) {
    default_to(resources, "matchPolicy", "Equivalent");
    default_to(resources, "namespaceSelector", json!({}));
    default_to(resources, "objectSelector", json!({}));
    default_scopes(resources, "resourceRules");
    default_scopes(resources, "excludeResourceRules");
}

fn default_policy(policy: &mut Value) {
    let spec = child(policy, "spec");
    default_to(spec, "failurePolicy", "Fail");
    if let Some(constraints) = inner(spec, "matchConstraints") {
        default_match(constraints);
    }
}

fn default_policy_binding(binding: &mut Value) {
    if let Some(resources) = inner(child(binding, "spec"), "matchResources") {
        default_match(resources);
    }
}
