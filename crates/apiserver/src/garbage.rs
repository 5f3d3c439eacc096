//! What follows from a change: dependents of deleted owners, content of deleted namespaces, and definitions.
//!
//! In a cluster kube-controller-manager does this some time later. Here it is done before the request that caused it is
//! answered, in a fixed order, so that a simulation sees one history.

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use crate::delete::{DeleteOptions, Propagation};
use crate::meta::{FOREGROUND, ORPHAN};
use crate::object::{Stored, finalizers, meta_str, metadata, metadata_mut, set_finalizers};
use crate::registry::{CRD_GROUP, CRD_PLURAL, Resource};
use crate::server::Writer;
use crate::store::Key;
use crate::update::Target;

/// Something to look at once the current change is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// An object whose owners or finalizers may ask for something.
    Examine(Key),
    /// A namespace being deleted.
    Namespace(String),
    /// A CustomResourceDefinition that changed.
    Definition(Key),
}

/// What became of an owner.
enum Owner {
    /// There, or of a kind that nobody can say anything about.
    Solid,
    /// There, but deleted in the foreground: it waits for its dependents to go first.
    Waiting,
    Absent,
}

impl Writer<'_> {
    /// Does all that follows from the changes so far.
    pub(crate) fn settle(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Definition(key) => self.settle_definition(&key),
                _ if !self.controllers => {}
                Work::Namespace(name) => self.empty_namespace(&name),
                Work::Examine(key) => self.examine(&key),
            }
        }
    }

    pub(crate) fn follow_up_put(
        &mut self,
        key: &Key,
        resource: &Resource,
        before: Option<&Stored>,
        after: &Stored,
        object: &Value,
    ) {
        let new_owners = !after.facts.owners.is_empty()
            && before.is_none_or(|before| before.facts.owners != after.facts.owners);
        let has_owners = metadata(object).is_some_and(|m| m.contains_key("ownerReferences"));
        let collects =
            after.facts.deleting && finalizers(object).iter().any(|f| matches!(*f, ORPHAN | FOREGROUND));
        if new_owners || collects || (before.is_none() && has_owners) {
            self.work.push_back(Work::Examine(key.clone()));
        }
        if resource.is("", "namespaces") && after.facts.deleting {
            self.state.terminating.insert(key.name().to_owned());
            self.work.push_back(Work::Namespace(key.name().to_owned()));
        }
        if resource.is(CRD_GROUP, CRD_PLURAL) {
            self.work.push_back(Work::Definition(key.clone()));
        }
    }

    pub(crate) fn follow_up_remove(&mut self, key: &Key, resource: &Resource, gone: &Stored) {
        let dependents = gone.facts.uid.map(|uid| self.state.store.dependents(uid)).unwrap_or_default();
        self.work.extend(dependents.into_iter().map(Work::Examine));
        if !gone.facts.owners.is_empty() {
            // An owner deleted in the foreground may have waited for this one.
            let object = gone.to_value(resource);
            for reference in owner_references(&object) {
                if let Some((owner, _)) = self.find_owner(reference, key.namespace()) {
                    self.work.push_back(Work::Examine(owner));
                }
            }
        }
        if resource.is("", "namespaces") {
            self.state.terminating.remove(key.name());
        }
        if resource.namespaced && self.state.terminating.contains(key.namespace()) {
            let work = Work::Namespace(key.namespace().to_owned());
            if !self.work.contains(&work) {
                self.work.push_back(work);
            }
        }
        if resource.is(CRD_GROUP, CRD_PLURAL) {
            self.work.push_back(Work::Definition(key.clone()));
        }
        if resource.is_custom()
            && let Some(definition) = self.definition_key(resource)
            && self.state.store.get(&definition).is_some_and(|definition| definition.facts.deleting)
        {
            self.work.push_back(Work::Definition(definition));
        }
    }

    /// The owner a reference names, if it is there and still the same.
    fn find_owner(&self, reference: &Value, namespace: &str) -> Option<(Key, Arc<Stored>)> {
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let resource = self.state.registry.by_kind(text("apiVersion"), text("kind"))?;
        let namespace = if resource.namespaced { namespace } else { "" };
        let key = Key::new(resource.storage, namespace, text("name"));
        let stored = self.state.store.get(&key)?;
        let same = stored.facts.uid.is_some_and(|uid| uid.to_string() == text("uid"));
        same.then(|| (key, Arc::clone(stored)))
    }

    fn judge(&self, reference: &Value, namespace: &str) -> Owner {
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let Some(resource) = self.state.registry.by_kind(text("apiVersion"), text("kind")) else {
            return Owner::Solid;
        };
        if resource.namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot have a namespaced owner; such a reference is never acted on.
            return Owner::Solid;
        }
        match self.find_owner(reference, namespace) {
            None => Owner::Absent,
            Some((_, stored)) if stored.facts.deleting => {
                let owner = stored.to_value(resource);
                if finalizers(&owner).contains(&FOREGROUND) { Owner::Waiting } else { Owner::Solid }
            }
            Some(_) => Owner::Solid,
        }
    }

    fn examine(&mut self, key: &Key) {
        let Some(stored) = self.get(key) else { return };
        let Some(resource) = self.state.registry.of_storage(key.storage).cloned() else { return };
        let object = stored.to_value(&resource);
        if stored.facts.deleting {
            let current = finalizers(&object);
            if current.contains(&ORPHAN) {
                self.orphan_dependents(key, &resource, object);
            } else if current.contains(&FOREGROUND) {
                self.wait_for_dependents(key, &resource, object, stored.facts.uid);
            }
            return;
        }
        self.collect(key, &resource, object);
    }

    /// Deletes an object that no owner holds any more, and takes away references to owners that are gone.
    fn collect(&mut self, key: &Key, resource: &Arc<Resource>, mut object: Value) {
        let references: Vec<Value> = owner_references(&object).cloned().collect();
        if references.is_empty() {
            return;
        }
        let judged: Vec<(Value, Owner)> = references
            .into_iter()
            .map(|reference| {
                let owner = self.judge(&reference, key.namespace());
                (reference, owner)
            })
            .collect();
        let waiting = judged.iter().any(|(_, owner)| matches!(owner, Owner::Waiting));
        let solid: Vec<Value> = judged
            .iter()
            .filter(|(_, owner)| matches!(owner, Owner::Solid))
            .map(|(reference, _)| reference.clone())
            .collect();
        if solid.len() == judged.len() {
            return;
        }
        if !solid.is_empty() {
            metadata_mut(&mut object).insert("ownerReferences".into(), solid.into());
            self.put(key, resource, &object);
            return;
        }
        let has_dependents = self
            .get(key)
            .and_then(|stored| stored.facts.uid)
            .is_some_and(|uid| !self.state.store.dependents(uid).is_empty());
        let propagation = if waiting && has_dependents {
            Propagation::Foreground
        } else if finalizers(&object).contains(&ORPHAN) {
            Propagation::Orphan
        } else if finalizers(&object).contains(&FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        let target = Target { resource, namespace: key.namespace(), name: key.name(), subresource: None };
        // The object was there a moment ago and nothing came in between.
        let _ = self.delete(target, &options);
    }

    /// Lets the dependents of an owner go, then the owner's orphan finalizer.
    fn orphan_dependents(&mut self, key: &Key, resource: &Resource, mut owner: Value) {
        let uid = meta_str(&owner, "uid").to_owned();
        let dependents =
            Uuid::parse_str(&uid).map(|uid| self.state.store.dependents(uid)).unwrap_or_default();
        for dependent in dependents {
            let Some(found) = self.state.registry.of_storage(dependent.storage).cloned() else { continue };
            let Some(stored) = self.get(&dependent) else { continue };
            let mut object = stored.to_value(&found);
            let kept: Vec<Value> = owner_references(&object)
                .filter(|reference| reference.get("uid").and_then(Value::as_str) != Some(uid.as_str()))
                .cloned()
                .collect();
            let metadata = metadata_mut(&mut object);
            if kept.is_empty() {
                metadata.remove("ownerReferences");
            } else {
                metadata.insert("ownerReferences".into(), kept.into());
            }
            self.put(&dependent, &found, &object);
        }
        release(&mut owner, ORPHAN);
        self.store_or_release(key, resource, &owner);
    }

    /// Deletes the dependents of an owner that goes last, and the owner's finalizer once none of them blocks it.
    fn wait_for_dependents(&mut self, key: &Key, resource: &Resource, mut owner: Value, uid: Option<Uuid>) {
        let dependents = uid.map(|uid| self.state.store.dependents(uid)).unwrap_or_default();
        let uid = meta_str(&owner, "uid").to_owned();
        let mut blocked = false;
        for dependent in &dependents {
            let Some(found) = self.state.registry.of_storage(dependent.storage).cloned() else { continue };
            let Some(stored) = self.get(dependent) else { continue };
            let object = stored.to_value(&found);
            blocked |= owner_references(&object).any(|reference| {
                reference.get("uid").and_then(Value::as_str) == Some(uid.as_str())
                    && reference.get("blockOwnerDeletion") == Some(&Value::Bool(true))
            }) && dependent != key;
            if !stored.facts.deleting {
                self.work.push_back(Work::Examine(dependent.clone()));
            }
        }
        if !blocked {
            release(&mut owner, FOREGROUND);
            self.store_or_release(key, resource, &owner);
        }
    }
}

fn owner_references(object: &Value) -> impl Iterator<Item = &Value> {
    metadata(object).and_then(|m| m.get("ownerReferences")).and_then(Value::as_array).into_iter().flatten()
}

fn release(object: &mut Value, finalizer: &str) {
    let kept = finalizers(object).into_iter().filter(|f| *f != finalizer).map(str::to_owned).collect();
    set_finalizers(object, kept);
}
