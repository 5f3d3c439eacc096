//! Why a node stays: one typed reason per node and method.
//!
//! [`Why::event`] is upstream's event text where upstream has one (`DisruptionBlocked`, `Unconsolidatable`); `Display` is a sentence
//! for people, which names what stands in the way and, where there is something to do, what.

use std::fmt;

use karpenter_api::nodepool::DisruptionReason;

use super::budgets::BudgetStanding;
use super::command::Score;
use super::method::Method;
use crate::labels::{CAPACITY_TYPE, DO_NOT_DISRUPT, DO_NOT_REPAIR, NODE_POOL, Text, ZONE};
use crate::reasons::Unplaceable;

/// A node that stays, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Stays {
    /// The node's name.
    pub node: Text,
    /// The NodeClaim's name; empty when there is none.
    pub claim: Text,
    /// Who looked at it; the same eligibility holds for several methods.
    pub method: Method,
    /// Why.
    pub why: Why,
}

/// Why a node is not disrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// A command for it is under way.
    UnderWay,
    /// It could not be disrupted a moment ago, by no fault of any decision.
    PassedOver,
    /// Karpenter does not manage it.
    NotManaged,
    /// It is a Node of this NodePool, and its NodeClaim is gone.
    NoClaim(Text),
    /// The NodeClaim has no Node yet.
    NoNode,
    /// It is rebooting.
    Rebooting,
    /// It is going away already.
    Deleting,
    /// It has not registered.
    NotRegistered,
    /// It is not fully up.
    NotInitialized,
    /// A recent pass counts on it for pods that wait.
    Nominated,
    /// Its annotation forbids it.
    NodeDoNotDisrupt,
    /// The platform it is of is at work on it, as it says.
    HeldByProvider(Text),
    /// It does not say which pool it belongs to.
    NoPoolLabel,
    /// Its pool does not exist or offers nothing.
    PoolNotFound(Text),
    /// Nobody could say what its pool offers.
    OffersUnknown {
        /// The pool.
        pool: Text,
        /// Why not.
        reason: Text,
    },
    /// A pod's annotation forbids it.
    PodDoNotDisrupt {
        /// `namespace/name`.
        pod: String,
        /// The annotation's value: `true`, or for how long.
        value: Text,
    },
    /// PodDisruptionBudgets forbid the eviction of a pod: one that allows nothing, or several, which no eviction can satisfy.
    PodBudgets {
        /// `namespace/name` of the pod.
        pod: String,
        /// `namespace/name` of the budgets.
        budgets: Vec<String>,
    },
    /// Repair needs to know the pool.
    RepairNeedsPool,

    /// A static pool's nodes are not consolidated.
    StaticPool,
    /// Its instance type is not offered any more, so its price is not known.
    TypeUnknown(Text),
    /// It lacks a label the price depends on.
    LabelMissing(&'static str),
    /// Its pool never consolidates.
    ConsolidationDisabled(Text),
    /// Its pool consolidates empty nodes only, and it is not empty.
    OnlyWhenEmpty(Text),
    /// Something runs on it (for the method that takes empty nodes).
    NotEmpty,
    /// Nothing that counts runs on it: the method for empty nodes takes it.
    Empty,
    /// It, the node of this name, holds room for capacity buffers.
    BufferPods(Text),
    /// It has not been quiet for long enough (`consolidateAfter`), or nobody has said so yet.
    NotConsolidatable {
        /// `consolidateAfter` in seconds.
        after_seconds: i64,
    },
    /// It has not drifted.
    NotDrifted,
    /// It is healthy, or has not been unhealthy for long enough.
    Healthy,
    /// Its annotation forbids repair.
    DoNotRepair,
    /// Pods forbid the drain and nothing bounds it.
    RepairUnbounded,
    /// Too many nodes of the pool are unhealthy at once.
    TooManyUnhealthy(Text),

    /// Its pool's budget is used up.
    Budget {
        /// The pool.
        pool: Text,
        /// For which reason.
        reason: DisruptionReason,
        /// Where the budget stands.
        standing: BudgetStanding,
    },
    /// A Balanced pool finds that it saves too little for what it disturbs.
    NotWorthIt {
        /// The pool.
        pool: Text,
        /// Its score.
        score: Score,
        /// Whether that is what taking the node away for nothing would score, so that no move had to be weighed.
        at_best: bool,
    },
    /// Its pods would not all find a place.
    PodsWouldNotSchedule {
        /// Some of them, at most five, in order.
        shown: Vec<PodTrouble>,
        /// How many in all.
        count: usize,
    },
    /// It would take several nodes to replace it.
    NeedsSeveralNodes(usize),
    /// New nodes would be bought whatever becomes of it: for pods that wait, and none of its own.
    OthersNeedNodes {
        /// The first of these pods.
        pod: String,
        /// How many there are besides.
        more: usize,
        /// What was found to be in the way; upstream tells no more.
        found: Box<Why>,
    },
    /// What is left after comparing prices does not meet `minValues`.
    MinValues(Vec<Text>),
    /// Nothing that could replace it is cheaper.
    NotCheaper {
        /// What it costs per hour.
        price: f64,
        /// What the cheapest replacement would.
        cheapest: Option<f64>,
    },
    /// A spot node would be replaced by a spot node, which is switched off.
    SpotToSpotDisabled,
    /// A spot node needs more cheaper types to choose from.
    SpotToSpotTooFew(usize),
    /// The static pool is still being scaled down.
    ScaleDownFirst(Text),
    /// The static pool has as many nodes as its limit allows.
    StaticAtLimit,
    /// The static pool's reservations are full.
    StaticReservationsFull,
    /// More nodes of the pool have drifted than may be replaced at once.
    BehindOthers,
    /// No pool can take part in a simulation.
    NoPools,
    /// No batch of several nodes with it can go.
    NoBatch,
    /// Time ran out before anything was found.
    OutOfTime,
    /// Its repair could not be begun in this pass: it is rebooting or going, or has changed.
    RepairNotBegun,
    /// Another node was found first.
    NotTried,
}

