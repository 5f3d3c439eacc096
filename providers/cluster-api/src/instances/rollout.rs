//! Rollouts: whether the Machines of a MachineDeployment are being replaced, and how far its level may fall meanwhile. Pure.
//!
//! # What a lower level takes
//!
//! Cluster API divides the replicas among MachineSets. Of a lower level the newest one learns only when it is larger than that; what
//! else is too much goes from the old ones, the oldest first, and within a MachineSet those that are marked go first. So
//! lowering the level for one Machine may cost another one.
//!
//! A rolling update takes all Machines of old MachineSets in the end, at the pace that its strategy and the level allow:
//! only those of the newest have to be covered by marks. With `OnDelete` old Machines stay until somebody deletes them, so what
//! the oldest MachineSet would lose has to be marked too. While `spec.paused` is set all MachineSets shrink in proportion, and
//! nothing is lowered.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::DisruptionHold;
use karpenter_runtime::object_key::ObjectKey;

use super::fleet::Fleet;
use super::launch;
use crate::client::fields::condition;
use crate::client::machine::Machine;
use crate::client::mirror::Mirror;
use crate::client::scalable::{Scalable, ScalableKind};
use crate::names;

/// A rollout: Machines of several MachineSets at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rollout {
    /// The MachineSet of the newest revision, where new Machines appear, as their labels name it.
    pub(crate) newest_set: Option<String>,
    /// How many Machines that one is to have.
    pub(crate) newest_replicas: i32,
    /// The first of the others to shrink.
    pub(crate) oldest_set: Option<String>,
    /// Whether Machines are replaced only when somebody deletes them.
    pub(crate) on_delete: bool,
    /// Whether it stands still because somebody wants it to.
    pub(crate) paused: bool,
}

/// Whether the Machines of a MachineDeployment are being replaced: they belong to several of its MachineSets, or it says so.
pub(crate) fn rollout(scalable: &Scalable, sets: &[Arc<Scalable>], machines: &[Machine]) -> Option<Rollout> {
    if scalable.id.kind == ScalableKind::MachineSet {
        return None;
    }
    let with_machines: BTreeSet<&str> = machines.iter().filter_map(Machine::set_name).collect();
    let newest = sets.iter().max_by_key(|set| (set.revision(), set.id.key.clone()));
    let label = |set: &Arc<Scalable>| names::label_value(&set.id.key.name).into_owned();
    let newest_set = newest.map(label);
    let stale = || with_machines.iter().any(|name| Some(*name) != newest_set.as_deref());
    let said = || condition(&scalable.conditions, "RollingOut").is_some_and(|c| c.is_true());
    let rolling =
        with_machines.len() > 1 || (newest_set.is_some() && !with_machines.is_empty() && stale()) || said();
    let old = sets.iter().filter(|set| {
        let label = label(set);
        Some(&label) != newest_set.as_ref() && (set.replicas > 0 || with_machines.contains(label.as_str()))
    });
    let oldest = old.min_by_key(|set| (set.created, set.revision(), set.id.key.clone()));
    rolling.then(|| Rollout {
        oldest_set: oldest.map(label),
        newest_replicas: newest.map_or(0, |set| set.replicas),
        newest_set,
        on_delete: scalable.on_delete,
        paused: scalable.rollout_paused,
    })
}

/// What keeps a NodeClaim from being disrupted: while the management cluster is away its Machine can neither be ended nor replaced,
/// and what is asked for then is done when it is back, wanted or not.
pub(crate) fn disruption_hold(fleet: &Fleet, claim: &NodeClaim) -> Option<DisruptionHold> {
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let doing = doing(&fleet.mirror, claim);
    if !launch::is_away(fleet) {
        return doing;
    }
    // The same text all the time: whatever changes has everything thought over again.
    let reason = "the management cluster is out of reach".to_owned();
    Some(DisruptionHold { reason, leaving: doing.is_some_and(|doing| doing.leaving), stuck: true })
}

