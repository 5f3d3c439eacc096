//! What to do: nodes to take away, what replaces them, what it saves.

use std::sync::Arc;

use super::candidate::Candidate;
use super::method::Method;
use crate::labels::Text;
use crate::plan::{NodePlacement, PlannedClaim};

/// One thing to do.
#[derive(Clone, Debug)]
pub struct Command {
    /// Who found it.
    pub method: Method,
    /// The nodes to take away, never none.
    pub candidates: Vec<Arc<Candidate>>,
    /// NodeClaims to create before that.
    pub replacements: Vec<PlannedClaim>,
    /// Nodes that take over pods; they are to be nominated.
    pub existing_nodes: Vec<NodePlacement>,
    /// Why nothing can be put in place first, where that is so.
    pub terminate_first: Option<TerminateFirst>,
    /// Whether the node is rebooted in place.
    pub reboot: bool,
    /// What it saves per hour, as far as prices are known.
    pub savings: f64,
    /// How each Balanced pool scores it, by pool name.
    pub scores: Vec<(Text, Score)>,
}

/// What kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Delete the nodes.
    Delete,
    /// Create the replacements, then delete the nodes.
    Replace,
    /// Delete the nodes and leave the replacement to provisioning.
    TerminateFirst,
    /// Reboot the node.
    Reboot,
}

impl Decision {
    /// As metrics, logs and events write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Decision::Delete => "delete",
            Decision::Replace => "replace",
            Decision::TerminateFirst => "terminate-first",
            Decision::Reboot => "reboot",
        }
    }
}

/// Why a replacement cannot be put in place first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminateFirst {
    /// It needs the reservation the node holds.
    NoReservedCapacity,
    /// The static pool has as many nodes as it may have.
    StaticAtLimit,
}

impl TerminateFirst {
    /// As metrics write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            TerminateFirst::NoReservedCapacity => "no-reserved-capacity",
            TerminateFirst::StaticAtLimit => "static-at-limit",
        }
    }
}

/// What a Balanced pool makes of a command: the share of its cost saved against the share of its work disturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Saved per hour, as a share of what the pool costs.
    pub savings_fraction: f64,
    /// Disturbed, as a share of what disturbing all of the pool would cost.
    pub disruption_fraction: f64,
}

impl Score {
    /// The least score that is approved.
    pub const THRESHOLD: f64 = 1.0 / karpenter_api::nodepool::BALANCED_K as f64;

    /// The score.
    pub fn value(self) -> f64 {
        if self.savings_fraction <= 0.0 {
            0.0
        } else if self.disruption_fraction == 0.0 {
            f64::INFINITY
        } else {
            self.savings_fraction / self.disruption_fraction
        }
    }

    /// Whether it is worth it.
    pub fn approved(self) -> bool {
        self.value() >= Self::THRESHOLD
    }
}

impl Command {
    /// A command that takes the candidates away and nothing else yet.
    pub(crate) fn new(method: Method, candidates: Vec<Arc<Candidate>>) -> Self {
        let savings = source_price(&candidates);
        Command {
            method,
            candidates,
            replacements: Vec::new(),
            existing_nodes: Vec::new(),
            terminate_first: None,
            reboot: false,
            savings,
            scores: Vec::new(),
        }
    }

    /// What kind it is.
    pub fn decision(&self) -> Decision {
        if self.reboot {
            Decision::Reboot
        } else if !self.replacements.is_empty() {
            Decision::Replace
        } else if self.terminate_first.is_some() {
            Decision::TerminateFirst
        } else {
            Decision::Delete
        }
    }

    /// Pods that have to move.
    pub fn pod_count(&self) -> usize {
        self.candidates.iter().map(|c| c.pods.len()).sum()
    }

    /// The command in events of the time before it has an id: `replace: [a, b] -> [1 replacement]`.
    pub fn text(&self) -> String {
        let nodes: Vec<&str> = self.candidates.iter().map(|c| c.node.as_ref()).collect();
        let decision = self.decision().as_str();
        match self.replacements.len() {
            0 => format!("{decision}: [{}]", nodes.join(", ")),
            1 => format!("{decision}: [{}] -> [1 replacement]", nodes.join(", ")),
            n => format!("{decision}: [{}] -> [{n} replacements]", nodes.join(", ")),
        }
    }

    /// The command as told on the events of one of its nodes.
    pub fn text_for(&self, node: &str) -> String {
        match self.candidates.len() {
            1 => self.text(),
            n => format!("{}: [{node}] (part of {n}-node consolidation)", self.decision().as_str()),
        }
    }

    /// The command in logs and events once it has an id.
    pub fn text_with_id(&self, id: &str) -> String {
        let mut pools: Vec<&str> = Vec::new();
        for candidate in &self.candidates {
            if !pools.contains(&candidate.node_pool.as_ref()) {
                pools.push(&candidate.node_pool);
            }
        }
        let text = self.text();
        let (decision, rest) = text.split_once(": ").unwrap_or((&text, ""));
        format!(
            "{}/{id}: {decision}: nodepools=[{}]: {rest} (savings: ${:.2})",
            self.method.reason().as_str(),
            pools.join(","),
            self.savings
        )
    }
}

/// What the candidates cost per hour together.
pub(crate) fn source_price(candidates: &[Arc<Candidate>]) -> f64 {
    candidates.iter().map(|c| c.price).sum()
}
