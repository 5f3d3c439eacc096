//! Delete: marks a NodeClaim's Machine and lets the level follow, or deletes it where there is no level. Asked again until the
//! Machine is known to be gone, and its infrastructure with it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::annotations::NODECLAIM_TERMINATION_TIMESTAMP;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodeclaim::{LAUNCHED, REGISTERED};
use karpenter_api::{ConditionStatus, NodeClaim};
use karpenter_cloudprovider::ProviderError;
use karpenter_runtime::events::{Event, EventType, reference};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::bindings::Binding;
use super::fleet::Fleet;
use super::ledger::{SURPLUS_MARK, is_our_mark};
use super::node_claims::Target;
use crate::client::fields::parse_key;
use crate::client::hub::HubError;
use crate::client::machine::Machine;
use crate::client::scalable::ScalableKey;
use crate::names;
use crate::planted::{Fault, is_planted};

/// How long a Machine may take to begin to go before that is told.
const STALLED: Duration = Duration::from_secs(60);
/// Why a deletion waits for as long as something is paused.
const PAUSED: &str = "Paused";
/// For how long after a fresh read what is seen of a Machine that is to go, or goes, is taken for how it is.
const FRESH: Duration = Duration::from_secs(5 * 60);

/// Starts removing a NodeClaim's Machine, or tells that there is none (any more), and what keeps it from going.
pub(crate) async fn delete(fleet: &Arc<Fleet>, claim: &NodeClaim) -> Result<(), ProviderError> {
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    if is_given_up(fleet, claim)
        && let Some(target) = fleet.node_claims.target(claim)
        && fleet.journeys.never_joined(&uid)
    {
        fleet.failed(&target.id, target.failure_domain.as_deref(), "its node did not register");
    }
    let unheeded = fleet.journeys.unheeded_for(&uid);
    let result = begin(fleet, claim).await;
    match &result {
        Ok(Begun::Going) => fleet.journeys.is_heeded(&uid),
        Ok(Begun::Waits(why)) if unheeded >= STALLED => fleet.recorder.publish(stalled(claim, why.clone())),
        Err(error) if unheeded >= STALLED && !error.is_not_found() => {
            fleet.recorder.publish(stalled(claim, error.to_string()));
        }
        _ => {}
    }
    result.map(drop)
}

/// Whether a NodeClaim ends because its instance did not become a node in time. Times have whole seconds.
fn is_given_up(fleet: &Fleet, claim: &NodeClaim) -> bool {
    let is_true = |kind: &str| claim.condition(kind).filter(|c| c.status == ConditionStatus::True);
    let Some(launched) = is_true(LAUNCHED).filter(|_| is_true(REGISTERED).is_none()) else { return false };
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    let patience = class.map(|class| class.registration_timeout());
    let ended = claim.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let (Some(patience), Some(ended)) = (patience, ended) else { return false };
    let waited = ended.as_second() - launched.since().as_second();
    u64::try_from(waited).is_ok_and(|waited| Duration::from_secs(waited + 2) >= patience)
}

/// How far a deletion has come.
enum Begun {
    /// The Machine is going.
    Going,
    /// It is not, and this is what it waits for.
    Waits(String),
}

