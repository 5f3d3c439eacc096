//! Writing objects with Karpenter's discipline: a JSON merge patch of what changed, with or without a lock on the version
//! that was read; an object that is gone is no error, and a version that was overtaken is a reason to look again, not to fail.

use std::fmt::Debug;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// When to come again after a write that was overtaken. The watch that tells of the newer version wakes earlier; until it does,
/// another attempt would only be refused again.
pub const OVERTAKEN: Duration = Duration::from_secs(1);

/// Whether a write depends on the object being what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Only over the version that was read.
    Optimistic,
    /// Over any version: what changed is all that matters.
    None,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Written<K> {
    /// There was nothing to write, and nothing was asked.
    Unchanged,
    /// Written; as the server has it now.
    Done(Box<K>),
    /// The object does not exist (any more).
    Gone,
    /// The object changed in between: look again. Only where the write depends on that.
    Conflict,
}

impl<K> Written<K> {
    /// Whether the caller should come again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict)
    }
}

/// Writes what differs between `before` and `after`, but for the status.
pub async fn patch<K>(api: &Api<K>, before: &K, after: &K, lock: Lock) -> Result<Written<K>, kube::Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let Some(patch) = difference(before, after, lock, |key| key != "status")? else {
        return Ok(Written::Unchanged);
    };
    let answer = api.patch(&name(before), &PatchParams::default(), &Patch::Merge(patch)).await;
    settle(answer, lock)
}

/// Writes what differs between the status of `before` and `after`.
pub async fn patch_status<K>(
    api: &Api<K>,
    before: &K,
    after: &K,
    lock: Lock,
) -> Result<Written<K>, kube::Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let Some(patch) = difference(before, after, lock, |key| key == "status")? else {
        return Ok(Written::Unchanged);
    };
    let answer = api.patch_status(&name(before), &PatchParams::default(), &Patch::Merge(patch)).await;
    settle(answer, lock)
}

/// Deletes this very object, not another of its name that came after; whether there was anything to delete.
pub async fn delete<K>(api: &Api<K>, object: &K) -> Result<bool, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let preconditions = Preconditions { uid: object.meta().uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&name(object), &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        // Another of its name, or the server could not do it now.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            match api.get_metadata_opt(&name(object)).await? {
                Some(there) if there.metadata.uid == object.meta().uid => Err(kube::Error::Api(status)),
                _ => Ok(false),
            }
        }
        Err(error) => Err(error),
    }
}

/// What became of an object that was to go as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It goes.
    Yes,
    /// It was gone already.
    Gone,
    /// It was changed since: what was decided about it may hold no longer, look again.
    Conflict,
}

/// Deletes an object as it was read.
pub async fn delete_unchanged<K>(api: &Api<K>, object: &K) -> Result<Deleted, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let meta = object.meta();
    let preconditions =
        Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&name(object), &params).await {
        Ok(_) => Ok(Deleted::Yes),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Deleted::Gone),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Deleted::Conflict),
        Err(error) => Err(error),
    }
}

fn name<K: Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}

fn settle<K>(result: Result<K, kube::Error>, lock: Lock) -> Result<Written<K>, kube::Error> {
    match result {
        Ok(object) => Ok(Written::Done(Box::new(object))),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Written::Gone),
        // Without a lock nothing was overtaken: the server could not do it now, and nobody looks again unless told to.
        Err(kube::Error::Api(status)) if status.code == 409 && lock == Lock::Optimistic => {
            tracing::debug!(error = %status.message, "overtaken by another write");
            Ok(Written::Conflict)
        }
        Err(error) => Err(error),
    }
}

fn difference<K: Resource + Serialize>(
    before: &K,
    after: &K,
    lock: Lock,
    part: impl Fn(&str) -> bool,
) -> Result<Option<Value>, kube::Error> {
    let json = |object: &K| serde_json::to_value(object).map_err(kube::Error::SerdeError);
    let Some(Value::Object(changes)) = merge_difference(&json(before)?, &json(after)?) else {
        return Ok(None);
    };
    let mut changes: Map<String, Value> = changes.into_iter().filter(|(key, _)| part(key)).collect();
    if changes.is_empty() {
        return Ok(None);
    }
    if lock == Lock::Optimistic {
        let metadata = changes.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        metadata["resourceVersion"] = before.meta().resource_version.clone().into();
    }
    Ok(Some(Value::Object(changes)))
}

/// The merge patch (RFC 7386) that makes `after` of `before`; none if they are the same.
pub fn merge_difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(known) => {
                if let Some(change) = merge_difference(known, value) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn node(edit: impl FnOnce(&mut Node)) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some("n".to_owned());
        node.metadata.resource_version = Some("7".to_owned());
        edit(&mut node);
        node
    }

    #[test]
    fn a_patch_holds_what_changed_in_its_part_and_the_version_if_locked() {
        let before = node(|node| node.metadata.labels = Some([("gone".to_owned(), "x".to_owned())].into()));
        let after = node(|node| {
            node.metadata.labels = Some([("new".to_owned(), "y".to_owned())].into());
            node.status.get_or_insert_default().phase = Some("Running".to_owned());
        });
        let main = |lock| difference(&before, &after, lock, |key| key != "status").expect("JSON");
        let labels = json!({"gone": null, "new": "y"});
        assert_eq!(main(Lock::None), Some(json!({"metadata": {"labels": labels}})));
        assert_eq!(
            main(Lock::Optimistic),
            Some(json!({"metadata": {"labels": labels, "resourceVersion": "7"}}))
        );
        let status = difference(&before, &after, Lock::Optimistic, |key| key == "status").expect("JSON");
        assert_eq!(
            status,
            Some(json!({"metadata": {"resourceVersion": "7"}, "status": {"phase": "Running"}}))
        );
        assert_eq!(
            difference(&after, &after, Lock::Optimistic, |_| true).expect("JSON"),
            None,
            "nothing to write"
        );
    }

    #[test]
    fn a_refused_write_without_a_lock_is_an_error_so_that_somebody_looks_again() {
        let refused = || {
            let status = kube::core::Status::failure("try again", "Conflict").with_code(409);
            Err::<Node, _>(kube::Error::Api(status.boxed()))
        };
        assert_eq!(settle(refused(), Lock::Optimistic).expect("no error"), Written::Conflict);
        assert!(settle(refused(), Lock::None).is_err());
    }

    fn merged(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let target = target.as_object_mut().expect("an object");
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merged(target.entry(key).or_insert(Value::Null), value);
            }
        }
    }

    fn objects() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..3).prop_map(Value::from),
            Just(json!(["a"]))
        ];
        let tree = leaf.prop_recursive(3, 16, 4, |inner| {
            prop::collection::btree_map("[a-d]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        });
        prop::collection::btree_map("[a-d]", tree, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn the_patch_makes_the_one_of_the_other(before in objects(), after in objects()) {
            let mut result = before.clone();
            if let Some(patch) = merge_difference(&before, &after) {
                merged(&mut result, &patch);
            }
            prop_assert_eq!(result, after);
        }
    }
}
