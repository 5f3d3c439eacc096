//! A request's body into an object of the resource it was sent to.
//!
//! Says in kube-apiserver's words what cannot be read, what is of the wrong kind, and which fields nobody knows.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::field_error::FieldError;
use crate::json::{self, Parsed};
use crate::registry::{Handling, Registry, Resource};
use crate::request::Query;
use crate::status::ApiError;

/// What happens to fields that nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// The options every write has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
}

impl WriteOptions {
    /// `kind` names the options in errors: `CreateOptions` and its like.
    pub(crate) fn parse(query: &Query, kind: &str) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        check_manager(query.get("fieldManager").unwrap_or_default(), &mut errors);
        if kind == "PatchOptions" && query.get("force").is_some() {
            errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
        }
        let dry_run: Vec<&str> = query.all("dryRun").collect();
        if dry_run.iter().any(|value| *value != "All") {
            errors.push(FieldError::not_supported("dryRun", &serde_json::json!(dry_run), &["All"]));
        }
        let field_validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let allowed = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported("fieldValidation", &other.into(), &allowed));
                FieldValidation::Warn
            }
        };
        if errors.is_empty() {
            Ok(Self { dry_run: !dry_run.is_empty(), field_validation })
        } else {
            Err(ApiError::invalid("meta.k8s.io", kind, "", &errors))
        }
    }
}

fn check_manager(manager: &str, errors: &mut Vec<FieldError>) {
    const MAX_BYTES: usize = 128;
    if manager.len() > MAX_BYTES {
        errors.push(FieldError::too_long("fieldManager", MAX_BYTES));
    }
    if let Some((at, c)) = manager.char_indices().find(|(_, c)| c.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid("fieldManager", &manager.into(), why));
    }
}

/// A decoded object with the warnings that go with it.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

/// The media type of a request's body, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads a body as a value; `kind` is what it should be.
pub(crate) fn parse(body: &Bytes, media_type: &str, kind: &str) -> Result<Parsed, ApiError> {
    let unrecognized = |why: String| {
        let shown = summary(body);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why} ({shown})"
        ))
    };
    let parsed = match media_type {
        "" | "application/json" => json::parse(body)
            .map_err(|why| unrecognized(format!("couldn't get version/kind; json parse error: {why}")))?,
        "application/yaml" => json::parse_yaml(body).map_err(unrecognized)?,
        "application/vnd.kubernetes.protobuf" => {
            return Err(unsupported_media_type("application/json, application/yaml"));
        }
        _ => {
            return Err(unsupported_media_type(
                "application/json, application/yaml, application/vnd.kubernetes.protobuf",
            ));
        }
    };
    let mut parsed = parsed;
    if parsed.value.is_null() {
        parsed.value = serde_json::json!({});
    }
    if !parsed.value.is_object() {
        return Err(unrecognized(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            json::go_type(&parsed.value)
        )));
    }
    for field in ["apiVersion", "kind"] {
        if let Some(other) = parsed.value.get(field).filter(|value| !value.is_string() && !value.is_null()) {
            return Err(unrecognized(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go struct field .{field} of type string",
                json::go_type(other)
            )));
        }
    }
    let api_version = parsed.value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if api_version.matches('/').count() > 1 {
        return Err(unrecognized(format!("unexpected GroupVersion string: {api_version}")));
    }
    Ok(parsed)
}

pub(crate) fn unsupported_media_type(accepted: &str) -> ApiError {
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {accepted}"
    );
    ApiError::other(415, "UnsupportedMediaType", message)
}

