//! Random requests and random patches: whatever comes in, the server answers with an object, a list or a `Status`,
//! never panics, and an answer that says no has changed nothing.
//!
//! A few hundred cases in `cargo test`; `PROPTEST_CASES=100000 cargo test -p karpenter-apiserver fuzz_` for more.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use karpenter_apiserver::{ApiServer, Options, Seeded};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

#[derive(Clone, Debug)]
struct Question {
    method: String,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    json: bool,
    body: Vec<u8>,
}

proptest! {
    #[test]
    fn fuzz_any_request_gets_an_answer_and_a_refusal_changes_nothing(
        questions in prop::collection::vec(question(), 1..8)
    ) {
        under_paused_time(async {
            let server = furnished().await;
            for question in questions {
                let before = contents(&server);
                let reply = ask(&server, question.clone()).await;
                prop_assert!((200..600).contains(&reply.status), "{question:?}: {reply:?}");
                if reply.status >= 400 {
                    prop_assert!(is_status(&reply) || is_plain_not_found(&reply), "{question:?}: {reply:?}");
                    prop_assert_eq!(contents(&server), before, "{:?} was refused and yet applied: {:?}", question, reply);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn fuzz_a_merge_patch_does_what_rfc_7386_says(patch in object(), second in object()) {
        under_paused_time(async {
            let server = furnished().await;
            for patch in [patch, second] {
                let before = read_spec(&server).await;
                let reply = ask(&server, patch_thing(MERGE, &json!({"spec": patch}))).await;
                let after = read_spec(&server).await;
                if reply.status == 200 {
                    let mut wanted = before;
                    merge(&mut wanted, &Value::Object(patch));
                    prop_assert_eq!(after, wanted);
                } else {
                    prop_assert!(is_status(&reply), "{reply:?}");
                    prop_assert_eq!(after, before);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn fuzz_a_json_patch_applies_as_a_whole_or_not_at_all(
        operations in prop::collection::vec(operation(), 0..6)
    ) {
        under_paused_time(async {
            let server = furnished().await;
            let before = read_spec(&server).await;
            let reply = ask(&server, patch_thing(JSON_PATCH, &json!(operations))).await;
            let after = read_spec(&server).await;
            if reply.status == 200 {
                let answer: Value = serde_json::from_slice(&reply.body).unwrap();
                prop_assert_eq!(&answer["spec"], &after);
            } else {
                prop_assert!(is_status(&reply), "{reply:?}");
                prop_assert!([400, 409, 413, 422].contains(&reply.status), "{operations:?}: {reply:?}");
                prop_assert_eq!(after, before);
            }
            Ok(())
        })?;
    }
}

fn under_paused_time<T>(case: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(case)
}

/// A server with something of everything to hit: a namespace, plain objects, a held one, and a custom kind.
async fn furnished() -> ApiServer {
    let server = ApiServer::new(Seeded::default(), Options::default());
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.fuzz.example.com"},
        "spec": {
            "group": "fuzz.example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}],
        },
    });
    let namespaced = |plural: &str| format!("/api/v1/namespaces/fuzz/{plural}");
    let things = "/apis/fuzz.example.com/v1/namespaces/fuzz/things".to_owned();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    for (path, body) in [
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": "fuzz"}})),
        (namespaced("configmaps"), json!({"metadata": {"name": "one"}, "data": {"a": "1"}})),
        (namespaced("configmaps"), json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})),
        (namespaced("pods"), pod),
        ("/api/v1/nodes".to_owned(), json!({"metadata": {"name": "n"}})),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), crd),
        (
            things,
            json!({"apiVersion": "fuzz.example.com/v1", "kind": "Thing", "metadata": {"name": "one"},
            "spec": {"a": 1, "list": [1, {"x": "y"}, []], "map": {"k": "v", "n": {"deep": true}}}}),
        ),
    ] {
        let headers = vec![("content-type", "application/json".to_owned())];
        let question = Question { method: "POST".into(), path, headers, body: body.to_string().into_bytes() };
        let reply = ask(&server, question).await;
        assert_eq!(reply.status, 201, "{}", String::from_utf8_lossy(&reply.body));
    }
    server
}

async fn ask(server: &ApiServer, question: Question) -> Reply {
    let mut request =
        Request::builder().method(Method::from_bytes(question.method.as_bytes()).unwrap()).uri(question.path);
    for (name, value) in question.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(bytes::Bytes::from(question.body))).unwrap();
    let response = server.service().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    let json = kind.is_some_and(|kind| kind.starts_with("application/json"));
    let body = response.into_body().collect().await.unwrap().to_bytes().to_vec();
    Reply { status, json, body }
}

/// Everything the server holds, version included: equal before and after means nothing happened.
fn contents(server: &ApiServer) -> (u64, usize, usize) {
    let snapshot = server.snapshot();
    (snapshot.revision(), snapshot.len(), snapshot.size_bytes())
}

fn is_status(reply: &Reply) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else { return reply.body.is_empty() };
    reply.json && body["kind"] == "Status" && body["status"] == "Failure" && body["code"] == reply.status
}

/// Paths outside of the API are answered in plain text.
fn is_plain_not_found(reply: &Reply) -> bool {
    reply.status == 404 && !reply.json
}

async fn read_spec(server: &ApiServer) -> Value {
    let path = "/apis/fuzz.example.com/v1/namespaces/fuzz/things/one".to_owned();
    let reply = ask(server, Question { method: "GET".into(), path, headers: vec![], body: vec![] }).await;
    assert_eq!(reply.status, 200);
    serde_json::from_slice::<Value>(&reply.body).unwrap()["spec"].take()
}

fn patch_thing(kind: &str, patch: &Value) -> Question {
    Question {
        method: "PATCH".into(),
        path: "/apis/fuzz.example.com/v1/namespaces/fuzz/things/one".into(),
        headers: vec![("content-type", kind.to_owned())],
        body: patch.to_string().into_bytes(),
    }
}

/// The algorithm of RFC 7386, section 2.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                merge(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

fn question() -> impl Strategy<Value = Question> {
    (method(), path(), query(), headers(), body()).prop_map(|(method, path, query, headers, body)| {
        let path = if query.is_empty() { path } else { format!("{path}?{query}") };
        Question { method, path, headers, body }
    })
}

fn method() -> impl Strategy<Value = String> {
    let known = select(vec!["GET", "POST", "PUT", "PATCH", "DELETE"]).prop_map(str::to_owned);
    let other = select(vec!["HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW"]).prop_map(str::to_owned);
    prop_oneof![9 => known, 1 => other]
}

fn path() -> impl Strategy<Value = String> {
    let real = select(vec![
        "/api/v1/namespaces/fuzz/configmaps",
        "/api/v1/namespaces/fuzz/configmaps/one",
        "/api/v1/namespaces/fuzz/configmaps/held",
        "/api/v1/namespaces/fuzz/pods/one",
        "/api/v1/namespaces/fuzz/pods/one/status",
        "/api/v1/namespaces/fuzz/pods/one/eviction",
        "/api/v1/namespaces/fuzz/pods/one/binding",
        "/api/v1/namespaces/fuzz",
        "/api/v1/nodes/n",
        "/api/v1/nodes/n/status",
        "/apis/fuzz.example.com/v1/namespaces/fuzz/things",
        "/apis/fuzz.example.com/v1/namespaces/fuzz/things/one",
        "/apis/fuzz.example.com/v1/namespaces/fuzz/things/one/status",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.fuzz.example.com",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    ])
    .prop_map(str::to_owned);
    let words = vec![
        "api",
        "apis",
        "v1",
        "v2",
        "apps",
        "namespaces",
        "fuzz",
        "pods",
        "configmaps",
        "nodes",
        "one",
        "held",
        "status",
        "scale",
        "eviction",
        "watch",
        "openapi",
        "v3",
        "..",
        ".",
        "",
        "%2F",
        "%zz",
        "%00",
        "UPPER",
        "things",
    ];
    let segments =
        prop::collection::vec(select(words), 0..8).prop_map(|words| format!("/{}", words.join("/")));
    let anything = "/[!-\"$->@-~]{0,40}"
        .prop_map(|text| text.replace(['<', '>', '"', '^', '`', '{', '}', '|', '\\'], "_"));
    prop_oneof![6 => real, 3 => segments, 1 => anything]
}

fn query() -> impl Strategy<Value = String> {
    let keys = vec![
        "limit",
        "continue",
        "labelSelector",
        "fieldSelector",
        "resourceVersion",
        "resourceVersionMatch",
        "watch",
        "timeoutSeconds",
        "allowWatchBookmarks",
        "sendInitialEvents",
        "dryRun",
        "fieldValidation",
        "fieldManager",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "force",
        "pretty",
        "nothing",
    ];
    let values = vec![
        "",
        "0",
        "1",
        "-1",
        "true",
        "false",
        "All",
        "Exact",
        "NotOlderThan",
        "Strict",
        "Warn",
        "Orphan",
        "Foreground",
        "a%3Db",
        "a%20in%20(b",
        "!a",
        "metadata.name%3Done",
        "99999999999999999999",
        "eyJ2IjoibWV0YSJ9",
        "%zz",
        "%ff",
    ];
    let pair = (
        select(keys),
        prop_oneof![4 => select(values).prop_map(str::to_owned), 1 => "[a-z0-9%+,=!()]{0,12}"],
    )
        .prop_map(|(key, value)| format!("{key}={value}"));
    prop::collection::vec(pair, 0..4).prop_map(|pairs| pairs.join("&"))
}

fn headers() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let types = vec![
        "application/json",
        "application/yaml",
        MERGE,
        JSON_PATCH,
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/vnd.kubernetes.protobuf",
        "text/plain",
        "///",
        "",
    ];
    let accepts = vec![
        "application/json",
        "*/*",
        "text/html",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        ";;;=",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/yaml",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
    ];
    (prop::option::of(select(types)), prop::option::of(select(accepts))).prop_map(|(kind, accept)| {
        let kind = kind.map(|kind| ("content-type", kind.to_owned()));
        kind.into_iter().chain(accept.map(|accept| ("accept", accept.to_owned()))).collect()
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let objects = select(vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "2"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-"}}),
        json!({"apiVersion": "fuzz.example.com/v1", "kind": "Thing", "metadata": {"name": "two"}, "spec": {}}),
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "x"}}),
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}}),
        json!({"metadata": {"labels": {"a": "b"}, "finalizers": null}}),
    ]);
    let spoiled = (objects, pointer(), json_value()).prop_map(|(mut object, pointer, value)| {
        if let Some(place) = object.pointer_mut(&pointer) {
            *place = value;
        } else if let Some(members) = object.as_object_mut() {
            members.insert(pointer.trim_start_matches('/').replace('/', "."), value);
        }
        object.to_string().into_bytes()
    });
    let cut = (body_text(), any::<prop::sample::Index>()).prop_map(|(text, at)| {
        let end = at.index(text.len() + 1);
        text[..end].to_vec()
    });
    prop_oneof![
        1 => Just(Vec::new()),
        5 => spoiled,
        2 => prop::collection::vec(operation(), 0..4).prop_map(|operations| json!(operations).to_string().into_bytes()),
        2 => json_value().prop_map(|value| value.to_string().into_bytes()),
        1 => cut,
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ]
}

