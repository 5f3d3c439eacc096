//! The structure of the built-in kinds, compiled once into a table the decoder can walk quickly.
//!
//! Field names and types come from the JSON schemas of `k8s-openapi`. What a schema cannot tell, but the wire format
//! depends on, comes from `go_types.txt`: whether the Go field is a pointer, whether it is left out when empty, and
//! the Go type's name (it appears in error messages). Only fields that differ from the usual are listed there:
//! an optional string or list is a value left out when empty, any other optional field a pointer, a required field a
//! value that is always printed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{BuiltinKind, builtins};

/// The wire type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Kept as it is.
    Any,
    Str,
    Bool,
    Int32,
    Int64,
    Float,
    Quantity,
    Time,
    MicroTime,
    IntOrString,
    Bytes,
    /// Index into [`Structures::structs`].
    Struct(usize),
    List(Box<Shape>),
    Map(Box<Shape>),
}

/// A field of a Go struct.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) shape: Shape,
    /// A pointer keeps the difference between absent and zero.
    pub(super) pointer: bool,
    /// Left out when empty (`omitempty`).
    pub(super) omit_empty: bool,
    /// The Go type, where it does not follow from the shape.
    go_type: Option<&'static str>,
    /// The embedded Go struct the field comes through: error messages name it.
    pub(super) embedded: Option<&'static str>,
}

impl Field {
    /// Whether the field is printed even if nothing set it.
    pub(super) fn always(&self) -> bool {
        !self.omit_empty
            || (!self.pointer
                && matches!(
                    self.shape,
                    Shape::Any
                        | Shape::Struct(_)
                        | Shape::Time
                        | Shape::MicroTime
                        | Shape::Quantity
                        | Shape::IntOrString
                ))
    }
}

/// A Go struct.
#[derive(Debug)]
pub(super) struct Struct {
    /// The name of the definition, `io.k8s.api.core.v1.Pod`.
    pub(super) name: String,
    /// Sorted by name.
    pub(super) fields: Vec<Field>,
    /// Indices of the fields that are always printed.
    pub(super) always: Vec<usize>,
}

impl Struct {
    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|i| &self.fields[i])
    }

    /// The Go type's name without its package.
    pub(super) fn go_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// All structs reachable from the built-in kinds.
#[derive(Debug)]
pub(super) struct Structures {
    pub(super) structs: Vec<Struct>,
    /// The struct of each kind, in the order of [`builtins`].
    roots: Vec<usize>,
}

/// The compiled table; the first call builds it.
pub(super) fn structures() -> &'static Structures {
    static TABLE: OnceLock<Structures> = OnceLock::new();
    TABLE.get_or_init(compile)
}

impl Structures {
    /// The struct of a kind.
    pub(super) fn root(&self, kind: &BuiltinKind) -> &Struct {
        let position = builtins().iter().position(|k| std::ptr::eq(k, kind)).unwrap_or_default();
        &self.structs[self.roots[position]]
    }

    /// The empty value of a field's type, as Go prints it.
    pub(super) fn zero(&self, shape: &Shape) -> Value {
        match shape {
            Shape::Str | Shape::Bytes => Value::String(String::new()),
            Shape::Bool => Value::Bool(false),
            Shape::Int32 | Shape::Int64 | Shape::Float | Shape::IntOrString => 0.into(),
            Shape::Quantity => "0".into(),
            Shape::Struct(index) => {
                let mut map = Map::new();
                self.complete(&self.structs[*index], &mut map);
                Value::Object(map)
            }
            Shape::Any | Shape::Time | Shape::MicroTime | Shape::List(_) | Shape::Map(_) => Value::Null,
        }
    }

    /// Adds the fields that are printed even if nothing set them.
    pub(super) fn complete(&self, of: &Struct, map: &mut Map<String, Value>) {
        for index in &of.always {
            let field = &of.fields[*index];
            if !map.contains_key(&field.name) {
                let zero = if field.pointer { Value::Null } else { self.zero(&field.shape) };
                map.insert(field.name.clone(), zero);
            }
        }
    }

    /// The Go type of a field, as error messages name it.
    pub(super) fn go_type(&self, field: &Field) -> String {
        match field.go_type {
            Some(name) => name.to_owned(),
            None => self.shape_go_type(&field.shape),
        }
    }

    pub(super) fn shape_go_type(&self, shape: &Shape) -> String {
        match shape {
            Shape::Any => "runtime.RawExtension".to_owned(),
            Shape::Str | Shape::Time | Shape::MicroTime => "string".to_owned(),
            Shape::Bool => "bool".to_owned(),
            Shape::Int32 | Shape::IntOrString => "int32".to_owned(),
            Shape::Int64 => "int64".to_owned(),
            Shape::Float => "float64".to_owned(),
            Shape::Quantity => "resource.Quantity".to_owned(),
            Shape::Bytes => "[]uint8".to_owned(),
            Shape::Struct(index) => {
                let name = &self.structs[*index].name;
                let mut parts = name.rsplit('.');
                let (last, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!("{package}.{last}")
            }
            Shape::List(item) => format!("[]{}", self.shape_go_type(item)),
            Shape::Map(item) => format!("map[string]{}", self.shape_go_type(item)),
        }
    }
}

/// What `go_types.txt` says about a field.
#[derive(Clone, Copy)]
struct Fact {
    mark: Option<u8>,
    go_type: Option<&'static str>,
    embedded: Option<&'static str>,
}

/// Struct name → field name → fact. A line is a struct followed by its fields: a mark (`*` pointer, `.` value left
/// out when empty, `!` value always printed, `?` pointer always printed), the name, `=` the Go type, `@` the embedded
/// struct it comes through.
fn facts() -> BTreeMap<&'static str, BTreeMap<&'static str, Fact>> {
    let mut all = BTreeMap::new();
    for line in include_str!("go_types.txt").lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split(' ');
        let Some(name) = words.next() else { continue };
        let mut fields = BTreeMap::new();
        for word in words {
            let (mark, rest) = match word.as_bytes().first() {
                Some(mark @ (b'*' | b'.' | b'!' | b'?')) => (Some(*mark), &word[1..]),
                _ => (None, word),
            };
            let (rest, embedded) = rest.split_once('@').map_or((rest, None), |(r, e)| (r, Some(e)));
            let (field, go_type) = rest.split_once('=').map_or((rest, None), |(f, t)| (f, Some(t)));
            fields.insert(field, Fact { mark, go_type, embedded });
        }
        all.insert(name, fields);
    }
    all
}

