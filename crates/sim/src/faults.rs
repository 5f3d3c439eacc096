//! What goes wrong between one client and the server, as the seed decides. The world's own clients are never touched.
//!
//! Faults stand outside the server, so that a write can be committed and its answer lost. Each seed also draws *which* kinds
//! of faults exist and how likely they are: a run with few kinds at high rates finds what a uniform mixture does not.

mod lens;
pub(crate) mod service;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_apiserver::{Bell, Listener};
use karpenter_runtime::entropy::Entropy;
use tokio::time::Instant;

use crate::chance::{Chance, Span};
pub use lens::Lens;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A request or its answer takes long.
    Latency,
    /// 409 to a write, which has no effect.
    Conflict,
    /// 429, no effect.
    TooManyRequests,
    /// 500, no effect.
    InternalError,
    /// 504; the write may have taken effect.
    GatewayTimeout,
    /// The write took effect; the connection broke before the answer.
    LostReply,
    /// The server cannot be reached for a while; watches break. Long ones cost the lease.
    Outage,
    /// A watch ends early.
    WatchDrop,
    /// A watch lags behind.
    StaleWatch,
    /// A watch is told that its position is too old.
    Gone,
    /// A watch repeats an event.
    DuplicateEvent,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Latency,
        Self::Conflict,
        Self::TooManyRequests,
        Self::InternalError,
        Self::GatewayTimeout,
        Self::LostReply,
        Self::Outage,
        Self::WatchDrop,
        Self::StaleWatch,
        Self::Gone,
        Self::DuplicateEvent,
    ];

    /// What a rate of this kind is per: requests are many, watches few, an outage hits everything.
    fn rates(self) -> [f64; 3] {
        match self {
            Self::Latency => [0.05, 0.3, 0.8],
            Self::Outage => [0.0005, 0.002, 0.005],
            Self::WatchDrop | Self::StaleWatch => [0.1, 0.3, 0.7],
            Self::Gone => [0.05, 0.1, 0.3],
            Self::DuplicateEvent => [0.01, 0.05, 0.2],
            _ => [0.005, 0.02, 0.1],
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Which faults there are, and how likely.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    rates: BTreeMap<Fault, f64>,
}

impl FaultPlan {
    /// None.
    pub fn none() -> Self {
        Self::default()
    }

    /// Every kind, at its middle rate.
    pub fn all() -> Self {
        Self { rates: Fault::ALL.iter().map(|fault| (*fault, fault.rates()[1])).collect() }
    }

    /// Drawn from the seed: about half of the kinds, each at one of its rates.
    pub fn swarm(entropy: &Entropy) -> Self {
        let mut chance = Chance::new(entropy, "fault plan");
        let mut plan = Self::none();
        for fault in Fault::ALL {
            let (exists, rate) = (chance.happens(0.5), chance.below(3));
            if exists {
                plan.rates.insert(fault, fault.rates()[usize::try_from(rate).unwrap_or(0)]);
            }
        }
        plan
    }

    /// With one kind set to a rate.
    #[must_use]
    pub fn with(mut self, fault: Fault, rate: f64) -> Self {
        self.rates.insert(fault, rate);
        self
    }

    /// The rate of a kind.
    pub fn rate(&self, fault: Fault) -> f64 {
        self.rates.get(&fault).copied().unwrap_or_default()
    }

    /// The kinds there are.
    pub fn kinds(&self) -> impl Iterator<Item = Fault> {
        self.rates.iter().filter(|(_, rate)| **rate > 0.0).map(|(fault, _)| *fault)
    }
}

/// Why a client is refused everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 401: its credentials are not valid.
    Unauthorized,
    /// 403: it may not.
    Forbidden,
}

/// The faults of one client, switched on and off from outside. Clones are the same.
#[derive(Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    /// Counts outages; open watches break when it changes.
    outages: Bell,
}

struct State {
    plan: FaultPlan,
    healed: bool,
    chance: Chance,
    unreachable_until: Option<Instant>,
    /// What the client is told while it is refused, and until when.
    refused: Option<(Refusal, Instant)>,
    counts: BTreeMap<Fault, u64>,
    lens: Option<Arc<dyn Lens>>,
}

impl Faults {
    /// Faults after a plan, drawn from the stream of this name.
    pub fn new(plan: FaultPlan, entropy: &Entropy, name: &str) -> Self {
        let chance = Chance::new(entropy, &format!("faults/{name}"));
        let state = State {
            plan,
            healed: false,
            chance,
            unreachable_until: None,
            refused: None,
            counts: BTreeMap::new(),
            lens: None,
        };
        Self { state: Arc::new(Mutex::new(state)), outages: Bell::default() }
    }

    /// From now on nothing goes wrong any more; what is held back flows again.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.healed = true;
        state.unreachable_until = None;
        state.refused = None;
    }

    /// Plants a mistake, which nothing heals.
    pub fn plant(&self, lens: Arc<dyn Lens>) {
        self.lock().lens = Some(lens);
    }

    fn lens(&self) -> Option<Arc<dyn Lens>> {
        self.lock().lens.clone()
    }

    /// Whether things may go wrong.
    pub fn are_on(&self) -> bool {
        !self.lock().healed
    }

    /// Cuts the client off for a while.
    pub fn cut_off(&self, period: Duration) {
        self.lock().unreachable_until = Some(Instant::now() + period);
        self.outages.ring(self.outages.number() + 1);
    }

    /// Refuses everything the client asks for a while, as a server does whose credentials ran out or whose permissions were taken away;
    /// watches break.
    pub fn refuse(&self, refusal: Refusal, period: Duration) {
        self.lock().refused = Some((refusal, Instant::now() + period));
        self.outages.ring(self.outages.number() + 1);
    }

    /// What the client is told, if it is refused.
    pub fn refusal(&self) -> Option<Refusal> {
        self.lock().refused.filter(|(_, until)| Instant::now() < *until).map(|(refusal, _)| refusal)
    }

    /// How often each kind struck.
    pub fn counts(&self) -> BTreeMap<Fault, u64> {
        self.lock().counts.clone()
    }

    /// Whether the client is cut off.
    pub fn is_cut_off(&self) -> bool {
        self.lock().unreachable_until.is_some_and(|until| Instant::now() < until)
    }

    fn strikes(&self, fault: Fault) -> bool {
        let mut state = self.lock();
        let rate = if state.healed { 0.0 } else { state.plan.rate(fault) };
        let strikes = rate > 0.0 && state.chance.happens(rate);
        if strikes {
            *state.counts.entry(fault).or_default() += 1;
        }
        strikes
    }

    fn coin(&self) -> bool {
        self.lock().chance.happens(0.5)
    }

    fn duration(&self, span: &Span) -> Duration {
        self.lock().chance.duration(span)
    }

    fn outages(&self) -> Listener {
        self.outages.listen()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
