//! What a CRD's schema may say beyond being structural: keywords of OpenAPI v3, the `x-kubernetes-` extensions, rules.
//!
//! Errors in rules are reported after all others, and only if nothing else is wrong at their place or below: without a
//! sound schema their messages would mislead.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use serde_json::{Value, json};

use super::field_path;
use super::node::{Additional, Node};
use super::path::Path;
use super::structural::{self, required_or_invalid};
use crate::field_error::{FieldError, Reason};
use crate::go_format;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// `node` is what `schema` compiles to, given if its rules are to be examined too.
pub(super) fn check(schema: &JSONSchemaProps, node: Option<&Node>, at: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Errors::default();
    check_schema(schema, node, at, &Place { root: true, ..Place::default() }, &mut errors);
    errors.schema.append(&mut errors.rules);
    errors.schema
}

#[derive(Default)]
struct Errors {
    schema: Vec<FieldError>,
    rules: Vec<FieldError>,
}

/// What the surroundings of a schema forbid inside it.
#[derive(Clone, Default)]
struct Place {
    root: bool,
    /// Inside `apiVersion`, `kind` or `metadata` of a resource.
    in_resource_meta: bool,
    /// Why defaults may not be set.
    no_defaults: Option<String>,
    /// Where elements stop being correlatable between revisions; rules below cannot use `oldSelf`.
    uncorrelatable: Option<String>,
}

fn check_schema(
    schema: &JSONSchemaProps,
    node: Option<&Node>,
    at: &Path<'_>,
    place: &Place,
    errors: &mut Errors,
) {
    let before = errors.schema.len();
    check_keywords(schema, at, place, &mut errors.schema);
    let inner = Place { root: false, ..place.clone() };
    check_children(schema, node, at, place, &inner, errors);
    check_extensions(schema, at, &mut errors.schema);
    let rules = schema.x_kubernetes_validations.as_deref().unwrap_or_default();
    let rules_at = at.field("x-kubernetes-validations");
    for (i, rule) in rules.iter().enumerate() {
        check_rule_text(rule, schema, &rules_at.index(i), &mut errors.schema);
    }
    if errors.schema.len() == before
        && let Some(node) = node
    {
        for (i, (rule, compiled)) in rules.iter().zip(&node.rules).enumerate() {
            check_compiled_rule(rule, compiled, &rules_at.index(i), place, &mut errors.rules);
        }
    }
}

fn check_keywords(schema: &JSONSchemaProps, at: &Path<'_>, place: &Place, errors: &mut Vec<FieldError>) {
    let kind = schema.type_.as_deref().unwrap_or_default();
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(not_supported(at.field("type").to_string(), kind, &TYPES));
    }
    if let (Some(_), Some(why)) = (&schema.default, &place.no_defaults) {
        errors.push(FieldError::forbidden(at.field("default").to_string(), format!("must not be set {why}")));
    }
    let non_empty = |map: &Option<_>| map.is_some();
    let forbidden = [
        (schema.id.as_deref().is_some_and(|id| !id.is_empty()), "id", "id is not supported"),
        (schema.additional_items.is_some(), "additionalItems", "additionalItems is not supported"),
        (
            schema.pattern_properties.as_ref().is_some_and(|map| !map.is_empty()),
            "patternProperties",
            "patternProperties is not supported",
        ),
        (
            schema.definitions.as_ref().is_some_and(|map| !map.is_empty()),
            "definitions",
            "definitions is not supported",
        ),
        (non_empty(&schema.dependencies), "dependencies", "dependencies is not supported"),
        (schema.ref_path.is_some(), "$ref", "$ref is not supported"),
        (kind == "null", "type", "type cannot be set to null, use nullable as an alternative"),
        (
            matches!(&schema.items, Some(JSONSchemaPropsOrArray::Schemas(list)) if !list.is_empty()),
            "items",
            "items must be a schema object and not an array",
        ),
        (
            place.in_resource_meta && schema.x_kubernetes_embedded_resource == Some(true),
            "x-kubernetes-embedded-resource",
            "must not be used inside of resource meta",
        ),
        (
            schema.unique_items == Some(true),
            "uniqueItems",
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            schema.properties.as_ref().is_some_and(|map| !map.is_empty())
                && !matches!(schema.additional_properties, None | Some(JSONSchemaPropsOrBool::Bool(true))),
            "additionalProperties",
            "additionalProperties and properties are mutual exclusive",
        ),
    ];
    for (present, name, detail) in forbidden {
        if present {
            errors.push(FieldError::forbidden(at.field(name).to_string(), detail));
        }
    }
}

