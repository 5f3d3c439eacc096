//! What was written behind a revision, of every kind: for whoever mirrors or checks the server from inside its process.
//!
//! A client learns of changes by watching; a simulator wants them all, in order, the moment they are committed.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::object::Stored;
use crate::registry::Resource;
use crate::server::ApiServer;
use crate::store::{self, TooOld};

/// One change of one object.
#[derive(Clone)]
pub struct Change {
    revision: u64,
    path: Arc<str>,
    resource: Arc<Resource>,
    before: Option<Arc<Stored>>,
    after: Option<Arc<Stored>>,
}

impl Change {
    /// The revision it made.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The API group of the object; empty for the core group.
    pub fn group(&self) -> &str {
        &self.resource.group
    }

    /// The plural of the object's kind.
    pub fn plural(&self) -> &str {
        &self.resource.plural
    }

    /// The object's namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.path.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.path.split_once('/').map_or(&self.path, |(_, name)| name)
    }

    /// Whether the object is gone.
    pub fn is_deletion(&self) -> bool {
        self.after.is_none()
    }

    /// The object as it was, as JSON; `None` if it is new.
    pub fn before(&self) -> Option<Bytes> {
        self.before.as_ref().map(|object| object.to_bytes(&self.resource))
    }

    /// The object as it is, as JSON; `None` if it is gone.
    pub fn after(&self) -> Option<Bytes> {
        self.after.as_ref().map(|object| object.to_bytes(&self.resource))
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (&self.before, &self.after) {
            (None, _) => "added",
            (_, None) => "deleted",
            _ => "modified",
        };
        write!(f, "{} {} {what} at {}", self.plural(), self.path, self.revision)
    }
}

/// More has happened since than the server remembers.
#[derive(Debug, thiserror::Error)]
#[error(
    "the changes behind revision {0} are no longer remembered; look more often or raise Options::history_events"
)]
pub struct Forgotten(u64);

impl ApiServer {
    /// Every change behind `revision`, in the order they were made.
    ///
    /// # Errors
    ///
    /// If some of them are no longer remembered.
    pub fn changes_after(&self, revision: u64) -> Result<Vec<Change>, Forgotten> {
        self.read(|state| {
            if state.store.revision() <= revision {
                return Ok(Vec::new());
            }
            let mut found = Vec::new();
            for (storage, events) in state.store.all_events_after(revision) {
                let events = events.map_err(|TooOld| Forgotten(revision))?;
                let Some(resource) = state.registry.of_storage(storage) else { continue };
                found.extend(events.into_iter().map(|event| {
                    let store::Event { revision, change, path, object, previous } = event;
                    let (before, after) = match change {
                        store::Change::Added => (None, Some(object)),
                        store::Change::Modified => (previous, Some(object)),
                        store::Change::Deleted => (Some(object), None),
                    };
                    Change { revision, path, resource: Arc::clone(resource), before, after }
                }));
            }
            found.sort_by_key(Change::revision);
            Ok(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Seeded;
    use crate::server::Options;

    #[tokio::test(start_paused = true)]
    async fn changes_of_all_kinds_come_in_the_order_they_were_made() {
        let server = ApiServer::new(Seeded::default(), Options::default());
        let all = server.changes_after(0).expect("the beginning is remembered");
        assert!(all.windows(2).all(|pair| pair[0].revision() < pair[1].revision()));
        assert!(all.iter().any(|change| (change.plural(), change.name()) == ("namespaces", "default")));
        assert!(all.iter().all(|change| change.after().is_some()));
        let newest = all.last().expect("some").revision();
        assert!(server.changes_after(newest).expect("nothing is forgotten").is_empty());
    }
}
