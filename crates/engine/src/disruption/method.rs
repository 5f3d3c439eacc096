//! The ways in which Karpenter takes nodes away, and how a pass over them is configured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use karpenter_api::nodepool::DisruptionReason;

use super::policy::ProviderRepair;
use crate::labels::Text;
use crate::snapshot::SolveOptions;

/// A way of disrupting nodes. In a pass they are asked in the order of [`Method::ALL`]; the first with a command ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Reboot or replace nodes that are broken.
    Repair,
    /// Delete nodes nobody needs.
    Emptiness,
    /// Replace drifted nodes of static pools.
    StaticDrift,
    /// Replace drifted nodes.
    Drift,
    /// Replace several nodes by one, or by none.
    MultiNodeConsolidation,
    /// Replace one node by a cheaper one, or by none.
    SingleNodeConsolidation,
}

/// How far a method goes against what protects pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Respects every protection.
    Graceful,
    /// Overrides protections of pods where the NodeClaim bounds how long a drain may take.
    Eventual,
    /// Overrides protections of pods where the repair or the NodeClaim bounds the drain, and ignores that of the node.
    Repair,
}

impl Method {
    /// Every method in upstream's order.
    pub const ALL: [Method; 6] = [
        Method::Repair,
        Method::Emptiness,
        Method::StaticDrift,
        Method::Drift,
        Method::MultiNodeConsolidation,
        Method::SingleNodeConsolidation,
    ];

    /// Upstream's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Repair => "Repair",
            Method::Emptiness => "Emptiness",
            Method::StaticDrift => "StaticDrift",
            Method::Drift => "Drift",
            Method::MultiNodeConsolidation => "MultiNodeConsolidation",
            Method::SingleNodeConsolidation => "SingleNodeConsolidation",
        }
    }

    /// The reason budgets, conditions and events give for it.
    pub const fn reason(self) -> DisruptionReason {
        match self {
            Method::Repair => DisruptionReason::Unhealthy,
            Method::Emptiness => DisruptionReason::Empty,
            Method::StaticDrift | Method::Drift => DisruptionReason::Drifted,
            Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
                DisruptionReason::Underutilized
            }
        }
    }

    /// How far it goes.
    pub const fn class(self) -> Class {
        match self {
            Method::Repair => Class::Repair,
            Method::StaticDrift | Method::Drift => Class::Eventual,
            _ => Class::Graceful,
        }
    }

    /// The label `consolidation_type` of metrics; empty for methods that do not consolidate.
    pub const fn consolidation_type(self) -> &'static str {
        match self {
            Method::Emptiness => "empty",
            Method::MultiNodeConsolidation => "multi",
            Method::SingleNodeConsolidation => "single",
            _ => "",
        }
    }

    /// Whether its commands wait and are then checked against the cluster as it is by then ([`super::Pass::validate`]).
    pub const fn is_consolidation(self) -> bool {
        !self.consolidation_type().is_empty()
    }
}

/// How long to wait between computing a consolidation and validating it.
pub const VALIDATION_DELAY: Duration = Duration::from_secs(15);
/// How long looking for a multi-node consolidation may take.
pub const MULTI_NODE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long looking for a single-node consolidation may take.
pub const SINGLE_NODE_TIMEOUT: Duration = Duration::from_secs(180);

/// Feature gates that touch disruption, with upstream's defaults: all off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisruptionGates {
    /// Broken nodes are repaired.
    pub node_repair: bool,
    /// A spot node may be replaced by a cheaper spot node.
    pub spot_to_spot_consolidation: bool,
    /// Drifted nodes that occupy the capacity their replacement needs are terminated first.
    pub terminate_first_drift: bool,
    /// The same for repair.
    pub terminate_first_repair: bool,
    /// Karpenter writes `pod-deletion-cost` itself, so the annotation says nothing about the owner's wishes.
    pub pod_deletion_cost_management: bool,
}

/// How to decide about disruption.
#[derive(Clone, Debug, Default)]
pub struct DisruptionOptions {
    /// How simulations place pods. Their reserved mode is up to the method.
    pub solve: SolveOptions,
    /// Feature gates.
    pub gates: DisruptionGates,
    /// What every provider wants repaired, and how; none when repair is off or left to the legacy controller.
    pub repair: Vec<ProviderRepair>,
    /// How many threads may look for a single-node consolidation; the outcome is the same for any number.
    pub threads: usize,
}

impl DisruptionOptions {
    /// The methods that take part, in order.
    pub fn methods(&self) -> impl Iterator<Item = Method> + '_ {
        Method::ALL.into_iter().filter(|m| *m != Method::Repair || self.repairs())
    }

    pub(crate) fn repairs(&self) -> bool {
        self.gates.node_repair && !self.repair.is_empty()
    }
}

/// What the controller remembers between passes and no object says.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Provider ids of nodes that belong to a command under way.
    pub queued: BTreeSet<Text>,
    /// Nodes that their platform is at work on, by provider id, and what it does: only if nothing runs on them they may go.
    pub held: BTreeMap<Text, Text>,
    /// Nodes whose platform can end and replace nothing, by provider id, and why: none goes, not even an empty or a broken one.
    pub kept: BTreeMap<Text, Text>,
    /// Provider ids of nodes that could not be disrupted a while ago, by whatever method: others have their turn.
    pub passed_over: BTreeSet<Text>,
    /// Provider ids of nodes that somebody else takes away, or that may be disrupted although nothing says so yet: they count as
    /// disrupted.
    pub leaving: BTreeSet<Text>,
    /// Provider ids of nodes that hold room for capacity buffers.
    pub buffer_nodes: BTreeSet<Text>,
    /// Names of NodeClaims of static pools that are about to be deleted but not marked yet.
    pub pending_disruption: BTreeSet<Text>,
    /// Nodes reserved against `limits.nodes` of static pools, by pool.
    pub reserved_nodes: BTreeMap<Text, i64>,
    /// Reboots of the last 24 hours by NodeClaim UID.
    pub recent_reboots: BTreeMap<Text, usize>,
    /// UIDs of NodeClaims whose repair could not be begun in this pass: the next node is as urgent.
    pub unrepaired: BTreeSet<Text>,
    /// What all of a pool costs per hour by the last prices that were known: of what is offered no more nothing else tells.
    pub pool_costs: BTreeMap<Text, f64>,
    /// Pools a single-node pass that ran out of time did not come to; they go first.
    pub unseen_pools: BTreeSet<Text>,
}

/// Tells how long the pass has been thinking. The engine has no clock of its own.
pub type Stopwatch<'a> = &'a (dyn Fn() -> Duration + Sync);
