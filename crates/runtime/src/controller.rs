//! Runs a reconciler over a queue: at most so many at a time, never one object twice at once, errors retried with growing
//! pauses, panics caught.
//!
//! Informers and other controllers put keys into [`Controller::queue`]; a loop that only concerns itself
//! ([`Controller::singleton`]) has a single key. The outcomes and their metrics are controller-runtime's.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::context::{on_behalf_of, until_stopped};
use crate::entropy::Stream;
use crate::environment::Environment;
use crate::error::ReconcileError;
use crate::logging::Spread;
use crate::metrics::Counter;
use crate::metrics::queue::{QueueMetrics, ReconcileMetrics};
use crate::object_key::ObjectKey;
use crate::rate_limit::{self, RateLimiter};
use crate::sync::lock;
use crate::work_queue::{Add, Key, Priority, WorkQueue};

/// "Again, at once" of a loop: as little as a wait can be.
pub const IMMEDIATELY: Duration = Duration::from_nanos(1);

/// Brings one thing into the state it should be in, from whatever state it is in.
pub trait Reconciler: Send + Sync + 'static {
    /// What names the thing.
    type Key: Key;

    /// Looks at the thing and does what is to be done. May be dropped at any await. One that waits for long asks
    /// [`stopping`](crate::context::stopping) whether it may.
    fn reconcile(&self, key: Self::Key) -> impl Future<Output = ReconcileResult> + Send;
}

/// What a reconcile comes to.
pub type ReconcileResult = Result<Outcome, ReconcileError>;

/// What is to happen after a reconcile that went well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing until something changes.
    #[default]
    Done,
    /// Again, soon, with growing pauses.
    Requeue,
    /// Again after this long.
    After(Duration),
}

impl Outcome {
    /// What several outcomes come to together (rule Q5): the shortest wait; "soon" before any wait.
    pub fn combine(outcomes: impl IntoIterator<Item = Self>) -> Self {
        outcomes.into_iter().fold(Self::Done, |a, b| match (a, b) {
            (Self::Requeue, _) | (_, Self::Requeue) => Self::Requeue,
            (Self::Done, other) | (other, Self::Done) => other,
            (Self::After(a), Self::After(b)) => Self::After(a.min(b)),
        })
    }
}

/// A reconciler with its queue and its rules.
pub struct Controller<R: Reconciler> {
    queue: WorkQueue<R::Key>,
    workers: usize,
    worker: Worker<R>,
}

/// What every reconcile of a controller shares.
struct Worker<R: Reconciler> {
    reconciler: Arc<R>,
    shared: Arc<Shared<R::Key>>,
}

struct Shared<K> {
    name: Arc<str>,
    group: String,
    kind: String,
    object_of: fn(&K) -> ObjectKey,
    /// What an [`Outcome::Requeue`] is counted as.
    requeued: Counter,
    ids: Mutex<Stream>,
    metrics: ReconcileMetrics,
}

/// Puts a controller together.
pub struct Builder<R: Reconciler> {
    name: String,
    reconciler: R,
    workers: usize,
    limiter: Box<dyn RateLimiter<R::Key>>,
    group: String,
    kind: String,
    object_of: fn(&R::Key) -> ObjectKey,
    is_loop: bool,
}

impl<R: Reconciler> Builder<R> {
    /// With this many reconciles at a time; one unless said otherwise.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = usize::try_from(workers.max(1)).unwrap_or(usize::MAX);
        self
    }

    /// With this limiter for errors and for [`Outcome::Requeue`], which count together.
    #[must_use]
    pub fn limiter(mut self, limiter: Box<dyn RateLimiter<R::Key>>) -> Self {
        self.limiter = limiter;
        self
    }

    /// With log lines that name the object a key is about. Without a kind they have its namespace and name alone, as
    /// controller-runtime's lines of a controller that is fed by others.
    #[must_use]
    pub fn about(mut self, group: &str, kind: &str, object_of: fn(&R::Key) -> ObjectKey) -> Self {
        (self.group, self.kind, self.object_of) = (group.to_owned(), kind.to_owned(), object_of);
        self
    }

    /// The controller, idle until [`Controller::run`].
    pub fn build(self, environment: &Environment) -> Controller<R> {
        let Self { name, reconciler, workers, limiter, group, kind, object_of, is_loop } = self;
        let queue = WorkQueue::new(limiter, QueueMetrics::new(&environment.registry, &name));
        let observed = queue.clone();
        environment.registry.before_encode(move || observed.observe_unfinished());
        let metrics = ReconcileMetrics::new(&environment.registry, &name, workers);
        // operatorpkg turns a loop's requeue into one after the pause of its limiter; controllers of objects are
        // controller-runtime's own.
        let requeued = if is_loop { metrics.requeue_after.clone() } else { metrics.requeue.clone() };
        let shared = Shared {
            metrics,
            requeued,
            ids: Mutex::new(environment.entropy.stream(&format!("reconcile/{name}"))),
            name: name.into(),
            group,
            kind,
            object_of,
        };
        let worker = Worker { reconciler: Arc::new(reconciler), shared: Arc::new(shared) };
        Controller { queue, workers, worker }
    }
}

impl<R: Reconciler> Controller<R> {
    /// A controller of things of any kind; log lines carry no object unless it is said [what they are about](Builder::about).
    pub fn builder(name: &str, reconciler: R) -> Builder<R> {
        Builder {
            name: name.to_owned(),
            reconciler,
            workers: 1,
            limiter: rate_limit::unspecified(),
            group: String::new(),
            kind: String::new(),
            object_of: |_| ObjectKey::default(),
            is_loop: false,
        }
    }