/// A pod that would not find a place.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTrouble {
    /// `namespace/name`.
    pub pod: String,
    /// Why.
    pub reason: PodTroubleReason,
}

/// Why a pod would not find a place.
#[derive(Clone, Debug, PartialEq)]
pub enum PodTroubleReason {
    /// Neither a node nor a new one would do.
    Unplaceable(Unplaceable),
    /// It would go to a node that is not up yet or rebooting, which is not certain enough.
    NotUp {
        /// The NodeClaim.
        claim: Text,
        /// The Node, once it exists.
        node: Option<Text>,
        /// Whether it is rebooting.
        rebooting: bool,
    },
}

impl PodTroubleReason {
    /// As it reads, with what several NodePools say alike said once.
    fn said_once(&self) -> String {
        let PodTroubleReason::Unplaceable(Unplaceable::AllPools(pools)) = self else {
            return self.to_string();
        };
        let mut said: Vec<String> = Vec::new();
        for text in pools.iter().map(ToString::to_string) {
            if !said.contains(&text) {
                said.push(text);
            }
        }
        said.join("; ")
    }
}

impl fmt::Display for PodTroubleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodTroubleReason::Unplaceable(why) => write!(f, "{why}"),
            PodTroubleReason::NotUp { claim, node, rebooting } => {
                let state = if *rebooting { "rebooting" } else { "uninitialized" };
                write!(f, "would schedule against {state} nodeclaim/{claim}")?;
                node.as_ref().map_or(Ok(()), |node| write!(f, ", node/{node}"))
            }
        }
    }
}

/// Which event upstream publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `DisruptionBlocked`.
    Blocked,
    /// `Unconsolidatable`.
    Unconsolidatable,
    /// `NodeRepairBlocked`.
    RepairBlocked,
}

impl EventKind {
    /// The event's reason.
    pub const fn as_str(self) -> &'static str {
        match self {
            EventKind::Blocked => "DisruptionBlocked",
            EventKind::Unconsolidatable => "Unconsolidatable",
            EventKind::RepairBlocked => "NodeRepairBlocked",
        }
    }
}

/// How many cheaper types a spot node needs to choose from before it is replaced by a spot node.
pub const SPOT_TO_SPOT_TYPES: usize = 15;

const MANY: usize = 5;

