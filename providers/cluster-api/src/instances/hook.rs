//! Our pre-drain hook: when somebody else deletes a Machine (a person, a rollout, a health check), Karpenter drains its Node by its own
//! rules first. Only where the NodeClass says for how long Cluster API is to wait; it never waits for longer, nor for a NodeClaim
//! that is gone.

use std::sync::Arc;
use std::time::Duration;

use karpenter_runtime::events::{Event, EventType, reference};
use serde_json::{Value, json};

use super::fleet::Fleet;
use crate::client::hub::HubError;
use crate::client::machine::{Claim, Machine};
use crate::names;

/// For how long Cluster API waits where the NodeClass does not say any more.
const DEFAULT: Duration = Duration::from_secs(10 * 60);
/// How long successors have to be made before a NodeClaim goes.
const SUCCESSION: Duration = Duration::from_secs(5);

/// The annotation that a claimed Machine gets, where it is wanted.
pub(crate) fn annotate(annotations: &mut Value, wanted: bool) {
    if wanted {
        annotations[names::OWN_HOOK] = "".into();
    }
}

/// Looks after Machines that wait for us: has their Nodes drained, and lets go of those for which time is up or nobody is left.
pub(crate) async fn look_after(fleet: &Fleet) {
    let machines = fleet.mirror.machines().into_iter().filter(|m| m.deleting && m.waits_for_us());
    for machine in machines {
        let Some(claim) = machine.claim().filter(|claim| claim.owner == fleet.owner) else { continue };
        if let Err(error) = attend(fleet, &machine, &claim).await {
            tracing::warn!(machine = %machine.key, %error, "cannot see to a Machine that waits for a drain, will retry");
        }
    }
}

async fn attend(fleet: &Fleet, machine: &Arc<Machine>, claim: &Claim) -> Result<(), HubError> {
    let since = machine.deleting_since.map(|since| fleet.clock.undoubted_since(since)).unwrap_or_default();
    let found = fleet.node_claims.seen(&claim.node_claim, &claim.uid);
    let class = found.as_ref().and_then(|found| fleet.node_class(&found.spec.node_class_ref.name));
    let patience = class.and_then(|class| class.hook_timeout()).unwrap_or(DEFAULT);
    match found {
        Some(_) if since >= patience => let_go(fleet, machine).await,
        Some(found) if found.metadata.deletion_timestamp.is_none() && since >= SUCCESSION => {
            // What was seen a while ago is no reason to drain a node: the management cluster may be away.
            match fleet.hub.machine(&machine.key.name).await {
                Ok(now) if now.uid == machine.uid && now.deleting => {}
                Ok(_) => return Ok(()),
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(error),
            }
            let message = format!("Machine {} is being deleted: its node is drained first", machine.key);
            let event = Event::new(reference(&*found), EventType::Normal, "MachineDeleted", message);
            fleet.recorder.publish(event.dedupe_by([claim.uid.clone()]));
            if let Err(error) = fleet.node_claims.delete(&found).await {
                tracing::warn!(%error, "cannot delete the NodeClaim of a Machine that is being deleted, will retry");
            }
            Ok(())
        }
        Some(_) => Ok(()),
        None => match fleet.node_claims.is_gone(&claim.node_claim, &claim.uid).await {
            Ok(true) => let_go(fleet, machine).await,
            // Not seen is not gone; but nobody waits for longer than was said.
            _ if since >= patience => let_go(fleet, machine).await,
            _ => Ok(()),
        },
    }
}

/// Takes the hook off: what was to be done has been, or will not be.
pub(crate) async fn let_go(fleet: &Fleet, machine: &Machine) -> Result<(), HubError> {
    if fleet.paused_now(machine).await?.is_some() {
        return Ok(());
    }
    let metadata = json!({"annotations": {names::OWN_HOOK: null}});
    match fleet.hub.annotate_machine(machine, metadata).await {
        // Changed in between: at the next look.
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            fleet.metrics.writes.inc(&["unhook"]);
            Ok(())
        }
    }
}
