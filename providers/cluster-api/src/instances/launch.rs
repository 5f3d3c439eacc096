//! Create: chooses what a NodeClaim gets, writes that down, and says how far it is. Never waits for a Machine.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::conversion;
use karpenter_cloudprovider::{Launch, LaunchHandle, LaunchedInstance, ProviderError};
use karpenter_runtime::error::NotYet;
use karpenter_runtime::events::{Event, EventType, reference};

use super::adoption::EXISTING;
use super::bindings::Bound;
use super::fleet::Fleet;
use super::holds::{Hold, HoldKind};
use super::ledger::is_our_mark;
use super::node_claims::{AssignError, Target, facts};
use super::pace::Turn;
use super::{bindings, restoration, standalone, templates};
use crate::client::fields::{Fields, parse_key};
use crate::client::machine::Machine;
use crate::client::scalable::ScalableKey;
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, DEFAULT_REGISTRATION_TIMEOUT, LaunchMode};

/// After this long without a Machine, others are told to go elsewhere.
const SLOW: Duration = Duration::from_secs(60);
/// After this long without an answer the management cluster counts as away; it is asked every half minute.
const AWAY: Duration = Duration::from_secs(75);
/// The same when it did not answer when it was last asked.
const A_MOMENT: Duration = Duration::from_secs(10);

/// What every launch goes through: not worth an event unless it takes long.
const PHASES: [&str; 3] = ["MachinePending", "BootstrapPending", "InfraProvisioning"];

/// Launches what the NodeClaim asks for, or says how far that is.
pub(crate) async fn create(fleet: &Arc<Fleet>, claim: &NodeClaim) -> Result<Launch, ProviderError> {
    let launch = attempt(fleet, claim).await;
    if let Ok(Launch::Pending { reason, message, .. }) = &launch
        && (!PHASES.contains(&reason.as_str()) || age(fleet, claim) >= SLOW)
    {
        let event = Event::new(reference(claim), EventType::Normal, reason.clone(), message.clone());
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        fleet.recorder.publish(event.dedupe_by([uid, reason.clone()]));
    }
    launch
}

async fn attempt(fleet: &Arc<Fleet>, claim: &NodeClaim) -> Result<Launch, ProviderError> {
    let class_name = &claim.spec.node_class_ref.name;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(ProviderError::other("the NodeClaim is being deleted"));
    }
    if fleet.ready().await.is_err() {
        return Err(not_yet(fleet));
    }
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        return Err(ProviderError::other("the NodeClaim has no uid: it has not been created yet"));
    }
    if let Some(machine) = fleet.mirror.machine_of(uid) {
        fleet.pace.forget(uid);
        return progress(fleet, claim, &machine).await;
    }
    if let Some(pending) = restored(fleet, claim).await? {
        return Ok(pending);
    }
    let released;
    let claim = match bindings::keep(fleet, claim).await? {
        Bound::Not => claim,
        Bound::Kept(launch) => return Ok(launch),
        Bound::Released(now) => {
            released = now;
            &*released
        }
    };
    if let Some(key) = facts(claim).bound_to
        && bindings::find(fleet, &key).await?.is_none()
    {
        let why = format!("Machine {key}, which this NodeClaim was made for, is gone");
        return Err(ProviderError::insufficient_capacity(why));
    }
    let target = match fleet.node_claims.target(claim) {
        Some(target) => target,
        None => {
            let class = fleet.node_class(class_name).ok_or_else(|| {
                ProviderError::node_class_not_ready(format!(
                    "ClusterAPINodeClass {class_name:?} does not exist"
                ))
            })?;
            choose(fleet, claim, &class).await?
        }
    };
    if target.standalone {
        return standalone::launch(fleet, claim, &target).await;
    }
    if let Some(why) = fleet.journeys.refusal(uid) {
        return Err(ProviderError::insufficient_capacity(why));
    }
    waiting(fleet, claim, &target)
}

