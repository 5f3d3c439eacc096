//! The `scale` part: how many replicas an object wants and has, whatever its kind.

use karpenter_primitives::selector::LabelSelector;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::crd::jsonpath::JsonPath;
use crate::decode::{self, WriteOptions};
use crate::field_error::FieldError;
use crate::object::{meta_str, metadata, metadata_mut, object_mut};
use crate::patch::Patch;
use crate::registry::{Handling, Resource};
use crate::request::Verb;
use crate::service::Call;
use crate::status::ApiError;
use crate::update::Target;

/// Where an object keeps its numbers.
struct Paths {
    spec: String,
    status: String,
    /// A field that holds a selector as text; built-in kinds hold one as an object in `spec.selector`.
    selector: Option<String>,
    custom: bool,
}

impl Paths {
    fn of(resource: &Resource) -> Option<Self> {
        match &resource.handling {
            Handling::Custom(version) => version.scale.as_ref().map(|paths| Self {
                spec: paths.spec_replicas.clone(),
                status: paths.status_replicas.clone(),
                selector: paths.label_selector.clone(),
                custom: true,
            }),
            Handling::Builtin(kind) => kind.scale.then(|| Self {
                spec: ".spec.replicas".into(),
                status: ".status.replicas".into(),
                selector: None,
                custom: false,
            }),
        }
    }

    fn selector(&self, object: &Value) -> Option<String> {
        match (&self.selector, self.custom) {
            (Some(path), _) => Some(at(object, path)?.as_str()?.to_owned()),
            (None, true) => None,
            (None, false) => {
                let selector = object.pointer("/spec/selector")?;
                // A ReplicationController's is a plain map of labels.
                let labels;
                let selector = if selector.as_object()?.values().all(Value::is_string) {
                    labels = json!({"matchLabels": selector});
                    &labels
                } else {
                    selector
                };
                Some(match LabelSelector::deserialize(selector).ok().and_then(|s| s.to_selector().ok()) {
                    Some(selector) => selector.to_string(),
                    None => String::new(),
                })
            }
        }
    }
}

/// What a path such as `.spec.replicas` leads to.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    JsonPath::parse(path).ok()?.find(object).first().copied()
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut steps = path.trim_start_matches('.').split('.').peekable();
    let mut here = object;
    while let Some(step) = steps.next() {
        let fields = object_mut(here);
        if steps.peek().is_none() {
            fields.insert(step.to_owned(), value);
            return;
        }
        here = fields.entry(step.to_owned()).or_insert_with(|| Value::Object(Map::new()));
    }
}

