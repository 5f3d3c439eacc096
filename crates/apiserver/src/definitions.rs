//! CustomResourceDefinitions at work: an established one has its resources served, a deleted one takes them along. Watches of a version
//! that is served no longer end.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::answer::Written;
use crate::crd;
use crate::delete::{DeleteOptions, Deletion, Propagation};
use crate::environment::rfc3339;
use crate::object::{Encoded, Stored, finalizers, metadata_mut, object_mut, set_finalizers};
use crate::registry::{CRD_GROUP, CRD_PLURAL, Registry, Resource};
use crate::server::Writer;
use crate::status::ApiError;
use crate::store::{Key, range};
use crate::update::Target;

/// Holds a definition until its objects are gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Writer<'_> {
    /// Where the definition of a custom resource is kept.
    pub(crate) fn definition_key(&self, resource: &Resource) -> Option<Key> {
        let definitions = self.state.registry.preferred(CRD_GROUP, CRD_PLURAL)?;
        Some(Key::new(definitions.storage, "", &format!("{}.{}", resource.plural, resource.group)))
    }

    /// Brings what is served in line with a definition that was created, changed or deleted.
    pub(crate) fn settle_definition(&mut self, key: &Key) {
        let Some(resource) = self.state.registry.of_storage(key.storage).cloned() else { return };
        let Some((plural, group)) = key.name().split_once('.') else { return };
        let Some(stored) = self.get(key) else {
            self.serve((group, plural), |registry| registry.stop_custom(group, plural));
            return;
        };
        let mut definition = stored.to_value(&resource);
        if stored.facts.deleting {
            self.delete_instances(key, &resource, group, plural, definition);
            return;
        }
        let others: Vec<Value> = range(self.state.store.objects(), key.storage, None, None)
            .filter(|(other, _)| *other != key)
            .map(|(_, other)| other.to_value(&resource))
            .collect();
        let others: Vec<&Value> = others.iter().collect();
        crd::establish(&mut definition, &others, &rfc3339(self.environment.now()));
        let encoded = Encoded::new(&definition, &resource);
        if !encoded.same_as(&stored) {
            self.state.store.put(key.clone(), encoded);
        }
        if is_established(&definition)
            && let Ok(versions) = crd::versions(&definition)
        {
            let warnings = deprecations(&definition);
            self.serve((group, plural), |registry| {
                registry.serve_custom(group, plural, versions, &warnings);
            });
            self.reread_instances(group, plural);
        }
    }

    /// Objects are read with the current schema, whatever they were written with: pruned and defaulted by it.
    fn reread_instances(&mut self, group: &str, plural: &str) {
        let Some(custom) = self.state.registry.preferred(group, plural).cloned() else { return };
        self.state.store.begin(custom.storage);
        let all: Vec<(Key, Arc<Stored>)> = range(self.state.store.objects(), custom.storage, None, None)
            .map(|(key, stored)| (key.clone(), Arc::clone(stored)))
            .collect();
        for (key, stored) in all {
            let mut object = stored.to_value(&custom);
            let encoded = match crate::decode::conform(&custom, &mut object) {
                Ok(_) => Encoded::new(&object, &custom),
                Err(_) => continue,
            };
            if !encoded.same_as(&stored) {
                self.state.store.reread(key, encoded);
            }
        }
    }

    fn serve(&mut self, (group, plural): (&str, &str), change: impl FnOnce(&mut Registry)) {
        let before = self.state.registry.versions_of(group, plural);
        change(Arc::make_mut(&mut self.state.registry));
        if !before.is_subset(&self.state.registry.versions_of(group, plural)) {
            let unserved = &self.state.unserved;
            unserved.ring(unserved.number() + 1);
        }
    }

    /// The first step of a definition's end; its objects follow.
    pub(crate) fn terminate_definition(
        &mut self,
        key: &Key,
        resource: &Resource,
        existing: &Arc<Stored>,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        let mut object = existing.to_value(resource);
        let now = rfc3339(self.environment.now());
        metadata_mut(&mut object).insert("deletionTimestamp".into(), now.clone().into());
        let mut held: Vec<String> = finalizers(&object).into_iter().map(str::to_owned).collect();
        if !held.iter().any(|finalizer| finalizer == CLEANUP) {
            held.push(CLEANUP.to_owned());
        }
        set_finalizers(&mut object, held);
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        set_terminating(&mut object, "InstanceDeletionPending", message, &now);
        if options.dry_run {
            return Ok(Deletion::Object(Written::Unstored(object)));
        }
        let stored = self.put(key, resource, &object);
        Ok(Deletion::Object(Written::Stored(stored)))
    }

    fn delete_instances(
        &mut self,
        key: &Key,
        resource: &Resource,
        group: &str,
        plural: &str,
        mut definition: Value,
    ) {
        if !finalizers(&definition).contains(&CLEANUP) {
            return;
        }
        let served = self.state.registry.preferred(group, plural).cloned().filter(|found| found.is_custom());
        if let Some(custom) = &served {
            let all: Vec<Key> = range(self.state.store.objects(), custom.storage, None, None)
                .filter(|(_, object)| !object.facts.deleting)
                .map(|(key, _)| key.clone())
                .collect();
            let options =
                DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
            for instance in all {
                let target = Target {
                    resource: custom,
                    namespace: instance.namespace(),
                    name: instance.name(),
                    subresource: None,
                };
                // An object that is gone already is what we want.
                let _ = self.delete(target, &options);
            }
            if range(self.state.store.objects(), custom.storage, None, None).next().is_some() {
                let now = rfc3339(self.environment.now());
                let message = "CustomResource deletion is in progress";
                set_terminating(&mut definition, "InstanceDeletionInProgress", message, &now);
                let encoded = Encoded::new(&definition, resource);
                if self.get(key).is_some_and(|stored| !encoded.same_as(&stored)) {
                    self.state.store.put(key.clone(), encoded);
                }
                return;
            }
        }
        let kept = finalizers(&definition).into_iter().filter(|f| *f != CLEANUP).map(str::to_owned).collect();
        set_finalizers(&mut definition, kept);
        self.store_or_release(key, resource, &definition);
    }
}

