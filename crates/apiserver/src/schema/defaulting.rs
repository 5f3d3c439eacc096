//! Filling in what the schema has defaults for: missing fields, and nulls where null is not allowed.
//!
//! A default is set only where its surrounding object exists; defaults inside it are then set too. Nothing is ever
//! overwritten, so defaulting twice changes nothing.

use serde_json::Value;

use super::node::{Additional, Node};

pub(super) fn set_defaults(value: &mut Value, node: &Node) {
    if !node.defaults {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, property) in &node.properties {
                let Some(default) = &property.default else { continue };
                let missing = map.get(name).is_none_or(|value| is_forbidden_null(value, property));
                if missing {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (key, value) in map.iter_mut() {
                if let Some(property) = node.properties.get(key) {
                    set_defaults(value, property);
                } else if let Some(Additional::Each(each)) = &node.additional {
                    fill(value, each);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = node.items.as_deref() {
                for item in items {
                    fill(item, node);
                }
            }
        }
        _ => {}
    }
}

fn fill(value: &mut Value, node: &Node) {
    if is_forbidden_null(value, node)
        && let Some(default) = &node.default
    {
        *value = default.clone();
    }
    set_defaults(value, node);
}

fn is_forbidden_null(value: &Value, node: &Node) -> bool {
    value.is_null() && !node.nullable
}
