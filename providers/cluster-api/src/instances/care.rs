//! Looks after what nobody else does, now and then: Machines of their own, which no MachineSet remediates or collects; Machines of
//! NodeClaims that were restored; launches that the core has to be reminded of; lessons to be learnt.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_runtime::events::{Event, EventType, reference};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::duties::Duties;
use super::fleet::Fleet;
use super::hook;
use super::interruptible::Interruptible;
use super::learning;
use super::notices::Notices;
use super::remediation;
use super::restoration;
use super::stillborn;
use super::strays::Strays;
use super::whereabouts;
use crate::client::machine::{Claim, Machine};

/// How often they are looked at, and the core is reminded of pending launches: nothing happens to one that is stuck, and its time
/// runs out all the same.
const PERIOD: Duration = Duration::from_secs(10);
/// How long a Machine's NodeClaim must be out of sight before the server is asked whether it exists.
const OUT_OF_SIGHT: Duration = Duration::from_secs(60);

/// Looks after all of it until stopped.
pub(crate) async fn care(fleet: Weak<Fleet>, stop: CancellationToken) {
    let mut unseen: BTreeMap<String, Instant> = BTreeMap::new();
    let mut interruptible = Interruptible::default();
    let mut notices = Notices::default();
    let mut strays = Strays::default();
    let mut duties = Duties::default();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let Some(fleet) = fleet.upgrade() else { return };
        for name in fleet.node_claims.pending() {
            fleet.wake(&name);
        }
        if let Some(silent) = fleet.hub.silent_for() {
            fleet.metrics.silence.set(&[], silent.as_secs_f64());
        }
        let paused = fleet.mirror.cluster().is_none_or(|cluster| cluster.paused);
        if paused || !fleet.is_synced() {
            continue;
        }
        learning::learn(&fleet).await;
        interruptible.correct(&fleet).await;
        whereabouts::correct(&fleet).await;
        strays.collect(&fleet).await;
        hook::look_after(&fleet).await;
        remediation::look_after(&fleet).await;
        notices.heed(&fleet).await;
        stillborn::give_up(&fleet).await;
        for machine in fleet.mirror.machines() {
            if let Err(error) = restoration::reclaim(&fleet, &machine).await {
                tracing::warn!(machine = %machine.key, %error, "cannot claim the Machine of a restored NodeClaim, will retry");
            }
        }
        duties.begin();
        let standalone = standalone(&fleet);
        unseen.retain(|uid, _| standalone.iter().any(|(_, claim)| claim.uid == *uid));
        for (machine, claim) in standalone {
            match fleet.node_claims.seen(&claim.node_claim, &claim.uid) {
                Some(found) => {
                    unseen.remove(&claim.uid);
                    if !is_standalone(&fleet, &found) || found.metadata.deletion_timestamp.is_some() {
                        continue;
                    }
                    // While Cluster API is to leave a Machine alone, its node stays as well.
                    let is_condemned = machine.is_condemned() && !machine.skips_remediation();
                    if is_condemned && fleet.paused(&machine).is_none() {
                        give_up(&fleet, &machine, &found, &mut duties).await;
                    } else {
                        duties.tell_standing(&fleet, &machine, &found).await;
                    }
                }
                None => {
                    let since = *unseen.entry(claim.uid.clone()).or_insert_with(Instant::now);
                    if since.elapsed() >= OUT_OF_SIGHT {
                        collect(&fleet, &machine).await;
                    }
                }
            }
        }
    }
}

/// Live Machines of ours that belong to no MachineSet.
fn standalone(fleet: &Fleet) -> Vec<(Arc<Machine>, Claim)> {
    let machines = fleet.mirror.machines();
    let ours = machines.into_iter().filter(|machine| !machine.deleting);
    ours.filter_map(|machine| {
        let claim = machine.claim().filter(|claim| claim.owner == fleet.owner)?;
        fleet.mirror.scalable_of(&machine).is_none().then_some((machine, claim))
    })
    .collect()
}

/// Whether a NodeClaim got a Machine of its own, whatever mode its NodeClass has now.
fn is_standalone(fleet: &Fleet, claim: &NodeClaim) -> bool {
    fleet.node_claims.target(claim).is_some_and(|target| target.standalone)
}

/// A health check condemned its Machine, and the NodeClaim is the owner of it.
async fn give_up(fleet: &Fleet, machine: &Machine, claim: &NodeClaim, duties: &mut Duties) {
    let message = "a health check condemned its Machine".to_owned();
    let event = Event::new(reference(claim), EventType::Warning, "MachineUnhealthy", message);
    fleet.recorder.publish(event.dedupe_by([claim.metadata.uid.clone().unwrap_or_default()]));
    match fleet.node_claims.delete(claim).await {
        Ok(()) => duties.tell_remediation(fleet, machine).await,
        Err(error) => {
            tracing::warn!(%error, "cannot delete the NodeClaim of a condemned Machine, will retry");
        }
    }
}

/// Deletes a Machine whose NodeClaim is gone: the server says so, not only the watch.
async fn collect(fleet: &Fleet, machine: &Machine) {
    if fleet.paused(machine).is_some()
        || !matches!(fleet.is_paused().await, Ok(false))
        || !matches!(fleet.node_claims.has_left(machine).await, Ok(true))
    {
        return;
    }
    tracing::info!(machine = %machine.key, "deleting a Machine whose NodeClaim is gone");
    match fleet.hub.delete_machine(machine).await {
        Ok(()) => fleet.metrics.writes.inc(&["delete"]),
        Err(error) => tracing::warn!(%error, "cannot delete a Machine whose NodeClaim is gone, will retry"),
    }
}
