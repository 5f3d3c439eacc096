//! O4: a Machine does not outlive its NodeClaim: none is let go while its Machine lives, and what came to be claimed for one that is
//! gone goes as soon as anybody can see to it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::checks::{CLAIM, MARK, is_owner, scalable_of, set_of};
use super::kinds::{annotation, is_paused};
use crate::faults::Faults;
use crate::invariants::{Invariant, Step};
use crate::objects::{Change, Objects, is_deleting, uid};

const MACHINE: &str = "karpenter.cluster.x-k8s.io/machine";

/// A claim so young may not have been seen by who let the NodeClaim go.
const UNSEEN_SECONDS: i64 = 60;
/// For so long a Machine may outlive its NodeClaim where nothing keeps anybody from seeing to it: what it takes to find out, the time that
/// surplus is kept for in these worlds, and the lives of processes that end meanwhile.
const OUTLIVES_SECONDS: i64 = 12 * 60;

/// See the module.
pub struct MachinesGoWithTheirClaims {
    provider: String,
    hub: Faults,
    /// When Machines were claimed.
    claimed: BTreeMap<ObjectKey, Timestamp>,
    /// Since when Machines have been alone, and nothing has kept anybody from seeing to them.
    alone: BTreeMap<String, Timestamp>,
}

impl MachinesGoWithTheirClaims {
    /// For a provider whose writes stand under names that start with `provider` and who reaches the management cluster through
    /// `hub`.
    pub fn new(provider: &str, hub: &Faults) -> Self {
        Self {
            provider: provider.to_owned(),
            hub: hub.clone(),
            claimed: BTreeMap::new(),
            alone: BTreeMap::new(),
        }
    }

    /// Takes note of what the provider claims; people who move Machines move their claims.
    fn note_claims(&mut self, step: &Step<'_>) {
        let ours = step.entry.actor.starts_with(&self.provider);
        for change in step.changes {
            let Change::Machine(edit) = &**change else { continue };
            let claims = edit.new.as_ref().is_some_and(|new| annotation(new, CLAIM).is_some());
            if claims && ours {
                self.claimed.entry(edit.key.clone()).or_insert(step.now);
            }
            if edit.new.is_none() && !is_owner(&step.entry.actor) {
                self.claimed.remove(&edit.key);
            }
        }
    }

    /// Judges Machines whose NodeClaims are gone by how long they have been.
    fn judge_the_lonely(&mut self, step: &Step<'_>) -> Result<(), String> {
        let dark = self.hub.is_cut_off() || self.hub.refusal().is_some();
        let mut alone = BTreeMap::new();
        for (key, machine) in &step.objects.machines {
            let claim = annotation(machine, CLAIM).filter(|_| self.claimed.contains_key(key));
            let Some(claim) = claim else { continue };
            let goes = is_deleting(&**machine) || annotation(machine, MARK) == Some(claim);
            let has_claim = step.objects.node_claims.values().any(|found| {
                let named = found.metadata.annotations.as_ref().and_then(|all| all.get(MACHINE));
                // One that was restored from a backup has another uid.
                uid(&**found) == claim || named.is_some_and(|named| *named == key.to_string())
            });
            if goes || has_claim || dark || is_held(step.objects, machine) {
                continue;
            }
            let since = self.alone.get(uid(&**machine)).copied().unwrap_or(step.now);
            if step.now.as_second() - since.as_second() > OUTLIVES_SECONDS {
                return Err(format!("Machine {key} has outlived its NodeClaim {claim} since {since}"));
            }
            alone.insert(uid(&**machine).to_owned(), since);
        }
        self.alone = alone;
        Ok(())
    }
}

/// Whether nobody may write to a Machine, or to what it belongs to.
fn is_held(objects: &Objects, machine: &DynamicObject) -> bool {
    let cluster = super::deployments::cluster_of(objects, machine);
    let (owner, set) = (scalable_of(objects, machine), set_of(objects, machine));
    let held = |object: &DynamicObject| is_paused(object, cluster);
    cluster.is_none()
        || held(machine)
        || owner.is_some_and(|found| held(found))
        || set.is_some_and(|found| held(found))
}

impl Invariant for MachinesGoWithTheirClaims {
    fn name(&self) -> &'static str {
        "Machines go with their NodeClaims"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O4"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.note_claims(step);
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), None) = (&edit.old, &edit.new) else { continue };
            if !step.entry.actor.starts_with(&self.provider) {
                continue;
            }
            let left = step.objects.machines.iter().find(|(key, machine)| {
                let known = self.claimed.get(*key);
                annotation(machine, CLAIM) == Some(uid(&**old))
                    && !is_deleting(&***machine)
                    && known.is_some_and(|at| step.now.as_second() - at.as_second() > UNSEEN_SECONDS)
            });
            if let Some((machine, _)) = left {
                return Err(format!("NodeClaim {} was let go, and its Machine {machine} lives", edit.key));
            }
        }
        self.judge_the_lonely(step)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::entropy::Entropy;
    use serde_json::json;

    use super::*;
    use crate::cluster_api::steps::{Trial, claimed_for};
    use crate::faults::FaultPlan;

    fn trial() -> Trial<MachinesGoWithTheirClaims> {
        let hub = Faults::new(FaultPlan::none(), &Entropy::from_seed(1), "hub");
        let mut trial = Trial::of(MachinesGoWithTheirClaims::new("karpenter", &hub));
        trial.cluster(false).expect("people may");
        trial.claim("karpenter", "a", json!({}), json!({})).expect("it may be made");
        trial.machine("karpenter", "m", claimed_for("a")).expect("it may be claimed");
        trial
    }

    #[test]
    fn a_node_claim_is_not_let_go_while_its_machine_lives() {
        let mut late = trial();
        late.pass(100);
        let told = late.let_go("karpenter", "a").expect_err("its Machine lives");
        assert_eq!(told, "NodeClaim a was let go, and its Machine fleet/m lives");
        let mut right = trial();
        right.pass(100);
        right.delete_machine("karpenter", "m").expect("it may go");
        right.let_go("karpenter", "a").expect("its Machine is going");
        let mut young = trial();
        young.let_go("karpenter", "a").expect("the claim may not have been seen yet");
    }

    #[test]
    fn a_machine_claimed_for_one_that_is_gone_goes_in_time_unless_nobody_may_see_to_it() {
        for (paused, leaks) in [(false, true), (true, false)] {
            let mut trial = trial();
            trial.let_go("karpenter", "a").expect("the claim may not have been seen yet");
            trial.cluster(paused).expect("people may");
            trial.pass(OUTLIVES_SECONDS + 10);
            let told = trial.claim("karpenter", "b", json!({}), json!({}));
            assert_eq!(told.is_err(), leaks, "paused: {paused}");
        }
    }
}
