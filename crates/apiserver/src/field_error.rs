//! What is wrong with one field of an object, in the words and with the reasons kube-apiserver uses.
//!
//! Schema validation, CEL and the rules of the built-in kinds all speak in these; [`crate::status`] folds a list of
//! them into the `Invalid` answer. Building one never fails and never panics.

use serde_json::Value;

use crate::go_format;

/// Why a field is refused: `metav1.StatusCause.reason`, and the words that open the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// A value that must be there is missing.
    Required,
    /// A list or map holds the same key twice.
    Duplicate,
    /// The value is malformed or contradicts a rule.
    Invalid,
    /// The value is not in the allowed set.
    NotSupported,
    /// The value is well formed but may not be set (now).
    Forbidden,
    /// The string is longer than allowed.
    TooLong,
    /// The list or map has more entries than allowed.
    TooMany,
    /// The named thing does not exist.
    NotFound,
    /// The value has the wrong JSON type.
    TypeInvalid,
}

impl Reason {
    /// The machine-readable cause.
    pub(crate) fn as_cause(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
        }
    }
}

/// One refused field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    pub(crate) reason: Reason,
    /// Dotted path, `spec.containers[0].name`; empty for the object itself.
    pub(crate) field: String,
    /// The value as the message shows it (already rendered), where the reason shows one.
    pub(crate) shown: Option<String>,
    pub(crate) detail: String,
}

impl FieldError {
    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { reason: Reason::Required, field: field.into(), shown: None, detail: detail.into() }
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { reason: Reason::Forbidden, field: field.into(), shown: None, detail: detail.into() }
    }

    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: impl Into<String>) -> Self {
        Self { reason: Reason::Invalid, field: field.into(), shown: Some(show(value)), detail: detail.into() }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self {
            reason: Reason::Duplicate,
            field: field.into(),
            shown: Some(show(value)),
            detail: String::new(),
        }
    }

    pub(crate) fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self {
            reason: Reason::NotFound,
            field: field.into(),
            shown: Some(show(value)),
            detail: String::new(),
        }
    }

    /// `allowed` is shown sorted and quoted, as kube-apiserver does.
    pub(crate) fn not_supported(field: impl Into<String>, value: &Value, allowed: &[&str]) -> Self {
        let mut quoted: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
        quoted.sort();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self { reason: Reason::NotSupported, field: field.into(), shown: Some(show(value)), detail }
    }

    pub(crate) fn too_long(field: impl Into<String>, max_bytes: usize) -> Self {
        Self {
            reason: Reason::TooLong,
            field: field.into(),
            shown: None,
            detail: format!("may not be more than {max_bytes} bytes"),
        }
    }

    pub(crate) fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        Self {
            reason: Reason::TooMany,
            field: field.into(),
            shown: Some(actual.to_string()),
            detail: format!("must have at most {max} items"),
        }
    }

    /// The message without the field's path: what stands in `details.causes[].message`.
    pub(crate) fn body(&self) -> String {
        let mut out = self.reason.words().to_owned();
        if let Some(shown) = &self.shown {
            out.push_str(": ");
            out.push_str(shown);
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A value as kube-apiserver prints it in a message: strings quoted, scalars bare, composites as JSON.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(s) => go_format::quote(s),
        Value::Number(n) if n.is_f64() => go_format::float(n.as_f64().unwrap_or_default()),
        other => go_format::json(other),
    }
}
