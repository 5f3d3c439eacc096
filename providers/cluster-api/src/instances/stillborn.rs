//! Machines that fail for good after their NodeClaim was told an id, which the infrastructure may know early: the core asks no more then, and
//! would wait for the Node for as long as one may take to register.

use std::sync::Arc;

use karpenter_api::NodeClaim;
use karpenter_api::conditions::{ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::REGISTERED;
use karpenter_runtime::events::{Event, EventType, reference};

use super::fleet::Fleet;
use super::launch;
use super::ledger::is_our_mark;
use super::node_claims::Target;
use crate::client::machine::Machine;

/// Gives up NodeClaims whose Machines failed before they became nodes. What fails is done the next time.
pub(crate) async fn give_up(fleet: &Fleet) {
    for machine in fleet.mirror.machines() {
        let Some((claim, target, reason, why)) = look_at(fleet, &machine) else { continue };
        // Refused launches of others go elsewhere, as they do where a launch fails before it has an id.
        drop(launch::failed(fleet, &target, &reason, &why));
        let event = Event::new(reference(&*claim), EventType::Warning, "MachineFailed", why);
        fleet.recorder.publish(event.dedupe_by([claim.metadata.uid.clone().unwrap_or_default()]));
        if let Err(error) = fleet.node_claims.delete(&claim).await {
            tracing::warn!(%error, "cannot give up the NodeClaim of a Machine that failed, will retry");
        }
    }
}

/// The NodeClaim of a Machine that failed, where it comes from, and why.
fn look_at(fleet: &Fleet, machine: &Machine) -> Option<(Arc<NodeClaim>, Target, String, String)> {
    if machine.deleting || machine.node_name.is_some() || is_our_mark(machine) {
        return None;
    }
    let held = machine.claim().filter(|held| held.owner == fleet.owner)?;
    let claim = fleet.node_claims.seen(&held.node_claim, &held.uid)?;
    let has_id = claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
    let registered = claim.condition(REGISTERED).is_some_and(|c| c.status == ConditionStatus::True);
    if !has_id || registered || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let target = fleet.node_claims.target(&claim)?;
    let blueprint = fleet.blueprint(&target.id);
    let reasons = blueprint.as_ref().map(|blueprint| blueprint.failure_reasons()).unwrap_or_default();
    let failure = machine.failure_by(&reasons)?;
    let why = format!("Machine {}: {}: {}", machine.key, failure.reason, failure.message);
    Some((claim, target, failure.reason, why))
}
