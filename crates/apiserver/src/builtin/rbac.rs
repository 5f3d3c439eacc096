//! Roles and their bindings.

use serde_json::Value;

use super::Rules;
use super::fields::{child, items_mut, set, text};

pub(super) const BINDING: Rules = Rules { default: default_binding, ..Rules::NONE };

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
