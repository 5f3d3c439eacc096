//! Cluster API's kinds as v1beta1 has them. The server stores v1beta2 and converts nothing; what a program under test asks for in v1beta1
//! is translated here on its way, as Cluster API's conversion webhook does: what Karpenter reads and writes, and what stands beside that.
//!
//! Cluster API's own controllers and people are not translated for: they are of the release that is stored. Nor are JSON patches,
//! which are about metadata alone, nor the annotation in which the webhook keeps what v1beta1 has no place for, which nobody reads.

use bytes::Bytes;
use http::{Method, Request};
use serde_json::{Map, Value, json};

use super::kinds::Kind;
use crate::faults::Lens;

const ROAD: &str = "/apis/cluster.x-k8s.io/v1beta1/";

/// Shows what is stored as v1beta1 has it, and stores what is written so.
pub(crate) struct Conversion;

/// Whether a request is about kinds that are converted.
pub(crate) fn is_asked_for(request: &Request<Bytes>) -> bool {
    request.uri().path().starts_with(ROAD)
}

/// A field that stands elsewhere, or looks otherwise.
struct Field {
    newer: String,
    older: String,
    shape: Shape,
}

/// How a field looks otherwise.
#[derive(Clone, Copy)]
enum Shape {
    /// It does not.
    Same,
    /// A number of seconds, which was a duration as Go writes it.
    Seconds,
    /// A reference that names a group, which named a version as well, and a namespace.
    Reference,
    /// A Node's name, which was a whole reference.
    Node,
    /// A list by name, which was a map.
    Domains,
}

impl Lens for Conversion {
    fn shown(&self, kind: &str, object: &mut Value) {
        let namespace = object["metadata"]["namespace"].clone();
        for field in fields(kind) {
            if let Some(value) = take(object, &field.newer) {
                put(object, &field.older, field.shape.older(value, &namespace));
            }
        }
    }

    fn sent(&self, request: &mut Request<Bytes>) {
        let Some(kind) = kind_of(request) else { return };
        let Ok(mut object) = serde_json::from_slice::<Value>(request.body()) else { return };
        // Patches by JSON are lists.
        if object.is_object() {
            store(kind, &mut object);
            *request.body_mut() = object.to_string().into();
        }
    }
}

/// An object of v1beta1, or a part of one that is to be merged, as it is stored. What v1beta1 does not have is dropped, as by its schema.
fn store(kind: &str, object: &mut Value) {
    let fields = fields(kind);
    for field in &fields {
        if field.newer != field.older && !fields.iter().any(|other| other.older == field.newer) {
            take(object, &field.newer);
        }
    }
    for field in fields.iter().rev() {
        if let Some(value) = take(object, &field.older) {
            put(object, &field.newer, field.shape.newer(value));
        }
    }
}

/// The kind that a request writes whole, in part or as its status.
fn kind_of(request: &Request<Bytes>) -> Option<&'static str> {
    if ![Method::POST, Method::PUT, Method::PATCH].contains(request.method()) {
        return None;
    }
    let mut parts = request.uri().path().strip_prefix(ROAD)?.split('/').skip(2);
    let (plural, _, subresource) = (parts.next()?, parts.next(), parts.next());
    let kind = Kind::ALL.into_iter().find(|kind| kind.resource().plural == plural)?;
    (subresource != Some("scale")).then(|| kind.as_str())
}

