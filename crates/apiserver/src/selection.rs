//! Which objects of a collection are asked for: a label selector and a field selector.

use karpenter_primitives::selector::Selector;

use crate::object::Stored;
use crate::registry::{Registry, Resource};
use crate::request::Query;
use crate::status::ApiError;
use crate::store::Key;

/// Both selectors of a list or watch.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    labels: Selector,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    field: Field,
    equal: bool,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    /// An index into the fields that stored objects have at hand.
    Other(usize),
}

impl Selection {
    pub(crate) fn parse(query: &Query, resource: &Resource, registry: &Registry) -> Result<Self, ApiError> {
        let labels = query.get("labelSelector").unwrap_or_default();
        let labels = Selector::parse(labels).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let stored = registry.of_storage(resource.storage).map_or(resource, AsRef::as_ref);
        let fields = parse_fields(query.get("fieldSelector").unwrap_or_default(), resource, stored)?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, path: &str, object: &Stored) -> bool {
        let (namespace, name) = path.split_once('/').unwrap_or(("", path));
        let fields_match = self.fields.iter().all(|term| {
            let actual = match term.field {
                Field::Name => name,
                Field::Namespace => namespace,
                Field::Other(at) => object.facts.field(at),
            };
            (actual == term.value) == term.equal
        });
        fields_match && self.labels.matches_with(|key| object.facts.label(key))
    }

    pub(crate) fn matches_key(&self, key: &Key, object: &Stored) -> bool {
        self.matches(&key.path, object)
    }
}

fn parse_fields(text: &str, resource: &Resource, stored: &Resource) -> Result<Vec<FieldTerm>, ApiError> {
    let mut terms = Vec::new();
    for part in split_terms(text) {
        if part.is_empty() {
            continue;
        }
        let Some((name, equal, value)) = split_operator(part) else {
            let message = format!("invalid selector: '{text}'; can't understand '{part}'");
            return Err(ApiError::bad_request(message));
        };
        let value =
            unescape(value).map_err(|why| ApiError::bad_request(format!("invalid field selector: {why}")))?;
        let field = match name {
            "metadata.name" => Field::Name,
            // Most kinds take it though they have none.
            "metadata.namespace" if !knows_no_namespace(resource) => Field::Namespace,
            other => {
                let known = resource.selectable_fields.iter().position(|field| field == other);
                let field = known.and_then(|at| resource.stored_fields.get(at));
                let at =
                    field.and_then(|field| stored.selectable_fields.iter().position(|other| other == field));
                Field::Other(at.ok_or_else(|| ApiError::bad_request(unknown_field(other, resource)))?)
            }
        };
        terms.push(FieldTerm { field, equal, value });
    }
    Ok(terms)
}

fn knows_no_namespace(resource: &Resource) -> bool {
    resource.is("", "nodes") || resource.is("resource.k8s.io", "resourceslices")
}

fn unknown_field(name: &str, resource: &Resource) -> String {
    if resource.is("batch", "jobs") {
        return format!("field label {name:?} not supported for Job");
    }
    if resource.is("resource.k8s.io", "resourceslices") {
        return format!(
            "field label not supported for {}, Kind=ResourceSlice: {name}",
            resource.api_version()
        );
    }
    // Kinds without fields of their own use apimachinery's general check, all others have a table and its words.
    let has_table = !resource.selectable_fields.is_empty() && !resource.is("apps", "replicasets");
    if resource.is_custom() || has_table {
        format!("field label not supported: {name}")
    } else {
        format!("{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    }
}

/// Splits at commas that no backslash protects.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            ',' if !escaped => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => escaped = false,
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_operator(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find(['=', '!'])?;
    let (name, rest) = term.split_at(at);
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(value) = rest.strip_prefix(operator) {
            return Some((name, equal, value));
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(format!("invalid escape sequence: \\{other}")),
                None => return Err("invalid escape sequence: \\".to_owned()),
            },
            ',' | '=' => return Err(format!("unescaped character in value: {}", u32::from(c))),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_terms_split_at_unprotected_commas() {
        assert_eq!(split_terms("a=b,c!=d\\,e"), ["a=b", "c!=d\\,e"]);
        assert_eq!(split_operator("c!=d\\,e"), Some(("c", false, "d\\,e")));
        assert_eq!(split_operator("a==b"), Some(("a", true, "b")));
        assert_eq!(split_operator("a b"), None);
        assert_eq!(unescape("d\\,e\\\\").unwrap(), "d,e\\");
        assert_eq!(unescape("a=b").unwrap_err(), "unescaped character in value: 61");
        assert_eq!(unescape("a\\b").unwrap_err(), "invalid escape sequence: \\b");
    }
}
