//! Which node conditions a provider wants repaired, and how.

use std::time::Duration;

/// What repair does, from the mildest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairAction {
    /// Restart the machine in place.
    RebootNode,
    /// Replace the node.
    ReplaceNode,
}

impl RepairAction {
    /// As written in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RebootNode => "RebootNode",
            Self::ReplaceNode => "ReplaceNode",
        }
    }
}

/// When a node counts as broken.
#[derive(Clone, Debug, PartialEq)]
pub struct RepairPolicy {
    /// The node's condition.
    pub condition_type: String,
    /// Its status when the node is broken: `True`, `False` or `Unknown`.
    pub condition_status: String,
    /// A regular expression found in the condition's reason; empty makes this the fallback, of which there is exactly one.
    pub reason_regex: String,
    /// How long the condition is borne before anything is done.
    pub toleration: Duration,
    /// How long the drain may take: none leaves it to the NodeClaim, zero skips it.
    pub termination_grace_period: Option<Duration>,
    /// 0 to 100; higher first.
    pub priority: i32,
    /// What is done.
    pub action: RepairAction,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_is_more_than_rebooting() {
        assert!(RepairAction::ReplaceNode > RepairAction::RebootNode);
    }
}
