//! What a handler gives back, and how it becomes an HTTP response.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use serde_json::Value;

use crate::body::Body;
use crate::negotiate::Form;
use crate::object::Stored;
use crate::registry::Resource;
use crate::status::ApiError;

const JSON: &str = "application/json";

/// A successful answer.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: Body,
    /// Texts of `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// When to come back, for refusals that pass.
    pub(crate) retry_after_seconds: Option<i64>,
}

impl Answer {
    pub(crate) fn json(code: u16, body: impl Into<Bytes>) -> Self {
        Self {
            code,
            content_type: JSON,
            body: Body::whole(body),
            warnings: Vec::new(),
            retry_after_seconds: None,
        }
    }

    pub(crate) fn value(code: u16, value: &Value) -> Self {
        Self::json(code, value.to_string())
    }

    pub(crate) fn text(code: u16, text: &'static str) -> Self {
        Self {
            code,
            content_type: "text/plain; charset=utf-8",
            body: Body::whole(text),
            warnings: Vec::new(),
            retry_after_seconds: None,
        }
    }

    /// A stored object in the form the client accepts.
    pub(crate) fn object(code: u16, resource: &Resource, object: &Written, form: Form) -> Self {
        match (object, form) {
            (Written::Stored(stored), Form::Whole) => Self::json(code, stored.to_bytes(resource)),
            (Written::Stored(stored), _) => {
                let mut out = Vec::new();
                stored.write_metadata(stored.revision, &mut out);
                Self::json(code, out)
            }
            (Written::Unstored(value), Form::Whole) => match resource.view() {
                Some(view) => {
                    let mut value = value.clone();
                    view.from_stored(&mut value);
                    value["apiVersion"] = resource.api_version().into();
                    Self::value(code, &value)
                }
                None => Self::value(code, value),
            },
            (Written::Unstored(value), _) => {
                let partial = serde_json::json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": value.get("metadata"),
                });
                Self::value(code, &partial)
            }
        }
    }

    pub(crate) fn warn(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        for warning in self.warnings {
            let text = format!("299 - {}", crate::go_format::quote(&warning));
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.append(WARNING, value);
            }
        }
        response
    }
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Self {
        let retry = error.details.as_ref().and_then(|details| details.get("retryAfterSeconds"));
        let retry_after_seconds = retry.and_then(Value::as_i64);
        let mut answer = Self::value(error.code, &error.to_status());
        answer.warnings = error.warnings.into_vec();
        answer.retry_after_seconds = retry_after_seconds;
        answer
    }
}

/// The outcome of a write: an object in the store, or one that never got there (dry run) or has left it.
pub(crate) enum Written {
    Stored(std::sync::Arc<Stored>),
    Unstored(Value),
}

impl Written {
    pub(crate) fn to_value(&self, resource: &Resource) -> Value {
        match self {
            Self::Stored(stored) => stored.to_value(resource),
            Self::Unstored(value) => value.clone(),
        }
    }
}
