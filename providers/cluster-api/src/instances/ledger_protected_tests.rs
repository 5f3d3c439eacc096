//! Whose replicas are: how many are protected, since when, and what becomes of that when somebody edits it.

use super::*;

/// A second of these tests, as an annotation has it.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).expect("a time")
}

#[test]
fn what_its_owner_adds_while_a_resource_takes_no_part_is_protected_when_it_takes_part_again() {
    let mut out = Case::new(6).claimed(&["a", "b", "c"]).free(&["x"]);
    out.rules.takes_part = false;
    assert!(out.plan().dismiss, "our time with it is over");
    let mut busy = Case::new(4).claimed(&["a", "b", "c"]).waiting(&["d"]);
    busy.rules.takes_part = false;
    assert!(!busy.plan().dismiss, "somebody waits for what is on its way");
    let mut shrinking = Case::new(3).claimed(&["a", "b", "c"]).free(&["x"]).mark("x", SURPLUS_MARK);
    shrinking.rules.takes_part = false;
    assert!(!shrinking.plan().dismiss, "what we asked for has yet to go");
    let mut again = Case::new(6).claimed(&["a", "b", "c"]).free(&["x", "y"]);
    again.protected = None;
    let plan = again.plan();
    assert_eq!(plan.enrol.map(|enrolment| enrolment.protected), Some(3), "one of them is not born yet");
    assert_eq!((plan.marks.len(), plan.replicas), (0, None));
}

#[test]
fn what_was_protected_is_not_made_up_for_once_it_may_be_adopted() {
    let mut case = Case::new(4).foreign(&["f1", "f2", "f3"]).claimed(&["a"]).waiting(&["n1", "n2", "n3"]);
    case.protected = Some(3);
    case.rules.adopt_unclaimed = true;
    for (claim, machine) in case.targeting.iter_mut().zip(["f1", "f2", "f3"]) {
        claim.bound_to = Some(ObjectKey::namespaced("default", machine));
    }
    let plan = case.plan();
    assert_eq!((plan.claims.len(), plan.replicas), (3, None), "{plan:?}");
    assert_eq!(plan.enrol.as_ref().map(|enrolment| enrolment.protected), Some(0), "going back is right, too");
    let mut replaced = Case::new(4).foreign(&["f1", "f2"]).free(&["f3"]).claimed(&["a"]);
    replaced.protected = Some(3);
    replaced.rules.adopt_unclaimed = true;
    replaced.sightings.free.insert("uid-f3".into(), replaced.instant);
    replaced.instant += Duration::from_secs(3600);
    let plan = replaced.plan();
    assert_eq!((marked(&plan), plan.replicas), (vec![], None), "it stood for one that was not ours");
    let born = plan.enrol.map(|enrolment| enrolment.epoch.as_second() - 1_767_225_600);
    assert_eq!(born, Some(EPOCH_SECOND + 6), "and is not ours by birth from now on");
}

#[test]
fn replicas_that_somebody_added_while_nobody_looked_are_theirs() {
    let mut case = Case::new(5).claimed(&["a", "b"]).free(&["f", "g"]).up();
    case.protected = Some(0);
    case.anew = true;
    let enrolment = case.plan().enrol.expect("an enrolment");
    assert_eq!(enrolment.protected, 3, "also what is not born yet");
    let newest = case.machines.iter().map(|machine| machine.created).max().expect("Machines");
    assert!(enrolment.epoch > newest);
    case.sightings.free = ["f", "g"].map(|name| (format!("uid-{name}"), case.instant)).into();
    case.instant += Duration::from_secs(3600);
    let plan = case.plan();
    assert_eq!((plan.marks.len(), plan.replicas), (0, None));
    case.anew = false;
    assert_eq!(case.plan().marks.len(), 2, "otherwise they are surplus");
}

