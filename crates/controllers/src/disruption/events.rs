//! What people are told about disruption: on nodes, NodeClaims and NodePools.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use karpenter_api::nodepool::{BALANCED_K, BudgetError, DisruptionReason};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_engine::disruption::{Command, EventKind, Score, Stays, Why};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::object_key::ObjectKey;

use crate::context::Context;

const FIFTEEN_MINUTES: Duration = Duration::from_secs(15 * 60);
/// Budgets may change every minute.
const ONE_MINUTE: Duration = Duration::from_secs(60);

/// What an event is about, and what tells it from others.
struct About {
    object: ObjectReference,
    uid: String,
}

fn about<K: kube::Resource<DynamicType = ()>>(object: &K) -> About {
    About { object: reference(object), uid: object.meta().uid.clone().unwrap_or_default() }
}

/// The Node and the NodeClaim of these names, as far as they are there.
fn both(context: &Context, node: &str, claim: &str) -> Vec<About> {
    let node = context.stores.nodes.get(&ObjectKey::cluster(node));
    let claim = context.stores.node_claims.get(&ObjectKey::cluster(claim));
    let node = node.map(|node| about::<Node>(&node));
    node.into_iter().chain(claim.map(|claim| about::<NodeClaim>(&claim))).collect()
}

/// Says on Node and NodeClaim why they stay, where upstream says so too.
pub(super) fn stays(context: &Context, stays: &Stays) {
    let Some((kind, mut message)) = stays.why.event(stays.method) else { return };
    if let Some(prices) = stays.why.prices() {
        message = format!("{message}: {prices}");
    }
    let (event_type, dedupe_for) = match kind {
        EventKind::Blocked => (EventType::Normal, None),
        EventKind::Unconsolidatable => (EventType::Normal, Some(FIFTEEN_MINUTES)),
        EventKind::RepairBlocked => (EventType::Warning, Some(FIFTEEN_MINUTES)),
    };
    let pool = match &stays.why {
        Why::TooManyUnhealthy(pool) => context.stores.node_pools.get(&ObjectKey::cluster(pool.clone())),
        _ => None,
    };
    let on = both(context, &stays.node, &stays.claim).into_iter();
    for About { object, uid } in on.chain(pool.map(|pool| about::<NodePool>(&pool))) {
        let mut event = Event::new(object, event_type, kind.as_str(), message.as_str()).dedupe_by([uid]);
        if let Some(time) = dedupe_for {
            event = event.dedupe_for(time);
        }
        context.recorder.publish(event);
    }
}

/// Says on a NodePool that its budgets allow nothing.
pub(super) fn pool_blocked(context: &Context, pool: &NodePool, reason: DisruptionReason) {
    let reason = reason.as_str();
    let message = format!("No allowed disruptions for disruption reason {reason} due to blocking budget");
    let About { object, uid } = about(pool);
    let event = Event::new(object, EventType::Normal, "DisruptionBlocked", message);
    context.recorder.publish(event.dedupe_by([uid, reason.to_owned()]).dedupe_for(ONE_MINUTE));
}

/// Says on a NodePool which of its budgets cannot be understood, for whoever does not read the log.
pub(super) fn invalid_budget(context: &Context, pool: &NodePool, index: usize, error: &BudgetError) {
    let (field, problem) = error.field_and_problem();
    let field = format!("spec.disruption.budgets[{index}].{field}");
    let message = format!("{field}: {problem}; nothing of this NodePool is disrupted until it is corrected");
    let About { object, uid } = about(pool);
    let event = Event::new(object, EventType::Warning, "InvalidDisruptionBudget", message.as_str());
    context.recorder.publish(event.dedupe_by([uid, message]).dedupe_for(FIFTEEN_MINUTES));
}

/// Says on the nodes of a consolidation what was found, or why it is not good any more.
pub(super) fn considered(context: &Context, command: &Command, rejected: Option<&str>) {
    for candidate in &command.candidates {
        let text = command.text_for(&candidate.node);
        let savings = format!("(savings: ${:.2})", command.savings);
        let (reason, message) = match rejected {
            None => ("ConsolidationCandidate", format!("Consolidation candidate: {text} {savings}")),
            Some(why) => {
                ("ConsolidationRejected", format!("Consolidation rejected: {text}, reason: {why} {savings}"))
            }
        };
        for About { object, uid } in both(context, &candidate.node, &candidate.claim) {
            let mut values = vec![uid, text.clone()];
            values.extend(rejected.map(str::to_owned));
            let event = Event::new(object, EventType::Normal, reason, message.as_str());
            context.recorder.publish(event.dedupe_by(values));
        }
    }
}

/// Says how a Balanced NodePool scored a consolidation: on the node of one, on the NodePool of several.
pub(super) fn approved(context: &Context, command: &Command, pool: &NodePool, score: Score) {
    let message = format!(
        "score {:.2} >= threshold {:.2} (k: {BALANCED_K}, savings {:.1}%, disruption {:.1}%)",
        score.value(),
        Score::THRESHOLD,
        score.savings_fraction * 100.0,
        score.disruption_fraction * 100.0
    );
    let on = match command.candidates.as_slice() {
        [one] => both(context, &one.node, &one.claim),
        _ => vec![about(pool)],
    };
    for About { object, uid } in on {
        let event = Event::new(object, EventType::Normal, "ConsolidationApproved", message.as_str());
        context.recorder.publish(event.dedupe_by([uid]));
    }
}

/// Says on a replacement that it is being launched.
pub(super) fn launching(context: &Context, replacement: &NodeClaim, reason: DisruptionReason) {
    let About { object, uid } = about(replacement);
    let message = format!("Launching NodeClaim: {}", reason.as_str());
    let event = Event::new(object, EventType::Normal, "DisruptionLaunching", message);
    context.recorder.publish(event.dedupe_by([uid, reason.as_str().to_owned()]));
}

/// Says on a replacement that it is waited for.
pub(super) fn waiting(context: &Context, replacement: &NodeClaim) {
    let About { object, uid } = about(replacement);
    let message = "Waiting on readiness to continue disruption";
    let event = Event::new(object, EventType::Normal, "DisruptionWaitingReadiness", message);
    context.recorder.publish(event.dedupe_by([uid]));
}

/// Says on Node and NodeClaim that they are going.
pub(super) fn terminating(context: &Context, node: &str, claim: &NodeClaim, reason: DisruptionReason) {
    let reason = reason.as_str();
    let node = context.stores.nodes.get(&ObjectKey::cluster(node));
    let node = node.map(|node| (about::<Node>(&node), "Node"));
    for (About { object, uid }, kind) in node.into_iter().chain([(about(claim), "NodeClaim")]) {
        let message = format!("Disrupting {kind}: {reason}");
        let event = Event::new(object, EventType::Normal, "DisruptionTerminating", message);
        context.recorder.publish(event.dedupe_by([uid, reason.to_owned()]));
    }
}
