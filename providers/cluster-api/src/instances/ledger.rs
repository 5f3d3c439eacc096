//! The number of replicas a scalable resource should have, and what is to be done with its Machines. A pure function.
//!
//! # The level
//!
//! `want = claimed + foreign + reserve + waiting`, within the owner's bounds, where a *claimed* Machine carries
//! our claim, a *foreign* one is older than our epoch or claimed by another cluster, *free* ones are born since and claimed by
//! nobody, and *waiting* are NodeClaims that target the resource and have no Machine. Machines that are marked or being
//! deleted do not count. *Reserve* makes up for foreign Machines that Cluster API has replaced since our epoch.
//!
//! # Why lowering is safe
//!
//! A MachineSet with more Machines than replicas deletes those that are being deleted or marked first, and then ones of its
//! own choice, which is what must never happen. At most `max(current, total)` Machines can come to exist, and while replicas are
//! unborn, or MachineSets may not have heard of a lower level, as many as that has been: a MachineSet makes all that it lacked when it
//! began. The level is never set below the most of these less the marked and the deleting ones, except when replicas have stayed
//! unborn for so long that they are not on their way, and all others have healthy Nodes. So a mark lowers the level once, however often one looks while it lingers.
//!
//! One that is being deleted may be gone, and its replacement born, before the MachineSet hears of the lower level. It then takes
//! one that has no healthy Node: the replacement, if all others have. Where they have not, deleting ones do not count, but for those
//! that the level is low enough for already: they get no replacement. Other replacements come, and go as surplus.
//!
//! # Why a mark is not enough
//!
//! A mark only matters to a MachineSet that shrinks. When a NodeClaim waits for the place that a marked Machine leaves, the
//! level stays as it is, and so would the Machine: such ones are deleted directly. The same holds during a rollout, where
//! the MachineDeployment decides which MachineSet shrinks: see [`rollout`](super::rollout) for when the level is lowered then. A rollout
//! may never end, for want of the very quota that its surplus takes up.
//!
//! A level that fell by a mark needs that mark until MachineSets have heard of it. A Machine that was deleted directly by then is made
//! again, and there is one too many that no mark tells: so none is deleted for a while after the level fell.
//!
//! # What others mark
//!
//! A MachineSet that shrinks takes what is marked first, whoever marked it and whatever was marked since. So a Machine that somebody else
//! marked is what it was, and while it is there the level does not fall: it would be the one that goes. Machines of NodeClaims that end
//! are deleted directly then, and what Cluster API makes in their place serves whoever waits next.
//!
//! # A resource that takes part no more
//!
//! Its owner took it out of every NodeClass, or somebody else sets its replicas: what is free there is theirs, born or not. The level
//! falls by Machines that carry the mark of their NodeClaim, by no others, and rises for nobody; where it is not even ours to lower, they
//! are deleted directly. Once nobody waits, and Cluster API has followed the level, our time with it is over: what its owner
//! adds meanwhile is protected when it takes part again. So is what somebody adds while Karpenter does not run: the server knows who set
//! the replicas last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_runtime::object_key::ObjectKey;
use tokio::time::Instant;

use super::level::{heard_of, level, level_of_another};
use super::rollout::Rollout;
use crate::client::machine::Machine;
use crate::client::scalable::Scalable;
use crate::names;
use crate::planted::{Fault, is_planted};

/// The mark of a Machine nobody wants; otherwise it is the uid of the NodeClaim it was claimed for.
pub(crate) const SURPLUS_MARK: &str = "karpenter-surplus";

/// A NodeClaim, as far as the ledger cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimFacts {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) created: Timestamp,
    /// Its instance's id, once known.
    pub(crate) provider_id: Option<String>,
    /// The Machine that it says is its own: bound by the Go provider, or made for it, or it has its instance there.
    pub(crate) bound_to: Option<ObjectKey>,
}

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether it takes part: in a NodeClass, and its replicas are ours to set.
    pub(crate) takes_part: bool,
    /// Whether the level may fall.
    pub(crate) may_lower: bool,
    /// Whether Machines older than our epoch may serve NodeClaims.
    pub(crate) adopt_unclaimed: bool,
    /// For how long a Machine or replica nobody waits for is kept.
    pub(crate) surplus_after: Duration,
    /// How far the level may rise.
    pub(crate) rise: Rise,
    /// How many Machines may be on their way at once.
    pub(crate) most_launching: Option<usize>,
}

/// How far a level may rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rise {
    Never,
    /// As far as it takes to keep the Machines that are there.
    ToWhatIsThere,
    /// As far as it is needed.
    ToWhatIsNeeded,
}

