//! How many replicas a scalable resource should have, given what its Machines are to us, and which Machines must be deleted directly
//! because no MachineSet would take them at that level. Why that is safe is told in [`ledger`](super::ledger), which this is a part of.

use std::collections::BTreeSet;
use std::time::Duration;

use karpenter_runtime::object_key::ObjectKey;
use tokio::time::Instant;

use super::ledger::{
    AFTER_SHRINKING, ClaimFacts, HEARD, Plan, Rise, SETTLING, SURPLUS_MARK, Situation, Sorted, count,
    dispensable, is_marked_for_its_claim, is_our_mark, may_lower, rise,
};
use super::rollout::{Excess, Rollout};
use crate::client::machine::Machine;
use crate::names;
use crate::planted::{Fault, is_planted};

/// Sets the level of a resource that takes part, turns away who finds no room below its greatest size, and names what is to be deleted directly.
pub(super) fn level(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    waiting: &[&ClaimFacts],
    keep: &[&Machine],
    (protected, reserve): (i32, usize),
    plan: &mut Plan,
) {
    let current = situation.scalable.replicas;
    let newly_marked = newly_marked(plan);
    let stays = |machines: &[&Machine]| machines.iter().filter(|m| !newly_marked.contains(&m.key)).count();
    let (claimed, free) = (stays(&sorted.claimed), stays(&sorted.free));
    let settled = claimed + sorted.foreign.len() + reserve;
    // Free Machines beyond the reserve serve those that wait, or are kept for a while.
    let spare = free.saturating_sub(reserve);
    let wanted = admit(situation, sorted, waiting, (settled, spare), plan);
    let (min, max) = situation.bounds;
    // What is spare is there without our asking (in a rollout there is one more at times): it never raises the level.
    let needed = count(settled + wanted).max(min).min(max.unwrap_or(i32::MAX));
    let want = count(settled + wanted.max(spare)).max(min);
    // A greatest size that was set below what is in use takes nothing away.
    let in_use = needed.max(count(settled));
    let needed = match is_planted(Fault::AsksAgain) && !plan.unserved.is_empty() {
        true => (current + count(plan.unserved.len())).min(max.unwrap_or(i32::MAX)),
        false => needed,
    };

    let mut next = current;
    if needed > current {
        next = match rise(situation, sorted, protected) {
            Rise::Never => current,
            Rise::ToWhatIsThere => needed.min(count(claimed + sorted.foreign.len() + free)).max(current),
            Rise::ToWhatIsNeeded => needed,
        };
    } else if !may_lower(situation) {
        // It stays.
    } else if want < current && situation.rollout.is_none() {
        next = lowered(situation, sorted, want, plan);
    } else if is_planted(Fault::LowersInRollouts) && in_use < current {
        next = in_use;
    } else if let Some(rollout) = situation.rollout.filter(|_| in_use < current) {
        next = level_in_rollout(
            situation,
            sorted,
            rollout,
            keep.get(reserve..).unwrap_or_default(),
            (in_use, want),
            plan,
        );
    }
    if next != current {
        plan.replicas = Some(next);
    }

    plan.removals = removals(situation, sorted, next, &plan.marks);
    if !plan.removals.is_empty() && is_news(situation, next, plan.sightings.lowered) {
        plan.removals.clear();
        plan.look_again(AFTER_SHRINKING);
    }
}

/// Machines that are to be marked by this plan.
fn newly_marked(plan: &Plan) -> BTreeSet<ObjectKey> {
    plan.marks.iter().map(|(key, _)| key.clone()).collect()
}

/// How many of those that wait are to have a Machine, of `spare` ones or new ones beside those that are `settled`. Who finds no room below
/// the greatest size is turned away; who comes when as many as may be are on their way waits for a turn.
fn admit(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    waiting: &[&ClaimFacts],
    (settled, spare): (usize, usize),
    plan: &mut Plan,
) -> usize {
    let mut wanted = waiting.len();
    if let Some(max) = situation.bounds.1 {
        let room = usize::try_from(max).unwrap_or(0).saturating_sub(settled).max(spare);
        if wanted > room {
            let unserved =
                waiting.iter().filter(|w| !plan.claims.iter().any(|(_, claim)| claim.uid == w.uid));
            let excess = wanted - room;
            // The latest to come are turned away.
            let refused: Vec<ClaimFacts> =
                unserved.rev().take(excess).map(|claim| (*claim).clone()).collect();
            wanted -= refused.len();
            plan.refused = refused;
        }
    }
    if let Some(most) = situation.rules.most_launching {
        // The others wait for their turn: theirs comes as soon as one that is on its way has an id.
        let launching = sorted.claimed.iter().filter(|m| m.provider_id.is_none()).count() + plan.claims.len();
        let all = wanted;
        wanted = wanted.min(plan.claims.len() + most.saturating_sub(launching)).max(spare.min(wanted));
        plan.held_back = all - wanted;
    }
    let served = |uid: &str| {
        let mut claims = plan.claims.iter().map(|(_, claim)| claim).chain(&plan.refused);
        claims.any(|claim| claim.uid == uid)
    };
    plan.unserved = waiting.iter().map(|claim| claim.uid.clone()).filter(|uid| !served(uid)).collect();
    wanted
}