/// A NodeClaim that was restored from a backup has a Machine, which is claimed again.
async fn restored(fleet: &Fleet, claim: &NodeClaim) -> Result<Option<Launch>, ProviderError> {
    let named = claim.metadata.annotations.as_ref().and_then(|all| all.get(names::MACHINE));
    let Some(machine) = named.and_then(|text| fleet.mirror.machine(&parse_key(text)?)) else {
        return Ok(None);
    };
    let again = restoration::reclaim(fleet, &machine).await.map_err(ProviderError::other)?;
    let target = fleet.node_claims.target(claim).filter(|_| again);
    Ok(target.map(|target| Launch::Pending {
        reason: "MachinePending".to_owned(),
        message: format!("Machine {} is claimed again", machine.key),
        handle: LaunchHandle(target.to_string()),
    }))
}

fn not_yet(fleet: &Fleet) -> ProviderError {
    let why = fleet.hub.trouble().unwrap_or_else(|| "it has not been listed yet".to_owned());
    ProviderError::create(
        NotYet::new(format!("the management cluster is not known yet: {why}")),
        "ManagementUnavailable",
        format!("waiting for the management cluster: {why}"),
    )
}

/// Chooses the best offering that has room and records it.
async fn choose(
    fleet: &Arc<Fleet>,
    claim: &NodeClaim,
    class: &ClusterAPINodeClass,
) -> Result<Target, ProviderError> {
    if let Some(why) = templates::unlisted(class, &fleet.mirror) {
        return Err(ProviderError::create(NotYet::new(why.clone()), "ManagementUnavailable", why));
    }
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    // A reservation of its own that was cut off before it was recorded takes no place from it.
    fleet.node_claims.forget(&uid);
    let offers = fleet.offers(class);
    let choices = offers.catalog.choices(claim, fleet.settings.relaxes_min_values).map_err(|error| {
        let excluded: Vec<String> = offers.excluded.iter().map(ToString::to_string).collect();
        match excluded.is_empty() {
            true => ProviderError::insufficient_capacity(error),
            false => {
                ProviderError::insufficient_capacity(format!("{error}; left out: {}", excluded.join("; ")))
            }
        }
    })?;
    let mode = class.spec().launch_mode.unwrap_or_default();
    let with_room = choices.into_iter().find(|entry| {
        let scalable = fleet.mirror.scalable(&entry.id);
        mode == LaunchMode::Machine || scalable.is_some_and(|scalable| fleet.room(&scalable) != Some(0))
    });
    let Some(entry) = with_room else {
        return Err(ProviderError::insufficient_capacity("all that would do have their greatest size"));
    };
    let target = Target::new(entry.id.clone(), mode, entry.failure_domain.clone());
    // Seen by others before it is written, so that the last place is not given away twice.
    fleet.node_claims.reserve(claim, &target);
    match fleet.node_claims.assign(claim, &target).await {
        Ok(target) => {
            if !target.standalone {
                fleet.arrive(&target.id);
            }
            Ok(target)
        }
        Err(error) => {
            // If the answer was lost the annotation may be there: the watch will tell.
            fleet.node_claims.forget(&uid);
            Err(match error {
                AssignError::Gone(_) => ProviderError::not_found(error),
                AssignError::Write { .. } => ProviderError::other(error),
            })
        }
    }
}

