//! What keeps a scalable resource from being scaled, or its Machines from coming: pause, a rollout that stands still, someone
//! else who owns the replicas, checks Cluster API makes before it creates Machines.

use std::sync::Arc;

use super::ledger;
use crate::client::cluster::Cluster;
use crate::client::fields::condition;
use crate::client::scalable::{MACHINES_CREATED, Scalable};
use crate::names;

/// What holds a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// What it means for us.
    pub(crate) kind: HoldKind,
    /// In one word, as a condition has it.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Hold {
    /// Whether Cluster API will not go on unless somebody mends something, such as a template that does not exist.
    pub(crate) fn is_broken(&self) -> bool {
        self.kind == HoldKind::Waiting && matches!(self.reason, BLOCKED | REFUSED)
    }

    /// Whether the management cluster refused what Cluster API asked of it, such as for a quota: there is nothing to wait for.
    pub(crate) fn is_refused(&self) -> bool {
        self.kind == HoldKind::Waiting && self.reason == REFUSED
    }

    /// Whether it is about whose the replicas are: Machines of their own are none.
    pub(crate) fn is_about_replicas(&self) -> bool {
        self.kind == HoldKind::NotOurs || self.reason == UNREADABLE
    }
}

/// Why Cluster API makes no Machines when it is none of the checks that pass by themselves.
const BLOCKED: &str = "ScalingUpBlocked";
/// Why Cluster API makes no Machines when the management cluster refuses a Machine or a clone for one.
const REFUSED: &str = "MachineCreationFailed";
/// Why nothing is launched while it cannot be told whose replicas are.
const UNREADABLE: &str = "ProtectedReplicasUnreadable";

/// What a hold means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldKind {
    /// Cluster API will go on by itself; waiting is all there is to do.
    Waiting,
    /// Nothing new is started; what goes may go.
    NoLaunches,
    /// The replicas are not ours to set.
    NotOurs,
    /// Nothing is written at all.
    NoWrites,
}

/// What holds the resource; the strictest of all. `launches_paused`: whether a pause of rollouts alone is no reason not to launch.
pub(crate) fn hold(
    scalable: &Scalable,
    sets: &[Arc<Scalable>],
    cluster: Option<&Cluster>,
    launches_paused: bool,
) -> Option<Hold> {
    let id = &scalable.id;
    if cluster.is_some_and(|cluster| cluster.paused) {
        return Some(paused("the Cluster".to_owned()));
    }
    if scalable.is_paused() {
        return Some(paused(id.to_string()));
    }
    if let Some(set) = sets.iter().find(|set| set.is_paused()) {
        return Some(paused(set.id.to_string()));
    }
    if let Some(manager) = scalable.managed_by_another() {
        let message = format!("{id}: its annotation {} names {manager:?}", names::REPLICAS_MANAGED_BY);
        return Some(Hold { kind: HoldKind::NotOurs, reason: "ReplicasManagedByAnother", message });
    }
    if let Some(replicas) = topology_replicas(scalable, cluster) {
        let message = format!(
            "{id}: the Cluster's topology sets {replicas} replicas and would set them again; remove replicas there"
        );
        return Some(Hold { kind: HoldKind::NotOurs, reason: "ReplicasOwnedByTopology", message });
    }
    if scalable.deleting {
        let message = format!("{id} is being deleted");
        return Some(Hold { kind: HoldKind::NoLaunches, reason: "Deleting", message });
    }
    // In the middle of one new Machines are divided among old and new ones, and only the newest are claimed.
    let is_mixed = || sets.iter().filter(|set| set.replicas > 0).count() > 1;
    if scalable.rollout_paused && (!launches_paused || is_mixed()) {
        let message = format!("{id}: spec.paused is set");
        return Some(Hold { kind: HoldKind::NoLaunches, reason: "Paused", message });
    }
    if let Some(Err(unreadable)) = ledger::epoch(scalable).map(|_| scalable.protected_replicas()) {
        let message = format!("{unreadable}; write how many replicas were there before Karpenter");
        return Some(Hold { kind: HoldKind::NoLaunches, reason: UNREADABLE, message });
    }
    blocked(scalable, sets)
}

fn paused(what: String) -> Hold {
    Hold { kind: HoldKind::NoWrites, reason: "Paused", message: format!("{what} is paused") }
}

