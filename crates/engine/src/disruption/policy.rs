//! Which conditions of a node call for repair, and what for.

use std::time::Duration;

use regex::Regex;

use crate::labels::{Labels, Text};
use crate::node::{Node, NodeCondition};

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

/// A provider's policies, checked and compiled.
#[derive(Clone, Debug)]
pub struct RepairPolicies {
    specific: Vec<(RepairPolicy, Regex)>,
    fallback: RepairPolicy,
    /// Distinct priorities in ascending order: a policy's rank is its position here.
    priorities: Vec<i32>,
}

/// What one provider wants repaired, and the label by which its nodes are known.
#[derive(Clone, Debug)]
pub struct ProviderRepair {
    /// Label keys of its NodeClasses; a node carries the one of its own.
    pub node_class_labels: Vec<Text>,
    /// Its policies.
    pub policies: RepairPolicies,
}

/// The policies that speak about a node with these labels: its provider's. One provider alone speaks about all, as upstream.
pub(crate) fn policies_for<'p>(repair: &'p [ProviderRepair], labels: &Labels) -> Option<&'p RepairPolicies> {
    let its_own =
        |provider: &&ProviderRepair| provider.node_class_labels.iter().any(|key| labels.get(key).is_some());
    match repair {
        [only] => Some(&only.policies),
        several => several.iter().find(its_own).map(|provider| &provider.policies),
    }
}

/// Why policies cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node repair requires valid RepairPolicies: {}", .0.join("; "))]
pub struct RepairPolicyError(pub Vec<String>);

/// What repair wants to do with a node.
#[derive(Clone, Debug, PartialEq)]
pub struct RepairDecision {
    /// What is done.
    pub action: RepairAction,
    /// The condition that decided.
    pub condition: Text,
    /// Its status.
    pub status: Text,
    /// Its reason.
    pub reason: Text,
    /// The policy's regular expression; empty for the fallback.
    pub reason_regex: String,
    /// Since when it is due, in seconds since the epoch.
    pub eligible_at_seconds: i64,
    /// How long the drain may take, the shortest that any policy due says.
    pub termination_grace_period: Option<Duration>,
    /// The condition whose policy says so.
    pub termination_grace_period_condition: Option<Text>,
    /// Whether recent reboots did not help, so that it is replaced instead.
    pub escalated: bool,
    /// How urgent it is.
    pub score: f64,
}

/// How long a node must wait to gain one rank of priority.
const AGING_SECONDS: f64 = 30.0 * 60.0;
/// How often a node is rebooted within a day before it is replaced.
const REBOOTS_BEFORE_REPLACEMENT: usize = 2;

