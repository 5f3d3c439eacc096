//! Patches: merge patches and JSON patches, applied to the object as it is.

use bytes::Bytes;
use serde_json::Value;

use crate::answer::Written;
use crate::create::fit_namespace;
use crate::decode::{self, WriteOptions};
use crate::field_error::FieldError;
use crate::json::{self, go_type};
use crate::server::Writer;
use crate::status::ApiError;
use crate::update::Target;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// The most operations kube-apiserver takes in one JSON patch.
const MAX_OPERATIONS: usize = 10_000;

/// A parsed patch.
#[derive(Debug)]
pub(crate) enum Patch {
    Merge(Value),
    /// Operations in their raw form: a malformed one is told only when it is applied.
    Json(Vec<Value>),
}

impl Patch {
    /// Reads a patch; `custom` resources know no strategic merge.
    pub(crate) fn parse(body: &Bytes, media_type: &str, custom: bool) -> Result<Self, ApiError> {
        let decoding = |why: String| ApiError::bad_request(format!("error decoding patch: {why}"));
        match media_type {
            MERGE_PATCH => {
                let value = json::parse(body).map_err(decoding)?.value;
                match value {
                    Value::Object(_) => Ok(Self::Merge(value)),
                    Value::Null => Err(ApiError::bad_request("Invalid JSON Patch")),
                    other => Err(decoding(format!(
                        "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                        go_type(&other)
                    ))),
                }
            }
            JSON_PATCH => match json::parse(body).map_err(decoding)?.value {
                Value::Array(operations) if operations.len() > MAX_OPERATIONS => Err(ApiError::other(
                    413,
                    "RequestEntityTooLarge",
                    format!(
                        "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                        operations.len()
                    ),
                )),
                Value::Array(operations) => {
                    match operations.iter().find(|operation| !operation.is_object()) {
                        Some(other) => Err(decoding(format!(
                            "json: cannot unmarshal {} into Go value of type handlers.jsonPatchOp",
                            go_type(other)
                        ))),
                        None => Ok(Self::Json(operations)),
                    }
                }
                other => Err(decoding(format!(
                    "json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
                    go_type(&other)
                ))),
            },
            STRATEGIC_MERGE_PATCH if custom => {
                Err(decode::unsupported_media_type(&format!("{JSON_PATCH}, {MERGE_PATCH}, {APPLY_PATCH}")))
            }
            STRATEGIC_MERGE_PATCH | APPLY_PATCH => {
                Err(decode::unsupported_media_type(&format!("{JSON_PATCH}, {MERGE_PATCH}")))
            }
            _ => Err(ApiError::other(415, "UnsupportedMediaType", "415: Unsupported Media Type")
                .with_details(serde_json::json!({}))),
        }
    }

    /// Applies the patch to `object`.
    pub(crate) fn apply(&self, object: &mut Value) -> Result<(), ApiError> {
        match self {
            Self::Merge(patch) => {
                json_patch::merge(object, patch);
                Ok(())
            }
            Self::Json(operations) => {
                for operation in operations {
                    apply_operation(object, operation)?;
                }
                Ok(())
            }
        }
    }
}

/// Applies one operation. `replace` of a missing member adds it, as in the library kube-apiserver uses.
fn apply_operation(object: &mut Value, operation: &Value) -> Result<(), ApiError> {
    let mut operation = operation.clone();
    for member in ["path", "from"] {
        // Whatever stands before the first slash is not looked at.
        if let Some(path) =
            operation.get(member).and_then(Value::as_str).filter(|path| !path.starts_with('/'))
            && let Some((_, rest)) = path.split_once('/')
        {
            operation[member] = format!("/{rest}").into();
        }
    }
    if operation.get("op").and_then(Value::as_str) == Some("replace") {
        let path = operation.get("path").and_then(Value::as_str).unwrap_or_default();
        let missing = object.pointer(path).is_none();
        let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
        if missing && parent.is_some_and(Value::is_object) {
            operation["op"] = "add".into();
        }
    }
    let absent = |path: &Value| path.as_str().is_some_and(|path| object.pointer(path).is_none());
    match operation.get("op").and_then(Value::as_str) {
        // That library also takes a value that is left out, or a place where nothing is, for null.
        Some("add" | "replace" | "test") if operation.get("value").is_none() => {
            operation["value"] = Value::Null;
        }
        Some("copy") if operation.get("from").is_some_and(absent) => {
            operation["op"] = "add".into();
            operation["value"] = Value::Null;
        }
        _ => {}
    }
    let tests_null = operation.get("op").is_some_and(|op| op == "test") && operation["value"].is_null();
    if tests_null && operation.get("path").is_some_and(absent) {
        return Ok(());
    }
    let parsed: json_patch::PatchOperation = serde_json::from_value(operation).map_err(|_| rejected())?;
    json_patch::patch(object, &[parsed]).map_err(|_| rejected())
}

/// A JSON patch that does not fit; kube-apiserver keeps the reason to itself.
fn rejected() -> ApiError {
    ApiError::other(422, "Invalid", "the server rejected our request due to an error in our request")
        .with_details(serde_json::json!({}))
}

