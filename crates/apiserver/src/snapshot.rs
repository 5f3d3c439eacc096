//! A consistent, immutable view of everything in the server at one revision.

use std::sync::Arc;

use bytes::Bytes;

use crate::registry::Registry;
use crate::server::State;
use crate::store::{self, Objects};

/// All objects at one revision. Taking one costs nothing; keeping one keeps its objects alive.
#[derive(Clone)]
pub struct Snapshot {
    revision: u64,
    objects: Objects,
    registry: Arc<Registry>,
}

impl Snapshot {
    pub(crate) fn new(state: &State) -> Self {
        Self {
            revision: state.store.revision(),
            objects: state.store.objects().clone(),
            registry: Arc::clone(&state.registry),
        }
    }

    /// The revision, as in a list's `metadata.resourceVersion`.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How many objects there are, of all kinds.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there is nothing at all; a running server has at least its namespaces.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// How many bytes the serialised objects take together.
    pub fn size_bytes(&self) -> usize {
        self.objects.values().map(|object| object.size_bytes()).sum()
    }

    /// The objects of one resource (by group and plural) as JSON, in key order; none if it is not served.
    pub fn list<'a>(&'a self, group: &str, plural: &str) -> impl Iterator<Item = Bytes> + 'a {
        let resource = self.registry.preferred(group, plural);
        resource.into_iter().flat_map(|resource| {
            store::range(&self.objects, resource.storage, None, None)
                .map(|(_, stored)| stored.to_bytes(resource))
        })
    }
}
