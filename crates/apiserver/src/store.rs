//! All objects, one revision for all of them, and what happened lately to each resource.
//!
//! The store knows nothing of Kubernetes semantics: it puts, removes, remembers and tells. It is synchronous; whoever
//! shares it puts a lock around it. A clone of the map is a consistent snapshot and costs nothing, and an earlier state
//! of one resource is found by walking its event log backwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use uuid::Uuid;

use crate::bell::{Bell, Listener};
use crate::object::{Encoded, Stored};

/// Which collection an object is in: all served versions of a resource share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StorageId(pub(crate) u32);

/// Where an object is. Orders as etcd's keys do, `namespace/name` compared bytewise, because that is the order of lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) storage: StorageId,
    pub(crate) path: Arc<str>,
}

impl Key {
    /// `namespace` is empty for cluster-scoped objects.
    pub(crate) fn new(storage: StorageId, namespace: &str, name: &str) -> Self {
        let path = if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() };
        Self { storage, path }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.path.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.path.split_once('/').map_or(&self.path, |(_, name)| name)
    }
}

pub(crate) type Objects = OrdMap<Key, Arc<Stored>>;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

/// One entry of a resource's log.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) change: Change,
    pub(crate) path: Arc<str>,
    /// The object after the change; for a deletion the object that went.
    pub(crate) object: Arc<Stored>,
    /// The object before a modification.
    pub(crate) previous: Option<Arc<Stored>>,
}

/// The position asked for is older than what is still remembered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooOld;

struct EventLog {
    events: VecDeque<Event>,
    /// Revision of the newest event that has been forgotten.
    floor: u64,
    /// Rings with the revision of the newest event.
    bell: Bell,
}

pub(crate) struct Store {
    objects: Objects,
    revision: u64,
    logs: BTreeMap<StorageId, EventLog>,
    /// Owner uid to the objects that name it in `ownerReferences`.
    dependents: BTreeMap<Uuid, BTreeSet<Key>>,
    history_events: usize,
}