/// Since when things have been as they are; kept between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sightings {
    /// Free Machines, by uid.
    pub(crate) free: BTreeMap<String, Instant>,
    /// Replicas that have no Machine and nobody waits for.
    pub(crate) unborn: Option<Instant>,
    /// Replicas that nobody needs while a rollout is under way.
    pub(crate) idle: Option<Instant>,
    /// Free Machines, by uid, from when they were first seen on.
    pub(crate) seen: BTreeMap<String, Instant>,
    /// When the resource was last seen about to shrink: its level was lowered, or it had more Machines than that.
    pub(crate) shrank: Option<Instant>,
    /// When its level was last lowered, unless that is long ago.
    pub(crate) lowered: Option<Instant>,
    /// How many Machines may come to be, by levels that MachineSets may yet go by.
    pub(crate) most: Option<Most>,
    /// Machines, by uid, of which MachineSets may yet have to hear that they go: since when they do.
    pub(crate) leaving: BTreeMap<String, Instant>,
    /// All Machines, by uid.
    pub(crate) there: BTreeSet<String>,
}

impl Sightings {
    /// The level is lowered now: what it was, and what is there, may be what MachineSets go by for a while.
    pub(crate) fn reckon_with(&mut self, level: i32, machines: usize) {
        let there = count(machines);
        let machines = self.most.map_or(0, |most| most.machines).max(level).max(there);
        self.most = Some(Most { machines, there, stirred: Instant::now() });
    }
}

/// The most Machines that a resource may come to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most {
    pub(crate) machines: i32,
    /// So many of them were there.
    pub(crate) there: i32,
    /// When replicas were last unborn, a Machine was born, or the level was lowered.
    pub(crate) stirred: Instant,
}

/// So long Cluster API has for settling on as many Machines as the level says before one that is too many counts as there to stay.
pub(super) const SETTLING: Duration = Duration::from_secs(30);

/// So long MachineSets may go by an older level: a new one reaches them by way of their MachineDeployment.
pub(super) const AFTER_SHRINKING: Duration = Duration::from_secs(5);

/// So long it may take until MachineSets have heard that a Machine is marked, or goes: by another watch than that by which they hear of
/// the level. One that heard of the level first would take another Machine.
pub(super) const HEARD: Duration = Duration::from_secs(3);

/// What a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Situation<'a> {
    pub(crate) scalable: &'a Scalable,
    pub(crate) machines: &'a [Machine],
    /// How many replicas its MachineSets are to have in all, where it has any.
    pub(crate) in_sets: Option<i32>,
    /// Bounds of its size.
    pub(crate) bounds: (i32, Option<i32>),
    /// Live NodeClaims that target it, in any order.
    pub(crate) targeting: &'a [ClaimFacts],
    /// NodeClaims on their way out that say they have one of its Machines.
    pub(crate) ending: &'a [ClaimFacts],
    /// NodeClaims that are known not to exist any more, by uid.
    pub(crate) gone: &'a BTreeSet<String>,
    /// Machines, by uid, that may not be written to: they are as they are.
    pub(crate) set_aside: &'a BTreeSet<String>,
    /// Machines, by uid, that are to get NodeClaims as soon as that can be: who waits may have them, but they are no surplus.
    pub(crate) awaited: &'a BTreeSet<String>,
    /// Our workload cluster, by the uid of its namespace kube-system.
    pub(crate) owner: &'a str,
    /// What may be done.
    pub(crate) rules: Rules,
    /// The rollout under way.
    pub(crate) rollout: Option<&'a Rollout>,
    /// Whether somebody else has set its replicas since we last did, while we were away: our time with it begins anew.
    pub(crate) anew: bool,
    /// What was seen before.
    pub(crate) sightings: &'a Sightings,
    /// The time, as objects have it.
    pub(crate) now: Timestamp,
    /// The time, for waiting.
    pub(crate) instant: Instant,
}

impl Situation<'_> {
    /// How long ago something was.
    pub(super) fn age(&self, since: Instant) -> Duration {
        self.instant.saturating_duration_since(since)
    }

    /// How many Machines may come to be: what levels of before asked for counts until all is born and MachineSets have heard of the one of
    /// now.
    pub(super) fn most(&self, marked: usize) -> Most {
        let (current, there) = (self.scalable.replicas, count(self.machines.len()));
        let in_sets = self.in_sets.unwrap_or(0);
        let at_least = current.max(there).max(in_sets);
        let Some(before) = self.sightings.most else {
            // Each mark of before our time may have lowered the level a moment ago.
            let machines = at_least.saturating_add(count(marked));
            return Most { machines, there, stirred: self.instant };
        };
        let stirs = there < current || in_sets > current || there > before.there;
        let machines = match stirs || self.age(before.stirred) < AFTER_SHRINKING {
            true => at_least.max(before.machines),
            false => at_least,
        };
        Most { machines, there, stirred: if stirs { self.instant } else { before.stirred } }
    }
}

