//! O3: a level rises only to what somebody needs. While creation is held up for long, NodeClaims come, wait and go; the level
//! follows them and does not add them up.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::checks::{CLAIM, MIN_SIZE, scalable_of};
use super::kinds::{annotation, is_standalone, number};
use super::origins::{Origins, machines_of, stays};
use crate::invariants::{Invariant, Step};
use crate::objects::{Change, Edit, Objects, is_deleting, uid};

const TARGET: &str = "karpenter.cluster.x-k8s.io/target";

/// A NodeClaim that went may have been seen to wait for so long: watches lag, end and cannot be begun anew.
const UNSEEN_SECONDS: i64 = 120;
/// A Machine that went may have been seen to stay for so long: they are read anew before a level is set.
const ON_ITS_WAY_SECONDS: i64 = 30;

/// See the module.
pub struct RaisedForSomebody {
    provider: String,
    origins: Origins,
    /// When NodeClaims ceased to wait for a Machine of a resource, or of any (`None`).
    gave_up: Vec<(Option<String>, Timestamp)>,
    /// When Machines of a resource ceased to be there to stay.
    left: BTreeMap<ObjectKey, Vec<Timestamp>>,
}

impl RaisedForSomebody {
    /// For a provider whose writes stand under names that start with `provider`.
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            origins: Origins::default(),
            gave_up: Vec::new(),
            left: BTreeMap::new(),
        }
    }

    fn note(&mut self, step: &Step<'_>) {
        self.origins.note(step);
        for change in step.changes {
            match &**change {
                Change::NodeClaim(edit) => {
                    let (before, after) = (edit.old.as_deref(), edit.new.as_deref());
                    let (before, after) = (before.filter(|c| waits(c)), after.filter(|c| waits(c)));
                    if let Some(before) = before
                        && after.is_none_or(|after| target(after) != target(before))
                    {
                        self.gave_up.push((target(before).map(str::to_owned), step.now));
                    }
                }
                Change::Machine(edit) => {
                    let before = edit.old.as_ref().filter(|machine| stays(machine));
                    let after = edit.new.as_ref().filter(|machine| stays(machine));
                    if let Some(before) = before.filter(|_| after.is_none())
                        && let Some(scalable) = scalable_of(step.objects, before)
                    {
                        self.left.entry(ObjectKey::of(&**scalable)).or_default().push(step.now);
                    }
                }
                _ => {}
            }
        }
        let since = |at: &Timestamp| step.now.as_second() - at.as_second();
        self.gave_up.retain(|(_, at)| since(at) < UNSEEN_SECONDS);
        for left in self.left.values_mut() {
            left.retain(|at| since(at) < ON_ITS_WAY_SECONDS);
        }
    }

    fn judge(&self, edit: &Edit<DynamicObject>, objects: &Objects) -> Result<(), String> {
        let (Some(old), Some(new)) = (&edit.old, &edit.new) else { return Ok(()) };
        let (before, after) = (number(old, "/spec/replicas"), number(new, "/spec/replicas"));
        if after <= before {
            return Ok(());
        }
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let claimed = machines_of(objects, &edit.key)
            .filter(|machine| stays(machine) && annotation(machine, CLAIM).is_some())
            .count();
        let others = machines_of(objects, &edit.key)
            .filter(|machine| !is_deleting(&***machine) && annotation(machine, CLAIM).is_none())
            .filter(|machine| {
                self.origins.is_foreign(machine) || annotation(machine, super::checks::MARK).is_some()
            })
            .count();
        let others = count(others).max(self.origins.protected(&edit.key).unwrap_or(0));
        let has_machine = |claim: &NodeClaim| {
            objects.machines.values().any(|machine| annotation(machine, CLAIM) == Some(uid(claim)))
        };
        let is_here = |target: Option<&str>| target.is_none_or(|target| is_of(target, &edit.key));
        let claims = objects.node_claims.values();
        let waiting =
            claims.filter(|claim| waits(claim) && is_here(target(claim)) && !has_machine(claim)).count();
        let of_late = self.gave_up.iter().filter(|(target, _)| is_here(target.as_deref())).count()
            + self.left.get(&edit.key).map_or(0, Vec::len);
        let least = annotation(new, MIN_SIZE).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
        let needed = count(claimed + waiting) + others;
        if after > (needed + count(of_late)).max(least) {
            return Err(format!(
                "{} was raised from {before} to {after}, and {needed} are needed: {claimed} claimed, {waiting} waited for, \
                 {others} of others",
                edit.key
            ));
        }
        Ok(())
    }
}

