//! The queue of a controller: what is to be reconciled, once each, the urgent first, never twice at the same time.
//!
//! It behaves like controller-runtime's priority queue: an item that waits is moved forward by an earlier add and never
//! back; an item added while it is being worked on is handed out again after that; among equals the first to become ready
//! goes first. Order depends on adds and time alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::queue::QueueMetrics;
use crate::rate_limit::RateLimiter;
use crate::sync::lock;

/// Higher goes first.
pub type Priority = i32;

/// Of items nobody waits for: objects of the first list, and objects listed again unchanged.
pub const LOW_PRIORITY: Priority = -100;

/// What a queue can hold.
pub trait Key: Ord + Clone + Debug + Send + Sync + 'static {}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> Key for K {}

/// When and how urgently an item is to be handed out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Add {
    /// Not before this has passed.
    pub after: Duration,
    /// Not before the limiter allows; the earlier of this and `after` if both are given.
    pub rate_limited: bool,
    /// How urgent.
    pub priority: Priority,
}

/// A queue; clones are handles to the same one.
#[derive(Clone)]
pub struct WorkQueue<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    items: BTreeMap<K, Item>,
    /// Ready to be handed out.
    ready: BTreeMap<(Reverse<Priority>, u64), K>,
    /// Ready, but still being worked on from an earlier turn.
    parked: BTreeSet<K>,
    /// Not ready yet.
    waiting: BTreeMap<(Instant, Reverse<Priority>, u64), K>,
    /// Handed out and not done.
    processing: BTreeSet<K>,
    added: u64,
    limiter: Box<dyn RateLimiter<K>>,
    metrics: QueueMetrics<K>,
    shut_down: bool,
}

#[derive(Clone, Copy)]
struct Item {
    priority: Priority,
    added: u64,
    ready_at: Option<Instant>,
}

