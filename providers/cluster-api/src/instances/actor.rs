//! Looks at one scalable resource at a time, and has the ledger's plan for it carried out.
//!
//! What is seen in the mirror says whether there is anything to do; what is done is decided on a fresh read. Every write is
//! bound to what was read (see `execution`). A write that is lost or overtaken means looking again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::object_key::ObjectKey;
use tokio::time::Instant;

use super::adoption::{self, Unsuited};
use super::execution::Refusals;
use super::fleet::Fleet;
use super::holds::{self, HoldKind};
use super::ledger::{self, ClaimFacts, Plan, Rise, Rules, Sightings, Situation};
use super::restoration;
use super::rollout;
use super::set_aside::Refused;
use super::succession::{self, Estate};
use super::takeover;
use crate::client::hub::HubError;
use crate::client::machine::Machine;
use crate::client::mirror::News;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::names;
use crate::nodeclass::{Adoption, DEFAULT_SURPLUS_TIMEOUT, Drift};

/// Cluster API looks at an object at most once a second; looking more often buys nothing.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// How often a resource on which somebody waits is looked at even if nothing happens.
const WHILE_WAITING: Duration = Duration::from_secs(15);
/// How long a Machine's NodeClaim must be out of sight before the server is asked whether it exists.
const OUT_OF_SIGHT: Duration = Duration::from_secs(20);

/// How often it is looked whether Machines can be adopted that could not be, though nothing happens.
const WHILE_PUT_OFF: Duration = Duration::from_secs(60);

pub(crate) struct Actor {
    pub(super) fleet: Arc<Fleet>,
    memory: Mutex<BTreeMap<ScalableKey, Memory>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub(super) sightings: Sightings,
    last_look: Option<Instant>,
    /// Since when the NodeClaims of Machines have not been seen, by uid.
    out_of_sight: BTreeMap<String, Instant>,
    /// Since when somebody has been waiting without a Machine.
    waiting: Option<Instant>,
    /// The replicas we set, until somebody else does.
    pub(super) level: Option<i32>,
    /// Whether what others did while we were away has been looked into.
    returned: bool,
    /// Whether they set the replicas, and that is not written down yet.
    pub(super) anew: bool,
    /// Machines, by uid, that a rollout had made by our first look, and that are nobody's.
    replaced: Option<BTreeSet<String>>,
    /// Machines that are to be adopted, and could not be a moment ago.
    unsuited: Unsuited,
}

impl Memory {
    /// Those of these Machines, by uid, that Cluster API put in the place of others while nobody looked, and that can get NodeClaims:
    /// pods may run there. One that has not become a node has as much time for that as any other that nobody waits for.
    fn awaited(&self, drift: Drift, machines: &[Machine]) -> BTreeSet<String> {
        let (Some(replaced), Drift::ClusterAPI) = (&self.replaced, drift) else { return BTreeSet::new() };
        let mut awaited = self.unsuited.without(replaced);
        awaited.retain(|uid| {
            let machine = machines.iter().find(|machine| machine.uid == *uid);
            machine.is_some_and(|machine| adoption::is_adoptable(machine) && machine.failure.is_none())
        });
        awaited
    }
}

/// A resource and everything a plan is made from.
pub(super) struct Look {
    pub(super) scalable: Scalable,
    pub(super) machines: Vec<Machine>,
    sets: Vec<Arc<Scalable>>,
    gone: BTreeSet<String>,
}

/// Whether a NodeClaim has no Machine yet.
fn is_unserved(claim: &ClaimFacts, machines: &[Machine]) -> bool {
    let is_its = |machine: &Machine| machine.claim().is_some_and(|held| held.uid == claim.uid);
    claim.provider_id.is_none() && !machines.iter().any(is_its)
}

impl Actor {
    pub(crate) fn new(fleet: Arc<Fleet>) -> Self {
        Self { fleet, memory: Mutex::default() }
    }