#[test]
fn a_count_that_somebody_took_away_is_made_once_and_without_what_we_asked_for() {
    let lost = |mut case: Case| {
        case.edited = vec![(names::PROTECTED, None)];
        case
    };
    let plan = lost(Case::new(4).foreign(&["f"]).claimed(&["a", "b", "c"]).up()).plan();
    assert_eq!(plan.enrol, Some(Enrolment { epoch: at(EPOCH_SECOND), protected: 1 }), "nobody waits for it");
    let plan = lost(Case::new(4).claimed(&["a", "b", "c"]).waiting(&["d"]).up()).plan();
    assert_eq!(
        (plan.enrol.map(|now| now.protected), plan.replicas),
        (Some(0), None),
        "it is asked for already"
    );
    // One that Cluster API made in the place of a protected one cannot be told from surplus, and is left to its owner.
    let plan = lost(Case::new(4).claimed(&["a", "b", "c"]).free(&["x"]).up()).plan();
    assert_eq!((plan.enrol.map(|now| now.protected), plan.marks.len()), (Some(1), 0));
    let mut another = lost(Case::new(3).claimed(&["a", "b", "c"]));
    another.rules.takes_part = false;
    assert_eq!(another.plan().enrol, None);
}

#[test]
fn a_count_that_cannot_be_read_takes_nothing_away_and_gives_nobody_what_may_be_its_owners() {
    for text in ["two", "-1", "", "99999999999"] {
        let edited = |mut case: Case| {
            case.edited = vec![(names::PROTECTED, Some(text.to_owned()))];
            // As the hold has it.
            case.rules.rise = Rise::ToWhatIsThere;
            case
        };
        let plan = edited(Case::new(3).claimed(&["a", "b", "c"]).waiting(&["d"]).up()).plan();
        assert!(!plan.writes(), "{text}: {plan:?}");
        let mut free = edited(Case::new(4).claimed(&["a", "b"]).free(&["x", "y"]).waiting(&["d"]).up());
        free.sightings.free = ["x", "y"].map(|name| (format!("uid-{name}"), free.instant)).into();
        free.instant += Duration::from_secs(3600);
        assert!(!free.plan().writes(), "{text}: {:?}", free.plan());
        let ends = edited(Case::new(3).claimed(&["a", "b", "c"]).up().mark("m-c", "uid-c")).plan();
        assert_eq!((ends.replicas, keys(&ends.removals)), (None, vec!["m-c"]), "{text}");
        let mut adopting = edited(Case::new(3).foreign(&["f1", "f2"]).claimed(&["a"]));
        adopting.rules.adopt_unclaimed = true;
        assert_eq!(adopting.plan().enrol.map(|now| now.protected), Some(0), "{text}: it is of no account");
    }
    let mut spaced = Case::new(3).foreign(&["f"]).claimed(&["a"]).waiting(&["d"]).up();
    spaced.edited = vec![(names::PROTECTED, Some(" 2".to_owned()))];
    assert_eq!(spaced.plan().replicas, Some(4), "that can be read");
}

#[test]
fn an_epoch_that_is_yet_to_come_is_begun_anew_with_what_was_counted() {
    let edited = |second: i64, mut case: Case| {
        case.edited = vec![(names::EPOCH, Some(at(second).to_string()))];
        case
    };
    let newborn = || Case::new(5).foreign(&["f"]).claimed(&["a", "b", "c"]).free(&["x"]).waiting(&["d"]).up();
    let mut case = edited(5000, newborn());
    case.protected = Some(1);
    let plan = case.plan();
    let enrolment = plan.enrol.expect("an enrolment");
    assert_eq!((enrolment.epoch, enrolment.protected), (at(EPOCH_SECOND + 6), 2));
    // Our clock may be slow: an epoch that the management cluster's times bear out is right.
    case.edited = vec![(names::EPOCH, Some(at(EPOCH_SECOND + 6).to_string()))];
    assert_eq!(case.situation(0, plan_of).enrol, None);
}

fn plan_of(situation: &Situation<'_>) -> Plan {
    super::plan(situation)
}

