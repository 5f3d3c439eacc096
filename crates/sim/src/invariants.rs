//! Rules that must hold after every write, whatever goes wrong.
//!
//! An [`Invariant`] sees each entry of the tape with what it changed, and may remember. A rule that concerns Karpenter names
//! the numbers of the lifecycle's invariants it covers; only those that are really checked are named.

pub mod commands;
pub mod destinations;
pub mod disruption;
pub mod drain;
pub mod identity;
pub mod lifecycle;
pub mod reasons;
pub mod reboots;
pub mod replacements;
pub mod restraint;
pub mod told;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::inventory::{InstanceId, Inventory};
use crate::objects::{Change, Objects};
use crate::tape::Entry;

/// What a call asks of the cloud, told when the call is made and not when it takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To launch a machine for a NodeClaim, by its uid.
    Launch {
        /// The uid.
        claim_uid: String,
    },
    /// To remove a machine.
    Terminate {
        /// Which.
        id: InstanceId,
    },
}

/// One write, with what it changed.
pub struct Step<'a> {
    /// The line on the tape.
    pub entry: &'a Entry,
    /// The body of the request.
    pub body: &'a [u8],
    /// What was asked of the cloud, if it was.
    pub asked: Option<&'a Asked>,
    /// The changes of kinds the world knows.
    pub changes: &'a [Arc<Change>],
    /// All changes, of every kind.
    pub raw: &'a [karpenter_apiserver::Change],
    /// Everything as it is after the write.
    pub objects: &'a Objects,
    /// The cloud's machines after the write.
    pub inventory: &'a Inventory,
    /// The time.
    pub now: Timestamp,
}

/// The world at rest: faults healed, and enough time passed for everything to come right.
pub struct Rest<'a> {
    /// Everything that is there.
    pub objects: &'a Objects,
    /// The cloud's machines.
    pub inventory: &'a Inventory,
    /// The time.
    pub now: Timestamp,
    /// How long ago faults ended.
    pub healed_for: Duration,
}

/// A rule.
pub trait Invariant: Send {
    /// What the rule is called.
    fn name(&self) -> &'static str;

    /// Which of the lifecycle's invariants it covers, by number.
    fn rules(&self) -> &'static [&'static str] {
        &[]
    }

    /// Says what is wrong after a write, if something is.
    ///
    /// # Errors
    ///
    /// What is wrong, with the object's name.
    fn check(&mut self, step: &Step<'_>) -> Result<(), String>;

    /// Says what is wrong when everything should have come right.
    ///
    /// # Errors
    ///
    /// What is wrong, with the object's name.
    fn check_at_rest(&mut self, _rest: &Rest<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// The rule.
    pub invariant: &'static str,
    /// The specification's numbers of it.
    pub rules: &'static [&'static str],
    /// The write that broke it; `None` if it was found at rest.
    pub entry: Option<Box<Entry>>,
    /// What is wrong.
    pub why: String,
}

impl Violation {
    pub(crate) fn new(invariant: &dyn Invariant, entry: Option<&Entry>, why: String) -> Self {
        Self {
            invariant: invariant.name(),
            rules: invariant.rules(),
            entry: entry.cloned().map(Box::new),
            why,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.invariant)?;
        if !self.rules.is_empty() {
            write!(f, " ({})", self.rules.join(", "))?;
        }
        write!(f, ": {}", self.why)?;
        match &self.entry {
            Some(entry) => write!(f, "; broken by {entry}"),
            None => write!(f, "; found at rest"),
        }
    }
}

/// All rules there are, for a Karpenter whose writes stand under names that start with `karpenter`.
pub fn all(karpenter: &str) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(identity::FinalizersHold),
        Box::new(identity::OneInstancePerClaim),
        Box::new(identity::LaunchesHaveAnOwner),
        Box::new(identity::ProviderIdsStay),
        Box::new(identity::NoOrphans::default()),
        Box::new(lifecycle::RegistrationIsOneStep),
        Box::new(lifecycle::InitializedNodesAreLabelled),
        Box::new(lifecycle::ClaimsOutliveTheirInstance),
        Box::new(lifecycle::NodesAreDrainedFirst),
        Box::new(reasons::WorkingNodesStay::new(karpenter)),
        Box::new(disruption::BudgetsAreKept),
        Box::new(disruption::PodsAreEvicted::new(karpenter)),
        Box::new(disruption::TerminationTimesStay),
        Box::new(drain::TiersLeaveInOrder::new(karpenter)),
        Box::new(commands::BudgetsHold::default()),
        Box::new(commands::TheUndisturbedStay::default()),
        Box::new(commands::TheUndisturbedAreNotEvicted::new(karpenter)),
        Box::new(commands::NoTracesAreLeft::default()),
        Box::new(commands::ConditionsAreNotLost),
        Box::new(restraint::RepairIsVetoed::default()),
        Box::new(restraint::EmptyNodesWereEmpty::default()),
        Box::new(restraint::StaticPoolsKeepTheirLimit::new(karpenter)),
        Box::new(reboots::RebootsAreFew::new(karpenter)),
        Box::new(told::EndsAreToldAfterwards::new(karpenter)),
        Box::new(destinations::PodsHaveSomewhereToGo::new(karpenter)),
    ]
}