    async fn act(&self, id: &ScalableKey) -> Result<Outcome, HubError> {
        let fleet = &self.fleet;
        let Some(seen) = fleet.mirror.scalable(id) else {
            // Not seen is not gone; ask before anyone is turned away, or anything is forgotten.
            let machines = fleet.machines_of(id);
            let ours = machines.iter().any(|m| m.claim().is_some_and(|claim| claim.owner == fleet.owner));
            if ours || !fleet.claims_on(id, &machines).is_empty() || self.lock().contains_key(id) {
                return self.refuse_if_gone(id, &machines).await;
            }
            return Ok(Outcome::Done);
        };
        let machines = fleet.machines_of(id);
        let sets = fleet.mirror.sets_of(id);
        let look = Look { scalable: Scalable::clone(&seen), machines, sets, gone: BTreeSet::new() };
        for machine in &look.machines {
            if restoration::reclaim(fleet, machine).await? {
                return Ok(Outcome::After(BETWEEN_LOOKS));
            }
        }
        self.succeed(&look).await;
        self.look_back(&look);
        self.return_to(&look).await?;
        let put_off = self.adopt(&look).await;
        takeover::take_over(fleet, &look.scalable, &look.machines).await;
        self.tell_marks(&look);
        let (first, _) = self.plan(&look);
        self.part(&first.doubles).await;
        let suspects = self.suspects(id, &look.machines);
        if !first.writes() && suspects.is_empty() {
            self.give_turns(&look.scalable, &first, 0);
            let mut first = first;
            if put_off {
                first.look_again(WHILE_PUT_OFF);
            }
            return Ok(self.settle(id, first));
        }
        let mut look = Look {
            scalable: fleet.hub.scalable(id).await?,
            machines: fleet.hub.machines(Some(id)).await?,
            // A watch may lag behind one, and then a MachineSet that is about to shrink looks settled.
            sets: fleet.hub.sets_of(id).await?,
            gone: BTreeSet::new(),
        };
        look.gone = self.gone(&suspects, &look.machines).await;
        self.notice(&look.scalable);
        let (plan, targeting) = self.plan(&look);
        let hold = holds::hold(&look.scalable, &look.sets, Some(&fleet.hub.cluster().await?), false);
        let hold = hold.map(|hold| hold.kind);
        // Planned with a Cluster as last seen, whose topology may have taken the replicas since.
        let is_news = hold != fleet.hold(&look.scalable).map(|hold| hold.kind);
        if hold == Some(HoldKind::NoWrites) || hold == Some(HoldKind::NotOurs) && is_news {
            return Ok(Outcome::After(WHILE_WAITING));
        }
        let mut refusals = Refusals::default();
        let again = match self.carry_out(&look, &plan, targeting.len(), &mut refusals).await {
            Err(error @ HubError::Refused { .. }) => {
                self.turn_away(&look.scalable, &plan, &targeting, &refusals, &error.to_string());
                self.tell_refusal(&look.scalable, &error);
                // What was seen was seen all the same, and who finds no room is to know.
                self.settle(id, plan);
                return Err(error);
            }
            other => other?,
        };
        fleet.note_written(id, None);
        let outcome = self.settle(id, plan);
        Ok(if again { Outcome::After(BETWEEN_LOOKS) } else { outcome })
    }

