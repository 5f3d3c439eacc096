//! Roles and their bindings.

use serde_json::{Value, json};

use super::Rules;
use super::checks::{Errors, dns_subdomain, invalid, label_selector, required, unsupported};
use super::fields::{at, child, has, items, items_mut, set, text};
use super::path::At;

pub(super) const ROLE: Rules = Rules {
    validate_create: |role, errors| validate_rules(role, true, errors),
    validate_update: |role, _, _, errors| validate_rules(role, true, errors),
    ..Rules::NONE
};
pub(super) const CLUSTER_ROLE: Rules = Rules {
    validate_create: validate_cluster_role,
    validate_update: |role, _, _, errors| validate_cluster_role(role, errors),
    ..Rules::NONE
};
pub(super) const ROLE_BINDING: Rules = Rules {
    default: default_binding,
    validate_create: |binding, errors| validate_binding(binding, &["Role", "ClusterRole"], errors),
    validate_update: |new, old, _, errors| {
        validate_binding_update(new, old, &["Role", "ClusterRole"], errors)
    },
    ..Rules::NONE
};
pub(super) const CLUSTER_ROLE_BINDING: Rules = Rules {
    default: default_binding,
    validate_create: |binding, errors| validate_binding(binding, &["ClusterRole"], errors),
    validate_update: |new, old, _, errors| validate_binding_update(new, old, &["ClusterRole"], errors),
    ..Rules::NONE
};

const GROUP: &str = "rbac.authorization.k8s.io";

fn default_binding(binding: &mut Value) {
    let role = child(binding, "roleRef");
    if text(role, "apiGroup").is_empty() {
        set(role, "apiGroup", GROUP);
    }
    for subject in items_mut(binding, "subjects") {
        if text(subject, "apiGroup").is_empty() && matches!(text(subject, "kind"), "User" | "Group") {
            set(subject, "apiGroup", GROUP);
        }
    }
}

fn validate_cluster_role(role: &Value, errors: &mut Errors) {
    validate_rules(role, false, errors);
    if let Some(aggregation) = role.get("aggregationRule") {
        let list_at = At::Top("aggregationRule.clusterRoleSelectors");
        let selectors = items(aggregation, "clusterRoleSelectors");
        if selectors.is_empty() {
            required(
                errors,
                list_at,
                "at least one clusterRoleSelector required if aggregationRule is non-nil",
            );
        }
        for (index, selector) in selectors.iter().enumerate() {
            label_selector(errors, list_at.index(index), selector);
        }
    }
}

fn validate_rules(role: &Value, namespaced: bool, errors: &mut Errors) {
    let list_at = At::Top("rules");
    for (index, rule) in items(role, "rules").iter().enumerate() {
        let at = list_at.index(index);
        if items(rule, "verbs").is_empty() {
            required(errors, at.field("verbs"), "verbs must contain at least one value");
        }
        let urls = items(rule, "nonResourceURLs");
        if !urls.is_empty() {
            let resources =
                ["apiGroups", "resources", "resourceNames"].iter().any(|key| !items(rule, key).is_empty());
            let detail = if namespaced {
                "namespaced rules cannot apply to non-resource URLs"
            } else {
                "rules cannot apply to both regular resources and non-resource URLs"
            };
            if namespaced || resources {
                invalid(errors, at.field("nonResourceURLs"), urls.to_vec(), detail);
            }
            continue;
        }
        if items(rule, "apiGroups").is_empty() {
            required(errors, at.field("apiGroups"), "resource rules must supply at least one api group");
        }
        if items(rule, "resources").is_empty() {
            required(errors, at.field("resources"), "resource rules must supply at least one resource");
        }
    }
}

fn validate_binding(binding: &Value, roles: &[&str], errors: &mut Errors) {
    let role = at(binding, &["roleRef"]);
    let role_at = At::Top("roleRef");
    if text(role, "apiGroup") != GROUP {
        unsupported(errors, role_at.field("apiGroup"), text(role, "apiGroup"), &[GROUP]);
    }
    if !roles.contains(&text(role, "kind")) {
        unsupported(errors, role_at.field("kind"), text(role, "kind"), roles);
    }
    if text(role, "name").is_empty() {
        required(errors, role_at.field("name"), "");
    }
    let list_at = At::Top("subjects");
    for (index, subject) in items(binding, "subjects").iter().enumerate() {
        let at = list_at.index(index);
        let (kind, name) = (text(subject, "kind"), text(subject, "name"));
        if name.is_empty() {
            required(errors, at.field("name"), "");
        }
        match kind {
            "ServiceAccount" => {
                if !name.is_empty() {
                    dns_subdomain(errors, at.field("name"), name);
                }
                if has(subject, "apiGroup") {
                    unsupported(errors, at.field("apiGroup"), text(subject, "apiGroup"), &[""]);
                }
                // A RoleBinding may leave it out: its own namespace is meant.
                if text(subject, "namespace").is_empty() && roles.len() == 1 {
                    required(errors, at.field("namespace"), "");
                }
            }
            "User" | "Group" => {
                if text(subject, "apiGroup") != GROUP {
                    unsupported(errors, at.field("apiGroup"), text(subject, "apiGroup"), &[GROUP]);
                }
            }
            other => unsupported(errors, at.field("kind"), other, &["ServiceAccount", "User", "Group"]),
        }
    }
}

fn validate_binding_update(new: &Value, old: &Value, roles: &[&str], errors: &mut Errors) {
    validate_binding(new, roles, errors);
    let role = at(new, &["roleRef"]);
    if role != at(old, &["roleRef"]) {
        let shown = json!({"APIGroup": text(role, "apiGroup"), "Kind": text(role, "kind"), "Name": text(role, "name")});
        invalid(errors, At::Top("roleRef"), shown, "cannot change roleRef");
    }
}