/// What Cluster API is doing with a NodeClaim's Machine. One of an `OnDelete` deployment waits for somebody to delete it: it is free
/// to be disrupted.
fn doing(mirror: &Mirror, claim: &NodeClaim) -> Option<DisruptionHold> {
    let machine = mirror.machine_of(claim.metadata.uid.as_deref()?)?;
    if machine.deleting {
        let reason = format!("Cluster API is deleting Machine {}", machine.key);
        return Some(DisruptionHold { reason, leaving: true, stuck: false });
    }
    if machine.is_updating() {
        let reason = format!("Cluster API is updating Machine {} in place", machine.key);
        return Some(DisruptionHold { reason, leaving: false, stuck: false });
    }
    let scalable = mirror.scalable(&mirror.scalable_of(&machine)?)?;
    let rolls = scalable.id.kind == ScalableKind::MachineDeployment
        && !scalable.on_delete
        && !scalable.rollout_paused;
    if !rolls || !is_rolling(&scalable, &mirror.sets_of(&scalable.id)) {
        return None;
    }
    Some(DisruptionHold { reason: format!("{} is rolling out", scalable.id), leaving: false, stuck: false })
}

/// Whether a MachineDeployment says so, or has replicas in MachineSets other than the newest.
fn is_rolling(scalable: &Scalable, sets: &[Arc<Scalable>]) -> bool {
    let newest = sets.iter().map(|set| set.revision()).max();
    condition(&scalable.conditions, "RollingOut").is_some_and(|c| c.is_true())
        || sets.iter().any(|set| set.replicas > 0 && Some(set.revision()) != newest)
}

/// What there is to lower.
#[derive(Clone, Debug)]
pub(crate) struct Excess<'a> {
    pub(crate) current: i32,
    /// What it should be, if nobody were in the way.
    pub(crate) wanted: i32,
    pub(crate) machines: &'a [Machine],
    /// Those that are marked, or about to be.
    pub(crate) marked: BTreeSet<ObjectKey>,
    /// Those that nobody needs and that may be marked besides, the most dispensable first.
    pub(crate) spare: Vec<&'a Machine>,
}

/// How far the level may fall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lowered {
    pub(crate) level: i32,
    /// What has to be marked first.
    pub(crate) marks: Vec<ObjectKey>,
}

