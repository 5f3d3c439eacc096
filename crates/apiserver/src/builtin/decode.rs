//! From a request's JSON to the form kube-apiserver stores and prints: types checked, unknown fields dropped, empty
//! fields left out the way Go leaves them out, quantities and times canonical.
//!
//! One walk in place over the object, guided by [`super::structure`]. An error is worded as Go's decoder words it,
//! because that text is what a user of kube-apiserver knows. Members are visited in sorted order, so of several errors the
//! alphabetically first is reported (Go reports the first in the document).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::structure::{Field, Shape, Struct, Structures, structures};
use super::{BuiltinKind, quantity, timestamp};

/// Checks and normalises `object` as one of `kind`; returns the paths of the fields it dropped.
pub(super) fn decode(kind: &BuiltinKind, object: &mut Value) -> Result<Vec<String>, String> {
    let table = structures();
    let root = table.root(kind);
    let Value::Object(map) = object else {
        return Err(format!(
            "json: cannot unmarshal {} into Go value of type {}.{}",
            json_type(object),
            kind.version,
            kind.kind
        ));
    };
    let mut walk = Walk { table, unknown: Vec::new(), error: None };
    walk.object(map, root, &Path::Root);
    match walk.error {
        Some(error) => Err(error),
        None => Ok(walk.unknown),
    }
}

/// Brings an object that was decoded as another kind into this kind's form: its types are right already.
pub(super) fn normalise(kind: &BuiltinKind, object: &mut Value) {
    if let Value::Object(map) = object {
        let table = structures();
        let mut walk = Walk { table, unknown: Vec::new(), error: None };
        walk.object(map, table.root(kind), &Path::Root);
    }
}

/// Puts a top-level field to its empty value.
pub(super) fn reset_field(kind: &BuiltinKind, object: &mut Value, name: &str) {
    let table = structures();
    let (Value::Object(map), Some(field)) = (object, table.root(kind).field(name)) else { return };
    if field.always() {
        map.insert(name.to_owned(), table.zero(&field.shape));
    } else {
        map.remove(name);
    }
}

/// Where the walk is; only rendered when something has to be reported.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a Struct, &'a Field),
    Index(&'a Path<'a>, usize),
    Key(&'a Path<'a>, &'a str),
}

impl Path<'_> {
    /// `spec.containers[0].image`
    fn render(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Field(parent, _, field) => {
                parent.render(out);
                push_segment(out, &field.name);
            }
            Path::Key(parent, key) => {
                parent.render(out);
                push_segment(out, key);
            }
            Path::Index(parent, index) => {
                parent.render(out);
                out.push_str(&format!("[{index}]"));
            }
        }
    }

    /// `spec.containers.image`: Go's own names, embedded structs included, without indices and keys.
    fn render_go(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Field(parent, _, field) => {
                parent.render_go(out);
                if let Some(embedded) = field.embedded {
                    push_segment(out, embedded);
                }
                push_segment(out, &field.name);
            }
            Path::Key(parent, _) | Path::Index(parent, _) => parent.render_go(out),
        }
    }

    fn innermost(&self) -> Option<(&Struct, &Field)> {
        match self {
            Path::Root => None,
            Path::Field(_, of, field) => Some((of, field)),
            Path::Key(parent, _) | Path::Index(parent, _) => parent.innermost(),
        }
    }
}

fn push_segment(out: &mut String, segment: &str) {
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(segment);
}

struct Walk<'t> {
    table: &'t Structures,
    unknown: Vec<String>,
    error: Option<String>,
}

impl<'t> Walk<'t> {
    fn object(&mut self, map: &mut Map<String, Value>, of: &'t Struct, path: &Path<'_>) {
        map.retain(|key, value| match of.field(key) {
            Some(field) => self.field(value, of, field, path),
            None => {
                let mut unknown = String::new();
                path.render(&mut unknown);
                push_segment(&mut unknown, key);
                self.unknown.push(unknown);
                false
            }
        });
        self.table.complete(of, map);
    }

    /// Returns whether the field stays.
    fn field(&mut self, value: &mut Value, of: &'t Struct, field: &'t Field, path: &Path<'_>) -> bool {
        if value.is_null() {
            return false;
        }
        self.value(value, &field.shape, &Path::Field(path, of, field));
        if field.pointer {
            return true;
        }
        let empty = match value {
            Value::String(s) => s.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty() && matches!(field.shape, Shape::Map(_)),
            Value::Number(n) => n.as_f64() == Some(0.0) && field.shape != Shape::IntOrString,
            Value::Bool(b) => !*b,
            Value::Null => true,
        };
        // An empty list or map does not survive storage: Go then prints null where it does not leave the field out.
        if empty && !field.omit_empty && matches!(field.shape, Shape::List(_) | Shape::Map(_)) {
            *value = Value::Null;
        }
        !(empty && field.omit_empty)
    }

