//! What a node carries while it is being disrupted: the taint `karpenter.sh/disrupted`, the condition `DisruptionReason` on its
//! NodeClaim, and, where the drain is bounded, the time it must be over.
//!
//! Lists are replaced whole by a merge patch, so every write here is over the version that was read, tried again a few times
//! on the newest one. What is gone needs no mark.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{ConditionSet, HasConditions};
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::taints::DISRUPTED;
use karpenter_api::{NodeClaim, annotations, nodeclaim};
use karpenter_runtime::error::ApiError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, Written, patch, patch_status};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::times::rfc3339;

/// Pauses between attempts.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];

/// Why a mark could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum MarkError {
    /// Someone else kept changing the object.
    #[error("{0} kept changing")]
    Conflict(String),
    /// The server did not do it.
    #[error(transparent)]
    Server(#[from] ApiError),
}

/// Whether there was something to mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// It carries the mark, or no longer does.
    Yes,
    /// The object does not exist.
    Gone,
}

#[derive(Clone, Copy)]
enum Part {
    Main,
    Status,
}

/// Changes an object as it was last seen; if it has changed since, as it is.
async fn edit<K>(
    api: &Api<K>,
    seen: Option<Arc<K>>,
    name: &str,
    part: Part,
    change: impl Fn(&mut K),
) -> Result<Marked, MarkError>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let mut known = seen.map(|seen| (*seen).clone());
    let mut attempt = 0;
    loop {
        let was_seen = known.is_some();
        let result = async {
            let (before, fresh) = match known.take() {
                Some(known) => (known, false),
                None => match api.get_opt(name).await? {
                    Some(current) => (current, true),
                    None => return Ok(Some(Marked::Gone)),
                },
            };
            let mut after = before.clone();
            change(&mut after);
            let written = match part {
                Part::Main => patch(api, &before, &after, Lock::Optimistic).await?,
                Part::Status => patch_status(api, &before, &after, Lock::Optimistic).await?,
            };
            Ok(match written {
                // As it was seen it has the mark already; whoever took it off a moment ago may not have been seen yet.
                Written::Unchanged if !fresh => None,
                Written::Unchanged | Written::Done(_) => Some(Marked::Yes),
                Written::Gone => Some(Marked::Gone),
                Written::Conflict => None,
            })
        };
        let failure = match result.await {
            Ok(Some(marked)) => return Ok(marked),
            Ok(None) if was_seen => continue,
            Ok(None) => MarkError::Conflict(name.to_owned()),
            Err(error) => MarkError::Server(error),
        };
        let Some(pause) = PAUSES.get(attempt) else { return Err(failure) };
        attempt += 1;
        tokio::time::sleep(*pause).await;
    }
}

fn is_tainted(node: &Node) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| DISRUPTED.matches(taint))
}

/// Whether a node carries the taint.
pub(super) fn carries_taint(node: &Node) -> bool {
    is_tainted(node)
}

/// Whether a NodeClaim carries the condition.
pub(super) fn carries_reason(claim: &NodeClaim) -> bool {
    claim.condition(nodeclaim::DISRUPTION_REASON).is_some()
}

/// Whether a repair has bounded the drain of a NodeClaim: nobody else does before its deletion.
pub(super) fn carries_bound_of_repair(claim: &NodeClaim) -> bool {
    let condition = claim.condition(nodeclaim::DISRUPTION_REASON);
    condition.and_then(|condition| condition.reason.as_deref()) == Some(DisruptionReason::Unhealthy.as_str())
        && claim
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|annotations| annotations.contains_key(annotations::NODECLAIM_TERMINATION_TIMESTAMP))
}

/// Keeps new pods off the node.
pub(super) async fn taint(context: &Context, node: &str) -> Result<Marked, MarkError> {
    edit_node(context, node, |node| {
        if !is_tainted(node) {
            node.spec.get_or_insert_default().taints.get_or_insert_default().push(DISRUPTED.to_taint());
        }
    })
    .await
}

/// Lets pods back in. A node that is being deleted keeps its taint: that is for its termination to say.
pub(super) async fn untaint(context: &Context, node: &str) -> Result<Marked, MarkError> {
    edit_node(context, node, |node| {
        if node.metadata.deletion_timestamp.is_some() {
            return;
        }
        let spec = node.spec.get_or_insert_default();
        if let Some(taints) = &mut spec.taints {
            taints.retain(|taint| !DISRUPTED.matches(taint));
            if taints.is_empty() {
                spec.taints = None;
            }
        }
    })
    .await
}

async fn edit_node(context: &Context, name: &str, change: impl Fn(&mut Node)) -> Result<Marked, MarkError> {
    let api = Api::<Node>::all(context.client.clone());
    let seen = context.stores.nodes.get(&ObjectKey::cluster(name));
    edit(&api, seen, name, Part::Main, change).await
}

/// Writes down why the node is being disrupted.
pub(super) async fn give_reason(
    context: &Context,
    claim: &str,
    reason: DisruptionReason,
) -> Result<Marked, MarkError> {
    let (now, reason) = (context.now(), reason.as_str());
    edit_claim(context, claim, Part::Status, |claim| {
        ConditionSet::of(claim, now).set_true_with_reason(nodeclaim::DISRUPTION_REASON, reason, reason);
    })
    .await
}

/// Takes the reason off again.
pub(super) async fn clear_reason(context: &Context, claim: &str) -> Result<Marked, MarkError> {
    let now = context.now();
    edit_claim(context, claim, Part::Status, |claim| {
        // Readiness does not depend on it, so it can be cleared.
        let _ = ConditionSet::of(claim, now).clear(nodeclaim::DISRUPTION_REASON);
    })
    .await
}

/// Has the drain end at `deadline` at the latest; an earlier time that is set already stays.
pub(super) async fn bound_drain(
    context: &Context,
    claim: &str,
    deadline: Timestamp,
) -> Result<Marked, MarkError> {
    edit_claim(context, claim, Part::Main, |claim| {
        let annotations = claim.metadata.annotations.get_or_insert_default();
        let set = annotations.get(annotations::NODECLAIM_TERMINATION_TIMESTAMP);
        let set = set.and_then(|text| text.parse::<Timestamp>().ok());
        if set.is_none_or(|set| set > deadline) {
            annotations.insert(annotations::NODECLAIM_TERMINATION_TIMESTAMP.to_owned(), rfc3339(deadline));
        }
    })
    .await
}

/// Takes a bound off a NodeClaim that stays after all: its next drain, for whatever reason, has all its time. With `written` only
/// that very time. One that is being deleted keeps its own.
pub(super) async fn unbound_drain(
    context: &Context,
    claim: &str,
    written: Option<Timestamp>,
) -> Result<Marked, MarkError> {
    let written = written.map(rfc3339);
    edit_claim(context, claim, Part::Main, |claim| {
        let is_going = claim.metadata.deletion_timestamp.is_some();
        if let Some(annotations) = claim.metadata.annotations.as_mut().filter(|_| !is_going) {
            let set = annotations.get(annotations::NODECLAIM_TERMINATION_TIMESTAMP);
            if written.is_none() || set == written.as_ref() {
                annotations.remove(annotations::NODECLAIM_TERMINATION_TIMESTAMP);
            }
        }
    })
    .await
}

async fn edit_claim(
    context: &Context,
    name: &str,
    part: Part,
    change: impl Fn(&mut NodeClaim),
) -> Result<Marked, MarkError> {
    let api = Api::<NodeClaim>::all(context.client.clone());
    let seen = context.stores.node_claims.get(&ObjectKey::cluster(name));
    edit(&api, seen, name, part, change).await
}
