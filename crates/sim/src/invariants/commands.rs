//! Disruption on purpose: within budgets, never of what must not be disturbed, and without traces when it comes to nothing.
//!
//! A node is in a command while its NodeClaim carries the condition `DisruptionReason`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{ConditionStatus, HasConditions as _};
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodeClaim, NodePool, annotations, labels, nodeclaim, taints};
use karpenter_runtime::object_key::ObjectKey;

use super::disruption::{budgets_of, is_eviction};
use super::identity::{has_condition, provider_id};
use super::lifecycle::is_drainable;
use super::{Invariant, Rest, Step};
use crate::objects::{Change, Objects, is_active, is_deleting, node_of};

/// How far Karpenter's view may lag behind: what came up within this time it may not have seen.
pub(super) const LAG: SignedDuration = SignedDuration::from_secs(180);

/// How long a command may take, from the taint to the end or the way back.
const LONGEST_COMMAND: SignedDuration = SignedDuration::from_mins(25);

pub(super) fn pool_of(claim: &NodeClaim) -> Option<&str> {
    claim.metadata.labels.as_ref()?.get(labels::NODEPOOL).map(String::as_str)
}

/// Why a NodeClaim is in a command. Once its instance is on the way out it no longer counts, as in Karpenter's own books.
pub(super) fn reason_of(claim: &NodeClaim) -> Option<DisruptionReason> {
    let condition = claim.condition(nodeclaim::DISRUPTION_REASON)?;
    let reasons = [
        DisruptionReason::Underutilized,
        DisruptionReason::Empty,
        DisruptionReason::Drifted,
        DisruptionReason::Unhealthy,
    ];
    let named = reasons.into_iter().find(|reason| reason.as_str() == condition.reason())?;
    let counts = has_condition(claim, nodeclaim::DISRUPTION_REASON)
        && !has_condition(claim, nodeclaim::INSTANCE_TERMINATING);
    counts.then_some(named)
}

/// NodeClaims that entered a command with this write.
pub(super) fn entering<'a>(
    step: &'a Step<'_>,
) -> impl Iterator<Item = (&'a ObjectKey, &'a NodeClaim, DisruptionReason)> {
    step.changes.iter().filter_map(|change| {
        let Change::NodeClaim(edit) = &**change else { return None };
        let new = edit.new.as_deref()?;
        let reason = reason_of(new)?;
        let before = edit.old.as_deref().and_then(reason_of);
        (before != Some(reason)).then_some((&edit.key, new, reason))
    })
}

/// Never more nodes of a pool in commands than its budgets allowed at any start.
#[derive(Default)]
pub struct BudgetsHold {
    /// The most nodes each pool had of late, and when: percentages are of what Karpenter saw.
    most: BTreeMap<String, Vec<(Timestamp, i64)>>,
    /// What each pool said of late, and until when.
    said: BTreeMap<String, Vec<(Timestamp, Arc<NodePool>)>>,
}

impl BudgetsHold {
    /// The most that the pool allowed of late, in any version Karpenter may have seen and at any time it may have decided.
    fn allowed(&self, now: Timestamp, pool: &NodePool, reason: DisruptionReason) -> (i64, Option<i64>) {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let most = self.most.get(name).into_iter().flatten().map(|(_, count)| *count).max().unwrap_or(0);
        let earlier = self.said.get(name).into_iter().flatten();
        let earlier = earlier.filter(|(until, _)| now.duration_since(*until) <= LAG).map(|(_, pool)| &**pool);
        let mut allowed = None;
        for version in earlier.chain([pool]) {
            for back in (0..=LAG.as_secs()).step_by(15) {
                let then = now.saturating_sub(SignedDuration::from_secs(back)).unwrap_or(now);
                allowed = allowed.max(version.allowed_disruptions(then, most, reason).ok());
            }
        }
        (most, allowed)
    }
}