    /// The queue, for whoever has something to reconcile.
    pub fn queue(&self) -> WorkQueue<R::Key> {
        self.queue.clone()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.worker.shared.name
    }

    /// Reconciles until stopped, then waits for what is under way. Dropping the future abandons it instead.
    pub async fn run(self, stop: CancellationToken) {
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = under_way.join_next(), if !under_way.is_empty() => {}
                item = self.queue.get(), if under_way.len() < self.workers => {
                    let Some((key, priority)) = item else { break };
                    let worker = self.worker.clone();
                    let (queue, stop) = (self.queue.clone(), stop.clone());
                    under_way.spawn(until_stopped(stop, async move { worker.process(&queue, key, priority).await }));
                }
            }
        }
        self.queue.shut_down();
        while under_way.join_next().await.is_some() {}
    }

    /// Reconciles everything that is ready now, one after the other, in the caller's task; how many there were.
    /// For tests that want to see one turn at a time.
    pub async fn turn(&self) -> usize {
        let mut count = 0;
        while let Some((key, priority)) = self.queue.try_get() {
            self.worker.clone().process(&self.queue, key, priority).await;
            count += 1;
        }
        count
    }
}

impl<R: Reconciler<Key = ObjectKey>> Controller<R> {
    /// A controller of objects of this kind.
    pub fn for_objects(name: &str, group: &str, kind: &str, reconciler: R) -> Builder<R> {
        Self::builder(name, reconciler).about(group, kind, Clone::clone)
    }
}

impl<R: Reconciler> Clone for Worker<R> {
    fn clone(&self) -> Self {
        Self { reconciler: Arc::clone(&self.reconciler), shared: Arc::clone(&self.shared) }
    }
}

impl<R: Reconciler> Worker<R> {
    async fn process(self, queue: &WorkQueue<R::Key>, key: R::Key, priority: Priority) {
        let shared = &*self.shared;
        let object = (shared.object_of)(&key);
        let id = lock(&shared.ids).uuid();
        let span = tracing::error_span!(
            "reconcile",
            controller = &*shared.name,
            controllerGroup = shared.group.as_str(),
            controllerKind = shared.kind.as_str(),
            namespace = &*object.namespace,
            name = &*object.name,
            reconcileID = %id,
        );
        shared.metrics.active_workers.add(1.0);
        let started = Instant::now();
        // On the heap: every wrapper around it, down to the task, would have room for all of it once more.
        let reconcile = Box::pin(self.reconciler.reconcile(key.clone()));
        let reconcile = AssertUnwindSafe(on_behalf_of(Arc::clone(&shared.name), reconcile));
        let result = reconcile.catch_unwind().instrument(span.clone()).await;
        shared.metrics.time.observe_duration(started.elapsed());
        let _logged = span.enter();
        let result = result.unwrap_or_else(|panic| {
            shared.metrics.panics.inc();
            Err(ReconcileError::message(format!("panic: {} [recovered]", panic_text(&*panic))))
        });
        shared.settle(queue, &key, priority, result);
        shared.metrics.active_workers.add(-1.0);
        queue.done(&key);
    }
}

impl<K: Key> Shared<K> {
    /// Counts a result and queues what follows from it.
    fn settle(&self, queue: &WorkQueue<K>, key: &K, priority: Priority, result: ReconcileResult) {
        let again = |after| Add { after, rate_limited: false, priority };
        match result {
            Err(error) => {
                self.metrics.errors.inc();
                self.metrics.error.inc();
                if error.is_terminal() {
                    self.metrics.terminal_errors.inc();
                } else {
                    queue.add_with(key.clone(), Add { rate_limited: true, ..again(Duration::ZERO) });
                }
                if error.is_wait() {
                    tracing::info!(%error, spread = %Spread(error.fields()), "Reconciler waits");
                } else {
                    tracing::error!(%error, spread = %Spread(error.fields()), "Reconciler error");
                }
            }
            Ok(Outcome::Done) => {
                queue.forget(key);
                self.metrics.success.inc();
            }
            Ok(Outcome::After(after)) => {
                queue.forget(key);
                queue.add_with(key.clone(), again(after));
                self.metrics.requeue_after.inc();
            }
            Ok(Outcome::Requeue) => {
                queue.add_with(key.clone(), Add { rate_limited: true, ..again(Duration::ZERO) });
                self.requeued.inc();
            }
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of unknown cause")
}

/// A loop that concerns only itself: run once at the start, then whenever it asks to be.
pub trait Singleton: Send + Sync + 'static {
    /// One turn of the loop.
    fn reconcile(&self) -> impl Future<Output = ReconcileResult> + Send;
}

/// A [`Singleton`] as a reconciler of a single thing.
pub struct Looped<S>(S);

impl<S: Singleton> Reconciler for Looped<S> {
    type Key = ();

    fn reconcile(&self, (): ()) -> impl Future<Output = ReconcileResult> + Send {
        self.0.reconcile()
    }
}

impl<S: Singleton> Controller<Looped<S>> {
    /// A controller that runs `singleton` once it is started, and again as it says; where it fails, after 30 seconds at the latest.
    /// Whoever holds the queue can wake it.
    pub fn singleton(name: &str, singleton: S, environment: &Environment) -> Self {
        let builder = Builder { is_loop: true, ..Self::builder(name, Looped(singleton)) };
        let controller = builder.limiter(rate_limit::looped()).build(environment);
        controller.queue.add(());
        controller
    }
}

/// Something that runs until it is stopped.
pub trait Runnable: Send + 'static {
    /// Runs until `stop`, then winds up and returns.
    fn run(self: Box<Self>, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

impl<R: Reconciler> Runnable for Controller<R> {
    fn run(self: Box<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Self::run(*self, stop).boxed()
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