/// Whether a NodeClaim may wait for a Machine.
fn waits(claim: &NodeClaim) -> bool {
    !is_deleting(claim) && claim.status.as_ref().is_none_or(|status| status.provider_id.is_none())
}

fn target(claim: &NodeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(TARGET).map(String::as_str)
}

/// Whether a NodeClaim's target is to be scaled, and this very resource.
fn is_of(target: &str, key: &ObjectKey) -> bool {
    let name = target.strip_prefix("MachineSet:").unwrap_or(target);
    name == key.to_string()
}

impl Invariant for RaisedForSomebody {
    fn name(&self) -> &'static str {
        "levels rise for somebody"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O3"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.note(step);
        if !step.entry.actor.starts_with(&self.provider) {
            return Ok(());
        }
        for change in step.changes {
            match &**change {
                Change::MachineDeployment(edit) => self.judge(edit, step.objects)?,
                Change::MachineSet(edit) if edit.either().is_some_and(|set| is_standalone(set)) => {
                    self.judge(edit, step.objects)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster_api::checks::EPOCH;
    use crate::cluster_api::steps::{Trial, claimed_for};

    fn waiting(trial: &mut Trial<RaisedForSomebody>, name: &str) {
        trial.claim("user", name, json!({TARGET: "fleet/d"}), json!({})).expect("anybody may wait");
    }

    #[test]
    fn a_level_rises_for_who_waits_and_for_what_is_there_and_not_beyond() {
        let mut trial = Trial::of(RaisedForSomebody::new("karpenter"));
        trial.deployment("user", 1, json!({})).expect("people may");
        trial.machine("machineset-controller", "theirs", json!({})).expect("Cluster API may");
        let enrolled = json!({EPOCH: "2026-01-01T00:00:00Z"});
        trial.deployment("karpenter", 1, enrolled.clone()).expect("it takes part");
        waiting(&mut trial, "a");
        trial.deployment("karpenter", 2, enrolled.clone()).expect("one waits, and one was there before");
        // It is held up, and asked about again.
        let told = trial.deployment("karpenter", 3, enrolled.clone()).expect_err("it is for nobody");
        assert_eq!(
            told,
            "fleet/d was raised from 2 to 3, and 2 are needed: 0 claimed, 1 waited for, 1 of others"
        );
        trial.machine("machineset-controller", "m", claimed_for("a")).expect("Cluster API may");
        waiting(&mut trial, "b");
        trial.deployment("karpenter", 2, enrolled.clone()).expect("it may fall");
        trial.deployment("karpenter", 3, enrolled.clone()).expect("it is for another");
        assert!(trial.deployment("karpenter", 4, enrolled).is_err());
    }

    #[test]
    fn who_went_a_moment_ago_may_be_thought_to_wait_and_who_went_before_may_not() {
        for (ago, may) in [(60, true), (300, false)] {
            let mut trial = Trial::of(RaisedForSomebody::new("karpenter"));
            trial.deployment("user", 0, json!({})).expect("people may");
            waiting(&mut trial, "a");
            trial.let_go("karpenter", "a").expect("it may go");
            trial.pass(ago);
            assert_eq!(trial.deployment("karpenter", 1, json!({})).is_ok(), may, "{ago} seconds");
        }
    }

    #[test]
    fn who_waits_elsewhere_does_not_count() {
        let mut trial = Trial::of(RaisedForSomebody::new("karpenter"));
        trial.deployment("user", 0, json!({})).expect("people may");
        for (name, target) in [("a", "fleet/e"), ("b", "MachineSet:fleet/e"), ("c", "Machine:fleet/d")] {
            trial.claim("user", name, json!({TARGET: target}), json!({})).expect("anybody may wait");
        }
        assert!(trial.deployment("karpenter", 1, json!({})).is_err());
        assert!(trial.deployment("user", 5, json!({})).is_ok(), "people may do as they like");
    }

    #[test]
    fn a_level_may_rise_to_the_owners_least_size() {
        let mut trial = Trial::of(RaisedForSomebody::new("karpenter"));
        trial.deployment("user", 0, json!({MIN_SIZE: "2"})).expect("people may");
        assert!(trial.deployment("karpenter", 2, json!({MIN_SIZE: "2"})).is_ok());
        assert!(trial.deployment("karpenter", 3, json!({MIN_SIZE: "2"})).is_err());
    }
}
