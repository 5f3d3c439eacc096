//! How pods are removed: through the eviction API, within budgets, each as the pod it was meant to be.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::identity::provider_id;
use super::lifecycle::{claim_of, termination_time};
use super::{Invariant, Step};
use crate::objects::{Change, Objects, is_active, is_ready, node_of, phase, uid};
use crate::selection::selects;

/// An eviction that a budget has nothing left for is refused.
pub struct BudgetsAreKept;

impl Invariant for BudgetsAreKept {
    fn name(&self) -> &'static str {
        "no eviction goes through that its budget does not allow"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        if !is_eviction(step) {
            return Ok(());
        }
        for change in step.changes {
            let Change::Pod(edit) = &**change else { continue };
            let Some(old) = edit.old.as_deref().filter(|old| is_active(old) && is_ready(old)) else {
                continue;
            };
            if phase(old) != "Running" || edit.new.as_deref().is_some_and(is_active) {
                continue;
            }
            for budget in budgets_of(step.objects, old) {
                let key = karpenter_runtime::object_key::ObjectKey::of(&*budget);
                // What the budget said before this very write charged it.
                let before = step.changes.iter().find_map(|change| match &**change {
                    Change::PodDisruptionBudget(edit) if edit.key == key => edit.old.as_ref(),
                    _ => None,
                });
                let allowed = before
                    .unwrap_or(&budget)
                    .status
                    .as_ref()
                    .and_then(|status| status.disruptions_allowed)
                    .unwrap_or_default();
                if allowed < 1 {
                    return Err(format!("pod {} was evicted and budget {key} allowed none", edit.key));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn is_eviction(step: &Step<'_>) -> bool {
    let path = step.entry.deed.split('?').next().unwrap_or_default();
    path.starts_with("POST ") && path.ends_with("/eviction") && step.entry.outcome.starts_with('2')
}

pub(super) fn budgets_of(
    objects: &Objects,
    pod: &Pod,
) -> Vec<Arc<k8s_openapi::api::policy::v1::PodDisruptionBudget>> {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let same = |budget: &&Arc<k8s_openapi::api::policy::v1::PodDisruptionBudget>| {
        budget.metadata.namespace == pod.metadata.namespace
            && budget.spec.as_ref().is_some_and(|spec| selects(spec.selector.as_ref(), &labels))
    };
    objects.disruption_budgets.values().filter(same).cloned().collect()
}

/// Karpenter removes pods by eviction only, and by force only when the node's time is up; never a pod it did not mean. A node
/// that only reboots has no such time: nothing is forced off it.
pub struct PodsAreEvicted {
    karpenter: String,
    /// When the time of a machine is up, also after its NodeClaim has gone before its Node.
    times: BTreeMap<String, Timestamp>,
    /// The machine of every Node there has been: a deletion may reach the server after the Node has gone.
    machines: BTreeMap<String, String>,
}

impl PodsAreEvicted {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned(), times: BTreeMap::new(), machines: BTreeMap::new() }
    }
}

impl Invariant for PodsAreEvicted {
    fn name(&self) -> &'static str {
        "Karpenter evicts pods, and forces only what is overdue"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I11", "I12", "I16"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            if let Change::Node(edit) = &**change {
                let id = edit.new.as_ref().and_then(|node| node.spec.as_ref()?.provider_id.clone());
                self.machines.extend(id.map(|id| (edit.key.name.to_string(), id)));
            }
            let Change::NodeClaim(edit) = &**change else { continue };
            let claim = edit.new.as_deref().or(edit.old.as_deref());
            let time = claim.and_then(|claim| provider_id(claim).zip(termination_time(claim)));
            self.times.extend(time.map(|(id, time)| (id.to_owned(), time)));
        }
        if !step.entry.actor.starts_with(self.karpenter.as_str()) {
            return Ok(());
        }
        let request: Value = serde_json::from_slice(step.body).unwrap_or_default();
        if is_eviction(step) && request.pointer("/deleteOptions/preconditions/uid").is_none() {
            return Err(format!("an eviction without the pod's uid: {}", step.entry.deed));
        }
        if !step.entry.deed.starts_with("DELETE ") {
            return Ok(());
        }
        for change in step.changes {
            let Change::Pod(edit) = &**change else { continue };
            let Some(old) = &edit.old else { continue };
            if node_of(old).is_none() || !step.entry.deed.contains("/pods/") {
                continue;
            }
            let grace = request.pointer("/gracePeriodSeconds").and_then(Value::as_i64);
            let by_uid = request.pointer("/preconditions/uid").and_then(Value::as_str) == Some(uid(&**old));
            if grace.is_none_or(|grace| grace < 1) || !by_uid {
                return Err(format!("pod {} was deleted without its uid or with no grace", edit.key));
            }
            let id = node_of(old).and_then(|name| self.machines.get(name)).map(String::as_str);
            let time = id.and_then(|id| self.times.get(id)).copied();
            if !overdue(step, old) && !time.is_some_and(|time| is_past(step, old, time)) {
                return Err(format!(
                    "pod {} on machine {} was deleted, not evicted, before its node's time was up ({})",
                    edit.key,
                    id.unwrap_or("unknown"),
                    time.map_or("it has none".to_owned(), |time| time.to_string())
                ));
            }
        }
        Ok(())
    }
}

/// Whether the termination time of the pod's node leaves it no more than its grace period.
pub(super) fn overdue(step: &Step<'_>, pod: &Pod) -> bool {
    let node = node_of(pod).and_then(|name| step.objects.node(name));
    let Some(time) =
        node.and_then(|node| claim_of(step.objects, node)).and_then(|claim| termination_time(claim))
    else {
        return false;
    };
    is_past(step, pod, time)
}

/// Whether this time leaves the pod no more than its grace period.
fn is_past(step: &Step<'_>, pod: &Pod, time: Timestamp) -> bool {
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
    let starts = time.saturating_sub(SignedDuration::from_secs(grace)).unwrap_or(time);
    let late = pod.metadata.deletion_timestamp.as_ref().is_some_and(|deletion| deletion.0 > time);
    step.now >= starts || late
}

/// The time at which force is due comes nearer or stays, and never moves away.
pub struct TerminationTimesStay;

impl Invariant for TerminationTimesStay {
    fn name(&self) -> &'static str {
        "a NodeClaim's termination time is never put off"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I13"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
            if let (Some(was), Some(is)) = (termination_time(old), termination_time(new))
                && is > was
            {
                return Err(format!("NodeClaim {}: termination time {was} became {is}", edit.key));
            }
        }
        Ok(())
    }
}
