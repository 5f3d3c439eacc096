//! Rules a provider must keep towards Cluster API, whatever goes wrong. They are numbered O1 to O9.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::NodeClaim;
use karpenter_api::annotations::DO_NOT_DISRUPT;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodeclaim::REGISTERED;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::deployments::bounds;
use super::kinds::{
    Kind, annotation, condition, controller_of, is_paused, is_standalone, label, number, text,
};
use super::origins::{Origins, is_enrolled};
use super::topology;
use crate::invariants::commands::node_name;
use crate::invariants::{Invariant, Rest, Step};
use crate::objects::{Change, Objects, is_active, is_deleting, node_of, uid};
use crate::selection::selects;

pub(super) const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";
pub(super) const EPOCH: &str = "karpenter.cluster.x-k8s.io/epoch";
const PROTECTED: &str = "karpenter.cluster.x-k8s.io/protected-replicas";
const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
const SET_NAME: &str = "cluster.x-k8s.io/set-name";
pub(super) const MARK: &str = "cluster.x-k8s.io/delete-machine";
const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
pub(super) const MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";

/// The NodeClaim of this uid, unless it is on its way out.
fn live_claim<'a>(objects: &'a Objects, claim_uid: &str) -> Option<&'a NodeClaim> {
    let mut claims = objects.node_claims.values();
    claims.find(|claim| uid(&***claim) == claim_uid && !is_deleting(&***claim)).map(|claim| &**claim)
}

/// Whether a NodeClaim of this uid wants its Machine, now that nothing goes wrong any more: it is there to stay, or on its way out
/// and held up by a pod that refuses to be moved, which without a grace period it waits for as long as it takes.
fn wants_its_machine(objects: &Objects, claim_uid: &str) -> bool {
    let claim = objects.node_claims.values().find(|claim| uid(&***claim) == claim_uid);
    claim.is_some_and(|claim| !is_deleting(&**claim) || is_held_up(objects, claim))
}

/// Whether a NodeClaim is where it belongs: its Node has registered, or it is on its way out and held up. One that is deleted before
/// it could say that its Node has registered never says so.
pub fn is_settled(objects: &Objects, claim: &NodeClaim) -> bool {
    if is_deleting(claim) {
        return is_held_up(objects, claim);
    }
    claim.condition(REGISTERED).is_some_and(|condition| condition.status.as_str() == "True")
}

/// Whether a pod runs on a NodeClaim's Node that must not be disrupted, or whose budget has nothing left.
fn is_held_up(objects: &Objects, claim: &NodeClaim) -> bool {
    let told = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let Some(node) = told.or_else(|| node_name(objects, claim)) else { return false };
    let mut pods = objects.pods.values().filter(|pod| node_of(pod) == Some(node) && is_active(pod));
    pods.any(|pod| {
        let wish = pod.metadata.annotations.as_ref().and_then(|all| all.get(DO_NOT_DISRUPT));
        wish.is_some_and(|wish| wish == "true") || is_guarded(objects, pod)
    })
}

/// Whether a budget of the pod's has nothing left.
fn is_guarded(objects: &Objects, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    objects.disruption_budgets.values().any(|budget| {
        budget.metadata.namespace == pod.metadata.namespace
            && selects(budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()), &labels)
            && budget.status.as_ref().is_some_and(|status| status.disruptions_allowed.unwrap_or(0) <= 0)
    })
}

/// Whether a Machine is claimed anew for a NodeClaim of the same name: the one it was claimed for is gone, and that was restored.
fn is_restored(objects: &Objects, old: &DynamicObject, new: &DynamicObject, before: &str) -> bool {
    let named = |machine| annotation(machine, "karpenter.cluster.x-k8s.io/nodeclaim");
    let there = objects.node_claims.values().any(|claim| uid(&**claim) == before);
    !there && named(new).is_some() && named(old) == named(new)
}

/// O1: a Machine is claimed once and for all, and at rest every NodeClaim has one Machine.
#[derive(Default)]
pub struct OneMachinePerClaim;

