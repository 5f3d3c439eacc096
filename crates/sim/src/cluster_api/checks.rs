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
use crate::objects::{Change, Edit, Objects, is_active, is_deleting, node_of, uid};
use crate::selection::selects;

pub(super) const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";
pub(super) const EPOCH: &str = "karpenter.cluster.x-k8s.io/epoch";
const PROTECTED: &str = "karpenter.cluster.x-k8s.io/protected-replicas";
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
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
                    // Somebody else may take a claim off; Karpenter finds out whose the Machine is.
                    let is_taken_off = after.is_none() && &*step.entry.actor == "user";
                    if before.is_some() && before != after && same && !is_restored && !is_taken_off {
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

    /// Whether an object has been paused for so long that no write can be on its way any more.
    fn is_held(&self, object: &DynamicObject, now: Timestamp) -> bool {
        let since = self.paused.get(uid(object));
        since.is_some_and(|since| now.duration_since(*since).as_secs() > ON_ITS_WAY_SECONDS)
    }

    /// Judges a provider that makes what a Machine is to be made of, or deletes it.
    fn judge_clone(&self, step: &Step<'_>, edit: &Edit<DynamicObject>) -> Result<(), String> {
        let deed = match (&edit.old, &edit.new) {
            (None, Some(_)) => "made",
            (Some(old), new)
                if !is_deleting(&**old) && new.as_ref().is_none_or(|new| is_deleting(&**new)) =>
            {
                "deleted"
            }
            _ => return Ok(()),
        };
        let name = edit.either().map_or("", |clone| label(clone, CLUSTER_NAME));
        let cluster = step.objects.capi_clusters.get(&ObjectKey::namespaced(&*edit.key.namespace, name));
        match cluster.filter(|cluster| self.is_held(cluster, step.now)) {
            Some(_) => Err(format!("the clone {} was {deed} while {name} is paused", edit.key)),
            None => Ok(()),
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
                Change::SimMachine(edit) | Change::SimConfig(edit) => {
                    self.judge_clone(step, edit)?;
                    continue;
                }
                _ => continue,
            };
            let Some(new) = &edit.new else { continue };
            let cluster = super::deployments::cluster_of(step.objects, new);
            let owner = scalable_of(step.objects, new).filter(|_| !scaled).map(|owner| &**owner);
            let set = set_of(step.objects, new).map(|set| &**set);
            for held in [cluster, owner, set, Some(&**new)].into_iter().flatten() {
                if self.is_held(held, step.now) {
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
            // Of those that nobody claims the level need not keep what the rollout has besides it.
            let besides = (there - replicas).clamp(0, surge);
            let too_few = there < wanted - missing || replicas < wanted - besides.min(before);
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
#[path = "checks_tests.rs"]
mod tests;
