//! Access reviews: questions about permissions, answered with yes, for here everyone may do everything.

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::decode;
use crate::environment::rfc3339;
use crate::field_error::FieldError;
use crate::object::{metadata_mut, object_mut};
use crate::request::ResourcePath;
use crate::service::Call;
use crate::status::ApiError;

/// The group of reviews that no built-in kind stands for.
pub(crate) const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

struct Review {
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
}

const REVIEWS: [Review; 5] = [
    review(AUTHENTICATION, "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview", false),
    review(
        AUTHORIZATION,
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        "LocalSubjectAccessReview",
        true,
    ),
    review(
        AUTHORIZATION,
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
        false,
    ),
    review(
        AUTHORIZATION,
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
        false,
    ),
    review(AUTHORIZATION, "subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview", false),
];

const fn review(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> Review {
    Review { group, plural, singular, kind, namespaced }
}

/// Answers a review; `None` if the path names none.
pub(crate) fn answer(call: &Call, path: &ResourcePath) -> Option<Result<Answer, ApiError>> {
    let review = REVIEWS.iter().find(|review| {
        review.group == path.group && path.version == "v1" && review.plural == path.resource
    })?;
    if path.name.is_some() {
        return Some(Err(ApiError::no_such_resource()));
    }
    if call.method != http::Method::POST {
        return Some(Err(ApiError::method_not_allowed()));
    }
    Some(review.answer(call))
}

impl Review {
    fn answer(&self, call: &Call) -> Result<Answer, ApiError> {
        let mut object = decode::parse(&call.body, decode::media_type(&call.headers), self.kind)?.value;
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or(self.kind);
        if kind != self.kind {
            let message = format!("{kind} in version \"v1\" cannot be handled as a {}", self.kind);
            return Err(ApiError::bad_request(message));
        }
        let has = |path: &str| object.pointer(path).is_some_and(|value| !value.is_null());
        let asks = has("/spec/resourceAttributes") as u8 + has("/spec/nonResourceAttributes") as u8;
        if self.kind.ends_with("AccessReview") && asks != 1 {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let error = FieldError::invalid("spec.resourceAttributes", &Value::Null, why);
            return Err(ApiError::invalid(self.group, "", "", &[error]));
        }
        let status = match self.kind {
            "SelfSubjectReview" => {
                let now = rfc3339(call.server.environment().now());
                metadata_mut(&mut object).insert("creationTimestamp".into(), now.into());
                json!({"userInfo": {"username": "admin", "groups": ["system:masters", "system:authenticated"]}})
            }
            "SelfSubjectRulesReview" => json!({
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": false,
            }),
            _ => json!({"allowed": true}),
        };
        metadata_mut(&mut object);
        let fields = object_mut(&mut object);
        fields.insert("kind".into(), self.kind.into());
        fields.insert("apiVersion".into(), format!("{}/v1", self.group).into());
        fields.insert("status".into(), status);
        Ok(Answer::value(201, &object))
    }
}

fn of_version(group: &str, version: &str) -> impl Iterator<Item = &'static Review> {
    let listed = group == AUTHENTICATION && version == "v1";
    REVIEWS.iter().filter(move |review| listed && review.group == AUTHENTICATION)
}

/// The reviews that the registry does not know, for the old form of discovery.
pub(crate) fn legacy(group: &str, version: &str) -> impl Iterator<Item = Value> {
    of_version(group, version).map(|review| {
        json!({
            "name": review.plural, "singularName": review.singular, "namespaced": review.namespaced,
            "kind": review.kind, "verbs": ["create"],
        })
    })
}

/// The reviews that the registry does not know, for aggregated discovery.
pub(crate) fn aggregated(group: &str, version: &str) -> impl Iterator<Item = Value> {
    of_version(group, version).map(|review| {
        json!({
            "resource": review.plural,
            "responseKind": {"group": "", "version": "", "kind": review.kind},
            "scope": if review.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": review.singular,
            "verbs": ["create"],
        })
    })
}
