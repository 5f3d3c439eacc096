//! The server with everything that sees its writes: the typed objects, the tape, the invariants and the actors' inboxes.
//!
//! Every client of the world goes through [`Cluster::commit`], so a write is on the tape, checked against the invariants and
//! told to the actors before anything else can happen.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use karpenter_apiserver::{ApiServer, Body, Options, Seeded};
use karpenter_runtime::clock::{Clock as _, TokioClock};
use karpenter_runtime::entropy::Entropy;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::invariants::{Asked, Invariant, Rest, Step, Violation};
use crate::inventory::Inventory;
use crate::objects::{Change, Objects};
use crate::tape::{Line, Tape};
use crate::wire::Wire;

/// The time at which every simulated world begins: 2026-01-01T00:00:00Z.
pub const EPOCH: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// How many events of each kind the server remembers. Large, because a simulation may stall one watcher for minutes.
const HISTORY_EVENTS: usize = 64 * 1024;

/// A cluster of one API server. Clones are handles to the same one.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
}

struct Shared {
    server: ApiServer,
    clock: TokioClock,
    started: Instant,
    entropy: Entropy,
    state: Mutex<State>,
}

struct State {
    objects: Objects,
    inventory: Inventory,
    /// The revision up to which `objects` is true.
    revision: u64,
    tape: Tape,
    inboxes: Vec<UnboundedSender<Arc<Change>>>,
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<Violation>,
    silent_kubelets: BTreeSet<String>,
}

impl Cluster {
    /// An empty cluster. Everything random in it follows from `seed`. Must be made inside a tokio runtime.
    pub fn new(seed: u64) -> Self {
        Self::starting_at(EPOCH, seed)
    }

    /// As [`Self::new`], with its clock at another time: the machine's own, where people watch.
    pub fn starting_at(epoch: Timestamp, seed: u64) -> Self {
        let entropy = Entropy::from_seed(seed);
        let options = Options { history_events: HISTORY_EVENTS, ..Options::default() };
        let server_seed = entropy.stream("apiserver").next_u64();
        let server = ApiServer::new(Seeded::new(server_seed, epoch), options);
        let state = State {
            objects: Objects::default(),
            inventory: Inventory::default(),
            revision: 0,
            tape: Tape::default(),
            inboxes: Vec::new(),
            invariants: Vec::new(),
            violation: None,
            silent_kubelets: BTreeSet::new(),
        };
        let shared = Shared {
            server,
            clock: TokioClock::starting_at(epoch),
            started: Instant::now(),
            entropy,
            state: Mutex::new(state),
        };
        let cluster = Self { shared: Arc::new(shared) };
        cluster.catch_up();
        cluster
    }

    /// The server itself. What is written through it directly is seen only at the next [`Self::catch_up`].
    pub fn server(&self) -> &ApiServer {
        &self.shared.server
    }

    /// A client that never fails, under whose name its writes stand on the tape.
    pub fn client(&self, actor: &str) -> kube::Client {
        kube::Client::new(Wire::new(self.clone(), actor), "default")
    }

    /// Where this world's randomness comes from.
    pub fn entropy(&self) -> &Entropy {
        &self.shared.entropy
    }

    /// The clock of the world; the server's runs alike.
    pub fn clock(&self) -> &TokioClock {
        &self.shared.clock
    }

    /// The time in the world.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// How long the world has existed.
    pub fn elapsed(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Looks at all objects as of the last write.
    pub fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        look(&self.state().objects)
    }

    /// Looks at the tape.
    pub fn tape<T>(&self, look: impl FnOnce(&Tape) -> T) -> T {
        look(&self.state().tape)
    }

    /// Looks at the cloud's machines.
    pub fn inventory<T>(&self, look: impl FnOnce(&Inventory) -> T) -> T {
        look(&self.state().inventory)
    }

    /// Has invariants checked after every write from now on.
    pub fn watch_over(&self, invariants: impl IntoIterator<Item = Box<dyn Invariant>>) {
        self.state().invariants.extend(invariants);
    }

    /// Checks what must hold once everything has had time to come right.
    ///
    /// # Errors
    ///
    /// The first rule that does not hold, now or at any time before.
    pub fn check_at_rest(&self, healed_for: Duration) -> Result<(), Violation> {
        let now = self.now();
        let mut state = self.state();
        let state = &mut *state;
        let rest = Rest { objects: &state.objects, inventory: &state.inventory, now, healed_for };
        for invariant in &mut state.invariants {
            if let Err(why) = invariant.check_at_rest(&rest) {
                let violation = Violation::new(invariant.as_ref(), None, why);
                state.violation.get_or_insert(violation);
            }
        }
        state.violation.clone().map_or(Ok(()), Err)
    }