impl Store {
    /// `history_events` bounds the log of each resource.
    pub(crate) fn new(history_events: usize) -> Self {
        Self {
            objects: Objects::new(),
            // etcd's first revision; 0 means "any" to clients.
            revision: 1,
            logs: BTreeMap::new(),
            dependents: BTreeMap::new(),
            history_events,
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    /// Stores a new or changed object under the next revision.
    pub(crate) fn put(&mut self, key: Key, object: Encoded) -> Arc<Stored> {
        self.revision += 1;
        let object = Arc::new(object.at(self.revision));
        let previous = self.objects.insert(key.clone(), Arc::clone(&object));
        if let Some(previous) = previous.as_deref().filter(|p| p.facts.owners != object.facts.owners) {
            self.forget_owners(&key, previous);
        }
        for owner in &object.facts.owners {
            self.dependents.entry(*owner).or_default().insert(key.clone());
        }
        let change = if previous.is_some() { Change::Modified } else { Change::Added };
        let event =
            Event { revision: self.revision, change, path: key.path, object: Arc::clone(&object), previous };
        self.record(key.storage, event);
        object
    }

    /// Removes an object under the next revision, which is given back with it.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<(u64, Arc<Stored>)> {
        let object = self.objects.remove(key)?;
        self.revision += 1;
        self.forget_owners(key, &object);
        let event = Event {
            revision: self.revision,
            change: Change::Deleted,
            path: Arc::clone(&key.path),
            object: Arc::clone(&object),
            previous: None,
        };
        self.record(key.storage, event);
        Some((self.revision, object))
    }

    fn forget_owners(&mut self, key: &Key, object: &Stored) {
        for owner in &object.facts.owners {
            if let Some(keys) = self.dependents.get_mut(owner) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }

    fn record(&mut self, storage: StorageId, event: Event) {
        let limit = self.history_events;
        let log = self.log(storage);
        let revision = event.revision;
        log.events.push_back(event);
        while log.events.len() > limit {
            if let Some(gone) = log.events.pop_front() {
                log.floor = gone.revision;
            }
        }
        log.bell.ring(revision);
    }

    fn log(&mut self, storage: StorageId) -> &mut EventLog {
        self.logs.entry(storage).or_insert_with(|| EventLog {
            events: VecDeque::new(),
            floor: 0,
            bell: Bell::default(),
        })
    }

    /// The objects that name `owner` as theirs, in key order.
    pub(crate) fn dependents(&self, owner: Uuid) -> Vec<Key> {
        self.dependents.get(&owner).into_iter().flatten().cloned().collect()
    }

    /// Starts the log of a resource that was not served until now: nothing is known of the time before.
    pub(crate) fn begin(&mut self, storage: StorageId) {
        let revision = self.revision;
        if !self.logs.contains_key(&storage) {
            self.log(storage).floor = revision;
        }
    }

    /// Replaces an object by another reading of the same version: no event, no new revision.
    pub(crate) fn reread(&mut self, key: Key, object: Encoded) {
        if let Some(stored) = self.objects.get(&key) {
            let revision = stored.revision;
            self.objects.insert(key, Arc::new(object.at(revision)));
        }
    }

    /// Wakes whoever waits for a change of this resource.
    pub(crate) fn subscribe(&mut self, storage: StorageId) -> Listener {
        self.log(storage).bell.listen()
    }

    /// Up to `limit` events behind a position.
    pub(crate) fn events_after(
        &self,
        storage: StorageId,
        revision: u64,
        limit: usize,
    ) -> Result<Vec<Event>, TooOld> {
        let Some(log) = self.logs.get(&storage) else { return Ok(Vec::new()) };
        if revision < log.floor {
            return Err(TooOld);
        }
        let start = log.events.partition_point(|event| event.revision <= revision);
        Ok(log.events.range(start..).take(limit).cloned().collect())
    }

    /// The events of every resource behind a position; resources without any are left out.
    pub(crate) fn all_events_after(
        &self,
        revision: u64,
    ) -> impl Iterator<Item = (StorageId, Result<Vec<Event>, TooOld>)> + '_ {
        let newer = self.logs.iter().filter(move |(_, log)| log.bell.number() > revision);
        newer.map(move |(storage, _)| (*storage, self.events_after(*storage, revision, usize::MAX)))
    }

    /// The objects as they were at an earlier revision; only those of `storage` are turned back.
    pub(crate) fn objects_at(&self, storage: StorageId, revision: u64) -> Result<Objects, TooOld> {
        let mut objects = self.objects.clone();
        let Some(log) = self.logs.get(&storage) else { return Ok(objects) };
        if revision < log.floor {
            return Err(TooOld);
        }
        for event in log.events.iter().rev().take_while(|event| event.revision > revision) {
            let key = Key { storage, path: Arc::clone(&event.path) };
            match (event.change, &event.previous) {
                (Change::Added, _) => drop(objects.remove(&key)),
                (Change::Modified, Some(previous)) => drop(objects.insert(key, Arc::clone(previous))),
                (Change::Modified, None) => {}
                (Change::Deleted, _) => drop(objects.insert(key, Arc::clone(&event.object))),
            }
        }
        Ok(objects)
    }
}

/// The objects of one resource, of one namespace or of all, in key order, from `start` on (a path inside the range).
pub(crate) fn range<'a>(
    objects: &'a Objects,
    storage: StorageId,
    namespace: Option<&str>,
    start: Option<&str>,
) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> {
    let key = |path: String| Key { storage, path: path.into() };
    // '0' is the byte behind '/', so this is behind every path of the namespace.
    let (first, end) = match namespace {
        Some(namespace) => (format!("{namespace}/"), Bound::Excluded(key(format!("{namespace}0")))),
        None => (String::new(), Bound::Excluded(Key { storage: StorageId(storage.0 + 1), path: "".into() })),
    };
    let first = format!("{first}{}", start.unwrap_or_default());
    objects.range((Bound::Included(key(first)), end))
}