impl Why {
    /// Upstream's event for it, if it has one. Whether pods that find no place block or make unconsolidatable is the method's
    /// to say.
    pub fn event(&self, method: Method) -> Option<(EventKind, String)> {
        use EventKind::{Blocked, RepairBlocked, Unconsolidatable};
        let kind = match self {
            Why::UnderWay
            | Why::PassedOver
            | Why::NotManaged
            | Why::NoClaim(_)
            | Why::StaticPool
            | Why::NotEmpty
            | Why::Empty
            | Why::NotConsolidatable { .. }
            | Why::NotDrifted
            | Why::Healthy
            | Why::Budget { .. }
            | Why::NotWorthIt { .. }
            | Why::ScaleDownFirst(_)
            | Why::BehindOthers
            | Why::NoPools
            | Why::NoBatch
            | Why::OutOfTime
            | Why::RepairNotBegun
            | Why::NotTried => return None,
            Why::TypeUnknown(_)
            | Why::LabelMissing(_)
            | Why::ConsolidationDisabled(_)
            | Why::OnlyWhenEmpty(_)
            | Why::BufferPods(_)
            | Why::NeedsSeveralNodes(_)
            | Why::OthersNeedNodes { .. }
            | Why::MinValues(_)
            | Why::NotCheaper { .. }
            | Why::SpotToSpotDisabled
            | Why::SpotToSpotTooFew(_) => Unconsolidatable,
            Why::PodsWouldNotSchedule { .. } if method.is_consolidation() => Unconsolidatable,
            Why::TooManyUnhealthy(_) => RepairBlocked,
            _ => Blocked,
        };
        // Upstream makes sentences of errors, and of nothing it wrote as a message.
        let text = match self {
            Why::RepairNeedsPool
            | Why::DoNotRepair
            | Why::RepairUnbounded
            | Why::TooManyUnhealthy(_)
            | Why::StaticAtLimit
            | Why::StaticReservationsFull => self.event_text(),
            _ => capitalized(self.event_text()),
        };
        Some((kind, text))
    }

    /// The prices behind it, which upstream's event does not say.
    pub fn prices(&self) -> Option<String> {
        match self {
            Why::OthersNeedNodes { found, .. } => found.prices(),
            Why::NotCheaper { price, .. } if !price.is_finite() => None,
            Why::NotCheaper { price, cheapest: Some(cheapest) } if cheapest.is_finite() => Some(format!(
                "it costs {} an hour, the cheapest replacement {}",
                money(*price),
                money(*cheapest)
            )),
            Why::NotCheaper { price, .. } => Some(format!("it costs {} an hour", money(*price))),
            _ => None,
        }
    }

    /// The same, or that the nodes it would take are for pods that wait, if there are such.
    pub(super) fn unless_for(self, waiting: Vec<String>) -> Self {
        let more = waiting.len().saturating_sub(1);
        match waiting.into_iter().next() {
            Some(pod) => Why::OthersNeedNodes { pod, more, found: Box::new(self) },
            None => self,
        }
    }

    fn event_text(&self) -> String {
        match self {
            Why::NoNode => "nodeclaim does not have an associated node".into(),
            Why::Rebooting => "node is rebooting".into(),
            Why::Deleting => "node is deleting or marked for deletion".into(),
            Why::NotRegistered => "node isn't initialized nor registered".into(),
            Why::NotInitialized => "node isn't initialized".into(),
            Why::Nominated => "node is nominated for a pending pod".into(),
            Why::NodeDoNotDisrupt => {
                format!("disruption is blocked through the \"{DO_NOT_DISRUPT}\" annotation")
            }
            Why::NoPoolLabel => format!("node doesn't have required label (label={NODE_POOL})"),
            Why::PoolNotFound(pool) | Why::OffersUnknown { pool, .. } => {
                format!("NodePool not found (NodePool={pool})")
            }
            Why::PodDoNotDisrupt { pod, .. } => {
                format!("pod has \"{DO_NOT_DISRUPT}\" annotation (Pod={pod})")
            }
            Why::PodBudgets { budgets, .. } if budgets.len() > 1 => {
                format!(
                    "eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{}])",
                    budgets.join(" ")
                )
            }
            Why::PodBudgets { budgets, .. } => {
                format!("pdb prevents pod evictions (PodDisruptionBudget=[{}])", budgets.join(" "))
            }
            Why::RepairNeedsPool => {
                "repair requires a NodePool to construct and budget a safe replacement".into()
            }
            Why::TypeUnknown(name) => format!("Instance Type {name:?} not found"),
            Why::LabelMissing(label) => format!("Node does not have label {label:?}"),
            Why::ConsolidationDisabled(pool) => format!("NodePool {pool:?} has consolidation disabled"),
            Why::OnlyWhenEmpty(pool) => {
                format!("NodePool {pool:?} has consolidation policy WhenEmpty, but node is not empty")
            }
            Why::BufferPods(node) => format!("Node {node:?} has buffer pods"),
            Why::DoNotRepair => format!("repair is blocked through the \"{DO_NOT_REPAIR}\" annotation"),
            Why::RepairUnbounded => {
                "repair requires a termination grace period to bypass blocking pods".into()
            }
            Why::TooManyUnhealthy(pool) => {
                format!("more than 20% of nodes in nodepool {pool:?} are unhealthy")
            }
            Why::PodsWouldNotSchedule { shown, count } => {
                let mut text = String::from("not all pods would schedule, ");
                for trouble in shown {
                    text += &format!("{} => {} ", trouble.pod, trouble.reason);
                }
                if *count >= MANY {
                    text += &format!(" and {} other(s)", count - MANY);
                }
                text
            }
            Why::OthersNeedNodes { found, .. } => found.event_text(),
            Why::NeedsSeveralNodes(count) => format!("Can't remove without creating {count} candidates"),
            Why::MinValues(labels) => format!(
                "Filtering by price: minValues requirement is not met for label(s) (label(s)=[{}])",
                labels.join(" ")
            ),
            Why::NotCheaper { .. } => "Can't replace with a cheaper node".into(),
            Why::SpotToSpotDisabled => {
                "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node".into()
            }
            Why::SpotToSpotTooFew(count) => format!(
                "SpotToSpotConsolidation requires {SPOT_TO_SPOT_TYPES} cheaper instance type options than the current candidate to consolidate, got {count}"
            ),
            Why::StaticAtLimit => {
                "static NodePool is at its node limit and cannot stage a replacement".into()
            }
            Why::StaticReservationsFull => {
                "static NodePool's capacity reservations are full and cannot stage a replacement".into()
            }
            other => other.to_string(),
        }
    }

