//! Duplicates in lists that are sets (`x-kubernetes-list-type: set`) or maps (`map`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::node::{Additional, ListType, Node};
use super::path::Path;
use crate::field_error::FieldError;

/// Each value that occurs more than once is reported where it occurs the second time.
pub(super) fn check(value: &Value, node: &Node, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.keyed {
        return;
    }
    match value {
        Value::Object(map) => {
            if let Some(Additional::Each(each)) = &node.additional {
                for (key, value) in map {
                    check(value, each, &at.key(key), errors);
                }
            }
            for (key, value) in map {
                if let Some(property) = node.properties.get(key) {
                    check(value, property, &at.field(key), errors);
                }
            }
        }
        Value::Array(items) => {
            match &node.list_type {
                ListType::Atomic => {}
                ListType::Set => report_repeated(items, at, errors),
                ListType::Map(keys) => check_map(items, keys, at, errors),
            }
            if let Some(node) = node.items.as_deref() {
                for (i, item) in items.iter().enumerate() {
                    check(item, node, &at.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_map(items: &[Value], keys: &[String], at: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, item) in items.iter().enumerate() {
        if !item.is_object() && !item.is_null() {
            let at = at.index(i).to_string();
            errors.push(FieldError::invalid(at, item, "must be an object for an array of list-type map"));
            return;
        }
    }
    let key_of = |item: &Value| -> Value {
        let present = keys.iter().filter_map(|key| item.get(key).map(|value| (key.clone(), value.clone())));
        Value::Object(present.collect::<Map<_, _>>())
    };
    let keys: Vec<Value> = items.iter().map(key_of).collect();
    report_repeated(&keys, at, errors);
}

fn report_repeated(values: &[Value], at: &Path<'_>, errors: &mut Vec<FieldError>) {
    // The text of a value tells 1, 1.0 and "1" apart, as Go's interface values do.
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (i, value) in values.iter().enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(at.index(i).to_string(), value));
        }
    }
}
