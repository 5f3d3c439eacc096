//! The simulator finds bugs: each that is planted in the real controllers breaks the rule it should within a few seeds.

use karpenter_controllers::planted::{Bug, plant};
use karpenter_provider_cluster_api::planted::{self, Fault};
use karpenter_sim::in_virtual_time;

use super::plants::Plant;
use super::{Run, cluster_api, core};

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

/// A fault of the Go provider, planted in ours, is found by one of these rules in one of the seeds from `first` on.
fn expect_caught(fault: Fault, first: u64, rules: &[&str]) {
    let _planted = planted::plant(fault);
    let failure = (first..first + SEEDS).find_map(|seed| {
        let run = Run { world: "cluster-api", seed, calm: false, plant: None };
        let failure = in_virtual_time(cluster_api::simulate(run)).expect("a runtime").failure;
        failure.map(|failure| (seed, failure))
    });
    let (seed, failure) = failure.unwrap_or_else(|| panic!("{fault:?} is not found"));
    eprintln!("{fault:?} is found in seed {seed}: {failure}");
    assert!(rules.iter().any(|rule| failure.contains(rule)), "{fault:?}: {failure}");
}

#[test]
fn w1_replicas_asked_for_again_and_again_are_found() {
    expect_caught(Fault::AsksAgain, 0, &["levels rise for somebody (O3)"]);
}

#[test]
fn w2_a_level_lowered_at_every_call_is_found() {
    expect_caught(
        Fault::LowersAtEachCall,
        0,
        &["Machines in use live (O2, O6)", "few writes to the management cluster (O7)"],
    );
}

#[test]
fn w3_a_machine_claimed_twice_is_found() {
    expect_caught(Fault::ClaimsTheClaimed, 0, &["one Machine per NodeClaim (O1)"]);
}

#[test]
fn w4_a_node_claim_let_go_without_its_machine_is_found() {
    expect_caught(Fault::LetsGoWithoutId, 0, &["Machines go with their NodeClaims (O4)"]);
}

#[test]
fn w7_a_level_lowered_in_a_rollout_is_found() {
    // It takes a rollout that leaves old Machines to Karpenter, and a node of the new ones that goes meanwhile.
    expect_caught(Fault::LowersInRollouts, 100, &["Machines in use live (O2, O6)"]);
}
