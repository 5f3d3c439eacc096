//! The level, and what becomes of Machines.

use super::*;
use crate::fixtures::{deployment_json, machine, read_deployment};

#[path = "ledger_protected_tests.rs"]
mod protected;

#[path = "ledger_marks_tests.rs"]
mod marks;

const OWNER: &str = "cluster-uid";
const EPOCH_SECOND: i64 = 100;

/// A resource with its Machines and NodeClaims, and what the ledger says.
struct Case {
    replicas: i32,
    max: Option<i32>,
    min: i32,
    protected: Option<i32>,
    /// What of its annotations somebody else wrote or took away.
    edited: Vec<(&'static str, Option<String>)>,
    /// The second at which the resource was made.
    created: Option<i64>,
    machines: Vec<Machine>,
    targeting: Vec<ClaimFacts>,
    ending: Vec<ClaimFacts>,
    gone: BTreeSet<String>,
    set_aside: BTreeSet<String>,
    awaited: BTreeSet<String>,
    rules: Rules,
    rollout: Option<Rollout>,
    in_sets: Option<i32>,
    anew: bool,
    sightings: Sightings,
    instant: Instant,
}

impl Case {
    fn new(replicas: i32) -> Self {
        Self {
            replicas,
            max: None,
            min: 0,
            protected: Some(0),
            edited: Vec::new(),
            created: None,
            machines: Vec::new(),
            targeting: Vec::new(),
            ending: Vec::new(),
            gone: BTreeSet::new(),
            set_aside: BTreeSet::new(),
            awaited: BTreeSet::new(),
            rules: Rules {
                takes_part: true,
                may_lower: true,
                adopt_unclaimed: false,
                surplus_after: Duration::from_secs(300),
                rise: Rise::ToWhatIsNeeded,
                most_launching: None,
            },
            rollout: None,
            in_sets: None,
            anew: false,
            // As at a look of long ago.
            sightings: Sightings { most: Some(at_rest(replicas)), ..Sightings::default() },
            instant: Instant::now() + Duration::from_secs(3600),
        }
    }

    fn waiting(mut self, names: &[&str]) -> Self {
        for (index, name) in names.iter().enumerate() {
            let created = Timestamp::from_second(1_767_225_600 + index as i64).expect("a time");
            let uid = format!("uid-{name}");
            self.targeting.push(ClaimFacts { name: (*name).into(), uid, created, ..ClaimFacts::default() });
        }
        self
    }

    fn claimed(mut self, names: &[&str]) -> Self {
        for name in names {
            let uid = format!("uid-{name}");
            let claim =
                [(names::NODECLAIM, *name), (names::NODECLAIM_UID, uid.as_str()), (names::OWNER, OWNER)];
            self.machines.push(machine(&format!("m-{name}"), EPOCH_SECOND + 1, &claim));
        }
        self
    }

    fn free(mut self, names: &[&str]) -> Self {
        self.machines.extend(names.iter().map(|name| machine(name, EPOCH_SECOND + 5, &[])));
        self
    }

    fn foreign(mut self, names: &[&str]) -> Self {
        self.machines.extend(names.iter().map(|name| machine(name, 1, &[])));
        self
    }

    fn mark(mut self, name: &str, mark: &str) -> Self {
        let machine = self.machines.iter_mut().find(|m| &*m.key.name == name).expect("a Machine");
        machine.annotations.insert(names::DELETE_MACHINE.into(), mark.into());
        self.sightings.leaving.insert(machine.uid.clone(), Instant::now());
        self
    }

    /// All that are there by now have healthy Nodes.
    fn up(mut self) -> Self {
        for machine in &mut self.machines {
            machine.node_name = Some(machine.key.name.to_string());
        }
        self
    }

    fn deleting(mut self, name: &str) -> Self {
        let machine = self.machines.iter_mut().find(|m| &*m.key.name == name).expect("a Machine");
        machine.deleting = true;
        self.sightings.leaving.insert(machine.uid.clone(), Instant::now());
        self
    }

    fn plan(&self) -> Plan {
        self.plan_at(1000)
    }

    /// What the ledger says at this second.
    fn plan_at(&self, second: i64) -> Plan {
        self.situation(second, plan)
    }

    fn room(&self) -> Option<usize> {
        self.situation(1000, room)
    }