async fn begin(fleet: &Arc<Fleet>, claim: &NodeClaim) -> Result<Begun, ProviderError> {
    fleet.ready().await?;
    let target = fleet.node_claims.target(claim);
    if let Some(uid) = claim.metadata.uid.as_deref() {
        fleet.node_claims.forget(uid);
    }
    let Some(machine) = find(fleet, claim).await? else {
        return without_machine(fleet, claim, target.as_ref()).await;
    };
    if let Some(infrastructure) = &machine.infrastructure {
        fleet.journeys.runs_on(claim.metadata.uid.as_deref().unwrap_or_default(), infrastructure.clone());
    }
    let id = fleet.mirror.scalable_of(&machine);
    // We are asked when the node is drained: nothing is left to wait for. What is yet to be marked is let go of by the same write.
    if machine.waits_for_us()
        && (machine.deleting || is_our_mark(&machine))
        && paused_now(fleet, &machine).await?.is_none()
    {
        super::hook::let_go(fleet, &machine).await.map_err(ProviderError::other)?;
        // The rest when the core asks again, of the Machine as it is then.
        return Ok(Begun::Going);
    }
    if machine.deleting {
        return being_deleted(fleet, claim, &machine, id.as_ref()).await;
    }
    let standalone = target.as_ref().is_some_and(|target| target.standalone) || id.is_none();
    // What somebody else marked is not marked for its end.
    let is_marked = is_our_mark(&machine);
    // Of one that is marked all that is to be written is the level, for which that is asked anew.
    let paused = match standalone || !is_marked {
        true => paused_now(fleet, &machine).await?,
        false => fleet.paused(&machine),
    };
    if let Some(what) = paused {
        let why = format!("Machine {}: {what}; it will be deleted when that ends", machine.key);
        // That is known at once.
        let event = Event::new(reference(claim), EventType::Normal, PAUSED, why.clone());
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        fleet.recorder.publish(event.dedupe_by([uid, why.clone()]));
        return Ok(Begun::Waits(why));
    }
    let made_from = target.as_ref().map(|target| &target.id).or(id.as_ref());
    let excludes_drain =
        made_from.and_then(|id| fleet.blueprint(id)).is_none_or(|from| from.excludes_drain());
    if standalone {
        return delete_machine(fleet, &machine, excludes_drain).await;
    }
    if !is_marked && !mark(fleet, claim, (&machine, id.as_ref()), excludes_drain).await? {
        return Ok(Begun::Waits(format!("Machine {} was changed meanwhile", machine.key)));
    }
    if let Some(scalable) = id.as_ref().filter(|_| is_planted(Fault::LowersAtEachCall)) {
        let scalable = fleet.hub.scalable(scalable).await.map_err(ProviderError::other)?;
        settle(fleet.hub.scale(&scalable, (scalable.replicas - 1).max(0)).await)?;
    }
    if let Some(id) = &id {
        fleet.poke(id);
    }
    Ok(Begun::Waits(why_it_is_there(fleet, &machine, id.as_ref())))
}

/// A NodeClaim's end when it has no Machine, or has it no more.
async fn without_machine(
    fleet: &Arc<Fleet>,
    claim: &NodeClaim,
    target: Option<&Target>,
) -> Result<Begun, ProviderError> {
    if let Some(target) = target {
        if target.standalone {
            super::standalone::sweep(fleet, claim, target).await.map_err(ProviderError::other)?;
        }
        fleet.poke(&target.id);
    }
    let left = super::remains::infrastructure(fleet, claim, target).await;
    if let Some(left) = left.map_err(ProviderError::other)? {
        return Ok(Begun::Waits(format!("its Machine is gone, and its infrastructure is not: {left}")));
    }
    fleet.forget(claim);
    Err(ProviderError::not_found("its Machine does not exist"))
}

/// A Machine that is on its way out: what holds it back is told, and once the time for that is over it is told to wait for nothing.
async fn being_deleted(
    fleet: &Fleet,
    claim: &NodeClaim,
    machine: &Machine,
    id: Option<&ScalableKey>,
) -> Result<Begun, ProviderError> {
    // The level follows what is deleting, whoever deleted it.
    if let Some(id) = id {
        fleet.poke(id);
    }
    tell_what_blocks(fleet, claim, machine);
    let is_late = is_overdue(fleet, claim) && !machine.gives_up_waiting();
    if is_late && paused_now(fleet, machine).await?.is_none() {
        // Its finalizers are Cluster API's; whether it waits for the node is for us to say.
        match fleet.hub.stop_waiting(machine).await {
            Err(error) if !error.is_conflict() && !error.is_not_found() => {
                return Err(ProviderError::other(error));
            }
            _ => fleet.metrics.writes.inc(&["hurry"]),
        }
    }
    Ok(Begun::Going)
}

/// Deletes a Machine of its own.
async fn delete_machine(
    fleet: &Fleet,
    machine: &Machine,
    excludes_drain: bool,
) -> Result<Begun, ProviderError> {
    let excluded = !excludes_drain || machine.annotations.contains_key(names::EXCLUDE_DRAIN);
    let mut annotations = json!({});
    if !excluded && !is_empty(fleet, machine).await {
        // Karpenter has drained the node as far as it does: Cluster API need not wait for what is left.
        annotations[names::EXCLUDE_DRAIN] = "".into();
    }
    if machine.waits_for_us() {
        annotations[names::OWN_HOOK] = Value::Null;
    }
    if annotations != json!({}) {
        let metadata = json!({"annotations": annotations});
        settle(fleet.hub.annotate_machine(machine, metadata).await.map(drop))?;
    }
    fleet.metrics.writes.inc(&["delete"]);
    settle(fleet.hub.delete_machine(machine).await).map(|()| Begun::Going)
}