/// Answers a get, update or patch of an object's scale.
pub(crate) fn answer(call: &Call, target: Target<'_>, verb: Verb) -> Result<Answer, ApiError> {
    let paths = Paths::of(target.resource).ok_or_else(ApiError::no_such_resource)?;
    let media_type = decode::media_type(&call.headers);
    match verb {
        Verb::Get => {
            let stored = call.server.read(|state| state.store.get(&target.key()).cloned());
            let object = stored.ok_or_else(|| target.not_found())?.to_value(target.resource);
            if paths.custom && at(&object, &paths.spec).is_none() {
                let why = format!("the spec replicas field {:?} does not exist", paths.spec);
                return Err(ApiError::other(500, "InternalError", format!("Internal error occurred: {why}"))
                    .with_details(json!({"causes": [{"message": why}]})));
            }
            Ok(Answer::value(200, &scale_of(&object, &paths)))
        }
        Verb::Update => {
            let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
            let scale = decode::parse(&call.body, media_type, "Scale")?.value;
            if !is_scale(&scale) {
                return Err(decode::not_a(&scale, "autoscaling", "Scale", &call.registry()));
            }
            let cannot = |why| {
                ApiError::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: {why}"))
            };
            check_types(&scale).map_err(cannot)?;
            let warnings =
                decode::strictness(unknown_fields(&scale), options.field_validation).map_err(cannot)?;
            target.check_name(&scale)?;
            write(call, target, &paths, options, |_| Ok(scale)).map(|answer| answer.warn(warnings))
        }
        Verb::Patch => {
            let patch = Patch::parse(&call.body, media_type, target.resource.is_custom())?;
            let options = WriteOptions::parse(&call.query, "PatchOptions")?;
            // Before the write: inside it the state is locked.
            let registry = call.registry();
            let mut warnings = Vec::new();
            let answer = write(call, target, &paths, options, |mut scale| {
                patch.apply(&mut scale)?;
                let invalid = |why: String| {
                    let error = FieldError::invalid("patch", &Value::String(scale.to_string()), why);
                    ApiError::invalid("", "", "", &[error])
                };
                if !is_scale(&scale) {
                    let text = |field: &str| scale.get(field).and_then(Value::as_str).unwrap_or_default();
                    let why =
                        decode::unlike(text("apiVersion"), text("kind"), "autoscaling", "Scale", &registry);
                    return Err(invalid(why));
                }
                check_types(&scale).map_err(invalid)?;
                warnings =
                    decode::strictness(unknown_fields(&scale), options.field_validation).map_err(invalid)?;
                target.check_name(&scale)?;
                Ok(scale)
            })?;
            Ok(answer.warn(warnings))
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn write(
    call: &Call,
    target: Target<'_>,
    paths: &Paths,
    options: WriteOptions,
    change: impl FnOnce(Value) -> Result<Value, ApiError>,
) -> Result<Answer, ApiError> {
    call.server.write(|writer| {
        let stored = writer.get(&target.key()).ok_or_else(|| target.not_found())?;
        let mut object = stored.to_value(target.resource);
        let scale = change(scale_of(&object, paths))?;
        let replicas = replicas(&scale, target, paths)?;
        set(&mut object, &paths.spec, replicas.into());
        let (uid, actual) = (meta_str(&scale, "uid"), meta_str(&object, "uid"));
        if !uid.is_empty() && uid != actual {
            let why =
                format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}");
            let plural = format!("{}/scale", target.resource.plural);
            return Err(ApiError::conflict(&target.resource.group, &plural, target.name, &why));
        }
        let revision = meta_str(&scale, "resourceVersion");
        if !revision.is_empty() {
            metadata_mut(&mut object).insert("resourceVersion".into(), revision.into());
        }
        let target = Target { subresource: Some("scale"), ..target };
        let written = writer.update(target, &stored, object, options)?;
        Ok(Answer::value(200, &scale_of(&written.to_value(target.resource), paths)))
    })
}

/// Whether a body says it is a Scale, or nothing at all.
fn is_scale(scale: &Value) -> bool {
    let text = |field: &str| scale.get(field).and_then(Value::as_str).unwrap_or_default();
    matches!(text("kind"), "" | "Scale") && matches!(text("apiVersion"), "" | "autoscaling/v1")
}

/// Whether the number of replicas is one; the error is Go's decoder's text.
fn check_types(scale: &Value) -> Result<(), String> {
    let Some(value) = scale.pointer("/spec/replicas").filter(|value| !value.is_null()) else { return Ok(()) };
    if value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) {
        return Ok(());
    }
    let got = match value {
        Value::Number(number) => format!("number {number}"),
        other => crate::json::go_type(other).to_owned(),
    };
    Err(format!("json: cannot unmarshal {got} into Go struct field ScaleSpec.spec.replicas of type int32"))
}

/// What a Scale does not have, as warnings name it.
fn unknown_fields(scale: &Value) -> Vec<String> {
    let fields = |at: &str| scale.pointer(at).and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let top = fields("")
        .filter(|key| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "spec" | "status"))
        .map(|key| format!("unknown field {key:?}"));
    let spec =
        fields("/spec").filter(|key| *key != "replicas").map(|key| format!("unknown field \"spec.{key}\""));
    top.chain(spec).collect()
}

fn replicas(scale: &Value, target: Target<'_>, paths: &Paths) -> Result<i64, ApiError> {
    let value = scale.pointer("/spec/replicas").unwrap_or(&Value::Null);
    let replicas = value.as_i64().unwrap_or(0);
    if replicas < 0 {
        let resource = target.resource;
        if resource.is_custom() {
            let error = FieldError::invalid(&paths.spec, value, "should be a non-negative integer");
            return Err(ApiError::invalid(&resource.group, &resource.kind, target.name, &[error]));
        }
        let error = FieldError::invalid("spec.replicas", value, "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", target.name, &[error]));
    }
    Ok(replicas)
}

fn scale_of(object: &Value, paths: &Paths) -> Value {
    let number = |path: &str| at(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut shown = Map::new();
    if let Some(metadata) = metadata(object) {
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            crate::meta::copy(&mut shown, metadata, field);
        }
    }
    let mut spec = Map::new();
    if number(&paths.spec) != 0 {
        spec.insert("replicas".into(), number(&paths.spec).into());
    }
    let mut status = json!({"replicas": number(&paths.status)});
    if let Some(selector) = paths.selector(object).filter(|selector| !selector.is_empty()) {
        status["selector"] = selector.into();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": status})
}