fn check_children(
    schema: &JSONSchemaProps,
    node: Option<&Node>,
    at: &Path<'_>,
    place: &Place,
    inner: &Place,
    errors: &mut Errors,
) {
    if let Some(each) = structural::additional(schema) {
        let mut inner = inner.clone();
        if place.in_resource_meta {
            inner.no_defaults = Some("inside additionalProperties applying to object metadata".into());
        }
        let node = node.and_then(|node| match &node.additional {
            Some(Additional::Each(each)) => Some(each.as_ref()),
            _ => None,
        });
        check_schema(each, node, &at.field("additionalProperties"), &inner, errors);
    }
    let properties = at.field("properties");
    for (name, property) in schema.properties.iter().flatten() {
        let mut inner = inner.clone();
        let resource = place.root || schema.x_kubernetes_embedded_resource == Some(true);
        if resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            inner.in_resource_meta = true;
            if place.root {
                inner.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        let node = node.and_then(|node| node.properties.get(name));
        check_schema(property, node, &properties.key(name), &inner, errors);
    }
    if let Some(not) = &schema.not {
        check_schema(not, None, &at.field("not"), inner, errors);
    }
    for (name, list) in [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)] {
        let at = at.field(name);
        for (i, nested) in list.iter().flatten().enumerate() {
            check_schema(nested, None, &at.index(i), inner, errors);
        }
    }
    if let Some(items) = structural::items(schema) {
        let mut inner = inner.clone();
        if schema.x_kubernetes_list_type.as_deref() != Some("map") {
            inner.uncorrelatable.get_or_insert_with(|| at.to_string());
        }
        check_schema(items, node.and_then(|node| node.items.as_deref()), &at.field("items"), &inner, errors);
    }
}

fn not_supported(field: String, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|text| go_format::quote(text)).collect();
    FieldError {
        reason: Reason::NotSupported,
        field,
        shown: Some(go_format::quote(value)),
        detail: format!("supported values: {}", supported.join(", ")),
    }
}

fn check_extensions(schema: &JSONSchemaProps, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let kind = schema.type_.as_deref().unwrap_or_default();
    if schema.x_kubernetes_preserve_unknown_fields == Some(false) {
        let at = at.field("x-kubernetes-preserve-unknown-fields").to_string();
        errors.push(FieldError::invalid(at, &Value::Bool(false), "must be true or undefined"));
    }
    if let Some(map_type) = schema.x_kubernetes_map_type.as_deref() {
        if kind != "object" {
            let detail = "must be object if x-kubernetes-map-type is specified";
            errors.push(required_or_invalid(at.field("type").to_string(), kind, detail));
        }
        if !matches!(map_type, "atomic" | "granular") {
            let at = at.field("x-kubernetes-map-type").to_string();
            errors.push(not_supported(at, map_type, &["atomic", "granular"]));
        }
    }
    let list_type = schema.x_kubernetes_list_type.as_deref();
    let list_type_at = || at.field("x-kubernetes-list-type").to_string();
    if let Some(list_type) = list_type {
        if kind != "array" {
            let detail = "must be array if x-kubernetes-list-type is specified";
            errors.push(required_or_invalid(at.field("type").to_string(), kind, detail));
        } else if list_type == "set" {
            check_set_items(schema, at, errors);
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            errors.push(not_supported(list_type_at(), list_type, &["atomic", "set", "map"]));
        }
    }
    let keys = schema.x_kubernetes_list_map_keys.as_deref().unwrap_or_default();
    if !keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list_type {
            None => FieldError::required(list_type_at(), detail),
            Some(other) => FieldError::invalid(list_type_at(), &other.into(), detail),
        });
    }
    if list_type == Some("map") {
        check_map_keys(schema, keys, at, errors);
    }
    if let Some("set" | "map") = list_type {
        check_keyed_items(schema, keys, list_type.unwrap_or_default(), at, errors);
    }
}

/// Elements of a set are compared whole, so they must not be mergeable themselves.
fn check_set_items(schema: &JSONSchemaProps, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(items) = structural::items(schema) else { return };
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let shown = items.x_kubernetes_list_type.as_deref().map_or(Value::Null, Value::from);
    let at = at.field("items");
    match items.type_.as_deref() {
        Some("array") if !matches!(items.x_kubernetes_list_type.as_deref(), None | Some("atomic")) => {
            errors.push(FieldError::invalid(at.field("x-kubernetes-list-type").to_string(), &shown, detail));
        }
        Some("object") if items.x_kubernetes_map_type.as_deref() != Some("atomic") => {
            errors.push(FieldError::invalid(at.field("x-kubernetes-map-type").to_string(), &shown, detail));
        }
        _ => {}
    }
}

fn check_map_keys(schema: &JSONSchemaProps, keys: &[String], at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let keys_at = || at.field("x-kubernetes-list-map-keys").to_string();
    if keys.is_empty() {
        errors.push(FieldError::required(keys_at(), "must not be empty if x-kubernetes-list-type is map"));
    }
    let items_at = at.field("items");
    let items = match &schema.items {
        None => {
            let detail = "must have a schema if x-kubernetes-list-type is map";
            errors.push(FieldError::required(items_at.to_string(), detail));
            return;
        }
        Some(JSONSchemaPropsOrArray::Schemas(_)) => {
            let detail = "must only have a single schema if x-kubernetes-list-type is map";
            errors.push(FieldError::invalid(items_at.to_string(), &Value::Null, detail));
            return;
        }
        Some(JSONSchemaPropsOrArray::Schema(items)) => items,
    };
    let kind = items.type_.as_deref().unwrap_or_default();
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(items_at.field("type").to_string(), &kind.into(), detail));
        return;
    }
    for (i, key) in keys.iter().enumerate() {
        match items.properties.as_ref().and_then(|map| map.get(key)) {
            Some(property) if matches!(property.type_.as_deref(), Some("array" | "object")) => {
                let properties = items_at.field("properties");
                let at = properties.key(key).field("type").to_string();
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(at, &kind.into(), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(keys_at(), &json!(keys), detail));
            }
        }
        if keys[..i].contains(key) {
            errors.push(FieldError::invalid(keys_at(), &json!(keys), "must not contain duplicate entries"));
        }
    }
}