/// Marks the Machine of a scalable resource as the one to go when the level falls; whether it was as it had been read.
async fn mark(
    fleet: &Fleet,
    claim: &NodeClaim,
    (machine, id): (&Machine, Option<&ScalableKey>),
    excludes_drain: bool,
) -> Result<bool, ProviderError> {
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    let mark = if uid.is_empty() { SURPLUS_MARK } else { &uid };
    let mut annotations = json!({names::DELETE_MACHINE: mark});
    if machine.waits_for_us() {
        annotations[names::OWN_HOOK] = Value::Null;
    }
    if excludes_drain {
        // Karpenter has drained the node; Cluster API need not do it again.
        annotations[names::EXCLUDE_DRAIN] = "".into();
    }
    if machine.claim().is_none() && !uid.is_empty() {
        // Bound by the Go provider, or its claim was taken off: whose mark this is has to be told by the claim.
        annotations[names::NODECLAIM_UID] = uid.into();
        annotations[names::NODECLAIM] = claim.metadata.name.clone().unwrap_or_default().into();
        annotations[names::OWNER] = fleet.owner.clone().into();
    }
    let metadata = json!({"annotations": annotations});
    match fleet.hub.annotate_machine(machine, metadata).await {
        Ok(_) => {
            fleet.metrics.writes.inc(&["mark"]);
            // Others end with it: the level falls for all of them at once.
            if let Some(id) = id {
                fleet.arrive(id);
            }
            Ok(true)
        }
        // Someone else wrote, or it has gone: the core asks again.
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
        Err(error) => Err(ProviderError::other(error)),
    }
}

/// What a Machine that is marked waits for.
fn why_it_is_there(fleet: &Fleet, machine: &Machine, id: Option<&ScalableKey>) -> String {
    let mut why = format!("Machine {} is marked, and its MachineSet has not taken it yet", machine.key);
    let Some(id) = id else { return why };
    let hold = fleet.mirror.scalable(id).and_then(|scalable| fleet.hold(&scalable));
    if let Some(hold) = hold {
        why.push_str(&format!(": {}: {}", hold.reason, hold.message));
    }
    if let Some(refused) = fleet.forbidden(id) {
        why.push_str(&format!(": {refused}"));
    }
    why
}

async fn paused_now(fleet: &Fleet, machine: &Machine) -> Result<Option<String>, ProviderError> {
    fleet.paused_now(machine).await.map_err(ProviderError::other)
}

/// Whether Cluster API would find nothing to drain on a Machine's node, so that it need not be told not to: one write less for almost
/// every node. What cannot be found out counts as something.
async fn is_empty(fleet: &Fleet, machine: &Machine) -> bool {
    // It drains no Node that it does not know.
    let Some(node) = &machine.node_name else { return true };
    let pods: Api<Pod> = Api::all(fleet.node_claims.client());
    let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
    pods.list(&there).await.is_ok_and(|pods| !pods.items.iter().any(is_drained_by_cluster_api))
}

/// Whether Cluster API evicts a pod, and waits for it: not those of DaemonSets, nor those that only kubelet knows of.
fn is_drained_by_cluster_api(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let is_daemon = owners.iter().any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
    let annotations = pod.metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"));
    !is_daemon && !is_mirror
}

fn settle(result: Result<(), HubError>) -> Result<(), ProviderError> {
    match result {
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        other => other.map_err(ProviderError::other),
    }
}