/// The beginning of our time with a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Enrolment {
    /// What is older is not ours.
    pub(crate) epoch: Timestamp,
    /// How many replicas are not ours.
    pub(crate) protected: i32,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Write down that we scale it from now on.
    pub(crate) enrol: Option<Enrolment>,
    /// Write down that we scale it no more.
    pub(crate) dismiss: bool,
    /// Claim these Machines for these NodeClaims.
    pub(crate) claims: Vec<(ObjectKey, ClaimFacts)>,
    /// Mark these Machines, with this mark.
    pub(crate) marks: Vec<(ObjectKey, String)>,
    pub(crate) replicas: Option<i32>,
    pub(crate) removals: Vec<ObjectKey>,
    /// These NodeClaims find no room here.
    pub(crate) refused: Vec<ClaimFacts>,
    /// The uids of NodeClaims that have no Machine after this and are not refused, those first whose turn is first.
    pub(crate) unserved: Vec<String>,
    /// How many of the last of these the limit of launches at once holds back.
    pub(crate) held_back: usize,
    /// Whether Machines are being replaced meanwhile.
    pub(crate) in_rollout: bool,
    /// NodeClaims that say they have a Machine that is another NodeClaim's, as the Go provider may have bound two to one.
    pub(crate) doubles: Vec<ClaimFacts>,
    /// Look again after this long, even if nothing happens.
    pub(crate) look_again: Option<Duration>,
    /// To be kept for the next look.
    pub(crate) sightings: Sightings,
    /// How it stands.
    pub(crate) counts: Counts,
}

/// How many Machines of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Claimed by us.
    pub(crate) claimed: i32,
    /// Not ours.
    pub(crate) foreign: i32,
    /// Born since our epoch and claimed by nobody.
    pub(crate) free: i32,
    /// NodeClaims without a Machine.
    pub(crate) waiting: i32,
    /// Marked or being deleted.
    pub(crate) leaving: i32,
}

/// Machines by what they are to us.
pub(super) struct Sorted<'a> {
    pub(super) claimed: Vec<&'a Machine>,
    pub(super) foreign: Vec<&'a Machine>,
    pub(super) free: Vec<&'a Machine>,
    pub(super) marked: Vec<&'a Machine>,
    pub(super) deleting: usize,
    /// How many of the foreign ones are that for want of leave to write to them: they stand for no protected one.
    pub(super) set_aside: usize,
}

/// What is to be done about a scalable resource.
pub(crate) fn plan(situation: &Situation<'_>) -> Plan {
    let epoch = enrolled(situation);
    let sorted = sort(situation, epoch);
    let mut plan = Plan { in_rollout: situation.rollout.is_some(), ..Plan::default() };
    plan.sightings.lowered = situation.sightings.lowered.filter(|at| situation.age(*at) < AFTER_SHRINKING);
    plan.sightings.most = Some(situation.most(sorted.marked.len()));
    if situation.sightings.most.is_none() && !sorted.marked.is_empty() {
        plan.sightings.lowered = Some(situation.instant);
    }
    plan.sightings.leaving = leaving(situation, &sorted);
    plan.sightings.there = situation.machines.iter().map(|machine| machine.uid.clone()).collect();
    let waiting = waiting(situation);
    // One that is not ours yet is left alone until somebody wants a node of it.
    if epoch.is_none() && waiting.is_empty() && sorted.claimed.is_empty() && sorted.marked.is_empty() {
        plan.counts = counts(&sorted, &waiting);
        return plan;
    }
    let protected = protected_now(situation, &sorted);
    if let (Some(epoch), Ok(None)) = (epoch, situation.scalable.protected_replicas())
        && situation.rules.takes_part
    {
        // Counted once: at the next look it would count what we ask for now.
        plan.enrol = Some(Enrolment { epoch, protected });
    }
    if epoch.is_none() && situation.rules.takes_part {
        // By the management cluster's own times: our clock may be off, and then we would take Machines of others for ours, or
        // ours for theirs. Times have whole seconds, so what is born in the same second has to be told apart by waiting.
        let newest = situation.machines.iter().map(|machine| machine.created).max();
        if newest
            .is_some_and(|newest| situation.now.duration_since(newest).abs() < SignedDuration::from_secs(2))
        {
            return Plan {
                look_again: Some(Duration::from_secs(2)),
                counts: counts(&sorted, &waiting),
                ..plan
            };
        }
        let epoch = newest.map(|newest| newest.saturating_add(SignedDuration::from_secs(1)));
        let epoch = epoch.and_then(Result::ok).unwrap_or_default().max(situation.scalable.created);
        plan.enrol = Some(Enrolment { epoch, protected });
    }
    let reserve = reserve(protected, &sorted);

    let keep = claims(situation, &sorted, &waiting, reserve, &mut plan);
    plan.doubles = doubles(situation);
    // Of two that are bound to one Machine, the younger has none and gets none.
    let mut waiting = waiting;
    waiting.retain(|claim| {
        claim.bound_to.is_none() || plan.claims.iter().any(|(_, served)| served.uid == claim.uid)
    });
    mark_doubles_and_orphans(situation, &sorted, &mut plan);
    plan.marks.retain(|(key, _)| !is_set_aside(situation, key));
    if situation.rules.takes_part {
        mark_surplus(situation, &sorted, &keep, reserve, waiting.len(), &mut plan);
        level(situation, &sorted, &waiting, &keep, (protected, reserve), &mut plan);
    } else {
        level_of_another(situation, &sorted, &waiting, keep.len(), &mut plan);
        let leaving = sorted.marked.iter().any(|machine| is_marked_for_its_claim(machine));
        let over = waiting.is_empty() && !leaving && !plan.writes() && is_followed(situation);
        plan.dismiss = epoch.is_some() && over;
    }
    plan.replicas = plan.replicas.and_then(|level| heard_of(situation, &sorted, level, &mut plan));
    if plan.replicas.is_some_and(|level| level < situation.scalable.replicas) {
        plan.sightings.shrank = Some(situation.instant);
        plan.sightings.lowered = Some(situation.instant);
        if let Some(most) = &mut plan.sightings.most {
            most.stirred = situation.instant;
        }
    }
    plan.counts = counts(&sorted, &waiting);
    plan
}