impl Invariant for OneMachinePerClaim {
    fn name(&self) -> &'static str {
        "one Machine per NodeClaim"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O1"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            match &**change {
                Change::Machine(edit) => {
                    let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
                    let (before, after) = (annotation(old, CLAIM), annotation(new, CLAIM));
                    let is_restored =
                        before.is_some_and(|before| is_restored(step.objects, old, new, before));
                    let same = uid(&**old) == uid(&**new);
                    if before.is_some() && before != after && same && !is_restored {
                        return Err(format!(
                            "Machine {} was claimed for {before:?} and now for {after:?}",
                            edit.key
                        ));
                    }
                }
                Change::NodeClaim(edit) => {
                    let Some(new) = &edit.new else { continue };
                    let id = |claim: &NodeClaim| claim.status.as_ref()?.provider_id.clone();
                    let Some(ours) = id(new) else { continue };
                    let twin = step.objects.node_claims.iter().find(|(key, other)| {
                        **key != edit.key && id(other).as_ref() == Some(&ours) && !is_deleting(&***other)
                    });
                    if let Some((twin, _)) = twin {
                        return Err(format!("NodeClaims {} and {twin} are both {ours}", edit.key));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for machine in rest.objects.machines.values().filter(|machine| !is_deleting(&***machine)) {
            let name = machine.metadata.name.as_deref().unwrap_or_default();
            let Some(claim) = annotation(machine, CLAIM) else { continue };
            if let Some(other) = owners.insert(claim, name) {
                return Err(format!("Machines {other} and {name} are both claimed for {claim}"));
            }
            if !wants_its_machine(rest.objects, claim) {
                return Err(format!("Machine {name} outlives its NodeClaim {claim}"));
            }
        }
        Ok(())
    }
}

/// O2 and O6: outside a rollout no Machine of a live NodeClaim is deleted, nor one that was there before Karpenter, unless a person
/// or a health check wanted that: deleted it or its owner, or set fewer replicas than there were Machines. A provider marks and deletes
/// none of these, whatever others do.
pub struct ClaimedMachinesLive {
    provider: String,
    origins: Origins,
    /// Who set the replicas of a MachineDeployment, or of a MachineSet that belongs to none, last.
    set_by: BTreeMap<ObjectKey, Arc<str>>,
    /// MachineDeployments whose replicas somebody else lowered: until Karpenter has set them again, and for a moment after, for
    /// MachineSets may not have caught up.
    lowered: BTreeMap<ObjectKey, Timestamp>,
    /// When people marked Machines: a level that had fallen by then may take them.
    marked: BTreeMap<ObjectKey, Timestamp>,
}

/// Whether whoever does something owns what it is done to: people, and what they wrote into a topology.
pub(super) fn is_owner(actor: &str) -> bool {
    actor == "user" || actor == "topology-controller"
}

/// For how long MachineSets may still follow what somebody set before Karpenter put it right.
const CATCHING_UP_SECONDS: i64 = 60;

impl ClaimedMachinesLive {
    /// For a provider whose writes stand under names that start with `provider`.
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            origins: Origins::default(),
            set_by: BTreeMap::new(),
            lowered: BTreeMap::new(),
            marked: BTreeMap::new(),
        }
    }

    /// Judges a provider that marks a Machine, or deletes it.
    fn judge_deed(&self, objects: &Objects, old: &DynamicObject, new: &DynamicObject) -> Result<(), String> {
        let begins = !is_deleting(old) && is_deleting(new);
        let marks = annotation(old, MARK) != annotation(new, MARK) && annotation(new, MARK).is_some();
        if !begins && !marks {
            return Ok(());
        }
        let deed = if begins { "deleted" } else { "marked" };
        let name = new.metadata.name.as_deref().unwrap_or_default();
        match annotation(new, CLAIM) {
            Some(claim) if live_claim(objects, claim).is_some() && !has_twin(objects, new, claim) => {
                Err(format!("Machine {name} was {deed}, and its NodeClaim {claim} lives"))
            }
            None if self.origins.is_foreign(new) => {
                Err(format!("Machine {name} was {deed}, which was there before Karpenter"))
            }
            _ => Ok(()),
        }
    }

    /// Whether somebody else's replicas are what counts for a MachineDeployment, or did a moment ago.
    fn is_meddled_with(&self, key: &ObjectKey, now: Timestamp) -> bool {
        let since = |at: &Timestamp| now.as_second() - at.as_second() < CATCHING_UP_SECONDS;
        self.set_by.get(key).is_some_and(|actor| is_owner(actor)) || self.lowered.get(key).is_some_and(since)
    }

    fn note_levels(&mut self, step: &Step<'_>) {
        for change in step.changes {
            let edit = match &**change {
                Change::MachineDeployment(edit) => edit,
                Change::MachineSet(edit) if edit.either().is_some_and(|set| is_standalone(set)) => edit,
                _ => continue,
            };
            let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
            if number(old, "/spec/replicas") != number(new, "/spec/replicas") {
                let before = self.set_by.insert(edit.key.clone(), step.entry.actor.clone());
                if before.is_some_and(|before| is_owner(&before)) {
                    self.lowered.insert(edit.key.clone(), step.now);
                }
            }
        }
    }
}

