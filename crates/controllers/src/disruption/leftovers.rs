//! Marks of disruption on nodes that are not being disrupted: left by a process that died, or by a command that could not take them
//! back (rule D2.2). They are taken off before anything is decided.
//!
//! A node whose marks cannot be taken off is left out of decisions for a while. It keeps no other from being disrupted, but counts
//! against budgets: nothing is scheduled to it.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use karpenter_api::conditions::{ConditionStatus, HasConditions};
use karpenter_api::{NodeClaim, annotations, nodeclaim};
use karpenter_engine::labels::Text;

use super::marks::{self, MarkError, Marked};
use super::queue::Queue;
use crate::context::Context;
use crate::pairing;

/// An object that carries a mark it should not.
struct Left {
    name: String,
    provider_id: Text,
}

/// Takes off what is left.
pub(super) async fn clean_up(context: &Context, queue: &Queue) {
    let Context { stores, cluster, .. } = context;
    let under_way = queue.nodes();
    let is_left = |provider_id: &str| {
        let standing = cluster.read(|cluster| {
            let machine = cluster.machine(provider_id)?;
            Some((machine.node.is_some() && machine.claim.is_some(), machine.deleting()))
        });
        standing == Some((true, false)) && !under_way.contains(provider_id)
    };
    let is_rebooting =
        |claim: &NodeClaim| claim.condition_status(nodeclaim::REBOOTING) == ConditionStatus::True;
    let left = |name: &Option<String>, provider_id: &str| Left {
        name: name.clone().unwrap_or_default(),
        provider_id: provider_id.into(),
    };
    let mut tainted = Vec::new();
    for node in stores.nodes.list() {
        if !marks::carries_taint(&node) || node.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let id = pairing::provider_id_of_node(&node);
        if is_left(id) && stores.claim_of(&node).one().is_some_and(|claim| !is_rebooting(&claim)) {
            tainted.push(left(&node.metadata.name, id));
        }
    }
    let (mut bounded, mut reasoned) = (Vec::new(), Vec::new());
    for claim in stores.node_claims.list() {
        let id = pairing::provider_id(&claim);
        if !marks::carries_reason(&claim) || is_rebooting(&claim) || !is_left(id) {
            continue;
        }
        if marks::carries_bound_of_repair(&claim) {
            bounded.push(left(&claim.metadata.name, id));
        }
        // Also of one that has not come up yet: once it has, it would count as being disrupted.
        reasoned.push(left(&claim.metadata.name, id));
    }
    let untainted = join_all(tainted.iter().map(|left| marks::untaint(context, &left.name))).await;
    settle(queue, &tainted, untainted, "removing taint karpenter.sh/disrupted:NoSchedule from node");
    // Before the reason goes, which says that the bound is a repair's.
    let unbound = join_all(bounded.iter().map(|left| marks::unbound_drain(context, &left.name, None))).await;
    let bound = annotations::NODECLAIM_TERMINATION_TIMESTAMP;
    let doing = format!("removing annotation {bound} from nodeclaim");
    let still_bound = settle(queue, &bounded, unbound, &doing);
    reasoned.retain(|left| !still_bound.contains(&left.name));
    let cleared = join_all(reasoned.iter().map(|left| marks::clear_reason(context, &left.name))).await;
    let doing = format!("removing condition {} from nodeclaim", nodeclaim::DISRUPTION_REASON);
    settle(queue, &reasoned, cleared, &doing);
}

/// Tells which marks stay, has their nodes passed over, and names them.
fn settle(
    queue: &Queue,
    left: &[Left],
    results: Vec<Result<Marked, MarkError>>,
    doing: &str,
) -> BTreeSet<String> {
    let mut staying = BTreeSet::new();
    for (left, result) in left.iter().zip(results) {
        let Err(error) = result else { continue };
        // Somebody is busy with it: no fault, but no moment to decide about it either.
        if matches!(error, MarkError::Conflict(_)) {
            tracing::debug!(name = left.name, %error, "{doing}, leaving the node out for now");
        } else {
            tracing::error!(name = left.name, %error, "{doing}, leaving the node out for now");
        }
        queue.pass_over_in_doubt(&left.provider_id);
        staying.insert(left.name.clone());
    }
    staying
}