/// What is different of a kind. Where one's place of old is another's place now, that one comes first.
fn fields(kind: &str) -> Vec<Field> {
    let field =
        |newer: &str, older: &str, shape| Field { newer: newer.to_owned(), older: older.to_owned(), shape };
    let same = |newer: &str, older: &str| field(newer, older, Shape::Same);
    let conditions = || {
        vec![
            same("/status/conditions", "/status/v1beta2/conditions"),
            same("/status/deprecated/v1beta1/conditions", "/status/conditions"),
            same("/status/deprecated/v1beta1/failureReason", "/status/failureReason"),
            same("/status/deprecated/v1beta1/failureMessage", "/status/failureMessage"),
        ]
    };
    let reference = |at: &str| field(at, at, Shape::Reference);
    let machine = |at: &str| {
        let timeouts = ["nodeDrainTimeout", "nodeVolumeDetachTimeout", "nodeDeletionTimeout"].map(|older| {
            field(&format!("{at}/deletion/{older}Seconds"), &format!("{at}/{older}"), Shape::Seconds)
        });
        let references =
            ["infrastructureRef", "bootstrap/configRef"].map(|of| reference(&format!("{at}/{of}")));
        timeouts.into_iter().chain(references).collect::<Vec<Field>>()
    };
    let template = || {
        let mut fields = machine("/spec/template/spec");
        fields.push(same("/spec/template/spec/minReadySeconds", "/spec/minReadySeconds"));
        fields.push(same("/spec/machineNaming", "/spec/machineNamingStrategy"));
        fields
    };
    let own = match kind {
        "Machine" => {
            let mut fields = machine("/spec");
            fields.push(field("/status/nodeRef", "/status/nodeRef", Shape::Node));
            fields.push(same("/status/initialization/bootstrapDataSecretCreated", "/status/bootstrapReady"));
            fields.push(same(
                "/status/initialization/infrastructureProvisioned",
                "/status/infrastructureReady",
            ));
            fields
        }
        "MachineSet" => {
            let mut fields = template();
            fields.push(same("/spec/deletion/order", "/spec/deletePolicy"));
            fields
        }
        "MachineDeployment" => {
            let mut fields = template();
            fields.push(same("/spec/rollout/after", "/spec/rolloutAfter"));
            fields.push(same("/spec/rollout/strategy", "/spec/strategy"));
            fields.push(same("/spec/deletion/order", "/spec/strategy/rollingUpdate/deletePolicy"));
            fields.push(same("/spec/remediation/maxInFlight", "/spec/strategy/remediation/maxInFlight"));
            fields
        }
        "Cluster" => vec![
            reference("/spec/infrastructureRef"),
            reference("/spec/controlPlaneRef"),
            same("/spec/topology/classRef/name", "/spec/topology/class"),
            same("/spec/topology/classRef/namespace", "/spec/topology/classNamespace"),
            field("/status/failureDomains", "/status/failureDomains", Shape::Domains),
            same("/status/initialization/controlPlaneInitialized", "/status/controlPlaneReady"),
            same("/status/initialization/infrastructureProvisioned", "/status/infrastructureReady"),
        ],
        _ => return Vec::new(),
    };
    own.into_iter().chain(conditions()).collect()
}

impl Shape {
    fn older(self, value: Value, namespace: &Value) -> Value {
        match (self, value) {
            (Self::Seconds, Value::Number(seconds)) => duration(seconds.as_u64().unwrap_or_default()).into(),
            (Self::Reference, Value::Object(mut reference)) => {
                let group = reference.remove("apiGroup").unwrap_or_default();
                let version = format!("{}/v1beta1", group.as_str().unwrap_or_default());
                reference.insert("apiVersion".to_owned(), version.into());
                reference.insert("namespace".to_owned(), namespace.clone());
                Value::Object(reference)
            }
            (Self::Node, Value::Object(mut node)) => {
                node.insert("apiVersion".to_owned(), "v1".into());
                node.insert("kind".to_owned(), "Node".into());
                Value::Object(node)
            }
            (Self::Domains, Value::Array(domains)) => {
                let named = domains.into_iter().filter_map(|mut domain| {
                    let name = domain.as_object_mut()?.remove("name")?;
                    Some((name.as_str()?.to_owned(), domain))
                });
                Value::Object(named.collect())
            }
            (_, value) => value,
        }
    }

