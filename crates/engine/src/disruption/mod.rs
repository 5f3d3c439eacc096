//! Which nodes to take away, and what to put in their place. Pure, like the rest of the engine.
//!
//! ```text
//! Snapshot + DisruptionOptions + Memory ──▶ Pass ──run(method)──▶ Outcome { commands, stays, … }
//!                                            └────validate(command)──▶ the command, or why not any more
//! ```
//!
//! # How a controller uses it
//!
//! Once per loop it takes a snapshot and makes a [`Pass`]. It asks the methods of [`DisruptionOptions::methods`] in order
//! ([`Pass::run`]) and carries out the commands of the first that has any. A command of a consolidation
//! ([`Method::is_consolidation`]) waits for [`VALIDATION_DELAY`] first; then a *new* pass over a *new* snapshot must still find it good
//! ([`Pass::validate`]). Commands own what they name, so they outlive the snapshot.
//!
//! What only the controller can know it says in [`Memory`]: nodes in its queue, nodes it passes over, nodes held for buffers,
//! reservations of static pools, reboots. What the outcome asks it to remember is in [`Outcome`]: whether the cluster counts as
//! consolidated until something changes, and which pools a pass that ran out of time has not come to.
//!
//! # Why a node stays
//!
//! Every node a method does not take has one [`Why`] in [`Outcome::stays`]: typed, with upstream's event text ([`Why::event`]) and
//! a sentence for people (`Display`). [`explain`] puts the outcomes of all methods together, one verdict per node.
//!
//! # Where to look
//!
//! | what | where |
//! |---|---|
//! | which nodes may be disrupted | `candidate` (eligibility, facts), `cost`, `budgets` |
//! | what would happen to the pods | `simulate` (purposes and results), `workbench` (one compiled cluster, many simulations) |
//! | whether it is worth it | `consolidate` (prices), `balanced` (scores) |
//! | the methods | `emptiness`, `drift`, `static_drift`, `multi`, `single`, `repair` with `policy` |
//! | after the wait | `validate` |
//! | what comes out | `command`, `reasons`, `verdict` |
//! | which pods and static nodes should go first | `deletion_order` |

mod balanced;
mod budgets;
mod candidate;
mod command;
mod consolidate;
mod cost;
mod deletion_order;
mod drift;
mod emptiness;
mod method;
mod multi;
mod policy;
mod reasons;
mod repair;
mod simulate;
mod single;
mod static_drift;
mod validate;
mod verdict;
mod workbench;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use budgets::BudgetStanding;
pub use candidate::{Candidate, may_be_disrupted};
pub use command::{Command, Decision, Score, TerminateFirst};
pub use deletion_order::{DeletionOrder, RankedNode, deletion_order, scale_down_order};
pub use method::{
    Class, DisruptionGates, DisruptionOptions, DisruptionReason, MULTI_NODE_TIMEOUT, Memory, Method,
    SINGLE_NODE_TIMEOUT, Stopwatch, VALIDATION_DELAY,
};
pub use policy::{
    ProviderRepair, RepairAction, RepairDecision, RepairPolicies, RepairPolicy, RepairPolicyError,
};
pub use reasons::{EventKind, PodTrouble, PodTroubleReason, SPOT_TO_SPOT_TYPES, Stays, Why};
pub use simulate::SimulationError;
pub use validate::{Invalid, Valid};
pub use verdict::{Verdict, explain};

use balanced::Scales;
use budgets::Purse;
use candidate::Census;
use workbench::Workbench;

use crate::labels::Text;
use crate::roster::Roster;
use crate::snapshot::Snapshot;

