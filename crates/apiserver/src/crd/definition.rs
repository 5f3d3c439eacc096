//! Whether a CustomResourceDefinition is one: names, versions, schemas, subresources, columns, conversion.
//!
//! kube-apiserver checks an internal form in which what all versions share (schema, subresources, columns, selectable
//! fields) stands once at the top, so errors name `spec.validation` rather than `spec.versions[0].schema`; [`Shared`]
//! says which it is.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion, CustomResourceSubresources, JSONSchemaProps, SelectableField,
};
use serde_json::{Value, json};

use super::names::{dns_1035_label, dns_1123_subdomain};
use super::parse_spec;
use crate::field_error::{FieldError, Reason};
use crate::go_format;
use crate::schema::StructuralSchema;

const SELECTABLE_FIELDS_MAX: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Keywords that keep their sense when the schema of `.status` is taken out on its own.
const ROOT_KEYWORDS: [&str; 22] = [
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

/// Which parts all versions have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub(super) schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Shared {
    pub(super) fn of(spec: &CustomResourceDefinitionSpec) -> Self {
        fn same<T: PartialEq>(
            spec: &CustomResourceDefinitionSpec,
            part: impl Fn(&CustomResourceDefinitionVersion) -> &T,
        ) -> bool {
            spec.versions.windows(2).all(|pair| part(&pair[0]) == part(&pair[1]))
        }
        Self {
            schema: same(spec, |v| &v.schema),
            subresources: same(spec, |v| &v.subresources),
            columns: same(spec, |v| &v.additional_printer_columns),
            selectable: same(spec, |v| &v.selectable_fields),
        }
    }
}

/// Where the schema of the `index`th version stands.
pub(super) fn schema_path(shared: bool, index: usize) -> String {
    if shared {
        "spec.validation.openAPIV3Schema".into()
    } else {
        format!("spec.versions[{index}].schema.openAPIV3Schema")
    }
}

/// Everything wrong with a defaulted CRD; `old` is the one it replaces.
pub(crate) fn validate_crd(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let spec = match parse_spec(crd) {
        Ok(spec) => spec,
        Err(errors) => return errors,
    };
    let mut errors = Vec::new();
    let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if old.is_none() && !name.is_empty() {
        let mut problems = dns_1123_subdomain(name);
        if name != format!("{}.{}", spec.names.plural, spec.group) {
            problems.push("must be spec.names.plural+\".\"+spec.group".into());
        }
        errors.extend(problems.into_iter().map(|p| FieldError::invalid("metadata.name", &name.into(), p)));
    }
    check_spec(&spec, &mut errors);
    if let Some(old) = old {
        check_immutable(crd, old, &mut errors);
    }
    check_stored_versions(old, &spec, &mut errors);
    check_approval(crd, old, &spec.group, &mut errors);
    let preserved = |crd: &Value| crd.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true));
    if preserved(crd) && !old.is_some_and(preserved) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &Value::Bool(true), detail));
    }
    errors
}