impl Rollout {
    /// The lowest level at which MachineSets take nothing but what is marked, or what the rollout takes anyway.
    pub(crate) fn lowered(&self, excess: &Excess<'_>) -> Lowered {
        let stays = Lowered { level: excess.current, marks: Vec::new() };
        let Some(newest) = self.newest_set.as_deref().filter(|_| !self.paused) else { return stays };
        let is_in = |machine: &Machine, set: Option<&str>| set.is_some() && machine.set_name() == set;
        let size = |set: Option<&str>| count(excess.machines.iter().filter(|m| is_in(m, set)).count());
        let marked = |set: Option<&str>| {
            let marked = excess.machines.iter().filter(|m| excess.marked.contains(&m.key));
            count(marked.filter(|m| is_in(m, set)).count())
        };
        let newest_size = self.newest_replicas.max(size(Some(newest)));
        let is_old = |machine: &&&Machine| machine.set_name() != Some(newest);
        let (old, new): (Vec<&Machine>, Vec<&Machine>) = excess.spare.iter().partition(is_old);
        let oldest = self.oldest_set.as_deref();
        let (leaves_newest, leaves_oldest) = (marked(Some(newest)), marked(oldest));
        let takes_from_newest = |level: i32| (newest_size - level).max(0);
        // What goes already is the first that its MachineSet takes.
        let goes = |machine: &&Machine| machine.deleting && !excess.marked.contains(&machine.key);
        let going_of_oldest = count(excess.machines.iter().filter(goes).filter(|m| is_in(m, oldest)).count());
        let there = excess.current.max(count(excess.machines.len()));
        for level in excess.wanted..excess.current {
            let less = excess.current - level;
            let from_newest = usize::try_from(takes_from_newest(level) - leaves_newest).unwrap_or(0);
            let from_old = if self.on_delete {
                // All that is above the level, also above that of before, goes from there: a mark in the newest set saves nobody.
                let from_oldest = there - level - takes_from_newest(level) - leaves_oldest - going_of_oldest;
                usize::try_from(from_oldest).unwrap_or(0)
            } else {
                // They go before those that are in use.
                old.len().min(usize::try_from(less - leaves_oldest).unwrap_or(0))
            };
            let mut old = old.iter().filter(|m| !self.on_delete || m.set_name() == oldest);
            let marks: Vec<ObjectKey> = new
                .iter()
                .take(from_newest)
                .chain(old.by_ref().take(from_old))
                .map(|machine| machine.key.clone())
                .collect();
            // With a surge there are more Machines than replicas at any time. Without, more means that an earlier step is not done.
            let covered = count(excess.marked.len() + marks.len());
            let settled = !self.on_delete || level >= there - covered;
            if marks.len() == from_newest + from_old && settled {
                return Lowered { level, marks };
            }
        }
        stays
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::mirror::Watched;
    use crate::fixtures::{deployment, machine, object};

    fn set(name: &str, revision: &str, replicas: i32) -> Arc<Scalable> {
        let value = json!({
            "metadata": {
                "name": name, "namespace": "default", "annotations": {names::REVISION: revision},
                "creationTimestamp": format!("2026-01-01T00:00:0{revision}Z"),
            },
            "spec": {"replicas": replicas}, "status": Value::Null,
        });
        Arc::new(Scalable::read(ScalableKind::MachineSet, &object(value)).expect("a MachineSet"))
    }

    fn of(set: &str, name: &str) -> Machine {
        let mut machine = machine(name, 0, &[]);
        machine.labels.insert(names::SET_NAME.to_owned(), set.to_owned());
        machine
    }

    #[test]
    fn machines_of_a_set_whose_name_is_too_long_for_their_label_are_no_rollout() {
        let long = format!("{}-abcde", "m".repeat(60));
        let (old, new) = (set("m-1", "1", 0), set(&long, "2", 2));
        let machines = [of(&names::label_value(&long), "a"), of(&names::label_value(&long), "b")];
        assert_eq!(rollout(&deployment("m", &[]), &[old, new], &machines), None);
    }

    #[test]
    fn machines_of_two_revisions_are_a_rollout() {
        let sets = [set("m-1", "1", 1), set("m-2", "2", 1)];
        let plain = deployment("m", &[]);
        let newest =
            |machines: &[Machine]| rollout(&plain, &sets, machines).map(|rollout| rollout.newest_set);
        let second = Some(Some("m-2".to_owned()));
        assert_eq!(newest(&[of("m-1", "a"), of("m-2", "b")]), second);
        assert_eq!(newest(&[of("m-1", "a")]), second, "the newest has none yet");
        assert_eq!(newest(&[of("m-2", "b")]), None);
        assert_eq!(newest(&[]), None);
        let both = rollout(&plain, &sets, &[of("m-1", "a"), of("m-2", "b")]).expect("a rollout");
        assert_eq!((both.oldest_set.as_deref(), both.newest_replicas), (Some("m-1"), 1));
    }

    #[test]
    fn nodes_that_cluster_api_is_at_work_on_are_held() {
        let object = |kind: &str, name: &str, mut value: Value| {
            value["apiVersion"] = "cluster.x-k8s.io/v1beta2".into();
            value["kind"] = kind.into();
            value["metadata"]["name"] = name.into();
            value["metadata"]["namespace"] = "default".into();
            Arc::new(object(value))
        };
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "n-uid"},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
        }))
        .expect("a NodeClaim");
        let held = |strategy: &str, old_replicas: i32, metadata: Value| {
            let mirror = Mirror::default();
            let deployment = json!({
                "metadata": {}, "spec": {"clusterName": "c", "rollout": {"strategy": {"type": strategy}}, "template": {}},
            });
            mirror.apply(Watched::MachineDeployment, &object("MachineDeployment", "m", deployment));
            for (name, revision, replicas) in [("m-1", "1", old_replicas), ("m-2", "2", 1)] {
                let owner = json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "m", "uid": "u", "controller": true}]);
                let labels = json!({names::DEPLOYMENT_NAME: "m"});
                let metadata = json!({"annotations": {names::REVISION: revision}, "ownerReferences": owner, "labels": labels});
                let set = json!({"metadata": metadata, "spec": {"clusterName": "c", "replicas": replicas, "template": {}}});
                mirror.apply(Watched::MachineSet, &object("MachineSet", name, set));
            }
            let mut machine = json!({"metadata": metadata, "spec": {"clusterName": "c"}});
            machine["metadata"]["labels"] = json!({names::DEPLOYMENT_NAME: "m", names::SET_NAME: "m-2"});
            machine["metadata"]["annotations"][names::NODECLAIM_UID] = "n-uid".into();
            mirror.apply(Watched::Machine, &object("Machine", "x", machine));
            doing(&mirror, &claim).map(|hold| (hold.reason, hold.leaving))
        };
        let told = |text: &str, leaving: bool| Some((text.to_owned(), leaving));
        assert_eq!(held("RollingUpdate", 0, json!({})), None);
        assert_eq!(
            held("RollingUpdate", 1, json!({})),
            told("MachineDeployment default/m is rolling out", false)
        );
        assert_eq!(held("OnDelete", 1, json!({})), None, "it waits for somebody to delete it");
        let updating = json!({"annotations": {names::UPDATE_IN_PROGRESS: ""}});
        let text = "Cluster API is updating Machine default/x in place";
        assert_eq!(held("OnDelete", 1, updating), told(text, false));
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(held("OnDelete", 0, going), told("Cluster API is deleting Machine default/x", true));
    }

    /// From `old` to `new`, the names of which with an exclamation mark are marked and with a question mark are spare.
    fn lowered(on_delete: bool, current: i32, wanted: i32, old: &[&str], new: &[&str]) -> (i32, Vec<String>) {
        let machines: Vec<Machine> =
            old.iter().map(|name| of("m-1", name)).chain(new.iter().map(|name| of("m-2", name))).collect();
        let named = |end: char| machines.iter().filter(move |m| m.key.name.ends_with(end));
        let rollout = Rollout {
            newest_set: Some("m-2".to_owned()),
            newest_replicas: count(new.len()),
            oldest_set: (!old.is_empty()).then(|| "m-1".to_owned()),
            on_delete,
            paused: false,
        };
        let lowered = rollout.lowered(&Excess {
            current,
            wanted,
            machines: &machines,
            marked: named('!').map(|machine| machine.key.clone()).collect(),
            spare: named('?').collect(),
        });
        (lowered.level, lowered.marks.iter().map(|key| key.name.to_string()).collect())
    }

    #[test]
    fn of_the_newest_machine_set_only_what_is_marked_may_go() {
        assert_eq!(lowered(false, 3, 1, &["a", "b?"], &["c?", "d?"]), (1, vec!["c?".into(), "b?".into()]));
        assert_eq!(lowered(false, 3, 2, &["a"], &["b", "c", "d?"]), (2, vec!["d?".into()]));
        assert_eq!(lowered(false, 3, 1, &["a"], &["b", "c", "d?"]).0, 2, "c is in use");
        assert_eq!(lowered(false, 2, 1, &[], &["b", "c"]), (2, vec![]));
    }

    #[test]
    fn a_rolling_update_takes_what_is_old_anyway() {
        assert_eq!(lowered(false, 5, 4, &["a", "b", "c"], &["d", "e?"]), (4, vec![]));
    }

    #[test]
    fn without_a_rolling_update_what_the_oldest_machine_set_loses_must_be_marked() {
        assert_eq!(lowered(true, 4, 3, &["a", "b!"], &["c", "d"]), (3, vec![]));
        assert_eq!(
            lowered(true, 3, 2, &["a", "b!"], &["c", "d"]),
            (3, vec![]),
            "b is on its way for the level that is"
        );
        assert_eq!(lowered(true, 4, 3, &["a", "b"], &["c", "d!"]), (4, vec![]), "a or b would go");
        assert_eq!(
            lowered(true, 3, 2, &["a", "b!"], &["c", "d!"]),
            (3, vec![]),
            "b is on its way for the level that is, so a would go for d"
        );
        assert_eq!(lowered(true, 4, 3, &["a", "b?"], &["c", "d"]), (3, vec!["b?".into()]));
        assert_eq!(
            lowered(true, 4, 3, &["a", "b"], &["c", "d?"]),
            (4, vec![]),
            "and nothing is marked in vain"
        );
    }

    #[test]
    fn while_a_rollout_is_paused_nothing_is_lowered() {
        let machines = [of("m-1", "a"), of("m-2", "b")];
        let paused = Rollout { newest_set: Some("m-2".to_owned()), paused: true, ..Rollout::default() };
        let excess = Excess {
            current: 2,
            wanted: 0,
            machines: &machines,
            marked: machines.iter().map(|machine| machine.key.clone()).collect(),
            spare: Vec::new(),
        };
        assert_eq!(paused.lowered(&excess).level, 2);
        assert_eq!(Rollout { paused: false, ..paused }.lowered(&excess).level, 0);
    }
}