impl Invariant for BudgetsHold {
    fn name(&self) -> &'static str {
        "no more nodes are disrupted at a time than the budgets allow"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I17", "I18"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.check_with(step, |_| false)
    }
}

impl BudgetsHold {
    /// As [`check`](Invariant::check), with the nodes counted that somebody else disrupts.
    pub(crate) fn check_with(
        &mut self,
        step: &Step<'_>,
        leaves: impl Fn(&NodeClaim) -> bool,
    ) -> Result<(), String> {
        let mut nodes_changed = false;
        for change in step.changes {
            match &**change {
                Change::NodeClaim(_) | Change::Node(_) => nodes_changed = true,
                Change::NodePool(edit) => {
                    let said = self.said.entry(edit.key.name.to_string()).or_default();
                    // What nobody can have seen any more need not be kept.
                    said.retain(|(until, _)| step.now.duration_since(*until) <= LAG);
                    said.extend(edit.old.clone().map(|old| (step.now, old)));
                }
                _ => {}
            }
        }
        if !nodes_changed {
            return Ok(());
        }
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for claim in step.objects.node_claims.values() {
            // A node is labelled a moment before its claim says so.
            let is_up = || has_condition(claim, nodeclaim::INITIALIZED) || is_labelled(step.objects, claim);
            if let Some(pool) = pool_of(claim).filter(|_| is_up()) {
                *counts.entry(pool).or_default() += 1;
            }
        }
        for (pool, count) in counts {
            let seen = self.most.entry(pool.to_owned()).or_default();
            seen.retain(|(at, _)| step.now.duration_since(*at) <= LAG);
            seen.push((step.now, count));
        }
        for (key, claim, reason) in entering(step) {
            let Some(name) = pool_of(claim) else { continue };
            let Some(pool) = step.objects.node_pools.get(&ObjectKey::cluster(name)) else { continue };
            if reason == DisruptionReason::Unhealthy && !has_condition(claim, nodeclaim::INITIALIZED) {
                // A node that never came up takes nothing away when it goes.
                continue;
            }
            let (most, Some(allowed)) = self.allowed(step.now, pool, reason) else {
                return Err(format!(
                    "NodeClaim {key} is disrupted although a budget of {name} cannot be read"
                ));
            };
            let others = step.objects.node_claims.values();
            // A node that reboots is not up and counts on neither side; nor does one that has just come back, for who watches it.
            let is_up = |claim: &NodeClaim| {
                let rebooted = claim.condition(nodeclaim::REBOOTING).is_some();
                claim.condition(nodeclaim::INITIALIZED).is_none_or(|c| {
                    let settled = !rebooted || step.now.duration_since(c.since()) > LAG;
                    c.status == ConditionStatus::True && settled
                })
            };
            // Budgets count nodes: a claim whose Node has gone before it is no longer one.
            let has_node = |claim: &NodeClaim| node_name(step.objects, claim).is_some();
            let disrupting = others.filter(|claim| {
                pool_of(claim) == Some(name)
                    && (reason_of(claim).is_some() || leaves(claim))
                    && is_up(claim)
                    && has_node(claim)
            });
            let disrupting = i64::try_from(disrupting.count()).unwrap_or(i64::MAX);
            if disrupting > allowed {
                return Err(format!(
                    "NodeClaim {key} is the {disrupting}. of NodePool {name} to be disrupted, and its budgets allow {allowed} of {most}"
                ));
            }
        }
        Ok(())
    }
}

/// Nodes stay on which a pod, a budget of pods, or the node itself says so; those whose drain is bounded only for the sake of
/// consolidation.
#[derive(Default)]
pub struct TheUndisturbedStay {
    /// Since when each pod is where it is and wants to stay there.
    unwilling: BTreeMap<ObjectKey, Timestamp>,
    /// Since when each pod is where it is.
    bound: BTreeMap<ObjectKey, Timestamp>,
    /// Since when each node wants to stay.
    nodes: BTreeMap<String, Timestamp>,
    /// Since when each budget of pods allows nothing.
    budgets: BTreeMap<ObjectKey, Timestamp>,
}

