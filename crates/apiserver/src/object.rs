//! An object as the store keeps it: compact bytes, plus the few facts that selectors and garbage collection ask for.
//!
//! A hundred thousand pods as value trees would cost gigabytes, so an object is kept serialised. The layout is fixed:
//! `metadata` comes first and `resourceVersion` first in it, and the bytes start right behind the version's digits. An
//! answer is then a prefix (with or without `kind` and `apiVersion`), a version and these bytes, and nothing is parsed
//! or serialised again for a get, a list or a watch event.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::registry::Resource;

/// What stands before the version of an object that does not name its kind, as in lists of built-in kinds.
pub(crate) const ANONYMOUS_HEAD: &str = "{\"metadata\":{\"resourceVersion\":\"";

/// One version of one object.
#[derive(Debug)]
pub(crate) struct Stored {
    /// `metadata.resourceVersion`.
    pub(crate) revision: u64,
    pub(crate) facts: Facts,
    /// Everything behind the version's digits, from the closing quote on.
    tail: Bytes,
    /// Where in `tail` the metadata ends (behind its closing brace).
    metadata_end: usize,
}

/// What is asked of an object without parsing it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) uid: Option<Uuid>,
    /// Keys and values in turn, each behind a NUL. One allocation, as there are very many of these.
    labels: Box<str>,
    /// The values of [`Resource::selectable_fields`] in that order, each behind a NUL.
    fields: Box<str>,
    /// The uids in `ownerReferences`; owners whose uid is no uuid cannot exist here and are left out.
    pub(crate) owners: Box<[Uuid]>,
    pub(crate) deleting: bool,
}

impl Facts {
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let mut texts = self.labels.split('\0').skip(1);
        while let (Some(found), Some(value)) = (texts.next(), texts.next()) {
            if found == key {
                return Some(value);
            }
        }
        None
    }

    /// The value of a selectable field, by its index.
    pub(crate) fn field(&self, at: usize) -> &str {
        self.fields.split('\0').nth(at + 1).unwrap_or_default()
    }
}

/// Appends a text behind a NUL; NULs inside it, which nothing valid contains, are replaced.
fn push_text(out: &mut String, text: &str) {
    out.push('\0');
    out.extend(text.chars().map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }));
}

/// An object ready to be stored: serialised, waiting for its version.
pub(crate) struct Encoded {
    tail: Bytes,
    metadata_end: usize,
    facts: Facts,
}

impl Encoded {
    pub(crate) fn new(object: &Value, resource: &Resource) -> Self {
        let empty = Map::new();
        let object = object.as_object().unwrap_or(&empty);
        let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        let mut out = Vec::with_capacity(512);
        out.push(b'"');
        for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
            write_member(&mut out, key, value);
        }
        out.push(b'}');
        let metadata_end = out.len();
        let rest =
            object.iter().filter(|(key, _)| !matches!(key.as_str(), "metadata" | "kind" | "apiVersion"));
        for (key, value) in rest {
            write_member(&mut out, key, value);
        }
        out.push(b'}');
        out.shrink_to_fit();
        Self { tail: out.into(), metadata_end, facts: facts(object, metadata, resource) }
    }

    /// Whether storing this would change nothing: kube-apiserver then keeps the version and tells no watcher.
    pub(crate) fn same_as(&self, stored: &Stored) -> bool {
        self.tail == stored.tail
    }

    pub(crate) fn at(self, revision: u64) -> Stored {
        Stored { revision, facts: self.facts, tail: self.tail, metadata_end: self.metadata_end }
    }
}

impl Stored {
    /// Appends the whole object, naming its kind or (in lists of built-in kinds) not.
    ///
    /// `revision` differs from the object's own in events that tell of its disappearance.
    pub(crate) fn write(&self, resource: &Resource, item: bool, revision: u64, out: &mut Vec<u8>) {
        let head = if item { resource.item_head() } else { &resource.head };
        if let Some(view) = resource.view() {
            let mut object = self.stored_value(revision);
            view.from_stored(&mut object);
            Encoded::new(&object, resource).at(revision).write_bytes(head, revision, out);
        } else if let Some(schema) = resource.narrowing_schema() {
            let mut object = self.stored_value(revision);
            // Only the storage version's defaults are ever applied to what is stored.
            schema.prune(&mut object);
            Encoded::new(&object, resource).at(revision).write_bytes(head, revision, out);
        } else {
            self.write_bytes(head, revision, out);
        }
    }

