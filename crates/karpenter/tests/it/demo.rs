//! `karpenter demo` tells its story to the end.

use std::process::Command;

#[test]
fn the_demo_launches_nodes_for_pods_and_removes_them_again() {
    tells_its_story("kwok");
}

#[test]
fn the_demo_does_so_with_machines_of_cluster_api() {
    tells_its_story("cluster-api");
}

fn tells_its_story(provider: &str) {
    let run = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["demo", "--speed", "10000", "--provider", provider])
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    let count = |sign: &str| {
        text.lines().filter(|line| line.get(5..).is_some_and(|rest| rest.starts_with(sign))).count()
    };
    let (launched, ready, removed) = (count(" + "), count(" * "), count(" - "));
    assert!(launched >= 4, "nodes were launched: {text}");
    assert!(ready >= 4 && ready <= launched, "nodes became ready: {text}");
    assert_eq!(launched, removed, "all of them went again: {text}");
    let summary = text.split("Summary\n").nth(1).unwrap_or_default();
    assert!(summary.lines().next().is_some_and(|first| first.contains(" pods running ")), "{text}");
    assert!(text.contains("$0.000/h now"), "an empty cluster costs nothing: {text}");
}