    fn newer(self, value: Value) -> Value {
        match (self, value) {
            (Self::Seconds, Value::String(text)) => seconds(&text).map_or(Value::Null, Value::from),
            (Self::Reference, Value::Object(older)) => {
                let mut reference = Map::new();
                if let Some(version) = older.get("apiVersion").and_then(Value::as_str) {
                    let group = version.split_once('/').map_or("", |(group, _)| group);
                    reference.insert("apiGroup".to_owned(), group.into());
                }
                let kept = older.into_iter().filter(|(key, _)| key == "kind" || key == "name");
                reference.extend(kept);
                Value::Object(reference)
            }
            (Self::Node, Value::Object(mut node)) => {
                node.retain(|key, _| key == "name");
                Value::Object(node)
            }
            (Self::Domains, Value::Object(domains)) => {
                let listed = domains.into_iter().map(|(name, mut domain)| {
                    domain["name"] = name.into();
                    domain
                });
                Value::Array(listed.collect())
            }
            (_, value) => value,
        }
    }
}

/// As Go writes a duration.
fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// The seconds of a duration in hours, minutes and seconds.
fn seconds(text: &str) -> Option<u64> {
    let mut sum = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = rest.split_at(end);
        let unit_seconds = match unit.get(..1)? {
            "h" => 3600,
            "m" => 60,
            "s" => 1,
            _ => return None,
        };
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(unit_seconds)?)?;
        rest = unit.get(1..)?;
    }
    Some(sum)
}

/// Takes a field out, and what is empty without it.
fn take(object: &mut Value, pointer: &str) -> Option<Value> {
    let (parent, name) = pointer.rsplit_once('/')?;
    let holder = object.pointer_mut(parent)?.as_object_mut()?;
    let value = holder.remove(name)?;
    if holder.is_empty() && !matches!(parent, "" | "/spec" | "/status") {
        take(object, parent);
    }
    Some(value)
}