    /// What is to be said of the situation at this second.
    fn situation<T>(&self, second: i64, say: impl FnOnce(&Situation<'_>) -> T) -> T {
        let mut value = deployment_json("m", &[]);
        value["spec"]["replicas"] = self.replicas.into();
        if let Some(created) = self.created {
            let created = Timestamp::from_second(1_767_225_600 + created).expect("a time");
            value["metadata"]["creationTimestamp"] = created.to_string().into();
        }
        if let Some(protected) = self.protected {
            let epoch = Timestamp::from_second(1_767_225_600 + EPOCH_SECOND).expect("a time");
            value["metadata"]["annotations"][names::EPOCH] = epoch.to_string().into();
            value["metadata"]["annotations"][names::PROTECTED] = protected.to_string().into();
        }
        let annotations = value["metadata"]["annotations"].as_object_mut().expect("annotations");
        for (key, text) in &self.edited {
            match text {
                Some(text) => annotations.insert((*key).to_owned(), text.as_str().into()),
                None => annotations.remove(*key),
            };
        }
        say(&Situation {
            scalable: &read_deployment(value),
            machines: &self.machines,
            in_sets: self.in_sets,
            bounds: (self.min, self.max),
            targeting: &self.targeting,
            ending: &self.ending,
            gone: &self.gone,
            set_aside: &self.set_aside,
            awaited: &self.awaited,
            owner: OWNER,
            rules: self.rules,
            rollout: self.rollout.as_ref(),
            anew: self.anew,
            sightings: &self.sightings,
            now: Timestamp::from_second(1_767_225_600 + second).expect("a time"),
            instant: self.instant,
        })
    }
}

/// Nothing has stirred for long.
fn at_rest(machines: i32) -> Most {
    Most { machines, there: machines, stirred: Instant::now() }
}

/// From the MachineSet m-1, where Machines of these tests are, to an empty m-2.
fn rolling() -> Rollout {
    let (newest_set, oldest_set) = (Some("m-2".into()), Some("m-1".into()));
    Rollout { newest_set, oldest_set, ..Rollout::default() }
}

fn keys(keys: &[ObjectKey]) -> Vec<&str> {
    keys.iter().map(|key| &*key.name).collect()
}

fn claimed(plan: &Plan) -> Vec<String> {
    plan.claims.iter().map(|(key, _)| key.name.to_string()).collect()
}

fn marked(plan: &Plan) -> Vec<(&str, &str)> {
    plan.marks.iter().map(|(key, mark)| (&*key.name, mark.as_str())).collect()
}

#[test]
fn the_level_is_those_that_have_and_those_that_wait_however_often_one_looks() {
    let case = Case::new(2).claimed(&["a", "b"]).waiting(&["c", "d", "e"]);
    assert_eq!(case.plan().replicas, Some(5));
    let after = Case::new(5).claimed(&["a", "b"]).waiting(&["c", "d", "e"]);
    assert!(!after.plan().writes(), "nothing appears, and nothing more is asked for");
}

#[test]
fn free_machines_go_to_those_that_wait_oldest_first() {
    let plan = Case::new(3).free(&["x", "y"]).waiting(&["a", "b", "c"]).plan();
    let pairs: Vec<(&str, &str)> =
        plan.claims.iter().map(|(key, claim)| (&*key.name, claim.name.as_str())).collect();
    assert_eq!(pairs, [("x", "a"), ("y", "b")]);
    assert_eq!(plan.replicas, None, "the third is on its way");
}

#[test]
fn a_resource_nobody_wants_is_not_touched() {
    let mut case = Case::new(3).foreign(&["f1", "f2", "f3"]);
    case.protected = None;
    assert!(!case.plan().writes());
}

#[test]
fn machines_that_were_there_before_are_counted_and_never_claimed() {
    let mut case = Case::new(3).foreign(&["f1", "f2", "f3"]).waiting(&["a", "b"]);
    case.protected = None;
    let plan = case.plan();
    assert_eq!(plan.enrol.as_ref().expect("enrolment").protected, 3);
    assert_eq!((plan.replicas, plan.claims.len()), (Some(5), 0));
    let mut adopting = Case::new(3).foreign(&["f1", "f2", "f3"]).waiting(&["a", "b"]);
    adopting.protected = None;
    adopting.rules.adopt_unclaimed = true;
    let plan = adopting.plan();
    assert_eq!((plan.replicas, plan.claims.len()), (None, 2), "with adoption they serve");
}

#[test]
fn a_foreign_machine_that_cluster_api_replaced_stays_foreign_in_number() {
    let mut case = Case::new(4).foreign(&["f1", "f2"]).free(&["replaced"]).claimed(&["a"]);
    case.protected = Some(3);
    case.sightings.free.insert("uid-replaced".into(), case.instant);
    case.instant += Duration::from_secs(3600);
    let plan = case.plan();
    assert!(plan.marks.is_empty() && plan.replicas.is_none(), "{plan:?}");
}

#[test]
fn the_bounds_hold_and_the_latest_are_turned_away() {
    let mut case =
        Case::new(9).claimed(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]).waiting(&["a", "b", "c"]);
    case.max = Some(10);
    let plan = case.plan();
    assert_eq!(plan.replicas, Some(10));
    let refused: Vec<&str> = plan.refused.iter().map(|claim| claim.name.as_str()).collect();
    assert_eq!(refused, ["c", "b"]);
    let mut idle = Case::new(2).claimed(&["a"]).mark("m-a", "uid-a");
    idle.min = 2;
    assert_eq!(idle.plan().replicas, None, "not below the least size");
}

#[test]
fn there_is_room_for_those_whom_the_ledger_does_not_turn_away() {
    let at_most = |max: i32, case: Case| Case { max: Some(max), ..case };
    let protecting = |protected: Option<i32>, case: Case| Case { protected, ..case };
    let adopting = |mut case: Case| {
        case.rules.adopt_unclaimed = true;
        case
    };
    let mut failed = Case::new(3).claimed(&["a", "b"]).free(&["x"]);
    failed.machines[2].failure =
        Some(crate::client::machine::Failure { reason: "CreateError".into(), message: String::new() });
    let mut rolling_out = Case::new(3).claimed(&["a", "b"]).free(&["x"]);
    rolling_out.rollout = Some(rolling());
    let foreign = || Case::new(3).foreign(&["f1", "f2", "f3"]);
    for (what, room, case) in [
        ("one more", 1, at_most(3, Case::new(2).claimed(&["a", "b"]))),
        ("somebody waits for it", 0, at_most(3, Case::new(3).claimed(&["a", "b"]).waiting(&["c"]))),
        ("one that nobody has is as good", 1, at_most(3, Case::new(3).claimed(&["a", "b"]).free(&["x"]))),
        (
            "one of two that nobody has",
            1,
            at_most(3, Case::new(3).claimed(&["a"]).free(&["x", "y"]).waiting(&["c"])),
        ),
        ("it failed", 0, at_most(3, failed)),
        ("it comes in another's place", 0, at_most(3, rolling_out)),
        ("it is about to be taken away", 0, at_most(3, Case::new(2).claimed(&["a", "b"]).free(&["x"]))),
        (
            "one that was replaced is not ours",
            0,
            at_most(3, protecting(Some(2), Case::new(3).foreign(&["f"]).claimed(&["a"]))),
        ),
        ("its owner asked for those unborn", 0, at_most(3, protecting(None, Case::new(3).foreign(&["f"])))),
        ("all are its owner's", 0, at_most(3, protecting(None, foreign()))),
        ("all may serve", 3, at_most(3, protecting(None, adopting(foreign())))),
        ("all may serve, but two", 1, at_most(3, protecting(None, adopting(foreign().waiting(&["a", "b"]))))),
    ] {
        assert_eq!(case.room(), Some(room), "{what}");
        let names: Vec<String> = (0..room).map(|number| format!("more-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let plan = case.waiting(&names).plan();
        assert!(plan.refused.is_empty(), "{what}: {plan:?}");
    }
    assert_eq!(Case::new(2).claimed(&["a", "b"]).room(), None, "any number");
}

#[test]
fn a_marked_machine_lowers_the_level_once() {
    let case = Case::new(3).claimed(&["a", "b", "c"]).mark("m-b", "uid-b");
    let plan = case.plan();
    assert_eq!((plan.replicas, plan.removals.len()), (Some(2), 0), "the MachineSet takes it");
    let again = Case::new(2).claimed(&["a", "b", "c"]).mark("m-b", "uid-b");
    assert!(!again.plan().writes(), "the MachineSet is slow, that is all");
    let going = Case::new(2).claimed(&["a", "b", "c"]).mark("m-b", "uid-b").deleting("m-b");
    assert!(!going.plan().writes());
}

#[test]
fn a_machine_that_someone_deletes_is_not_replaced() {
    let case = Case::new(3).claimed(&["a", "b", "c"]).up().deleting("m-b");
    assert_eq!(case.plan().replicas, Some(2));
}

#[test]
fn a_machine_that_someone_deletes_may_be_replaced_while_another_has_no_node_yet() {
    // It may be gone, and its replacement there, before the MachineSet hears of the level; which of the two without a Node it would take
    // then is for nobody to say.
    let mut case = Case::new(3).claimed(&["a", "b"]).up().claimed(&["c"]).deleting("m-b");
    assert_eq!(case.plan().replicas, None);
    case.machines.retain(|machine| !machine.deleting);
    assert_eq!(case.plan().replicas, None, "nor is it lowered before the replacement");
    let case = case.free(&["replacement"]);
    let first = case.plan();
    assert_eq!((first.replicas, marked(&first)), (None, vec![]));
    let late = Case { sightings: first.sightings, instant: case.instant + Duration::from_secs(300), ..case };
    let plan = late.plan();
    assert_eq!(marked(&plan), [("replacement", SURPLUS_MARK)], "it goes by name");
    assert_eq!(late.marked_by(plan).plan().replicas, Some(2));
}

#[test]
fn a_marked_machine_whose_place_is_wanted_is_deleted_directly() {
    let case = Case::new(3).claimed(&["a", "b", "c"]).mark("m-b", "uid-b").waiting(&["d"]);
    let plan = case.plan();
    assert_eq!((plan.replicas, keys(&plan.removals)), (None, vec!["m-b"]));
    let foreign_mark = Case::new(3).claimed(&["a", "b", "c"]).mark("m-b", "by hand").waiting(&["d"]);
    assert!(foreign_mark.plan().removals.is_empty(), "what others mark is theirs to delete");
}

#[test]
fn a_marked_machine_that_the_level_falls_by_is_not_deleted_before_its_machine_set_has_heard_of_the_level() {
    // Four are asked for, one of them is unborn, b goes and d waits: three will do, for b is marked. Deleted meanwhile, b would be made
    // again beside the fourth, and of the four that are left then none is marked.
    let mut case = Case::new(4).claimed(&["a", "b", "c"]).mark("m-b", "uid-b").waiting(&["d"]);
    case.in_sets = Some(4);
    let fell = case.plan();
    assert_eq!((fell.replicas, fell.removals.len()), (Some(3), 0));
    assert_eq!(fell.look_again, Some(Duration::from_secs(5)));
    case.replicas = 3;
    case.sightings = fell.sightings;
    case.instant += Duration::from_secs(1);
    case.in_sets = Some(3);
    let soon = case.plan();
    assert!(!soon.writes(), "what is seen of MachineSets may be older than the level: {soon:?}");
    case.sightings = soon.sightings;
    case.instant += Duration::from_secs(5);
    case.in_sets = Some(4);
    assert!(!case.plan().writes(), "the MachineDeployment has yet to lower it");
    case.in_sets = Some(3);
    assert_eq!(keys(&case.plan().removals), ["m-b"]);
}

#[test]
fn during_a_rollout_machines_are_deleted_directly_and_the_level_does_not_fall() {
    let mut case = Case::new(4).claimed(&["a", "b", "c"]).mark("m-b", "uid-b").free(&["new"]);
    case.rollout = Some(rolling());
    case.sightings.free.insert("uid-new".into(), case.instant);
    case.instant += Duration::from_secs(3600);
    let plan = case.plan();
    assert_eq!((plan.replicas, keys(&plan.removals)), (None, vec!["m-b"]));
    assert!(plan.marks.is_empty(), "surplus is no surplus while Machines are being replaced");
    let mut launching = Case::new(2).free(&["old"]).claimed(&["a"]).waiting(&["d"]);
    launching.rollout = Some(rolling());
    assert!(launching.plan().claims.is_empty(), "only Machines of the newest revision are worth claiming");
}

#[test]
fn a_machine_more_during_a_rollout_does_not_raise_the_level() {
    let mut case = Case::new(4).claimed(&["a", "b", "c", "d"]).free(&["surge"]);
    case.rollout = Some(rolling());
    assert_eq!(case.plan().replicas, None);
    case.rollout = None;
    assert_eq!(case.plan().replicas, None, "nor when the rollout is not seen yet");
}

#[test]
fn surplus_goes_after_its_time_and_not_before() {
    let mut case = Case::new(2).claimed(&["a"]).free(&["extra"]);
    let first = case.plan();
    assert!(first.marks.is_empty() && first.replicas.is_none());
    assert_eq!(first.look_again, Some(Duration::from_secs(300)));
    case.sightings = first.sightings;
    case.instant += Duration::from_secs(300);
    let plan = case.plan();
    assert_eq!(marked(&plan), [("extra", SURPLUS_MARK)]);
    assert_eq!(case.marked_by(plan).plan().replicas, Some(1));
}

#[test]
fn replicas_that_were_never_born_are_taken_back_only_after_a_while() {
    // The NodeClaim of the third replica is gone; its Machine may be born at any moment, and the MachineSet would then
    // choose which Machine to delete.
    let mut case = Case::new(3).claimed(&["a", "b"]).up();
    let first = case.plan();
    assert_eq!(first.replicas, None);
    case.sightings = first.sightings;
    case.instant += Duration::from_secs(300);
    assert_eq!(case.plan().replicas, Some(2));
    // Where a deleting Machine is in its place, what is born in between has no Node and is what the MachineSet takes.
    let taken = Case::new(3).claimed(&["a", "b", "c"]).up().deleting("m-c");
    assert_eq!(taken.plan().replicas, Some(2));
}

#[test]
fn replicas_that_were_never_born_stay_while_another_has_no_node_yet() {
    let mut case = Case::new(3).claimed(&["a"]).up().claimed(&["b"]);
    case.sightings = case.plan().sightings;
    case.instant += Duration::from_secs(300);
    let plan = case.plan();
    assert_eq!(plan.replicas, None, "born at this moment, it is as likely to stay as b");
    assert!(plan.look_again.is_some_and(|after| after <= Duration::from_secs(30)), "{plan:?}");
    case.sightings = plan.sightings;
    assert_eq!(case.up().plan().replicas, Some(2), "its time has passed meanwhile");
}

#[test]
fn what_is_not_ours_stays_so_when_everything_is_made_anew() {
    // As a move or a restored backup does: annotations are as they were, creation times are not.
    for resource_first in [true, false] {
        let (resource, machines) = if resource_first { (500, 510) } else { (510, 500) };
        let mut case = Case::new(4).claimed(&["a"]).foreign(&["f1", "f2", "f3"]).up();
        for machine in &mut case.machines {
            machine.created = Timestamp::from_second(1_767_225_600 + machines).expect("a time");
        }
        (case.protected, case.created) = (Some(3), Some(resource));
        case.sightings.free = ["f1", "f2", "f3"].map(|name| (format!("uid-{name}"), case.instant)).into();
        case.instant += Duration::from_secs(3600);
        let case = case.waiting(&["b"]);
        let plan = case.plan();
        assert_eq!((claimed(&plan), plan.marks.len(), plan.replicas), (vec![], 0, Some(5)), "{plan:?}");
        let enrolment = plan.enrol.expect("our time begins anew");
        assert_eq!(enrolment.protected, 3);
        assert_eq!(enrolment.epoch.as_second() - 1_767_225_600, (machines + 1).max(resource), "for good");
    }
}

#[test]
fn lowering_never_makes_a_machine_set_choose() {
    // Three replicas unborn, one marked: only as many as are marked go at once.
    let case = Case::new(6).claimed(&["a", "b", "c"]).mark("m-c", "uid-c");
    let plan = case.plan();
    assert_eq!(plan.replicas, Some(5), "at most six Machines can come to be, one of which is marked");
}

#[test]
fn a_mark_lowers_the_level_once_also_while_replicas_are_unborn() {
    // The MachineSet may have begun to make three more when it was to have six. Two that boot, the marked one and three newborn ones for
    // two replicas: it would take the marked one, and three of its own choice.
    let mut case = Case::new(6).claimed(&["a", "b", "c"]).mark("m-c", "uid-c");
    case.in_sets = Some(6);
    let mut written = Vec::new();
    for _ in 0..4 {
        let plan = case.plan();
        written.extend(plan.replicas);
        assert_eq!(plan.removals.len(), 0, "{plan:?}");
        case.replicas = plan.replicas.unwrap_or(case.replicas);
        case.in_sets = Some(case.replicas);
        case.sightings = plan.sightings;
        case.instant += Duration::from_secs(1);
    }
    assert_eq!(written, [5], "the mark lingers");
    // A process that has just started does not know whether the mark has lowered it.
    let fresh = Case { sightings: Sightings::default(), ..case };
    assert_eq!(fresh.plan().replicas, None);
    let mut born = fresh.free(&["x", "y"]);
    let first = born.plan();
    assert_eq!(first.replicas, None, "one more may be on its way");
    born.sightings = first.sightings;
    born.instant += Duration::from_secs(5);
    assert_eq!(born.plan().replicas, Some(4), "c, whose place nobody wants, need not be made again");
}

#[test]
fn of_two_machines_with_one_claim_the_one_without_the_id_goes() {
    let mut case = Case::new(2).claimed(&["a"]).waiting(&["a"]);
    let mut twin = machine(
        "twin",
        EPOCH_SECOND + 9,
        &[(names::NODECLAIM, "a"), (names::NODECLAIM_UID, "uid-a"), (names::OWNER, OWNER)],
    );
    twin.provider_id = Some("fake://twin".into());
    case.machines.push(twin);
    assert_eq!(marked(&case.plan()), [("twin", "uid-a")], "the younger");
    case.targeting[0].provider_id = Some("fake://twin".into());
    assert_eq!(marked(&case.plan()), [("m-a", "uid-a")], "the NodeClaim already is the twin");
}

#[test]
fn machines_of_node_claims_that_are_gone_go() {
    let mut case = Case::new(2).claimed(&["a", "b"]);
    case.gone.insert("uid-b".into());
    let plan = case.plan();
    assert_eq!(marked(&plan), [("m-b", "uid-b")]);
    assert_eq!(case.marked_by(plan).plan().replicas, Some(1));
}

#[test]
fn what_another_cluster_claimed_is_foreign() {
    let theirs = [(names::NODECLAIM, "x"), (names::NODECLAIM_UID, "uid-x"), (names::OWNER, "another")];
    let mut case = Case::new(1).waiting(&["a"]);
    case.machines.push(machine("theirs", EPOCH_SECOND + 2, &theirs));
    let plan = case.plan();
    assert_eq!((plan.claims.len(), plan.replicas), (0, Some(2)));
}

#[test]
fn a_machine_that_failed_is_given_to_who_waits_only_if_there_is_no_other() {
    let mut case = Case::new(1).free(&["broken"]).waiting(&["a"]);
    case.machines[0].failure =
        Some(crate::client::machine::Failure { reason: "CreateError".into(), message: String::new() });
    let given =
        |case: &Case| case.plan().claims.iter().map(|(key, _)| key.name.to_string()).collect::<Vec<_>>();
    assert_eq!(given(&case), ["broken"], "its NodeClaim fails at once, and takes it along");
    case.replicas = 2;
    assert_eq!(given(&case.free(&["well"])), ["well"]);
}

#[test]
fn what_the_go_provider_bound_stays_bound_if_the_ids_agree() {
    let mut case = Case::new(2).foreign(&["f", "x"]).waiting(&["old", "twin"]);
    case.protected = None;
    case.machines[1].provider_id = Some("fake://x".into());
    for claim in &mut case.targeting {
        claim.bound_to = Some(ObjectKey::namespaced("default", "x"));
        claim.provider_id = Some("fake://x".into());
    }
    let plan = case.plan();
    let pairs: Vec<(&str, &str)> =
        plan.claims.iter().map(|(key, claim)| (&*key.name, claim.name.as_str())).collect();
    assert_eq!(pairs, [("x", "old")], "of two that were bound to one Machine the older keeps it");
    assert_eq!((plan.replicas, plan.enrol.map(|enrolment| enrolment.protected)), (None, Some(1)));
    case.targeting.truncate(1);
    case.targeting[0].provider_id = Some("fake://other".into());
    assert!(case.plan().claims.is_empty(), "the ids differ: neither this Machine nor another is its own");
}

#[test]
fn the_machine_of_a_go_node_claim_that_ends_is_neither_protected_nor_given_to_another() {
    let ends = |replicas: i32| {
        let mut case = Case::new(replicas).foreign(&["f", "x"]).waiting(&["new"]);
        case.protected = None;
        case.machines[1].provider_id = Some("fake://x".into());
        let provider_id = case.machines[1].provider_id.clone();
        let bound_to = Some(ObjectKey::namespaced("default", "x"));
        case.ending.push(ClaimFacts { name: "old".into(), bound_to, provider_id, ..ClaimFacts::default() });
        case
    };
    let protected = |case: &Case| case.plan().enrol.map(|enrolment| enrolment.protected);
    let plan = ends(2).plan();
    assert_eq!((protected(&ends(2)), plan.replicas, plan.claims.len()), (Some(1), Some(3), 0));
    let marked_by_go = ends(2).mark("x", "2026-01-01 00:00:00 +0000 UTC");
    assert_eq!(protected(&marked_by_go), Some(1));
    assert_eq!(protected(&ends(2).deleting("x")), Some(1), "its replica is to go with it");
    assert_eq!(protected(&ends(1).deleting("x")), Some(1), "its replica is gone, the other is not ours");
    let mut adopting = ends(2);
    adopting.rules.adopt_unclaimed = true;
    assert_eq!(claimed(&adopting.plan()), ["f"], "its node is being drained");
    let mut twin = ends(2).waiting(&["twin"]);
    twin.targeting[1].bound_to = twin.ending[0].bound_to.clone();
    assert_eq!(claimed(&twin.plan()), ["x"], "of two that were bound to it one stays");
    let mut another = ends(2);
    another.ending[0].provider_id = Some("fake://other".into());
    assert_eq!(protected(&another), Some(2), "the ids differ");
}

#[test]
fn a_node_claim_whose_machine_has_vanished_is_not_given_another() {
    let mut case = Case::new(1).claimed(&["a"]).waiting(&["lost"]);
    case.targeting[0].provider_id = Some("fake://lost".into());
    assert!(!case.plan().writes());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_the_least_size_asks_for_is_no_surplus() {
    let seen = Sightings { free: [("uid-x".to_owned(), Instant::now())].into(), ..Sightings::default() };
    tokio::time::sleep(Duration::from_secs(600)).await;
    let look = |min: i32| {
        let mut case = Case::new(2).claimed(&["a"]).free(&["x"]);
        case.min = min;
        case.sightings = seen.clone();
        case.plan()
    };
    assert_eq!(look(2).marks, []);
    assert_eq!(look(2).replicas, None);
    assert_eq!(look(1).marks.len(), 1, "beyond the least size it goes");
}

#[test]
fn of_deletions_that_overlap_while_another_boots_none_leaves_a_machine_too_many() {
    let mut case = Case::new(2).claimed(&["a", "b"]).up().claimed(&["c"]);
    case = case.mark("m-b", "uid-b").deleting("m-b").mark("m-a", "uid-a");
    let plan = case.plan();
    assert_eq!(
        (plan.replicas, plan.removals.len()),
        (Some(1), 0),
        "b was reckoned with, and a is taken by its mark"
    );
}

#[test]
fn surplus_of_a_rollout_that_does_not_end_goes_after_its_time() {
    let case = || {
        let mut case = Case::new(2).claimed(&["a"]).free(&["old", "new"]);
        case.machines[2].labels.insert(names::SET_NAME.to_owned(), "m-2".to_owned());
        case.rollout = Some(Rollout { newest_replicas: 1, ..rolling() });
        case
    };
    let first = case().plan();
    assert!(!first.writes() && first.sightings.idle.is_some());
    assert_eq!(first.look_again, Some(Duration::from_secs(300)));
    let late =
        Case { sightings: first.sightings, instant: case().instant + Duration::from_secs(301), ..case() };
    let plan = late.plan();
    assert_eq!((marked(&plan), plan.replicas), (vec![("old", SURPLUS_MARK)], None));
    let plan = late.marked_by(plan).plan();
    assert_eq!((marked(&plan), plan.replicas), (vec![], Some(1)));
    assert!(plan.removals.is_empty(), "the MachineSet takes it; deleted, it would be made again");
    let after = Case::new(1).claimed(&["a"]).free(&["old"]).mark("old", SURPLUS_MARK);
    let after = Case { rollout: Some(rolling()), ..after };
    assert!(!after.plan().writes());
}

#[test]
fn what_is_deleted_of_an_on_delete_deployment_is_not_made_again() {
    let mut case = Case::new(3).claimed(&["a", "b"]).mark("m-b", "uid-b").claimed(&["c"]);
    case.machines[2].labels.insert(names::SET_NAME.to_owned(), "m-2".to_owned());
    case.rollout = Some(Rollout { newest_replicas: 1, on_delete: true, ..rolling() });
    let plan = case.plan();
    assert_eq!(
        (plan.replicas, plan.removals.len()),
        (Some(2), 0),
        "the oldest MachineSet takes what is marked"
    );
    let replaced = case.waiting(&["d"]);
    assert_eq!(keys(&replaced.plan().removals), ["m-b"], "its place is wanted");
}

#[test]
fn a_young_machine_beyond_the_level_is_not_claimed_before_cluster_api_has_settled() {
    let case = || Case::new(2).claimed(&["a"]).waiting(&["b"]).free(&["m-1", "m-2"]);
    let plan = case().plan();
    assert_eq!(claimed(&plan), Vec::<String>::new(), "one of the two is about to go");
    assert_eq!((plan.replicas, plan.look_again), (None, Some(Duration::from_secs(1))));
    let mut later = case();
    later.sightings = plan.sightings.clone();
    later.instant += Duration::from_secs(30);
    assert_eq!(claimed(&later.plan()), ["m-1"], "nobody has taken it away");
    assert_eq!(claimed(&case().mark("m-2", SURPLUS_MARK).plan()), ["m-1"], "the other one goes");
}

#[test]
fn a_young_machine_is_not_claimed_while_machine_sets_may_go_by_a_level_that_has_risen_again() {
    // Somebody deleted a Machine; the level fell, its replacement was born before the MachineSet heard of that, and rises again.
    let mut case = Case::new(2).claimed(&["a", "b"]).up().deleting("m-b");
    case.targeting.clear();
    let fell = case.plan();
    assert_eq!(fell.replicas, Some(1));
    let mut case = Case::new(2).claimed(&["a"]).waiting(&["c"]).free(&["m-1"]);
    case.sightings = fell.sightings.clone();
    case.instant += Duration::from_secs(1);
    let plan = case.plan();
    assert_eq!(claimed(&plan), Vec::<String>::new(), "it may be the one too many of the lower level");
    assert_eq!((plan.replicas, plan.look_again), (None, Some(Duration::from_secs(1))));
    case.sightings = plan.sightings;
    case.instant += Duration::from_secs(5);
    assert_eq!(claimed(&case.plan()), ["m-1"]);
}

#[test]
fn a_young_machine_is_not_claimed_while_its_machine_set_is_to_have_fewer() {
    let mut case = Case::new(2).claimed(&["a"]).waiting(&["b"]).free(&["m-1"]);
    case.in_sets = Some(1);
    assert_eq!(claimed(&case.plan()), Vec::<String>::new(), "the MachineDeployment has yet to raise it");
    case.in_sets = Some(2);
    assert_eq!(claimed(&case.plan()), ["m-1"]);
}

#[test]
fn a_resource_that_takes_part_no_more_keeps_what_its_owner_scales_up() {
    // Besides writing down that it takes part no more.
    let plan = |case: &Case| Plan { dismiss: false, ..case.plan() };
    let late = |case: Case| {
        let first = plan(&case);
        assert!(!first.writes(), "{first:?}");
        plan(&Case { sightings: first.sightings, instant: case.instant + Duration::from_secs(3600), ..case })
    };
    let handed_over = |mut case: Case| {
        case.rules.takes_part = false;
        case
    };
    let born = late(handed_over(Case::new(6).claimed(&["a", "b", "c"]).free(&["x", "y", "z"])));
    assert!(!born.writes(), "{born:?}");
    let unborn = late(handed_over(Case::new(6).claimed(&["a", "b", "c"])));
    assert!(!unborn.writes(), "{unborn:?}");
    let gone = late(handed_over(Case::new(3).claimed(&["a", "b", "c"]).up().deleting("m-b")));
    assert!(!gone.writes(), "what somebody deletes is replaced for its owner: {gone:?}");
    let shrunk = late(handed_over(Case::new(2).claimed(&["a", "b", "c"])));
    assert!(!shrunk.writes(), "nor is it raised against its owner: {shrunk:?}");
    let mut rolling = handed_over(Case::new(6).claimed(&["a", "b", "c"]).free(&["x", "y", "z"]));
    rolling.rollout = Some(self::rolling());
    assert!(!late(rolling).writes());
}

#[test]
fn a_node_claim_that_ends_takes_its_own_machine_from_a_resource_that_takes_part_no_more() {
    let case = |replicas: i32, names: &[&str]| {
        let mut case = Case::new(replicas).claimed(&["a", "b"]).free(names).mark("m-b", "uid-b");
        case.rules.takes_part = false;
        case
    };
    assert_eq!(case(5, &["x", "y", "z"]).plan().replicas, Some(4));
    assert!(!case(4, &["x", "y", "z"]).plan().writes(), "the MachineSet is slow, that is all");
    let going = case(4, &["x", "y", "z"]).deleting("m-b").plan();
    assert_eq!((going.replicas, going.removals.len(), going.dismiss), (None, 0, true), "that was all");
    // Of replicas that are not born yet it cannot be told whether the level has been lowered.
    let unborn = case(5, &["x"]);
    let first = unborn.plan();
    assert!(!first.writes(), "{first:?}");
    let late =
        Case { sightings: first.sightings, instant: unborn.instant + Duration::from_secs(300), ..unborn };
    let plan = late.plan();
    assert_eq!((plan.replicas, keys(&plan.removals)), (None, vec!["m-b"]), "one of them gets its place");
}

#[test]
fn a_node_claim_ends_also_where_replicas_are_not_ours_to_lower() {
    let mut case = Case::new(3).claimed(&["a", "b", "c"]).mark("m-b", "uid-b");
    (case.rules.takes_part, case.rules.may_lower, case.rules.rise) = (false, false, Rise::Never);
    let plan = case.plan();
    assert_eq!((plan.replicas, keys(&plan.removals)), (None, vec!["m-b"]), "its owner gets another");
    let mut waits = Case::new(3).claimed(&["a", "b"]).free(&["x"]).waiting(&["d", "e"]);
    (waits.rules.takes_part, waits.rules.may_lower, waits.rules.rise) = (false, false, Rise::Never);
    let plan = waits.plan();
    let refused: Vec<&str> = plan.refused.iter().map(|claim| claim.name.as_str()).collect();
    assert_eq!((claimed(&plan), refused), (vec!["x".to_owned()], vec!["e"]), "who is served is not refused");
}

#[test]
fn the_last_machine_goes_also_when_our_time_with_a_resource_is_over() {
    let mut case = Case::new(3).claimed(&["a"]).foreign(&["x", "y"]).mark("m-a", "uid-a");
    case.protected = None;
    case.rules.takes_part = false;
    assert_eq!(case.plan().replicas, Some(2));
}

#[test]
fn what_somebody_else_marked_is_not_leaving() {
    let case = Case::new(3).claimed(&["a", "b", "c"]).mark("m-b", "by hand");
    assert!(!case.plan().writes(), "its node is in use: {:?}", case.plan());
    let waiting = Case::new(3).claimed(&["a", "b", "c"]).mark("m-b", "by hand").waiting(&["d"]);
    assert_eq!(waiting.plan().replicas, Some(4));
    let free = Case::new(2).claimed(&["a"]).free(&["x"]).mark("x", "by hand").waiting(&["d"]);
    let plan = free.plan();
    assert_eq!((plan.claims.len(), plan.replicas), (0, Some(3)), "it may go at any time");
}

#[test]
fn a_foreign_machine_that_somebody_marked_stays_protected() {
    let mut case = Case::new(4).foreign(&["f1", "f2", "f3"]).claimed(&["a"]).mark("f3", "2026-01-01");
    case.protected = None;
    let plan = case.plan();
    assert_eq!(plan.enrol.as_ref().map(|enrolment| enrolment.protected), Some(3));
    assert_eq!(plan.replicas, None);
}

#[test]
fn the_level_does_not_fall_while_machines_that_others_marked_would_go_for_it() {
    let mut case = Case::new(4).foreign(&["f"]).mark("f", "by hand").claimed(&["a", "b", "c"]).up();
    case.protected = Some(1);
    let case = case.mark("m-b", "uid-b");
    let plan = case.plan();
    assert_eq!((plan.replicas, keys(&plan.removals)), (None, vec!["m-b"]), "names would decide which goes");
    let going = case.deleting("m-b");
    assert!(!going.plan().writes(), "nor when it may be gone before its MachineSet hears of it");
    let mut surplus = Case::new(3).foreign(&["f"]).mark("f", "by hand").claimed(&["a"]).free(&["x"]);
    surplus.protected = Some(1);
    surplus.sightings.free.insert("uid-x".into(), surplus.instant);
    surplus.instant += Duration::from_secs(3600);
    assert!(!surplus.plan().writes(), "deleted directly it would be made again");
    let mut gone = Case::new(2).claimed(&["a", "b"]).mark("m-b", "by hand");
    gone.gone.insert("uid-b".into());
    let plan = gone.plan();
    assert_eq!(
        (marked(&plan), keys(&plan.removals)),
        (vec![("m-b", "uid-b")], vec!["m-b"]),
        "nobody's any more"
    );
}

#[test]
fn who_waits_for_a_resource_that_takes_part_no_more_gets_what_is_on_its_way_and_nothing_else() {
    let mut case = Case::new(3).claimed(&["a", "b"]).waiting(&["c", "d"]);
    case.rules.takes_part = false;
    let plan = case.plan();
    assert!(!plan.writes());
    let refused: Vec<&str> = plan.refused.iter().map(|claim| claim.name.as_str()).collect();
    assert_eq!((plan.unserved, refused), (vec!["uid-c".to_owned()], vec!["d"]));
}

#[test]
fn a_greatest_size_below_what_is_in_use_costs_no_claimed_machine_in_a_rollout() {
    let case = || {
        let mut case = Case::new(4).claimed(&["a", "b", "c", "d"]);
        for machine in &mut case.machines[2..] {
            machine.labels.insert(names::SET_NAME.to_owned(), "m-2".to_owned());
        }
        case.rollout = Some(Rollout { newest_replicas: 2, ..rolling() });
        case.max = Some(2);
        case
    };
    let first = case().plan();
    let late =
        Case { sightings: first.sightings, instant: case().instant + Duration::from_secs(3600), ..case() };
    assert_eq!(late.plan().replicas, None);
    let mut small = Case::new(2).claimed(&["a", "b", "c", "d"]);
    small.max = Some(2);
    assert_eq!(small.plan().replicas, None, "nor is the level raised beyond it");
}

#[test]
fn a_level_that_may_only_rise_to_what_is_there_keeps_that_and_makes_nothing_new() {
    let mut case = Case::new(1).claimed(&["a", "b"]).free(&["f"]).waiting(&["c", "d"]).up();
    case.rules.rise = Rise::ToWhatIsThere;
    let plan = case.plan();
    assert_eq!(
        (plan.replicas, plan.claims.len()),
        (Some(3), 0),
        "the free one is not claimed while it may go"
    );
    let mut case = Case::new(3).claimed(&["a", "b"]).waiting(&["c"]).up();
    case.rules.rise = Rise::ToWhatIsThere;
    assert_eq!(case.plan().replicas, None, "none is made");
    case.rules.rise = Rise::ToWhatIsNeeded;
    assert_eq!(case.waiting(&["d"]).plan().replicas, Some(4));
}

#[test]
fn who_waits_accounts_for_what_is_on_its_way_and_for_nothing_that_somebody_may_use() {
    let asked_for = |case: &Case| {
        let mut value = deployment_json("m", &[]);
        value["spec"]["replicas"] = case.replicas.into();
        let waiting: Vec<&ClaimFacts> = case.targeting.iter().collect();
        super::asked_for(&read_deployment(value), &case.machines, &waiting)
    };
    let waits = |case: Case| case.waiting(&["c", "d"]);
    assert_eq!(asked_for(&waits(Case::new(3).claimed(&["a"]))), 2, "both are unborn");
    assert_eq!(asked_for(&waits(Case::new(2).claimed(&["a"]).free(&["x"]))), 1);
    assert_eq!(asked_for(&waits(Case::new(2).claimed(&["a"]).free(&["x"]).up())), 0, "it has a Node");
    let mut older = waits(Case::new(2).claimed(&["a"]).foreign(&["x"]));
    older.targeting[0].created = Timestamp::from_second(1_767_225_602).expect("a time");
    older.targeting[1].created = Timestamp::from_second(1_767_225_603).expect("a time");
    assert_eq!(asked_for(&older), 0, "it was there before they were");
}
