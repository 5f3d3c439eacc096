//! What is about to take a machine away, told early enough that its pods can leave first.
//!
//! CloudStack has no market that takes machines back. But a lease ends on a day that is known, and a host that goes into
//! maintenance takes machines that are cheap because they may be taken: those sold as spot. Others are moved by CloudStack.

use std::time::Duration;

use karpenter_api::{NodeClaim, labels as well_known};
use kube::ResourceExt as _;

use crate::client::model::{Host, VirtualMachine, time};
use crate::provider::CloudStackProvider;

/// How long before its lease ends a machine is replaced.
const BEFORE_LEASE_ENDS: Duration = Duration::from_secs(30 * 60);
/// States of hosts that are being emptied.
const EMPTIED: [&str; 4] = [
    "PrepareForMaintenance",
    "PrepareForMaintenanceWithErrors",
    "Maintenance",
    "ErrorInPrepareForMaintenance",
];

impl CloudStackProvider {
    /// Has the machine replaced if it will not stay: its NodeClaim goes, and the core lets its pods leave first. Whether it does.
    pub(crate) async fn leaves_before_interruption(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
    ) -> bool {
        let Some((reason, why)) = self.interruption(machine, claim).await else { return false };
        self.shared.voice.give_up(claim, reason, &why).await;
        true
    }

    async fn interruption(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
    ) -> Option<(&'static str, String)> {
        if let Some(ends) = time(&machine.leaseexpirydate)
            && ends.duration_since(self.shared.clock.now())
                <= jiff::SignedDuration::try_from(BEFORE_LEASE_ENDS).ok()?
        {
            return Some((
                "LeaseEnds",
                format!("the lease of virtual machine {} ends at {ends}; it is replaced", machine.name),
            ));
        }
        let spot = claim
            .labels()
            .get(well_known::CAPACITY_TYPE)
            .is_some_and(|t| t == well_known::CAPACITY_TYPE_SPOT);
        if !spot || machine.hostid.is_empty() {
            return None;
        }
        let hosts = self.shared.catalogue.hosts(&machine.zoneid).await?;
        let leaves =
            |host: &&Host| host.id == machine.hostid && EMPTIED.contains(&host.resourcestate.as_str());
        hosts.iter().find(leaves).map(|host| {
            (
                "HostMaintenance",
                format!(
                    "the host of virtual machine {} is in state {}; it is replaced",
                    machine.name, host.resourcestate
                ),
            )
        })
    }
}