impl Invariant for ClaimedMachinesLive {
    fn name(&self) -> &'static str {
        "Machines in use live"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O2", "O6"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let objects = step.objects;
        self.note_levels(step);
        self.origins.note(step);
        for change in step.changes {
            let Change::Machine(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
            if step.entry.actor.starts_with(&self.provider) {
                self.judge_deed(objects, old, new)?;
            }
            if &*step.entry.actor == "user" && annotation(old, MARK) != annotation(new, MARK) {
                self.marked.insert(edit.key.clone(), step.now);
            }
            let begins = !is_deleting(&**old) && is_deleting(&**new);
            let condemned = condition(new, "HealthCheckSucceeded") == "False"
                && condition(new, "OwnerRemediated") == "False";
            if !begins || &*step.entry.actor == "user" || condemned {
                continue;
            }
            let since = |at: &Timestamp| step.now.as_second() - at.as_second() < CATCHING_UP_SECONDS;
            if self.marked.get(&edit.key).is_some_and(since) {
                continue;
            }
            // Whoever deletes the MachineDeployment wants its Machines gone.
            let scalable = scalable_of(objects, new);
            if scalable.is_none_or(|scalable| is_deleting(&**scalable)) && is_scaled(new) {
                continue;
            }
            if scalable.is_some_and(|found| self.is_meddled_with(&ObjectKey::of(&**found), step.now)) {
                continue;
            }
            // A rolling update takes Machines of older revisions; nothing but a level that is too low takes others.
            if is_outdated(objects, new) && !scalable.is_some_and(|found| is_on_delete(found)) {
                continue;
            }
            let marked_by = annotation(new, MARK);
            match annotation(new, CLAIM) {
                Some(claim)
                    if marked_by == Some(claim)
                        && live_claim(objects, claim).is_some()
                        && !has_twin(objects, new, claim) =>
                {
                    return Err(format!("Machine {} was marked for the live NodeClaim {claim}", edit.key));
                }
                Some(claim) if marked_by == Some(claim) => {}
                Some(claim) if live_claim(objects, claim).is_some() => {
                    return Err(format!(
                        "Machine {} of the live NodeClaim {claim} is being deleted",
                        edit.key
                    ));
                }
                None if self.origins.is_foreign(new) => {
                    return Err(format!("Machine {}, which is not Karpenter's, is being deleted", edit.key));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether another Machine has the same claim: then one of them must go.
fn has_twin(objects: &Objects, machine: &DynamicObject, claim: &str) -> bool {
    let mut machines = objects.machines.values();
    machines.any(|other| {
        annotation(other, CLAIM) == Some(claim) && uid(&**other) != uid(machine) && !is_deleting(&**other)
    })
}

/// Whether a Machine belongs to a MachineSet.
fn is_scaled(machine: &DynamicObject) -> bool {
    controller_of(machine, Kind::MachineSet).is_some()
}

/// The MachineDeployment of a Machine, or the MachineSet if that belongs to none.
pub(super) fn scalable_of<'a>(
    objects: &'a Objects,
    machine: &DynamicObject,
) -> Option<&'a Arc<DynamicObject>> {
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let named = |name: &str| ObjectKey::namespaced(namespace, name);
    match label(machine, DEPLOYMENT_NAME) {
        "" => objects.machine_sets.get(&named(label(machine, SET_NAME))).filter(|set| is_standalone(set)),
        name => objects.machine_deployments.get(&named(name)),
    }
}

/// The MachineSet that controls a Machine.
pub(super) fn set_of<'a>(objects: &'a Objects, machine: &DynamicObject) -> Option<&'a Arc<DynamicObject>> {
    let owner = controller_of(machine, Kind::MachineSet)?;
    objects.machine_sets.values().find(|set| uid(&***set) == owner)
}

/// Whether a Machine's MachineSet is not the newest of its MachineDeployment.
fn is_outdated(objects: &Objects, machine: &DynamicObject) -> bool {
    let Some(deployment) = scalable_of(objects, machine) else { return false };
    set_of(objects, machine).is_some_and(|set| annotation(set, REVISION) != annotation(deployment, REVISION))
}

/// Whether a MachineDeployment leaves old Machines alone until somebody deletes them.
fn is_on_delete(deployment: &DynamicObject) -> bool {
    text(deployment, "/spec/rollout/strategy/type") == "OnDelete"
}

fn is_foreign(objects: &Objects, machine: &DynamicObject) -> bool {
    let Some(scalable) = scalable_of(objects, machine) else { return false };
    let epoch = annotation(scalable, EPOCH).filter(|_| is_enrolled(scalable));
    let epoch = epoch.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let born = machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
    match (epoch, born) {
        (Some(epoch), Some(born)) => born.as_second() < epoch.as_second(),
        // Nobody else scales it down in these worlds.
        _ => true,
    }
}

/// O5, and at rest O3: a provider's levels stay within the owner's bounds, nothing is written while paused, and in the end there are
/// as many Machines as somebody wants.
pub struct LevelsWithinBounds {
    provider: String,
    origins: Origins,
    /// Since when objects have been paused, by their uid.
    paused: BTreeMap<String, Timestamp>,
    /// Since when a Cluster's topology has set the replicas of MachineDeployments.
    owned: BTreeMap<ObjectKey, Timestamp>,
    /// When the provider last raised a MachineDeployment's level.
    raised: BTreeMap<ObjectKey, Timestamp>,
}

/// A write may be on its way when something is paused.
const ON_ITS_WAY_SECONDS: i64 = 30;
/// So long the level that a failed launch leaves behind may stay: during a rollout the provider waits for what Cluster API makes of it.
/// Nodes are tried to be had more cheaply for ever, so there may be one at any time.
const LEFT_OVER_SECONDS: i64 = 5 * 60;

impl LevelsWithinBounds {
    /// For a provider whose writes stand under names that start with `provider`.
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            origins: Origins::default(),
            paused: BTreeMap::new(),
            owned: BTreeMap::new(),
            raised: BTreeMap::new(),
        }
    }

    fn note_owned(&mut self, step: &Step<'_>) {
        if !step
            .changes
            .iter()
            .any(|change| matches!(**change, Change::CapiCluster(_) | Change::MachineDeployment(_)))
        {
            return;
        }
        for (key, deployment) in &step.objects.machine_deployments {
            let cluster = super::deployments::cluster_of(step.objects, deployment);
            if cluster.is_some_and(|cluster| topology::replicas_of(cluster, deployment).is_some()) {
                self.owned.entry(key.clone()).or_insert(step.now);
            } else {
                self.owned.remove(key);
            }
        }
    }
}

