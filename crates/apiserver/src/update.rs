//! Changes of objects that exist, whole or through a subresource.

use std::sync::Arc;

use serde_json::Value;

use crate::answer::Written;
use crate::create::fit_namespace;
use crate::decode::WriteOptions;
use crate::field_error::FieldError;
use crate::meta;
use crate::object::{Encoded, Stored, finalizers, is_deleting, meta_str, metadata, metadata_mut, object_mut};
use crate::registry::{CRD_GROUP, CRD_PLURAL, Handling, Resource};
use crate::server::Writer;
use crate::status::ApiError;
use crate::store::Key;

const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What is to be changed.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) resource: &'a Arc<Resource>,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) subresource: Option<&'a str>,
}

impl Target<'_> {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.resource.storage, self.namespace, self.name)
    }

    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::not_found(&self.resource.group, &self.resource.plural, self.name)
    }

    /// The name in a body has to be the one in the path.
    pub(crate) fn check_name(&self, object: &Value) -> Result<(), ApiError> {
        match meta_str(object, "name") {
            "" => Err(ApiError::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                self.name
            ))),
            name if name == self.name => Ok(()),
            name => Err(ApiError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.name
            ))),
        }
    }

    /// A conflict in the words of kube-apiserver's storage: `field` is `UID` or `ResourceVersion`.
    pub(crate) fn precondition_failed(&self, field: &str, wanted: &str, actual: &str) -> ApiError {
        self.conflict(&format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {actual}",
            self.resource.plural,
            self.key().path
        ))
    }

    pub(crate) fn conflict(&self, why: &str) -> ApiError {
        ApiError::conflict(&self.resource.group, &self.resource.plural, self.name, why)
    }
}

/// An update's outcome.
pub(crate) struct Updated {
    pub(crate) written: Written,
    pub(crate) created: bool,
}

impl Writer<'_> {
    /// Replaces an object by a decoded one.
    pub(crate) fn replace(
        &mut self,
        target: Target<'_>,
        mut object: Value,
        options: WriteOptions,
    ) -> Result<Updated, ApiError> {
        target.check_name(&object)?;
        fit_namespace(&mut object, target.namespace)?;
        let existing = self.get(&target.key());
        self.check_uid(target, meta_str(&object, "uid"), existing.as_deref())?;
        match existing {
            None if target.subresource.is_none() && creates_on_update(target.resource) => {
                metadata_mut(&mut object).remove("resourceVersion");
                let written = self.create(target.resource, target.namespace, object, options)?;
                Ok(Updated { written, created: true })
            }
            None => Err(target.not_found()),
            Some(existing) => {
                let written = self.update(target, &existing, object, options)?;
                Ok(Updated { written, created: false })
            }
        }
    }

    /// A uid in a replacement is a precondition.
    fn check_uid(&self, target: Target<'_>, uid: &str, existing: Option<&Stored>) -> Result<(), ApiError> {
        if uid.is_empty() || (existing.is_none() && !creates_on_update(target.resource)) {
            return Ok(());
        }
        let actual =
            existing.and_then(|stored| stored.facts.uid).map(|uid| uid.to_string()).unwrap_or_default();
        if uid == actual {
            return Ok(());
        }
        Err(target.precondition_failed("UID", uid, &actual))
    }

    /// Stores `new` over `existing` if the rules allow it.
    pub(crate) fn update(
        &mut self,
        target: Target<'_>,
        existing: &Arc<Stored>,
        new: Value,
        options: WriteOptions,
    ) -> Result<Written, ApiError> {
        let old = existing.to_value(target.resource);
        self.update_over(target, existing, old, new, options)
    }

    /// As [`Self::update`], for callers that have the old object at hand.
    pub(crate) fn update_over(
        &mut self,
        target: Target<'_>,
        existing: &Arc<Stored>,
        old: Value,
        mut new: Value,
        options: WriteOptions,
    ) -> Result<Written, ApiError> {
        if let (Some(view), Some(stored)) = (target.resource.view(), self.stored_form(target.resource)) {
            view.to_stored(&mut new);
            return self.update(Target { resource: &stored, ..target }, existing, new, options);
        }
        let resource = target.resource;
        check_revision(target, &mut new, existing)?;
        let errors = prepare_and_validate(target, &mut new, &old);
        if !errors.is_empty() {
            return Err(ApiError::invalid(&resource.group, &resource.kind, target.name, &errors));
        }
        let key = target.key();
        if goes_with_update(resource, &new, &old) {
            if !options.dry_run {
                self.remove(&key, resource);
            }
            return Ok(Written::Unstored(new));
        }
        let encoded = Encoded::new(&new, resource);
        if encoded.same_as(existing) {
            return Ok(Written::Stored(Arc::clone(existing)));
        }
        if options.dry_run {
            return Ok(Written::Unstored(new));
        }
        Ok(Written::Stored(self.put_encoded(&key, resource, encoded, &new)))
    }

    fn put_encoded(
        &mut self,
        key: &Key,
        resource: &Resource,
        encoded: Encoded,
        object: &Value,
    ) -> Arc<Stored> {
        let before = self.get(key);
        let stored = self.state.store.put(key.clone(), encoded);
        self.follow_up_put(key, resource, before.as_deref(), &stored, object);
        stored
    }
}

