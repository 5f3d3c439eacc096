//! Every way a request can end badly, and the `metav1.Status` object that says so.
//!
//! Handlers return [`ApiError`]; only [`crate::service`] turns one into bytes. The status code and `reason` of each
//! constructor are those of kube-apiserver, because clients branch on them.

use serde_json::{Map, Value, json};

use crate::field_error::FieldError;

/// A refused request: everything that ends up in the `Status` answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// `details`, absent where kube-apiserver sends none.
    pub(crate) details: Option<Value>,
    /// A token to go on with, in the answer to an expired one.
    pub(crate) continue_token: Option<Box<str>>,
    /// Texts of `Warning` headers that go with the refusal.
    pub(crate) warnings: Box<[String]>,
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>, details: Option<Value>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details,
            continue_token: None,
            warnings: Box::default(),
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message, None)
    }

    /// `resource` is the plural, qualified as in `nodepools.karpenter.sh`.
    pub(crate) fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(resource, group));
        Self::new(404, "NotFound", message, Some(details(group, resource, name)))
    }

    pub(crate) fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(resource, group));
        Self::new(409, "AlreadyExists", message, Some(details(group, resource, name)))
    }

    pub(crate) fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(resource, group));
        Self::new(409, "Conflict", message, Some(details(group, resource, name)))
    }

    pub(crate) fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", qualified(resource, group));
        Self::new(403, "Forbidden", message, Some(details(group, resource, name)))
    }

    /// `kind` is the CamelCase kind: this is the one answer whose details name the kind instead of the plural.
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let text = match errors {
            [one] => one.to_string(),
            many => {
                // Rules that are checked twice are told once, though both stand among the causes.
                let mut parts: Vec<String> = Vec::with_capacity(many.len());
                for text in many.iter().map(ToString::to_string) {
                    if !parts.contains(&text) {
                        parts.push(text);
                    }
                }
                match parts.as_slice() {
                    [one] => one.clone(),
                    _ => format!("[{}]", parts.join(", ")),
                }
            }
        };
        let causes: Vec<Value> = errors
            .iter()
            .map(|e| json!({"reason": e.reason.as_cause(), "message": e.body(), "field": e.field}))
            .collect();
        let mut details = details(group, kind, name);
        if let (Some(map), false) = (details.as_object_mut(), causes.is_empty()) {
            map.insert("causes".into(), Value::Array(causes));
        }
        let message = format!("{} {name:?} is invalid: {text}", qualified(kind, group));
        Self::new(422, "Invalid", message, Some(details))
    }

    /// The list or watch position is older than what is still kept.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message, None)
    }

    /// No such resource or subresource is served.
    pub(crate) fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource", Some(json!({})))
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message, Some(json!({})))
    }

    /// A failure inside the server; kube-apiserver gives such answers no reason.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message, None)
    }

    /// An error whose code, reason and message are given by the caller, for the rarer answers.
    pub(crate) fn other(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(code, reason, message, None)
    }

    pub(crate) fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = self.warnings.into_iter().chain(warnings).collect();
        self
    }

    /// The `metav1.Status` object.
    pub(crate) fn to_status(&self) -> Value {
        let mut status = Map::new();
        status.insert("kind".into(), "Status".into());
        status.insert("apiVersion".into(), "v1".into());
        let metadata = match &self.continue_token {
            Some(token) => json!({"continue": token}),
            None => json!({}),
        };
        status.insert("metadata".into(), metadata);
        status.insert("status".into(), "Failure".into());
        status.insert("message".into(), self.message.clone().into());
        if !self.reason.is_empty() {
            status.insert("reason".into(), self.reason.into());
        }
        if let Some(details) = &self.details {
            status.insert("details".into(), details.clone());
        }
        status.insert("code".into(), self.code.into());
        Value::Object(status)
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let mut map = Map::new();
    if !name.is_empty() {
        map.insert("name".into(), name.into());
    }
    if !group.is_empty() {
        map.insert("group".into(), group.into());
    }
    if !kind.is_empty() {
        map.insert("kind".into(), kind.into());
    }
    Value::Object(map)
}