/// Since when we scale a resource. One that is younger than that was moved or restored, and so were its Machines: what is not ours would be
/// young enough to be.
pub(crate) fn epoch(scalable: &Scalable) -> Option<Timestamp> {
    let epoch: Timestamp = scalable.annotations.get(names::EPOCH)?.parse().ok()?;
    (epoch.as_second() >= scalable.created.as_second()).then_some(epoch)
}

/// Since when a resource is scaled by the rules of now. What it had before may serve once its owner says so, and is protected no more:
/// that begins anew, or Machines that Cluster API made in place of protected ones would be surplus.
fn enrolled(situation: &Situation<'_>) -> Option<Timestamp> {
    let outdated = situation.rules.adopt_unclaimed
        && matches!(situation.scalable.protected_replicas(), Err(_) | Ok(Some(1..)));
    epoch(situation.scalable)
        .filter(|epoch| !outdated && !situation.anew && !is_yet_to_come(situation, *epoch))
}

/// Whether a time is later than any that is known to have come: everything that is born would be older. Our own clock may be slow.
fn is_yet_to_come(situation: &Situation<'_>, time: Timestamp) -> bool {
    let known = situation.machines.iter().map(|machine| machine.created);
    let latest = known.fold(situation.now.max(situation.scalable.created), Timestamp::max);
    time.as_second() > latest.as_second().saturating_add(1)
}

/// How far the level may rise. After a leap of the management cluster's clock what is born may be older than our epoch for a while: it is
/// taken for somebody else's, and whoever it was made for goes on waiting. Asking for more would not help.
pub(super) fn rise(situation: &Situation<'_>, sorted: &Sorted<'_>, protected: i32) -> Rise {
    let older = sorted.foreign.iter().filter(|machine| machine.claim().is_none()).count();
    let lags = enrolled(situation).is_some_and(|epoch| epoch > situation.now) && count(older) > protected;
    match situation.rules.rise {
        Rise::ToWhatIsNeeded if lags => Rise::ToWhatIsThere,
        rise => rise,
    }
}

/// How many more nodes a resource may give to NodeClaims besides those that wait for it; `None` is any number. By what [`plan`] counts, or
/// NodeClaims would be sent here only to be turned away.
pub(crate) fn room(situation: &Situation<'_>) -> Option<usize> {
    let max = usize::try_from(situation.bounds.1?).unwrap_or(0);
    let sorted = sort(situation, enrolled(situation));
    let reserve = reserve(protected_now(situation, &sorted), &sorted);
    let settled = sorted.claimed.len() + sorted.foreign.len() + reserve;
    let waiting = waiting(situation).len();
    // Those that Cluster API may be about to take away, or that come in the place of others, are for nobody else.
    let stay = situation.rollout.is_none() && !shrinks(situation);
    let serves = |m: &&&Machine| stay && m.failure.is_none() && !m.is_updating() && !m.is_paused();
    let spare = sorted.free.iter().skip(reserve);
    let fit = spare.clone().filter(serves).count();
    let others = spare.count() - fit;
    let to_be_made = max.saturating_sub(settled + others.max(waiting));
    Some(to_be_made.max(fit.saturating_sub(waiting)))
}