/// The level on the way down to `want` while nothing is rolled out: as low as MachineSets take nothing but what is marked or deleted. It is
/// lower than that once replicas that nobody needs have stayed unborn for long enough.
fn lowered(situation: &Situation<'_>, sorted: &Sorted<'_>, want: i32, plan: &mut Plan) -> i32 {
    let current = situation.scalable.replicas;
    let total = count(situation.machines.len());
    let newly_marked = newly_marked(plan);
    let mut stay = sorted.claimed.iter().chain(&sorted.foreign).filter(|m| !newly_marked.contains(&m.key));
    let steady = plan.claims.is_empty() && stay.all(|machine| machine.is_steady());
    let foreseen = usize::try_from(total - current).unwrap_or(0);
    let deleting = if steady { sorted.deleting } else { sorted.deleting.min(foreseen) };
    let leaving = deleting + sorted.marked.len() + newly_marked.len();
    let most = plan.sightings.most.unwrap_or_else(|| situation.most(sorted.marked.len()));
    let safe = most.machines - count(leaving);
    let mut next = want.max(safe);
    if next > want {
        if most.machines > current.max(total) {
            // What MachineSets have yet to hear of is over soon.
            let rest = AFTER_SHRINKING.saturating_sub(situation.age(most.stirred));
            plan.look_again(rest.max(Duration::from_secs(1)));
        }
        let since = situation.sightings.unborn.unwrap_or(situation.instant);
        let age = situation.age(since);
        let rest = situation.rules.surplus_after.saturating_sub(age);
        // One that is born now is what MachineSets take, unless another has no healthy Node either.
        if rest.is_zero() && steady {
            next = want;
        } else {
            plan.sightings.unborn = Some(since);
            plan.look_again(if rest.is_zero() { SETTLING } else { rest });
        }
    }
    next.min(current)
}

/// Whether MachineSets may yet have to hear that the level is as low as this. In a rollout they have more replicas at any time.
fn is_news(situation: &Situation<'_>, level: i32, lowered: Option<Instant>) -> bool {
    level < situation.scalable.replicas
        || lowered.is_some()
        || (situation.rollout.is_none() && situation.in_sets.is_some_and(|in_sets| in_sets > level))
}

/// The level of a resource that takes part no more. `free` Machines may yet serve who waits.
pub(super) fn level_of_another(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    waiting: &[&ClaimFacts],
    free: usize,
    plan: &mut Plan,
) {
    let current = situation.scalable.replicas;
    let live = count(situation.machines.len() - sorted.deleting);
    let unborn = usize::try_from(current - live).unwrap_or(0);
    let served = |claim: &ClaimFacts| plan.claims.iter().any(|(_, served)| served.uid == claim.uid);
    // Replicas that are on their way may have been asked for by those that wait, unless somebody else sets them; the others go elsewhere.
    let mut unserved: Vec<&ClaimFacts> = waiting.iter().copied().filter(|claim| !served(claim)).collect();
    let coming = if situation.rules.may_lower { unborn } else { 0 };
    plan.refused = unserved.drain((coming + free).min(unserved.len())..).cloned().collect();
    plan.unserved = unserved.into_iter().map(|claim| claim.uid.clone()).collect();

    let marked = sorted.marked.iter().filter(|machine| is_marked_for_its_claim(machine));
    let ours: BTreeSet<ObjectKey> = marked
        .map(|machine| machine.key.clone())
        .chain(plan.marks.iter().map(|(key, _)| key.clone()))
        .collect();
    if ours.is_empty() {
        return;
    }
    if !may_lower(situation) {
        plan.removals = ours.into_iter().collect();
        return;
    }
    if unborn > 0 {
        // Lowered now, it could be lowered twice for one Machine. Replicas that stay unborn get its place.
        let since = situation.sightings.unborn.unwrap_or(situation.instant);
        plan.sightings.unborn = Some(since);
        let age = situation.age(since);
        match situation.rules.surplus_after.checked_sub(age).filter(|rest| !rest.is_zero()) {
            Some(rest) => plan.look_again(rest),
            None => plan.removals = ours.into_iter().collect(),
        }
        return;
    }
    let wanted = (live - count(ours.len())).max(situation.bounds.0).min(current);
    let next = match situation.rollout {
        Some(rollout) => {
            let excess =
                Excess { current, wanted, machines: situation.machines, marked: ours, spare: Vec::new() };
            rollout.lowered(&excess).level
        }
        None => wanted,
    };
    plan.replicas = (next < current).then_some(next);
}