    fn plan(&self, look: &Look) -> (Plan, Vec<ClaimFacts>) {
        let fleet = &self.fleet;
        let id = &look.scalable.id;
        let targeting = fleet.claims_on(id, &look.machines);
        let class = fleet.node_class_of(&look.scalable);
        let spec = class.as_ref().map(|class| class.spec()).unwrap_or_default();
        let hold = fleet.hold(&look.scalable);
        let pause = fleet.reverts.pause(id);
        if hold.as_ref().is_some_and(|hold| hold.kind == HoldKind::NoWrites) {
            let sightings = self.memory(id).sightings;
            return (Plan { sightings, look_again: Some(WHILE_WAITING), ..Plan::default() }, targeting);
        }
        let not_ours = hold.as_ref().filter(|hold| hold.kind == HoldKind::NotOurs);
        // Bounds that cannot be read allow nothing.
        let bounds = look.scalable.bounds().unwrap_or((0, Some(look.scalable.replicas)));
        let adoption = spec.adoption.unwrap_or_default();
        let takes_part = class.is_some() && not_ours.is_none();
        let rules = Rules {
            takes_part,
            may_lower: not_ours.is_none() && pause.as_ref().is_none_or(|pause| pause.rising),
            adopt_unclaimed: takes_part && adoption != Adoption::Never,
            surplus_after: class.as_ref().map_or(DEFAULT_SURPLUS_TIMEOUT, |class| class.surplus_timeout()),
            rise: match hold.as_ref().map(|hold| hold.kind) {
                None | Some(HoldKind::Waiting) => Rise::ToWhatIsNeeded,
                // Machines in use are defended whatever keeps new ones from coming, unless all of them are to go.
                Some(HoldKind::NoLaunches) if !look.scalable.deleting => Rise::ToWhatIsThere,
                Some(_) => Rise::Never,
            },
            most_launching: spec
                .launch_limits
                .and_then(|limits| limits.per_resource)
                .and_then(|most| usize::try_from(most).ok()),
        };
        let sets = &look.sets;
        let rollout = rollout::rollout(&look.scalable, sets, &look.machines);
        let memory = self.memory(id);
        let mut plan = ledger::plan(&Situation {
            scalable: &look.scalable,
            machines: &look.machines,
            in_sets: (!sets.is_empty()).then(|| sets.iter().map(|set| set.replicas).sum()),
            bounds,
            targeting: &targeting,
            ending: &fleet.ending_on(&look.machines),
            gone: &look.gone,
            set_aside: &fleet.set_aside.of(id),
            awaited: &memory.awaited(spec.drift.unwrap_or_default(), &look.machines),
            owner: &fleet.owner,
            rules,
            rollout: rollout.as_ref(),
            anew: memory.anew,
            sightings: &memory.sightings,
            now: fleet.clock.now(),
            instant: Instant::now(),
        });
        if let Some(rest) = fleet.set_aside.rest(id) {
            plan.look_again(rest);
        }
        if let Some(pause) = pause {
            plan.look_again(pause.until.saturating_duration_since(Instant::now()));
        }
        (plan, targeting)
    }

    /// Looks, once after our start, whether replicas that nobody needs were set by somebody else while we were away: then they are
    /// their owner's. Only the server knows; what it does not say was ours.
    async fn return_to(&self, look: &Look) -> Result<(), HubError> {
        let (fleet, id) = (&self.fleet, &look.scalable.id);
        if self.memory(id).returned {
            return Ok(());
        }
        // Machines that come in the place of others are nobody's for a moment.
        if rollout::rollout(&look.scalable, &look.sets, &look.machines).is_some() {
            return Ok(());
        }
        // What somebody waits for may have been asked for by us.
        let targeting = fleet.claims_on(id, &look.machines);
        let waiting: Vec<&ClaimFacts> =
            targeting.iter().filter(|claim| is_unserved(claim, &look.machines)).collect();
        let asked_for = ledger::asked_for(&look.scalable, &look.machines, &waiting);
        let untold = ledger::epoch(&look.scalable)
            .map_or(0, |_| ledger::untold(&look.scalable, &look.machines, &fleet.owner) - asked_for);
        let anew = untold > 0 && fleet.hub.scalable(id).await?.replicas_are_anothers;
        if anew && let Some(class) = fleet.node_class_of(&look.scalable) {
            let message = format!(
                "{id}: somebody set {} replicas while Karpenter was not running; {untold} that no NodeClaim needs are left to their owner",
                look.scalable.replicas,
            );
            let event = Event::new(reference(&*class), EventType::Normal, "ReplicasLeftToOwner", message);
            fleet.recorder.publish(event.dedupe_by([id.to_string()]));
        }
        let mut memory = self.lock();
        let memory = memory.entry(id.clone()).or_default();
        (memory.returned, memory.anew) = (true, anew);
        if anew {
            // Theirs are not to be adopted.
            memory.replaced = Some(BTreeSet::new());
        }
        Ok(())
    }

