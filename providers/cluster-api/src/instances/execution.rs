//! Writes what the ledger's plan says: claims, marks, the level, removals, a few Machines at a time. The level is lowered only as far as
//! marks that were written cover it.

use std::collections::BTreeSet;

use futures_util::stream::{self, StreamExt as _};
use karpenter_runtime::object_key::ObjectKey;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::actor::{Actor, Look};
use super::hook;
use super::ledger::{ClaimFacts, Plan, is_our_mark};
use super::remediation;
use super::set_aside::Refused;
use crate::client::hub::HubError;
use crate::client::machine::Machine;
use crate::client::scalable::Scalable;
use crate::names;
use crate::nodeclass::ClusterAPINodeClass;

/// How many Machines are written to at once.
const AT_ONCE: usize = 8;

/// What the management cluster refused of a plan.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The uids of the Machines that may not be claimed.
    pub(super) unclaimed: Vec<String>,
    /// The uids of the Machines that may not be marked.
    pub(super) unmarked: Vec<String>,
    /// The uids of the NodeClaims that were to get a Machine and may not.
    pub(super) claims: Vec<String>,
    /// Whether it was the resource that may not be written to.
    pub(super) of_resource: bool,
    /// The first refusal of one, once all that hangs on no other has been tried.
    first: Option<HubError>,
}

/// What became of a write to a Machine.
enum Written {
    Done,
    /// Somebody else was first.
    Overtaken,
    /// It may not be made.
    Refused,
}

impl Refusals {
    /// What a write to the resource came to, which is an error unless that was refused.
    fn of_level<T>(
        &mut self,
        written: Result<Option<T>, HubError>,
        refused: T,
    ) -> Result<Option<T>, HubError> {
        match written {
            Err(error @ HubError::Refused { .. }) => {
                self.of_resource = true;
                self.first.get_or_insert(error);
                Ok(Some(refused))
            }
            other => other,
        }
    }

    /// What a write to a Machine came to, unless that was refused: the others are tried all the same.
    fn sort_out(
        &mut self,
        machine: &Machine,
        written: Result<Option<Machine>, HubError>,
        what: Refused,
    ) -> Result<Written, HubError> {
        match written {
            Ok(Some(_)) => Ok(Written::Done),
            Ok(None) => Ok(Written::Overtaken),
            Err(error @ HubError::Refused { .. }) => {
                let refused = match what {
                    Refused::Claim => &mut self.unclaimed,
                    Refused::Mark => &mut self.unmarked,
                };
                refused.push(machine.uid.clone());
                self.first.get_or_insert(error);
                Ok(Written::Refused)
            }
            Err(error) => Err(error),
        }
    }
}

impl Actor {
    /// Writes what the plan says; whether to look again because someone else wrote too.
    pub(super) async fn carry_out(
        &self,
        look: &Look,
        plan: &Plan,
        batch: usize,
        refusals: &mut Refusals,
    ) -> Result<bool, HubError> {
        let fleet = &self.fleet;
        let mut scalable = look.scalable.clone();
        if let Some(enrolment) = &plan.enrol {
            let annotations = json!({
                names::EPOCH: enrolment.epoch.to_string(),
                names::PROTECTED: enrolment.protected.to_string(),
            });
            let written = fleet.hub.annotate_scalable(&scalable, json!({"annotations": annotations})).await;
            if matches!(written, Err(HubError::Refused { .. })) {
                refusals.of_resource = true;
                refusals.claims = plan.claims.iter().map(|(_, claim)| claim.uid.clone()).collect();
            }
            let Some(now) = self.written("enrol", written)? else { return Ok(true) };
            self.lock().entry(scalable.id.clone()).or_default().anew = false;
            scalable = now;
        }
        if plan.dismiss {
            let annotations = json!({names::EPOCH: null, names::PROTECTED: null});
            let written = fleet.hub.annotate_scalable(&scalable, json!({"annotations": annotations})).await;
            let Some(now) = self.written("dismiss", written)? else { return Ok(true) };
            scalable = now;
        }
        let machine = |key: &ObjectKey| look.machines.iter().find(|machine| machine.key == *key);
        let mut again = false;
        let mut short = 0;
        // Where the level only rises, nothing hangs on what is claimed: Cluster API can begin meanwhile.
        let rises = plan.replicas.is_some_and(|level| level > scalable.replicas);
        let level_first = rises && plan.marks.is_empty() && plan.removals.is_empty();
        if level_first {
            // Who gets what is there already does so all the same.
            let level = self.set_level(look, &scalable, plan.replicas, batch).await;
            match refusals.of_level(level, (plan.unserved.len(), false))? {
                Some((lacks, look_again)) => (short, again) = (lacks, look_again),
                None => return Ok(true),
            }
        }
        again |= self.claim(look, plan, refusals).await?;
        let mark = |(key, mark): &(ObjectKey, String)| {
            let metadata = json!({"annotations": {names::DELETE_MACHINE: mark}});
            let machine = machine(key)?;
            Some(async move { (machine, fleet.hub.annotate_machine(machine, metadata).await) })
        };
        let (mut unmarked, mut error) = (BTreeSet::new(), None);
        for (machine, written) in a_few_at_once(plan.marks.iter().filter_map(mark).collect()).await {
            match refusals.sort_out(machine, self.written("mark", written), Refused::Mark) {
                Ok(Written::Done) => continue,
                Ok(Written::Overtaken | Written::Refused) => {}
                Err(failed) => error = error.or(Some(failed)),
            }
            unmarked.insert(&machine.key);
        }
        if !level_first {
            let level = plan.replicas.and_then(|level| covered(level, unmarked.len(), &scalable, plan));
            let level = self.set_level(look, &scalable, level, batch).await;
            match refusals.of_level(level, (plan.unserved.len(), false))? {
                Some((lacks, look_again)) => (short, again) = (lacks, again | look_again),
                None => return error.map_or(Ok(true), Err),
            }
        }
        self.give_turns(&look.scalable, plan, short);
        if rises {
            let admitted = plan.unserved.len().saturating_sub(plan.held_back + short);
            fleet.journeys.asked(plan.unserved.iter().take(admitted), fleet.clock.now());
        }
        if let Some(error) = error {
            return Err(error);
        }
        again |= !unmarked.is_empty();
        // What is marked need not wait for what could not be.
        let may_go = |key: &ObjectKey| machine(key).filter(|m| !m.is_paused() && !unmarked.contains(&m.key));
        let removals = plan.removals.iter().filter_map(|key| Some(fleet.hub.delete_machine(may_go(key)?)));
        for written in a_few_at_once(removals.collect()).await {
            again |= self.written("delete", written)?.is_none();
        }
        refusals.first.take().map_or(Ok(again), Err)
    }