/// The outcome of a patch, with the warnings that go with it.
pub(crate) struct Patched {
    pub(crate) written: Written,
    pub(crate) warnings: Vec<String>,
}

impl Writer<'_> {
    pub(crate) fn patch(
        &mut self,
        target: Target<'_>,
        patch: &Patch,
        options: WriteOptions,
    ) -> Result<Patched, ApiError> {
        let existing = self.get(&target.key()).ok_or_else(|| target.not_found())?;
        let old = existing.to_value(target.resource);
        let mut object = old.clone();
        patch.apply(&mut object)?;
        // Only a refusal shows what was refused, so it is made again then rather than kept each time.
        let sent = || {
            let mut sent = old.clone();
            let _ = patch.apply(&mut sent);
            sent
        };
        let warnings = self.read_patched(target, &mut object, options, sent)?;
        let written = target
            .check_name(&object)
            .and_then(|()| fit_namespace(&mut object, target.namespace))
            .and_then(|()| self.update_over(target, &existing, old, object, options));
        match written {
            Ok(written) => Ok(Patched { written, warnings }),
            Err(error) => Err(error.with_warnings(warnings)),
        }
    }

    /// Types, prunes and defaults the patched object, as if it had been sent whole.
    fn read_patched(
        &self,
        target: Target<'_>,
        object: &mut Value,
        options: WriteOptions,
        sent: impl Fn() -> Value,
    ) -> Result<Vec<String>, ApiError> {
        let resource = target.resource;
        // What cannot be read is an invalid `patch` of nothing in particular.
        let invalid = |why: String| {
            let error = FieldError::invalid("patch", &Value::String(sent().to_string()), why);
            ApiError::invalid("", "", "", &[error])
        };
        let expected = resource.api_version();
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let or = |text: String, default: &str| match text.is_empty() && !resource.is_custom() {
            true => default.to_owned(),
            false => text,
        };
        let api_version = or(text("apiVersion").to_owned(), &expected);
        let kind = or(text("kind").to_owned(), &resource.kind);
        if resource.is_custom() && !api_version.is_empty() && !kind.is_empty() {
            let group = api_version.split_once('/').map_or("", |(group, _)| group);
            for (field, got, wanted) in
                [("kind", &kind, &resource.kind), ("apiVersion", &api_version, &expected)]
            {
                if got != wanted {
                    let error = FieldError::invalid(field, &got.as_str().into(), format!("must be {wanted}"));
                    return Err(ApiError::invalid(group, &kind, target.name, &[error]));
                }
            }
        }
        if (&api_version, &kind) != (&expected, &resource.kind) {
            return Err(invalid(decode::wrong_kind(
                object,
                &api_version,
                &kind,
                resource,
                &self.state.registry,
            )));
        }
        if !object.is_object() {
            let got = go_type(object);
            return Err(invalid(format!(
                "json: cannot unmarshal {got} into Go value of type map[string]interface {{}}"
            )));
        }
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let unknown = decode::conform(resource, object).map_err(invalid)?;
        let problems = decode::problems(resource, &unknown, &[]);
        decode::strictness(problems, options.field_validation).map_err(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(media_type: &str, patch: Value, mut object: Value) -> Result<Value, ApiError> {
        Patch::parse(&patch.to_string().into(), media_type, false)?.apply(&mut object)?;
        Ok(object)
    }

    #[test]
    fn a_merge_patch_removes_what_is_null() {
        let got = patched(MERGE_PATCH, json!({"a": null, "b": {"c": 1}}), json!({"a": 1, "b": {"d": 2}}));
        assert_eq!(got.unwrap(), json!({"b": {"c": 1, "d": 2}}));
    }

    #[test]
    fn a_json_patch_that_does_not_fit_is_unprocessable() {
        let object = json!({"a": [1]});
        for patch in [
            json!([{"op": "test", "path": "/a/0", "value": 2}]),
            json!([{"op": "remove", "path": "/b"}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "frobnicate", "path": "/a"}]),
        ] {
            assert_eq!(patched(JSON_PATCH, patch, object.clone()).unwrap_err().code, 422);
        }
        let replaced = patched(JSON_PATCH, json!([{"op": "replace", "path": "/b", "value": 1}]), object);
        assert_eq!(replaced.unwrap(), json!({"a": [1], "b": 1}));
    }

    #[test]
    fn other_media_types_are_refused() {
        for media_type in [STRATEGIC_MERGE_PATCH, APPLY_PATCH, "application/json", ""] {
            assert_eq!(patched(media_type, json!({}), json!({})).unwrap_err().code, 415, "{media_type}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_patch_applies_or_is_refused(
            op in "add|remove|replace|move|copy|test|x",
            path in "(/[a-c0-2~-]{0,2}){0,3}",
            from in "(/[a-c0-2]{0,2}){0,2}",
        ) {
            let object = json!({"a": {"b": [1, {"c": 2}]}, "c": null});
            let patch = json!([{"op": op, "path": path, "from": from, "value": 1}]);
            let _ = patched(JSON_PATCH, patch, object);
        }
    }
}
