//! Whether a Machine is still what its template says, in the three policies.

use karpenter_api::NodeClaim;

use super::customization::blueprint_hash;
use super::fleet::Fleet;
use super::rollout;
use crate::client::fields::condition;
use crate::client::machine::Machine;
use crate::names;
use crate::nodeclass::Drift;

/// The template has changed.
pub const TEMPLATE: &str = "MachineTemplateDrift";
/// The Kubernetes version has changed.
pub const VERSION: &str = "KubernetesVersionDrift";
/// The failure domain has changed.
pub const FAILURE_DOMAIN: &str = "FailureDomainDrift";

/// Why a NodeClaim's Machine is no longer what it should be.
pub fn drifted(fleet: &Fleet, claim: &NodeClaim) -> Option<&'static str> {
    let class = fleet.node_class(&claim.spec.node_class_ref.name)?;
    if class.spec().drift.unwrap_or_default() != Drift::Karpenter {
        return None;
    }
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let machine = fleet.mirror.machine_of(uid)?;
    if machine.deleting || machine.is_updating() {
        return None;
    }
    let id = fleet.node_claims.target(claim).map(|t| t.id).or_else(|| fleet.mirror.scalable_of(&machine))?;
    let scalable = fleet.mirror.scalable(&id)?;
    if scalable.version.is_some() && machine.version.is_some() && scalable.version != machine.version {
        return Some(VERSION);
    }
    if scalable.failure_domain.is_some() && scalable.failure_domain != machine.failure_domain {
        return Some(FAILURE_DOMAIN);
    }
    // A Machine of its own carries what it was made from.
    if let Some(made_from) = machine.annotations.get(names::BLUEPRINT_HASH) {
        return (*made_from != blueprint_hash(&scalable, &class.spec())).then_some(TEMPLATE);
    }
    is_stale(fleet, &machine, &scalable).then_some(TEMPLATE)
}

/// Cluster API says so in `UpToDate`; before it did, a Machine of an older MachineSet is.
fn is_stale(fleet: &Fleet, machine: &Machine, scalable: &crate::client::scalable::Scalable) -> bool {
    if let Some(up_to_date) = condition(&machine.conditions, "UpToDate") {
        return up_to_date.is_false() && up_to_date.reason == "NotUpToDate";
    }
    let sets = fleet.mirror.sets_of(&scalable.id);
    let rollout = rollout::rollout(scalable, &sets, std::slice::from_ref(machine));
    rollout.is_some_and(|rollout| {
        rollout.newest_set.is_some()
            && machine.set_name().is_some()
            && rollout.newest_set.as_deref() != machine.set_name()
    })
}
