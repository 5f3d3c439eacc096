//! Deletion: at once, after a grace period, or when the last finalizer goes.

use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::answer::Written;
use crate::environment::rfc3339;
use crate::field_error::FieldError;
use crate::json::{self, Parsed};
use crate::meta::{FOREGROUND, ORPHAN};
use crate::object::{self, Encoded, Stored, finalizers, is_deleting, metadata, metadata_mut, set_finalizers};
use crate::registry::{CRD_GROUP, CRD_PLURAL, Resource};
use crate::request::Query;
use crate::server::Writer;
use crate::status::ApiError;
use crate::store::Key;
use crate::update::Target;

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_seconds: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) revision: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// From the body, or from the query where there is none.
    pub(crate) fn parse(body: &Bytes, media_type: &str, query: &Query) -> Result<Self, ApiError> {
        if body.is_empty() {
            let grace_seconds = query.integer("gracePeriodSeconds").map_err(ApiError::bad_request)?;
            let mut value = json!({"dryRun": query.all("dryRun").collect::<Vec<_>>()});
            if let Some(grace_seconds) = grace_seconds {
                value["gracePeriodSeconds"] = grace_seconds.into();
            }
            if let Some(policy) = query.get("propagationPolicy") {
                value["propagationPolicy"] = policy.into();
            }
            if query.get("orphanDependents").is_some() {
                value["orphanDependents"] = query.flag("orphanDependents").into();
            }
            return Self::read(&value);
        }
        let Parsed { value, .. } = match media_type {
            "" | "application/json" => json::parse(body).map_err(|why| {
                ApiError::bad_request(format!("couldn't get version/kind; json parse error: {why}"))
            })?,
            "application/yaml" => json::parse_yaml(body).map_err(ApiError::bad_request)?,
            _ => return Err(crate::decode::unsupported_media_type("application/json, application/yaml")),
        };
        if !value.is_object() {
            return Err(ApiError::bad_request(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                json::go_type(&value)
            )));
        }
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(ApiError::bad_request(format!(
                "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
            )));
        }
        Self::read(&value)
    }

    /// Reads the options as JSON.
    pub(crate) fn read(value: &Value) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let field = |name: &str| value.get(name).filter(|value| !value.is_null());
        let typed = |name: &str, wanted: &str, ok: fn(&Value) -> bool| match field(name) {
            Some(other) if !ok(other) => Err(ApiError::bad_request(format!(
                "json: cannot unmarshal {} into Go struct field DeleteOptions.{name} of type {wanted}",
                json::go_type(other)
            ))),
            _ => Ok(()),
        };
        typed("gracePeriodSeconds", "int64", Value::is_i64)?;
        typed("orphanDependents", "bool", Value::is_boolean)?;
        typed("propagationPolicy", "v1.DeletionPropagation", Value::is_string)?;
        typed("preconditions", "v1.Preconditions", Value::is_object)?;
        typed("dryRun", "[]string", Value::is_array)?;
        let propagation = match field("propagationPolicy").map(|policy| (policy, policy.as_str())) {
            None => None,
            Some((_, Some("Background"))) => Some(Propagation::Background),
            Some((_, Some("Foreground"))) => Some(Propagation::Foreground),
            Some((_, Some("Orphan"))) => Some(Propagation::Orphan),
            Some((other, _)) => {
                let mut error = FieldError::not_supported("propagationPolicy", other, &[]);
                error.detail = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"".into();
                errors.push(error);
                None
            }
        };
        let orphan_dependents = field("orphanDependents").and_then(Value::as_bool);
        if let (Some(policy), Some(_)) = (field("propagationPolicy"), orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", policy, why));
        }
        let dry_run = field("dryRun").and_then(Value::as_array).filter(|list| !list.is_empty());
        if let Some(list) = dry_run
            && list.iter().any(|value| value != "All")
        {
            errors.push(FieldError::not_supported("dryRun", &json!(list), &["All"]));
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        let precondition = |name: &str| {
            value.pointer(&format!("/preconditions/{name}")).and_then(Value::as_str).map(str::to_owned)
        };
        Ok(Self {
            grace_seconds: field("gracePeriodSeconds").and_then(Value::as_i64),
            uid: precondition("uid"),
            revision: precondition("resourceVersion"),
            orphan_dependents,
            propagation,
            dry_run: dry_run.is_some(),
        })
    }
}

/// What a client should know who deletes an object of this kind so.
pub(crate) fn warning(resource: &Resource, options: &DeleteOptions) -> Option<String> {
    let unsaid = options.orphan_dependents.is_none() && options.propagation.is_none();
    (unsaid && resource.is("batch", "jobs")).then(|| {
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning".to_owned()
    })
}