    /// Writes the plan's claims, a few at a time; whether to look again because somebody else was first with one.
    async fn claim(&self, look: &Look, plan: &Plan, refusals: &mut Refusals) -> Result<bool, HubError> {
        let fleet = &self.fleet;
        let class = fleet.node_class_of(&look.scalable);
        let hooked = class.as_ref().is_some_and(|class| class.hook_timeout().is_some());
        let skips_remediation = class.is_some_and(|class| remediation::is_node_repairs(fleet, &class));
        let mut claims = Vec::new();
        for (key, claim) in &plan.claims {
            let Some(machine) = look.machines.iter().find(|machine| machine.key == *key) else { continue };
            let mut metadata = claim_metadata(claim, &fleet.owner);
            hook::annotate(&mut metadata["annotations"], hooked);
            // What somebody else put there stays theirs.
            remediation::annotate(
                &mut metadata["annotations"],
                skips_remediation && !machine.skips_remediation(),
            );
            claims.push(async move { (claim, machine, fleet.hub.annotate_machine(machine, metadata).await) });
        }
        let (mut again, mut error) = (false, None);
        for (claim, machine, written) in a_few_at_once(claims).await {
            match refusals.sort_out(machine, self.written("claim", written), Refused::Claim) {
                Ok(Written::Done) => fleet.wake(&claim.name),
                Ok(Written::Refused) => refusals.claims.push(claim.uid.clone()),
                Ok(Written::Overtaken) => {
                    fleet.metrics.claims_lost.inc(&[&look.scalable.id.to_string()]);
                    again = true;
                }
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        error.map_or(Ok(again), Err)
    }

    /// Sets the level as far as the pace allows: by how many it falls short, and whether to look again; `None` if somebody else was
    /// first.
    async fn set_level(
        &self,
        look: &Look,
        scalable: &Scalable,
        level: Option<i32>,
        batch: usize,
    ) -> Result<Option<(usize, bool)>, HubError> {
        let fleet = &self.fleet;
        let Some(wanted) = level else { return Ok(Some((0, false))) };
        let class = fleet.node_class_of(&look.scalable);
        let stay = look.machines.iter().filter(|machine| !machine.deleting && !is_our_mark(machine));
        let there = scalable.replicas.max(i32::try_from(stay.count()).unwrap_or(i32::MAX)).min(wanted);
        let (replicas, granted) = match wanted > there {
            true => self.at_our_pace(class.as_deref(), there, wanted),
            false => (wanted, 0),
        };
        let short = usize::try_from(wanted - replicas).unwrap_or(0);
        if replicas != scalable.replicas {
            tracing::info!(resource = %scalable.id, from = scalable.replicas, to = replicas, "scaling");
            if replicas < scalable.replicas {
                // Whether or not an answer comes, from now on it may be lower.
                let now = Some(Instant::now());
                let mut memory = self.lock();
                let sightings = &mut memory.entry(scalable.id.clone()).or_default().sightings;
                (sightings.shrank, sightings.lowered) = (now, now);
                sightings.reckon_with(scalable.replicas, look.machines.len());
            }
            let written = fleet.hub.scale(scalable, replicas).await;
            // Of a write that may or may not have been made nothing is known.
            self.lock().entry(scalable.id.clone()).or_default().level = written.is_ok().then_some(replicas);
            if !matches!(written, Ok(()))
                && let Some(class) = &class
            {
                fleet.pace.give_back(class.name(), granted);
            }
            if self.written("scale", written)?.is_none() {
                return Ok(None);
            }
            if replicas > scalable.replicas {
                fleet.metrics.batch_size.observe(&[&scalable.id.to_string()], batch as f64);
            }
        }
        // The rest at another look.
        Ok(Some((short, replicas != wanted)))
    }

    /// Notes whose turn has come: all that wait but the last ones, for whom the limits leave nothing now.
    pub(super) fn give_turns(&self, scalable: &Scalable, plan: &Plan, short: usize) {
        let limited = self.fleet.is_limited(scalable);
        let admitted = plan.unserved.len().saturating_sub(plan.held_back + short);
        for (place, uid) in plan.unserved.iter().enumerate() {
            match limited {
                false => self.fleet.pace.forget(uid),
                true if place < admitted => self.fleet.pace.admit(uid),
                true => self.fleet.pace.hold(uid),
            }
        }
    }

    /// The level as far as it may rise now from what is there, and how many launches that takes. Replicas of Machines that are there are
    /// no launches: somebody else lowered the level, and they would go.
    fn at_our_pace(&self, class: Option<&ClusterAPINodeClass>, from: i32, to: i32) -> (i32, usize) {
        let Some(class) = class else { return (to, 0) };
        let per_minute = class.spec().launch_limits.and_then(|limits| limits.per_minute);
        if per_minute.is_none() {
            return (to, 0);
        }
        let wanted = usize::try_from(to - from).unwrap_or(0);
        let (granted, _) = self.fleet.pace.take(class.name(), per_minute, wanted);
        (from + i32::try_from(granted).unwrap_or(0), granted)
    }

    /// `None` if someone else was first and everything is to be looked at again.
    fn written<T>(&self, what: &str, result: Result<T, HubError>) -> Result<Option<T>, HubError> {
        match result {
            Ok(value) => {
                self.fleet.metrics.writes.inc(&[what]);
                Ok(Some(value))
            }
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What several writes come to, in their order, a few of them under way at a time.
async fn a_few_at_once<F: Future>(writes: Vec<F>) -> Vec<F::Output> {
    stream::iter(writes).buffered(AT_ONCE).collect().await
}

/// A level as far as the marks that were written cover it: one higher for each that was not, for its Machine stays. In a rollout it
/// matters which MachineSets those belong to, so there all must have been written.
fn covered(level: i32, unmarked: usize, scalable: &Scalable, plan: &Plan) -> Option<i32> {
    let current = scalable.replicas;
    if level >= current || unmarked == 0 {
        return Some(level);
    }
    let higher = level.saturating_add(i32::try_from(unmarked).unwrap_or(i32::MAX));
    Some(higher).filter(|higher| *higher < current && !plan.in_rollout)
}

/// What a claimed Machine carries. The label is for older tools.
pub(super) fn claim_metadata(claim: &ClaimFacts, owner: &str) -> Value {
    json!({
        "annotations": {names::NODECLAIM: claim.name, names::NODECLAIM_UID: claim.uid, names::OWNER: owner},
        "labels": {names::MEMBER: ""},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{deployment_json, read_deployment};

    #[test]
    fn a_level_falls_only_as_far_as_the_marks_that_were_written_cover_it() {
        let mut value = deployment_json("m", &[]);
        value["spec"]["replicas"] = 10.into();
        let ten = read_deployment(value);
        let plain = Plan::default();
        assert_eq!(covered(4, 0, &ten, &plain), Some(4));
        assert_eq!(covered(4, 2, &ten, &plain), Some(6), "two stay");
        assert_eq!(covered(4, 6, &ten, &plain), None, "nothing was marked");
        assert_eq!(covered(12, 2, &ten, &plain), Some(12), "raising takes nobody away");
        let rolling = Plan { in_rollout: true, ..Plan::default() };
        assert_eq!(covered(4, 0, &ten, &rolling), Some(4));
        assert_eq!(covered(4, 1, &ten, &rolling), None, "which one it was decides what goes");
    }
}
