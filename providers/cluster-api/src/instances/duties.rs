//! What the owner of a Machine tells Cluster API about it: MachineSets do so for theirs, Karpenter for Machines of their own. Whether
//! it is what would be made now (`UpToDate`), where Karpenter sees to that: without it the Cluster's `WorkerMachinesUpToDate` stays
//! unknown. And that one which a health check condemned is on its way out (`OwnerRemediated`).

use std::time::Duration;

use karpenter_api::NodeClaim;
use tokio::time::Instant;

use super::drift::{self, Standing};
use super::fleet::Fleet;
use crate::client::fields::{Condition, condition};
use crate::client::hub::HubError;
use crate::client::machine::Machine;
use crate::nodeclass::Drift;

/// How long it is until we try again to tell what we may not.
const REFUSED: Duration = Duration::from_secs(10 * 60);
/// How many Machines are told about at a time: others wait for whoever does it.
const AT_A_TIME: u32 = 20;

/// What is told, as far as we may.
#[derive(Debug, Default)]
pub(crate) struct Duties {
    refused: Option<Instant>,
    told: u32,
}

impl Duties {
    /// Begins anew with as many as are told about at a time.
    pub(crate) fn begin(&mut self) {
        self.told = 0;
    }

    /// Tells whether a NodeClaim's Machine of its own is what would be made now, once it has a Node.
    pub(crate) async fn tell_standing(&mut self, fleet: &Fleet, machine: &Machine, claim: &NodeClaim) {
        let Some(class) = fleet.node_class(&claim.spec.node_class_ref.name) else { return };
        // A write for each Machine: for those who ask for it.
        let is_ours_to_say = class.spec().drift == Some(Drift::Karpenter);
        if !is_ours_to_say || machine.node_name.is_none() {
            return;
        }
        let wanted = match drift::standing(fleet, claim, &class) {
            Some(Standing::UpToDate) => said("UpToDate", "True", "UpToDate", ""),
            Some(Standing::Outdated(why)) => said("UpToDate", "False", "NotUpToDate", why),
            None => return,
        };
        self.tell(fleet, machine, &wanted).await;
    }

    /// Tells that a Machine which a health check condemned is on its way out.
    pub(crate) async fn tell_remediation(&mut self, fleet: &Fleet, machine: &Machine) {
        let message = "Karpenter has deleted its NodeClaim";
        self.tell(fleet, machine, &said("OwnerRemediated", "False", "MachineDeleting", message)).await;
    }

    /// Sets a condition, unless it is seen to be so already. Nothing depends on it: what fails is done the next time.
    async fn tell(&mut self, fleet: &Fleet, machine: &Machine, wanted: &Condition) {
        if condition(&machine.conditions, &wanted.kind) == Some(wanted)
            || self.told >= AT_A_TIME
            || self.refused.is_some_and(|at| at.elapsed() < REFUSED)
            || fleet.paused(machine).is_some()
        {
            return;
        }
        self.told += 1;
        // Its objects may be on the move.
        if !matches!(fleet.is_paused().await, Ok(false)) {
            return;
        }
        match fleet.hub.set_condition(machine, wanted, fleet.clock.now()).await {
            Ok(true) => fleet.metrics.writes.inc(&["condition"]),
            Ok(false) => {}
            // The NodeClass tells what we may not do.
            Err(HubError::Refused { .. }) => self.refused = Some(Instant::now()),
            Err(error) => tracing::debug!(%error, machine = %machine.key, "cannot tell about a Machine"),
        }
    }
}

fn said(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}
