//! Reading and writing fields of an untyped object without ceremony: what is absent reads as empty.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a path; null where there is none.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    let mut current = value;
    for key in path {
        match current.get(key) {
            Some(next) => current = next,
            None => return &NULL,
        }
    }
    current
}

/// A string field; empty where there is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// An integer field.
pub(super) fn int(value: &Value, key: &str) -> Option<i64> {
    value.get(key).and_then(Value::as_i64)
}

/// A true boolean field.
pub(super) fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// A list field; empty where there is none.
pub(super) fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A list field to change; empty where there is none.
pub(super) fn items_mut<'a>(value: &'a mut Value, key: &str) -> &'a mut [Value] {
    value.get_mut(key).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}

/// The entries of a map field; none where there is no map.
pub(super) fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.get(key).and_then(Value::as_object).into_iter().flatten()
}

/// Whether a field is there (and not null).
pub(super) fn has(value: &Value, key: &str) -> bool {
    value.get(key).is_some_and(|v| !v.is_null())
}

/// Sets a field that is absent.
pub(super) fn default_to(value: &mut Value, key: &str, default: impl Into<Value>) {
    if let Value::Object(map) = value {
        match map.get_mut(key) {
            Some(present) if !present.is_null() => {}
            Some(null) => *null = default.into(),
            None => {
                map.insert(key.to_owned(), default.into());
            }
        }
    }
}

/// Sets a field.
pub(super) fn set(value: &mut Value, key: &str, new: impl Into<Value>) {
    if let Value::Object(map) = value {
        map.insert(key.to_owned(), new.into());
    }
}

/// Removes a field.
pub(super) fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut().and_then(|map| map.remove(key))
}

/// A struct field to change, made where it is absent. On anything but an object the value itself is given back, so
/// that a caller never has to stop.
pub(super) fn child<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    if !value.is_object() {
        return value;
    }
    let map = match value {
        Value::Object(map) => map,
        other => return other,
    };
    let slot = map.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()));
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot
}

/// A field to change, where it is there.
pub(super) fn inner<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    value.get_mut(key).filter(|v| !v.is_null())
}

/// Puts a field back to what it was.
pub(super) fn keep(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => set(new, key, value.clone()),
        None => {
            remove(new, key);
        }
    }
}

/// A status write: the old object with the new status and the new metadata.
pub(super) fn keep_all_but_status(new: &mut Value, old: &Value) {
    if let Value::Object(map) = new {
        map.retain(|key, _| matches!(key.as_str(), "status" | "metadata" | "apiVersion" | "kind"));
        for (key, value) in old.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "status" | "metadata") {
                map.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Whether anything but metadata and status changed.
pub(super) fn content_differs(new: &Value, old: &Value) -> bool {
    let content = |value: &Value| -> Vec<(String, Value)> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    content(new) != content(old)
}

/// Sets or clears `metadata.generation`.
pub(super) fn set_generation(object: &mut Value, generation: Option<i64>) {
    let metadata = child(object, "metadata");
    match generation {
        Some(generation) => set(metadata, "generation", generation),
        None => {
            remove(metadata, "generation");
        }
    }
}
