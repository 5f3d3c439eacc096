//! Replays what a real kube-apiserver made of the objects in `conformance/builtin`.
//!
//! The road here is the write path's: decode, default, the metadata the server fills in, prepare, validate. Names,
//! labels and the like are the generic path's to check, so cases about them are left to its own tests.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{BuiltinKind, Lookup, builtins, initial_objects};
use crate::field_error::FieldError;

/// Objects that exist, by plural.
struct Given(Vec<(String, Value)>);

impl Lookup for Given {
    fn get(&self, _group: &str, plural: &str, _namespace: &str, name: &str) -> Option<Value> {
        self.list("", plural, "").into_iter().find(|o| o["metadata"]["name"] == name)
    }

    fn list(&self, _group: &str, plural: &str, _namespace: &str) -> Vec<Value> {
        self.0.iter().filter(|(p, _)| p == plural).map(|(_, o)| o.clone()).collect()
    }
}

fn kind_of(case: &Value) -> &'static BuiltinKind {
    let name = case.as_str().unwrap();
    builtins()
        .iter()
        .find(|k| {
            let group_version =
                if k.group.is_empty() { k.version.to_owned() } else { format!("{}/{}", k.group, k.version) };
            name == format!("{group_version}/{}", k.plural)
        })
        .unwrap_or_else(|| panic!("no kind {name}"))
}

/// What stands for the uid of every object.
const UID: &str = "the-uid";

/// How a write ends: the stored object, or the refusal.
type Outcome = Result<Value, Value>;

fn refused(errors: &[FieldError]) -> Value {
    let mut causes: Vec<Value> = errors
        .iter()
        .map(|e| json!({"field": e.field, "reason": e.reason.as_cause(), "message": shortened(&e.body())}))
        .collect();
    let key = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    causes.sort_by_key(|cause| (key(cause, "field"), key(cause, "message")));
    json!({"code": 422, "reason": "Invalid", "causes": causes})
}

/// Without the parts that print Go's internal structs.
fn shortened(message: &str) -> String {
    let message = message.split("\n@@").next().unwrap_or(message);
    match (message.find("value: {"), message.rfind("}: ")) {
        (Some(start), Some(end))
            if message[start + 8..].trim_start_matches('"').starts_with(|c: char| c.is_ascii_uppercase()) =>
        {
            format!("{}value: {{...}}: {}", &message[..start], &message[end + 3..])
        }
        _ => message.to_owned(),
    }
}

fn cannot_be_handled(kind: &BuiltinKind, error: &str) -> Value {
    let message =
        format!("{0} in version {1:?} cannot be handled as a {0}: {error}", kind.kind, kind.version);
    json!({"code": 400, "reason": "BadRequest", "message": message})
}

fn create(kind: &BuiltinKind, mut object: Value, cluster: &Given) -> Outcome {
    kind.decode(&mut object).map_err(|error| cannot_be_handled(kind, &error))?;
    kind.default(&mut object);
    let Some(map) = object.as_object_mut() else { unreachable!("decode refuses what is no object") };
    map.insert("kind".into(), kind.kind.into());
    let group_version = if kind.group.is_empty() {
        kind.version.to_owned()
    } else {
        format!("{}/{}", kind.group, kind.version)
    };
    map.insert("apiVersion".into(), group_version.into());
    let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if kind.namespaced {
        metadata["namespace"] = "default".into();
    }
    metadata["uid"] = UID.into();
    metadata["creationTimestamp"] = "<time>".into();
    kind.prepare_create(&mut object, cluster)
        .map_err(|error| json!({"code": error.code, "reason": error.reason, "message": error.message}))?;
    match kind.validate_create(&object) {
        errors if errors.is_empty() => Ok(object),
        errors => Err(refused(&errors)),
    }
}

fn update(kind: &BuiltinKind, old: &Value, patch: &Value, subresource: Option<&str>) -> Outcome {
    let mut new = old.clone();
    json_patch::merge(&mut new, patch);
    // The times of the recording are no times; the decoder never sees them.
    let created = new["metadata"].as_object_mut().and_then(|metadata| metadata.remove("creationTimestamp"));
    kind.decode(without_fixed_words(&mut new)).map_err(|error| cannot_be_handled(kind, &error))?;
    if let Some(created) = created {
        new["metadata"]["creationTimestamp"] = created;
    }
    kind.default(&mut new);
    kind.prepare_update(&mut new, old, subresource);
    match kind.validate_update(&new, old, subresource) {
        errors if errors.is_empty() => Ok(new),
        errors => Err(refused(&errors)),
    }
}

/// The object itself; named for what the caller relies on: its remaining times are real ones.
fn without_fixed_words(object: &mut Value) -> &mut Value {
    if let Some(time) = object.pointer_mut("/status/lastPhaseTransitionTime").filter(|t| *t == "<time>") {
        *time = "2026-06-01T00:00:00Z".into();
    }
    if let Some(time) =
        object.pointer_mut("/status/conditions/0/lastTransitionTime").filter(|t| *t == "<time>")
    {
        *time = "2026-06-01T00:00:00Z".into();
    }
    object
}