/// What clients of deprecated versions are warned with, by version.
fn deprecations(definition: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let group = text(definition, "/spec/group").unwrap_or_default();
    let kind = text(definition, "/spec/names/kind").unwrap_or_default();
    let versions: Vec<&Value> =
        definition.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten().collect();
    // A newer version is recommended if one is served and not deprecated itself.
    let mut newer: Vec<String> = versions
        .iter()
        .filter(|version| version["deprecated"] != true && version["served"] == true)
        .filter_map(|version| text(version, "/name"))
        .collect();
    crate::registry::sort_versions(&mut newer);
    let warned = versions.iter().filter(|version| version["deprecated"] == true).filter_map(|version| {
        let name = text(version, "/name")?;
        let warning = text(version, "/deprecationWarning").unwrap_or_else(|| {
            let better = newer.first().filter(|better| crate::registry::is_newer(better, &name));
            match better {
                Some(better) => format!("{group}/{name} {kind} is deprecated; use {group}/{better} {kind}"),
                None => format!("{group}/{name} {kind} is deprecated"),
            }
        });
        Some((name, warning))
    });
    warned.collect()
}

fn conditions(definition: &mut Value) -> &mut Vec<Value> {
    let status = object_mut(object_mut(definition).entry("status").or_insert_with(|| json!({})));
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    match list {
        Value::Array(list) => list,
        _ => unreachable!("just made an array"),
    }
}

fn set_terminating(definition: &mut Value, reason: &str, message: &str, now: &str) {
    let list = conditions(definition);
    let since = list
        .iter()
        .find(|condition| condition["type"] == "Terminating")
        .and_then(|condition| condition["lastTransitionTime"].as_str())
        .unwrap_or(now)
        .to_owned();
    list.retain(|condition| condition["type"] != "Terminating");
    list.push(json!({
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }));
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}