    fn value(&mut self, value: &mut Value, shape: &'t Shape, path: &Path<'_>) {
        match (shape, &mut *value) {
            (Shape::Any, _) | (Shape::Str, Value::String(_)) | (Shape::Bool, Value::Bool(_)) => {}
            (Shape::Struct(index), Value::Object(map)) => {
                let table = self.table;
                self.object(map, &table.structs[*index], path);
            }
            (Shape::List(item), Value::Array(list)) => {
                for (index, element) in list.iter_mut().enumerate() {
                    self.element(element, item, &Path::Index(path, index));
                }
            }
            (Shape::Map(item), Value::Object(map)) => {
                for (key, element) in map.iter_mut() {
                    self.element(element, item, &Path::Key(path, key));
                }
            }
            (Shape::Int32 | Shape::Int64, Value::Number(number)) => {
                let fits = match number.as_i64() {
                    Some(n) => *shape == Shape::Int64 || i32::try_from(n).is_ok(),
                    None => false,
                };
                if !fits {
                    let text = format!("number {number}");
                    self.mismatch(&text, shape, path);
                }
            }
            (Shape::Float, Value::Number(_)) => {}
            (Shape::Quantity, Value::String(text)) => match quantity::canonical(text) {
                Ok(None) => {}
                Ok(Some(better)) => *text = better,
                Err(error) => self.fail(error),
            },
            (Shape::Quantity, Value::Number(number)) => match quantity::canonical(&number.to_string()) {
                Ok(better) => *value = Value::String(better.unwrap_or_else(|| number.to_string())),
                Err(error) => self.fail(error),
            },
            (Shape::Quantity, _) => self.fail(quantity::FORMAT_ERROR.to_owned()),
            (Shape::Time, Value::String(text)) => match timestamp::canonical_seconds(text) {
                Ok(None) => {}
                Ok(Some(better)) => *text = better,
                Err(error) => self.fail(error),
            },
            (Shape::MicroTime, Value::String(text)) => match timestamp::canonical_micros(text) {
                Ok(None) => {}
                Ok(Some(better)) => *text = better,
                Err(error) => self.fail(error),
            },
            (Shape::IntOrString, Value::String(_)) => {}
            (Shape::IntOrString, Value::Number(number)) => {
                if number.as_i64().is_none_or(|n| i32::try_from(n).is_err()) {
                    let text = format!("number {number}");
                    self.mismatch(&text, shape, path);
                }
            }
            (Shape::Bytes, Value::String(text)) => {
                if let Err(error) = STANDARD.decode(text.as_bytes()) {
                    self.fail(base64_error(text, &error));
                }
            }
            (Shape::Bytes, Value::Array(list)) => {
                let bytes: Option<Vec<u8>> =
                    list.iter().map(|v| v.as_u64().and_then(|n| u8::try_from(n).ok())).collect();
                match bytes {
                    Some(bytes) => *value = Value::String(STANDARD.encode(bytes)),
                    None => self.mismatch("array", shape, path),
                }
            }
            (_, other) => {
                let name = json_type(other);
                self.mismatch(name, shape, path);
            }
        }
    }

    /// An entry of a list or map: null stands for its empty value.
    fn element(&mut self, value: &mut Value, shape: &'t Shape, path: &Path<'_>) {
        if value.is_null() {
            *value = self.table.zero(shape);
        } else {
            self.value(value, shape, path);
        }
    }

    fn mismatch(&mut self, found: &str, shape: &Shape, path: &Path<'_>) {
        if self.error.is_some() {
            return;
        }
        let Some((of, field)) = path.innermost() else { return };
        let mut go_path = String::new();
        path.render_go(&mut go_path);
        let go_type = if matches!(path, Path::Field(..)) && shape == &field.shape {
            self.table.go_type(field)
        } else {
            self.table.shape_go_type(shape)
        };
        self.fail(format!(
            "json: cannot unmarshal {found} into Go struct field {}.{go_path} of type {go_type}",
            of.go_name()
        ));
    }

    fn fail(&mut self, error: String) {
        self.error.get_or_insert(error);
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Go names the byte where decoding stopped: the first of the group of four it could not use.
fn base64_error(text: &str, error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => text.len() / 4 * 4,
    };
    format!("illegal base64 data at input byte {at}")
}