    /// The first broken invariant.
    pub fn violation(&self) -> Option<Violation> {
        self.state().violation.clone()
    }

    /// Whether a node's kubelet is running.
    pub fn kubelet_alive(&self, node: &str) -> bool {
        !self.state().silent_kubelets.contains(node)
    }

    /// Silences a node's kubelet, or lets it come back: a machine that hangs, is gone, or recovers.
    pub fn set_kubelet(&self, node: &str, alive: bool) {
        let mut state = self.state();
        let changed = if alive {
            state.silent_kubelets.remove(node)
        } else {
            state.silent_kubelets.insert(node.to_owned())
        };
        if changed {
            state.tell(&[Arc::new(Change::Kubelet { node: node.to_owned(), alive })]);
        }
    }

    /// Everything that happens from now on, after everything that is there already.
    pub(crate) fn subscribe(&self) -> UnboundedReceiver<Arc<Change>> {
        let (inbox, outbox) = unbounded_channel();
        let mut state = self.state();
        for change in state.objects.everything() {
            // The other end is in our hands.
            let _ = inbox.send(Arc::new(change));
        }
        state.inboxes.push(inbox);
        outbox
    }

    /// Hands a request to the server and, if it writes, sees to everything that follows before giving back the answer.
    pub(crate) async fn commit(&self, actor: &Arc<str>, request: Request<Bytes>) -> Response<Body> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let deed = (!reads).then(|| format!("{} {}", request.method(), request.uri()));
        let body = request.body().clone();
        let answer = self.shared.server.service().oneshot(request.map(Full::new)).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        if let Some(deed) = deed {
            self.record(actor, deed, answer.status().as_u16().to_string(), &body);
        }
        answer
    }

    /// Takes note of writes that came by another road, as over HTTP.
    pub fn catch_up(&self) {
        let behind = self.shared.server.snapshot().revision() > self.state().revision;
        if behind {
            self.record(&"outside".into(), "writes by another road".to_owned(), "seen".to_owned(), &[]);
        }
    }

    /// Puts a deed on the tape, with every change the server has made since the last one.
    pub(crate) fn record(&self, actor: &Arc<str>, deed: String, outcome: String, body: &[u8]) {
        self.record_asking(actor, deed, outcome, body, None);
    }

    /// As [`Self::record`], of a call to the cloud.
    pub(crate) fn record_asking(
        &self,
        actor: &Arc<str>,
        deed: String,
        outcome: String,
        body: &[u8],
        asked: Option<&Asked>,
    ) {
        let (at, now) = (self.elapsed(), self.now());
        let mut state = self.state();
        let state = &mut *state;
        let raw = match self.shared.server.changes_after(state.revision) {
            Ok(changes) => changes,
            Err(error) => {
                // Only writes by another road can pile up so high.
                tracing::error!(%error, "changes were missed");
                Vec::new()
            }
        };
        state.revision = raw.last().map_or(state.revision, karpenter_apiserver::Change::revision);
        let mut changes = Vec::with_capacity(raw.len());
        for change in &raw {
            changes.extend(state.objects.follow(change).map(Arc::new));
        }
        let line = Line { at, actor, deed, outcome, revision: state.revision, body };
        let entry = state.tape.record(line);
        let step = Step {
            entry,
            body,
            asked,
            changes: &changes,
            raw: &raw,
            objects: &state.objects,
            inventory: &state.inventory,
            now,
        };
        for invariant in &mut state.invariants {
            if let Err(why) = invariant.check(&step) {
                let violation = Violation::new(invariant.as_ref(), Some(entry), why);
                tracing::error!(%violation, "an invariant is broken");
                state.violation.get_or_insert(violation);
            }
        }
        state.tell(&changes);
    }

    /// Changes what the cloud has, then puts the deed on the tape and has it checked.
    pub(crate) fn change_inventory<T>(
        &self,
        actor: &Arc<str>,
        deed: String,
        change: impl FnOnce(&mut Inventory) -> (T, String),
    ) -> T {
        let (result, outcome) = change(&mut self.state().inventory);
        self.record(actor, deed, outcome, &[]);
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell(&mut self, changes: &[Arc<Change>]) {
        if changes.is_empty() {
            return;
        }
        // An actor that has left reads no more letters.
        self.inboxes.retain(|inbox| changes.iter().all(|change| inbox.send(Arc::clone(change)).is_ok()));
    }
}
