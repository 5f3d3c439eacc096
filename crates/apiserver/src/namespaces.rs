//! Namespaces: what may be created in one, and how one ends with everything in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::answer::Written;
use crate::decode::WriteOptions;
use crate::delete::{DeleteOptions, Deletion, Propagation};
use crate::environment::rfc3339;
use crate::garbage::Work;
use crate::object::{Encoded, Stored, finalizers, metadata_mut, object_mut};
use crate::registry::Resource;
use crate::server::Writer;
use crate::status::ApiError;
use crate::store::{Key, range};
use crate::update::Target;

/// The namespaces every cluster has.
const FIRST: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Those that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];
/// The spec's finalizer that stands for the namespace's content.
const CONTENT: &str = "kubernetes";

/// Whether the finalizers in a namespace's spec still hold it.
pub(crate) fn holds(namespace: &Value) -> bool {
    namespace.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

pub(crate) fn check_mortal(name: &str) -> Result<(), ApiError> {
    if IMMORTAL.contains(&name) {
        return Err(ApiError::forbidden("", "namespaces", name, "this namespace may not be deleted"));
    }
    Ok(())
}

impl Writer<'_> {
    pub(crate) fn create_first_namespaces(&mut self) {
        let Some(resource) = self.state.registry.find("", "v1", "namespaces").cloned() else { return };
        for name in FIRST {
            let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            if crate::decode::conform(&resource, &mut object).is_ok() {
                // Nothing is wrong with these names.
                let _ = self.create(&resource, "", object, WriteOptions::default());
            }
        }
    }

    /// What a server has of its own beside namespaces, such as the priority classes of the system.
    pub(crate) fn create_first_objects(&mut self) {
        for mut object in crate::builtin::initial_objects() {
            let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
            let resource = self.state.registry.by_kind(text("apiVersion"), text("kind")).cloned();
            if let Some(resource) = resource
                && crate::decode::conform(&resource, &mut object).is_ok()
            {
                let _ = self.create(&resource, "", object, WriteOptions::default());
            }
        }
    }

    /// What can be created needs a namespace that is there to stay.
    pub(crate) fn admit_to_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        if !resource.namespaced {
            return Ok(());
        }
        let Some(namespaces) = self.state.registry.find("", "v1", "namespaces") else { return Ok(()) };
        let Some(found) = self.state.store.get(&Key::new(namespaces.storage, "", namespace)) else {
            return Err(ApiError::not_found("", "namespaces", namespace));
        };
        if !found.facts.deleting {
            return Ok(());
        }
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut error = ApiError::forbidden(&resource.group, &resource.plural, name, &why);
        if let Some(details) = &mut error.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        Err(error)
    }

    /// The first step of a namespace's end; its content follows.
    pub(crate) fn terminate_namespace(
        &mut self,
        key: &Key,
        resource: &Resource,
        existing: &Arc<Stored>,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        let mut object = existing.to_value(resource);
        let now = rfc3339(self.environment.now());
        metadata_mut(&mut object).insert("deletionTimestamp".into(), now.into());
        let status = object_mut(&mut object).entry("status").or_insert_with(|| json!({}));
        status["phase"] = "Terminating".into();
        if options.dry_run {
            return Ok(Deletion::Object(Written::Unstored(object)));
        }
        let stored = self.put(key, resource, &object);
        Ok(Deletion::Object(Written::Stored(stored)))
    }

    /// Deletes what is left in a terminating namespace, and the namespace itself once nothing is.
    pub(crate) fn empty_namespace(&mut self, name: &str) {
        let registry = Arc::clone(&self.state.registry);
        let mut contents: Vec<(Arc<Resource>, Key)> = Vec::new();
        let mut left = false;
        for resource in registry.all().filter(|resource| resource.namespaced) {
            for (key, object) in range(self.state.store.objects(), resource.storage, Some(name), None) {
                left = true;
                if !object.facts.deleting && !contents.iter().any(|(_, other)| other == key) {
                    contents.push((Arc::clone(resource), key.clone()));
                }
            }
        }
        let options =
            DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        for (resource, key) in contents {
            let target = Target {
                resource: &resource,
                namespace: key.namespace(),
                name: key.name(),
                subresource: None,
            };
            // An object that is gone already is what we want.
            let _ = self.delete(target, &options);
        }
        if left {
            // Each object that goes brings us back here.
            if self.is_empty_namespace(name) {
                self.work.push_back(Work::Namespace(name.to_owned()));
            } else {
                self.tell_what_remains(name);
            }
            return;
        }
        let Some(resource) = registry.find("", "v1", "namespaces") else { return };
        let key = Key::new(resource.storage, "", name);
        let Some(stored) = self.get(&key).filter(|stored| stored.facts.deleting) else { return };
        let mut object = stored.to_value(resource);
        if let Some(list) = object.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut) {
            let before = list.len();
            list.retain(|finalizer| finalizer != CONTENT);
            if list.len() == before {
                return;
            }
        }
        if !holds(&object)
            && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        {
            spec.remove("finalizers");
        }
        self.store_or_release(&key, resource, &object);
    }

    /// Writes into a terminating namespace what it waits for.
    fn tell_what_remains(&mut self, name: &str) {
        let registry = Arc::clone(&self.state.registry);
        let Some(namespaces) = registry.find("", "v1", "namespaces") else { return };
        let key = Key::new(namespaces.storage, "", name);
        let Some(stored) = self.get(&key) else { return };
        let mut resources: BTreeMap<String, usize> = BTreeMap::new();
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for resource in registry.all().filter(|resource| resource.namespaced && resource.view().is_none()) {
            for (_, object) in range(self.state.store.objects(), resource.storage, Some(name), None) {
                *resources.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
                for finalizer in finalizers(&object.to_value(resource)) {
                    *held.entry(finalizer.to_owned()).or_default() += 1;
                }
            }
        }
        let list = |counts: &BTreeMap<String, usize>, verb: &str| {
            let texts =
                counts.iter().map(|(what, count)| format!("{what} {verb} {count} resource instances"));
            texts.collect::<Vec<_>>().join(", ")
        };
        let remaining = format!("Some resources are remaining: {}", list(&resources, "has"));
        let finalizing =
            format!("Some content in the namespace has finalizers remaining: {}", list(&held, "in"));
        let waits = !held.is_empty();
        let conditions = [
            (
                "NamespaceDeletionDiscoveryFailure",
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                false,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            (
                "NamespaceDeletionContentFailure",
                false,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            ("NamespaceContentRemaining", true, "SomeResourcesRemain", remaining.as_str()),
            match waits {
                true => ("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", finalizing.as_str()),
                false => (
                    "NamespaceFinalizersRemaining",
                    false,
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
            },
        ];
        let mut object = stored.to_value(namespaces);
        let now = rfc3339(self.environment.now());
        let before = object.pointer("/status/conditions").cloned().unwrap_or_default();
        let conditions: Vec<Value> = conditions
            .into_iter()
            .map(|(kind, status, reason, message)| {
                let status = if status { "True" } else { "False" };
                let same = before.as_array().into_iter().flatten().find(|c| c["type"] == kind && c["status"] == status);
                let since = same.and_then(|c| c["lastTransitionTime"].as_str()).unwrap_or(&now);
                json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message})
            })
            .collect();
        object["status"]["conditions"] = conditions.into();
        let encoded = Encoded::new(&object, namespaces);
        if !encoded.same_as(&stored) {
            self.state.store.put(key, encoded);
        }
    }

    fn is_empty_namespace(&self, name: &str) -> bool {
        let registry = &self.state.registry;
        registry.all().filter(|resource| resource.namespaced).all(|resource| {
            range(self.state.store.objects(), resource.storage, Some(name), None).next().is_none()
        })
    }
}
