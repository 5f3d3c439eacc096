//! Whether a schema is *structural*: every field it speaks of has one type, said once, outside of `allOf` and its kin.
//!
//! Pruning and defaulting are only possible on such schemas. Errors come out sorted, as in kube-apiserver.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use super::node;
use super::path::Path;
use crate::field_error::FieldError;

/// Where in the schema a node stands; the message for a missing type depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

pub(super) fn check(schema: &JSONSchemaProps, at: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_structure(schema, Level::Root, at, &mut errors);
    check_complete(schema, Some(schema), at, at, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

/// Keywords no structural schema can have; the first found ends the examination.
pub(super) fn unsupported_keyword(schema: &JSONSchemaProps) -> Option<&'static str> {
    let here = [
        (schema.id.as_deref().is_some_and(|id| !id.is_empty()), "'id' is not supported"),
        (schema.schema.as_deref().is_some_and(|s| !s.is_empty()), "'schema' is not supported"),
        (schema.ref_path.as_deref().is_some_and(|r| !r.is_empty()), "'$ref' is not supported"),
        (
            schema.pattern_properties.as_ref().is_some_and(|p| !p.is_empty()),
            "'patternProperties' is not supported",
        ),
        (schema.dependencies.as_ref().is_some_and(|d| !d.is_empty()), "'dependencies' is not supported"),
        (schema.additional_items.is_some(), "'additionalItems' is not supported"),
        (schema.definitions.as_ref().is_some_and(|d| !d.is_empty()), "'definitions' is not supported"),
        (
            matches!(&schema.items, Some(JSONSchemaPropsOrArray::Schemas(list)) if !list.is_empty()),
            "'items' must be a schema, but is an array",
        ),
        (
            schema.x_kubernetes_preserve_unknown_fields == Some(false),
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined",
        ),
    ];
    let found = here.into_iter().find(|(present, _)| *present).map(|(_, what)| what);
    found.or_else(|| subschemas(schema).find_map(unsupported_keyword))
}

/// Every schema directly inside this one.
pub(super) fn subschemas(schema: &JSONSchemaProps) -> impl Iterator<Item = &JSONSchemaProps> {
    let lists = [&schema.all_of, &schema.any_of, &schema.one_of];
    additional(schema)
        .into_iter()
        .chain(items(schema))
        .chain(schema.properties.iter().flat_map(|map| map.values()))
        .chain(lists.into_iter().flatten().flatten())
        .chain(schema.not.as_deref())
}

pub(super) fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items),
        _ => None,
    }
}

pub(super) fn additional(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(schema)) => Some(schema),
        _ => None,
    }
}

fn kind(schema: &JSONSchemaProps) -> &str {
    schema.type_.as_deref().unwrap_or_default()
}

fn check_structure(schema: &JSONSchemaProps, level: Level, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let embedded = schema.x_kubernetes_embedded_resource == Some(true);
    let preserve = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    let int_or_string = schema.x_kubernetes_int_or_string == Some(true);
    let properties = at.field("properties");
    let type_at = || at.field("type").to_string();

    if kind(schema) == "array" && schema.items.is_none() {
        errors.push(FieldError::required(at.field("items").to_string(), "must be specified"));
    }
    if let Some(items) = items(schema) {
        check_structure(items, Level::Item, &at.field("items"), errors);
    }
    for (name, property) in schema.properties.iter().flatten() {
        check_structure(property, Level::Field, &properties.key(name), errors);
    }
    if schema.additional_properties.is_some() {
        let at = at.field("additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(at.to_string(), "must not be used at the root"));
        }
        if embedded {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(FieldError::forbidden(at.to_string(), detail));
        }
        if let Some(each) = additional(schema) {
            check_structure(each, Level::Field, &at, errors);
        }
    }
    for (set, name) in
        [(preserve, "x-kubernetes-preserve-unknown-fields"), (embedded, "x-kubernetes-embedded-resource")]
    {
        if int_or_string && set {
            let detail = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(at.field(name).to_string(), &Value::Bool(true), detail));
        }
    }
    let skip_any_of = is_int_or_string(schema.any_of.as_deref());
    let skip_all_of = schema
        .all_of
        .as_ref()
        .and_then(|all| all.first())
        .is_some_and(|s| is_int_or_string(s.any_of.as_deref()));
    check_values(schema, skip_any_of, skip_all_of, at, errors);

    if embedded && kind(schema) != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(required_or_invalid(type_at(), kind(schema), detail));
    } else if kind(schema).is_empty() && !int_or_string && !preserve {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(type_at(), detail));
    }
    if level == Level::Root && !kind(schema).is_empty() && kind(schema) != "object" {
        errors.push(FieldError::invalid(type_at(), &kind(schema).into(), "must be object at the root"));
    }
    check_resource_fields(schema, level, embedded, &properties, errors);
    if embedded && !preserve && schema.properties.as_ref().is_none_or(|p| p.is_empty()) {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(properties.to_string(), detail));
    }
}

