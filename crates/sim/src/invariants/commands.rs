//! Disruption on purpose: within budgets, never of what must not be disturbed, and without traces when it comes to nothing.
//!
//! A node is in a command while its NodeClaim carries the condition `DisruptionReason`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodeClaim, annotations, labels, nodeclaim, taints};
use karpenter_runtime::object_key::ObjectKey;

use super::identity::{has_condition, provider_id};
use super::{Invariant, Rest, Step};
use crate::objects::{Change, Objects, is_active, is_deleting, node_of};

/// How far Karpenter's view may lag behind: what came up within this time it may not have seen.
const LAG: SignedDuration = SignedDuration::from_secs(180);

/// How long a command may take, from the taint to the end or the way back.
const LONGEST_COMMAND: SignedDuration = SignedDuration::from_mins(25);

fn pool_of(claim: &NodeClaim) -> Option<&str> {
    claim.metadata.labels.as_ref()?.get(labels::NODEPOOL).map(String::as_str)
}

/// Why a NodeClaim is in a command. Once its instance is on the way out it no longer counts, as in Karpenter's own books.
fn reason_of(claim: &NodeClaim) -> Option<DisruptionReason> {
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
fn entering<'a>(
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
}

impl Invariant for BudgetsHold {
    fn name(&self) -> &'static str {
        "no more nodes are disrupted at a time than the budgets allow"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I17", "I18"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let claims_changed = step.changes.iter().any(|change| matches!(**change, Change::NodeClaim(_)));
        if !claims_changed {
            return Ok(());
        }
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for claim in step.objects.node_claims.values() {
            if let Some(pool) = pool_of(claim).filter(|_| has_condition(claim, nodeclaim::INITIALIZED)) {
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
            let most = self.most.get(name).into_iter().flatten().map(|(_, count)| *count).max().unwrap_or(0);
            let Ok(allowed) = pool.allowed_disruptions(step.now, most, reason) else {
                return Err(format!(
                    "NodeClaim {key} is disrupted although a budget of {name} cannot be read"
                ));
            };
            let others = step.objects.node_claims.values();
            let disrupting =
                others.filter(|claim| pool_of(claim) == Some(name) && reason_of(claim).is_some());
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

/// Consolidation leaves nodes alone on which a pod, or the node itself, says so.
#[derive(Default)]
pub struct TheUndisturbedStay {
    /// Since when each pod is where it is.
    bound: BTreeMap<ObjectKey, Timestamp>,
}

impl TheUndisturbedStay {
    fn must_stay(pod: &Pod) -> bool {
        let wish = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotations::DO_NOT_DISRUPT));
        is_active(pod) && wish.is_some_and(|wish| wish == "true")
    }
}

impl Invariant for TheUndisturbedStay {
    fn name(&self) -> &'static str {
        "what must not be disrupted is not consolidated"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I23"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::Pod(edit) = &**change else { continue };
            let was = edit.old.as_deref().and_then(node_of);
            match edit.new.as_deref().and_then(node_of) {
                None => drop(self.bound.remove(&edit.key)),
                Some(_) if was.is_none() => drop(self.bound.insert(edit.key.clone(), step.now)),
                Some(_) => {}
            }
        }
        for (key, claim, reason) in entering(step) {
            if !matches!(reason, DisruptionReason::Empty | DisruptionReason::Underutilized) {
                continue;
            }
            let Some(node) = node_name(step.objects, claim) else { continue };
            for pod in step.objects.pods_on(node).filter(|pod| Self::must_stay(pod)) {
                let pod_key = ObjectKey::of(&**pod);
                let since = self.bound.get(&pod_key).copied().unwrap_or(Timestamp::MIN);
                if step.now.duration_since(since) > LAG {
                    return Err(format!(
                        "NodeClaim {key} is disrupted ({}) although pod {pod_key} on it must not be",
                        reason.as_str()
                    ));
                }
            }
        }
        Ok(())
    }
}

fn node_name<'a>(objects: &'a Objects, claim: &NodeClaim) -> Option<&'a str> {
    let id = provider_id(claim)?;
    let node = objects
        .nodes
        .values()
        .find(|node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(id))?;
    node.metadata.name.as_deref()
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