impl Invariant for LevelsWithinBounds {
    fn name(&self) -> &'static str {
        "levels within bounds"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["O3", "O5"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let (edit, is_cluster) = match &**change {
                Change::CapiCluster(edit) => (edit, true),
                Change::MachineDeployment(edit) | Change::MachineSet(edit) | Change::Machine(edit) => {
                    (edit, false)
                }
                _ => continue,
            };
            let Some(object) = edit.either() else { continue };
            let paused = |new: &Arc<DynamicObject>| is_paused(new, is_cluster.then_some(&**new));
            if edit.new.as_ref().is_some_and(paused) {
                self.paused.entry(uid(&**object).to_owned()).or_insert(step.now);
            } else {
                self.paused.remove(uid(&**object));
            }
        }
        self.note_owned(step);
        self.origins.note(step);
        if !step.entry.actor.starts_with(&self.provider) {
            return Ok(());
        }
        for change in step.changes {
            let (edit, scaled) = match &**change {
                Change::MachineDeployment(edit) | Change::MachineSet(edit) => (edit, true),
                Change::Machine(edit) => (edit, false),
                _ => continue,
            };
            let Some(new) = &edit.new else { continue };
            let cluster = super::deployments::cluster_of(step.objects, new);
            let owner = scalable_of(step.objects, new).filter(|_| !scaled).map(|owner| &**owner);
            let set = set_of(step.objects, new).map(|set| &**set);
            for held in [cluster, owner, set, Some(&**new)].into_iter().flatten() {
                let since = self.paused.get(uid(held));
                if since.is_some_and(|since| step.now.duration_since(*since).as_secs() > ON_ITS_WAY_SECONDS) {
                    let what = held.metadata.name.as_deref().unwrap_or_default();
                    return Err(format!("{} was written while {what} is paused", edit.key));
                }
            }
            let max = annotation(new, MAX_SIZE).and_then(|text| text.parse::<i64>().ok());
            let before = edit.old.as_ref().map_or(0, |old| number(old, "/spec/replicas"));
            let replicas = number(new, "/spec/replicas");
            if scaled && replicas > before {
                self.raised.insert(edit.key.clone(), step.now);
            }
            let since = self.owned.get(&edit.key).filter(|_| scaled && replicas != before);
            if since.is_some_and(|since| step.now.duration_since(*since).as_secs() > ON_ITS_WAY_SECONDS) {
                return Err(format!("{} was scaled to {replicas}, but its topology sets that", edit.key));
            }
            let min = annotation(new, MIN_SIZE).and_then(|text| text.parse::<i64>().ok());
            if scaled && replicas < before && min.is_some_and(|min| replicas < min) {
                return Err(format!("{} was scaled to {replicas}, its least size is {min:?}", edit.key));
            }
            if scaled && replicas > before && max.is_some_and(|max| replicas > max) {
                return Err(format!("{} was scaled to {replicas}, its greatest size is {max:?}", edit.key));
            }
        }
        Ok(())
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        let deployments = rest.objects.machine_deployments.iter().map(|entry| (DEPLOYMENT_NAME, entry));
        let sets = rest.objects.machine_sets.iter().filter(|(_, set)| is_standalone(set));
        for (named_by, (key, deployment)) in deployments.chain(sets.map(|entry| (SET_NAME, entry))) {
            if !is_enrolled(deployment) || is_deleting(&**deployment) {
                continue;
            }
            let protected =
                annotation(deployment, PROTECTED).and_then(|t| t.parse::<i64>().ok()).unwrap_or(0);
            let protected = protected.min(self.origins.protected(key).unwrap_or(protected));
            let machines = rest.objects.machines.values().filter(|machine| {
                label(machine, named_by) == &*key.name
                    && machine.metadata.namespace.as_deref() == Some(&*key.namespace)
            });
            let machines: Vec<_> = machines.collect();
            let claimed = machines
                .iter()
                .filter(|m| annotation(m, CLAIM).is_some_and(|claim| wants_its_machine(rest.objects, claim)));
            // Where those that were there before may be adopted, none is protected, and all stay.
            let before =
                machines.iter().filter(|m| annotation(m, CLAIM).is_none() && is_foreign(rest.objects, m));
            let before = i64::try_from(before.count()).unwrap_or(0);
            let least = annotation(deployment, MIN_SIZE).and_then(|t| t.parse::<i64>().ok()).unwrap_or(0);
            let wanted = i64::try_from(claimed.count()).unwrap_or(0) + protected.max(before);
            let wanted = wanted.max(least);
            let made_up_for = protected.saturating_sub(before).max(0);
            let there = i64::try_from(machines.len()).unwrap_or(0);
            let replicas = number(deployment, "/spec/replicas");
            // A rollout that has no room for the new ones has more of them, or fewer, for as long as it takes.
            let sets: BTreeSet<&str> = machines.iter().map(|m| label(m, SET_NAME)).collect();
            let rolls = sets.len() > 1;
            let (surge, missing) = if rolls { bounds(deployment) } else { (0, 0) };
            let raised = self.raised.get(key).map(|at| rest.now.duration_since(*at).as_secs());
            let left_over = rolls && raised.is_some_and(|ago| ago < LEFT_OVER_SECONDS);
            // Nobody takes what was made for a level that has fallen again, where new Machines find no room and old ones may not go.
            let is_stuck = rolls && raised.is_some();
            let too_few = there < wanted - missing || replicas < wanted;
            // What Cluster API has just put in the place of others is surplus only after a while.
            let young = |machine: &DynamicObject| {
                let born = machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
                born.is_some_and(|born| rest.now.duration_since(born).as_secs() < LEFT_OVER_SECONDS)
            };
            let young = machines.iter().filter(|m| annotation(m, CLAIM).is_none() && young(m)).count();
            let young = i64::try_from(young).unwrap_or(0);
            let too_many = (there - young > wanted + surge && !is_stuck) || replicas - young > wanted;
            let stays =
                there == replicas && gives_what_is_wanted(rest.objects, deployment, &machines, made_up_for);
            if too_few || (too_many && !left_over && !stays) {
                return Err(format!(
                    "{key} has {there} Machines and {replicas} replicas; {wanted} are wanted"
                ));
            }
        }
        let waits = rest.objects.node_claims.values().find(|claim| !is_settled(rest.objects, claim));
        match waits {
            Some(claim) => {
                Err(format!("NodeClaim {} still waits", claim.metadata.name.clone().unwrap_or_default()))
            }
            None => Ok(()),
        }
    }
}