/// What a method found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The method.
    pub method: Method,
    /// Nodes it may choose from, in order of name.
    pub candidates: Vec<Arc<Candidate>>,
    /// Where every pool's budget stood before; empty when there was nothing to choose from.
    pub budgets: BTreeMap<Text, BudgetStanding>,
    /// What to do.
    pub commands: Vec<Command>,
    /// The last batch of a multi-node pass that some Balanced pool did not find worth it, if no other was found.
    pub rejected: Option<Box<Command>>,
    /// Every other node, in order of name, and why it stays.
    pub stays: Vec<Stays>,
    /// Whether nothing was found that a change in the cluster would not have to bring about: there is no use in asking
    /// again before. A budget or the time may change on their own.
    pub consolidated: bool,
    /// Whether time ran out.
    pub timed_out: bool,
    /// How many nodes a single-node pass has tried, or how many were in the last batch of a multi-node pass.
    pub evaluated: usize,
    /// Pools a single-node pass has not come to, for [`Memory::unseen_pools`]; `None` leaves them as they are.
    pub unseen_pools: Option<BTreeSet<Text>>,
    /// Why the method could not do its work.
    pub error: Option<SimulationError>,
}

/// One look at the cluster with disruption in mind.
pub struct Pass<'s> {
    judge: Judge<'s>,
    roster: Arc<Roster<'s>>,
    bench: Workbench<'s>,
    stopwatch: Option<Stopwatch<'s>>,
}

/// Everything that is known before anything is simulated. Threads share it.
pub(crate) struct Judge<'s> {
    census: Census<'s>,
    options: &'s DisruptionOptions,
    memory: &'s Memory,
    scales: Scales,
}

impl<'s> Pass<'s> {
    /// Looks at every node once.
    pub fn new(snapshot: &'s Snapshot, options: &'s DisruptionOptions, memory: &'s Memory) -> Self {
        let roster = Arc::new(Roster::new(snapshot));
        let census = Census::new(snapshot, &roster, options, memory);
        let scales =
            Scales::new(&census, &roster, options.gates.pod_deletion_cost_management, &memory.pool_costs);
        let judge = Judge { census, options, memory, scales };
        let bench = Workbench::new(options, roster.clone());
        Pass { judge, roster, bench, stopwatch: None }
    }

    /// Gives up looking for consolidations after [`MULTI_NODE_TIMEOUT`] and [`SINGLE_NODE_TIMEOUT`], a safety net. Without a stopwatch
    /// a pass takes as long as it takes.
    pub fn with_stopwatch(self, stopwatch: Stopwatch<'s>) -> Self {
        Pass { stopwatch: Some(stopwatch), ..self }
    }

    /// What the method may choose from and where the budgets stand, without looking for anything to do: for a method that
    /// found nothing in the same cluster before.
    pub fn survey(&mut self, method: Method) -> Outcome {
        self.prepare(method).outcome
    }

    fn prepare(&mut self, method: Method) -> Search<'_, 's> {
        let mut search = Search::new(self, method);
        if !search.candidates.is_empty() {
            let census = &search.judge.census;
            search.outcome.budgets = budgets::standings(census.snapshot, &census.leaving, method.reason());
        }
        search
    }

    /// What the method would do.
    pub fn run(&mut self, method: Method) -> Outcome {
        let mut search = self.prepare(method);
        if search.candidates.is_empty() {
            return search.outcome;
        }
        search.purse = Purse::new(&search.outcome.budgets);
        match method {
            Method::Repair => search.repair(),
            Method::Emptiness => search.emptiness(),
            Method::StaticDrift => search.static_drift(),
            Method::Drift => search.drift(),
            Method::MultiNodeConsolidation => search.multi(),
            Method::SingleNodeConsolidation => search.single(),
        }
        search.finish()
    }

    /// The command as it is good now, after the wait: for empty nodes those that still are, for the others all or nothing.
    /// Commands of methods that do not wait are good as they are. Ask a pass over a new snapshot.
    pub fn validate(&mut self, command: &Command) -> Result<Valid, Invalid> {
        self.judge.validate(&mut self.bench, command)
    }
}