/// How many replicas are not ours, by the rules of now.
fn protected_now(situation: &Situation<'_>, sorted: &Sorted<'_>) -> i32 {
    let foreign = count(sorted.foreign.len());
    let is_enrolled = enrolled(situation).is_some();
    match situation.scalable.protected_replicas() {
        _ if situation.rules.adopt_unclaimed => 0,
        Ok(Some(protected)) if is_enrolled => protected,
        // What was counted stays counted when it turns out that the epoch cannot be right.
        Ok(Some(protected)) if !situation.anew && epoch(situation.scalable).is_some() => {
            protected.max(foreign)
        }
        Ok(None) if is_enrolled => {
            let asked_for = asked_for(situation.scalable, situation.machines, &waiting(situation));
            foreign.max(not_ours(situation, sorted) - asked_for)
        }
        // Any of them may be its owner's.
        Err(_) if is_enrolled => foreign + count(sorted.free.len()),
        _ => not_ours(situation, sorted),
    }
}

/// How many replicas that are not ours have no Machine of before our epoch.
fn reserve(protected: i32, sorted: &Sorted<'_>) -> usize {
    let there = sorted.foreign.len() - sorted.set_aside;
    usize::try_from(protected).unwrap_or(0).saturating_sub(there)
}

/// How many replicas a resource has, as our time with it begins, that are neither ours nor the Go provider's.
fn not_ours(situation: &Situation<'_>, sorted: &Sorted<'_>) -> i32 {
    let bound = |machine: &&Machine| {
        let mut claims = situation.targeting.iter().chain(situation.ending);
        machine.claim().is_none() && claims.any(|claim| is_bound(claim, machine))
    };
    let free = sorted.free.iter().copied().filter(bound).count();
    // One that is being deleted has a replica until the level is low enough for it to go without another in its place.
    let foreseen =
        usize::try_from(count(situation.machines.len()) - situation.scalable.replicas).unwrap_or(0);
    let going = situation.machines.iter().filter(|machine| machine.deleting).filter(bound).count();
    let ours = sorted.claimed.len() + sorted.marked.len() + free + going.saturating_sub(foreseen);
    count(sorted.foreign.len()).max(situation.scalable.replicas - count(ours))
}

/// How many replicas are neither ours nor known not to be.
pub(crate) fn untold(scalable: &Scalable, machines: &[Machine], owner: &str) -> i32 {
    let live = || machines.iter().filter(|machine| !machine.deleting);
    let ours = |machine: &&Machine| {
        machine.claim().map_or_else(|| is_our_mark(machine), |claim| claim.owner == owner)
    };
    let foreign = |machine: &&Machine| {
        !ours(machine) && epoch(scalable).is_some_and(|epoch| machine.created.as_second() < epoch.as_second())
    };
    let foreign = count(live().filter(foreign).count());
    let protected = scalable.protected_replicas().ok().flatten().unwrap_or(0);
    scalable.replicas - count(live().filter(ours).count()) - protected.max(foreign)
}

/// For how many of those that wait we may have asked, when we were here last: for a replica that is not born yet each, or a Machine that has
/// no Node yet and is no older than who waits. What has a Node has been there for longer, and somebody may use it.
pub(crate) fn asked_for(scalable: &Scalable, machines: &[Machine], waiting: &[&ClaimFacts]) -> i32 {
    let live = machines.iter().filter(|machine| !machine.deleting);
    let unborn = usize::try_from(scalable.replicas - count(live.clone().count())).unwrap_or(0);
    let fresh = live.filter(|m| m.claim().is_none() && !m.is_marked() && m.node_name.is_none());
    let mut fresh: Vec<i64> = fresh.map(|machine| machine.created.as_second()).collect();
    fresh.sort_unstable();
    let mut born = 0;
    for machine in fresh {
        let older = waiting.iter().filter(|claim| claim.created.as_second() <= machine).count();
        born += usize::from(older > born);
    }
    count((unborn + born).min(waiting.len()))
}

/// Whether Cluster API has taken as many Machines as the level says, so that none that goes was asked for by us.
fn is_followed(situation: &Situation<'_>) -> bool {
    let live = situation.machines.iter().filter(|machine| !machine.deleting).count();
    let level = situation.scalable.replicas;
    count(live) <= situation.in_sets.map_or(level, |in_sets| in_sets.min(level))
}