impl<K: Key> WorkQueue<K> {
    /// An empty queue whose rate-limited adds wait as `limiter` says.
    pub fn new(limiter: Box<dyn RateLimiter<K>>, metrics: QueueMetrics<K>) -> Self {
        let state = State {
            items: BTreeMap::new(),
            ready: BTreeMap::new(),
            parked: BTreeSet::new(),
            waiting: BTreeMap::new(),
            processing: BTreeSet::new(),
            added: 0,
            limiter,
            metrics,
            shut_down: false,
        };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// Adds an item to be handed out as soon as possible.
    pub fn add(&self, key: K) {
        self.add_with(key, Add::default());
    }

    /// Adds an item to be handed out after a while.
    pub fn add_after(&self, key: K, after: Duration) {
        self.add_with(key, Add { after, ..Add::default() });
    }

    /// Adds an item to be handed out when its limiter allows.
    pub fn add_rate_limited(&self, key: K) {
        self.add_with(key, Add { rate_limited: true, ..Add::default() });
    }

    /// Adds an item; one that is already queued keeps the earlier time and gets the higher priority of the two.
    pub fn add_with(&self, key: K, add: Add) {
        {
            let mut state = lock(&self.inner.state);
            if state.shut_down {
                return;
            }
            let now = Instant::now();
            // What fell due before this add goes before it.
            state.promote(now);
            state.add(key, add, now);
        }
        self.inner.changed.notify_waiters();
    }

    /// The next item and its priority, when there is one; `None` once the queue is shut down.
    ///
    /// The item must be given back with [`done`](Self::done).
    pub async fn get(&self) -> Option<(K, Priority)> {
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            // Registered before the look, so that an add between look and wait is not missed.
            changed.as_mut().enable();
            let next = {
                let mut state = lock(&self.inner.state);
                if state.shut_down {
                    return None;
                }
                let now = Instant::now();
                if let Some(item) = state.take(now) {
                    return Some(item);
                }
                state.waiting.first_key_value().map(|((at, ..), _)| *at)
            };
            match next {
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    /// The next item if one is ready at this moment.
    pub fn try_get(&self) -> Option<(K, Priority)> {
        let mut state = lock(&self.inner.state);
        if state.shut_down { None } else { state.take(Instant::now()) }
    }

    /// Gives an item back; if it was added again in the meantime it becomes available now.
    pub fn done(&self, key: &K) {
        {
            let mut state = lock(&self.inner.state);
            state.processing.remove(key);
            state.metrics.done(key, Instant::now());
            if state.parked.remove(key) {
                // Its place is the one it was added with.
                if let Some(item) = state.items.get(key).copied() {
                    state.ready.insert((Reverse(item.priority), item.added), key.clone());
                }
            }
        }
        self.inner.changed.notify_waiters();
    }

    /// Forgets an item's failures.
    pub fn forget(&self, key: &K) {
        lock(&self.inner.state).limiter.forget(key);
    }

    /// How often an item has failed since it was last forgotten.
    pub fn num_requeues(&self, key: &K) -> u32 {
        lock(&self.inner.state).limiter.failures(key)
    }

    /// How many items are ready, those being worked on from an earlier turn included.
    pub fn len(&self) -> usize {
        let mut state = lock(&self.inner.state);
        state.promote(Instant::now());
        state.ready.len() + state.parked.len()
    }

    /// Whether nothing is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many items are queued for later.
    pub fn waiting(&self) -> usize {
        let mut state = lock(&self.inner.state);
        state.promote(Instant::now());
        state.waiting.len()
    }

    /// Takes no more items and gives none out.
    pub fn shut_down(&self) {
        lock(&self.inner.state).shut_down = true;
        self.inner.changed.notify_waiters();
    }

    /// Brings the gauges of work in progress up to date.
    pub(crate) fn observe_unfinished(&self) {
        lock(&self.inner.state).metrics.observe_unfinished(Instant::now());
    }
}

impl<K: Key> State<K> {
    fn add(&mut self, key: K, add: Add, now: Instant) {
        let mut after = add.after;
        if add.rate_limited {
            let limited = self.limiter.when(&key, now);
            if after.is_zero() || limited < after {
                after = limited;
            }
        }
        let mut ready_at = None;
        if !after.is_zero() {
            // A wait too long to add up is as good as for ever.
            ready_at = Some(now.checked_add(after).unwrap_or_else(|| now + FOR_EVER));
            self.metrics.retried();
        }
        let Some(known) = self.items.get(&key).copied() else {
            let item = Item { priority: add.priority, added: self.next_place(), ready_at };
            self.insert(key, item, now);
            return;
        };
        let mut item = known;
        item.ready_at = match (known.ready_at, ready_at) {
            (Some(known), Some(new)) => Some(known.min(new)),
            _ => None,
        };
        if add.priority > known.priority {
            if known.ready_at.is_none() {
                self.metrics.moved(known.priority, add.priority);
            }
            item.priority = add.priority;
            item.added = self.next_place();
        }
        match known.ready_at {
            None => {
                self.ready.remove(&(Reverse(known.priority), known.added));
                self.parked.remove(&key);
                self.place(key, item);
            }
            Some(at) => {
                self.waiting.remove(&(at, Reverse(known.priority), known.added));
                self.insert(key, item, now);
            }
        }
    }

    fn next_place(&mut self) -> u64 {
        self.added += 1;
        self.added
    }

    /// Files an item that was not ready before.
    fn insert(&mut self, key: K, item: Item, now: Instant) {
        if item.ready_at.is_none() {
            self.metrics.added(&key, item.priority, now);
        }
        self.place(key, item);
    }

    fn place(&mut self, key: K, item: Item) {
        self.items.insert(key.clone(), item);
        match item.ready_at {
            Some(at) => {
                self.waiting.insert((at, Reverse(item.priority), item.added), key);
            }
            None if self.processing.contains(&key) => {
                self.parked.insert(key);
            }
            None => {
                self.ready.insert((Reverse(item.priority), item.added), key);
            }
        }
    }

    /// Makes ready what has waited long enough, in the order it became due.
    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, Reverse(priority), _), key) = entry.remove_entry();
            let item = Item { priority, added: self.next_place(), ready_at: None };
            self.insert(key, item, now);
        }
    }

    fn take(&mut self, now: Instant) -> Option<(K, Priority)> {
        self.promote(now);
        let ((Reverse(priority), _), key) = self.ready.pop_first()?;
        self.items.remove(&key);
        self.processing.insert(key.clone());
        self.metrics.taken(&key, priority, now);
        Some((key, priority))
    }
}

/// About thirty years, as tokio's own far future.
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365 * 30);

#[cfg(test)]
#[path = "work_queue_tests.rs"]
mod tests;