/// A method at work.
pub(crate) struct Search<'a, 's> {
    judge: &'a Judge<'s>,
    roster: &'a Arc<Roster<'s>>,
    bench: &'a mut Workbench<'s>,
    stopwatch: Option<Stopwatch<'s>>,
    method: Method,
    candidates: Vec<Arc<Candidate>>,
    purse: Purse,
    /// By node name: why it stays. Candidates without an entry have not been tried.
    reasons: BTreeMap<Text, Why>,
    outcome: Outcome,
}

impl<'a, 's> Search<'a, 's> {
    fn new(pass: &'a mut Pass<'s>, method: Method) -> Self {
        let Pass { judge, roster, bench, stopwatch } = pass;
        let (judge, census) = (&*judge, &judge.census);
        let mut candidates = Vec::new();
        let mut stays = Vec::new();
        for number in &census.in_order {
            let machine = &census.snapshot.nodes[*number];
            let eligible = census.candidate(*number, method.class());
            match eligible.and_then(|c| judge.chosen_by(method, c)) {
                Ok(candidate) => candidates.push(candidate),
                Err(why) => stays.push(Stays {
                    node: machine.name().clone(),
                    claim: machine.claim.as_ref().map_or_else(|| "".into(), |c| c.name.clone()),
                    method,
                    why,
                }),
            }
        }
        Search {
            judge,
            roster,
            bench,
            stopwatch: *stopwatch,
            method,
            purse: Purse::new(&BTreeMap::new()),
            reasons: BTreeMap::new(),
            outcome: Outcome {
                method,
                candidates: candidates.clone(),
                budgets: BTreeMap::new(),
                commands: Vec::new(),
                rejected: None,
                stays,
                consolidated: false,
                timed_out: false,
                evaluated: 0,
                unseen_pools: None,
                error: None,
            },
            candidates,
        }
    }

    fn elapsed(&self) -> Duration {
        self.stopwatch.map_or(Duration::ZERO, |s| s())
    }

    /// Notes why the candidate stays.
    fn stays(&mut self, candidate: &Candidate, why: Why) {
        self.reasons.insert(candidate.node.clone(), why);
    }

    /// The budget as the reason why the candidate stays.
    fn over_budget(&mut self, candidate: &Candidate) {
        let standing = self.outcome.budgets.get(&candidate.node_pool).cloned();
        let standing =
            standing.unwrap_or(BudgetStanding { nodes: 0, disrupting: 0, allowed: 0, errors: Vec::new() });
        let why = Why::Budget { pool: candidate.node_pool.clone(), reason: self.method.reason(), standing };
        self.stays(candidate, why);
    }

    fn finish(mut self) -> Outcome {
        let taken: BTreeSet<&Text> =
            self.outcome.commands.iter().flat_map(|c| &c.candidates).map(|c| &c.node).collect();
        for candidate in &self.outcome.candidates {
            if taken.contains(&candidate.node) {
                continue;
            }
            let why = self.reasons.remove(&candidate.node).unwrap_or(match self.outcome.error {
                Some(SimulationError::NoNodePools) => Why::NoPools,
                None if !taken.is_empty() => Why::NotTried,
                None if self.outcome.timed_out => Why::OutOfTime,
                None if self.method == Method::MultiNodeConsolidation => Why::NoBatch,
                None => Why::NotTried,
            });
            self.outcome.stays.push(Stays {
                node: candidate.node.clone(),
                claim: candidate.claim.clone(),
                method: self.method,
                why,
            });
        }
        self.outcome.stays.sort_by(|a, b| a.node.cmp(&b.node));
        self.outcome
    }

    /// Candidates by what they save per disturbance, most first; equals by name.
    fn by_savings(&self) -> Vec<Arc<Candidate>> {
        let mut sorted = self.candidates.clone();
        sorted.sort_by(|a, b| b.savings_ratio().total_cmp(&a.savings_ratio()));
        sorted
    }
}