#[test]
fn after_a_leap_of_the_management_clusters_clock_nothing_is_asked_for_again_and_again() {
    // Made when the clock was an hour ahead; what is made now is older.
    let mut case = Case::new(2).free(&["ahead"]).waiting(&["d"]).up();
    case.protected = Some(1);
    case.machines[0].created = at(4600);
    case.edited = vec![(names::EPOCH, Some(at(4601).to_string()))];
    assert_eq!(case.plan().replicas, None);
    let born = case.free(&["x"]).up();
    let plan = born.plan();
    assert_eq!((plan.replicas, plan.enrol), (None, None), "it is taken for another's, and no more are made");
    assert_eq!(born.plan_at(4700).replicas, Some(3), "as soon as what is made can be told from it");
}

#[test]
fn a_machine_that_may_not_be_written_to_serves_nobody_and_whoever_waits_gets_another() {
    let mut case = Case::new(2).claimed(&["a"]).free(&["x"]).waiting(&["b"]).up();
    assert_eq!(claimed(&case.plan()), ["x"]);
    case.set_aside = ["uid-x".to_owned()].into();
    let plan = case.plan();
    assert_eq!((plan.claims.len(), plan.replicas), (0, Some(3)));
    let mut reserved = Case::new(4).claimed(&["a"]).free(&["w", "x"]).waiting(&["b"]).up();
    reserved.protected = Some(1);
    reserved.set_aside = ["uid-x".to_owned()].into();
    assert_eq!(reserved.plan().claims.len(), 0, "it stands for no protected one");
    let mut orphan = Case::new(2).claimed(&["a", "b"]).up();
    orphan.gone = ["uid-a".to_owned()].into();
    assert_eq!(marked(&orphan.plan()), [("m-a", "uid-a")]);
    orphan.set_aside = ["uid-m-a".to_owned()].into();
    assert_eq!(marked(&orphan.plan()), [], "it stays, and all else goes on");
    orphan.rules.takes_part = false;
    assert_eq!(marked(&orphan.plan()), [], "also where the replicas are ours no more");
    let mut full = Case::new(2).claimed(&["a"]).free(&["x"]).up();
    full.max = Some(2);
    assert_eq!(full.room(), Some(1));
    full.set_aside = ["uid-x".to_owned()].into();
    assert_eq!(full.room(), Some(0), "nobody is sent for it");
}

#[test]
fn a_machine_that_is_to_be_adopted_is_no_surplus() {
    let mut case = Case::new(2).claimed(&["a"]).free(&["x"]).up();
    case.sightings.free.insert("uid-x".to_owned(), case.instant);
    case.instant += Duration::from_secs(3600);
    assert_eq!(marked(&case.plan()), [("x", "karpenter-surplus")]);
    case.awaited = ["uid-x".to_owned()].into();
    let plan = case.plan();
    assert_eq!((marked(&plan).len(), plan.replicas), (0, None));
    let waits = Case::new(2).claimed(&["a"]).free(&["x"]).waiting(&["b"]).up();
    let waits = Case { awaited: ["uid-x".to_owned()].into(), ..waits };
    assert_eq!(claimed(&waits.plan()), ["x"], "who waits gets it");
}

#[test]
fn a_node_claim_restored_under_another_uid_is_no_double_of_itself() {
    let bound = |name: &str| {
        let mut case = Case::new(1).claimed(&["a"]).waiting(&[name]);
        case.targeting[0].uid = "uid-restored".to_owned();
        case.targeting[0].bound_to = Some(ObjectKey::namespaced("default", "m-a"));
        case.plan().doubles.len()
    };
    assert_eq!((bound("a"), bound("other")), (0, 1));
}

#[test]
fn the_level_does_not_fall_without_marks_while_a_machine_is_changed_in_place() {
    // One replica has stayed unborn for long, and nobody waits for it.
    let mut case = Case::new(3).claimed(&["a", "b"]).up();
    case.sightings.unborn = Some(case.instant);
    case.instant += Duration::from_secs(3600);
    assert_eq!(case.plan().replicas, Some(2));
    case.machines[0].annotations.insert(names::UPDATE_IN_PROGRESS.to_owned(), String::new());
    assert_eq!(case.plan().replicas, None, "it would go before one that is born now");
}