/// Puts a field in, with what it stands in.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for part in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[part];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: &str, mut object: Value) -> Value {
        object["metadata"]["namespace"] = "fleet".into();
        Conversion.shown(kind, &mut object);
        object.as_object_mut().map(|object| object.remove("metadata"));
        object
    }

    fn stored(kind: &str, mut object: Value) -> Value {
        store(kind, &mut object);
        object
    }

    #[test]
    fn a_machine_is_shown_as_v1beta1_has_it_and_stored_as_it_was() {
        let newer = json!({
            "spec": {
                "clusterName": "c", "deletion": {"nodeDrainTimeoutSeconds": 90, "nodeDeletionTimeoutSeconds": 3600},
                "infrastructureRef": {"apiGroup": "infra.x", "kind": "FakeMachine", "name": "m"},
                "bootstrap": {"configRef": {"apiGroup": "boot.x", "kind": "FakeConfig", "name": "m"}},
            },
            "status": {
                "nodeRef": {"name": "n"}, "phase": "Running",
                "conditions": [{"type": "UpToDate", "status": "True"}],
                "deprecated": {"v1beta1": {"conditions": [{"type": "Ready", "status": "True"}], "failureReason": "CreateError"}},
            },
        });
        let older = json!({
            "spec": {
                "clusterName": "c", "nodeDrainTimeout": "1m30s", "nodeDeletionTimeout": "1h0m0s",
                "infrastructureRef": {
                    "apiVersion": "infra.x/v1beta1", "kind": "FakeMachine", "name": "m", "namespace": "fleet",
                },
                "bootstrap": {"configRef": {
                    "apiVersion": "boot.x/v1beta1", "kind": "FakeConfig", "name": "m", "namespace": "fleet",
                }},
            },
            "status": {
                "nodeRef": {"apiVersion": "v1", "kind": "Node", "name": "n"}, "phase": "Running",
                "v1beta2": {"conditions": [{"type": "UpToDate", "status": "True"}]},
                "conditions": [{"type": "Ready", "status": "True"}], "failureReason": "CreateError",
            },
        });
        assert_eq!(shown("Machine", newer.clone()), older);
        assert_eq!(stored("Machine", older), newer);
    }

    #[test]
    fn a_machine_deployment_is_shown_as_v1beta1_has_it_and_stored_as_it_was() {
        let newer = json!({"spec": {
            "rollout": {"after": "2026-01-01T00:00:00Z", "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2},
            }},
            "deletion": {"order": "Oldest"},
            "template": {"spec": {"minReadySeconds": 5, "deletion": {"nodeDrainTimeoutSeconds": 1}}},
        }});
        let older = json!({"spec": {
            "rolloutAfter": "2026-01-01T00:00:00Z", "minReadySeconds": 5,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "deletePolicy": "Oldest"}},
            "template": {"spec": {"nodeDrainTimeout": "1s"}},
        }});
        assert_eq!(shown("MachineDeployment", newer.clone()), older);
        assert_eq!(stored("MachineDeployment", older), newer);
    }

    #[test]
    fn a_cluster_is_shown_as_v1beta1_has_it_and_stored_as_it_was() {
        let newer = json!({
            "spec": {
                "controlPlaneRef": {"apiGroup": "plane.x", "kind": "Plane", "name": "p"},
                "topology": {"classRef": {"name": "class"}, "version": "v1.36.0"},
            },
            "status": {"failureDomains": [{"name": "a"}, {"name": "b", "controlPlane": true}]},
        });
        let older = json!({
            "spec": {
                "controlPlaneRef": {"apiVersion": "plane.x/v1beta1", "kind": "Plane", "name": "p", "namespace": "fleet"},
                "topology": {"class": "class", "version": "v1.36.0"},
            },
            "status": {"failureDomains": {"a": {}, "b": {"controlPlane": true}}},
        });
        assert_eq!(shown("Cluster", newer.clone()), older);
        assert_eq!(stored("Cluster", older), newer);
    }

    #[test]
    fn what_v1beta1_does_not_have_is_not_stored() {
        let written = json!({"spec": {
            "deletion": {"nodeDrainTimeoutSeconds": 1}, "unknown": 1,
            "infrastructureRef": {"apiGroup": "infra.x", "kind": "FakeMachine", "name": "m"},
        }});
        let kept = json!({"spec": {"unknown": 1, "infrastructureRef": {"kind": "FakeMachine", "name": "m"}}});
        assert_eq!(stored("Machine", written), kept);
        let conditions = json!([{"type": "UpToDate", "status": "True"}]);
        let kept = json!({"status": {"deprecated": {"v1beta1": {"conditions": conditions}}}});
        assert_eq!(stored("Machine", json!({"status": {"conditions": conditions}})), kept);
    }

    #[test]
    fn writes_are_converted_but_for_scales_and_json_patches() {
        let sent = |method: Method, path: &str, body: &'static str| {
            let uri = format!("{ROAD}namespaces/fleet/{path}");
            let request =
                Request::builder().method(method).uri(uri).body(Bytes::from_static(body.as_bytes()));
            let mut request = request.expect("a request");
            assert!(is_asked_for(&request));
            Conversion.sent(&mut request);
            String::from_utf8_lossy(request.body()).into_owned()
        };
        let change = r#"{"spec":{"nodeDrainTimeout":"1s"}}"#;
        let stored = r#"{"spec":{"deletion":{"nodeDrainTimeoutSeconds":1}}}"#;
        assert_eq!(sent(Method::PATCH, "machines/m", change), stored);
        assert_eq!(sent(Method::POST, "machines", change), stored);
        assert_eq!(sent(Method::DELETE, "machines/m", change), change);
        assert_eq!(sent(Method::PATCH, "machinedeployments/m/scale", change), change);
        let list = r#"[{"op":"test","path":"/metadata/uid","value":"u"}]"#;
        assert_eq!(sent(Method::PATCH, "machines/m", list), list);
        let elsewhere = Request::builder().uri("/apis/cluster.x-k8s.io/v1beta2/machines").body(Bytes::new());
        assert!(!is_asked_for(&elsewhere.expect("a request")));
    }
}