    /// A stable name for the rule, for programs.
    pub const fn rule(&self) -> &'static str {
        match self {
            Why::UnderWay => "underWay",
            Why::PassedOver => "passedOver",
            Why::NotManaged => "notManaged",
            Why::NoClaim(_) => "noClaim",
            Why::NoNode => "noNode",
            Why::Rebooting => "rebooting",
            Why::Deleting => "deleting",
            Why::NotRegistered => "notRegistered",
            Why::NotInitialized => "notInitialized",
            Why::Nominated => "nominated",
            Why::NodeDoNotDisrupt => "nodeDoNotDisrupt",
            Why::HeldByProvider(_) => "heldByProvider",
            Why::NoPoolLabel => "noPoolLabel",
            Why::PoolNotFound(_) => "poolNotFound",
            Why::OffersUnknown { .. } => "offersUnknown",
            Why::PodDoNotDisrupt { .. } => "podDoNotDisrupt",
            Why::PodBudgets { .. } => "podDisruptionBudget",
            Why::RepairNeedsPool => "repairNeedsPool",
            Why::StaticPool => "staticPool",
            Why::TypeUnknown(_) => "instanceTypeUnknown",
            Why::LabelMissing(_) => "labelMissing",
            Why::ConsolidationDisabled(_) => "consolidationDisabled",
            Why::OnlyWhenEmpty(_) => "onlyWhenEmpty",
            Why::NotEmpty => "notEmpty",
            Why::Empty => "empty",
            Why::BufferPods(_) => "bufferPods",
            Why::NotConsolidatable { .. } => "consolidateAfter",
            Why::NotDrifted => "notDrifted",
            Why::Healthy => "healthy",
            Why::DoNotRepair => "doNotRepair",
            Why::RepairUnbounded => "repairUnbounded",
            Why::TooManyUnhealthy(_) => "tooManyUnhealthy",
            Why::Budget { .. } => "budget",
            Why::NotWorthIt { .. } => "score",
            Why::PodsWouldNotSchedule { .. } => "podsWouldNotSchedule",
            Why::NeedsSeveralNodes(_) => "needsSeveralNodes",
            Why::OthersNeedNodes { .. } => "othersNeedNodes",
            Why::MinValues(_) => "minValues",
            Why::NotCheaper { .. } => "notCheaper",
            Why::SpotToSpotDisabled => "spotToSpotDisabled",
            Why::SpotToSpotTooFew(_) => "spotToSpotTooFew",
            Why::ScaleDownFirst(_) => "scaleDownFirst",
            Why::StaticAtLimit => "staticAtLimit",
            Why::StaticReservationsFull => "staticReservationsFull",
            Why::BehindOthers => "behindOthers",
            Why::NoPools => "noPools",
            Why::NoBatch => "noBatch",
            Why::OutOfTime => "outOfTime",
            Why::RepairNotBegun => "repairNotBegun",
            Why::NotTried => "notTried",
        }
    }
}