/// A NodeClaim that has a target and no Machine yet.
fn waiting(fleet: &Fleet, claim: &NodeClaim, target: &Target) -> Result<Launch, ProviderError> {
    let id = &target.id;
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let scalable = fleet.mirror.scalable(id);
    let turn = fleet.pace.turn(uid);
    let hold = match &scalable {
        Some(scalable) => fleet.hold(scalable),
        None => moves(fleet, id),
    };
    let is_frozen = hold.as_ref().is_some_and(|hold| hold.kind == HoldKind::NoWrites);
    // One that was made for a Machine is not launched, and has no turn.
    let made_for = facts(claim).bound_to;
    let awaits_turn = || {
        made_for.is_none()
            && !is_frozen
            && scalable.as_ref().is_some_and(|scalable| fleet.is_limited(scalable))
    };
    let predecessor = predecessor(fleet, claim);
    if predecessor.is_some() {
        fleet.journeys.precedes(uid);
    }
    let age = under_way(fleet, claim, id, turn, awaits_turn);
    let handle = LaunchHandle(target.to_string());
    if let Some(message) = away(fleet) {
        return Ok(Launch::Pending { reason: "ManagementUnavailable".to_owned(), message, handle });
    }
    // It was made for a Machine, and nothing else will do.
    let adopts = made_for.as_ref().and_then(|machine| fleet.mirror.machine(machine));
    if let Some(message) = adopts.and_then(|machine| fleet.paused(&machine)) {
        return Ok(Launch::Pending { reason: "Paused".to_owned(), message, handle });
    }
    if let Some(hold) = hold.as_ref().filter(|hold| hold.is_refused()) {
        return Err(failed(fleet, target, hold.reason, &hold.message));
    }
    if is_overdue(fleet, claim, age) {
        // What Cluster API holds back is not broken: nobody need stay away from it.
        return Err(match hold {
            Some(hold) if hold.is_broken() => failed(fleet, target, hold.reason, &hold.message),
            Some(hold) => {
                fleet.metrics.launch_failures.inc(&[&id.to_string(), hold.reason]);
                ProviderError::insufficient_capacity(hold.message)
            }
            None => failed(fleet, target, "NoMachine", &format!("{id} gave no Machine")),
        });
    }
    // Cluster API has had time to begin, and says that somebody has to mend something first: others may serve meanwhile. What was made
    // for a Machine that is there is served by no other.
    if let Some(hold) = hold.as_ref().filter(|hold| hold.is_broken())
        && age >= SLOW
        && !fleet.hub.is_out_of_reach()
        && made_for.is_none()
    {
        fleet.nothing_came(id, &hold.message);
        fleet.metrics.launch_failures.inc(&[&id.to_string(), hold.reason]);
        return Err(ProviderError::insufficient_capacity(hold.message.clone()));
    }
    let (reason, message) = match (hold, predecessor) {
        (Some(hold), _) => (hold.reason.to_owned(), hold.message),
        (None, Some(going)) => (
            "ReplacementPending".to_owned(),
            format!("waiting for Machine {} to go, in whose place {id} gets another", going.key),
        ),
        (None, None) if turn == Some(Turn::Waits) => (
            "LaunchRate".to_owned(),
            format!("{id} has as many launches under way as its ClusterAPINodeClass allows"),
        ),
        (None, None) => {
            if age >= SLOW {
                fleet.nothing_came(id, "no Machine appears");
            }
            ("MachinePending".to_owned(), format!("waiting for a Machine of {id}"))
        }
    };
    fleet.poke(id);
    Ok(Launch::Pending { reason, message, handle })
}

/// That a resource which is out of sight may be on its way to another management cluster: its Cluster is paused, or gone as well.
fn moves(fleet: &Fleet, id: &ScalableKey) -> Option<Hold> {
    let (reason, message) = match fleet.mirror.cluster() {
        None => ("ManagementUnavailable", format!("{id} and its Cluster are not to be found")),
        Some(cluster) if cluster.paused => ("Paused", format!("{id} is gone, and the Cluster is paused")),
        Some(_) => return None,
    };
    Some(Hold { kind: HoldKind::NoWrites, reason, message })
}

/// For how long it could have had a Machine: what goes before it is not its time.
fn under_way(
    fleet: &Fleet,
    claim: &NodeClaim,
    id: &ScalableKey,
    turn: Option<Turn>,
    awaits_turn: impl FnOnce() -> bool,
) -> Duration {
    let age = match turn {
        // Its clock starts at its turn.
        Some(Turn::Waits) => Duration::ZERO,
        Some(Turn::Came(at)) => at.elapsed(),
        // Nobody has looked yet whether its turn has come. Where nothing may be written nobody will.
        None if awaits_turn() => Duration::ZERO,
        None => age(fleet, claim),
    };
    // Nor does Cluster API put another in the place of one that is still being drained.
    let age = match succeeds(claim) {
        Some(_) => {
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            // What was there before us may have been there until we began.
            age.min(fleet.journeys.since_predecessor(uid).unwrap_or_else(|| fleet.since_start()))
        }
        None => age,
    };
    // Cluster API makes one Machine of a MachineSet after the other: while they come, its turn is yet to come.
    fleet.since_birth(id).map_or(age, |since| age.min(since))
}

/// The uid of the NodeClaim that this one succeeds, if it does.
fn succeeds(claim: &NodeClaim) -> Option<&str> {
    let adopted = claim.metadata.annotations.as_ref()?.get(names::ADOPTED)?;
    Some(adopted.as_str()).filter(|adopted| *adopted != EXISTING)
}