pub(super) fn required_or_invalid(field: String, value: &str, detail: &str) -> FieldError {
    if value.is_empty() {
        FieldError::required(field, detail)
    } else {
        FieldError::invalid(field, &value.into(), detail)
    }
}

/// Of a resource's metadata only the name and generateName may be restricted.
fn check_resource_fields(
    schema: &JSONSchemaProps,
    level: Level,
    embedded: bool,
    properties: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(map) = &schema.properties else { return };
    let is_resource = level == Level::Root || embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(property) = map.get(name).filter(|property| is_resource && kind(property) != "string") {
            let at = properties.key(name).field("type").to_string();
            errors.push(FieldError::invalid(at, &kind(property).into(), "must be string"));
        }
    }
    let Some(metadata) = map.get("metadata") else { return };
    let at = properties.key("metadata");
    if is_resource && kind(metadata) != "object" {
        errors.push(FieldError::invalid(
            at.field("type").to_string(),
            &kind(metadata).into(),
            "must be object",
        ));
    }
    if level == Level::Root {
        let mut rest = metadata.clone();
        rest.type_ = None;
        rest.default = None;
        rest.required = rest.required.filter(|list| !list.is_empty());
        rest.properties =
            rest.properties.filter(|map| map.keys().any(|name| name != "name" && name != "generateName"));
        if rest != JSONSchemaProps::default() {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(at.to_string(), detail));
        }
    }
}

/// Exactly `[{type: integer}, {type: string}]`, the one place where types may stand under `anyOf`.
fn is_int_or_string(any_of: Option<&[JSONSchemaProps]>) -> bool {
    let only = |name: &str| JSONSchemaProps { type_: Some(name.into()), ..Default::default() };
    matches!(any_of, Some([a, b]) if *a == only("integer") && *b == only("string"))
}

fn check_values(
    schema: &JSONSchemaProps,
    skip_any_of: bool,
    skip_all_of: bool,
    at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for (name, list) in [("anyOf", &schema.any_of), ("allOf", &schema.all_of), ("oneOf", &schema.one_of)] {
        let at = at.field(name);
        for (i, nested) in list.iter().flatten().enumerate() {
            if name == "anyOf" && skip_any_of {
                break;
            }
            check_nested(nested, name == "allOf" && i == 0 && skip_all_of, &at.index(i), errors);
        }
    }
    if let Some(not) = &schema.not {
        check_nested(not, false, &at.field("not"), errors);
    }
    if let Some(pattern) = schema.pattern.as_deref().filter(|text| !text.is_empty())
        && let Err(error) = node::go_regex(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(at.field("pattern").to_string(), &pattern.into(), detail));
    }
}