/// Machines born since our epoch that are nobody's, but for the oldest, which make up for protected ones that were replaced.
pub(crate) fn unclaimed<'a>(scalable: &Scalable, machines: &'a [Machine]) -> Vec<&'a Machine> {
    let Some(epoch) = epoch(scalable) else { return Vec::new() };
    let nobodys = machines.iter().filter(|m| m.claim().is_none() && !m.deleting && !m.is_marked());
    let (mut born, before): (Vec<_>, Vec<_>) =
        nobodys.partition(|machine| machine.created.as_second() >= epoch.as_second());
    born.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
    // What cannot be read may be any number.
    let protected = scalable.protected_replicas().map_or(i32::MAX, Option::unwrap_or_default);
    let protected = usize::try_from(protected).unwrap_or(0);
    born.into_iter().skip(protected.saturating_sub(before.len())).collect()
}

fn sort<'a>(situation: &Situation<'a>, epoch: Option<Timestamp>) -> Sorted<'a> {
    let mut sorted = Sorted {
        claimed: Vec::new(),
        foreign: Vec::new(),
        free: Vec::new(),
        marked: Vec::new(),
        deleting: 0,
        set_aside: 0,
    };
    for machine in situation.machines {
        let claim = machine.claim();
        // Creation times have whole seconds.
        let ours_by_birth = epoch.is_some_and(|epoch| machine.created.as_second() >= epoch.as_second());
        let bound = claim.is_none() && situation.targeting.iter().any(|claim| is_bound(claim, machine));
        // The Go provider's claim on one whose node is being drained, which nobody else is to get.
        let ending =
            claim.is_none() && !bound && situation.ending.iter().any(|claim| is_bound(claim, machine));
        let another = claim.as_ref().is_some_and(|claim| claim.owner != situation.owner);
        // One that is nobody's and that somebody else marked may go at any time: nobody gets it, and nobody is to wait for it.
        let spoken_for = claim.is_none() && machine.is_marked() && !bound;
        if machine.deleting {
            sorted.deleting += 1;
        } else if is_our_mark(machine) && !another {
            sorted.marked.push(machine);
        } else if claim.is_some() && !another || ending {
            sorted.claimed.push(machine);
        } else if !another && situation.set_aside.contains(&machine.uid) {
            sorted.foreign.push(machine);
            sorted.set_aside += usize::from(ours_by_birth);
        } else if another || spoken_for || !(ours_by_birth || bound || situation.rules.adopt_unclaimed) {
            sorted.foreign.push(machine);
        } else {
            sorted.free.push(machine);
        }
    }
    for machines in [&mut sorted.claimed, &mut sorted.free, &mut sorted.marked] {
        machines.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
    }
    sorted
}

/// Machines that go, and those that went a moment ago, by uid: since when.
fn leaving(situation: &Situation<'_>, sorted: &Sorted<'_>) -> BTreeMap<String, Instant> {
    let before = &situation.sightings.leaving;
    let there: BTreeSet<&str> = situation.machines.iter().map(|machine| machine.uid.as_str()).collect();
    let going = situation.machines.iter().filter(|machine| machine.deleting);
    let going = sorted.marked.iter().copied().chain(going).map(|machine| &machine.uid);
    let vanished = situation.sightings.there.iter().filter(|uid| !there.contains(uid.as_str()));
    let lately = before.iter().filter(|(_, since)| situation.age(**since) < HEARD).map(|(uid, _)| uid);
    let since = |uid: &String| (uid.clone(), *before.get(uid).unwrap_or(&situation.instant));
    going.chain(vanished).chain(lately).map(since).collect()
}

/// NodeClaims without a Machine, oldest first. One whose Machine is leaving, or was there and is gone, waits for nothing any
/// more; one that is bound to a Machine waits for that very one.
fn waiting<'a>(situation: &Situation<'a>) -> Vec<&'a ClaimFacts> {
    let served: BTreeSet<String> =
        situation.machines.iter().filter_map(|machine| machine.claim().map(|claim| claim.uid)).collect();
    let may_wait = |claim: &ClaimFacts| {
        let bound =
            || situation.machines.iter().any(|machine| is_bound(claim, machine) && machine.claim().is_none());
        if claim.bound_to.is_some() || claim.provider_id.is_some() { bound() } else { true }
    };
    let mut waiting: Vec<&ClaimFacts> =
        situation.targeting.iter().filter(|claim| !served.contains(&claim.uid) && may_wait(claim)).collect();
    waiting.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    waiting
}

/// NodeClaims bound to a Machine that carries the claim of another one of ours. One that ends would take that one's Node along.
fn doubles(situation: &Situation<'_>) -> Vec<ClaimFacts> {
    let is_double = |claim: &&ClaimFacts| {
        let bound = situation.machines.iter().filter(|machine| is_bound(claim, machine));
        // One of the same name under another uid was restored from a backup, and is the very one.
        bound.filter_map(Machine::claim).any(|held| {
            held.owner == situation.owner && held.uid != claim.uid && held.node_claim != claim.name
        })
    };
    situation.targeting.iter().chain(situation.ending).filter(is_double).cloned().collect()
}

