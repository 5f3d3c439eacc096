//! NodeClaims that were restored from a backup: they are who they were, under another uid. Their Machines, which carry the claim of the old
//! one, are claimed again instead of being taken for those of NodeClaims that are gone.

use super::execution::claim_metadata;
use super::fleet::Fleet;
use crate::client::hub::HubError;
use crate::client::machine::Machine;

/// Claims a Machine again whose NodeClaim was restored. Whether there was anything to do, so that all is to be looked at again.
pub(super) async fn reclaim(fleet: &Fleet, machine: &Machine) -> Result<bool, HubError> {
    let ours = machine.claim().is_some_and(|claim| claim.owner == fleet.owner);
    if !ours || machine.deleting || machine.is_marked() || !fleet.node_claims.seems_restored(machine) {
        return Ok(false);
    }
    if fleet.paused(machine).is_some() || fleet.is_paused().await? {
        return Ok(false);
    }
    // A watch may show one of before.
    let Ok(found) = fleet.node_claims.restored(machine).await else { return Ok(true) };
    let Some(claim) = found else { return Ok(true) };
    tracing::info!(machine = %machine.key, name = claim.name, "a NodeClaim was restored, and keeps its Machine");
    match fleet.hub.annotate_machine(machine, claim_metadata(&claim, &fleet.owner)).await {
        Ok(_) => {
            fleet.metrics.writes.inc(&["claim"]);
            fleet.wake(&claim.name);
        }
        Err(error) if error.is_conflict() || error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}