fn check_spec(spec: &CustomResourceDefinitionSpec, errors: &mut Vec<FieldError>) {
    let invalid =
        |field: &str, value: &str, detail: String| FieldError::invalid(field, &value.into(), detail);
    if spec.group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let problems @ [_, ..] = dns_1123_subdomain(&spec.group).as_slice() {
        errors.push(invalid("spec.group", &spec.group, problems.join(",")));
    } else if !spec.group.contains('.') {
        errors.push(invalid("spec.group", &spec.group, "should be a domain with at least one dot".into()));
    }
    match spec.scope.as_str() {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    for (i, version) in spec.versions.iter().enumerate() {
        if schema_of(version).is_none() {
            let at = format!("spec.versions[{i}].schema.openAPIV3Schema");
            errors.push(FieldError::required(at, ""));
        }
    }
    let shared = Shared::of(spec);
    for (i, version) in spec.versions.iter().enumerate() {
        let at = format!("spec.versions[{i}]");
        if let problems @ [_, ..] = dns_1035_label(&version.name).as_slice() {
            errors.push(invalid(&format!("{at}.name"), &version.name, problems.join(",")));
        }
        check_deprecation(version, &at, errors);
        check_parts(version, &at, "schema.openAPIV3Schema", |shared| !shared, shared, errors);
    }
    check_version_set(spec, shared, errors);
    check_required_names(&spec.names, errors);
    check_names(&spec.names, "spec.names", errors);
    if let Some(first) = spec.versions.first() {
        check_parts(first, "spec", "validation.openAPIV3Schema", |shared| shared, shared, errors);
    }
    check_conversion(spec, errors);
}

/// Checks those parts of a version for which `here` says yes.
fn check_parts(
    version: &CustomResourceDefinitionVersion,
    at: &str,
    schema_at: &str,
    here: impl Fn(bool) -> bool,
    shared: Shared,
    errors: &mut Vec<FieldError>,
) {
    let schema = schema_of(version);
    let mut compiled = None;
    if here(shared.schema)
        && let Some(schema) = schema
    {
        let status = version.subresources.as_ref().is_some_and(|sub| sub.status.is_some());
        compiled = check_schema(schema, status, &format!("{at}.{schema_at}"), errors);
    }
    if here(shared.subresources)
        && let Some(subresources) = &version.subresources
    {
        check_subresources(subresources, &format!("{at}.subresources"), errors);
    }
    if here(shared.columns) {
        for (i, column) in version.additional_printer_columns.iter().flatten().enumerate() {
            check_column(column, &format!("{at}.additionalPrinterColumns[{i}]"), errors);
        }
    }
    if here(shared.selectable)
        && let Some(fields @ [_, ..]) = version.selectable_fields.as_deref()
        && let Some(schema) = schema
    {
        let schema = compiled.or_else(|| StructuralSchema::compile(schema, at).ok());
        if let Some(schema) = schema {
            check_selectable(fields, &schema, &format!("{at}.selectableFields"), errors);
        }
    }
}

fn schema_of(version: &CustomResourceDefinitionVersion) -> Option<&JSONSchemaProps> {
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn check_schema(
    schema: &JSONSchemaProps,
    status: bool,
    at: &str,
    errors: &mut Vec<FieldError>,
) -> Option<StructuralSchema> {
    let kind = schema.type_.as_deref().unwrap_or_default();
    if status && !kind.is_empty() && kind != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is \
                      enabled";
        errors.push(FieldError::invalid(format!("{at}.type"), &kind.into(), detail));
    } else if status && has_other_root_keywords(schema) {
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            ROOT_KEYWORDS.join(" ")
        );
        let shown = serde_json::to_value(schema).unwrap_or_default();
        errors.push(FieldError::invalid(at, &shown, detail));
    }
    if schema.nullable == Some(true) {
        errors.push(FieldError::forbidden(format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    match StructuralSchema::compile(schema, at) {
        Ok(schema) => Some(schema),
        Err(found) => {
            errors.extend(found);
            None
        }
    }
}

fn has_other_root_keywords(schema: &JSONSchemaProps) -> bool {
    let rest = JSONSchemaProps {
        description: None,
        type_: None,
        format: None,
        title: None,
        maximum: None,
        exclusive_maximum: None,
        minimum: None,
        exclusive_minimum: None,
        max_length: None,
        min_length: None,
        pattern: None,
        max_items: None,
        min_items: None,
        unique_items: None,
        multiple_of: None,
        required: None,
        items: None,
        properties: None,
        external_docs: None,
        example: None,
        x_kubernetes_preserve_unknown_fields: None,
        x_kubernetes_validations: None,
        nullable: schema.nullable.filter(|nullable| *nullable),
        x_kubernetes_embedded_resource: schema.x_kubernetes_embedded_resource.filter(|embedded| *embedded),
        x_kubernetes_int_or_string: schema.x_kubernetes_int_or_string.filter(|either| *either),
        ..schema.clone()
    };
    rest != JSONSchemaProps::default()
}

fn check_deprecation(version: &CustomResourceDefinitionVersion, at: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = &version.deprecation_warning else { return };
    let mut problems = Vec::new();
    if version.deprecated != Some(true) {
        problems.push("can only be set for deprecated versions".to_owned());
    } else {
        if warning.len() > 256 {
            problems.push("must be <= 256 characters long".to_owned());
        }
        if warning.is_empty() {
            problems.push("must not be an empty string".to_owned());
        }
        if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            problems.push(format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {i}"
            ));
        }
    }
    let at = format!("{at}.deprecationWarning");
    let shown = Value::from(warning.as_str());
    errors.extend(problems.into_iter().map(|problem| FieldError::invalid(at.clone(), &shown, problem)));
}

fn check_version_set(spec: &CustomResourceDefinitionSpec, shared: Shared, errors: &mut Vec<FieldError>) {
    let invalid = |detail: &str| FieldError {
        reason: Reason::Invalid,
        field: "spec.versions".into(),
        shown: Some(internal_versions(spec, shared)),
        detail: detail.into(),
    };
    let names: Vec<&str> = spec.versions.iter().map(|v| v.name.as_str()).collect();
    if (1..names.len()).any(|i| names[..i].contains(&names[i])) {
        errors.push(invalid("must contain unique version names"));
    }
    if spec.versions.iter().filter(|v| v.storage).count() != 1 {
        errors.push(invalid("must have exactly one version marked as storage version"));
    }
    if let Some(first) = names.first()
        && let problems @ [_, ..] = dns_1035_label(first).as_slice()
    {
        errors.push(FieldError::invalid("spec.version", &(*first).into(), problems.join(",")));
    }
}

/// The versions as the real server shows them: its internal form in the order of its fields, shared parts left out.
fn internal_versions(spec: &CustomResourceDefinitionSpec, shared: Shared) -> String {
    fn part<T: serde::Serialize>(hidden: bool, value: &T) -> String {
        let value = if hidden { Value::Null } else { serde_json::to_value(value).unwrap_or_default() };
        go_format::json(&value)
    }
    let show = |v: &CustomResourceDefinitionVersion| {
        let fields = [
            ("Name", part(false, &v.name)),
            ("Served", part(false, &v.served)),
            ("Storage", part(false, &v.storage)),
            ("Deprecated", part(false, &(v.deprecated == Some(true)))),
            ("DeprecationWarning", part(false, &v.deprecation_warning)),
            ("Schema", part(shared.schema, &v.schema)),
            ("Subresources", part(shared.subresources, &v.subresources)),
            ("AdditionalPrinterColumns", part(shared.columns, &v.additional_printer_columns)),
            ("SelectableFields", part(shared.selectable, &v.selectable_fields)),
        ];
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    };
    format!("[{}]", spec.versions.iter().map(show).collect::<Vec<_>>().join(","))
}

fn check_required_names(names: &CustomResourceDefinitionNames, errors: &mut Vec<FieldError>) {
    for (name, value) in [
        ("plural", Some(&names.plural)),
        ("singular", names.singular.as_ref()),
        ("kind", Some(&names.kind)),
        ("listKind", names.list_kind.as_ref()),
    ] {
        if value.is_none_or(String::is_empty) {
            errors.push(FieldError::required(format!("spec.names.{name}"), ""));
        }
    }
}

fn check_names(names: &CustomResourceDefinitionNames, at: &str, errors: &mut Vec<FieldError>) {
    let mut check = |field: String, text: &str, mixed_case: bool| {
        let problems = if mixed_case { dns_1035_label(&text.to_lowercase()) } else { dns_1035_label(text) };
        if problems.is_empty() {
            return;
        }
        let case = if mixed_case { "may have mixed case, but should otherwise match: " } else { "" };
        errors.push(FieldError::invalid(field, &text.into(), format!("{case}{}", problems.join(","))));
    };
    let list_kind = names.list_kind.as_deref().unwrap_or_default();
    let singular = names.singular.as_deref().unwrap_or_default();
    for (field, text, mixed_case) in [
        ("plural", names.plural.as_str(), false),
        ("singular", singular, false),
        ("kind", names.kind.as_str(), true),
        ("listKind", list_kind, true),
    ] {
        if !text.is_empty() {
            check(format!("{at}.{field}"), text, mixed_case);
        }
    }
    for (i, name) in names.short_names.iter().flatten().enumerate() {
        check(format!("{at}.shortNames[{i}]"), name, false);
    }
    let mut same_kinds = Vec::new();
    if !names.kind.is_empty() && names.kind == list_kind {
        let detail = "kind and listKind may not be the same";
        same_kinds.push(FieldError::invalid(format!("{at}.listKind"), &list_kind.into(), detail));
    }
    errors.append(&mut same_kinds);
    for (i, category) in names.categories.iter().flatten().enumerate() {
        if let problems @ [_, ..] = dns_1035_label(category).as_slice() {
            let field = format!("{at}.categories[{i}]");
            errors.push(FieldError::invalid(field, &category.as_str().into(), problems.join(",")));
        }
    }
}

fn check_column(column: &CustomResourceColumnDefinition, at: &str, errors: &mut Vec<FieldError>) {
    if column.name.is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    }
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    if column.type_.is_empty() {
        errors.push(FieldError::required(format!("{at}.type"), types));
    } else if !COLUMN_TYPES.contains(&column.type_.as_str()) {
        errors.push(FieldError::invalid(format!("{at}.type"), &column.type_.as_str().into(), types));
    }
    if let Some(format) = column.format.as_deref().filter(|f| !f.is_empty() && !COLUMN_FORMATS.contains(f)) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(format!("{at}.format"), &format.into(), detail));
    }
    let path_at = format!("{at}.JSONPath");
    if column.json_path.is_empty() {
        errors.push(FieldError::required(path_at, ""));
    } else {
        errors.extend(not_simple(&column.json_path, &path_at));
    }
}