/// Whether somebody wants this left alone for good. Wishes with an end depend on when a pod started, and are not looked at.
pub(super) fn must_stay<K: kube::Resource>(object: &K) -> bool {
    let wish = object.meta().annotations.as_ref().and_then(|all| all.get(annotations::DO_NOT_DISRUPT));
    wish.is_some_and(|wish| wish == "true")
}

/// Notes since when something holds.
pub(super) fn since<K: Ord>(times: &mut BTreeMap<K, Timestamp>, key: K, holds: bool, now: Timestamp) {
    if holds {
        times.entry(key).or_insert(now);
    } else {
        times.remove(&key);
    }
}

impl TheUndisturbedStay {
    fn follow(&mut self, step: &Step<'_>) {
        for change in step.changes {
            match &**change {
                Change::Pod(edit) => {
                    let pod = edit.new.as_deref().filter(|pod| node_of(pod).is_some() && is_active(pod));
                    since(&mut self.bound, edit.key.clone(), pod.is_some(), step.now);
                    since(&mut self.unwilling, edit.key.clone(), pod.is_some_and(must_stay), step.now);
                }
                Change::Node(edit) => {
                    let stays = edit.new.as_deref().is_some_and(must_stay);
                    since(&mut self.nodes, edit.key.name.to_string(), stays, step.now);
                }
                Change::PodDisruptionBudget(edit) => {
                    let status = edit.new.as_deref().and_then(|budget| budget.status.as_ref());
                    let blocks = status.is_some_and(|status| status.disruptions_allowed == Some(0));
                    since(&mut self.budgets, edit.key.clone(), blocks, step.now);
                }
                _ => {}
            }
        }
    }

    /// What keeps the node of this claim where it is, and has done so for long enough that Karpenter must know.
    fn obstacle(
        &self,
        step: &Step<'_>,
        node: &str,
        claim: &NodeClaim,
        reason: DisruptionReason,
    ) -> Option<String> {
        let long = |since: Option<&Timestamp>| since.is_some_and(|at| step.now.duration_since(*at) > LAG);
        if reason == DisruptionReason::Unhealthy {
            return None;
        }
        if long(self.nodes.get(node)) {
            return Some(format!("node {node}"));
        }
        if reason == DisruptionReason::Drifted && claim.spec.termination_grace_period.is_some() {
            return None;
        }
        for pod in step.objects.pods_on(node) {
            let key = ObjectKey::of(&**pod);
            if long(self.unwilling.get(&key)) {
                return Some(format!("pod {key} on it"));
            }
            if !long(self.bound.get(&key)) || !is_drainable(pod) {
                continue;
            }
            for budget in budgets_of(step.objects, pod) {
                let budget = ObjectKey::of(&*budget);
                if long(self.budgets.get(&budget)) {
                    return Some(format!("pod {key} on it, by PodDisruptionBudget {budget},"));
                }
            }
        }
        None
    }
}

impl Invariant for TheUndisturbedStay {
    fn name(&self) -> &'static str {
        "what must not be disrupted is not"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I23", "I24"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.follow(step);
        for (key, claim, reason) in entering(step) {
            let Some(node) = node_name(step.objects, claim) else { continue };
            if let Some(obstacle) = self.obstacle(step, node, claim, reason) {
                return Err(format!(
                    "NodeClaim {key} is disrupted ({}) although {obstacle} must not be",
                    reason.as_str()
                ));
            }
        }
        Ok(())
    }
}

/// A drain waits for pods that must not be disturbed; only a deadline moves them.
pub struct TheUndisturbedAreNotEvicted {
    karpenter: String,
    unwilling: BTreeMap<ObjectKey, Timestamp>,
}