fn creates_on_update(resource: &Resource) -> bool {
    matches!(resource.handling, Handling::Builtin(kind) if kind.create_on_update)
}

/// Optimistic locking: the version in the new object has to be the current one, or may be left out by some kinds.
fn check_revision(target: Target<'_>, new: &mut Value, existing: &Stored) -> Result<(), ApiError> {
    let resource = target.resource;
    let text = meta_str(new, "resourceVersion");
    let revision: u64 = match text {
        "" => 0,
        text => text.parse().map_err(|_| {
            ApiError::internal(format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))
        })?,
    };
    let unconditional = match &resource.handling {
        Handling::Builtin(kind) => kind.unconditional_update,
        Handling::Custom(_) => false,
    };
    match revision {
        0 if unconditional => {
            metadata_mut(new).insert("resourceVersion".into(), existing.revision.to_string().into());
            Ok(())
        }
        0 => {
            let error =
                FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            Err(ApiError::invalid(&resource.group, &resource.plural, target.name, &[error]))
        }
        current if current == existing.revision => Ok(()),
        _ => Err(target.conflict(MODIFIED)),
    }
}

fn prepare_and_validate(target: Target<'_>, new: &mut Value, old: &Value) -> Vec<FieldError> {
    let resource = target.resource;
    let generation = metadata(old).and_then(|m| m.get("generation")).cloned();
    match generation {
        Some(generation) => drop(metadata_mut(new).insert("generation".into(), generation)),
        None => drop(metadata_mut(new).remove("generation")),
    }
    match &resource.handling {
        Handling::Builtin(kind) => {
            if resource.is(CRD_GROUP, CRD_PLURAL) {
                crate::crd::default_crd(new);
            }
            kind.prepare_update(new, old, target.subresource);
            meta::keep_system_fields(new, old);
            // kube-apiserver checks metadata once for all kinds and once more in the kind's own validation.
            let mut errors = meta::validate_update(new, old);
            errors.extend(errors.clone());
            errors.extend(kind.validate_update(new, old, target.subresource));
            if resource.is(CRD_GROUP, CRD_PLURAL) && target.subresource.is_none() {
                errors.extend(crate::crd::validate_crd(new, Some(old)));
            }
            errors
        }
        Handling::Custom(version) => {
            prepare_custom(new, old, version.status, target.subresource == Some("status"));
            meta::keep_system_fields(new, old);
            let mut errors = meta::validate_update(new, old);
            errors.extend(errors.clone());
            errors.extend(match target.subresource {
                Some("status") => version.schema.validate_status(new, old),
                _ => version.schema.validate(new, Some(old)),
            });
            errors
        }
    }
}

/// Keeps status and everything else apart, and counts generations, as the strategy of custom resources does.
fn prepare_custom(new: &mut Value, old: &Value, has_status: bool, writes_status: bool) {
    if writes_status {
        let status = object_mut(new).remove("status");
        let revision = metadata(new).and_then(|m| m.get("resourceVersion")).cloned();
        *new = old.clone();
        match status {
            Some(status) => drop(object_mut(new).insert("status".into(), status)),
            None => drop(object_mut(new).remove("status")),
        }
        if let Some(revision) = revision {
            metadata_mut(new).insert("resourceVersion".into(), revision);
        }
        return;
    }
    if has_status {
        match old.get("status") {
            Some(status) => drop(object_mut(new).insert("status".into(), status.clone())),
            None => drop(object_mut(new).remove("status")),
        }
    }
    if !same_content(new, old, has_status) {
        let before = metadata(old).and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0);
        metadata_mut(new).insert("generation".into(), (before + 1).into());
    }
}

/// Whether two objects differ at most in what does not count as a new generation.
fn same_content(a: &Value, b: &Value, has_status: bool) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let counts = |(key, _): &(&String, &Value)| *key != "metadata" && !(has_status && *key == "status");
    a.iter().filter(counts).eq(b.iter().filter(counts))
}

/// Whether an update takes the last thing away that held a deleted object.
fn goes_with_update(resource: &Resource, new: &Value, old: &Value) -> bool {
    let grace = metadata(old).and_then(|m| m.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
    let gone = is_deleting(old) && finalizers(new).is_empty() && grace.unwrap_or(0) == 0;
    // A namespace is also held by the finalizers of its spec.
    gone && !(resource.is("", "namespaces") && crate::namespaces::holds(new))
}
