//! CustomResourceDefinitions: their defaults, what makes one valid, the resources it defines, and its status.
//!
//! Serving those resources is the request path's business; checking their objects is [`crate::schema`]'s.

mod definition;
pub(crate) mod jsonpath;
pub(crate) mod names;
mod status;

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion,
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::field_error::FieldError;
use crate::schema::{ScalePaths, StructuralSchema};
use jsonpath::JsonPath;

pub(crate) use definition::validate_crd;
pub(crate) use status::establish;

/// One version of a custom resource, ready to be served.
#[derive(Clone, Debug)]
pub(crate) struct CrdVersion {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) served: bool,
    /// Whether its objects are also served by versions with other schemas, and so may hold more than this one knows.
    pub(crate) shared: bool,
    pub(crate) schema: Arc<StructuralSchema>,
    /// Whether `/status` is apart from the rest.
    pub(crate) status: bool,
    pub(crate) scale: Option<ScalePaths>,
    /// Paths as field selectors name them, without the leading dot.
    pub(crate) selectable_fields: Vec<String>,
    #[expect(dead_code, reason = "shown once lists answer as tables")]
    pub(crate) printer_columns: Vec<PrinterColumn>,
}

/// A column of `kubectl get`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrinterColumn {
    pub(crate) name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i32,
    /// None if the path cannot be read: the column stays empty then.
    pub(crate) path: Option<JsonPath>,
}

/// Sets what the API sets when a CRD leaves it out.
pub(crate) fn default_crd(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    let kind = spec["names"]["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(names) = spec["names"].as_object_mut() {
        let is_empty = |value: Option<&Value>| value.is_none_or(|v| v.is_null() || v == "");
        if is_empty(names.get("singular")) {
            names.insert("singular".into(), kind.to_lowercase().into());
        }
        if is_empty(names.get("listKind")) && !kind.is_empty() {
            names.insert("listKind".into(), format!("{kind}List").into());
        }
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec["conversion"] = json!({"strategy": "None"});
    }
    if let Some(service) = spec["conversion"].pointer_mut("/webhook/clientConfig/service")
        && service.is_object()
        && service.get("port").is_none_or(Value::is_null)
    {
        service["port"] = 443.into();
    }
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            omit_empty(schema);
        }
    }
    let stored = crd.pointer("/status/storedVersions").and_then(Value::as_array);
    if stored.is_none_or(Vec::is_empty) {
        status::remember_storage_version(crd);
    }
}

/// Takes out of a schema the lists and maps that hold nothing: the API does not store them.
fn omit_empty(schema: &mut Value) {
    const OMITTED: [&str; 11] = [
        "allOf",
        "anyOf",
        "definitions",
        "dependencies",
        "enum",
        "oneOf",
        "patternProperties",
        "properties",
        "required",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-validations",
    ];
    let Some(members) = schema.as_object_mut() else { return };
    members.retain(|name, value| {
        let empty =
            value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        !(empty && OMITTED.contains(&name.as_str()))
    });
    for (name, value) in members {
        match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(omit_empty),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter_mut().for_each(omit_empty),
            ("items" | "additionalProperties" | "not", schema) => omit_empty(schema),
            _ => {}
        }
    }
}

/// The resources a CRD defines, one per version.
pub(crate) fn versions(crd: &Value) -> Result<Vec<CrdVersion>, Vec<FieldError>> {
    let spec = parse_spec(crd)?;
    let shared = definition::Shared::of(&spec);
    let mut common: Option<Arc<StructuralSchema>> = None;
    let mut out = Vec::with_capacity(spec.versions.len());
    for (i, version) in spec.versions.iter().enumerate() {
        let schema = match &common {
            Some(schema) if shared.schema => schema.clone(),
            _ => compile(version, &definition::schema_path(shared.schema, i))?,
        };
        common = Some(schema.clone());
        let has_siblings = spec.versions.len() > 1 && !shared.schema;
        out.push(resource(&spec, version, &schema, has_siblings));
    }
    Ok(out)
}

fn parse_spec(crd: &Value) -> Result<CustomResourceDefinitionSpec, Vec<FieldError>> {
    let spec = crd.get("spec").unwrap_or(&Value::Null);
    let spec = if spec.is_null() { &json!({}) } else { spec };
    CustomResourceDefinitionSpec::deserialize(spec)
        .map_err(|error| vec![FieldError::invalid("spec", &Value::from(""), error.to_string())])
}

fn compile(
    version: &CustomResourceDefinitionVersion,
    at: &str,
) -> Result<Arc<StructuralSchema>, Vec<FieldError>> {
    let Some(props) = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()) else {
        return Err(vec![FieldError::required(at, "")]);
    };
    StructuralSchema::compile(props, at).map(Arc::new)
}

fn resource(
    spec: &CustomResourceDefinitionSpec,
    version: &CustomResourceDefinitionVersion,
    schema: &StructuralSchema,
    has_siblings: bool,
) -> CrdVersion {
    let names = &spec.names;
    let subresources = version.subresources.as_ref();
    let columns = version.additional_printer_columns.iter().flatten();
    let scale = subresources.and_then(|sub| sub.scale.as_ref()).map(|scale| ScalePaths {
        spec_replicas: scale.spec_replicas_path.clone(),
        status_replicas: scale.status_replicas_path.clone(),
        label_selector: scale.label_selector_path.clone().filter(|path| !path.is_empty()),
    });
    CrdVersion {
        group: spec.group.clone(),
        version: version.name.clone(),
        plural: names.plural.clone(),
        singular: names.singular.clone().unwrap_or_else(|| names.kind.to_lowercase()),
        kind: names.kind.clone(),
        list_kind: names.list_kind.clone().unwrap_or_else(|| format!("{}List", names.kind)),
        short_names: names.short_names.clone().unwrap_or_default(),
        categories: names.categories.clone().unwrap_or_default(),
        namespaced: spec.scope == "Namespaced",
        served: version.served,
        shared: has_siblings,
        schema: Arc::new(schema.with_scale(scale.clone())),
        status: subresources.is_some_and(|sub| sub.status.is_some()),
        scale,
        selectable_fields: version
            .selectable_fields
            .iter()
            .flatten()
            .map(|field| field.json_path.trim_start_matches('.').to_owned())
            .collect(),
        printer_columns: columns
            .map(|column| PrinterColumn {
                name: column.name.clone(),
                kind: column.type_.clone(),
                format: column.format.clone().unwrap_or_default(),
                description: column.description.clone().unwrap_or_default(),
                priority: column.priority.unwrap_or_default(),
                path: JsonPath::parse(&column.json_path).ok(),
            })
            .collect(),
    }
}
