//! Bindings: a scheduler's decision written into a pod, by the pod's `binding` part or by the older `bindings`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::create::fit_namespace;
use crate::decode::{self, WriteOptions};
use crate::environment::rfc3339;
use crate::field_error::FieldError;
use crate::object::{is_deleting, meta_str, metadata, metadata_mut, object_mut};
use crate::service::Call;
use crate::status::ApiError;
use crate::update::Target;

/// Answers a binding; `name` is the pod's in the path, if it stands there.
pub(crate) fn bind(call: &Call, namespace: &str, name: Option<&str>) -> Result<Answer, ApiError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions")?;
    let mut binding = decode::parse(&call.body, decode::media_type(&call.headers), "Binding")?.value;
    let kind = binding.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "" | "Binding") {
        return Err(decode::not_a(&binding, "", "Binding", &call.registry()));
    }
    crate::object_meta::conform(&mut binding).map_err(|why| {
        ApiError::bad_request(format!("Binding in version \"v1\" cannot be handled as a Binding: {why}"))
    })?;
    fit_namespace(&mut binding, namespace)?;
    let pod = meta_str(&binding, "name").to_owned();
    if name.is_some_and(|name| name != pod) {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let node = target_node(&binding)?;
    call.server.write(|writer| {
        let registry = Arc::clone(&writer.state.registry);
        let resource = registry.find("", "v1", "pods").ok_or_else(ApiError::no_such_resource)?;
        let target = Target { resource, namespace, name: &pod, subresource: Some("binding") };
        let key = target.key();
        let stored = writer.get(&key).ok_or_else(|| target.not_found())?;
        let mut object = stored.to_value(resource);
        check(target, &binding, &object)?;
        assign(&mut object, &binding, &node, &rfc3339(writer.environment.now()));
        if !options.dry_run {
            writer.put(&key, resource, &object);
        }
        Ok(success())
    })
}

/// What actions that return no object answer.
pub(crate) fn success() -> Answer {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Answer::value(201, &status)
}

fn target_node(binding: &Value) -> Result<String, ApiError> {
    let text = |path: &str| binding.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    let kind = text("/target/kind");
    if !matches!(kind, "" | "Node") {
        let mut error = FieldError::not_supported("target.kind", &kind.into(), &[]);
        error.detail = "supported values: \"Node\", \"<empty>\"".into();
        errors.push(error);
    }
    let name = text("/target/name");
    if name.is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    // kube-apiserver answers these as internal errors.
    match errors.as_slice() {
        [] => Ok(name.to_owned()),
        [one] => Err(ApiError::internal(one.to_string())),
        many => {
            let texts: Vec<String> = many.iter().map(ToString::to_string).collect();
            Err(ApiError::internal(format!("[{}]", texts.join(", "))))
        }
    }
}

fn check(target: Target<'_>, binding: &Value, pod: &Value) -> Result<(), ApiError> {
    let name = target.name;
    let conflict = |why: String| ApiError::conflict("", "pods/binding", name, &why);
    let (uid, revision) = (meta_str(binding, "uid"), meta_str(binding, "resourceVersion"));
    for (field, wanted) in [("UID", uid), ("ResourceVersion", revision)] {
        let actual = meta_str(pod, if field == "UID" { "uid" } else { "resourceVersion" });
        if !wanted.is_empty() && wanted != actual {
            return Err(target.precondition_failed(field, wanted, actual));
        }
    }
    if is_deleting(pod) {
        return Err(conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
    }
    if let Some(node) = pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty())
    {
        return Err(conflict(format!("pod {name} is already assigned to node {node:?}")));
    }
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return Err(conflict(format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    Ok(())
}

fn assign(pod: &mut Value, binding: &Value, node: &str, now: &str) {
    let spec = object_mut(pod).entry("spec").or_insert_with(|| json!({}));
    spec["nodeName"] = node.into();
    for field in ["annotations", "labels"] {
        let Some(added) = metadata(binding).and_then(|m| m.get(field)).and_then(Value::as_object) else {
            continue;
        };
        let texts = metadata_mut(pod).entry(field).or_insert_with(|| Value::Object(Map::new()));
        object_mut(texts).extend(added.clone());
    }
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("nominatedNodeName");
    }
    set_condition(pod, json!({"type": "PodScheduled", "status": "True"}), now);
}

/// Sets a pod's condition, keeping the time of its last transition where its status stays.
pub(crate) fn set_condition(pod: &mut Value, mut condition: Value, now: &str) {
    let status = object_mut(object_mut(pod).entry("status").or_insert_with(|| json!({})));
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    let same = list.iter().position(|other| other["type"] == condition["type"]);
    let since = same
        .map(|at| &list[at])
        .filter(|other| other["status"] == condition["status"])
        .and_then(|other| other["lastTransitionTime"].as_str())
        .unwrap_or(now)
        .to_owned();
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = since.into();
    match same {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}
