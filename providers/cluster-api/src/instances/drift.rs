//! Whether a Machine is still what its template says, in the three policies.

use karpenter_api::NodeClaim;

use super::customization::{blueprint_hash, patches_hash};
use super::fleet::Fleet;
use super::rollout;
use crate::client::fields::condition;
use crate::client::machine::Machine;
use crate::client::scalable::Scalable;
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, ClusterAPINodeClassSpec, Drift};

/// The template has changed.
pub(crate) const TEMPLATE: &str = "MachineTemplateDrift";
/// The Kubernetes version has changed.
pub(crate) const VERSION: &str = "KubernetesVersionDrift";
/// The failure domain has changed.
pub(crate) const FAILURE_DOMAIN: &str = "FailureDomainDrift";
/// What the NodeClass changes in clones has changed.
pub(crate) const NODE_CLASS: &str = "NodeClassDrift";
/// Machines that are older than a time were to be replaced from then on.
pub(crate) const ROLLOUT_AFTER: &str = "RolloutAfter";

/// Whether a Machine is what would be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    UpToDate,
    /// It is not, for this reason.
    Outdated(&'static str),
}

/// Why a NodeClaim's Machine is no longer what it should be.
pub(crate) fn drifted(fleet: &Fleet, claim: &NodeClaim) -> Option<&'static str> {
    let class = fleet.node_class(&claim.spec.node_class_ref.name)?;
    let drift = match fleet.node_claims.target(claim).is_some_and(|target| target.standalone) {
        true => class.drift_of_own_machines(),
        false => class.spec().drift.unwrap_or_default(),
    };
    if drift != Drift::Karpenter {
        return None;
    }
    match standing(fleet, claim, &class)? {
        Standing::UpToDate => None,
        Standing::Outdated(reason) => Some(reason),
    }
}

/// Whether a NodeClaim's Machine is what would be made now; `None` if that is not known, or about to change.
pub(crate) fn standing(fleet: &Fleet, claim: &NodeClaim, class: &ClusterAPINodeClass) -> Option<Standing> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let machine = fleet.mirror.machine_of(uid)?;
    if machine.deleting || machine.is_updating() {
        return None;
    }
    let id = fleet.node_claims.target(claim).map(|t| t.id).or_else(|| fleet.mirror.scalable_of(&machine))?;
    let scalable = fleet.blueprint(&id)?;
    let outdated = outdated(fleet, &machine, &scalable, &class.spec());
    Some(outdated.map_or(Standing::UpToDate, Standing::Outdated))
}

fn outdated(
    fleet: &Fleet,
    machine: &Machine,
    scalable: &Scalable,
    spec: &ClusterAPINodeClassSpec,
) -> Option<&'static str> {
    if scalable.version.is_some() && machine.version.is_some() && scalable.version != machine.version {
        return Some(VERSION);
    }
    // One that the infrastructure put elsewhere than it was asked to would be put there again.
    let place = machine.asked_into.as_ref().or(machine.failure_domain.as_ref());
    if scalable.failure_domain.is_some() && scalable.failure_domain.as_ref() != place {
        return Some(FAILURE_DOMAIN);
    }
    let now = fleet.clock.undoubted_now();
    if scalable.rollout_after.is_some_and(|after| after <= now && machine.created < after) {
        return Some(ROLLOUT_AFTER);
    }
    // A Machine of its own carries what it was made from.
    if machine.annotations.contains_key(names::BLUEPRINT_HASH) {
        return made_otherwise(machine, scalable, spec);
    }
    is_stale(fleet, machine, scalable).then_some(TEMPLATE)
}

/// Why a Machine of its own would be made in another way now.
fn made_otherwise(
    machine: &Machine,
    blueprint: &Scalable,
    spec: &ClusterAPINodeClassSpec,
) -> Option<&'static str> {
    let differs = |key: &str, now: String| machine.annotations.get(key).is_some_and(|then| *then != now);
    // What kubelet is told is no part of the blueprint.
    if differs(names::PATCHES_HASH, patches_hash(spec)) {
        return Some(NODE_CLASS);
    }
    differs(names::BLUEPRINT_HASH, blueprint_hash(blueprint, spec)).then_some(TEMPLATE)
}

/// Cluster API says so in `UpToDate`; before it did, a Machine of an older MachineSet is.
fn is_stale(fleet: &Fleet, machine: &Machine, scalable: &Scalable) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{deployment, machine};
    use crate::nodeclass::ClonePatch;

    #[test]
    fn whether_the_templates_or_the_node_class_changed_a_machine_of_its_own_is_told_apart() {
        let (plain, spec) = (deployment("m", &[]), ClusterAPINodeClassSpec::default());
        let (made_from, patched_by) = (blueprint_hash(&plain, &spec), patches_hash(&spec));
        let annotations =
            [(names::BLUEPRINT_HASH, made_from.as_str()), (names::PATCHES_HASH, patched_by.as_str())];
        let made = machine("x", 0, &annotations);
        assert_eq!(made_otherwise(&made, &plain, &spec), None);
        let mut newer = plain.clone();
        newer.version = Some("v1.40.0".to_owned());
        assert_eq!(made_otherwise(&made, &newer, &spec), Some(TEMPLATE));
        let patch = ClonePatch { path: "/files".to_owned(), ..ClonePatch::default() };
        let patched = ClusterAPINodeClassSpec { bootstrap_patches: Some(vec![patch]), ..spec };
        assert_eq!(made_otherwise(&made, &plain, &patched), Some(NODE_CLASS));
        let kubelet = crate::nodeclass::Kubelet { max_pods: Some(50), ..Default::default() };
        let told = ClusterAPINodeClassSpec { kubelet: Some(kubelet), ..ClusterAPINodeClassSpec::default() };
        assert_eq!(made_otherwise(&made, &plain, &told), Some(NODE_CLASS), "another kubelet");
        let older = machine("y", 0, &annotations[..1]);
        assert_eq!(made_otherwise(&older, &plain, &told), None, "it does not say what kubelet was told");
        assert_eq!(made_otherwise(&older, &plain, &patched), Some(TEMPLATE), "it does not say by what");
    }
}