/// What a deletion answers.
pub(crate) enum Deletion {
    /// The object, still there or as it was.
    Object(Written),
    /// Only that it is gone.
    Gone(Value),
}

/// How far a deletion gets in its first step.
enum Step {
    /// A deletion with a period that is not longer is already under way.
    AlreadyUnderWay,
    /// The object now carries a deletion timestamp.
    Graceful(i64),
    /// The kind knows no grace.
    Immediate,
}

impl Writer<'_> {
    pub(crate) fn delete(
        &mut self,
        target: Target<'_>,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        if let Some(stored) = self.stored_form(target.resource) {
            let mut deletion = self.delete(Target { resource: &stored, ..target }, options)?;
            if let Deletion::Gone(status) = &mut deletion {
                status["details"]["group"] = target.resource.group.as_str().into();
            }
            return Ok(deletion);
        }
        let resource = target.resource;
        let key = target.key();
        let existing = self.get(&key).ok_or_else(|| target.not_found())?;
        if resource.is("", "namespaces") {
            crate::namespaces::check_mortal(target.name)?;
            check_namespace_uid(target, options, &existing)?;
        }
        check_preconditions(target, options, &existing)?;
        if !existing.facts.deleting {
            if resource.is("", "namespaces") {
                return self.terminate_namespace(&key, resource, &existing, options);
            }
            if resource.is(CRD_GROUP, CRD_PLURAL) {
                return self.terminate_definition(&key, resource, &existing, options);
            }
        } else if resource.is("", "namespaces") && crate::namespaces::holds(&existing.to_value(resource)) {
            return Ok(Deletion::Object(Written::Stored(existing)));
        }
        self.delete_generic(&key, resource, &existing, options)
    }

    fn delete_generic(
        &mut self,
        key: &Key,
        resource: &Resource,
        existing: &Arc<Stored>,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        let now = self.environment.now();
        let mut object = existing.to_value(resource);
        let step = begin(resource, &mut object, options, now);
        let (graceful, grace) = match step {
            Step::AlreadyUnderWay => return Ok(answer(resource, existing, existing.revision)),
            Step::Graceful(grace) => (true, grace),
            Step::Immediate => (false, 0),
        };
        let after = finalizers_after(resource, &object, options);
        let held = !after.is_empty();
        set_finalizers(&mut object, after);
        if graceful || held {
            if !graceful {
                mark_deleting(&mut object, now);
            }
            if options.dry_run {
                return Ok(Deletion::Object(Written::Unstored(object)));
            }
            let stored = if Encoded::new(&object, resource).same_as(existing) {
                Arc::clone(existing)
            } else {
                self.put(key, resource, &object)
            };
            if held || grace > 0 {
                return Ok(Deletion::Object(Written::Stored(stored)));
            }
        }
        if options.dry_run {
            return Ok(answer(resource, existing, existing.revision));
        }
        match self.remove(key, resource) {
            Some((revision, last)) => Ok(answer(resource, &last, revision)),
            None => Ok(answer(resource, existing, existing.revision)),
        }
    }

    /// Stores a changed object, or lets it go if nothing holds it any more. For the server's own changes.
    pub(crate) fn store_or_release(&mut self, key: &Key, resource: &Resource, object: &Value) {
        let grace =
            metadata(object).and_then(|m| m.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
        let held = !finalizers(object).is_empty()
            || grace.unwrap_or(0) > 0
            || (resource.is("", "namespaces") && crate::namespaces::holds(object));
        if is_deleting(object) && !held {
            self.remove(key, resource);
        } else {
            self.put(key, resource, object);
        }
    }
}

/// Namespaces have a check of their own, with its own words.
fn check_namespace_uid(
    target: Target<'_>,
    options: &DeleteOptions,
    existing: &Stored,
) -> Result<(), ApiError> {
    let uid = existing.facts.uid.map(|uid| uid.to_string()).unwrap_or_default();
    match options.uid.as_ref().filter(|wanted| **wanted != uid) {
        Some(wanted) => Err(target.conflict(&format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        ))),
        None => Ok(()),
    }
}

pub(crate) fn check_preconditions(
    target: Target<'_>,
    options: &DeleteOptions,
    existing: &Stored,
) -> Result<(), ApiError> {
    let resource = target.resource;
    let conflict = |why: String| ApiError::conflict(&resource.group, &resource.kind, target.name, &why);
    let uid = existing.facts.uid.map(|uid| uid.to_string()).unwrap_or_default();
    if let Some(wanted) = options.uid.as_ref().filter(|wanted| **wanted != uid) {
        return Err(conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )));
    }
    let revision = existing.revision.to_string();
    if let Some(wanted) = options.revision.as_ref().filter(|wanted| **wanted != revision) {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        )));
    }
    Ok(())
}