impl TheUndisturbedAreNotEvicted {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned(), unwilling: BTreeMap::new() }
    }
}

impl Invariant for TheUndisturbedAreNotEvicted {
    fn name(&self) -> &'static str {
        "no pod is evicted that must not be disturbed"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["X34"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let evicts = is_eviction(step) && step.entry.actor.starts_with(self.karpenter.as_str());
        for change in step.changes {
            let Change::Pod(edit) = &**change else { continue };
            let before = self.unwilling.get(&edit.key).copied();
            let ends = edit.new.as_deref().is_none_or(|pod| !is_active(pod));
            if evicts && ends && before.is_some_and(|at| step.now.duration_since(at) > LAG) {
                return Err(format!("pod {} was evicted although it must not be disturbed", edit.key));
            }
            let stays = edit.new.as_deref().is_some_and(|pod| is_active(pod) && must_stay(pod));
            since(&mut self.unwilling, edit.key.clone(), stays, step.now);
        }
        Ok(())
    }
}

/// The Node of a NodeClaim, if it has one.
pub(crate) fn node_name<'a>(objects: &'a Objects, claim: &NodeClaim) -> Option<&'a str> {
    let id = provider_id(claim)?;
    let node = objects
        .nodes
        .values()
        .find(|node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(id))?;
    node.metadata.name.as_deref()
}

fn is_labelled(objects: &Objects, claim: &NodeClaim) -> bool {
    let node = node_name(objects, claim).and_then(|name| objects.node(name));
    let all = node.and_then(|node| node.metadata.labels.as_ref());
    all.and_then(|all| all.get(labels::INITIALIZED)).is_some_and(|value| value == labels::TRUE)
}

/// A command that came to nothing leaves no taint and no condition behind.
#[derive(Default)]
pub struct NoTracesAreLeft {
    /// Since when nodes and NodeClaims look disrupted without being deleted.
    since: BTreeMap<String, Timestamp>,
}

impl Invariant for NoTracesAreLeft {
    fn name(&self) -> &'static str {
        "a command that came to nothing leaves no traces"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I22", "I31"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let (name, marked) = match &**change {
                Change::Node(edit) => {
                    let tainted = edit.new.as_deref().is_some_and(|node| {
                        let mut all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
                        !is_deleting(node) && all.any(|taint| taints::DISRUPTED.matches(taint))
                    });
                    (format!("Node {}", edit.key), tainted)
                }
                Change::NodeClaim(edit) => {
                    let in_command = edit
                        .new
                        .as_deref()
                        .is_some_and(|claim| !is_deleting(claim) && reason_of(claim).is_some());
                    (format!("NodeClaim {}", edit.key), in_command)
                }
                _ => continue,
            };
            if marked {
                self.since.entry(name).or_insert(step.now);
            } else {
                self.since.remove(&name);
            }
        }
        Ok(())
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        let healed = SignedDuration::try_from(rest.healed_for).unwrap_or(SignedDuration::MAX);
        for (name, since) in &self.since {
            let marked_for = rest.now.duration_since(*since).min(healed);
            if marked_for > LONGEST_COMMAND {
                return Err(format!("{name} has been marked as disrupted since {since} and is still there"));
            }
        }
        Ok(())
    }
}

/// What a NodeClaim has become it does not forget: no lost update takes a station of its life away.
pub struct ConditionsAreNotLost;

impl Invariant for ConditionsAreNotLost {
    fn name(&self) -> &'static str {
        "no lost update shortens a NodeClaim's conditions"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I33"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
            if old.metadata.uid != new.metadata.uid {
                continue;
            }
            for kind in [nodeclaim::LAUNCHED, nodeclaim::REGISTERED, nodeclaim::INITIALIZED] {
                if old.condition(kind).is_some() && new.condition(kind).is_none() {
                    return Err(format!("NodeClaim {} lost its condition {kind}", edit.key));
                }
            }
        }
        Ok(())
    }
}