impl RepairPolicies {
    /// Checks and compiles what a provider says.
    pub fn new(policies: Vec<RepairPolicy>) -> Result<Self, RepairPolicyError> {
        let mut problems = Vec::new();
        let mut specific = Vec::new();
        let mut fallbacks = Vec::new();
        let mut priorities: Vec<i32> = policies.iter().map(|p| p.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        for (index, policy) in policies.into_iter().enumerate() {
            let mut problem = |text: String| {
                problems.push(format!("policy {index} for condition {:?}: {text}", policy.condition_type));
            };
            if policy.condition_type.is_empty() {
                problem("has an empty condition type".into());
            }
            if !["True", "False", "Unknown"].contains(&policy.condition_status.as_str()) {
                problem(format!("has invalid condition status {:?}", policy.condition_status));
            }
            if !(0..=100).contains(&policy.priority) {
                problem(format!("has priority {} outside the supported range [0, 100]", policy.priority));
            }
            if policy.reason_regex.is_empty() {
                fallbacks.push(policy);
                continue;
            }
            match Regex::new(&policy.reason_regex) {
                Ok(regex) => specific.push((policy, regex)),
                Err(error) => problem(format!("has invalid reason regex, {error}")),
            }
        }
        let fallback = fallbacks.pop();
        if !fallbacks.is_empty() {
            problems.push("there are multiple default fallbacks; one policy only may have no reason".into());
        }
        match fallback {
            None => problems.push("one default fallback (a policy without a reason) is needed".into()),
            Some(fallback) if fallback.action != RepairAction::ReplaceNode => {
                problems.push("the default fallback must replace nodes".into());
            }
            Some(fallback) if problems.is_empty() => {
                return Ok(RepairPolicies { specific, fallback, priorities });
            }
            Some(_) => {}
        }
        Err(RepairPolicyError(problems))
    }

    /// Whether some policy speaks about the condition, whatever its reason and however long it lasts.
    pub(crate) fn covers(&self, condition: &NodeCondition) -> bool {
        self.specific.iter().map(|(policy, _)| policy).chain([&self.fallback]).any(|p| p.speaks_of(condition))
    }

    /// What to do with the node now. A reboot that has ended starts every toleration anew.
    pub(crate) fn decide(
        &self,
        node: &Node,
        reboot_ended_seconds: Option<i64>,
        recent_reboots: usize,
        now_seconds: i64,
    ) -> Option<RepairDecision> {
        let mut decided: Option<(RepairDecision, i32)> = None;
        let mut bound: Option<(Duration, i64, Text)> = None;
        for condition in node.conditions.iter().filter(|c| self.covers(c)) {
            let since = condition.since_seconds.max(node.created_seconds).unwrap_or(i64::MIN);
            for policy in self.matching(condition) {
                let toleration = i64::try_from(policy.toleration.as_secs()).unwrap_or(i64::MAX);
                let from = since.max(reboot_ended_seconds.unwrap_or(i64::MIN));
                let eligible_at = from.saturating_add(toleration);
                if eligible_at > now_seconds {
                    continue;
                }
                let rank = self.priorities.partition_point(|p| *p < policy.priority);
                let score = rank as f64 + now_seconds.saturating_sub(eligible_at) as f64 / AGING_SECONDS;
                if let Some(period) = policy.termination_grace_period {
                    let this = (period, eligible_at, condition.type_.clone());
                    if bound.as_ref().is_none_or(|shortest| this < *shortest) {
                        bound = Some(this);
                    }
                }
                let this = RepairDecision {
                    action: policy.action,
                    condition: condition.type_.clone(),
                    status: condition.status.clone(),
                    reason: condition.reason.clone(),
                    reason_regex: policy.reason_regex.clone(),
                    eligible_at_seconds: eligible_at,
                    termination_grace_period: None,
                    termination_grace_period_condition: None,
                    escalated: false,
                    score,
                };
                decided = Some(match decided.take() {
                    None => (this, policy.priority),
                    Some((so_far, priority)) => {
                        let most = so_far.score.max(score);
                        let order = |d: &RepairDecision, p: i32| {
                            (std::cmp::Reverse(d.action), std::cmp::Reverse(p), d.eligible_at_seconds)
                        };
                        let wins = (order(&this, policy.priority), &this.condition)
                            < (order(&so_far, priority), &so_far.condition);
                        let (mut chosen, priority) =
                            if wins { (this, policy.priority) } else { (so_far, priority) };
                        chosen.score = most;
                        (chosen, priority)
                    }
                });
            }
        }
        let (mut decision, _) = decided?;
        if let Some((period, _, condition)) = bound {
            decision.termination_grace_period = Some(period);
            decision.termination_grace_period_condition = Some(condition);
        }
        if decision.action == RepairAction::RebootNode && recent_reboots >= REBOOTS_BEFORE_REPLACEMENT {
            decision.action = RepairAction::ReplaceNode;
            decision.escalated = true;
        }
        Some(decision)
    }

    /// Every specific policy whose reason is found; the fallback where none is.
    fn matching<'p>(&'p self, condition: &NodeCondition) -> Vec<&'p RepairPolicy> {
        let found: Vec<&RepairPolicy> = self
            .specific
            .iter()
            .filter(|(policy, regex)| policy.speaks_of(condition) && regex.is_match(&condition.reason))
            .map(|(policy, _)| policy)
            .collect();
        if found.is_empty() { vec![&self.fallback] } else { found }
    }
}

impl RepairPolicy {
    fn speaks_of(&self, condition: &NodeCondition) -> bool {
        self.condition_type == *condition.type_ && self.condition_status == *condition.status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(label: &str, condition: &str) -> ProviderRepair {
        let policy = RepairPolicy {
            condition_type: condition.to_owned(),
            condition_status: "False".to_owned(),
            reason_regex: String::new(),
            toleration: Duration::ZERO,
            termination_grace_period: None,
            priority: 0,
            action: RepairAction::ReplaceNode,
        };
        let policies = RepairPolicies::new(vec![policy]).expect("policies");
        ProviderRepair { node_class_labels: vec![label.into()], policies }
    }

    #[test]
    fn a_node_is_judged_by_the_policies_of_its_own_provider_and_by_those_of_the_only_one() {
        let both = [provider("one.sh/class", "One"), provider("two.sh/class", "Two")];
        let judged_by = |repair: &[ProviderRepair], labels: &[(&str, &str)]| {
            let labels: Labels = labels.iter().copied().collect();
            policies_for(repair, &labels).map(|policies| policies.fallback.condition_type.clone())
        };
        assert_eq!(judged_by(&both, &[("two.sh/class", "x")]), Some("Two".to_owned()));
        assert_eq!(judged_by(&both, &[("one.sh/class", "")]), Some("One".to_owned()));
        assert_eq!(judged_by(&both, &[("karpenter.sh/nodepool", "x")]), None);
        assert_eq!(judged_by(&both[..1], &[("karpenter.sh/nodepool", "x")]), Some("One".to_owned()));
        assert_eq!(judged_by(&[], &[("one.sh/class", "")]), None);
    }
}