/// Sets the deletion timestamp of kinds that go gracefully: of the built-in ones only pods do.
fn begin(resource: &Resource, object: &mut Value, options: &DeleteOptions, now: Timestamp) -> Step {
    let asked = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if !resource.is("", "pods") {
        return Step::Immediate;
    }
    if is_deleting(object) {
        let current =
            metadata(object).and_then(|m| m.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
        let Some(current) = current.filter(|current| *current != 0) else { return Step::Immediate };
        // A grace period can only be shortened, and not into the past.
        let Some(shorter) = asked.filter(|asked| *asked < current) else { return Step::AlreadyUnderWay };
        let since = object::meta_str(object, "deletionTimestamp").parse().unwrap_or(now);
        let ends = later(since, shorter - current);
        let shorter = if ends < now && shorter != 0 { 1 } else { shorter };
        set_deletion(object, ends.max(now), shorter);
        return Step::Graceful(shorter);
    }
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let over = matches!(text("/status/phase"), "Failed" | "Succeeded");
    let default = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    let grace = match asked.or(default) {
        _ if over || text("/spec/nodeName").is_empty() => 0,
        Some(grace) if grace < 0 => 1,
        grace => grace.unwrap_or(0),
    };
    set_deletion(object, later(now, grace), grace);
    raise_generation(object);
    Step::Graceful(grace)
}

fn later(time: Timestamp, seconds: i64) -> Timestamp {
    time.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

fn set_deletion(object: &mut Value, at: Timestamp, grace_seconds: i64) {
    let metadata = metadata_mut(object);
    metadata.insert("deletionTimestamp".into(), rfc3339(at).into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace_seconds.into());
}

/// The beginning of a deletion counts as a new generation where there are any.
fn raise_generation(object: &mut Value) {
    let metadata = metadata_mut(object);
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g > 0) {
        metadata.insert("generation".into(), (generation + 1).into());
    }
}

/// Marks an object of a kind without grace that finalizers still hold.
fn mark_deleting(object: &mut Value, now: Timestamp) {
    if !metadata(object).is_some_and(|m| m.contains_key("deletionGracePeriodSeconds")) {
        raise_generation(object);
    }
    let since = object::meta_str(object, "deletionTimestamp").parse::<Timestamp>().ok();
    set_deletion(object, since.filter(|since| *since <= now).unwrap_or(now), 0);
}

/// The finalizers once the options' propagation policy has added or taken away the collector's own.
fn finalizers_after(resource: &Resource, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let current = finalizers(object);
    let set_before = if current.contains(&ORPHAN) {
        Some(Propagation::Orphan)
    } else if current.contains(&FOREGROUND) {
        Some(Propagation::Foreground)
    } else {
        None
    };
    let asked = match (options.orphan_dependents, options.propagation) {
        (Some(true), _) => Some(Propagation::Orphan),
        (Some(false), _) => Some(Propagation::Background),
        (None, policy) => policy,
    };
    if resource.is("", "events") {
        // Nothing depends on an event.
        return current.iter().map(|f| (*f).to_owned()).collect();
    }
    // The oldest controllers' clients expect their pods to stay.
    let orphans = resource.is("batch", "jobs") || resource.is("", "replicationcontrollers");
    let default = if orphans { Propagation::Orphan } else { Propagation::Background };
    let mut after: Vec<String> =
        current.iter().filter(|f| !matches!(**f, ORPHAN | FOREGROUND)).map(|f| (*f).to_owned()).collect();
    match asked.or(set_before).unwrap_or(default) {
        Propagation::Orphan => after.push(ORPHAN.to_owned()),
        Propagation::Foreground => after.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    after
}

/// What kube-apiserver answers to a deletion: for some kinds the object, for the others that it is gone.
fn answer(resource: &Resource, object: &Arc<Stored>, revision: u64) -> Deletion {
    let value = object.to_value(resource);
    if returns_object(resource) {
        let mut value = value;
        metadata_mut(&mut value).insert("resourceVersion".into(), revision.to_string().into());
        return Deletion::Object(Written::Unstored(value));
    }
    let mut details = json!({"name": object::meta_str(&value, "name"), "kind": resource.plural});
    if !resource.group.is_empty() {
        details["group"] = resource.group.as_str().into();
    }
    details["uid"] = object::meta_str(&value, "uid").into();
    Deletion::Gone(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    }))
}

fn returns_object(resource: &Resource) -> bool {
    match resource.group.as_str() {
        "resource.k8s.io" | "storage.k8s.io" => resource.plural != "csistoragecapacities",
        "" => matches!(
            resource.plural.as_str(),
            "namespaces"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        _ => false,
    }
}