    /// NodeClaims of Machines, by uid, that have been out of sight for long.
    fn suspects(&self, id: &ScalableKey, machines: &[Machine]) -> BTreeSet<String> {
        let now = Instant::now();
        let fleet = &self.fleet;
        let mut memory = self.lock();
        let memory = memory.entry(id.clone()).or_default();
        let claims =
            machines.iter().filter(|m| !m.deleting && !ledger::is_our_mark(m)).filter_map(Machine::claim);
        let unseen: BTreeSet<String> = claims
            .filter(|claim| {
                claim.owner == fleet.owner && !fleet.node_claims.is_seen(&claim.node_claim, &claim.uid)
            })
            .map(|claim| claim.uid)
            .collect();
        memory.out_of_sight.retain(|uid, _| unseen.contains(uid));
        unseen
            .into_iter()
            .filter(|uid| {
                let since = *memory.out_of_sight.entry(uid.clone()).or_insert(now);
                now.saturating_duration_since(since) >= OUT_OF_SIGHT
            })
            .collect()
    }

    /// Those of the suspects that the server says do not exist. What it does not say stays.
    async fn gone(&self, suspects: &BTreeSet<String>, machines: &[Machine]) -> BTreeSet<String> {
        let mut gone = BTreeSet::new();
        for machine in machines {
            let claim = machine.claim().filter(|claim| suspects.contains(&claim.uid));
            if let Some(claim) = claim
                && let Ok(true) = self.fleet.node_claims.has_left(machine).await
            {
                gone.insert(claim.uid);
            }
        }
        gone
    }

    /// Makes successors of NodeClaims whose Machines Cluster API replaces, and deletes those of condemned Machines. What fails is
    /// done at the next look.
    async fn succeed(&self, look: &Look) {
        let fleet = &self.fleet;
        let id = &look.scalable.id;
        if look.machines.iter().all(|machine| !machine.deleting && !machine.is_condemned()) {
            return;
        }
        let spec = fleet.node_class_of(&look.scalable).map(|class| class.spec()).unwrap_or_default();
        let rollout = rollout::rollout(&look.scalable, &look.sets, &look.machines);
        let claims = fleet.node_claims.store().list();
        let estate = Estate {
            machines: &look.machines,
            claims: &claims,
            owner: &fleet.owner,
            rollout: rollout.as_ref(),
            spec: &spec,
        };
        for (successor, predecessor) in estate.successors(&succession::target(id)) {
            tracing::info!(resource = %id, name = successor.metadata.name, "a replaced Machine gets a NodeClaim");
            let made = match fleet.node_claims.adopt(&successor).await {
                Ok(()) => fleet.node_claims.mark_succeeded(&predecessor).await,
                Err(error) => Err(error),
            };
            if let Err(error) = made {
                tracing::warn!(resource = %id, %error, "cannot make a NodeClaim for a replaced Machine");
            }
        }
        // While Cluster API is to leave a Machine alone, its node stays as well.
        for (claim, _) in estate.condemned().into_iter().filter(|(_, m)| fleet.paused(m).is_none()) {
            let message = "a health check condemned its Machine".to_owned();
            let event = Event::new(reference(&**claim), EventType::Warning, "MachineUnhealthy", message);
            fleet.recorder.publish(event.dedupe_by([claim.metadata.uid.clone().unwrap_or_default()]));
            if let Err(error) = fleet.node_claims.delete(claim).await {
                tracing::warn!(resource = %id, %error, "cannot delete the NodeClaim of a condemned Machine");
            }
        }
    }