fn not_simple(path: &str, at: &str) -> Option<FieldError> {
    let detail = "must be a simple json path starting with .";
    (!path.starts_with('.')).then(|| FieldError::invalid(at, &path.into(), detail))
}

fn check_subresources(subresources: &CustomResourceSubresources, at: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = &subresources.scale else { return };
    let mut check = |name: &str, path: &str, required: bool, under: &[&str], detail: &str| {
        let at = format!("{at}.scale.{name}");
        if path.is_empty() {
            if required {
                errors.push(FieldError::required(at, ""));
            }
        } else if let Some(error) = not_simple(path, &at) {
            errors.push(error);
        } else if !under.iter().any(|prefix| path.starts_with(prefix)) {
            errors.push(FieldError::invalid(at, &path.into(), detail));
        }
    };
    let spec = "should be a json path under .spec";
    check("specReplicasPath", &scale.spec_replicas_path, true, &[".spec."], spec);
    let status = "should be a json path under .status";
    check("statusReplicasPath", &scale.status_replicas_path, true, &[".status."], status);
    let either = "should be a json path under either .spec or .status";
    let selector = scale.label_selector_path.as_deref().unwrap_or_default();
    check("labelSelectorPath", selector, false, &[".spec.", ".status."], either);
}

fn check_selectable(
    fields: &[SelectableField],
    schema: &StructuralSchema,
    at: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut seen: Vec<String> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let at = format!("{at}[{i}].jsonPath");
        let text = field.json_path.as_str();
        if text.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let (path, is_scalar) = match schema.field(text) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(at, &text.into(), format!("is an invalid path: {why}")));
                continue;
            }
        };
        if path == "metadata" || path.starts_with("metadata.") {
            errors.push(FieldError::invalid(
                at.clone(),
                &text.into(),
                "must not point to fields in metadata",
            ));
        }
        if !is_scalar {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings \
                          with formats are allowed.";
            errors.push(FieldError::invalid(at.clone(), &text.into(), detail));
        }
        if seen.contains(&path) {
            errors.push(FieldError::duplicate(at, &text.into()));
        } else {
            seen.push(path);
        }
    }
    if seen.len() > SELECTABLE_FIELDS_MAX {
        errors.push(FieldError::too_many(at, seen.len(), SELECTABLE_FIELDS_MAX));
    }
}

