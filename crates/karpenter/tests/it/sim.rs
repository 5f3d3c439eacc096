//! `karpenter sim`: seeds keep every rule, converge, and give the same tape twice.

use std::process::Command;

pub(crate) fn sim(arguments: &[&str]) -> (bool, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("sim")
        .args(arguments)
        .output()
        .expect("the binary runs");
    (run.status.success(), String::from_utf8_lossy(&run.stdout).into_owned())
}

#[test]
fn seeds_with_all_faults_keep_every_rule_and_converge() {
    let (ok, text) = sim(&["--world", "core", "--seeds", "0..6"]);
    assert!(ok, "{text}");
    let results: Vec<&str> = text.lines().filter(|line| line.contains(" result=ok")).collect();
    assert_eq!(results.len(), 6, "{text}");
}

#[test]
fn in_the_world_of_disruption_nothing_is_harmed_and_everything_is_put_right() {
    let (ok, text) = sim(&["--world", "disruption", "--seeds", "1..3"]);
    assert!(ok, "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" result=ok")).count(), 2, "{text}");
    let again = sim(&["--world", "disruption", "--seed", "2"]).1;
    assert!(text.contains(again.trim()), "another tape: {again}\n{text}");
}

#[test]
fn a_seed_gives_the_same_tape_twice_and_another_seed_another() {
    let tape = |seed: &str| sim(&["--world", "core", "--seed", seed]).1;
    let first = tape("3");
    assert_eq!(first, tape("3"));
    assert_ne!(first.split("tape=").nth(1), tape("4").split("tape=").nth(1));
}
