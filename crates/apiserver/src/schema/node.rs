//! A compiled schema: what one place of an object may hold, with patterns and CEL programs ready to run.
//!
//! Nodes are built once per CRD version from the schema's typed form. Whether that schema is one a CRD may have is
//! decided elsewhere ([`super::structural`], [`super::openapi`]); building a node never refuses, so that the checks can
//! use nodes too.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use regex::Regex;
use serde_json::Value;

use super::cel::Rule;
use super::format::Format;
use super::number::Range;

/// A JSON type as schemas name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

impl Type {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "array" => Self::Array,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "object" => Self::Object,
            "string" => Self::String,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Object => "object",
            Self::String => "string",
        }
    }
}

/// How the elements of an array are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ListType {
    #[default]
    Atomic,
    Set,
    /// By the values of these fields.
    Map(Vec<String>),
}

/// What keys beyond the named properties may hold.
#[derive(Debug)]
pub(super) enum Additional {
    Any,
    None,
    Each(Box<Node>),
}

/// A `pattern`; one that does not compile refuses every string, as in kube-apiserver.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) text: String,
    pub(super) regex: Result<Regex, String>,
}

/// A `format`, by name for messages and by meaning for checks.
#[derive(Debug)]
pub(super) struct NamedFormat {
    pub(super) name: String,
    /// Set where strings are checked.
    pub(super) of_strings: Option<Format>,
}

/// Constraints on the value itself; the same for the structure and inside `allOf` and its kin.
#[derive(Debug, Default)]
pub(super) struct Checks {
    pub(super) format: Option<NamedFormat>,
    pub(super) minimum: Option<f64>,
    pub(super) exclusive_minimum: bool,
    pub(super) maximum: Option<f64>,
    pub(super) exclusive_maximum: bool,
    pub(super) multiple_of: Option<f64>,
    pub(super) min_length: Option<i64>,
    pub(super) max_length: Option<i64>,
    pub(super) pattern: Option<Pattern>,
    pub(super) min_items: Option<i64>,
    pub(super) max_items: Option<i64>,
    pub(super) unique_items: bool,
    pub(super) min_properties: Option<i64>,
    pub(super) max_properties: Option<i64>,
    pub(super) required: Vec<String>,
    pub(super) allowed: Vec<Value>,
    pub(super) all_of: Vec<Node>,
    pub(super) any_of: Vec<Node>,
    pub(super) one_of: Vec<Node>,
    pub(super) not: Option<Box<Node>>,
}

/// One place of a schema.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) kind: Option<Type>,
    pub(super) nullable: bool,
    pub(super) default: Option<Value>,
    pub(super) properties: BTreeMap<String, Node>,
    pub(super) additional: Option<Additional>,
    pub(super) items: Option<Box<Node>>,
    pub(super) preserve_unknown: bool,
    pub(super) embedded: bool,
    pub(super) int_or_string: bool,
    pub(super) list_type: ListType,
    pub(super) checks: Checks,
    pub(super) rules: Vec<Rule>,
    /// Whether this node or one below it has rules: most subtrees have none and are skipped.
    pub(super) ruled: bool,
    /// Whether this node or one below it is an embedded resource.
    pub(super) embeds: bool,
    /// Whether this node or one below it is a list of type set or map.
    pub(super) keyed: bool,
    /// Whether this node or one below it has a default.
    pub(super) defaults: bool,
}

impl Node {
    pub(super) fn build(props: &JSONSchemaProps) -> Self {
        Self::build_rooted(props, false)
    }

    /// `resource_root`: whether rules see `apiVersion`, `kind` and `metadata` though the schema does not name them.
    pub(super) fn build_rooted(props: &JSONSchemaProps, resource_root: bool) -> Self {
        let mut node = Self {
            kind: props.type_.as_deref().and_then(Type::parse),
            nullable: props.nullable == Some(true),
            default: props.default.as_ref().map(|json| json.0.clone()).filter(|v| !v.is_null()),
            properties: props
                .properties
                .iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), Self::build(schema)))
                .collect(),
            additional: props.additional_properties.as_ref().map(|additional| match additional {
                JSONSchemaPropsOrBool::Bool(true) => Additional::Any,
                JSONSchemaPropsOrBool::Bool(false) => Additional::None,
                JSONSchemaPropsOrBool::Schema(schema) => Additional::Each(Box::new(Self::build(schema))),
            }),
            items: match &props.items {
                Some(JSONSchemaPropsOrArray::Schema(schema)) => Some(Box::new(Self::build(schema))),
                _ => None,
            },
            preserve_unknown: props.x_kubernetes_preserve_unknown_fields == Some(true),
            embedded: props.x_kubernetes_embedded_resource == Some(true),
            int_or_string: props.x_kubernetes_int_or_string == Some(true),
            list_type: match props.x_kubernetes_list_type.as_deref() {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map(props.x_kubernetes_list_map_keys.clone().unwrap_or_default()),
                _ => ListType::Atomic,
            },
            checks: Checks::build(props),
            ..Self::default()
        };
        node.rules = Rule::compile_all(props, &node, resource_root || node.embedded);
        node.ruled = !node.rules.is_empty() || node.children().any(|child| child.ruled);
        node.embeds = node.embedded || node.children().any(|child| child.embeds);
        node.keyed = node.list_type != ListType::Atomic || node.children().any(|child| child.keyed);
        node.defaults = node.default.is_some() || node.children().any(|child| child.defaults);
        node
    }

    fn children(&self) -> impl Iterator<Item = &Node> {
        let additional = match &self.additional {
            Some(Additional::Each(node)) => Some(node.as_ref()),
            _ => None,
        };
        self.properties.values().chain(additional).chain(self.items.as_deref())
    }

    /// The schema of a key: its property, else that of additional keys.
    pub(super) fn child(&self, key: &str) -> Option<&Node> {
        self.properties.get(key).or(match &self.additional {
            Some(Additional::Each(node)) => Some(node),
            _ => None,
        })
    }

    /// The types a value may have; an int-or-string has two, and its `type` is not looked at.
    pub(super) fn types(&self) -> &'static [Type] {
        if self.int_or_string {
            return &[Type::Integer, Type::String];
        }
        match self.kind {
            None => &[],
            Some(Type::Array) => &[Type::Array],
            Some(Type::Boolean) => &[Type::Boolean],
            Some(Type::Integer) => &[Type::Integer],
            Some(Type::Number) => &[Type::Number],
            Some(Type::Object) => &[Type::Object],
            Some(Type::String) => &[Type::String],
        }
    }

    /// What numbers must fit into.
    pub(super) fn range(&self) -> Range {
        let format = self.checks.format.as_ref().map(|f| f.name.as_str());
        match (self.types(), format) {
            ([Type::Integer], Some("int32")) => Range::Int32,
            ([Type::Integer], _) => Range::Int64,
            ([Type::Number], Some("float")) => Range::Float32,
            _ => Range::Any,
        }
    }
}

