//! The server itself: state behind one lock, and the writer that every change goes through.
//!
//! A request that writes holds the lock from its first look to its last consequence, so there is no interleaving to
//! reason about, no retry, and no half-applied write. Requests that read take a snapshot and let go.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::bell::Bell;
use crate::builtin::Lookup;
use crate::environment::Environment;
use crate::garbage::Work;
use crate::object::{Encoded, Stored};
use crate::registry::{Registry, Resource};
use crate::service::ApiService;
use crate::snapshot::Snapshot;
use crate::store::{self, Key, Store};

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many events of each resource are remembered for watches that come back and lists of earlier states.
    pub history_events: usize,
    /// Whether the server also does what kube-controller-manager does for every object: collecting the garbage of
    /// `ownerReferences` and emptying namespaces. Without it the server behaves as a lone kube-apiserver.
    pub controllers: bool,
    /// The token every request has to bear, if one is asked for.
    pub bearer_token: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { history_events: 16 * 1024, controllers: true, bearer_token: None }
    }
}

/// A Kubernetes API server in memory. Clones are handles to the same server.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

struct Shared {
    environment: Box<dyn Environment>,
    options: Options,
    state: Mutex<State>,
}

/// Everything the server knows.
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    /// Namespaces being deleted.
    pub(crate) terminating: BTreeSet<String>,
    /// Rings when a version is served no longer: its watches end.
    pub(crate) unserved: Bell,
}

impl ApiServer {
    /// A server with the built-in kinds and the four namespaces every cluster starts with.
    pub fn new(environment: impl Environment, options: Options) -> Self {
        let state = State {
            store: Store::new(options.history_events.max(1)),
            registry: Arc::new(Registry::new()),
            terminating: BTreeSet::new(),
            unserved: Bell::default(),
        };
        let shared = Shared { environment: Box::new(environment), options, state: Mutex::new(state) };
        let server = Self { shared: Arc::new(shared) };
        server.write(|writer| {
            writer.create_first_namespaces();
            writer.create_first_objects();
        });
        server
    }

    /// The server as a tower service, for `kube::Client::new` and for [`crate::serve`].
    pub fn service(&self) -> ApiService {
        ApiService::new(self.clone())
    }

    /// All objects as they are now; costs nothing and never changes.
    pub fn snapshot(&self) -> Snapshot {
        self.read(|state| Snapshot::new(state))
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn environment(&self) -> &dyn Environment {
        self.shared.environment.as_ref()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        // A panic in a handler leaves the state as the last complete step made it.
        look(&mut self.shared.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one change and everything that follows from it.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Writer<'_>) -> T) -> T {
        self.read(|state| {
            let environment = self.environment();
            let controllers = self.options().controllers;
            let mut writer = Writer { state, environment, controllers, work: VecDeque::new() };
            let result = change(&mut writer);
            writer.settle();
            result
        })
    }
}

/// The one way to change the state.
pub(crate) struct Writer<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) environment: &'a dyn Environment,
    pub(crate) controllers: bool,
    /// What follows from the changes so far and is still to be done.
    pub(crate) work: VecDeque<Work>,
}

impl Writer<'_> {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        self.state.store.get(key).cloned()
    }

    /// The resource in whose form objects are stored, unless it is `resource` itself.
    pub(crate) fn stored_form(&self, resource: &Resource) -> Option<Arc<Resource>> {
        resource.view().and_then(|_| self.state.registry.of_storage(resource.storage).cloned())
    }

    pub(crate) fn put(&mut self, key: &Key, resource: &Resource, object: &Value) -> Arc<Stored> {
        let before = self.get(key);
        let stored = self.state.store.put(key.clone(), Encoded::new(object, resource));
        self.follow_up_put(key, resource, before.as_deref(), &stored, object);
        stored
    }

    /// As [`Self::put`], but an object that stays the same keeps its version and makes no event.
    pub(crate) fn put_if_changed(&mut self, key: &Key, resource: &Resource, object: &Value) -> Arc<Stored> {
        match self.get(key) {
            Some(stored) if Encoded::new(object, resource).same_as(&stored) => stored,
            _ => self.put(key, resource, object),
        }
    }

    /// Takes an object out of the store; the answer carries the revision of its disappearance.
    pub(crate) fn remove(&mut self, key: &Key, resource: &Resource) -> Option<(u64, Arc<Stored>)> {
        let (revision, object) = self.state.store.remove(key)?;
        self.follow_up_remove(key, resource, &object);
        Some((revision, object))
    }
}

impl Lookup for State {
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = self.registry.preferred(group, plural)?;
        let stored = self.store.get(&Key::new(resource.storage, namespace, name))?;
        Some(stored.to_value(resource))
    }

    fn list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Value> {
        let Some(resource) = self.registry.preferred(group, plural) else { return Vec::new() };
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        store::range(self.store.objects(), resource.storage, namespace, None)
            .map(|(_, stored)| stored.to_value(resource))
            .collect()
    }
}
