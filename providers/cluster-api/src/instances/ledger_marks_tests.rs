//! The level waits until MachineSets have heard of what goes.

use super::*;

impl Case {
    /// After its marks were written, and MachineSets have heard of them.
    pub(super) fn marked_by(mut self, plan: Plan) -> Self {
        for (key, mark) in &plan.marks {
            let machine = self.machines.iter_mut().find(|m| m.key == *key).expect("a Machine");
            machine.annotations.insert(names::DELETE_MACHINE.into(), mark.clone());
        }
        self.sightings = plan.sightings;
        // That they are there is seen at once.
        self.sightings = self.plan().sightings;
        self.instant += HEARD;
        self
    }

    /// The next look, so many seconds later.
    fn later(mut self, sightings: Sightings, seconds: u64) -> Self {
        self.sightings = sightings;
        self.instant += Duration::from_secs(seconds);
        self
    }
}

#[test]
fn the_level_falls_once_machine_sets_have_heard_of_a_mark() {
    let case = Case::new(3).claimed(&["a", "b", "c"]);
    let before = case.plan().sightings;
    let case = Case { sightings: before, ..case };
    let seen = case.sightings.clone();
    // `mark` is for those of long ago.
    let mut case = Case { sightings: seen.clone(), ..case.mark("m-b", "uid-b") };
    case.sightings.leaving.clear();
    let plan = case.plan();
    assert_eq!((plan.replicas, plan.look_again, plan.removals.len()), (None, Some(HEARD), 0));
    let case = case.later(plan.sightings, 2);
    let plan = case.plan();
    assert_eq!((plan.replicas, plan.look_again), (None, Some(Duration::from_secs(1))));
    let case = case.later(plan.sightings, 1);
    assert_eq!(case.plan().replicas, Some(2));
}

#[test]
fn a_mark_that_is_news_holds_up_no_other() {
    let mut case = Case::new(4).claimed(&["a", "b", "c", "d"]).mark("m-b", "uid-b").mark("m-c", "uid-c");
    case.sightings.leaving.remove("uid-m-c");
    let plan = case.plan();
    assert_eq!(plan.replicas, Some(3), "for b, not for c");
    // In a rollout it matters which MachineSet is to give one.
    case.rollout = Some(Rollout { on_delete: true, ..rolling() });
    assert_eq!(case.plan().replicas, None);
}

#[test]
fn a_machine_that_somebody_deletes_lets_the_level_fall_once_machine_sets_have_heard_of_it() {
    let case = Case::new(3).claimed(&["a", "b", "c"]).up();
    let sightings = case.plan().sightings;
    let mut case = Case { sightings, ..case };
    case.machines[1].deleting = true;
    let plan = case.plan();
    assert_eq!((plan.replicas, plan.look_again.is_some_and(|rest| rest <= HEARD)), (None, true));
    let mut case = case.later(plan.sightings, 1);
    // Nor do they know yet that it is gone.
    case.machines.remove(1);
    let plan = case.plan();
    assert_eq!(plan.replicas, None);
    let case = case.later(plan.sightings, 2);
    let plan = case.plan();
    let replicas = plan.replicas;
    let later = case.later(plan.sightings, 400).plan();
    assert_eq!(later.replicas.or(replicas), Some(2));
}

#[test]
fn a_machine_that_vanished_between_two_looks_is_one_of_which_machine_sets_have_yet_to_hear() {
    let case = Case::new(3).claimed(&["a", "b", "c"]).up();
    let sightings = case.plan().sightings;
    let mut case = Case { sightings, ..case };
    case.machines.remove(1);
    assert_eq!(case.plan().sightings.leaving.keys().collect::<Vec<_>>(), ["uid-m-b"]);
}