impl Checks {
    fn build(props: &JSONSchemaProps) -> Self {
        let nodes =
            |schemas: &Option<Vec<JSONSchemaProps>>| schemas.iter().flatten().map(Node::build).collect();
        Self {
            format: NamedFormat::build(props),
            minimum: props.minimum,
            exclusive_minimum: props.exclusive_minimum == Some(true),
            maximum: props.maximum,
            exclusive_maximum: props.exclusive_maximum == Some(true),
            multiple_of: props.multiple_of,
            min_length: props.min_length,
            max_length: props.max_length,
            pattern: props.pattern.as_deref().filter(|text| !text.is_empty()).map(Pattern::build),
            min_items: props.min_items,
            max_items: props.max_items,
            unique_items: props.unique_items == Some(true),
            min_properties: props.min_properties,
            max_properties: props.max_properties,
            required: props.required.clone().unwrap_or_default(),
            allowed: props.enum_.iter().flatten().map(|json| json.0.clone()).collect(),
            all_of: nodes(&props.all_of),
            any_of: nodes(&props.any_of),
            one_of: nodes(&props.one_of),
            not: props.not.as_deref().map(|schema| Box::new(Node::build(schema))),
        }
    }
}

impl NamedFormat {
    /// A format that means nothing for the type is left out: kube-apiserver ignores it.
    fn build(props: &JSONSchemaProps) -> Option<Self> {
        let name = props.format.as_deref().filter(|name| !name.is_empty())?;
        let kind = if props.x_kubernetes_int_or_string == Some(true) {
            ""
        } else {
            props.type_.as_deref().unwrap_or("")
        };
        let of_strings = match kind {
            "" | "string" => Some(Format::parse(name)?),
            "integer" if matches!(name, "int32" | "int64") => None,
            "number" if matches!(name, "float" | "double") => None,
            _ => return None,
        };
        Some(Self { name: name.to_owned(), of_strings })
    }
}

impl Pattern {
    pub(super) fn build(text: &str) -> Self {
        Self { text: text.to_owned(), regex: go_regex(text).map_err(|error| error.to_string()) }
    }
}

/// Compiles a pattern written for Go's RE2. Of the few spellings that differ, `\z` is the same and `\C` does not exist
/// here; Perl classes and word boundaries are ASCII in Go.
pub(super) fn go_regex(text: &str) -> Result<Regex, regex::Error> {
    Regex::new(&ascii_classes(text))
}

/// `\d`, `\s`, `\w` and `\b` mean ASCII in RE2 and Unicode in this engine.
fn ascii_classes(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut in_class = false;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let Some(next) = chars.next() else {
                    out.push('\\');
                    break;
                };
                match (next, in_class) {
                    ('d', _) => out.push_str("[0-9]"),
                    ('D', _) => out.push_str("[^0-9]"),
                    ('w', _) => out.push_str("[0-9A-Za-z_]"),
                    ('W', _) => out.push_str("[^0-9A-Za-z_]"),
                    ('s', _) => out.push_str(r"[\t\n\f\r ]"),
                    ('S', _) => out.push_str(r"[^\t\n\f\r ]"),
                    ('b', false) => out.push_str(r"(?-u:\b)"),
                    // `(?-u:\B)` could match inside a character; the Unicode one differs only beside non-ASCII words.
                    _ => {
                        out.push('\\');
                        out.push(next);
                    }
                }
            }
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                let mut rest = chars.clone();
                if rest.next() == Some('^') {
                    out.push('^');
                    chars.next();
                }
                // A bracket that comes first is a literal one.
                if chars.clone().next() == Some(']') {
                    out.push_str("\\]");
                    chars.next();
                }
            }
            '[' => {
                // Only `[:alpha:]` opens something inside a class in RE2; this engine would nest.
                if chars.clone().next() == Some(':') {
                    out.push('[');
                    for c in chars.by_ref() {
                        out.push(c);
                        if c == ']' {
                            break;
                        }
                    }
                } else {
                    out.push_str("\\[");
                }
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            // Set operators of this engine, plain characters in RE2.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
