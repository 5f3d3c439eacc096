//! Hands a broken node to the reboot controller, and remembers how often that has been done of late.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions};
use karpenter_api::nodeclaim::{self, reboot};
use karpenter_api::{NodeClaim, annotations};
use karpenter_engine::disruption::{Candidate, DisruptionReason};
use karpenter_engine::labels::Text;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, Written, patch, patch_status};
use kube::Api;
use tokio::time::Instant;

use crate::context::Context;

/// How long a reboot counts.
const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Reboots of the last day by NodeClaim UID, by a clock that nobody sets.
#[derive(Default)]
pub(super) struct RebootHistory(Mutex<BTreeMap<Text, Vec<Instant>>>);

impl RebootHistory {
    /// How many there were of each.
    pub(super) fn recent(&self) -> BTreeMap<Text, usize> {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for times in history.values_mut() {
            times.retain(|time| time.elapsed() < WINDOW);
        }
        history.retain(|_, times| !times.is_empty());
        history.iter().map(|(uid, times)| (uid.clone(), times.len())).collect()
    }

    fn record(&self, uid: &Text) {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        history.entry(uid.clone()).or_default().push(Instant::now());
    }
}

/// Asks for a reboot of the candidate (rule D7.8). False if it is rebooting or going away already, or has changed meanwhile:
/// the next pass looks again.
pub(super) async fn commit(
    context: &Context,
    history: &RebootHistory,
    candidate: &Candidate,
) -> Result<bool, ReconcileError> {
    let api = Api::<NodeClaim>::all(context.client.clone());
    // The state may lag behind: a reboot asked for twice would drain twice.
    let Some(current) = api.get_opt(&candidate.claim).await? else { return Ok(false) };
    let rebooting = current.condition_status(nodeclaim::REBOOTING) == ConditionStatus::True;
    if rebooting || current.metadata.deletion_timestamp.is_some() {
        return Ok(false);
    }
    let mut bounded = current.clone();
    let bound = candidate.drain_bound_seconds.map(karpenter_api::Duration::from_secs);
    let annotations = bounded.metadata.annotations.get_or_insert_default();
    match bound.or_else(|| current.spec.termination_grace_period.clone()) {
        Some(bound) => {
            let text = karpenter_api::Duration::from_nanos(bound.as_nanos()).to_string();
            annotations.insert(annotations::REBOOT_TERMINATION_GRACE_PERIOD.to_owned(), text)
        }
        // An earlier reboot may have left one.
        None => annotations.remove(annotations::REBOOT_TERMINATION_GRACE_PERIOD),
    };
    let current = match patch(&api, &current, &bounded, Lock::Optimistic).await? {
        Written::Done(written) => *written,
        Written::Unchanged => current,
        Written::Gone | Written::Conflict => return Ok(false),
    };
    let mut requested = current.clone();
    let (condition, reason) =
        candidate.repair.as_ref().map_or(("", ""), |repair| (&*repair.condition, &*repair.reason));
    let mut conditions = ConditionSet::of(&mut requested, context.now());
    let unhealthy = DisruptionReason::Unhealthy.as_str();
    conditions.set_true_with_reason(nodeclaim::DISRUPTION_REASON, unhealthy, unhealthy);
    let message = format!("rebooting for {condition}/{reason}");
    conditions.set_true_with_reason(nodeclaim::REBOOTING, reboot::REQUESTED, &message);
    let written = match patch_status(&api, &current, &requested, Lock::Optimistic).await? {
        Written::Done(written) => *written,
        Written::Unchanged => requested,
        Written::Gone | Written::Conflict => return Ok(false),
    };
    // The next look must not find it untouched because a watch is late; nor what is going alive because this answer is.
    let seen = context.stores.node_claims.get(&ObjectKey::of(&written));
    let is_going = seen.is_some_and(|seen| seen.metadata.deletion_timestamp.is_some());
    if !is_going && let Err(error) = context.cluster.update(|cluster| cluster.apply_node_claim(&written)) {
        tracing::warn!(%error, "object is left out of scheduling");
    }
    history.record(&candidate.claim_uid);
    tracing::info!(NodeClaim = %logging::object(&ObjectKey::of(&written)), "committed node reboot");
    Ok(true)
}