/// Under a junctor a schema may constrain values and nothing else.
fn check_nested(schema: &JSONSchemaProps, skip_any_of: bool, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    check_values(schema, skip_any_of, false, at, errors);
    if let Some(items) = items(schema) {
        check_nested(items, false, &at.field("items"), errors);
    }
    let properties = at.field("properties");
    for (name, property) in schema.properties.iter().flatten() {
        check_nested(property, false, &properties.key(name), errors);
    }
    let filled = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let forbidden = [
        (filled(&schema.type_), "type", "must be empty to be structural"),
        (
            !matches!(schema.additional_properties, None | Some(JSONSchemaPropsOrBool::Bool(false))),
            "additionalProperties",
            "must be undefined to be structural",
        ),
        (schema.default.is_some(), "default", "must be undefined to be structural"),
        (filled(&schema.title), "title", "must be empty to be structural"),
        (filled(&schema.description), "description", "must be empty to be structural"),
        (schema.nullable == Some(true), "nullable", "must be false to be structural"),
        (
            schema.x_kubernetes_preserve_unknown_fields == Some(true),
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        (
            schema.x_kubernetes_embedded_resource == Some(true),
            "x-kubernetes-embedded-resource",
            "must be false to be structural",
        ),
        (
            schema.x_kubernetes_int_or_string == Some(true),
            "x-kubernetes-int-or-string",
            "must be false to be structural",
        ),
        (
            schema.x_kubernetes_list_map_keys.as_ref().is_some_and(|keys| !keys.is_empty()),
            "x-kubernetes-list-map-keys",
            "must be empty to be structural",
        ),
        (
            schema.x_kubernetes_list_type.is_some(),
            "x-kubernetes-list-type",
            "must be undefined to be structural",
        ),
        (
            schema.x_kubernetes_map_type.is_some(),
            "x-kubernetes-map-type",
            "must be undefined to be structural",
        ),
        (
            schema.x_kubernetes_validations.as_ref().is_some_and(|rules| !rules.is_empty()),
            "x-kubernetes-validations",
            "must be empty to be structural",
        ),
    ];
    for (present, name, detail) in forbidden {
        if present {
            errors.push(FieldError::forbidden(at.field(name).to_string(), detail));
        }
    }
    if schema.properties.as_ref().is_some_and(|map| map.contains_key("metadata")) {
        let detail = "must not be specified in a nested context";
        errors.push(FieldError::forbidden(properties.key("metadata").to_string(), detail));
    }
}

/// Whatever is constrained under a junctor must exist in the structure.
fn check_complete(
    values: &JSONSchemaProps,
    structure: Option<&JSONSchemaProps>,
    structure_at: &Path<'_>,
    values_at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let not = values_at.field("not");
    if let Some(nested) = &values.not {
        check_nested_complete(nested, structure, structure_at, &not, errors);
    }
    for (name, list) in [("allOf", &values.all_of), ("anyOf", &values.any_of), ("oneOf", &values.one_of)] {
        let at = values_at.field(name);
        for (i, nested) in list.iter().flatten().enumerate() {
            check_nested_complete(nested, structure, structure_at, &at.index(i), errors);
        }
    }
}

fn check_nested_complete(
    values: &JSONSchemaProps,
    structure: Option<&JSONSchemaProps>,
    structure_at: &Path<'_>,
    values_at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let missing = |at: String, values_at: String| {
        FieldError::required(at, format!("because it is defined in {values_at}"))
    };
    let Some(structure) = structure else {
        errors.push(missing(structure_at.to_string(), values_at.to_string()));
        return;
    };
    check_complete(values, Some(structure), structure_at, values_at, errors);
    if let Some(nested) = items(values) {
        let (structure_at, values_at) = (structure_at.field("items"), values_at.field("items"));
        check_nested_complete(nested, items(structure), &structure_at, &values_at, errors);
    }
    let (structure_at, values_at) = (structure_at.field("properties"), values_at.field("properties"));
    for (name, nested) in values.properties.iter().flatten() {
        let property = structure.properties.as_ref().and_then(|map| map.get(name));
        check_nested_complete(nested, property, &structure_at.key(name), &values_at.key(name), errors);
    }
}