fn topology_replicas(scalable: &Scalable, cluster: Option<&Cluster>) -> Option<i64> {
    if !scalable.labels.contains_key(names::TOPOLOGY_OWNED) {
        return None;
    }
    let name = scalable.labels.get(names::TOPOLOGY_DEPLOYMENT)?;
    cluster?.topology_replicas.get(name).copied()
}

/// Cluster API says why it creates no Machines in `ScalingUp`, and in older versions in `MachinesCreated`, where all of them say what was
/// refused. What an old MachineSet that has nothing to make said last is of no account.
fn blocked(scalable: &Scalable, sets: &[Arc<Scalable>]) -> Option<Hold> {
    let newest = sets.iter().map(|set| set.revision()).max();
    let makes = sets.iter().filter(|set| set.replicas > 0 || Some(set.revision()) == newest);
    let all = std::iter::once(scalable).chain(makes.map(|set| &**set));
    for resource in all {
        let told = condition(&resource.conditions, "ScalingUp")
            .filter(|condition| condition.is_true() && condition.message.contains(" is blocked "))
            .or_else(|| condition(&resource.conditions, MACHINES_CREATED).filter(|c| c.is_false()));
        let Some(told) = told else { continue };
        let preflight =
            told.message.contains("preflight check failed") || told.reason == "PreflightCheckFailed";
        let upgrading = preflight
            && ["ControlPlaneIsStable", "ControlPlaneVersionSkew", "VersionSkew"]
                .iter()
                .any(|check| told.message.contains(check));
        let reason = match (preflight, upgrading) {
            (_, true) => "ControlPlaneUpgrading",
            (true, false) => "PreflightCheckFailed",
            (false, false) if told.reason.ends_with("CloningFailed") || told.reason == REFUSED => REFUSED,
            (false, false) => BLOCKED,
        };
        let message = format!("{}: {}", resource.id, told.message.replace('\n', " "));
        return Some(Hold { kind: HoldKind::Waiting, reason, message });
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::scalable::ScalableKind;
    use crate::fixtures::{deployment, deployment_json, object, read_deployment};

    fn cluster(value: Value) -> Cluster {
        Cluster::read(&object(value)).expect("a Cluster")
    }

    fn set(name: &str, revision: &str, conditions: Value) -> Arc<Scalable> {
        let value = json!({
            "metadata": {"name": name, "namespace": "default", "annotations": {names::REVISION: revision}},
            "spec": {}, "status": {"conditions": conditions},
        });
        Arc::new(Scalable::read(ScalableKind::MachineSet, &object(value)).expect("a MachineSet"))
    }

    #[test]
    fn a_pause_anywhere_means_that_nothing_is_written() {
        let plain = deployment("m", &[]);
        for paused in [
            json!({"metadata": {}, "spec": {"paused": true}}),
            json!({"metadata": {"annotations": {names::PAUSED: ""}}}),
        ] {
            let hold = hold(&plain, &[], Some(&cluster(paused)), false).expect("a hold");
            assert_eq!((hold.kind, hold.reason), (HoldKind::NoWrites, "Paused"));
        }
        let annotated = hold(&deployment("m", &[(names::PAUSED, "true")]), &[], None, false).expect("a hold");
        assert_eq!(
            (annotated.kind, annotated.message.as_str()),
            (HoldKind::NoWrites, "MachineDeployment default/m is paused")
        );
        assert_eq!(hold(&plain, &[set("m-1", "1", json!([]))], None, false), None);
    }

    #[test]
    fn a_paused_rollout_holds_launches_only() {
        let mut value = deployment_json("m", &[]);
        value["spec"]["paused"] = true.into();
        let paused = read_deployment(value);
        let held = hold(&paused, &[], None, false).expect("a hold");
        assert_eq!((held.kind, held.reason), (HoldKind::NoLaunches, "Paused"));
    }

    #[test]
    fn a_paused_rollout_holds_nothing_where_that_is_wanted_unless_it_has_begun() {
        let mut value = deployment_json("m", &[]);
        value["spec"]["paused"] = true.into();
        let paused = read_deployment(value);
        let sized = |name: &str, replicas: i32| {
            Arc::new(Scalable { replicas, ..Scalable::clone(&set(name, "1", json!([]))) })
        };
        let settled = [sized("m-1", 0), sized("m-2", 3)];
        assert_eq!(hold(&paused, &settled, None, true), None);
        let begun = [sized("m-1", 1), sized("m-2", 3)];
        assert_eq!(hold(&paused, &begun, None, true).expect("a hold").kind, HoldKind::NoLaunches);
        let annotated = deployment("m", &[(names::PAUSED, "")]);
        assert_eq!(hold(&annotated, &[], None, true).expect("a hold").kind, HoldKind::NoWrites);
    }

    #[test]
    fn replicas_that_someone_else_owns_are_not_ours() {
        let managed =
            hold(&deployment("m", &[(names::REPLICAS_MANAGED_BY, "external-autoscaler")]), &[], None, false);
        assert_eq!(managed.expect("a hold").reason, "ReplicasManagedByAnother");
        assert_eq!(
            hold(&deployment("m", &[(names::REPLICAS_MANAGED_BY, "karpenter")]), &[], None, false),
            None
        );
        let mut value = deployment_json("m", &[]);
        value["metadata"]["labels"][names::TOPOLOGY_OWNED] = "".into();
        value["metadata"]["labels"][names::TOPOLOGY_DEPLOYMENT] = "workers".into();
        let owned = read_deployment(value);
        let topology = |replicas: Value| {
            let mut deployment = json!({"name": "workers"});
            if !replicas.is_null() {
                deployment["replicas"] = replicas;
            }
            cluster(
                json!({"metadata": {}, "spec": {"topology": {"workers": {"machineDeployments": [deployment]}}}}),
            )
        };
        assert_eq!(
            hold(&owned, &[], Some(&topology(json!(2))), false).expect("a hold").reason,
            "ReplicasOwnedByTopology"
        );
        assert_eq!(hold(&owned, &[], Some(&topology(Value::Null)), false), None);
    }

    #[test]
    fn what_was_refused_is_told_wherever_a_version_keeps_it() {
        let refused = json!([{
            "type": "MachinesCreated", "status": "False", "reason": "InfrastructureTemplateCloningFailed",
            "message": "quota exceeded",
        }]);
        let ready = json!([{"type": "MachinesReady", "status": "True"}]);
        for status in [
            json!({"conditions": refused}),
            json!({"conditions": refused, "v1beta2": {"conditions": ready}}),
            json!({"conditions": ready, "deprecated": {"v1beta1": {"conditions": refused}}}),
        ] {
            let read = |replicas: i32| {
                let value = json!({
                    "metadata": {"name": "m-1", "namespace": "default", "annotations": {names::REVISION: "1"}},
                    "spec": {"replicas": replicas}, "status": status,
                });
                Arc::new(Scalable::read(ScalableKind::MachineSet, &object(value)).expect("a MachineSet"))
            };
            let told = hold(&deployment("m", &[]), &[read(1)], None, false).expect("a hold");
            assert!(told.is_refused() && told.message.ends_with("quota exceeded"), "{told:?}");
            let newer = set("m-2", "2", json!([]));
            assert_eq!(hold(&deployment("m", &[]), &[read(0), newer], None, false), None, "that is over");
        }
    }

    #[test]
    fn what_cluster_api_waits_for_is_told_in_both_versions() {
        let upgrading = "Scaling up from 0 to 1 replicas is blocked because:\n* KubeadmControlPlane c is upgrading (\"ControlPlaneIsStable\" preflight check failed)";
        let missing =
            "Scaling up from 0 to 1 replicas is blocked because:\n* DockerMachineTemplate does not exist";
        for (condition, reason) in [
            (
                json!({"type": "ScalingUp", "status": "True", "message": upgrading}),
                Some("ControlPlaneUpgrading"),
            ),
            (json!({"type": "ScalingUp", "status": "True", "message": missing}), Some("ScalingUpBlocked")),
            (
                json!({"type": "ScalingUp", "status": "True", "message": "Scaling up from 0 to 1 replicas"}),
                None,
            ),
            (
                json!({"type": "MachinesCreated", "status": "False", "reason": "PreflightCheckFailed", "message": "kubeadm"}),
                Some("PreflightCheckFailed"),
            ),
        ] {
            let hold = hold(&deployment("m", &[]), &[set("m-1", "1", json!([condition]))], None, false);
            assert_eq!(hold.as_ref().map(|hold| hold.reason), reason);
            assert!(hold.is_none_or(|hold| hold.kind == HoldKind::Waiting));
        }
    }
}