fn normalised(mut object: Value) -> Value {
    for name in ["uid", "creationTimestamp"] {
        object["metadata"].as_object_mut().unwrap().remove(name);
    }
    let text = object.to_string();
    let text = text.replace("2026-06-01T00:00:00Z", "<time>");
    let mut object: Value = serde_json::from_str(&text).unwrap();
    hide_addresses(&mut object);
    object
}

fn hide_addresses(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("10.96.") => *value = "<address>".into(),
        Value::Array(list) => list.iter_mut().for_each(hide_addresses),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if key == "nodePort" && *value != 31234 {
                    *value = 30_000.into();
                }
                hide_addresses(value);
            }
        }
        _ => {}
    }
}

fn run(case: &Value) -> Outcome {
    let kind = kind_of(&case["kind"]);
    let mut cluster =
        Given(initial_objects().into_iter().map(|o| ("priorityclasses".to_owned(), o)).collect());
    for given in case["given"].as_array().into_iter().flatten() {
        let kind = kind_of(&given["kind"]);
        let object = create(kind, given["object"].clone(), &cluster)?;
        cluster.0.push((kind.plural.to_owned(), object));
    }
    let mut object = create(kind, case["create"].clone(), &cluster)?;
    for step in case["before"].as_array().into_iter().flatten() {
        object = update(kind, &object, &step["patch"], step["subresource"].as_str())?;
    }
    if let Some(patch) = case.get("patch") {
        object = update(kind, &object, patch, case["subresource"].as_str())?;
    }
    Ok(normalised(object))
}

fn recorded_cases() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/builtin");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|file| file.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    let read = |file: &PathBuf| -> Vec<Value> {
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    files.iter().flat_map(read).collect()
}

/// A view's object as it comes back from the store.
fn through_the_store(kind: &BuiltinKind, object: &Value) -> Value {
    let mut object = object.clone();
    kind.to_stored(&mut object);
    kind.from_stored(&mut object);
    object
}

#[test]
fn a_view_gives_back_what_was_stored_through_it() {
    let mut views = 0;
    for case in recorded_cases() {
        let kind = kind_of(&case["kind"]);
        if kind.view_of.is_none() {
            continue;
        }
        if let Ok(object) = create(kind, case["create"].clone(), &Given(Vec::new())) {
            views += 1;
            assert_eq!(through_the_store(kind, &object), object, "{}", case["name"]);
        }
    }
    assert!(views >= 3, "only {views}");
}

/// Every object that differs from `object` in one place.
fn mutations(object: &Value, wrong: &Value, out: &mut Vec<Value>, rebuild: &dyn Fn(Value) -> Value) {
    out.push(rebuild(wrong.clone()));
    match object {
        Value::Object(map) => {
            for (key, value) in map {
                mutations(value, wrong, out, &|new| {
                    let mut map = map.clone();
                    map.insert(key.clone(), new);
                    rebuild(Value::Object(map))
                });
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                mutations(value, wrong, out, &|new| {
                    let mut list = list.clone();
                    list[index] = new;
                    rebuild(Value::Array(list))
                });
            }
        }
        _ => {}
    }
}

#[test]
fn an_object_that_is_wrong_in_one_place_is_answered_never_panicked_on() {
    let wrongs = [Value::Null, json!(-1), json!(""), json!("é/%"), json!([null]), json!({"a": null})];
    let mut seen = std::collections::BTreeSet::new();
    for case in recorded_cases() {
        let kind = kind_of(&case["kind"]);
        let valid = create(kind, case["create"].clone(), &Given(Vec::new()));
        let Ok(valid) = valid else { continue };
        if !seen.insert((kind.group, kind.kind)) {
            continue;
        }
        for wrong in &wrongs {
            let mut objects = Vec::new();
            mutations(&case["create"], wrong, &mut objects, &|new| new);
            for object in objects {
                let patched = object.is_object() && object.get("metadata").is_some_and(Value::is_object);
                let _ = create(kind, object.clone(), &Given(Vec::new()));
                if patched {
                    for subresource in [None, Some("status")] {
                        let _ = update(kind, &valid, &object, subresource);
                    }
                }
            }
        }
    }
    assert!(seen.len() >= 40, "only {} kinds", seen.len());
}

#[test]
fn a_real_server_s_answers_are_ours() {
    let cases = recorded_cases();
    let mut differences = Vec::new();
    for case in &cases {
        let expect = &case["expect"];
        let expected: Outcome = if expect["status"]["code"].is_number() {
            Err(expect["status"].clone())
        } else {
            Ok(expect.clone())
        };
        let ours = run(case);
        if ours != expected {
            let (real, ours) = (show(&expected), show(&ours));
            differences.push(format!("{} {}\n  real {real}\n  ours {ours}", case["kind"], case["name"]));
        }
    }
    let count = cases.len();
    assert!(count >= 400, "only {count} cases");
    assert!(differences.is_empty(), "{} of {count} differ:\n{}", differences.len(), differences.join("\n"));
}

fn show(outcome: &Outcome) -> String {
    match outcome {
        Ok(object) => object.to_string(),
        Err(status) => format!("refused: {status}"),
    }
}
