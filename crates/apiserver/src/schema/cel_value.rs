//! JSON values as CEL sees them, guided by their schema.
//!
//! Strings with a format become timestamps, durations or bytes; numbers of type `number` are doubles even when written
//! without a fraction; names of fields are escaped where CEL could not write them. Values the schema does not describe
//! are passed as they are.

use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;

use super::format::{self, Format};
use super::node::{Additional, Node, Type};

#[expect(clippy::disallowed_types, reason = "the map type of the CEL engine; never iterated here")]
type CelEntries = std::collections::HashMap<Key, Cel>;

pub(super) fn to_cel(value: &Value, node: Option<&Node>) -> Cel {
    let kind = node.filter(|node| !node.int_or_string).and_then(|node| node.kind);
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(number) => match (kind, number.as_i64()) {
            (Some(Type::Number), _) | (_, None) => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
            (_, Some(integer)) => Cel::Int(integer),
        },
        Value::String(text) => {
            let format = node.and_then(|node| node.checks.format.as_ref()?.of_strings);
            format
                .filter(|_| kind == Some(Type::String))
                .and_then(|format| formatted(text, format))
                .unwrap_or_else(|| Cel::String(Arc::new(text.clone())))
        }
        Value::Array(items) => {
            let node = node.and_then(|node| node.items.as_deref());
            Cel::List(Arc::new(items.iter().map(|item| to_cel(item, node)).collect()))
        }
        Value::Object(map) => {
            // Keys of maps are data and stay as written.
            let is_map = node.is_some_and(|node| {
                node.properties.is_empty() && matches!(node.additional, Some(Additional::Each(_)))
            });
            // A field that is null, or that the schema does not name, is absent to rules.
            let has_fields = node.is_some_and(|node| !node.properties.is_empty());
            let visible = |key: &str, value: &Value| {
                let named = node.is_some_and(|node| node.child(key).is_some());
                !has_fields
                    || (!value.is_null() && (named || matches!(key, "apiVersion" | "kind" | "metadata")))
            };
            let entries: CelEntries = map
                .iter()
                .filter(|(key, value)| visible(key, value))
                .map(|(key, value)| {
                    let escaped = if is_map { None } else { escape(key) };
                    let child = node.and_then(|node| node.child(key));
                    (Key::String(Arc::new(escaped.unwrap_or_else(|| key.clone()))), to_cel(value, child))
                })
                .collect();
            Cel::Map(Map { map: Arc::new(entries) })
        }
    }
}

/// A string that is more than text to CEL; none if it cannot be read, which validation has reported then.
fn formatted(text: &str, format: Format) -> Option<Cel> {
    Some(match format {
        Format::Duration => Cel::Duration(chrono::Duration::nanoseconds(format::duration_nanos(text)?)),
        Format::Date => {
            let day = chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
            Cel::Timestamp(day.and_hms_opt(0, 0, 0)?.and_utc().fixed_offset())
        }
        Format::DateTime => {
            let local = || chrono::NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S").ok();
            let zoned = chrono::DateTime::parse_from_rfc3339(text).ok();
            Cel::Timestamp(zoned.or_else(|| Some(local()?.and_utc().fixed_offset()))?)
        }
        Format::Byte => {
            let bytes = base64::engine::general_purpose::URL_SAFE.decode(text).ok()?;
            Cel::Bytes(Arc::new(bytes))
        }
        _ => return None,
    })
}

const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The identifier by which rules reach a field; none if they cannot.
pub(super) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let escaped = match c {
            '_' if rest.starts_with("__") => {
                rest = &rest[1..];
                "__underscores__"
            }
            '.' => "__dot__",
            '-' => "__dash__",
            '/' => "__slash__",
            c if c.is_ascii_alphanumeric() || c == '_' => &rest[..1],
            _ => return None,
        };
        out.push_str(escaped);
        rest = &rest[1..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_the_real_server_escapes_them() {
        for (name, escaped) in [
            ("plain", Some("plain")),
            ("one_two", Some("one_two")),
            ("a__b", Some("a__underscores__b")),
            ("x-y.z/w", Some("x__dash__y__dot__z__slash__w")),
            ("namespace", Some("__namespace__")),
            ("1st", None),
            ("ü", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}