fn body_text() -> impl Strategy<Value = Vec<u8>> {
    Just(br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cut","labels":{"a":"b"}},"data":{"k":"v"}}"#.to_vec())
}

fn pointer() -> impl Strategy<Value = String> {
    select(vec![
        "/metadata",
        "/metadata/name",
        "/metadata/labels",
        "/metadata/finalizers",
        "/metadata/resourceVersion",
        "/spec",
        "/metadata/uid",
        "/metadata/ownerReferences",
        "/metadata/creationTimestamp",
        "/kind",
        "/apiVersion",
        "/data",
        "/metadata/managedFields",
        "/metadata/deletionTimestamp",
        "/status",
        "",
    ])
    .prop_map(str::to_owned)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        "[a-zA-Z0-9./~ _-]{0,8}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z~/]{0,4}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(select(vec!["a", "list", "map", "b", "c~/"]), json_value(), 0..4)
        .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn operation() -> impl Strategy<Value = Value> {
    let place = || {
        select(vec![
            "/spec/a",
            "/spec/list",
            "/spec/list/0",
            "/spec/list/-",
            "/spec/list/9",
            "/spec/list/-1",
            "/spec/list/01",
            "/spec/map",
            "/spec/map/k",
            "/spec/map/n/deep",
            "/spec/new",
            "/spec",
            "/spec/list/1/x",
            "/spec/~2",
            "spec/a",
            "",
            "/metadata/labels",
            "/metadata/finalizers/0",
            "/nothing/at/all",
            "/spec/map/",
        ])
    };
    let name = select(vec!["add", "remove", "replace", "move", "copy", "test", "wish"]);
    (name, place(), place(), json_value()).prop_map(|(name, path, from, value)| match name {
        "move" | "copy" => json!({"op": name, "from": from, "path": path}),
        "remove" => json!({"op": name, "path": path}),
        _ => json!({"op": name, "path": path, "value": value}),
    })
}