    /// Takes note, at the first look, of what a rollout has made while nobody looked: pods may run there, and their NodeClaims, which
    /// would have had successors, may be gone by now.
    fn look_back(&self, look: &Look) {
        let id = &look.scalable.id;
        let mut memory = self.lock();
        let memory = memory.entry(id.clone()).or_default();
        if memory.replaced.is_some() {
            return;
        }
        let newest = look.sets.iter().max_by_key(|set| (set.revision(), set.id.key.clone()));
        // One that is older than our time has been there all along.
        let newest =
            newest.filter(|set| ledger::epoch(&look.scalable).is_some_and(|epoch| set.created > epoch));
        let label = newest.map(|set| names::label_value(&set.id.key.name));
        let made = ledger::unclaimed(&look.scalable, &look.machines).into_iter();
        let made = made.filter(|machine| label.is_some() && machine.set_name() == label.as_deref());
        memory.replaced = Some(made.map(|machine| machine.uid.clone()).collect());
    }

    /// Makes NodeClaims for Machines that were there before, where that is wanted, and for those that Cluster API put in the place of
    /// others while nobody looked. What fails is done at the next look. Whether some are put off, and nothing will tell when they can be.
    async fn adopt(&self, look: &Look) -> bool {
        let fleet = &self.fleet;
        let Some(class) = fleet.node_class_of(&look.scalable) else { return false };
        if fleet.hold(&look.scalable).is_some() {
            return false;
        }
        let id = &look.scalable.id;
        let (spec, memory) = (class.spec(), self.memory(id));
        let existing = spec.adoption == Some(Adoption::Existing);
        // Those that wait get what nobody has; the rest keeps the pods it has.
        let waits = fleet.node_claims.targeting(id).iter().any(|claim| is_unserved(claim, &look.machines));
        let replaced = match waits {
            true => BTreeSet::new(),
            false => memory.awaited(spec.drift.unwrap_or_default(), &look.machines),
        };
        // While Machines are replaced, the new ones are for the successors of those that go.
        if rollout::rollout(&look.scalable, &look.sets, &look.machines).is_some() {
            return false;
        }
        let fresh = |machine: &&Machine| {
            adoption::is_adoptable(machine)
                && (existing || replaced.contains(&machine.uid))
                && fleet.node_claims.bound_to(&machine.key).is_empty()
                && !memory.unsuited.holds(machine)
        };
        let (mut machines, set_aside): (Vec<&Machine>, _) = (Vec::new(), fleet.set_aside.of(id));
        let mut put_off = false;
        for machine in look.machines.iter().filter(fresh) {
            match set_aside.contains(&machine.uid) {
                true => put_off = true,
                false => machines.push(machine),
            }
        }
        if machines.is_empty() {
            return put_off;
        }
        // Whose claims were refused a moment ago would come again and again.
        if !set_aside.is_empty() && fleet.why_unavailable(id, None).is_some() {
            return true;
        }
        let Ok(pools) = fleet.node_claims.node_pools().await else { return true };
        let Ok(nodes) = fleet.node_claims.node_labels().await else { return true };
        let offers = fleet.offers(&class);
        let mut passed_over = Vec::new();
        for machine in machines {
            let Some(node) = machine.node_name.as_ref().and_then(|name| nodes.get(name)) else {
                passed_over.push(machine);
                continue;
            };
            let entry = offers.entry_of(machine, id);
            let labels = adoption::labels_of(node, entry.as_ref().map(|entry| &entry.labels), &id.key.name);
            let mut all = node.clone();
            all.extend(labels.clone());
            let Some(pool) = adoption::pool_for(&pools, class.name(), &all) else {
                passed_over.push(machine);
                continue;
            };
            let labels = adoption::with_what_is_required(pool, node, labels);
            let Ok(claim) = adoption::adopt(pool, machine, &succession::target(id), &labels) else {
                passed_over.push(machine);
                continue;
            };
            tracing::info!(resource = %id, machine = %machine.key, "a Machine that was there before gets a NodeClaim");
            if let Err(error) = fleet.node_claims.adopt(&claim).await {
                tracing::warn!(resource = %id, %error, "cannot make a NodeClaim for a Machine that was there before");
                passed_over.push(machine);
            }
        }
        self.lock().entry(id.clone()).or_default().unsuited.note(&passed_over);
        put_off
    }