/// The body as kube-apiserver shows it: text that looks like JSON as it is, anything else in hexadecimal, shortened.
fn summary(body: &[u8]) -> String {
    const MAX_BYTES: usize = 30;
    let shown = &body[..body.len().min(MAX_BYTES)];
    let text: String = match body.first() {
        None => return "<empty>".into(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > MAX_BYTES { format!("{text} ...") } else { text }
}

/// Reads a body as an object of `resource`: typed, pruned and defaulted.
pub(crate) fn decode(
    body: &Bytes,
    media_type: &str,
    resource: &Resource,
    registry: &Registry,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let mut parsed = parse(body, media_type, &resource.kind)?;
    check_kind(&mut parsed.value, body, resource, registry)?;
    let cannot = |why: String| {
        let version = &resource.version;
        let kind = &resource.kind;
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let unknown = conform(resource, &mut parsed.value).map_err(cannot)?;
    let problems = problems(resource, &unknown, &parsed.duplicates);
    let warnings = strictness(problems, validation).map_err(cannot)?;
    Ok(Decoded { object: parsed.value, warnings })
}

/// Types, prunes and defaults an object; gives back the paths of unknown fields. The error is the decoder's text.
pub(crate) fn conform(resource: &Resource, object: &mut Value) -> Result<Vec<String>, String> {
    match &resource.handling {
        Handling::Builtin(kind) => {
            let unknown = kind.decode(object)?;
            kind.default(object);
            Ok(unknown)
        }
        Handling::Custom(version) => {
            let mut unknown = crate::object_meta::conform(object)?;
            unknown.extend(version.schema.prune(object));
            unknown.sort();
            version.schema.default(object);
            Ok(unknown)
        }
    }
}

/// Unknown and duplicate fields as messages, in the order kube-apiserver's two decoders find them.
pub(crate) fn problems(resource: &Resource, unknown: &[String], duplicates: &[String]) -> Vec<String> {
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let duplicates = duplicates.iter().cloned();
    if resource.is_custom() {
        duplicates.chain(unknown).collect()
    } else {
        unknown.chain(duplicates).collect()
    }
}

/// What the client asked to happen to such problems: nothing, warnings, or a refusal.
pub(crate) fn strictness(problems: Vec<String>, validation: FieldValidation) -> Result<Vec<String>, String> {
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(problems),
        FieldValidation::Strict if problems.is_empty() => Ok(problems),
        FieldValidation::Strict => Err(format!("strict decoding error: {}", problems.join(", "))),
    }
}

/// Holds `apiVersion` and `kind` against the resource; a built-in kind may leave them out.
fn check_kind(
    object: &mut Value,
    body: &[u8],
    resource: &Resource,
    registry: &Registry,
) -> Result<(), ApiError> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if resource.is_custom() {
        return check_custom_kind(object, body, resource, &api_version, &kind);
    }
    let expected = resource.api_version();
    let api_version = if api_version.is_empty() { expected.clone() } else { api_version };
    let kind = if kind.is_empty() { resource.kind.clone() } else { kind };
    if (&api_version, &kind) != (&expected, &resource.kind) {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: {}",
            api_version.rsplit('/').next().unwrap_or_default(),
            resource.kind,
            wrong_kind(object, &api_version, &kind, resource, registry)
        )));
    }
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    Ok(())
}

/// Why an object of another kind does not fit a built-in one.
pub(crate) fn wrong_kind(
    object: &Value,
    api_version: &str,
    kind: &str,
    resource: &Resource,
    registry: &Registry,
) -> String {
    // The object is read as what it says it is before anyone sees that something else was wanted.
    if let Some(Handling::Builtin(named)) = registry.by_kind(api_version, kind).map(|found| &found.handling)
        && let Err(why) = named.decode(&mut object.clone())
    {
        return why;
    }
    unlike(api_version, kind, &resource.group, &resource.kind, registry)
}

/// As [`wrong_kind`], for a wanted kind that is no resource.
pub(crate) fn unlike(
    api_version: &str,
    kind: &str,
    wanted_group: &str,
    wanted_kind: &str,
    registry: &Registry,
) -> String {
    let named = |kind: &str| registry.by_kind(api_version, kind).filter(|found| !found.is_custom());
    match named(kind).or_else(|| named(kind.strip_suffix("List")?)) {
        Some(other) => format!(
            "converting ({}.{kind}) to ({}.{wanted_kind}): unknown conversion",
            other.version,
            internal_package(wanted_group),
        ),
        None => format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
        ),
    }
}

/// The refusal of an object of another kind than the action takes.
pub(crate) fn not_a(object: &Value, wanted_group: &str, wanted_kind: &str, registry: &Registry) -> ApiError {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let why = unlike(api_version, kind, wanted_group, wanted_kind, registry);
    ApiError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {wanted_kind}: {why}"
    ))
}

/// The Go package of a group's internal types, which error texts name.
fn internal_package(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.split('.').next().unwrap_or_default() }
}

fn check_custom_kind(
    object: &Value,
    body: &[u8],
    resource: &Resource,
    api_version: &str,
    kind: &str,
) -> Result<(), ApiError> {
    let shown = String::from_utf8_lossy(body);
    if kind.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{shown}' ({})",
            resource.kind,
            summary(body)
        )));
    }
    let expected = resource.api_version();
    if api_version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    if kind != resource.kind {
        let why = format!("must be {}", resource.kind);
        let error = FieldError::invalid("kind", &kind.into(), why);
        let name = crate::object::meta_str(object, "name");
        return Err(ApiError::invalid(&resource.group, kind, name, &[error]));
    }
    Ok(())
}