    fn write_bytes(&self, head: &str, revision: u64, out: &mut Vec<u8>) {
        out.reserve(head.len() + 20 + self.tail.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(revision.to_string().as_bytes());
        out.extend_from_slice(&self.tail);
    }

    /// Appends the object's metadata as a `PartialObjectMetadata`.
    pub(crate) fn write_metadata(&self, revision: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",");
        out.extend_from_slice(&ANONYMOUS_HEAD.as_bytes()[1..]);
        out.extend_from_slice(revision.to_string().as_bytes());
        out.extend_from_slice(&self.tail[..self.metadata_end]);
        out.push(b'}');
    }

    /// The object as it is answered: with `kind` and `apiVersion`.
    pub(crate) fn to_bytes(&self, resource: &Resource) -> Bytes {
        let mut out = Vec::new();
        self.write(resource, false, self.revision, &mut out);
        out.into()
    }

    pub(crate) fn to_value(&self, resource: &Resource) -> Value {
        // These bytes were written by `Encoded::new`, so parsing them cannot fail.
        serde_json::from_slice(&self.to_bytes(resource)).unwrap_or_default()
    }

    /// The object in the form it is stored in, without its kind.
    fn stored_value(&self, revision: u64) -> Value {
        let mut out = Vec::new();
        self.write_bytes(ANONYMOUS_HEAD, revision, &mut out);
        serde_json::from_slice(&out).unwrap_or_default()
    }

    /// The serialised size, for accounting.
    pub(crate) fn size_bytes(&self) -> usize {
        self.tail.len()
    }
}

/// Appends `,"key":value`; the caller has already written something before it.
fn write_member(out: &mut Vec<u8>, key: &str, value: &Value) {
    out.push(b',');
    // Writing a string or a value into memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(&mut *out, value);
}

fn facts(object: &Map<String, Value>, metadata: &Map<String, Value>, resource: &Resource) -> Facts {
    let mut labels = String::new();
    for (key, value) in metadata.get("labels").and_then(Value::as_object).into_iter().flatten() {
        push_text(&mut labels, key);
        push_text(&mut labels, value.as_str().unwrap_or_default());
    }
    let mut fields = String::new();
    for path in &resource.selectable_fields {
        push_text(&mut fields, &field_text(object, path));
    }
    let owners = metadata.get("ownerReferences").and_then(Value::as_array);
    Facts {
        uid: metadata.get("uid").and_then(Value::as_str).and_then(|uid| Uuid::parse_str(uid).ok()),
        labels: labels.into(),
        fields: fields.into(),
        owners: owners
            .into_iter()
            .flatten()
            .filter_map(|owner| Uuid::parse_str(owner.get("uid")?.as_str()?).ok())
            .collect(),
        deleting: metadata.contains_key("deletionTimestamp"),
    }
}

/// A dotted path's value as field selectors compare it: strings as they are, scalars printed, absent ones empty.
fn field_text<'a>(object: &'a Map<String, Value>, path: &str) -> Cow<'a, str> {
    let mut steps = path.trim_start_matches('.').split('.');
    let mut at = steps.next().and_then(|first| object.get(first));
    for step in steps {
        at = at.and_then(|value| value.get(step));
    }
    match at {
        Some(Value::String(text)) => text.into(),
        Some(Value::Bool(flag)) => flag.to_string().into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ => "".into(),
    }
}

/// The metadata of an object, `None` unless both are JSON objects.
pub(crate) fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.as_object()
}

/// The metadata of an object, made if missing. A value that is no object becomes one: the decoders have refused such
/// input long before.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    object_mut(object_mut(object).entry("metadata").or_insert_with(|| Value::Object(Map::new())))
}

pub(crate) fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("just made an object"),
    }
}

/// A string in the metadata, empty if absent.
pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object).and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = metadata(object).and_then(|m| m.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Sets the finalizers, leaving the field out when there are none.
pub(crate) fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    let metadata = metadata_mut(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), finalizers.into());
    }
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    metadata(object).is_some_and(|m| m.contains_key("deletionTimestamp"))
}