    /// Turns those away for whom the management cluster refuses what they need, such as by a policy: they go elsewhere, and where it refuses
    /// that to all of them so do others for a while. Machines that may not be written to are left out meanwhile.
    fn turn_away(
        &self,
        scalable: &Scalable,
        plan: &Plan,
        targeting: &[ClaimFacts],
        refusals: &Refusals,
        why: &str,
    ) {
        let (fleet, id) = (&self.fleet, &scalable.id);
        fleet.set_aside.add(id, Refused::Claim, &refusals.unclaimed);
        fleet.set_aside.add(id, Refused::Mark, &refusals.unmarked);
        let rises = plan.enrol.is_some() || plan.replicas.is_some_and(|level| level > scalable.replicas);
        let turned_away = targeting.iter().filter(|claim| {
            let wants_more = rises && refusals.of_resource && plan.unserved.contains(&claim.uid);
            wants_more || refusals.claims.contains(&claim.uid)
        });
        let turned_away: Vec<&ClaimFacts> = turned_away.collect();
        if turned_away.is_empty() {
            return;
        }
        // Where others are made for those that wait, nothing has failed but who was to have these.
        if refusals.of_resource || !rises && refusals.claims.len() == plan.claims.len() {
            fleet.failed(id, None, why);
        }
        for claim in turned_away.into_iter().filter(|claim| claim.provider_id.is_none()) {
            fleet.refuse(id, &claim.uid, "Refused", why.to_owned());
            fleet.wake(&claim.name);
        }
    }

    /// Tells what the management cluster refuses, such as by a policy: who waits for it to be done cannot.
    fn tell_refusal(&self, scalable: &Scalable, why: &HubError) {
        self.fleet.note_written(&scalable.id, Some(why.to_string()));
        let Some(class) = self.fleet.node_class_of(scalable) else { return };
        let message = format!("{}: {why}", scalable.id);
        let event = Event::new(reference(&*class), EventType::Warning, "WriteRefused", message);
        self.fleet.recorder.publish(event.dedupe_by([scalable.id.to_string(), why.to_string()]));
    }

    /// Tells of Machines that somebody else marked: while they are there the level does not fall.
    fn tell_marks(&self, look: &Look) {
        let marked = look.machines.iter().filter(|m| !m.deleting && m.is_marked() && !ledger::is_our_mark(m));
        let marked: Vec<&str> = marked.map(|machine| &*machine.key.name).collect();
        let class = self.fleet.node_class_of(&look.scalable).filter(|_| !marked.is_empty());
        let (Some(class), Some(_)) = (class, ledger::epoch(&look.scalable)) else { return };
        let message = format!(
            "{}: somebody else put the annotation {} on Machines {}; until it is removed or they are deleted, replicas are not lowered",
            look.scalable.id,
            names::DELETE_MACHINE,
            marked.join(", "),
        );
        let event = Event::new(reference(&*class), EventType::Warning, "MarkedByAnother", message);
        self.fleet.recorder.publish(event.dedupe_by([look.scalable.id.to_string(), marked.join(",")]));
    }

