//! O7: how many writes a provider makes to the management cluster. A launch is a change of the level, shared by all who wait, and a
//! claim; an end is a mark and a change of the level. Of a Machine of its own it says besides whether it is up to date, and whether it
//! still is. What others do to the replicas has to be put right.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_runtime::object_key::ObjectKey;

use super::checks::is_owner;
use super::kinds::{annotation, number};
use crate::invariants::{Invariant, Rest, Step};
use crate::objects::Change;
use crate::tape::Entry;

const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";

/// Writes of a launch, at most: its part of a level, and a claim.
const PER_LAUNCH: u64 = 2;
/// Those of a whole life, but for its end.
const PER_LIFE: u64 = 3;
/// What it takes to end a Machine, or to put right what somebody else did.
const PER_MEDDLING: u64 = 1;
/// What enrolling, restarts and surplus Machines may cost in all.
const BESIDES: u64 = 15;
/// How often a launch may ask in vain: who did not hear that something is done asks again until it is seen.
const IN_VAIN: u64 = 5;
/// Those that come together share one change of the level: Cluster API looks at an object once a second.
const WINDOW: SignedDuration = SignedDuration::from_millis(900);

/// See the module.
pub struct FewWrites {
    provider: String,
    /// NodeClaims that were ever made.
    claims: u64,
    /// Writes that raise a level or claim a Machine.
    launching: u64,
    /// All writes.
    writes: u64,
    /// How often others changed replicas or took Machines away.
    meddling: u64,
    /// Writes that the server refused.
    refused: u64,
    /// When each life of the provider last set the level of a resource.
    scaled: BTreeMap<(Arc<str>, ObjectKey), Timestamp>,
}

impl FewWrites {
    /// For a provider whose writes stand under names that start with `provider`.
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            claims: 0,
            launching: 0,
            writes: 0,
            meddling: 0,
            refused: 0,
            scaled: BTreeMap::new(),
        }
    }

    /// Judges how soon after the last time a level is set.
    fn note_level(&mut self, step: &Step<'_>, key: &ObjectKey) -> Result<(), String> {
        let last = self.scaled.insert((step.entry.actor.clone(), key.clone()), step.now);
        let since = last.map(|last| step.now.duration_since(last));
        match since.filter(|since| *since < WINDOW) {
            Some(since) => Err(format!("{key} was scaled twice within {since:#}")),
            None => Ok(()),
        }
    }
}

/// Whether a line of the tape is a write to the management cluster, whatever came of it.
fn is_write(entry: &Entry) -> bool {
    let (method, path) = entry.deed.split_once(' ').unwrap_or_default();
    let group = path.strip_prefix("/apis/").and_then(|path| path.split('/').next()).unwrap_or_default();
    let hub = ["cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"];
    hub.contains(&group) && ["PATCH", "PUT", "POST", "DELETE"].contains(&method)
}

impl Invariant for FewWrites {
    fn name(&self) -> &'static str {
        "few writes to the management cluster"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O7"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let ours = step.entry.actor.starts_with(&self.provider);
        if ours && is_write(step.entry) && !step.entry.outcome.starts_with('2') {
            self.refused += 1;
        }
        for change in step.changes {
            let (edit, scaled) = match &**change {
                Change::NodeClaim(edit) => {
                    self.claims += u64::from(edit.old.is_none());
                    continue;
                }
                Change::MachineDeployment(edit) | Change::MachineSet(edit) => (edit, true),
                Change::Machine(edit) => (edit, false),
                _ => continue,
            };
            let replicas = |object: &Option<std::sync::Arc<kube::api::DynamicObject>>| {
                object.as_ref().map_or(0, |object| number(object, "/spec/replicas"))
            };
            let (before, after) = (replicas(&edit.old), replicas(&edit.new));
            if !ours {
                let gone = !scaled && edit.new.is_none();
                let by_a_person = is_owner(&step.entry.actor);
                self.meddling += u64::from((by_a_person && (scaled || edit.old.is_some())) || gone);
                continue;
            }
            self.writes += 1;
            let claimed = |object: &Option<std::sync::Arc<kube::api::DynamicObject>>| {
                object.as_ref().is_some_and(|object| annotation(object, CLAIM).is_some())
            };
            let claims = !scaled && !claimed(&edit.old) && claimed(&edit.new);
            self.launching += u64::from(claims || (scaled && after > before));
            if scaled && after != before && edit.old.is_some() {
                self.note_level(step, &edit.key)?;
            }
        }
        Ok(())
    }

    fn check_at_rest(&mut self, _: &Rest<'_>) -> Result<(), String> {
        let meddling = PER_MEDDLING * self.meddling + BESIDES;
        let (launching, all) = (PER_LAUNCH * self.claims + meddling, PER_LIFE * self.claims + meddling);
        let in_vain = IN_VAIN * self.claims + meddling;
        if self.refused > in_vain {
            return Err(format!(
                "{} writes were refused, for {} NodeClaims; {in_vain} would be enough",
                self.refused, self.claims
            ));
        }
        if self.launching > launching || self.writes > all {
            return Err(format!(
                "{} writes, {} of them for launches, for {} NodeClaims; {all} and {launching} would be enough",
                self.writes, self.launching, self.claims
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster_api::steps::Trial;

    #[test]
    fn who_comes_together_shares_one_change_of_the_level() {
        let mut trial = Trial::of(FewWrites::new("karpenter"));
        trial.deployment("user", 0, json!({})).expect("people may");
        trial.deployment("karpenter", 1, json!({})).expect("one is asked for");
        let told = trial.deployment("karpenter", 2, json!({})).expect_err("and another one");
        assert_eq!(told, "fleet/d was scaled twice within 0s");
        trial.pass(2);
        trial.deployment("karpenter", 3, json!({})).expect("later");
    }

    #[test]
    fn a_node_claim_takes_few_writes() {
        let written = |times: u64| {
            let mut trial = Trial::of(FewWrites::new("karpenter"));
            trial.claim("karpenter", "a", json!({}), json!({})).expect("it may be made");
            trial.deployment("user", 0, json!({})).expect("people may");
            for time in 0..times {
                trial
                    .machine("karpenter", "m", json!({"again": time.to_string()}))
                    .expect("it may be written");
            }
            trial.at_rest().err()
        };
        assert_eq!(written(PER_LIFE + BESIDES), None);
        let told = written(PER_LIFE + BESIDES + 2).expect("that is too much");
        assert!(told.contains("writes, 0 of them for launches, for 1 NodeClaims"), "{told}");
    }
}