/// The level while Machines are being replaced and fewer are needed than there are replicas. `spare` are free; `needed` is what
/// somebody needs, `want` includes what is kept for a while.
fn level_in_rollout(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    rollout: &Rollout,
    spare: &[&Machine],
    (needed, want): (i32, i32),
    plan: &mut Plan,
) -> i32 {
    let current = situation.scalable.replicas;
    let since = situation.sightings.idle.unwrap_or(situation.instant);
    plan.sightings.idle = Some(since);
    let age = situation.age(since);
    let rest = situation.rules.surplus_after.saturating_sub(age);
    let (wanted, spare) = match rest.is_zero() {
        true => (needed, dispensable(situation, spare)),
        // What somebody deletes of an `OnDelete` deployment may go at once.
        false if rollout.on_delete => (want, Vec::new()),
        false => (current, Vec::new()),
    };
    if !rest.is_zero() {
        plan.look_again(rest);
    }
    let marked =
        sorted.marked.iter().map(|machine| &machine.key).chain(plan.marks.iter().map(|(key, _)| key));
    let marked = marked.cloned().collect();
    let lowered = rollout.lowered(&Excess { current, wanted, machines: situation.machines, marked, spare });
    plan.marks.extend(lowered.marks.into_iter().map(|key| (key, SURPLUS_MARK.to_owned())));
    lowered.level
}

/// A level as far as MachineSets have heard of what goes: one higher for each Machine of which they may not have. In a rollout it matters
/// which MachineSets those belong to, so there they must have heard of every mark; what goes besides they take themselves.
pub(super) fn heard_of(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    level: i32,
    plan: &mut Plan,
) -> Option<i32> {
    let current = situation.scalable.replicas;
    if level >= current {
        return Some(level);
    }
    let leaving = &plan.sightings.leaving;
    let since: Vec<Instant> = match situation.rollout {
        None => leaving.values().copied().collect(),
        Some(_) => sorted.marked.iter().filter_map(|machine| leaving.get(&machine.uid).copied()).collect(),
    };
    let waits = since.into_iter().filter_map(|since| HEARD.checked_sub(situation.age(since)));
    let unheard: Vec<Duration> = waits.filter(|rest| !rest.is_zero()).collect();
    let newly_marked = count(plan.marks.len());
    let rest = if newly_marked > 0 { Some(HEARD) } else { unheard.iter().min().copied() };
    let Some(rest) = rest else { return Some(level) };
    plan.look_again(rest);
    let higher = level.saturating_add(count(unheard.len())).saturating_add(newly_marked);
    Some(higher).filter(|higher| *higher < current && situation.rollout.is_none())
}

/// Marked Machines that the MachineSets will not take by themselves at this level.
fn removals(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    level: i32,
    marks: &[(ObjectKey, String)],
) -> Vec<ObjectKey> {
    let ours = sorted.marked.iter().filter(|machine| is_our_mark(machine)).map(|machine| &machine.key);
    let marked = ours.chain(marks.iter().map(|(key, _)| key));
    let total = count(situation.machines.len());
    let mut taken = usize::try_from(total - level).unwrap_or(0).saturating_sub(sorted.deleting);
    if !may_lower(situation) {
        // What is too many goes by the marks of others.
        let surplus = |key: &&ObjectKey| {
            let mut surplus = sorted.marked.iter().filter(|machine| !is_marked_for_its_claim(machine));
            surplus.any(|machine| machine.key == **key)
        };
        return marked.filter(|key| !surplus(key)).cloned().collect();
    }
    let Some(rollout) = situation.rollout else {
        let marked: Vec<&ObjectKey> = marked.collect();
        let left = marked.len().saturating_sub(taken);
        return marked.into_iter().take(left).cloned().collect();
    };
    let machine = |key: &ObjectKey| situation.machines.iter().find(|machine| machine.key == *key);
    let left = marked.filter(|key| {
        let Some(machine) = machine(key) else { return false };
        let at_hand = rollout.on_delete && machine.set_name() == rollout.oldest_set.as_deref();
        if at_hand && taken > 0 {
            taken -= 1;
            return false;
        }
        // Surplus guides the MachineSets; deleted directly it would be made again.
        let new_surplus = marks.iter().any(|(marked, mark)| marked == *key && mark == SURPLUS_MARK);
        !new_surplus && machine.annotations.get(names::DELETE_MACHINE).is_none_or(|mark| mark != SURPLUS_MARK)
    });
    left.cloned().collect()
}
