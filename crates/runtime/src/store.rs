//! The objects of one kind as last seen by an informer: by key in order, and by what they refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use tokio::sync::Notify;

use crate::object_key::ObjectKey;
use crate::sync::{read, write};

/// Extracts what an object can be found by; several values or none are fine.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

/// The objects of a kind; clones are handles to the same store. Only its informer writes.
pub struct Store<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    objects: RwLock<Objects<K>>,
    synced: AtomicBool,
    /// Wakes whoever waits for the first list in the order they came (a `watch` channel would do so in any order).
    sync: Notify,
}

struct Objects<K> {
    by_key: BTreeMap<ObjectKey, Arc<K>>,
    /// Objects that exist and cannot be read.
    unreadable: BTreeSet<ObjectKey>,
    indexes: BTreeMap<&'static str, Index<K>>,
}

struct Index<K> {
    values_of: IndexFn<K>,
    keys: BTreeMap<String, BTreeSet<ObjectKey>>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("len", &self.len()).field("synced", &self.is_synced()).finish()
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Store<K> {
    /// An empty store that is not synced.
    pub fn new() -> Self {
        let objects =
            Objects { by_key: BTreeMap::new(), unreadable: BTreeSet::new(), indexes: BTreeMap::new() };
        Self {
            shared: Arc::new(Shared {
                objects: RwLock::new(objects),
                synced: AtomicBool::new(false),
                sync: Notify::new(),
            }),
        }
    }

    /// Makes objects findable by what `values_of` extracts.
    pub fn add_index(&self, name: &'static str, values_of: IndexFn<K>) {
        let mut objects = write(&self.shared.objects);
        let mut index = Index { values_of, keys: BTreeMap::new() };
        for (key, object) in &objects.by_key {
            index.add(key, object);
        }
        objects.indexes.insert(name, index);
    }

    /// The object of this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        read(&self.shared.objects).by_key.get(key).cloned()
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        read(&self.shared.objects).by_key.values().cloned().collect()
    }

    /// The objects an index has under this value, by namespace and name. Empty values are no values: nothing is found by them.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let objects = read(&self.shared.objects);
        let keys = objects.indexes.get(index).and_then(|index| index.keys.get(value));
        debug_assert!(objects.indexes.contains_key(index), "no index {index}");
        keys.into_iter().flatten().filter_map(|key| objects.by_key.get(key).cloned()).collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        read(&self.shared.objects).by_key.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is complete and everyone who subscribed has seen it.
    pub fn is_synced(&self) -> bool {
        self.shared.synced.load(Ordering::Acquire)
    }

    /// Whether all objects of the kind are here, none left out because it cannot be read: what is not here does not exist.
    pub fn is_complete(&self) -> bool {
        self.is_synced() && read(&self.shared.objects).unreadable.is_empty()
    }

    /// Notes that an object exists and cannot be read.
    pub(crate) fn leave_out(&self, key: ObjectKey) {
        write(&self.shared.objects).unreadable.insert(key);
    }

    /// Waits until [`is_synced`](Self::is_synced).
    pub async fn wait_synced(&self) {
        let mut sync = pin!(self.shared.sync.notified());
        // In line before looking, so that it is not missed in between.
        sync.as_mut().enable();
        if !self.is_synced() {
            sync.await;
        }
    }

    pub(crate) fn mark_synced(&self) {
        self.shared.synced.store(true, Ordering::Release);
        self.shared.sync.notify_waiters();
    }

    /// Puts an object in; the one it replaces comes back.
    pub(crate) fn insert(&self, key: ObjectKey, object: Arc<K>) -> Option<Arc<K>> {
        let mut objects = write(&self.shared.objects);
        objects.unreadable.remove(&key);
        let old = objects.by_key.insert(key.clone(), Arc::clone(&object));
        for index in objects.indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.add(&key, &object);
        }
        old
    }

    pub(crate) fn remove(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let mut objects = write(&self.shared.objects);
        objects.unreadable.remove(key);
        let old = objects.by_key.remove(key)?;
        for index in objects.indexes.values_mut() {
            index.remove(key, &old);
        }
        Some(old)
    }

    /// Of all objects that are known to exist.
    pub(crate) fn keys(&self) -> BTreeSet<ObjectKey> {
        let objects = read(&self.shared.objects);
        objects.by_key.keys().chain(&objects.unreadable).cloned().collect()
    }
}

impl<K> Index<K> {
    fn add(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values_of)(object).into_iter().filter(|value| !value.is_empty()) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values_of)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(name: &str, node: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        Arc::new(pod)
    }

    fn names(pods: Vec<Arc<Pod>>) -> Vec<String> {
        pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect()
    }

    fn put(store: &Store<Pod>, name: &str, node: &str) {
        store.insert(ObjectKey::cluster(name), pod(name, node));
    }

    #[test]
    fn what_exists_and_cannot_be_read_is_missed_until_it_can_or_is_gone() {
        let store: Store<Pod> = Store::new();
        assert!(!store.is_complete(), "not listed yet");
        store.mark_synced();
        for mended in [true, false] {
            store.leave_out(ObjectKey::cluster("a"));
            assert!(!store.is_complete());
            assert!(store.keys().contains(&ObjectKey::cluster("a")), "its end is noticed by the next list");
            match mended {
                true => put(&store, "a", "n1"),
                false => drop(store.remove(&ObjectKey::cluster("a"))),
            }
            assert!(store.is_complete());
        }
    }

    #[test]
    fn an_index_follows_every_change_and_never_finds_by_an_empty_value() {
        let store = Store::new();
        put(&store, "early", "n1");
        store.add_index("nodeName", |pod: &Pod| {
            pod.spec.iter().filter_map(|spec| spec.node_name.clone()).collect()
        });
        put(&store, "b", "n1");
        put(&store, "a", "n1");
        put(&store, "unbound", "");
        assert_eq!(names(store.by_index("nodeName", "n1")), ["a", "b", "early"]);
        assert!(store.by_index("nodeName", "").is_empty());
        put(&store, "a", "n2");
        store.remove(&ObjectKey::cluster("b"));
        assert_eq!(names(store.by_index("nodeName", "n1")), ["early"]);
        assert_eq!(names(store.by_index("nodeName", "n2")), ["a"]);
        assert_eq!(names(store.list()), ["a", "early", "unbound"]);
    }
}