/// Whether a NodeClaim says that this is its Machine, as the Go provider binds them and as those do that have their instance, and their
/// ids agree.
fn is_bound(claim: &ClaimFacts, machine: &Machine) -> bool {
    claim.bound_to.as_ref() == Some(&machine.key)
        && (claim.provider_id.is_none() || claim.provider_id == machine.provider_id)
}

/// Whether there are more Machines, neither marked nor going, than the level or the MachineSets ask for.
fn shrinks(situation: &Situation<'_>) -> bool {
    let stay = situation.machines.iter().filter(|machine| !machine.deleting && !is_our_mark(machine));
    let level = situation.scalable.replicas;
    count(stay.count()) > situation.in_sets.map_or(level, |in_sets| in_sets.min(level))
}

/// Matches waiting NodeClaims with free Machines; the free ones that are left.
fn claims<'a>(
    situation: &Situation<'_>,
    sorted: &Sorted<'a>,
    waiting: &[&ClaimFacts],
    reserve: usize,
    plan: &mut Plan,
) -> Vec<&'a Machine> {
    let mut free = sorted.free.clone();
    if is_planted(Fault::ClaimsTheClaimed) {
        free.extend(&sorted.claimed);
    }
    // The oldest ones make up for foreign Machines that were replaced.
    let reserved: BTreeSet<&str> = free.iter().take(reserve).map(|machine| machine.uid.as_str()).collect();
    // More than was asked for a moment ago: Cluster API is about to take one away, and takes the claimed as soon as the free. Ages
    // are by our own looks, for our clock may be off.
    let seen = &situation.sightings.seen;
    let first_seen = |machine: &Machine| *seen.get(&machine.uid).unwrap_or(&situation.instant);
    plan.sightings.seen = free.iter().map(|machine| (machine.uid.clone(), first_seen(machine))).collect();
    let young = |machine: &Machine| situation.age(first_seen(machine)) < SETTLING;
    let shrank = match shrinks(situation) {
        true => Some(situation.instant),
        false => situation.sightings.shrank.filter(|at| situation.age(*at) < AFTER_SHRINKING),
    };
    plan.sightings.shrank = shrank;
    let unsettled = situation.rollout.is_none() && shrank.is_some();
    let eligible = |machine: &Machine, failed: bool| {
        let newest = situation.rollout.and_then(|rollout| rollout.newest_set.as_deref());
        machine.failure.is_some() == failed
            && !machine.is_updating()
            && !machine.is_paused()
            && !reserved.contains(machine.uid.as_str())
            && (newest.is_none() || machine.set_name() == newest)
            && !(unsettled && young(machine))
            && !waiting.iter().any(|claim| is_bound(claim, machine))
    };
    if unsettled && !waiting.is_empty() && free.iter().any(|machine| young(machine)) {
        plan.look_again(Duration::from_secs(1));
    }
    for claim in waiting {
        // What is bound stays bound, if the ids agree.
        let bound = free.iter().position(|machine| is_bound(claim, machine) && !machine.is_paused());
        let place = match (bound, claim.provider_id.is_some() || claim.bound_to.is_some()) {
            (None, true) => None,
            // One that failed before it was claimed fails the NodeClaim that waits for it, and goes with it.
            (bound, _) => bound
                .or_else(|| free.iter().position(|machine| eligible(machine, false)))
                .or_else(|| free.iter().position(|machine| eligible(machine, true))),
        };
        if let Some(place) = place {
            let machine = free.remove(place);
            plan.claims.push((machine.key.clone(), (*claim).clone()));
        }
    }
    free
}

/// Of two Machines with the claim of one NodeClaim, which two leaders can bring about, the one that does not have its id goes,
/// or the younger one. Machines of NodeClaims that are gone go too.
fn mark_doubles_and_orphans(situation: &Situation<'_>, sorted: &Sorted<'_>, plan: &mut Plan) {
    let mut by_claim: BTreeMap<String, Vec<&Machine>> = BTreeMap::new();
    for machine in sorted.claimed.iter().filter(|machine| !machine.is_paused()) {
        if let Some(claim) = machine.claim() {
            by_claim.entry(claim.uid).or_default().push(machine);
        }
    }
    for (uid, mut machines) in by_claim {
        if situation.gone.contains(&uid) {
            plan.marks.extend(machines.iter().map(|machine| (machine.key.clone(), uid.clone())));
            continue;
        }
        let known = situation.targeting.iter().find(|claim| claim.uid == uid);
        let known = known.and_then(|claim| claim.provider_id.as_ref());
        machines
            .sort_by_key(|m| (known.is_some() && m.provider_id.as_ref() != known, m.created, m.key.clone()));
        plan.marks.extend(machines.iter().skip(1).map(|machine| (machine.key.clone(), uid.clone())));
    }
}