fn capitalized(text: String) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if first.is_ascii_lowercase() => {
            first.to_ascii_uppercase().to_string() + letters.as_str()
        }
        _ => text,
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::UnderWay => f.write_str("it is being disrupted already"),
            Why::PassedOver => f.write_str(
                "its marks of disruption or its replacement could not be made a moment ago, so others have their turn first",
            ),
            Why::NotManaged => f.write_str("Karpenter did not launch it"),
            Why::NoClaim(pool) => write!(f, "it is of NodePool {pool}, but its NodeClaim is gone"),
            Why::NoNode => f.write_str("its machine has not joined the cluster yet"),
            Why::Rebooting => f.write_str("it is rebooting"),
            Why::Deleting => f.write_str("it is going away already"),
            Why::NotRegistered => f.write_str("it has not registered yet"),
            Why::NotInitialized => f.write_str("it is not fully up yet"),
            Why::Nominated => f.write_str("pods that wait for a place have just been promised it"),
            Why::NodeDoNotDisrupt => write!(f, "the node is annotated {DO_NOT_DISRUPT}: \"true\""),
            Why::HeldByProvider(why) => f.write_str(why),
            Why::NoPoolLabel => write!(f, "it lacks the label {NODE_POOL}, so no NodePool answers for it"),
            Why::PoolNotFound(pool) => write!(f, "its NodePool {pool} does not exist or has nothing to offer"),
            Why::OffersUnknown { pool, reason } => {
                write!(f, "what its NodePool {pool} can buy is not known: {reason}")
            }
            Why::PodDoNotDisrupt { pod, value } if value.as_ref() == "true" => {
                write!(f, "pod {pod} is annotated {DO_NOT_DISRUPT}: \"true\"")
            }
            Why::PodDoNotDisrupt { pod, value } => {
                write!(f, "pod {pod} is not to be disrupted for {value} after it started")
            }
            Why::PodBudgets { pod, budgets } if budgets.len() > 1 => write!(
                f,
                "pod {pod} is covered by several PodDisruptionBudgets ({}), and then it cannot be evicted at all",
                budgets.join(", ")
            ),
            Why::PodBudgets { pod, budgets } => {
                write!(f, "PodDisruptionBudget {} does not allow pod {pod} to be evicted now", budgets.join(", "))
            }
            Why::RepairNeedsPool => f.write_str("without a NodePool there is nothing to repair it with"),
            Why::StaticPool => f.write_str("its NodePool keeps a fixed number of nodes"),
            Why::TypeUnknown(name) => {
                write!(f, "its instance type {name} is not offered any more, so nobody knows what it costs")
            }
            Why::LabelMissing(label) => {
                let what = if *label == ZONE { "zone" } else if *label == CAPACITY_TYPE { "capacity type" } else { "price" };
                write!(f, "it lacks the label {label}, so its {what} is not known")
            }
            Why::ConsolidationDisabled(pool) => write!(f, "NodePool {pool} never consolidates (consolidateAfter: Never)"),
            Why::OnlyWhenEmpty(pool) => {
                write!(f, "NodePool {pool} consolidates empty nodes only, and pods run on it")
            }
            Why::NotEmpty => f.write_str("pods run on it"),
            Why::Empty => f.write_str("it is empty"),
            Why::BufferPods(_) => f.write_str("it holds room for a capacity buffer"),
            Why::NotConsolidatable { after_seconds: ..=0 } => {
                f.write_str("its NodeClaim does not say Consolidatable yet")
            }
            Why::NotConsolidatable { after_seconds } => {
                write!(f, "it has not been quiet for {} yet (consolidateAfter)", duration(*after_seconds))
            }
            Why::NotDrifted => f.write_str("it is as its NodePool wants it"),
            Why::Healthy => f.write_str("it is healthy, or has not been unhealthy for long enough"),
            Why::DoNotRepair => write!(f, "the node is annotated {DO_NOT_REPAIR}: \"true\""),
            Why::RepairUnbounded => f.write_str(
                "pods on it must not be evicted, and neither the repair policy nor the NodeClaim says how long to wait for them (terminationGracePeriod)",
            ),
            Why::TooManyUnhealthy(pool) => {
                write!(f, "more than 20 % of NodePool {pool} is unhealthy: something else is wrong")
            }
            Why::Budget { pool, reason, standing } => budget(f, pool, *reason, standing),
            Why::NotWorthIt { pool, score, .. } => write!(
                f,
                "it would save {:.1} % of what NodePool {pool} costs and disturb {:.1} % of its work: score {:.2}, at least {:.2} is wanted",
                score.savings_fraction * 100.0,
                score.disruption_fraction * 100.0,
                score.value(),
                Score::THRESHOLD
            ),
            Why::PodsWouldNotSchedule { shown, count } => {
                let first = shown.first().map_or("a pod", |t| t.pod.as_str());
                match count {
                    0 | 1 => write!(f, "pod {first} would find no place")?,
                    n => write!(f, "pod {first} and {} more would find no place", n - 1)?,
                }
                shown.first().map_or(Ok(()), |t| write!(f, ": {}", t.reason.said_once()))
            }
            Why::NeedsSeveralNodes(count) => write!(f, "it would take {count} new nodes to replace it"),
            Why::OthersNeedNodes { pod, more, .. } => {
                let others = if *more == 0 { String::new() } else { format!(" and {more} more") };
                write!(
                    f,
                    "pod {pod}{others} on other nodes or none needs a new node anyway, and nothing is consolidated before that"
                )
            }
            Why::MinValues(labels) => {
                write!(f, "too few cheaper types are left for the minValues of {}", labels.join(", "))
            }
            Why::NotCheaper { price, cheapest: Some(cheapest) } => write!(
                f,
                "its pods need a node of their own, and none is cheaper: it costs {} an hour, the cheapest replacement {}",
                money(*price),
                money(*cheapest)
            ),
            Why::NotCheaper { price, cheapest: None } => write!(
                f,
                "its pods need a node of their own, and none can be bought for less than the {} an hour it costs",
                money(*price)
            ),
            Why::SpotToSpotDisabled => f.write_str(
                "its pods need a node of their own, which would be spot too, and replacing spot by spot is switched off (feature gate SpotToSpotConsolidation)",
            ),
            Why::SpotToSpotTooFew(count) => write!(
                f,
                "only {count} cheaper spot types would do, and fewer than {SPOT_TO_SPOT_TYPES} would be interrupted too often"
            ),
            Why::ScaleDownFirst(pool) => write!(f, "NodePool {pool} is still being scaled down"),
            Why::StaticAtLimit => {
                f.write_str("its NodePool has as many nodes as limits.nodes allows, so no replacement can be started first")
            }
            Why::StaticReservationsFull => {
                f.write_str("its NodePool's capacity reservations are full, so no replacement can be started first")
            }
            Why::BehindOthers => f.write_str("other drifted nodes of its NodePool go first"),
            Why::NoPools => f.write_str("no NodePool is ready to take its pods"),
            Why::NoBatch => f.write_str("it cannot go together with other nodes"),
            Why::OutOfTime => f.write_str("time ran out before anything was found"),
            Why::RepairNotBegun => f.write_str("it changed while its repair was being decided, so it is looked at again"),
            Why::NotTried => f.write_str("another node was found first"),
        }
    }
}

fn budget(
    f: &mut fmt::Formatter<'_>,
    pool: &str,
    reason: DisruptionReason,
    standing: &BudgetStanding,
) -> fmt::Result {
    let reason = reason.as_str();
    if let Some(error) = standing.errors.first() {
        let (field, problem) = error.field_and_problem();
        return write!(
            f,
            "a budget of NodePool {pool} cannot be understood and so allows nothing: {field}: {problem}"
        );
    }
    match (standing.allowed, standing.disrupting) {
        (..=0, _) => write!(f, "NodePool {pool} allows no disruption ({reason}) at the moment"),
        (allowed, 0) => write!(
            f,
            "NodePool {pool} allows {allowed} of its {} nodes to be disrupted at once ({reason}), and others go first",
            standing.nodes
        ),
        (allowed, disrupting) => write!(
            f,
            "NodePool {pool} allows {allowed} of its {} nodes to be disrupted at once ({reason}), and {disrupting} are going or not ready",
            standing.nodes
        ),
    }
}

fn money(price: f64) -> String {
    format!("${price:.4}")
}

fn duration(seconds: i64) -> String {
    karpenter_api::Duration::from_secs(seconds).as_str().to_owned()
}
