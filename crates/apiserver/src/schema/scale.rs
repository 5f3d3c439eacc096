//! The fields a custom resource's scale subresource reads: they must be counts, and a selector in text.

use serde_json::Value;

use crate::field_error::FieldError;
use crate::go_format;

/// Where the scale subresource finds its numbers, each as `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    pub(crate) label_selector: Option<String>,
}

impl ScalePaths {
    pub(super) fn check_spec(&self, object: &Value, errors: &mut Vec<FieldError>) {
        errors.extend(wrong_count(object, &self.spec_replicas));
    }

    pub(super) fn check_status(&self, object: &Value, errors: &mut Vec<FieldError>) {
        errors.extend(wrong_count(object, &self.status_replicas));
        if let Some(path) = &self.label_selector
            && let Ok(Some(value)) | Err((_, value)) = lookup(object, path)
            && !value.is_string()
        {
            let detail = accessor_error(path, value, "string");
            errors.push(FieldError::invalid(path, &"".into(), detail));
        }
    }
}

fn wrong_count(object: &Value, path: &str) -> Option<FieldError> {
    let (shown, detail) = match lookup(object, path) {
        Ok(None) => return None,
        Ok(Some(value)) => match value.as_i64() {
            Some(count) if count < 0 => (count, "should be a non-negative integer".to_owned()),
            Some(count) if count > i64::from(i32::MAX) => {
                (count, format!("should be less than or equal to {}", i32::MAX))
            }
            Some(_) => return None,
            None => (0, accessor_error(path, value, "int64")),
        },
        Err((at, value)) => (0, accessor_error(&at, value, "map[string]interface{}")),
    };
    Some(FieldError::invalid(path, &shown.into(), detail))
}

/// The value at a dotted path; an error if something on the way is not an object.
fn lookup<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, (String, &'a Value)> {
    let mut value = object;
    let mut at = String::new();
    for name in path.strip_prefix('.').unwrap_or(path).split('.') {
        at.push('.');
        at.push_str(name);
        let Some(map) = value.as_object() else {
            return if value.is_null() { Ok(None) } else { Err((at, value)) };
        };
        match map.get(name) {
            None => return Ok(None),
            Some(found) => value = found,
        }
    }
    Ok(Some(value))
}

fn accessor_error(path: &str, value: &Value, wanted: &str) -> String {
    let (shown, kind) = match value {
        Value::Null => ("<nil>".into(), "<nil>"),
        Value::Bool(b) => (b.to_string(), "bool"),
        Value::Number(n) if n.is_i64() => (n.to_string(), "int64"),
        Value::Number(n) => (go_format::float(n.as_f64().unwrap_or_default()), "float64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(_) => (go_format::json(value), "[]interface {}"),
        Value::Object(_) => (go_format::json(value), "map[string]interface {}"),
    };
    format!("{path} accessor error: {shown} is of the type {kind}, expected {wanted}")
}