fn check_conversion(spec: &CustomResourceDefinitionSpec, errors: &mut Vec<FieldError>) {
    let Some(conversion) = &spec.conversion else { return };
    let at = "spec.conversion";
    if conversion.strategy != "None" && spec.preserve_unknown_fields == Some(true) {
        let detail = "must be None if spec.preserveUnknownFields is true";
        let shown = Value::from(conversion.strategy.as_str());
        errors.push(FieldError::invalid(format!("{at}.strategy"), &shown, detail));
    }
    match conversion.strategy.as_str() {
        "" => errors.push(FieldError::required(format!("{at}.strategy"), "")),
        "None" | "Webhook" => {}
        other => errors.push(not_supported(&format!("{at}.strategy"), other, &["None", "Webhook"])),
    }
    let config = conversion.webhook.as_ref().and_then(|webhook| webhook.client_config.as_ref());
    let reviews = conversion.webhook.as_ref().map(|webhook| webhook.conversion_review_versions.as_slice());
    let (config_at, reviews_at) =
        (format!("{at}.webhookClientConfig"), format!("{at}.conversionReviewVersions"));
    if conversion.strategy == "Webhook" {
        match config {
            None => errors.push(FieldError::required(config_at, "required when strategy is set to Webhook")),
            Some(config) if config.url.is_some() == config.service.is_some() => {
                errors.push(FieldError::required(config_at, "exactly one of url or service is required"));
            }
            Some(_) => {}
        }
        let reviews = reviews.unwrap_or_default();
        if reviews.is_empty() {
            errors.push(FieldError::required(reviews_at, ""));
        } else if !reviews.iter().any(|version| matches!(version.as_str(), "v1" | "v1beta1")) {
            let detail = "must include at least one of v1, v1beta1";
            errors.push(FieldError::invalid(reviews_at, &json!(reviews), detail));
        }
        return;
    }
    let detail = "should not be set when strategy is not set to Webhook";
    if config.is_some() {
        errors.push(FieldError::forbidden(config_at, detail));
    }
    if reviews.is_some_and(|list| !list.is_empty()) {
        errors.push(FieldError::forbidden(reviews_at, detail));
    }
}

