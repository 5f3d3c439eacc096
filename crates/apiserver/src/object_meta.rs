//! The types of `metadata` in custom objects: their schemas leave it to the server.
//!
//! Built-in kinds have their metadata checked with the rest of their structure; here the same is done for objects of
//! which only the metadata's structure is known.

use serde_json::{Map, Value};

use crate::json::go_type;

/// The shape of one metadata field.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Integer,
    Time,
    TextMap,
    TextList,
    Owners,
    /// Dropped, whatever it is.
    Ignored,
}

fn shape(field: &str) -> Option<Shape> {
    Some(match field {
        "name" | "generateName" | "namespace" | "selfLink" | "uid" | "resourceVersion" => Shape::Text,
        "generation" | "deletionGracePeriodSeconds" => Shape::Integer,
        "creationTimestamp" | "deletionTimestamp" => Shape::Time,
        "labels" | "annotations" => Shape::TextMap,
        "finalizers" => Shape::TextList,
        "ownerReferences" => Shape::Owners,
        "managedFields" => Shape::Ignored,
        _ => return None,
    })
}

/// Checks the types in an object's metadata, drops unknown and empty fields, and gives back the paths of the unknown
/// ones. The error is Go's decoder's text.
pub(crate) fn conform(object: &mut Value) -> Result<Vec<String>, String> {
    let Some(metadata) = object.get_mut("metadata") else { return Ok(Vec::new()) };
    let fields = match metadata {
        Value::Null => {
            *metadata = Value::Object(Map::new());
            return Ok(Vec::new());
        }
        Value::Object(fields) => fields,
        other => {
            return Err(format!(
                "json: cannot unmarshal {} into Go struct field ObjectMeta.metadata of type v1.ObjectMeta",
                go_type(other)
            ));
        }
    };
    let mut unknown = Vec::new();
    let mut dropped = Vec::new();
    for (name, value) in fields.iter() {
        let Some(shape) = shape(name) else {
            unknown.push(format!("metadata.{name}"));
            dropped.push(name.clone());
            continue;
        };
        if value.is_null() || !keep(name, value, shape)? {
            dropped.push(name.clone());
        }
    }
    for name in dropped {
        fields.remove(&name);
    }
    if let Some(Value::Array(owners)) = fields.get_mut("ownerReferences") {
        for (at, owner) in owners.iter_mut().enumerate() {
            conform_owner(owner, at, &mut unknown);
        }
    }
    Ok(unknown)
}

/// Whether a field of a sound type holds anything; Go leaves empty ones out.
fn keep(name: &str, value: &Value, shape: Shape) -> Result<bool, String> {
    let wrong = |got: &Value, wanted: &str| {
        Err(format!(
            "json: cannot unmarshal {} into Go struct field ObjectMeta.{name} of type {wanted}",
            go_type(got)
        ))
    };
    match (shape, value) {
        (Shape::Ignored, _) => Ok(false),
        (Shape::Text, Value::String(text)) => Ok(!text.is_empty()),
        (Shape::Text, other) => wrong(other, "string"),
        (Shape::Integer, Value::Number(number)) if number.is_i64() => {
            Ok(name != "generation" || number.as_i64() != Some(0))
        }
        (Shape::Integer, Value::Number(number)) => Err(format!(
            "json: cannot unmarshal number {number} into Go struct field ObjectMeta.{name} of type int64"
        )),
        (Shape::Integer, other) => wrong(other, "int64"),
        (Shape::Time, Value::String(text)) => match text.parse::<jiff::Timestamp>() {
            Ok(_) => Ok(true),
            Err(_) => Err(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
            )),
        },
        (Shape::Time, other) => wrong(other, "string"),
        (Shape::TextMap, Value::Object(map)) => match map.values().find(|value| !value.is_string()) {
            Some(other) => wrong(other, "string"),
            None => Ok(!map.is_empty()),
        },
        (Shape::TextMap, other) => wrong(other, "map[string]string"),
        (Shape::TextList, Value::Array(items)) => match items.iter().find(|item| !item.is_string()) {
            Some(other) => wrong(other, "string"),
            None => Ok(!items.is_empty()),
        },
        (Shape::TextList, other) => wrong(other, "[]string"),
        (Shape::Owners, Value::Array(items)) => {
            for item in items {
                check_owner(item)?;
            }
            Ok(!items.is_empty())
        }
        (Shape::Owners, other) => wrong(other, "[]v1.OwnerReference"),
    }
}

const OWNER_TEXTS: [&str; 4] = ["apiVersion", "kind", "name", "uid"];
const OWNER_FLAGS: [&str; 2] = ["controller", "blockOwnerDeletion"];

fn check_owner(owner: &Value) -> Result<(), String> {
    let Some(fields) = owner.as_object() else {
        return Err(format!(
            "json: cannot unmarshal {} into Go struct field ObjectMeta.ownerReferences of type v1.OwnerReference",
            go_type(owner)
        ));
    };
    let sound = |name: &str, wanted: &str, ok: fn(&Value) -> bool| match fields.get(name) {
        Some(value) if !ok(value) && !value.is_null() => Err(format!(
            "json: cannot unmarshal {} into Go struct field OwnerReference.ownerReferences.{name} of type {wanted}",
            go_type(value)
        )),
        _ => Ok(()),
    };
    OWNER_TEXTS.iter().try_for_each(|name| sound(name, "string", Value::is_string))?;
    OWNER_FLAGS.iter().try_for_each(|name| sound(name, "bool", Value::is_boolean))
}

/// Drops what an owner reference does not have, and fills in the texts Go always writes.
fn conform_owner(owner: &mut Value, at: usize, unknown: &mut Vec<String>) {
    let Some(fields) = owner.as_object_mut() else { return };
    fields.retain(|name, value| {
        let known = OWNER_TEXTS.contains(&name.as_str()) || OWNER_FLAGS.contains(&name.as_str());
        if !known {
            unknown.push(format!("metadata.ownerReferences[{at}].{name}"));
        }
        known && !value.is_null()
    });
    for name in OWNER_TEXTS {
        fields.entry(name).or_insert_with(|| Value::String(String::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_and_empty_fields_go_and_wrong_types_are_told() {
        let mut object = json!({"metadata": {"name": "a", "foo": 1, "labels": {}, "uid": null}});
        assert_eq!(conform(&mut object), Ok(vec!["metadata.foo".to_owned()]));
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
        let refused = |metadata: Value| conform(&mut json!({ "metadata": metadata })).unwrap_err();
        assert_eq!(
            refused(json!({"name": 5})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"
        );
        assert_eq!(
            refused(json!({"labels": {"a": 5}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"
        );
    }
}