/// The Machine in whose place a successor waits for another, while it is on its way out: until it is gone Cluster API may make none.
fn predecessor(fleet: &Fleet, claim: &NodeClaim) -> Option<Arc<Machine>> {
    fleet.mirror.machine_of(succeeds(claim)?).filter(|machine| machine.deleting)
}

/// That the management cluster is away, if it is: then nothing is known to have failed.
pub(super) fn away(fleet: &Fleet) -> Option<String> {
    let silent = fleet.hub.silent_for()?;
    (silent >= AWAY).then(|| {
        let why = fleet.hub.trouble().unwrap_or_default();
        format!("the management cluster has not answered for {} s: {why}", silent.as_secs())
    })
}

/// Whether what is asked of the management cluster now will not be done soon: it has answered nothing for long, or nothing yet, or
/// not the last question for a moment. An answer that is lost alone says nothing.
pub(super) fn is_away(fleet: &Fleet) -> bool {
    let Some(silent) = fleet.hub.silent_for() else { return true };
    silent >= AWAY || (silent >= A_MOMENT && fleet.hub.is_out_of_reach())
}

/// Whether a launch that has taken so long is given up. Not while the management cluster cannot be asked: what it has done
/// meanwhile is not seen.
pub(super) fn is_overdue(fleet: &Fleet, claim: &NodeClaim, age: Duration) -> bool {
    age >= timeout(fleet, claim) && !fleet.hub.is_out_of_reach() && away(fleet).is_none()
}

/// How long ago a NodeClaim was made. A leap of the clock that is doubted does not count: all launches under way would be given up.
pub(super) fn age(fleet: &Fleet, claim: &NodeClaim) -> Duration {
    let created = claim.metadata.creation_timestamp.as_ref();
    created.map(|created| fleet.clock.undoubted_since(created.0)).unwrap_or_default()
}

/// How far a NodeClaim with a Machine is.
pub(super) async fn progress(
    fleet: &Fleet,
    claim: &NodeClaim,
    machine: &Machine,
) -> Result<Launch, ProviderError> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let target = fleet.node_claims.target(claim);
    let standalone = target.as_ref().is_some_and(|target| target.standalone);
    // One that the Go provider bound may have been meant for another resource since.
    let belongs_to = fleet.mirror.scalable_of(machine).filter(|_| !standalone);
    let Some(id) = belongs_to.or(target.map(|target| target.id)) else {
        return Err(ProviderError::other(format!("Machine {} belongs to no scalable resource", machine.key)));
    };
    let domain = machine.failure_domain.clone().filter(|_| standalone);
    let target = Target { id: id.clone(), standalone, failure_domain: domain };
    if machine.deleting || is_our_mark(machine) {
        let why = format!("Machine {} is being deleted", machine.key);
        return Err(ProviderError::insufficient_capacity(why));
    }
    let blueprint = fleet.blueprint(&id);
    let reasons = blueprint.as_ref().map(|blueprint| blueprint.failure_reasons()).unwrap_or_default();
    if machine.node_name.is_none()
        && let Some(failure) = machine.failure_by(&reasons)
    {
        let why = format!("Machine {}: {}: {}", machine.key, failure.reason, failure.message);
        return Err(failed(fleet, &target, &failure.reason, &why));
    }
    let provider_id = match &machine.provider_id {
        Some(id) => Some(id.clone()),
        None => early_id(fleet, claim, machine).await,
    };
    let Some(provider_id) = &provider_id else {
        // Its NodeClaim may have waited long for its turn: the Machine's own time counts.
        let age = age(fleet, claim).min(fleet.clock.undoubted_since(machine.created));
        let (reason, message) = machine.waits_for();
        if reason == "InfraProvisioning" {
            fleet.journeys.bootstrapped(uid, fleet.clock.now());
        }
        let handle = LaunchHandle(target.to_string());
        if let Some(message) = away(fleet) {
            return Ok(Launch::Pending { reason: "ManagementUnavailable".to_owned(), message, handle });
        }
        if is_overdue(fleet, claim, age) {
            return Err(failed(fleet, &target, "NoProviderID", &message));
        }
        return Ok(Launch::Pending { reason: reason.to_owned(), message, handle });
    };
    observe_phases(fleet, claim, machine, &id);
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    let offers = class.map(|class| fleet.offers(&class));
    let entry = offers.as_ref().and_then(|offers| offers.entry_of(machine, &id));
    let instance_type = entry.as_ref().zip(offers.as_ref()).map(|(e, o)| &o.catalog.types[e.instance_type]);
    let list = conversion::resource_list;
    Ok(Launch::Launched(Box::new(LaunchedInstance {
        provider_id: provider_id.clone(),
        image_id: String::new(),
        labels: entry.as_ref().map(|entry| entry.labels.clone()).unwrap_or_default(),
        annotations: [(names::MACHINE.to_owned(), machine.key.to_string())].into(),
        capacity: instance_type.map(|t| list(&t.capacity)).unwrap_or_default(),
        allocatable: instance_type.map(|t| list(&conversion::allocatable(t))).unwrap_or_default(),
    })))
}

