//! Watches one kind, keeps a store of it and tells subscribers what changed.
//!
//! kube's `watcher` does the protocol; order, back-off and what a relist means are ours. Subscribers are plain functions
//! called one after the other from the informer's task: they put keys into queues or feed a mirror, and never wait.
//!
//! Objects are kept as they are, or in a form of their own where there are many and little of each is needed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event, ListSemantic};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controller::Runnable;
use crate::entropy::{Entropy, Stream};
use crate::error;
use crate::go_duration::GoDuration;
use crate::object_key::ObjectKey;
use crate::store::Store;
use crate::unread::Unread;
use crate::work_queue::{Add, Key, LOW_PRIORITY, WorkQueue};

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Delta<K> {
    /// Seen for the first time.
    Added {
        /// The object.
        object: Arc<K>,
        /// Whether it was there before the watch began.
        initial: bool,
    },
    /// Seen again. After a relist old and new may be the same version.
    Updated {
        /// As it was.
        old: Arc<K>,
        /// As it is.
        new: Arc<K>,
    },
    /// Gone, or no longer selected; as it was last seen.
    Deleted {
        /// The object.
        object: Arc<K>,
    },
}

impl<K> Delta<K> {
    /// The object as it is now, or was before it went.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added { object, .. } | Self::Deleted { object } | Self::Updated { new: object, .. } => {
                object
            }
        }
    }
}

impl<S: Kept> Delta<S> {
    /// Whether anything happened: an object of the first list and one that was listed again unchanged are no news.
    pub fn is_news(&self) -> bool {
        match self {
            Self::Added { initial, .. } => !initial,
            Self::Updated { old, new } => old.version() != new.version(),
            Self::Deleted { .. } => true,
        }
    }
}

/// The keys of the object itself: what a controller maps its own kind with.
pub fn own_key<S: Kept>(delta: &Delta<S>) -> Vec<ObjectKey> {
    vec![delta.object().key()]
}

/// What is kept of an object must at least tell which object it is, and of which version.
pub trait Kept: Send + Sync + 'static {
    /// Its namespace and name.
    fn key(&self) -> ObjectKey;
    /// Which of this name.
    fn uid(&self) -> Option<&str>;
    /// The version it is of.
    fn version(&self) -> Option<&str>;
}

impl<K: Resource + Send + Sync + 'static> Kept for K {
    fn key(&self) -> ObjectKey {
        ObjectKey::of(self)
    }

    fn uid(&self) -> Option<&str> {
        self.meta().uid.as_deref()
    }

    fn version(&self) -> Option<&str> {
        self.meta().resource_version.as_deref()
    }
}

type Witness<K> = Box<dyn FnMut(&K) + Send>;
type Subscriber<S> = Box<dyn FnMut(&Delta<S>) + Send>;

/// Watches a kind once for all who want to know. Of each object `S` is kept.
pub struct Informer<K, S = K> {
    kind: String,
    api: Api<Unread>,
    config: watcher::Config,
    mirror: Mirror<K, S>,
    backoff: Backoff,
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Of all objects the configuration selects.
    pub fn all(client: &Client, config: watcher::Config, entropy: &Entropy) -> Self {
        Self::of(Api::all_with(client.clone(), &ApiResource::erase::<K>(&())), config, entropy)
    }

    /// Of those of a namespace.
    pub fn namespaced(client: &Client, namespace: &str, config: watcher::Config, entropy: &Entropy) -> Self {
        let api = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()));
        Self::of(api, config, entropy)
    }

    fn of(api: Api<Unread>, config: watcher::Config, entropy: &Entropy) -> Self {
        Self::of_kind(&format!("{}/{}", K::group(&()), K::kind(&())), api, config, entropy)
    }
}

impl<K> Informer<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Of a kind that is only known at run time: of all objects the API handle covers and the configuration selects.
    pub fn of_kind(kind: &str, api: Api<Unread>, config: watcher::Config, entropy: &Entropy) -> Self {
        let backoff = Backoff::new(entropy.stream(&format!("informer/{kind}")));
        // The core group has no name.
        let kind = kind.trim_start_matches('/');
        Self { kind: kind.to_owned(), api, config, mirror: Mirror::new(kind, |object| object), backoff }
    }

    /// Keeps of every object what `keep` makes of it. To be said before anyone subscribes.
    pub fn keeping<S: Kept>(self, keep: fn(K) -> S) -> Informer<K, S> {
        let Self { kind, api, config, backoff, .. } = self;
        Informer { mirror: Mirror::new(&kind, keep), kind, api, config, backoff }
    }
}

