//! What a component of the world is: it hears of every change, notes what it has to look at, and acts on one thing at a time.
//!
//! Acting is level-based: a key says *what* to look at, the objects say what to do, so a key may come late, twice or for
//! nothing. Things that take time are keys noted for later.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::objects::{Change, Objects};

/// A component of the world.
pub(crate) trait Actor: Send + 'static {
    /// What it looks at.
    type Key: Ord + Clone + Debug + Send + Sync + 'static;

    /// Its name on the tape.
    const NAME: &'static str;

    /// Notes what a change means for it.
    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<Self::Key>);

    /// Looks at one thing and does what is to be done about it. What fails is tried again.
    fn act(
        &mut self,
        key: &Self::Key,
        agenda: &mut Agenda<Self::Key>,
    ) -> impl Future<Output = Result<(), kube::Error>> + Send;
}

/// What is to be looked at, and when. Each key stands in it at most once, at its earliest time.
pub(crate) struct Agenda<K> {
    due: BTreeMap<(Instant, u64), K>,
    places: BTreeMap<K, (Instant, u64)>,
    sequence: u64,
}

impl<K: Ord + Clone> Agenda<K> {
    fn new() -> Self {
        Self { due: BTreeMap::new(), places: BTreeMap::new(), sequence: 0 }
    }

    /// As soon as possible.
    pub(crate) fn now(&mut self, key: K) {
        self.after(key, Duration::ZERO);
    }

    /// After a while, unless it is due earlier already.
    pub(crate) fn after(&mut self, key: K, delay: Duration) {
        let at = Instant::now() + delay;
        if let Some(place) = self.places.get(&key) {
            if place.0 <= at {
                return;
            }
            self.due.remove(place);
        }
        self.sequence += 1;
        self.places.insert(key.clone(), (at, self.sequence));
        self.due.insert((at, self.sequence), key);
    }

    /// Whether it is noted.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    fn pop(&mut self, now: Instant) -> Option<K> {
        let entry = self.due.first_entry().filter(|entry| entry.key().0 <= now)?;
        let key = entry.remove();
        self.places.remove(&key);
        Some(key)
    }

    fn next(&self) -> Option<Instant> {
        self.due.keys().next().map(|(at, _)| *at)
    }
}

/// How long after its n-th failure in a row a key is tried again.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(10 << failures.min(10))
}

/// Where an actor hears of changes, and what it sees when it does.
pub(crate) trait Source: Clone + Send + Sync + 'static {
    /// Everything that happens from now on, after everything that is there already.
    fn subscribe(&self) -> UnboundedReceiver<Arc<Change>>;

    /// Looks at all objects.
    fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T;
}

impl Source for Cluster {
    fn subscribe(&self) -> UnboundedReceiver<Arc<Change>> {
        Self::subscribe(self)
    }

    fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        Self::read(self, look)
    }
}

/// Lets an actor live in the cluster, or behind a cache of it, until the handle is aborted.
pub(crate) fn employ<A: Actor>(source: &impl Source, mut actor: A) -> JoinHandle<()> {
    let mut inbox = source.subscribe();
    let source = source.clone();
    tokio::spawn(async move {
        let mut agenda = Agenda::new();
        let mut failures: BTreeMap<A::Key, u32> = BTreeMap::new();
        loop {
            while let Ok(change) = inbox.try_recv() {
                source.read(|objects| actor.observe(&change, objects, &mut agenda));
            }
            if let Some(key) = agenda.pop(Instant::now()) {
                match actor.act(&key, &mut agenda).await {
                    Ok(()) => drop(failures.remove(&key)),
                    Err(error) => {
                        let count = failures.entry(key.clone()).or_default();
                        *count += 1;
                        tracing::debug!(actor = A::NAME, ?key, %error, "will try again");
                        agenda.after(key, pause(*count));
                    }
                }
                continue;
            }
            let change = match agenda.next() {
                None => inbox.recv().await,
                Some(at) => tokio::select! {
                    biased;
                    change = inbox.recv() => change,
                    () = tokio::time::sleep_until(at) => continue,
                },
            };
            // The source keeps the other end for as long as this task keeps the source.
            let Some(change) = change else { return };
            source.read(|objects| actor.observe(&change, objects, &mut agenda));
        }
    })
}

/// The status code of a refusal; 0 for anything else that went wrong.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// A write whose object is gone has nothing left to do.
pub(crate) fn unless_gone<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if code(&error) == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_stands_once_and_at_its_earliest_time() {
        let mut agenda = Agenda::new();
        agenda.after("a", Duration::from_secs(5));
        agenda.after("a", Duration::from_secs(9));
        agenda.after("b", Duration::from_secs(3));
        agenda.after("a", Duration::from_secs(2));
        assert_eq!(agenda.pop(Instant::now()), None);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let now = Instant::now();
        assert_eq!([agenda.pop(now), agenda.pop(now), agenda.pop(now)], [Some("a"), Some("b"), None]);
        assert!(!agenda.has(&"a"));
    }
}