    /// Ends NodeClaims that are bound to a Machine of another one. They let go of the Machine's id first, for the Node
    /// that has it is not theirs.
    async fn part(&self, doubles: &[ClaimFacts]) {
        let fleet = &self.fleet;
        for double in doubles {
            let Some(claim) = fleet.node_claims.seen(&double.name, &double.uid) else { continue };
            let machine = double.bound_to.as_ref().map(ToString::to_string).unwrap_or_default();
            let message =
                format!("Machine {machine} is another NodeClaim's as well, which is older and keeps it");
            let event = Event::new(reference(&*claim), EventType::Warning, "DuplicateMachine", message);
            fleet.recorder.publish(event.dedupe_by([double.uid.clone()]));
            if let Err(error) = fleet.node_claims.part(&claim).await {
                tracing::warn!(%error, "cannot end a NodeClaim whose Machine is another's, will retry");
            }
        }
    }

    /// Tells when somebody else has set the replicas we had set.
    fn notice(&self, scalable: &Scalable) {
        let mut memory = self.lock();
        let Some(memory) = memory.get_mut(&scalable.id) else { return };
        let Some(ours) = memory.level.filter(|level| *level != scalable.replicas) else { return };
        memory.level = None;
        let Some(class) = self.fleet.node_class_of(scalable) else { return };
        let message = format!(
            "{}: {} set {} replicas where Karpenter had set {ours}; leave replicas out of what is applied there",
            scalable.id,
            scalable.replicas_set_by.as_deref().unwrap_or("somebody"),
            scalable.replicas,
        );
        self.fleet.reverts.note(&scalable.id, &message, scalable.replicas < ours);
        let event = Event::new(reference(&*class), EventType::Warning, "ReplicasChangedByAnother", message);
        self.fleet.recorder.publish(event.dedupe_by([scalable.id.to_string()]));
    }

    /// Keeps what is to be kept, turns away who finds no room, says when to look again.
    fn settle(&self, id: &ScalableKey, plan: Plan) -> Outcome {
        let fleet = &self.fleet;
        if !plan.refused.is_empty() {
            // Others would come and be turned away as well, again and again.
            fleet.failed(id, None, "it has no room");
        }
        for claim in &plan.refused {
            fleet.refuse(id, &claim.uid, "NoRoom", format!("{id} has no room"));
            fleet.wake(&claim.name);
        }
        let counts = plan.counts;
        let resource = id.to_string();
        for (state, count) in [
            ("claimed", counts.claimed),
            ("foreign", counts.foreign),
            ("free", counts.free),
            ("leaving", counts.leaving),
        ] {
            fleet.metrics.machines.set(&[&resource, state], f64::from(count));
        }
        let now = Instant::now();
        let mut memory = self.lock();
        let memory = memory.entry(id.clone()).or_default();
        memory.sightings = plan.sightings;
        let waits = counts.waiting > 0;
        memory.waiting = waits.then(|| memory.waiting.unwrap_or(now));
        let unseen = (!memory.out_of_sight.is_empty()).then_some(OUT_OF_SIGHT);
        let again = [plan.look_again, waits.then_some(WHILE_WAITING), unseen];
        again.into_iter().flatten().min().map_or(Outcome::Done, Outcome::After)
    }

    /// Turns those away who wait for a resource that does not exist. Its Machines may, without a MachineSet or with one of their own: those
    /// of NodeClaims that end, or are gone, are deleted directly.
    async fn refuse_if_gone(&self, id: &ScalableKey, machines: &[Machine]) -> Result<Outcome, HubError> {
        match self.fleet.hub.scalable(id).await {
            // What goes while the Cluster is paused, or with it, is being moved to another management cluster.
            Err(error) if error.is_not_found() && !matches!(self.fleet.is_paused().await, Ok(false)) => {
                Ok(Outcome::After(WHILE_WAITING))
            }
            Err(error) if error.is_not_found() => {
                for claim in self.fleet.node_claims.targeting(id) {
                    self.fleet.refuse(id, &claim.uid, "NoResource", format!("{id} does not exist any more"));
                    self.fleet.wake(&claim.name);
                }
                self.fleet.metrics.machines.delete_matching(&[("resource", &id.to_string())]);
                let suspects = self.suspects(id, machines);
                self.delete_left_behind(&suspects, machines).await?;
                let mut memory = self.lock();
                if memory.get(id).is_some_and(|memory| !memory.out_of_sight.is_empty()) {
                    return Ok(Outcome::After(OUT_OF_SIGHT));
                }
                memory.remove(id);
                Ok(Outcome::Done)
            }
            other => other.map(|_| Outcome::Done),
        }
    }

