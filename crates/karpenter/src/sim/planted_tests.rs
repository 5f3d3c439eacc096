//! The simulator finds bugs: each that is planted in the real controllers breaks the rule it should within a few seeds.

use karpenter_controllers::planted::{Bug, plant};
use karpenter_sim::in_virtual_time;

use super::plants::Plant;
use super::{Run, core};

/// How many seeds may pass before a bug is found.
const SEEDS: u64 = 40;

fn expect_found(bug: Bug, rule: &str) {
    let _planted = plant(bug);
    expect_failure(None, &format!("{bug:?}"), rule);
}

fn expect_failure(plant: Option<Plant>, what: &str, rule: &str) {
    let failure = (0..SEEDS).find_map(|seed| {
        let run = Run { world: "core", seed, calm: false, plant };
        in_virtual_time(core::simulate(run)).expect("a runtime").failure
    });
    let failure = failure.unwrap_or_else(|| panic!("{what} is not found"));
    assert!(failure.contains(rule), "{what}: {failure}");
}

#[test]
fn a_launch_that_is_not_idempotent_is_found() {
    expect_failure(Some(Plant::LaunchesNotRepeatable), "a second launch", "(I2)");
}

#[test]
fn a_finalizer_removed_early_is_found() {
    expect_found(Bug::LetsGoEarly, "(I8)");
}

#[test]
fn a_launch_before_the_finalizer_is_found() {
    expect_found(Bug::LaunchesUnheld, "(I1, I4)");
}

#[test]
fn garbage_collection_that_trusts_an_empty_list_is_found() {
    expect_found(Bug::TrustsLists, "a node that works is given up only for a reason");
}

#[test]
fn an_instance_removed_before_its_pods_have_left_is_found() {
    expect_found(Bug::DoesNotDrain, "(I9, I10)");
}

#[test]
fn pods_deleted_instead_of_evicted_are_found() {
    expect_found(Bug::DeletesPods, "(I11, I12, I16)");
}

#[test]
fn pods_evicted_out_of_order_are_found() {
    expect_found(Bug::KeepsNoOrder, "(I14, I15)");
}

#[test]
fn a_registration_that_leaves_the_taint_is_found() {
    expect_found(Bug::LeavesTheTaint, "(I6)");
}