fn check_immutable(crd: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let conditions = old.pointer("/status/conditions").and_then(Value::as_array);
    let established =
        conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True");
    let mut check = |field: &str, when: bool| {
        let pointer = format!("/{}", field.replace('.', "/"));
        let new = crd.pointer(&pointer).unwrap_or(&Value::Null);
        if when && Some(new) != old.pointer(&pointer) {
            errors.push(FieldError::invalid(field, new, "field is immutable"));
        }
    };
    check("spec.scope", established);
    check("spec.names.kind", established);
    check("spec.group", true);
    check("spec.names.plural", true);
}

/// A version objects were stored in must stay until they are migrated.
fn check_stored_versions(
    old: Option<&Value>,
    spec: &CustomResourceDefinitionSpec,
    errors: &mut Vec<FieldError>,
) {
    let list = |crd: &Value| -> Vec<String> {
        let stored = crd.pointer("/status/storedVersions").and_then(Value::as_array);
        stored.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let mut stored = old.map(list).unwrap_or_default();
    if let Some(storage) = spec.versions.iter().find(|v| v.storage)
        && !stored.contains(&storage.name)
    {
        stored.push(storage.name.clone());
    }
    let at = "status.storedVersions";
    if stored.is_empty() {
        errors.push(FieldError::invalid(at, &Value::Null, "must have at least one stored version"));
    }
    for version in &spec.versions {
        if version.storage && !stored.contains(&version.name) {
            let detail = format!("must have the storage version {}", version.name);
            errors.push(FieldError::invalid(at, &json!(stored), detail));
        }
    }
    for (i, name) in stored.iter().enumerate() {
        if !spec.versions.iter().any(|v| v.name == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                 {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{at}[{i}]"), &name.as_str().into(), detail));
        }
    }
}

const APPROVAL: &str = "api-approved.kubernetes.io";

/// Groups of the Kubernetes community need an approval, or a word why there is none.
fn check_approval(crd: &Value, old: Option<&Value>, group: &str, errors: &mut Vec<FieldError>) {
    let protected =
        ["k8s.io", "kubernetes.io"].iter().any(|p| group == *p || group.ends_with(&format!(".{p}")));
    let of = |crd: &Value| approval(crd["metadata"]["annotations"][APPROVAL].as_str().unwrap_or_default());
    let state = of(crd);
    if !protected || old.is_some_and(|old| of(old) == state) {
        return;
    }
    let at = format!("metadata.annotations[{APPROVAL}]");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state {
        Approval::Given | Approval::Bypassed => {}
        Approval::Missing => {
            let detail = format!("protected groups must have approval annotation \"{APPROVAL}\", {see}");
            errors.push(FieldError::required(at, detail));
        }
        Approval::Malformed => {
            let detail = format!(
                "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason \
                 starting with \"unapproved\", {see}"
            );
            errors.push(FieldError::invalid(at, &crd["metadata"]["annotations"][APPROVAL], detail));
        }
    }
}

#[derive(PartialEq, Eq)]
enum Approval {
    Missing,
    Bypassed,
    Given,
    Malformed,
}

fn approval(text: &str) -> Approval {
    if text.is_empty() {
        Approval::Missing
    } else if text.starts_with("unapproved") {
        Approval::Bypassed
    } else if text.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty()) {
        Approval::Given
    } else {
        Approval::Malformed
    }
}

fn not_supported(field: &str, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|text| go_format::quote(text)).collect();
    FieldError {
        reason: Reason::NotSupported,
        field: field.into(),
        shown: Some(go_format::quote(value)),
        detail: format!("supported values: {}", supported.join(", ")),
    }
}
