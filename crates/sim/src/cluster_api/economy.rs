//! O7: how many writes a provider makes to the management cluster. A launch is a change of the level, shared by all who wait, and a
//! claim; an end is a mark and a change of the level. Of a Machine of its own it says besides whether it is up to date, and whether it
//! still is. What others do to the replicas has to be put right.

use super::checks::is_owner;
use super::kinds::{annotation, number};
use crate::invariants::{Invariant, Rest, Step};
use crate::objects::Change;

const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";

/// Writes of a launch, at most, and of a whole life.
const PER_LAUNCH: u64 = 3;
const PER_LIFE: u64 = 6;
/// What enrolling, restarts and surplus Machines may cost in all.
const BESIDES: u64 = 40;
/// What it takes to put right what somebody else did.
const PER_MEDDLING: u64 = 4;

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
}

impl FewWrites {
    /// For a provider whose writes stand under names that start with `provider`.
    pub fn new(provider: &str) -> Self {
        Self { provider: provider.to_owned(), claims: 0, launching: 0, writes: 0, meddling: 0 }
    }
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
        }
        Ok(())
    }

    fn check_at_rest(&mut self, _: &Rest<'_>) -> Result<(), String> {
        let meddling = PER_MEDDLING * self.meddling + BESIDES;
        let (launching, all) = (PER_LAUNCH * self.claims + meddling, PER_LIFE * self.claims + meddling);
        if self.launching > launching || self.writes > all {
            return Err(format!(
                "{} writes, {} of them for launches, for {} NodeClaims; {all} and {launching} would be enough",
                self.writes, self.launching, self.claims
            ));
        }
        Ok(())
    }
}
