//! Which part of the old object a part of the new one continues, and whether it changed.
//!
//! Ratcheting (an unchanged value may stay invalid) and transition rules both need it. Fields and map entries continue
//! the value of the same key; elements of a map-like list the one with the same keys; elements of other lists nothing.

use serde_json::Value;

use super::node::{ListType, Node};

/// An old value and the schema it shares with its successor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predecessor<'a> {
    schema: &'a Node,
    value: &'a Value,
}

impl<'a> Predecessor<'a> {
    pub(super) fn root(schema: &'a Node, value: &'a Value) -> Self {
        Self { schema, value }
    }

    /// The predecessor of the value under `key`.
    pub(super) fn key(self, key: &str) -> Option<Self> {
        Some(Self { value: self.value.as_object()?.get(key)?, schema: self.schema.child(key)? })
    }

    /// The predecessor of `element`, one of the new list.
    pub(super) fn element(self, element: &Value) -> Option<Self> {
        Some(Self {
            value: matching(self.schema, self.value, element)?,
            schema: self.schema.items.as_deref()?,
        })
    }

    /// Whether `new` says the same. The order of a map-like list does not count; keys without a schema do.
    pub(super) fn unchanged(self, new: &Value) -> bool {
        match (self.value, new) {
            (Value::Array(old), Value::Array(new)) => {
                old.len() == new.len()
                    && match self.schema.list_type {
                        ListType::Map(_) => {
                            new.iter().all(|item| self.element(item).is_some_and(|old| old.unchanged(item)))
                        }
                        _ => old == new,
                    }
            }
            (Value::Object(old), Value::Object(new)) => {
                old.len() == new.len()
                    && new.iter().all(|(key, item)| self.key(key).is_some_and(|old| old.unchanged(item)))
            }
            (old, new) => old == new,
        }
    }
}

/// The element of the old list (of schema `list`) with the keys of `element`, if `list` is map-like.
pub(super) fn matching<'a>(list: &Node, old: &'a Value, element: &Value) -> Option<&'a Value> {
    let ListType::Map(keys) = &list.list_type else { return None };
    let wanted = element.as_object()?;
    if keys.is_empty() || !keys.iter().all(|key| wanted.get(key).is_some_and(is_scalar)) {
        return None;
    }
    old.as_array()?.iter().find(|candidate| keys.iter().all(|key| candidate.get(key) == wanted.get(key)))
}

fn is_scalar(value: &Value) -> bool {
    matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_))
}
