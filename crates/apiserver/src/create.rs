//! New objects.

use std::sync::Arc;

use serde_json::Value;

use crate::answer::Written;
use crate::decode::WriteOptions;
use crate::field_error::FieldError;
use crate::meta;
use crate::object::{meta_str, metadata_mut, object_mut};
use crate::registry::{CRD_GROUP, CRD_PLURAL, Handling, Resource};
use crate::server::Writer;
use crate::status::ApiError;
use crate::store::Key;

/// How often a generated name is drawn anew when it is taken.
const NAME_ATTEMPTS: usize = 8;

impl Writer<'_> {
    /// Creates a decoded object in `namespace` (empty for cluster-scoped resources).
    pub(crate) fn create(
        &mut self,
        resource: &Arc<Resource>,
        namespace: &str,
        mut object: Value,
        options: WriteOptions,
    ) -> Result<Written, ApiError> {
        if let (Some(view), Some(stored)) = (resource.view(), self.stored_form(resource)) {
            let name = meta_str(&object, "name").to_owned();
            view.to_stored(&mut object);
            return self.create(&stored, namespace, object, options).map_err(|error| match error.reason {
                "AlreadyExists" => ApiError::already_exists(&resource.group, &resource.plural, &name),
                _ => error,
            });
        }
        fit_namespace(&mut object, namespace)?;
        let uid = self.environment.uid().to_string();
        meta::fill_system_fields(&mut object, uid, self.environment.now());
        meta::drop_repeated_owners(&mut object);
        self.draw_name(resource, namespace, &mut object);
        self.admit_to_namespace(resource, namespace, meta_str(&object, "name"))?;
        let errors = self.prepare_and_validate(resource, &mut object)?;
        let name = meta_str(&object, "name").to_owned();
        if !errors.is_empty() {
            return Err(ApiError::invalid(&resource.group, &resource.kind, &name, &errors));
        }
        if !meta_str(&object, "resourceVersion").is_empty() {
            return Err(ApiError::internal("resourceVersion should not be set on objects to be created"));
        }
        let key = Key::new(resource.storage, namespace, &name);
        if let Some(other) = self.state.store.get(&key) {
            let mut error = ApiError::already_exists(&resource.group, &resource.plural, &name);
            if other.facts.deleting {
                error.message = format!("object is being deleted: {}", error.message);
            }
            return Err(error);
        }
        if options.dry_run {
            return Ok(Written::Unstored(object));
        }
        Ok(Written::Stored(self.put(&key, resource, &object)))
    }

    /// Makes a name from `generateName` where there is none.
    fn draw_name(&self, resource: &Resource, namespace: &str, object: &mut Value) {
        let prefix = meta_str(object, "generateName");
        if prefix.is_empty() || !meta_str(object, "name").is_empty() {
            return;
        }
        // Names stay within 63 bytes, suffix included.
        let prefix: String = prefix.chars().take(58).collect();
        let mut name = String::new();
        for _ in 0..NAME_ATTEMPTS {
            name = format!("{prefix}{}", self.environment.name_suffix());
            if self.state.store.get(&Key::new(resource.storage, namespace, &name)).is_none() {
                break;
            }
        }
        metadata_mut(object).insert("name".into(), name.into());
    }

    /// The kind's own preparation, then everything that is wrong.
    fn prepare_and_validate(
        &mut self,
        resource: &Resource,
        object: &mut Value,
    ) -> Result<Vec<FieldError>, ApiError> {
        match &resource.handling {
            Handling::Builtin(kind) => {
                kind.prepare_create(object, &*self.state)?;
                if resource.is(CRD_GROUP, CRD_PLURAL) {
                    crate::crd::default_crd(object);
                }
                let mut errors = meta::validate(object, resource);
                errors.extend(kind.validate_create(object));
                if resource.is(CRD_GROUP, CRD_PLURAL) {
                    errors.extend(crate::crd::validate_crd(object, None));
                }
                Ok(errors)
            }
            Handling::Custom(version) => {
                metadata_mut(object).insert("generation".into(), 1.into());
                if version.status {
                    object_mut(object).remove("status");
                    // A schema may have a first status for every object.
                    version.schema.default(object);
                }
                let mut errors = meta::validate(object, resource);
                errors.extend(version.schema.validate(object, None));
                Ok(errors)
            }
        }
    }
}

/// Puts an object into the namespace of its request.
pub(crate) fn fit_namespace(object: &mut Value, namespace: &str) -> Result<(), ApiError> {
    match meta_str(object, "namespace") {
        same if same == namespace => Ok(()),
        "" => {
            metadata_mut(object).insert("namespace".into(), namespace.into());
            Ok(())
        }
        // Objects of cluster-scoped kinds forget what they were told.
        _ if namespace.is_empty() => {
            metadata_mut(object).remove("namespace");
            Ok(())
        }
        _ => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}