fn mark_surplus(
    situation: &Situation<'_>,
    sorted: &Sorted<'_>,
    free: &[&Machine],
    reserve: usize,
    waiting: usize,
    plan: &mut Plan,
) {
    // Machines that waiting NodeClaims may still get (they are not eligible yet) are no surplus.
    let unserved = waiting - plan.claims.len();
    // Nor are those that the owner's least size asks for: they would be made again.
    let settled = sorted.claimed.len() + sorted.foreign.len() + plan.claims.len() - plan.marks.len();
    let floor = usize::try_from(situation.bounds.0).unwrap_or(0).saturating_sub(settled);
    let spare = free.len().saturating_sub((reserve + unserved).max(floor));
    let surplus_after = situation.rules.surplus_after;
    for machine in dispensable(situation, free).into_iter().take(spare) {
        // While Machines are being replaced there is one more at times; its time starts when that is over. Where the level does not
        // fall, what goes is made again.
        if situation.rollout.is_some() || !may_lower(situation) {
            break;
        }
        let since = *situation.sightings.free.get(&machine.uid).unwrap_or(&situation.instant);
        plan.sightings.free.insert(machine.uid.clone(), since);
        let age = situation.age(since);
        if age >= surplus_after {
            plan.marks.push((machine.key.clone(), SURPLUS_MARK.to_owned()));
        } else {
            plan.look_again(surplus_after - age);
        }
    }
}

/// Free Machines in the order in which they may go: those that failed, then the youngest. What was there before us may serve, and
/// is never surplus.
pub(super) fn dispensable<'a>(situation: &Situation<'_>, free: &[&'a Machine]) -> Vec<&'a Machine> {
    let epoch = enrolled(situation);
    let may_go = |m: &&Machine| {
        !m.is_paused()
            && !situation.awaited.contains(&m.uid)
            && epoch.is_some_and(|epoch| m.created.as_second() >= epoch.as_second())
    };
    let mut machines: Vec<&Machine> = free.iter().copied().filter(may_go).collect();
    machines.sort_by_key(|m| (m.failure.is_none(), std::cmp::Reverse((m.created, m.key.clone()))));
    machines
}

/// Whether the level may fall, and takes none that somebody else marked.
pub(super) fn may_lower(situation: &Situation<'_>) -> bool {
    let marked_by_another =
        |machine: &&Machine| !machine.deleting && machine.is_marked() && !is_our_mark(machine);
    situation.rules.may_lower
        && !is_unreadable(situation)
        && !situation.machines.iter().any(|machine| marked_by_another(&machine))
}

fn is_set_aside(situation: &Situation<'_>, key: &ObjectKey) -> bool {
    let machine = situation.machines.iter().find(|machine| machine.key == *key);
    machine.is_some_and(|machine| situation.set_aside.contains(&machine.uid))
}

/// Whether it cannot be told how many replicas are not ours.
fn is_unreadable(situation: &Situation<'_>) -> bool {
    enrolled(situation).is_some() && situation.scalable.protected_replicas().is_err()
}

/// Whether we marked it: only then is it ours to delete.
pub(crate) fn is_our_mark(machine: &Machine) -> bool {
    let mark = machine.annotations.get(names::DELETE_MACHINE);
    mark.is_some_and(|mark| mark == SURPLUS_MARK) || is_marked_for_its_claim(machine)
}

pub(super) fn is_marked_for_its_claim(machine: &Machine) -> bool {
    let claim = machine.claim().map(|claim| claim.uid);
    claim.is_some() && machine.annotations.get(names::DELETE_MACHINE) == claim.as_ref()
}

fn counts(sorted: &Sorted<'_>, waiting: &[&ClaimFacts]) -> Counts {
    Counts {
        claimed: count(sorted.claimed.len()),
        foreign: count(sorted.foreign.len()),
        free: count(sorted.free.len()),
        waiting: count(waiting.len()),
        leaving: count(sorted.marked.len() + sorted.deleting),
    }
}

pub(super) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Plan {
    /// Has it looked at again after this long.
    pub(crate) fn look_again(&mut self, after: Duration) {
        self.look_again = Some(self.look_again.map_or(after, |before| before.min(after)));
    }

    /// Whether anything is to be written.
    pub(crate) fn writes(&self) -> bool {
        self.enrol.is_some()
            || self.dismiss
            || !self.claims.is_empty()
            || !self.marks.is_empty()
            || self.replicas.is_some()
            || !self.removals.is_empty()
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
