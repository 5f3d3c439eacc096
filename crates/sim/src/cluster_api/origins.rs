//! Who asked for a Machine, as it was seen when that was made: what a provider writes about it later is not taken for granted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;

use super::checks::{CLAIM, EPOCH, MARK, scalable_of};
use super::kinds::{annotation, is_standalone, number};
use crate::invariants::Step;
use crate::objects::{Change, Edit, Objects, is_deleting, uid};

/// The mark of a Machine nobody wants.
const SURPLUS: &str = "karpenter-surplus";

/// See the module.
#[derive(Default)]
pub(super) struct Origins {
    /// Machines, by uid, that were there before Karpenter scaled what they belong to, and were nobody's then.
    before: BTreeSet<String>,
    /// How many replicas of a resource were not Karpenter's when it began to scale that.
    protected: BTreeMap<ObjectKey, i64>,
}

impl Origins {
    /// Takes note of births, ends and beginnings.
    pub(super) fn note(&mut self, step: &Step<'_>) {
        for change in step.changes {
            match &**change {
                Change::Machine(edit) => self.note_machine(edit, step.objects),
                Change::MachineDeployment(edit) => self.note_enrolment(edit, step.objects),
                Change::MachineSet(edit) if edit.either().is_some_and(|set| is_standalone(set)) => {
                    self.note_enrolment(edit, step.objects);
                }
                _ => {}
            }
        }
    }

    /// Whether a Machine was there before Karpenter scaled what it belongs to.
    pub(super) fn is_foreign(&self, machine: &DynamicObject) -> bool {
        self.before.contains(uid(machine))
    }

    /// How many replicas of a resource were not Karpenter's in the beginning, if that was seen.
    pub(super) fn protected(&self, key: &ObjectKey) -> Option<i64> {
        self.protected.get(key).copied()
    }

    fn note_machine(&mut self, edit: &Edit<DynamicObject>, objects: &Objects) {
        match (&edit.old, &edit.new) {
            (None, Some(new)) => {
                let enrolled = scalable_of(objects, new).is_none_or(|scalable| is_enrolled(scalable));
                if !enrolled && annotation(new, CLAIM).is_none() {
                    self.before.insert(uid(&**new).to_owned());
                }
            }
            (Some(old), None) => drop(self.before.remove(uid(&**old))),
            _ => {}
        }
    }

    fn note_enrolment(&mut self, edit: &Edit<DynamicObject>, objects: &Objects) {
        let epoch = |object: &Option<Arc<DynamicObject>>| {
            object.as_ref().and_then(|object| annotation(object, EPOCH).map(str::to_owned))
        };
        let Some(new) = edit.new.as_ref().filter(|_| epoch(&edit.new).is_some()) else {
            self.protected.remove(&edit.key);
            return;
        };
        // One that is moved was there with what it says.
        if edit.old.is_none() || epoch(&edit.old) == epoch(&edit.new) {
            return;
        }
        let machines: Vec<_> = machines_of(objects, &edit.key).collect();
        // One that goes may have lost its replica, which is somebody else's then: nobody can tell any more.
        let stays = |machine: &&&Arc<DynamicObject>| {
            annotation(machine, CLAIM).is_some() && !is_deleting(&****machine)
        };
        let claimed = machines.iter().filter(stays).count();
        let others = machines.iter().filter(|machine| annotation(machine, CLAIM).is_none());
        let others: Vec<_> = others.map(|machine| uid(&***machine).to_owned()).collect();
        let protected = number(new, "/spec/replicas") - i64::try_from(claimed).unwrap_or(0);
        let there = i64::try_from(others.len()).unwrap_or(0);
        self.protected.insert(edit.key.clone(), protected.max(there));
        self.before.extend(others);
    }
}

/// Whether Karpenter scales a resource. One that is younger than that was moved, and so were its Machines: whose they are cannot be told by
/// their ages any more.
pub(super) fn is_enrolled(scalable: &DynamicObject) -> bool {
    let epoch = annotation(scalable, EPOCH).and_then(|text| text.parse::<Timestamp>().ok());
    let created = scalable.metadata.creation_timestamp.as_ref().map(|time| time.0);
    epoch.is_some_and(|epoch| created.is_none_or(|created| epoch.as_second() >= created.as_second()))
}

/// The Machines of a MachineDeployment, or of a MachineSet that belongs to none.
pub(super) fn machines_of<'a>(
    objects: &'a Objects,
    key: &'a ObjectKey,
) -> impl Iterator<Item = &'a Arc<DynamicObject>> {
    let machines = objects.machines.values();
    machines
        .filter(|machine| scalable_of(objects, machine).is_some_and(|found| ObjectKey::of(&**found) == *key))
}

/// Whether Karpenter marked a Machine: as nobody's, or for the end of its NodeClaim.
pub(super) fn is_marked_by_karpenter(machine: &DynamicObject) -> bool {
    let mark = annotation(machine, MARK);
    mark == Some(SURPLUS) || (mark.is_some() && mark == annotation(machine, CLAIM))
}

/// Whether a Machine is to stay, as far as Karpenter has said.
pub(super) fn stays(machine: &DynamicObject) -> bool {
    !is_deleting(machine) && !is_marked_by_karpenter(machine)
}
