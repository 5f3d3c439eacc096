//! Whether the defaults of a schema are values the schema itself accepts.

use serde_json::Value;

use super::cel::{self, Ratchet};
use super::embedded;
use super::node::Node;
use super::path::Path;
use super::prune::prune_value;
use super::validate;
use crate::field_error::FieldError;

pub(super) fn check(root: &Node, at: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if root.defaults {
        descend(root, false, true, at, &mut errors);
    }
    errors
}

/// `in_meta`: inside `apiVersion`, `kind` or `metadata` of an embedded resource.
fn descend(node: &Node, in_meta: bool, resource: bool, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let in_meta = in_meta && !node.embedded;
    if let Some(default) = &node.default {
        check_default(node, default, in_meta, &at.field("default"), errors);
    }
    if let Some(items) = node.items.as_deref() {
        descend(items, in_meta, items.embedded, &at.field("items"), errors);
    }
    let properties = at.field("properties");
    for (name, property) in &node.properties {
        let meta = resource && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        descend(property, in_meta || meta, property.embedded, &properties.key(name), errors);
    }
}

fn check_default(node: &Node, default: &Value, in_meta: bool, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !in_meta {
        let mut pruned = default.clone();
        prune_value(&mut pruned, node);
        if pruned != *default {
            errors.push(FieldError::invalid(at.to_string(), default, "must not have unknown fields"));
        }
        let before = errors.len();
        embedded::check(default, node, at, errors);
        if errors.len() > before {
            return;
        }
    }
    let invalid = validate::check(node, default, None, at);
    if !invalid.is_empty() {
        errors.extend(invalid);
        return;
    }
    let before = errors.len();
    // A default may come by an update that keeps it and by a creation: both must pass.
    cel::check(node, default, Some(default), Ratchet::default(), at, errors);
    if errors.len() == before {
        cel::check(node, default, None, Ratchet::default(), at, errors);
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::tests::compile;
    use serde_json::json;

    #[test]
    fn a_default_that_the_schema_refuses_is_refused_with_the_crd() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer", "minimum": 1, "default": 0},
        }}}});
        let errors = compile(&schema, "schema").err().unwrap();
        assert_eq!(
            errors[0].to_string(),
            "schema.properties[spec].properties[size].default: Invalid value: 0: \
             <nil> in body should be greater than or equal to 1"
                .replace("<nil> ", " ")
        );
    }
}