impl<K, S> Informer<K, S>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    S: Kept,
{
    /// Takes out of every object what nobody needs, before it is kept and told. Bookkeeping of field managers always goes.
    pub fn trim(&mut self, trim: fn(&mut K)) {
        self.mirror.trim = trim;
    }

    /// The store it keeps.
    pub fn store(&self) -> Store<S> {
        self.mirror.store.clone()
    }

    /// Shows `witness` every object whole as it comes or changes, before what is kept of it is in the store.
    pub fn show(&mut self, witness: impl FnMut(&K) + Send + 'static) {
        self.mirror.witnesses.push(Box::new(witness));
    }

    /// Calls `subscriber` for every change, in the order things happened, after the store has changed.
    pub fn subscribe(&mut self, subscriber: impl FnMut(&Delta<S>) + Send + 'static) {
        self.mirror.subscribers.push(Box::new(subscriber));
    }

    /// Puts into `queue` what `map` makes of every change; what is no news with low priority.
    pub fn feed<Q: Key>(&mut self, queue: &WorkQueue<Q>, map: impl Fn(&Delta<S>) -> Vec<Q> + Send + 'static) {
        let queue = queue.clone();
        self.subscribe(move |delta| {
            let priority = if delta.is_news() { 0 } else { LOW_PRIORITY };
            for key in map(delta) {
                queue.add_with(key, Add { priority, ..Add::default() });
            }
        });
    }

    /// Runs until stopped. The server being away, refusing or forgetting is retried for ever, with growing pauses.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut config = self.config.clone();
        // The first list may come from the server's cache, in one answer; later ones must not go back in time.
        config.list_semantic = ListSemantic::Any;
        config.page_size = None;
        loop {
            let mut events = std::pin::pin!(watcher::watcher(self.api.clone(), config.clone()));
            loop {
                let event = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    event = events.next() => event,
                };
                let error = match event {
                    Some(Ok(event)) => {
                        if matches!(event, Event::InitDone | Event::Apply(_)) {
                            self.backoff.succeeded();
                        }
                        self.mirror.apply(event);
                        continue;
                    }
                    Some(Err(error)) => error,
                    None => break,
                };
                let pause = self.backoff.next(Instant::now());
                let (kind, pause_told) = (&self.kind, GoDuration::from(pause));
                if is_refusal(&error) {
                    tracing::error!(kind, error = told(&error), pause = %pause_told, "watch failed, will retry");
                } else {
                    tracing::warn!(kind, error = told(&error), pause = %pause_told, "watch failed, will retry");
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                if must_relist(&error) {
                    break;
                }
            }
            config = self.config.clone();
        }
    }
}

impl<K, S> Runnable for Informer<K, S>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    S: Kept,
{
    fn run(self: Box<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Self::run(*self, stop).boxed()
    }
}

/// What went wrong with a watch, without the whole answer of the server.
fn told(problem: &watcher::Error) -> String {
    let what = match problem {
        watcher::Error::InitialListFailed(_) => "cannot list",
        watcher::Error::WatchStartFailed(_) => "cannot start watching",
        _ => "watch broke off",
    };
    let why = match problem {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error::told(error),
        watcher::Error::WatchError(status) => error::told(&kube::Error::Api(status.clone())),
        other => other.to_string(),
    };
    let remedy = match problem {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            error::remedy(error)
        }
        _ => "",
    };
    format!("{what}: {why}{remedy}")
}

/// Whether the server does not do what is asked, and will not by being asked again: somebody has to see it.
fn is_refusal(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code,
        _ => return false,
    };
    matches!(code, 401 | 403 | 404)
}

