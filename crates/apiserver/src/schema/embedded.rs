//! Resources inside resources (`x-kubernetes-embedded-resource`): they must say what they are.

use serde_json::Value;

use super::node::{Additional, Node};
use super::path::Path;
use crate::crd::names;
use crate::field_error::FieldError;

pub(super) fn check(value: &Value, node: &Node, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.embeds {
        return;
    }
    match value {
        Value::Object(map) => {
            if node.embedded {
                check_type_and_metadata(value, at, errors);
            }
            for (key, value) in map {
                if let Some(property) = node.properties.get(key) {
                    check(value, property, &at.field(key), errors);
                } else if let Some(Additional::Each(each)) = &node.additional {
                    check(value, each, &at.key(key), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = node.items.as_deref() {
                for (i, item) in items.iter().enumerate() {
                    check(item, node, &at.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

pub(super) fn check_type_and_metadata(resource: &Value, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let path = at.field(name).to_string();
        match resource.get(name) {
            None => errors.push(FieldError::required(path, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(path, &Value::from(""), "must not be empty"));
            }
            Some(value @ Value::String(text)) => {
                let wrong = if name == "kind" {
                    let problems = names::dns_1035_label(&text.to_lowercase());
                    (!problems.is_empty()).then(|| {
                        format!("may have mixed case, but should otherwise match: {}", problems.join(","))
                    })
                } else {
                    (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
                };
                errors.extend(wrong.map(|detail| FieldError::invalid(path, value, detail)));
            }
            Some(value) => errors.push(FieldError::invalid(path, value, "must be a string")),
        }
    }
    if let Some(metadata) = resource.get("metadata") {
        check_metadata(metadata, &at.field("metadata"), errors);
    }
}

fn check_metadata(metadata: &Value, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(map) = metadata.as_object() else {
        if !metadata.is_null() {
            let detail = "json: cannot unmarshal into an object of type v1.ObjectMeta";
            errors.push(FieldError::invalid(at.to_string(), metadata, detail));
        }
        return;
    };
    for (field, prefix) in [("generateName", true), ("name", false)] {
        let Some(value @ Value::String(text)) = map.get(field) else { continue };
        for problem in names::path_segment(text, prefix) {
            errors.push(FieldError::invalid(at.field(field).to_string(), value, problem));
        }
    }
}