fn compile() -> Structures {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let names: Vec<_> = builtins().iter().map(|kind| (kind.structure)(&mut generator)).collect();
    let definitions = generator.take_definitions(false);
    let index: BTreeMap<&str, usize> = definitions
        .iter()
        .filter(|(name, schema)| special(name).is_none() && schema.get("properties").is_some())
        .enumerate()
        .map(|(i, (name, _))| (name.as_str(), i))
        .collect();
    let facts = facts();
    let structs = index
        .keys()
        .map(|name| {
            compile_struct(name, &definitions[*name], &index, facts.get(name.trim_start_matches("io.k8s.")))
        })
        .collect();
    // A kind without fields of its own would be missing; the first struct then stands in, and the tests say so.
    let roots = names.iter().map(|name| index.get(name.as_ref()).copied().unwrap_or_default()).collect();
    Structures { structs, roots }
}

fn compile_struct(
    name: &str,
    schema: &Value,
    index: &BTreeMap<&str, usize>,
    facts: Option<&BTreeMap<&'static str, Fact>>,
) -> Struct {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut fields: Vec<Field> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(field, property)| {
            let shape = shape_of(property, index);
            let fact = facts.and_then(|f| f.get(field.as_str()));
            let is_required = required.contains(&field.as_str());
            let usual_pointer =
                !is_required && !matches!(shape, Shape::Str | Shape::Bytes | Shape::List(_) | Shape::Map(_));
            let (pointer, omit_empty) = match fact.and_then(|f| f.mark) {
                Some(b'*') => (true, true),
                Some(b'.') => (false, true),
                Some(b'!') => (false, false),
                Some(_) => (true, false),
                None => (usual_pointer, !is_required),
            };
            Field {
                name: field.clone(),
                shape,
                pointer,
                omit_empty,
                go_type: fact.and_then(|f| f.go_type),
                embedded: fact.and_then(|f| f.embedded),
            }
        })
        .collect();
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    let always = fields.iter().enumerate().filter(|(_, f)| f.always()).map(|(i, _)| i).collect();
    Struct { name: name.to_owned(), fields, always }
}

/// Types with a wire form of their own.
fn special(definition: &str) -> Option<Shape> {
    Some(match definition.rsplit('.').next()? {
        "Quantity" => Shape::Quantity,
        "Time" => Shape::Time,
        "MicroTime" => Shape::MicroTime,
        "IntOrString" => Shape::IntOrString,
        "RawExtension" | "FieldsV1" | "JSON" | "JSONSchemaProps" => Shape::Any,
        name if name.starts_with("JSONSchemaPropsOr") => Shape::Any,
        _ => return None,
    })
}

fn shape_of(schema: &Value, index: &BTreeMap<&str, usize>) -> Shape {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        return match special(name) {
            Some(shape) => shape,
            None => index.get(name).map_or(Shape::Any, |i| Shape::Struct(*i)),
        };
    }
    let format = schema.get("format").and_then(Value::as_str).unwrap_or("");
    match schema.get("type").and_then(Value::as_str).unwrap_or("") {
        "string" if format == "byte" => Shape::Bytes,
        "string" => Shape::Str,
        "boolean" => Shape::Bool,
        "integer" if format == "int64" => Shape::Int64,
        "integer" => Shape::Int32,
        "number" => Shape::Float,
        "array" => Shape::List(Box::new(schema.get("items").map_or(Shape::Any, |s| shape_of(s, index)))),
        "object" => match schema.get("additionalProperties") {
            Some(values) => Shape::Map(Box::new(shape_of(values, index))),
            None => Shape::Any,
        },
        _ => Shape::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_structure() {
        for kind in builtins() {
            let root = structures().root(kind);
            assert_eq!(root.go_name(), kind.kind);
            assert!(
                root.field("metadata").is_some() || kind.group == "authorization.k8s.io",
                "{}",
                root.name
            );
        }
    }

    #[test]
    fn every_fact_is_about_a_field_that_exists() {
        let structs = &structures().structs;
        for (name, fields) in facts() {
            let full = format!("io.k8s.{name}");
            let of = structs.iter().find(|s| s.name == full).unwrap_or_else(|| panic!("no struct {full}"));
            for field in fields.keys() {
                assert!(of.field(field).is_some(), "{full} has no field {field}");
            }
        }
    }
}