    /// Deletes what we marked of Machines that no resource takes any more, and those of NodeClaims that are gone.
    async fn delete_left_behind(
        &self,
        suspects: &BTreeSet<String>,
        machines: &[Machine],
    ) -> Result<(), HubError> {
        let fleet = &self.fleet;
        let gone = self.gone(suspects, machines).await;
        for machine in machines.iter().filter(|machine| !machine.deleting) {
            let claim = machine.claim().filter(|claim| claim.owner == fleet.owner);
            let goes = claim.is_some_and(|c| ledger::is_our_mark(machine) || gone.contains(&c.uid));
            if !goes || fleet.paused(machine).is_some() || fleet.is_paused().await? {
                continue;
            }
            match fleet.hub.delete_machine(machine).await {
                Err(error) if !error.is_conflict() && !error.is_not_found() => return Err(error),
                _ => fleet.metrics.writes.inc(&["delete"]),
            }
        }
        Ok(())
    }

    fn memory(&self, id: &ScalableKey) -> Memory {
        self.lock().get(id).cloned().unwrap_or_default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<ScalableKey, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconciler for Actor {
    type Key = ScalableKey;

    async fn reconcile(&self, id: ScalableKey) -> ReconcileResult {
        if !self.fleet.is_synced() {
            return Ok(Outcome::After(BETWEEN_LOOKS));
        }
        if let Some(open) = self.fleet.window(&id) {
            return Ok(Outcome::After(open));
        }
        let since = self.memory(&id).last_look.map(|last| last.elapsed());
        if let Some(rest) =
            since.and_then(|since| BETWEEN_LOOKS.checked_sub(since)).filter(|rest| !rest.is_zero())
        {
            return Ok(Outcome::After(rest));
        }
        let acted = self.act(&id).await;
        // Also one that comes to nothing, such as for a pause, was a look; and what it wrote last may have been done though no answer came.
        if self.fleet.mirror.scalable(&id).is_some() {
            self.lock().entry(id.clone()).or_default().last_look = Some(Instant::now());
        }
        match acted {
            Ok(outcome) => Ok(outcome),
            Err(HubError::Conflict(_)) => Ok(Outcome::After(BETWEEN_LOOKS)),
            Err(error) => Err(ReconcileError::from(error).context(format!("looking at {id}"))),
        }
    }
}

/// The resources a change in the management cluster concerns.
pub(crate) fn concerned(fleet: &Fleet, news: &News) -> Vec<ScalableKey> {
    match news {
        News::Machine(old, new) => {
            let machine = new.as_ref().or(old.as_ref());
            machine.and_then(|machine| fleet.mirror.scalable_of(machine)).into_iter().collect()
        }
        News::Scalable(id) if id.kind == ScalableKind::MachineSet => {
            let set = fleet.mirror.scalable(id);
            let owner = set.and_then(|set| set.controlled_by.clone());
            vec![match owner {
                Some(name) => ScalableKey {
                    kind: ScalableKind::MachineDeployment,
                    key: ObjectKey::namespaced(id.key.namespace.clone(), name),
                },
                None => id.clone(),
            }]
        }
        News::Scalable(id) => vec![id.clone()],
        News::Cluster => fleet.mirror.scalables().iter().map(|scalable| scalable.id.clone()).collect(),
    }
}