/// Whether a lower level would cost an `OnDelete` deployment what somebody wants, so that what it has too many stays until its old
/// Machines are replaced: the oldest MachineSet gives first, and has none but wanted ones. `made_up_for` others stand for Machines that
/// were there before Karpenter and are gone.
fn gives_what_is_wanted(
    objects: &Objects,
    deployment: &DynamicObject,
    machines: &[&Arc<DynamicObject>],
    made_up_for: i64,
) -> bool {
    let revision = |machine: &DynamicObject| {
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let set = objects.machine_sets.get(&ObjectKey::namespaced(namespace, label(machine, SET_NAME)))?;
        annotation(set, REVISION)?.parse::<i64>().ok()
    };
    let newest = annotation(deployment, REVISION).and_then(|text| text.parse::<i64>().ok());
    let oldest = machines.iter().filter_map(|machine| revision(machine)).min();
    let unwanted = machines.iter().filter(|machine| revision(machine) == oldest).filter(|machine| {
        !annotation(machine, CLAIM)
            .map_or_else(|| is_foreign(objects, machine), |claim| wants_its_machine(objects, claim))
    });
    is_on_delete(deployment)
        && oldest.is_some()
        && oldest < newest
        && i64::try_from(unwanted.count()).is_ok_and(|unwanted| unwanted <= made_up_for)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster_api::steps::{Trial, claimed_for};
    use crate::objects::Edit;
    use crate::tape::Entry;

    const PAUSED: &str = "cluster.x-k8s.io/paused";

    fn read<K: serde::de::DeserializeOwned>(object: serde_json::Value) -> Arc<K> {
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// A NodeClaim on its way out, its Machine, and a pod on its Node with this wish not to be disrupted.
    fn draining(wish: &str) -> Objects {
        let mut objects = Objects::default();
        let claim = json!({
            "metadata": {"name": "n", "uid": "n-uid", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
            "status": {"nodeName": "node", "providerID": "sim://m"},
        });
        objects.node_claims.insert(ObjectKey::cluster("n"), read(claim));
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "fleet", "annotations": {CLAIM: "n-uid"}},
        });
        objects.machines.insert(ObjectKey::namespaced("fleet", "m"), read(machine));
        let pod = json!({
            "metadata": {"name": "p", "namespace": "default", "annotations": {DO_NOT_DISRUPT: wish}},
            "spec": {"nodeName": "node", "containers": []}, "status": {"phase": "Running"},
        });
        objects.pods.insert(ObjectKey::namespaced("default", "p"), read(pod));
        objects
    }

    #[test]
    fn a_machine_may_stay_for_as_long_as_a_pod_on_it_refuses_to_be_moved() {
        assert!(wants_its_machine(&draining("true"), "n-uid"));
    }

    #[test]
    fn a_node_claim_deleted_before_it_said_that_its_node_registered_is_held_up_by_a_pod_like_any_other() {
        let unsaid = |wish: &str| {
            let mut objects = draining(wish);
            let key = ObjectKey::cluster("n");
            let mut claim =
                objects.node_claims.get(&key).map(|claim| (**claim).clone()).expect("a NodeClaim");
            claim.status.get_or_insert_default().node_name = None;
            objects.node_claims.insert(key, claim.into());
            let node = json!({"metadata": {"name": "node"}, "spec": {"providerID": "sim://m"}});
            objects.nodes.insert(ObjectKey::cluster("node"), read(node));
            objects
        };
        let settled =
            |objects: &Objects| objects.node_claims.values().all(|claim| is_settled(objects, claim));
        assert!(wants_its_machine(&unsaid("true"), "n-uid"));
        assert!(settled(&unsaid("true")));
        assert!(!wants_its_machine(&unsaid("false"), "n-uid"), "nothing holds it up");
        assert!(!settled(&unsaid("false")));
    }

    #[test]
    fn a_machine_may_stay_for_as_long_as_a_budget_allows_no_eviction() {
        let mut objects = draining("false");
        let budget = |allowed: i32| {
            json!({
                "metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {}},
                "status": {
                    "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
                },
            })
        };
        let key = ObjectKey::namespaced("default", "b");
        objects.disruption_budgets.insert(key.clone(), read(budget(0)));
        assert!(wants_its_machine(&objects, "n-uid"));
        objects.disruption_budgets.insert(key, read(budget(1)));
        assert!(!wants_its_machine(&objects, "n-uid"));
    }

    #[test]
    fn a_machine_whose_node_claim_is_on_its_way_out_must_go_when_nothing_holds_it_up() {
        assert!(!wants_its_machine(&draining("false"), "n-uid"));
        let mut drained = draining("true");
        drained.pods.clear();
        assert!(!wants_its_machine(&drained, "n-uid"));
        assert!(!wants_its_machine(&draining("true"), "another"));
    }

    /// A MachineDeployment with this level, a claimed Machine and one of nobody's, in these MachineSets.
    fn with_one_too_many(replicas: i64, sets: [&str; 2]) -> Objects {
        let mut objects = Objects::default();
        let epoch = json!({EPOCH: "2026-01-01T00:00:00Z"});
        let deployment = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "d", "namespace": "fleet", "annotations": epoch}, "spec": {"replicas": replicas},
        });
        objects.machine_deployments.insert(ObjectKey::namespaced("fleet", "d"), read(deployment));
        let claim = json!({
            "metadata": {"name": "n", "uid": "n-uid"},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
            "status": {"providerID": "sim://m", "conditions": [{
                "type": REGISTERED, "status": "True", "reason": REGISTERED, "message": "",
                "lastTransitionTime": "2026-01-02T00:00:00Z",
            }]},
        });
        objects.node_claims.insert(ObjectKey::cluster("n"), read(claim));
        for (name, set, claim) in [("m", sets[0], json!({CLAIM: "n-uid"})), ("more", sets[1], json!({}))] {
            let machine = json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {
                    "name": name, "namespace": "fleet", "annotations": claim, "creationTimestamp": "2026-01-02T00:00:00Z",
                    "labels": {"cluster.x-k8s.io/deployment-name": "d", SET_NAME: set},
                },
            });
            objects.machines.insert(ObjectKey::namespaced("fleet", name), read(machine));
        }
        objects
    }

    fn judged(objects: &Objects, raised_ago: Option<i64>) -> bool {
        let now: Timestamp = "2026-01-02T01:00:00Z".parse().unwrap();
        let mut rule = LevelsWithinBounds::new("karpenter");
        if let Some(ago) = raised_ago {
            let at = now - jiff::SignedDuration::from_secs(ago);
            rule.raised.insert(ObjectKey::namespaced("fleet", "d"), at);
        }
        let inventory = crate::inventory::Inventory::default();
        let healed_for = std::time::Duration::from_secs(600);
        rule.check_at_rest(&Rest { objects, inventory: &inventory, now, healed_for }).is_ok()
    }

    #[test]
    fn at_rest_there_is_one_too_many_only_while_a_rollout_is_stuck_or_a_launch_has_just_failed() {
        assert!(!judged(&with_one_too_many(1, ["a", "a"]), None), "nobody wants it");
        assert!(judged(&with_one_too_many(1, ["a", "b"]), None), "its rollout has no room for it");
        assert!(!judged(&with_one_too_many(2, ["a", "b"]), None), "nobody wants the level");
        assert!(judged(&with_one_too_many(2, ["a", "b"]), Some(100)));
        assert!(!judged(&with_one_too_many(2, ["a", "b"]), Some(400)));
        assert!(!judged(&with_one_too_many(0, ["a", "b"]), Some(100)), "too few are always wrong");
        assert!(!judged(&with_one_too_many(2, ["a", "a"]), Some(100)), "without a rollout it falls at once");
    }

    #[test]
    fn at_rest_an_on_delete_deployment_may_keep_what_only_a_machine_in_use_could_be_given_up_for() {
        let case = |strategy: &str, sets: [&str; 2]| {
            let mut objects = with_one_too_many(2, sets);
            let key = ObjectKey::namespaced("fleet", "d");
            let mut deployment = DynamicObject::clone(&objects.machine_deployments[&key]);
            deployment.data["spec"]["rollout"] = json!({"strategy": {"type": strategy}});
            let revision =
                |of: &str| std::collections::BTreeMap::from([(REVISION.to_owned(), of.to_owned())]);
            deployment.metadata.annotations.get_or_insert_default().extend(revision("2"));
            objects.machine_deployments.insert(key, Arc::new(deployment));
            for (name, number) in [("a", "1"), ("b", "2")] {
                let mut set = DynamicObject::clone(&objects.machines[&ObjectKey::namespaced("fleet", "m")]);
                set.metadata.annotations = Some(revision(number));
                objects.machine_sets.insert(ObjectKey::namespaced("fleet", name), Arc::new(set));
            }
            judged(&objects, None)
        };
        assert!(case("OnDelete", ["a", "b"]), "a lower level takes the old one, which is claimed");
        assert!(!case("OnDelete", ["b", "a"]), "the old one is nobody's, and can go");
        assert!(!case("OnDelete", ["b", "b"]), "there is no old one");
        assert!(!case("RollingUpdate", ["a", "b"]), "the old one goes anyway");
    }

    #[test]
    fn at_rest_there_are_as_many_machines_as_the_owners_least_size_asks_for() {
        let case = |least: &str| {
            let mut objects = with_one_too_many(2, ["a", "a"]);
            let deployment = objects.machine_deployments.values_mut().next().expect("a MachineDeployment");
            let annotations = Arc::make_mut(deployment).metadata.annotations.get_or_insert_default();
            annotations.insert(MIN_SIZE.to_owned(), least.to_owned());
            judged(&objects, None)
        };
        assert!(!case("1"), "nobody wants the second one");
        assert!(case("2"));
        assert!(!case("3"), "one is missing");
    }

    #[derive(Clone, Copy)]
    enum Held {
        Cluster,
        Deployment,
        Topology,
    }

    /// Whether the provider may set these replicas after those, which something has been holding for so many seconds.
    fn may_scale(replicas: [i64; 2], annotations: serde_json::Value, held: Option<(Held, i64)>) -> bool {
        let deployment = |replicas: i64| -> Arc<DynamicObject> {
            read(json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                "metadata": {
                    "name": "d", "namespace": "fleet", "uid": "d-uid", "annotations": annotations,
                    "labels": {topology::OWNED: "", topology::DEPLOYMENT: "d"},
                },
                "spec": {"clusterName": "c", "replicas": replicas},
            }))
        };
        let sets_replicas = matches!(held, Some((Held::Topology, _)));
        let cluster = |paused: bool| -> Arc<DynamicObject> {
            let annotations = if paused { json!({PAUSED: ""}) } else { json!({}) };
            let said = if sets_replicas { json!({"name": "d", "replicas": 1}) } else { json!({"name": "d"}) };
            read(json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                "spec": {"topology": {"workers": {"machineDeployments": [said]}}},
                "metadata": {"name": "c", "namespace": "fleet", "uid": "c-uid", "annotations": annotations},
            }))
        };
        let mut objects = Objects::default();
        let (key, owner) = (ObjectKey::namespaced("fleet", "d"), ObjectKey::namespaced("fleet", "c"));
        objects.machine_deployments.insert(key.clone(), deployment(replicas[1]));
        objects.capi_clusters.insert(owner.clone(), cluster(false));
        let mut rule = LevelsWithinBounds::new("karpenter");
        let inventory = crate::inventory::Inventory::default();
        let mut step = |actor: &str, second: i64, change: Change| {
            let now = Timestamp::from_second(second).expect("a time");
            let entry = Entry {
                sequence: 0,
                at: std::time::Duration::ZERO,
                actor: actor.into(),
                deed: String::new(),
                outcome: String::new(),
                revision: 0,
            };
            let (entry, changes, objects) = (&entry, &[Arc::new(change)], &objects);
            let inventory = &inventory;
            rule.check(&Step { entry, body: &[], asked: None, changes, raw: &[], objects, inventory, now })
        };
        if let Some((what, ago)) = held {
            let change = match what {
                Held::Cluster => {
                    Change::CapiCluster(Edit { key: owner, old: None, new: Some(cluster(true)) })
                }
                Held::Topology => {
                    Change::CapiCluster(Edit { key: owner, old: None, new: Some(cluster(false)) })
                }
                Held::Deployment => {
                    let mut held = DynamicObject::clone(&deployment(replicas[0]));
                    held.metadata.annotations = Some(BTreeMap::from([(PAUSED.to_owned(), String::new())]));
                    Change::MachineDeployment(Edit { key: key.clone(), old: None, new: Some(held.into()) })
                }
            };
            step("user", 1000 - ago, change).expect("people may");
        }
        let edit = Edit { key, old: Some(deployment(replicas[0])), new: Some(deployment(replicas[1])) };
        step("karpenter-1", 1000, Change::MachineDeployment(edit)).is_ok()
    }

    #[test]
    fn a_level_is_set_within_the_owners_bounds_unless_it_comes_nearer_to_them() {
        let (min, max) = (json!({MIN_SIZE: "2"}), json!({MAX_SIZE: "2"}));
        assert!(may_scale([3, 2], min.clone(), None));
        assert!(!may_scale([2, 1], min.clone(), None));
        assert!(may_scale([0, 1], min, None));
        assert!(may_scale([1, 2], max.clone(), None));
        assert!(!may_scale([2, 3], max.clone(), None));
        assert!(may_scale([4, 3], max, None));
    }

    #[test]
    fn replicas_that_a_topology_sets_are_nobody_elses() {
        let may = |ago| may_scale([1, 2], json!({}), Some((Held::Topology, ago)));
        assert!(may(20), "a write may be on its way");
        assert!(!may(40));
        assert!(
            may_scale([1, 1], json!({}), Some((Held::Topology, 40))),
            "its annotations are another matter"
        );
    }

    #[test]
    fn nothing_is_written_to_what_has_been_paused_for_a_while_nor_to_what_belongs_to_it() {
        let may = |paused| may_scale([1, 2], json!({PAUSED: ""}), Some(paused));
        assert!(may((Held::Cluster, 20)) && may((Held::Deployment, 20)), "a write may be on its way");
        assert!(!may((Held::Cluster, 40)));
        assert!(!may((Held::Deployment, 40)));
    }

    #[test]
    fn at_rest_a_machine_set_of_no_deployment_has_as_many_machines_as_are_wanted() {
        let now: Timestamp = "2026-01-02T01:00:00Z".parse().unwrap();
        let judged = |objects: &Objects| {
            let mut rule = LevelsWithinBounds::new("karpenter");
            let inventory = crate::inventory::Inventory::default();
            let healed_for = std::time::Duration::from_secs(600);
            rule.check_at_rest(&Rest { objects, inventory: &inventory, now, healed_for }).is_ok()
        };
        let mut objects = with_one_too_many(2, ["d", "d"]);
        objects.machine_sets = std::mem::take(&mut objects.machine_deployments);
        for machine in objects.machines.values_mut() {
            let labels = Arc::make_mut(machine).metadata.labels.as_mut().unwrap();
            labels.remove(DEPLOYMENT_NAME);
        }
        assert!(!judged(&objects), "nobody wants the second one");
        objects.machines.remove(&ObjectKey::namespaced("fleet", "more"));
        let set = objects.machine_sets.values_mut().next().unwrap();
        Arc::make_mut(set).data["spec"]["replicas"] = 1.into();
        assert!(judged(&objects));
    }

    #[test]
    fn at_rest_nothing_is_asked_of_what_was_moved_since_karpenter_scaled_it() {
        let case = |created: &str| {
            let mut objects = with_one_too_many(2, ["a", "a"]);
            let deployment = objects.machine_deployments.values_mut().next().expect("a MachineDeployment");
            let time = serde_json::from_value(json!(created)).expect("a time");
            Arc::make_mut(deployment).metadata.creation_timestamp = Some(time);
            judged(&objects, None)
        };
        assert!(!case("2025-12-31T00:00:00Z"), "nobody wants the second one");
        assert!(case("2026-01-01T12:00:00Z"), "somebody may");
    }

    #[test]
    fn a_machine_is_claimed_anew_only_for_a_node_claim_that_was_restored() {
        let claim = |name: &str, uid: &str| json!({"karpenter.cluster.x-k8s.io/nodeclaim": name, CLAIM: uid});
        let trial = || {
            let mut trial = Trial::of(OneMachinePerClaim);
            trial.claim("karpenter", "a", json!({}), json!({})).expect("it may be made");
            trial.machine("karpenter", "m", claim("a", "a-uid")).expect("it may be claimed");
            trial
        };
        assert!(trial().machine("karpenter", "m", claim("a", "another")).is_err(), "it is in use");
        let mut gone = trial();
        gone.let_go("user", "a").expect("it may go");
        assert!(gone.machine("karpenter", "m", claim("b", "b-uid")).is_err(), "that is somebody else");
        let mut gone = trial();
        gone.let_go("user", "a").expect("it may go");
        gone.machine("karpenter", "m", claim("a", "another")).expect("it is back");
    }

    #[test]
    fn a_provider_marks_and_deletes_only_what_is_its_own_and_no_longer_in_use() {
        let trial = || {
            let mut trial = Trial::of(ClaimedMachinesLive::new("karpenter"));
            trial.deployment("user", 1, json!({})).expect("people may");
            trial.machine("machineset-controller", "theirs", json!({})).expect("Cluster API may");
            trial.deployment("karpenter", 3, json!({EPOCH: "2020-01-01T00:00:00Z"})).expect("it takes part");
            trial.machine("machineset-controller", "spare", json!({})).expect("Cluster API may");
            trial.claim("karpenter", "a", json!({}), json!({})).expect("it may be made");
            trial.machine("karpenter", "used", claimed_for("a")).expect("it may be claimed");
            trial
        };
        let surplus = json!({MARK: "karpenter-surplus"});
        trial().machine("karpenter", "spare", surplus.clone()).expect("nobody wants it");
        trial().delete_machine("karpenter", "spare").expect("nobody wants it");
        // Whatever the annotation says, which a provider wrote itself.
        let told = trial().machine("karpenter", "theirs", surplus).expect_err("it is not Karpenter's");
        assert_eq!(told, "Machine theirs was marked, which was there before Karpenter");
        assert!(trial().delete_machine("karpenter", "theirs").is_err());
        let marked = json!({CLAIM: "a-uid", MARK: "a-uid"});
        let told = trial().machine("karpenter", "used", marked.clone()).expect_err("it is in use");
        assert_eq!(told, "Machine used was marked, and its NodeClaim a-uid lives");
        assert!(trial().delete_machine("karpenter", "used").is_err());
        let mut over = trial();
        over.let_go("karpenter", "a").expect("it may go");
        over.machine("karpenter", "used", marked).expect("its NodeClaim is gone");
    }

    #[test]
    fn at_rest_no_node_claim_waits_for_its_node() {
        let mut objects = with_one_too_many(1, ["a", "b"]);
        let claim = objects.node_claims.values_mut().next().unwrap();
        Arc::make_mut(claim).status.as_mut().unwrap().conditions = None;
        let now: Timestamp = "2026-01-02T01:00:00Z".parse().unwrap();
        let inventory = crate::inventory::Inventory::default();
        let healed_for = std::time::Duration::from_secs(600);
        let rest = Rest { objects: &objects, inventory: &inventory, now, healed_for };
        let told = LevelsWithinBounds::new("karpenter").check_at_rest(&rest).unwrap_err();
        assert_eq!(told, "NodeClaim n still waits");
    }
}