/// Every element must be there and have all its keys.
fn check_keyed_items(
    schema: &JSONSchemaProps,
    keys: &[String],
    list_type: &str,
    at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(items) = structural::items(schema) else { return };
    let items_at = at.field("items");
    if items.nullable == Some(true) {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(items_at.field("nullable").to_string(), detail));
    }
    if list_type != "map" {
        return;
    }
    let properties = items_at.field("properties");
    for key in keys {
        let Some(property) = items.properties.as_ref().and_then(|map| map.get(key)) else { continue };
        let at = properties.key(key);
        if property.default.is_none() && !items.required.iter().flatten().any(|name| name == key) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                          required property";
            errors.push(FieldError::required(at.field("default").to_string(), detail));
        }
        if property.nullable == Some(true) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(at.field("nullable").to_string(), detail));
        }
    }
}

fn check_rule_text(
    rule: &ValidationRule,
    schema: &JSONSchemaProps,
    at: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let field = |name: &'static str| at.field(name).to_string();
    let message = rule.message.as_deref().unwrap_or_default();
    let has_line_breaks = |text: &str| text.contains(['\n', '\r']);
    if rule.rule.trim().is_empty() {
        errors.push(FieldError::required(field("rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(field("message"), &message.into(), "must be non-empty if specified"));
    } else if has_line_breaks(message.trim()) {
        errors.push(FieldError::invalid(field("message"), &message.into(), "must not contain line breaks"));
    } else if has_line_breaks(rule.rule.trim()) && message.trim().is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(FieldError::required(field("message"), detail));
    }
    if rule.message_expression.as_deref().is_some_and(|text| !text.is_empty() && text.trim().is_empty()) {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(FieldError::required(field("messageExpression"), detail));
    }
    if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
        errors.push(not_supported(field("reason"), reason, &REASONS));
    }
    if let Some(path) = rule.field_path.as_deref().filter(|path| !path.is_empty()) {
        let shown = Value::from(path);
        if path.trim().is_empty() {
            errors.push(FieldError::invalid(field("fieldPath"), &shown, "must be non-empty if specified"));
        }
        if has_line_breaks(path) {
            errors.push(FieldError::invalid(field("fieldPath"), &shown, "must not contain line breaks"));
        }
        let sound = structural::unsupported_keyword(schema).is_some()
            || field_path::resolve(path, &Node::build(schema), true).is_ok();
        if !sound {
            errors.push(FieldError::invalid(field("fieldPath"), &shown, "must be a valid path"));
        }
    }
}

fn check_compiled_rule(
    rule: &ValidationRule,
    compiled: &super::cel::Rule,
    at: &Path<'_>,
    place: &Place,
    errors: &mut Vec<FieldError>,
) {
    let field = |name: &'static str| at.field(name).to_string();
    let invalid = |name: &'static str, detail: String| FieldError {
        reason: Reason::Invalid,
        field: field(name),
        shown: Some(internal_form(rule)),
        detail,
    };
    if let Some(Err(error)) = &compiled.program {
        errors.push(invalid("rule", error.clone()));
    }
    if let Some(Err(error)) = &compiled.message_program {
        errors.push(invalid("messageExpression", format!("messageExpression compilation failed: {error}")));
    }
    if compiled.uses_old {
        if let Some(above) = &place.uncorrelatable {
            let detail =
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {above}");
            errors.push(FieldError::invalid(field("rule"), &rule.rule.as_str().into(), detail));
        }
    } else if let Some(optional) = rule.optional_old_self {
        let detail = "may not be set if oldSelf is not used in rule";
        errors.push(FieldError::invalid(field("optionalOldSelf"), &Value::Bool(optional), detail));
    }
}

/// The real server shows its internal form of a rule, in the order of its fields.
fn internal_form(rule: &ValidationRule) -> String {
    let text = |text: &Option<String>| go_format::json(&text.as_deref().unwrap_or_default().into());
    let optional = |value: Option<Value>| go_format::json(&value.unwrap_or_default());
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        go_format::json(&rule.rule.as_str().into()),
        text(&rule.message),
        text(&rule.message_expression),
        optional(rule.reason.as_deref().map(Value::from)),
        text(&rule.field_path),
        optional(rule.optional_old_self.map(Value::Bool)),
    )
}