/// Counts how long a launch took, and each phase of it.
fn observe_phases(fleet: &Fleet, claim: &NodeClaim, machine: &Machine, id: &ScalableKey) {
    let Some(created) = &claim.metadata.creation_timestamp else { return };
    let took = fleet.clock.since(created.0).as_secs_f64();
    let resource = id.to_string();
    fleet.metrics.launch_seconds.observe(&[&resource], took);
    let phase = |phase: &str, took: f64| {
        fleet.metrics.phase_seconds.observe(&[&resource, phase], took.max(0.0));
    };
    // One that was there before its NodeClaim was not waited for. Times are the management cluster's, ours may differ.
    let since = |at: Timestamp| at.duration_since(created.0).as_secs_f64().max(0.0);
    let machine = since(machine.created);
    let stages = fleet.journeys.stages(claim.metadata.uid.as_deref().unwrap_or_default());
    let asked = stages.asked.map(|at| since(at).min(machine));
    if let Some(asked) = asked {
        phase("scale", asked);
    }
    phase("machine", machine - asked.unwrap_or_default());
    let bootstrapped = stages.bootstrapped.map(|at| since(at).max(machine));
    if let Some(bootstrapped) = bootstrapped {
        phase("bootstrap", bootstrapped - machine);
    }
    phase("infrastructure", took - bootstrapped.unwrap_or(machine));
}

/// What the launch of a NodeClaim that has a target will come to.
pub(crate) fn expected(fleet: &Fleet, claim: &NodeClaim) -> Option<LaunchedInstance> {
    let target = fleet.node_claims.target(claim)?;
    let class = fleet.node_class(&claim.spec.node_class_ref.name)?;
    let offers = fleet.offers(&class);
    let entry = offers.catalog.entry(&target.id, target.failure_domain.as_deref())?;
    let instance_type = &offers.catalog.types[entry.instance_type];
    Some(LaunchedInstance {
        labels: entry.labels.clone(),
        capacity: conversion::resource_list(&instance_type.capacity),
        allocatable: conversion::resource_list(&conversion::allocatable(instance_type)),
        ..LaunchedInstance::default()
    })
}

/// The id that the infrastructure knows before Cluster API has copied it to the Machine. Not where a launch may take longer than a node
/// may take to register: that time begins with the id.
async fn early_id(fleet: &Fleet, claim: &NodeClaim, machine: &Machine) -> Option<String> {
    let infrastructure = machine.infrastructure.as_ref()?;
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    let to_register = class.map_or(DEFAULT_REGISTRATION_TIMEOUT, |class| class.registration_timeout());
    // A young Machine changes several times a second, and each time the core is woken.
    if timeout(fleet, claim) > to_register || !fleet.journeys.may_ask_infrastructure(uid) {
        return None;
    }
    let found = fleet.hub.get(infrastructure).await.ok()?;
    Fields::of(&infrastructure.kind, &found).text("spec.providerID").ok().flatten()
}

/// How long this NodeClaim's launch may take.
pub(super) fn timeout(fleet: &Fleet, claim: &NodeClaim) -> Duration {
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    class.map_or(karpenter_cloudprovider::provider::DEFAULT_LAUNCH_TIMEOUT, |class| class.launch_timeout())
}

/// Takes note of a failure; the next NodeClaims go elsewhere for a while.
pub(super) fn failed(fleet: &Fleet, target: &Target, reason: &str, why: &str) -> ProviderError {
    fleet.failed(&target.id, target.failure_domain.as_deref(), why);
    fleet.metrics.launch_failures.inc(&[&target.id.to_string(), reason]);
    ProviderError::insufficient_capacity(why.to_owned())
}
