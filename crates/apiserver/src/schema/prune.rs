//! Dropping what the schema does not know: unknown fields, and nulls where null is not allowed.
//!
//! The metadata of the object and of embedded resources is kept whatever the schema says about it, less the fields
//! ObjectMeta does not have.

use serde_json::{Map, Value};

use super::node::{Additional, Node};
use super::path::Path;

const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Prunes a whole resource and returns the paths of what was dropped: metadata first, then the rest, each sorted.
pub(super) fn prune_resource(object: &mut Value, root: &Node) -> Vec<String> {
    let mut dropped = Vec::new();
    if let Some(metadata) = object.get_mut("metadata") {
        prune_metadata(metadata, &Path::Root, &mut dropped);
    }
    dropped.sort();
    let mut unknown = Vec::new();
    prune(object, Some(root), true, &Path::Root, &mut unknown);
    unknown.sort();
    dropped.append(&mut unknown);
    drop_forbidden_nulls(object, root);
    if root.embeds {
        prune_embedded_metadata(object, root, &Path::Root, &mut unknown);
        unknown.sort();
        dropped.append(&mut unknown);
    }
    dropped
}

/// Prunes a value that is not a whole resource, such as a default; `embedded` keeps the fields of a resource.
pub(super) fn prune_value(value: &mut Value, node: &Node) {
    prune(value, Some(node), node.embedded, &Path::Root, &mut Vec::new());
}

fn prune(value: &mut Value, node: Option<&Node>, resource: bool, at: &Path<'_>, dropped: &mut Vec<String>) {
    let preserve = node.is_some_and(|node| node.preserve_unknown);
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let Some(node) = node else {
                dropped.push(at.field(key).dotted());
                return false;
            };
            if resource && META_FIELDS.contains(&key.as_str()) {
                return true;
            }
            if let Some(property) = node.properties.get(key) {
                prune(value, Some(property), property.embedded, &at.field(key), dropped);
                return true;
            }
            match &node.additional {
                Some(Additional::Each(each)) => {
                    prune(value, Some(each), each.embedded, &at.field(key), dropped)
                }
                Some(_) => prune(value, None, false, &at.field(key), dropped),
                None if preserve => {}
                None => {
                    dropped.push(at.field(key).dotted());
                    return false;
                }
            }
            true
        }),
        Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                let items = node.and_then(|node| node.items.as_deref());
                match items {
                    // Below a node that preserves everything, elements keep what their schema does not know.
                    Some(items) if preserve && !items.preserve_unknown => {
                        prune_preserved(item, items, &at.index(i), dropped);
                    }
                    None if preserve => {}
                    items => prune(item, items, items.is_some_and(|n| n.embedded), &at.index(i), dropped),
                }
            }
        }
        _ => {}
    }
}

/// An element of a list that preserves unknown fields: only what lies under its known fields is pruned.
fn prune_preserved(value: &mut Value, node: &Node, at: &Path<'_>, dropped: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if node.embedded && META_FIELDS.contains(&key.as_str()) {
                    continue;
                }
                if let Some(property) = node.properties.get(key) {
                    prune(value, Some(property), property.embedded, &at.field(key), dropped);
                } else if let Some(additional) = &node.additional {
                    let each = match additional {
                        Additional::Each(each) => Some(each.as_ref()),
                        _ => None,
                    };
                    prune(value, each, each.is_some_and(|n| n.embedded), &at.field(key), dropped);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = node.items.as_deref() {
                for (i, item) in items.iter_mut().enumerate() {
                    prune_preserved(item, node, &at.index(i), dropped);
                }
            }
        }
        _ => {}
    }
}

/// A null for a field that is neither nullable nor has a default is as if the field were not there.
fn drop_forbidden_nulls(value: &mut Value, node: &Node) {
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let Some(child) = node.child(key) else { return true };
            if value.is_null() {
                return child.nullable || child.default.is_some();
            }
            drop_forbidden_nulls(value, child);
            true
        }),
        Value::Array(items) => {
            if let Some(node) = node.items.as_deref() {
                for item in items {
                    drop_forbidden_nulls(item, node);
                }
            }
        }
        _ => {}
    }
}

fn prune_embedded_metadata(value: &mut Value, node: &Node, at: &Path<'_>, dropped: &mut Vec<String>) {
    if !node.embeds {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if node.embedded && key == "metadata" {
                    prune_metadata(value, at, dropped);
                }
                if let Some(property) = node.properties.get(key) {
                    prune_embedded_metadata(value, property, &at.field(key), dropped);
                } else if let Some(Additional::Each(each)) = &node.additional {
                    prune_embedded_metadata(value, each, &at.key(key), dropped);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = node.items.as_deref() {
                for (i, item) in items.iter_mut().enumerate() {
                    prune_embedded_metadata(item, node, &at.index(i), dropped);
                }
            }
        }
        _ => {}
    }
}

const OBJECT_META: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
const OWNER_REFERENCE: [&str; 6] = ["apiVersion", "blockOwnerDeletion", "controller", "kind", "name", "uid"];
const MANAGED_FIELDS: [&str; 7] =
    ["apiVersion", "fieldsType", "fieldsV1", "manager", "operation", "subresource", "time"];

fn prune_metadata(metadata: &mut Value, at: &Path<'_>, dropped: &mut Vec<String>) {
    let at = at.field("metadata");
    let Some(map) = metadata.as_object_mut() else { return };
    keep_only(map, &OBJECT_META, &at, dropped);
    for (list, known) in [("ownerReferences", &OWNER_REFERENCE[..]), ("managedFields", &MANAGED_FIELDS[..])] {
        let at = at.field(list);
        for (i, item) in map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
            if let Some(item) = item.as_object_mut() {
                keep_only(item, known, &at.index(i), dropped);
            }
        }
    }
}

fn keep_only(map: &mut Map<String, Value>, known: &[&str], at: &Path<'_>, dropped: &mut Vec<String>) {
    map.retain(|key, _| {
        let keep = known.contains(&key.as_str());
        if !keep {
            dropped.push(at.field(key).dotted());
        }
        keep
    });
}
