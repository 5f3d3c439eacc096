//! After a pass: where each buffer's virtual pods ended up, as the condition `Provisioning`, and which nodes hold some.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::capacitybuffer::{PROVISIONING, READY_FOR_PROVISIONING};
use karpenter_api::{CapacityBuffer, ConditionStatus};
use karpenter_engine::labels::Text;
use karpenter_engine::pod::Pod;
use karpenter_engine::{Plan, StateNode};
use karpenter_runtime::error::ApiError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, patch_status};
use kube::Api;

use super::pass::Decision;
use crate::context::Context;

/// Where a buffer's virtual pods ended up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Whereabouts {
    existing: usize,
    new: usize,
    failed: usize,
}

/// Writes the condition of every buffer and notes which nodes hold virtual pods. Without a decision none does.
pub(super) async fn update(context: &Context, decision: Option<&Decision>) {
    let Some(store) = &context.stores.capacity_buffers else { return };
    let held = decision.map(|decision| held(&decision.plan, &decision.snapshot.nodes)).unwrap_or_default();
    context.cluster.update(|cluster| cluster.set_buffer_pods(held));
    let whereabouts = decision.map(|decision| whereabouts(&decision.plan)).unwrap_or_default();
    for stored in store.list() {
        let key = ObjectKey::of(&*stored);
        let Some((status, reason, message)) = verdict(&stored, whereabouts.get(&key).copied()) else {
            continue;
        };
        let mut buffer = (*stored).clone();
        buffer.set_condition(PROVISIONING, status, reason, &message, context.now());
        let api: Api<CapacityBuffer> = Api::namespaced(context.client.clone(), &key.namespace);
        if let Err(error) = patch_status(&api, &stored, &buffer, Lock::Optimistic).await {
            tracing::error!(error = %ApiError::from(error), buffer = %key, "updating CapacityBuffer provisioning status");
        }
    }
}

fn held(plan: &Plan, nodes: &[StateNode]) -> BTreeMap<Text, u32> {
    let ids: BTreeMap<&Text, Text> =
        nodes.iter().map(|machine| (machine.name(), provider_id(machine))).collect();
    let mut held = BTreeMap::new();
    for node in &plan.existing_nodes {
        let count = node.pods.iter().filter(|placed| placed.pod.buffer.is_some()).count();
        if let Some(id) = ids.get(&node.node).filter(|_| count > 0) {
            held.insert(id.clone(), u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
    held
}

fn provider_id(machine: &StateNode) -> Text {
    let of_node = machine.node.as_ref().map(|node| node.provider_id.clone());
    of_node
        .or_else(|| machine.claim.as_ref().map(|claim| claim.provider_id.clone()))
        .unwrap_or_else(|| "".into())
}

fn whereabouts(plan: &Plan) -> BTreeMap<ObjectKey, Whereabouts> {
    let mut found: BTreeMap<ObjectKey, Whereabouts> = BTreeMap::new();
    let mut count = |pod: &Arc<Pod>, count: fn(&mut Whereabouts) -> &mut usize| {
        if let Some(buffer) = &pod.buffer {
            let key = ObjectKey::namespaced(pod.namespace.clone(), buffer.clone());
            *count(found.entry(key).or_default()) += 1;
        }
    };
    for placed in plan.existing_nodes.iter().flat_map(|node| &node.pods) {
        count(&placed.pod, |w| &mut w.existing);
    }
    for placed in plan.new_claims.iter().flat_map(|claim| &claim.pods) {
        count(&placed.pod, |w| &mut w.new);
    }
    for error in &plan.pod_errors {
        count(&error.pod, |w| &mut w.failed);
    }
    found
}

/// What the condition says; nothing while the pass has not come to a conclusion about the buffer.
fn verdict(
    buffer: &CapacityBuffer,
    whereabouts: Option<Whereabouts>,
) -> Option<(ConditionStatus, &'static str, String)> {
    let no = |reason, message: &str| Some((ConditionStatus::False, reason, message.to_owned()));
    let conditions = buffer.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|c| c.type_ == READY_FOR_PROVISIONING);
    if !ready.any(|c| c.status == ConditionStatus::True) {
        return no("NotReadyForProvisioning", "Buffer is not ReadyForProvisioning");
    }
    let desired = buffer.status.as_ref().and_then(|status| status.replicas).unwrap_or_default();
    if desired == 0 {
        return no("BufferEmpty", "Buffer has zero desired replicas");
    }
    let Whereabouts { existing, new, failed } = whereabouts?;
    if new > 0 || failed > 0 {
        let message = format!("{new}/{desired} virtual pods required new capacity, {failed} failed");
        return no("RequiresNewCapacity", &message);
    }
    let message = format!("All {desired} virtual pods fit on existing capacity");
    (i64::try_from(existing) == Ok(i64::from(desired))).then_some((
        ConditionStatus::True,
        "FitsExistingCapacity",
        message,
    ))
}
