//! The rules S1–S6 of condition sets, one test per rule, on NodeClaims.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::*;
use crate::nodeclaim::{CONSOLIDATABLE, DRIFTED, INITIALIZED, LAUNCHED, NodeClaim, REGISTERED};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn claim(generation: i64) -> NodeClaim {
    let metadata = ObjectMeta {
        creation_timestamp: Some(Time(at(100))),
        generation: Some(generation),
        ..ObjectMeta::default()
    };
    NodeClaim { metadata, ..NodeClaim::default() }
}

fn types(claim: &NodeClaim) -> Vec<&str> {
    claim.conditions().iter().map(|c| c.type_.as_str()).collect()
}

fn ready(claim: &NodeClaim) -> (ConditionStatus, &str, &str) {
    let root = claim.condition(READY).unwrap();
    (root.status, root.reason(), root.message())
}

#[test]
fn s1_a_look_brings_root_and_dependents_into_being_since_creation() {
    let mut claim = claim(1);
    ConditionSet::of(&mut claim, at(500));
    assert_eq!(types(&claim), [LAUNCHED, REGISTERED, INITIALIZED, READY]);
    for condition in claim.conditions() {
        assert_eq!(condition.status, ConditionStatus::Unknown);
        assert_eq!(condition.since(), at(100), "{}", condition.type_);
        assert_eq!(condition.observed_generation, Some(1));
    }
    let launched = claim.condition(LAUNCHED).unwrap();
    assert_eq!(launched.reason(), "AwaitingReconciliation");
    assert_eq!(launched.message(), "object is awaiting reconciliation");
    assert_eq!(
        ready(&claim),
        (
            ConditionStatus::Unknown,
            "ReconcilingDependents",
            "Launched=Unknown, Registered=Unknown, Initialized=Unknown"
        )
    );
}

#[test]
fn s2_time_moves_only_with_the_status_and_repeating_changes_nothing() {
    let mut claim = claim(1);
    let mut set = ConditionSet::of(&mut claim, at(500));
    assert!(set.set_unknown_with_reason(LAUNCHED, "LaunchFailed", "no capacity"));
    assert_eq!(set.get(LAUNCHED).unwrap().since(), at(100), "same status, other reason");
    assert!(!set.set_unknown_with_reason(LAUNCHED, "LaunchFailed", "no capacity"));
    assert!(set.set_true(LAUNCHED));
    assert_eq!(set.get(LAUNCHED).unwrap().since(), at(500));
    assert!(set.set_true(CONSOLIDATABLE));
    assert_eq!(set.get(CONSOLIDATABLE).unwrap().since(), at(500), "a new independent condition starts now");

    claim.metadata.generation = Some(2);
    let mut set = ConditionSet::of(&mut claim, at(600));
    assert!(set.set_true(LAUNCHED), "the generation moved on");
    assert_eq!(set.get(LAUNCHED).unwrap().observed_generation, Some(2));
    assert_eq!(set.get(LAUNCHED).unwrap().since(), at(500));
}

#[test]
fn s3_on_a_deleting_object_every_condition_is_brought_up_to_date() {
    let mut claim = claim(1);
    ConditionSet::of(&mut claim, at(500)).set_true(DRIFTED);
    claim.metadata.generation = Some(7);
    claim.metadata.deletion_timestamp = Some(Time(at(550)));
    ConditionSet::of(&mut claim, at(600)).set_true(CONSOLIDATABLE);
    assert!(claim.conditions().iter().all(|c| c.observed_generation == Some(7)));
}

#[test]
fn s4_the_list_is_by_time_with_the_root_last_and_alphabetical_after_a_clear() {
    let mut claim = claim(1);
    ConditionSet::of(&mut claim, at(200)).set_true(DRIFTED);
    ConditionSet::of(&mut claim, at(300)).set_true(LAUNCHED);
    ConditionSet::of(&mut claim, at(400)).set_true(CONSOLIDATABLE);
    assert_eq!(types(&claim), [REGISTERED, INITIALIZED, DRIFTED, LAUNCHED, CONSOLIDATABLE, READY]);
    let mut set = ConditionSet::of(&mut claim, at(500));
    assert_eq!(set.clear(CONSOLIDATABLE), Ok(()));
    assert_eq!(set.clear("NeverSet"), Ok(()));
    assert!(set.clear(LAUNCHED).is_err());
    assert!(set.clear(READY).is_err());
    assert_eq!(types(&claim), [DRIFTED, INITIALIZED, LAUNCHED, READY, REGISTERED]);
}

#[test]
fn s5_the_root_sums_up_its_dependents() {
    let mut claim = claim(1);
    ConditionSet::of(&mut claim, at(200)).set_true(LAUNCHED);
    ConditionSet::of(&mut claim, at(300)).set_false(REGISTERED, "MultipleNodesFound", "two nodes");
    assert_eq!(
        ready(&claim),
        (ConditionStatus::False, "UnhealthyDependents", "Registered=False, Initialized=Unknown")
    );
    ConditionSet::of(&mut claim, at(400)).set_true(REGISTERED);
    ConditionSet::of(&mut claim, at(500)).set_true(INITIALIZED);
    assert_eq!(ready(&claim), (ConditionStatus::True, "Ready", ""));

    // A dependent judged by an older generation is unhealthy, but only a False of this generation makes the root False.
    ConditionSet::of(&mut claim, at(600)).set_false(INITIALIZED, "NodeNotReady", "");
    claim.metadata.generation = Some(2);
    ConditionSet::of(&mut claim, at(700)).set_true(LAUNCHED);
    assert_eq!(
        ready(&claim),
        (ConditionStatus::Unknown, "ReconcilingDependents", "Initialized=False, Registered=True")
    );
    // Conditions that stand alone do not count.
    ConditionSet::of(&mut claim, at(800)).set_true(REGISTERED);
    ConditionSet::of(&mut claim, at(800)).set_true(INITIALIZED);
    ConditionSet::of(&mut claim, at(900)).set_false(DRIFTED, "No", "");
    assert_eq!(ready(&claim).0, ConditionStatus::True);
}

#[test]
fn s6_true_names_itself_as_reason_and_absent_is_unknown() {
    let mut claim = claim(1);
    assert_eq!(claim.condition_status(DRIFTED), ConditionStatus::Unknown);
    let mut set = ConditionSet::of(&mut claim, at(200));
    set.set_true(LAUNCHED);
    let launched = set.get(LAUNCHED).unwrap();
    assert_eq!((launched.reason(), launched.message()), (LAUNCHED, ""));
    assert!(set.is_true(&[LAUNCHED]));
    assert!(!set.is_true(&[LAUNCHED, DRIFTED]));
}