/// Whether going on would miss something. The server may have forgotten the version we want to go on from: kube starts over by
/// itself only when told so inside a watch, and for ever asks again for the lost version when the request itself is refused. Or a
/// line could not be understood: kube goes on behind it, and what it told nobody would tell again.
fn must_relist(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) | watcher::Error::WatchError(status) => {
            status.code == 410
        }
        // A line that is JSON but no event passes for a status.
        watcher::Error::WatchFailed(
            kube::Error::SerdeError(_) | kube::Error::Api(_) | kube::Error::LinesCodecMaxLineLengthExceeded,
        ) => true,
        _ => false,
    }
}

/// Turns watch events into changes of the store. Knows no server.
struct Mirror<K, S = K> {
    kind: String,
    store: Store<S>,
    witnesses: Vec<Witness<K>>,
    subscribers: Vec<Subscriber<S>>,
    trim: fn(&mut K),
    keep: fn(K) -> S,
    /// Keys not listed again so far, while a list runs.
    unlisted: Option<BTreeSet<ObjectKey>>,
}

impl<K: Resource + DeserializeOwned, S: Kept> Mirror<K, S> {
    fn new(kind: &str, keep: fn(K) -> S) -> Self {
        Self {
            kind: kind.to_owned(),
            store: Store::new(),
            witnesses: Vec::new(),
            subscribers: Vec::new(),
            trim: |_| {},
            keep,
            unlisted: None,
        }
    }

    fn apply(&mut self, event: Event<Unread>) {
        match event {
            Event::Init => self.unlisted = Some(self.store.keys()),
            Event::InitApply(object) => {
                let initial = !self.store.is_synced();
                if let Some(unlisted) = &mut self.unlisted {
                    unlisted.remove(&ObjectKey::of(&object));
                }
                self.upsert(&object, initial);
            }
            Event::InitDone => {
                for key in self.unlisted.take().unwrap_or_default() {
                    self.remove(&key);
                }
                self.store.mark_synced();
            }
            Event::Apply(object) => self.upsert(&object, false),
            Event::Delete(object) => self.remove(&ObjectKey::of(&object)),
        }
    }

    fn upsert(&mut self, unread: &Unread, initial: bool) {
        let key = ObjectKey::of(unread);
        let mut object = match unread.read::<K>() {
            Ok(object) => object,
            // It exists, so what was known of it before stays: better an old truth than a deletion that did not happen.
            Err(error) => {
                tracing::warn!(kind = self.kind, object = %key, %error, "object cannot be read and is left out");
                self.store.leave_out(key);
                return;
            }
        };
        // Read as empty, or whole where a server lays its text out otherwise.
        object.meta_mut().managed_fields = None;
        (self.trim)(&mut object);
        // Deleted and made again between two looks: two lives, not one change.
        if self.store.get(&key).is_some_and(|old| old.uid() != object.meta().uid.as_deref()) {
            self.remove(&key);
        }
        for witness in &mut self.witnesses {
            witness(&object);
        }
        let object = Arc::new((self.keep)(object));
        let delta = match self.store.insert(key, Arc::clone(&object)) {
            Some(old) => Delta::Updated { old, new: object },
            None => Delta::Added { object, initial },
        };
        self.tell(&delta);
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(object) = self.store.remove(key) {
            self.tell(&Delta::Deleted { object });
        }
    }

    fn tell(&mut self, delta: &Delta<S>) {
        for subscriber in &mut self.subscribers {
            subscriber(delta);
        }
    }
}

/// Pauses between failures as client-go's reflector makes them: 800 ms doubling up to 30 s, each stretched by up to itself,
/// starting over after two quiet minutes.
struct Backoff {
    jitter: Stream,
    pause: Duration,
    last_failure: Option<Instant>,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const MAX: Duration = Duration::from_secs(30);
    const QUIET: Duration = Duration::from_secs(120);

    fn new(jitter: Stream) -> Self {
        Self { jitter, pause: Self::FIRST, last_failure: None }
    }

    fn next(&mut self, now: Instant) -> Duration {
        if self.last_failure.is_some_and(|last| now.saturating_duration_since(last) > Self::QUIET) {
            self.pause = Self::FIRST;
        }
        self.last_failure = Some(now);
        let pause = self.jitter.jitter(self.pause, 1.0);
        self.pause = (self.pause * 2).min(Self::MAX);
        pause
    }

    fn succeeded(&mut self) {
        self.pause = Self::FIRST;
    }
}

#[cfg(test)]
#[path = "informer_tests.rs"]
mod tests;