/// The Machine of a NodeClaim, as it is now; one that is on its way out, as it was seen of late. `None` only if the management cluster
/// says that there is none.
async fn find(fleet: &Fleet, claim: &NodeClaim) -> Result<Option<Machine>, ProviderError> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let provider_id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
    let binding = match fleet.mirror.machine_of(uid) {
        None => Binding::of(fleet, claim).await?,
        Some(_) => None,
    };
    // A management cluster that was restored from a backup may know neither of a claim nor that a Machine is Karpenter's.
    let named = claim.metadata.annotations.as_ref().and_then(|all| parse_key(all.get(names::MACHINE)?));
    let ours = |machine: &Machine| match machine.claim() {
        Some(found) => found.owner == fleet.owner && found.uid == uid,
        // Bound by the Go provider, or listed by us for a NodeClaim that is gone: the id decides, if there is one.
        None => {
            let is_its = match provider_id {
                Some(id) => machine.provider_id.as_deref() == Some(id),
                None => binding.as_ref().is_some_and(|binding| binding.is_to(machine)),
            };
            is_its
                && (machine.labels.contains_key(names::MEMBER) || named.as_ref() == Some(&machine.key))
                && binding.as_ref().is_none_or(|binding| binding.is_alone(machine))
        }
    };
    let annotated = || {
        let annotations = claim.metadata.annotations.as_ref()?;
        let text = annotations.get(names::MACHINE).or_else(|| annotations.get(names::GO_MACHINE))?;
        fleet.mirror.machine(&parse_key(text)?)
    };
    if let Some(seen) = fleet.mirror.machine_of(uid).or_else(annotated) {
        let fresh = fleet.journeys.since_read(uid).is_some_and(|since| since < FRESH);
        if fresh && ours(&seen) && is_leaving(&seen, uid) {
            return Ok(Some(Machine::clone(&seen)));
        }
        match fleet.hub.machine(&seen.key.name).await {
            Ok(machine) if ours(&machine) => {
                fleet.journeys.was_read(uid);
                return Ok(Some(machine));
            }
            // Another NodeClaim's, by now: ours may be elsewhere.
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(ProviderError::other(error)),
        }
    }
    // A claim whose answer was lost is in no mirror yet.
    let count = fleet.census.count(&fleet.hub).await.map_err(ProviderError::other)?;
    let found = count.machines.iter().filter(|machine| ours(machine));
    match found.min_by_key(|m| (m.deleting, m.created, m.key.clone())) {
        Some(machine) => Ok(Some(machine.clone())),
        None => count.is_complete().map(|()| None),
    }
}

/// Whether all has been done for a Machine of this NodeClaim to go: many of them are asked about again and again.
fn is_leaving(machine: &Machine, uid: &str) -> bool {
    let marked = machine.annotations.get(names::DELETE_MACHINE).is_some_and(|mark| mark == uid);
    (machine.deleting || marked) && !machine.waits_for_us()
}

/// Whether the time that the NodeClaim's termination may take is over.
fn is_overdue(fleet: &Fleet, claim: &NodeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    let by = annotations.and_then(|all| all.get(NODECLAIM_TERMINATION_TIMESTAMP));
    let by = by.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    by.is_some_and(|by| fleet.clock.undoubted_now() > by)
}

/// Tells what holds back a Machine that is being deleted.
fn tell_what_blocks(fleet: &Fleet, claim: &NodeClaim, machine: &Machine) {
    let told =
        crate::client::fields::condition(&machine.conditions, "Deleting").filter(|c| !c.message.is_empty());
    let hooks = machine.hooks();
    // Every deletion waits for something; only hooks are somebody's doing from the start.
    let since = machine.deleting_since.map(|since| fleet.clock.undoubted_since(since)).unwrap_or_default();
    if since < STALLED && hooks.is_empty() {
        return;
    }
    let message = match (told, hooks.is_empty()) {
        (Some(condition), _) => {
            format!("Machine {}: {}: {}", machine.key, condition.reason, condition.message)
        }
        (None, false) => format!("Machine {} waits for {}", machine.key, hooks.join(", ")),
        (None, true) => return,
    };
    fleet.recorder.publish(stalled(claim, message));
}

fn stalled(claim: &NodeClaim, message: String) -> Event {
    let key = [claim.metadata.uid.clone().unwrap_or_default(), message.clone()];
    Event::new(reference(claim), EventType::Normal, "DeletionStalled", message).dedupe_by(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cluster_api_leaves_on_a_node_is_nothing_to_drain() {
        let pod = |metadata: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": metadata})).expect("a pod")
        };
        let owner = |kind: &str| json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "u", "controller": true}]});
        assert!(!is_drained_by_cluster_api(&pod(owner("DaemonSet"))));
        assert!(!is_drained_by_cluster_api(&pod(
            json!({"annotations": {"kubernetes.io/config.mirror": "x"}})
        )));
        assert!(is_drained_by_cluster_api(&pod(owner("ReplicaSet"))));
        assert!(
            is_drained_by_cluster_api(&pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))),
            "it waits for it"
        );
    }
}
