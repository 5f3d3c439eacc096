//! Reviews of the API server and what is answered to them. Pure.
//!
//! Only what makes no sense wherever it is applied is refused; what this cloud does not have may be made later, and is only
//! warned of. Objects that are going, or whose spec stays as it is, always pass: nothing that is stored already is held up.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::GROUP;
use crate::candidates::problem_of_text;
use crate::nodeclass::{CloudStackNodeClass, CloudStackNodeClassSpec};
use crate::resolved::contradictions;

const VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// What the program takes a field for that is left out. Only those that machines are not made by: the others are part of the hash
/// by which drift is known, and writing them down would replace nodes.
const DEFAULTS: [(&str, &str); 3] =
    [("networkSelection", "First"), ("deletionPolicy", "Expunge"), ("userDataCompression", "WhenLong")];

/// What the API server asks.
#[derive(Debug)]
pub(crate) struct Review {
    uid: String,
    request: Map<String, Value>,
}

impl Review {
    /// Reads a review; what is wrong with it otherwise.
    pub(crate) fn read(body: &[u8]) -> Result<Self, String> {
        let review: Value =
            serde_json::from_slice(body).map_err(|error| format!("the body is no JSON: {error}"))?;
        for (field, expected) in [("apiVersion", VERSION), ("kind", KIND)] {
            if review[field] != expected {
                return Err(format!("{field} is {}; it must be {expected:?}", review[field]));
            }
        }
        let Value::Object(request) = &review["request"] else {
            return Err("request is missing: only what asks something can be answered".to_owned());
        };
        match request.get("uid").and_then(Value::as_str) {
            Some(uid) if !uid.is_empty() => Ok(Self { uid: uid.to_owned(), request: request.clone() }),
            _ => Err("request.uid is missing: the answer must repeat it".to_owned()),
        }
    }

    fn field(&self, name: &str) -> &Value {
        self.request.get(name).unwrap_or(&Value::Null)
    }

    /// The NodeClass that is to be stored with a new spec, if that is what the review is about.
    pub(crate) fn changed(&self) -> Option<&Value> {
        let resource = self.field("resource");
        let is_ours = resource["group"] == GROUP && resource["resource"] == "cloudstacknodeclasses";
        let is_whole = self.field("subResource").as_str().is_none_or(str::is_empty);
        let writes = ["CREATE", "UPDATE"].iter().any(|operation| self.field("operation") == operation);
        let (object, before) = (self.field("object"), self.field("oldObject"));
        let is_going = !object["metadata"]["deletionTimestamp"].is_null();
        let is_new = !before.is_object() || before["spec"] != object["spec"];
        (is_ours && is_whole && writes && object.is_object() && !is_going && is_new).then_some(object)
    }

    fn respond(&self, allowed: bool, more: Value) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": allowed});
        if let (Value::Object(response), Value::Object(more)) = (&mut response, more) {
            response.extend(more);
        }
        json!({"apiVersion": VERSION, "kind": KIND, "response": response})
    }

    /// It may be stored; people are told this.
    pub(crate) fn allow(&self, warnings: &[String]) -> Value {
        let more = if warnings.is_empty() { json!({}) } else { json!({"warnings": warnings}) };
        self.respond(true, more)
    }

    /// It may not be stored.
    pub(crate) fn refuse(&self, why: &str) -> Value {
        let status = json!({"status": "Failure", "reason": "Invalid", "code": 422, "message": why});
        self.respond(false, json!({"status": status}))
    }

    /// It may be stored with these changes.
    pub(crate) fn patch(&self, changes: &[Value]) -> Value {
        if changes.is_empty() {
            return self.allow(&[]);
        }
        let patch = STANDARD.encode(Value::from(changes).to_string());
        self.respond(true, json!({"patchType": "JSONPatch", "patch": patch}))
    }
}

/// The NodeClass an object is; what makes no sense in it, field by field, otherwise.
pub(crate) fn validate(object: &Value, max_user_data: usize) -> Result<CloudStackNodeClass, String> {
    let class: CloudStackNodeClass = serde_path_to_error::deserialize(object)
        .map_err(|error| format!("{}: {}", error.path(), error.inner()))?;
    let Some(spec) = &class.spec else { return Ok(class) };
    let problems = problems(spec, max_user_data);
    if problems.is_empty() { Ok(class) } else { Err(problems.join("; ")) }
}

/// What reconciling would find wrong wherever the NodeClass is applied.
fn problems(spec: &CloudStackNodeClassSpec, max_user_data: usize) -> Vec<String> {
    let told = problem_of_text(spec, max_user_data);
    contradictions(spec).into_iter().chain(told).map(|problem| problem.message).collect()
}

/// What a NodeClass leaves out and the program takes for granted, as changes that write it down.
pub(crate) fn defaults(object: &Value) -> Vec<Value> {
    let mut changes = Vec::new();
    let mut fill = |owner: &Value, path: String, field: &str, value: Value| {
        if owner.is_object() && owner[field].is_null() {
            changes.push(json!({"op": "add", "path": format!("{path}/{field}"), "value": value}));
        }
    };
    let spec = &object["spec"];
    for (field, value) in DEFAULTS {
        fill(spec, "/spec".to_owned(), field, value.into());
    }
    fill(&spec["pricing"], "/spec/pricing".to_owned(), "quotaTariff", "Ignore".into());
    for (i, disk) in spec["dataDisks"].as_array().into_iter().flatten().enumerate() {
        fill(disk, format!("/spec/dataDisks/{i}"), "deleteOnTermination", true.into());
    }
    changes
}

#[cfg(test)]
#[path = "review_tests.rs"]
mod tests;
