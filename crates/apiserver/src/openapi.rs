//! OpenAPI v3, as far as kubectl needs it: which groups there are, and that their writes take `fieldValidation`.
//!
//! With that kubectl leaves validation to the server. The documents describe no schemas.

use std::hash::Hasher;

use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::registry::{Registry, Resource, api_version};

/// Answers `/openapi/v3` and the documents below it; `None` for other paths.
pub(crate) fn answer(registry: &Registry, path: &str) -> Option<Answer> {
    let rest = path.strip_prefix("/openapi/v3")?;
    if rest.is_empty() || rest == "/" {
        return Some(index(registry));
    }
    let mut steps = rest.trim_matches('/').split('/');
    let (group, version) = match (steps.next()?, steps.next()?, steps.next(), steps.next()) {
        ("api", version, None, None) => ("", version),
        ("apis", group, Some(version), None) => (group, version),
        _ => return None,
    };
    registry.in_version(group, version).next()?;
    Some(document(registry, group, version))
}

fn index(registry: &Registry) -> Answer {
    let mut paths = Map::new();
    for group in registry.groups() {
        for version in registry.versions(group) {
            let path = root(group, version);
            let hash = content_hash(registry, group, version);
            let entry = json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash:016X}")});
            paths.insert(path, entry);
        }
    }
    Answer::value(200, &json!({ "paths": paths }))
}

fn root(group: &str, version: &str) -> String {
    let prefix = if group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", api_version(group, version))
}

/// Changes when the set of resources does, so that clients may cache the documents.
fn content_hash(registry: &Registry, group: &str, version: &str) -> u64 {
    // FNV-1a: stable across runs, unlike the standard library's keyed hasher.
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    for resource in registry.in_version(group, version) {
        hasher.write(resource.plural.as_bytes());
        hasher.write(resource.kind.as_bytes());
    }
    hasher.finish()
}

fn document(registry: &Registry, group: &str, version: &str) -> Answer {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for resource in registry.in_version(group, version) {
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("/{}{scope}/{}", root(group, version), resource.plural);
        paths.insert(collection.clone(), json!({"post": operation(resource, "post")}));
        paths.insert(
            format!("{collection}/{{name}}"),
            json!({"patch": operation(resource, "patch"), "put": operation(resource, "put")}),
        );
        let schema = json!({
            "type": "object",
            "x-kubernetes-group-version-kind": [group_version_kind(resource)],
            "x-kubernetes-preserve-unknown-fields": true,
        });
        schemas.insert(format!("{group}.{version}.{}", resource.kind).trim_start_matches('.').into(), schema);
    }
    Answer::value(
        200,
        &json!({
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.36.3"},
            "paths": paths,
            "components": {"schemas": schemas},
        }),
    )
}

fn operation(resource: &Resource, action: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    json!({
        "operationId": format!("{action}{}", resource.kind),
        "parameters": [parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(resource),
    })
}

fn group_version_kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}
