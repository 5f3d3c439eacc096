//! What we would disrupt against what Go Karpenter would, for every recorded scenario.

use std::path::{Path, PathBuf};

use karpenter::simulate;
use serde_json::Value;

use crate::decisions::{canonical, difference, read_scenario, text};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/disruptions")
}

/// Names and files of the scenarios, in order.
fn cases() -> Vec<(String, PathBuf)> {
    let mut cases: Vec<(String, PathBuf)> = std::fs::read_dir(folder())
        .expect("recorded disruptions")
        .map(|e| e.expect("entry").path())
        .filter_map(|path| {
            let file = path.file_name()?.to_string_lossy().into_owned();
            let name = file.strip_suffix(".yaml").or(file.strip_suffix(".json.gz"))?.to_owned();
            (!name.ends_with(".expected")).then_some((name, path))
        })
        .collect();
    cases.sort();
    assert!(cases.len() > 100, "the recorded disruptions are there");
    cases
}

fn expected(name: &str) -> Value {
    let file: Value =
        serde_json::from_str(&text(&folder().join(format!("{name}.expected.json.gz")))).expect("JSON");
    file["canonical"]["disrupt"].clone()
}

#[test]
fn every_recorded_disruption_of_go_karpenter_is_ours() {
    let mut disagreements = Vec::new();
    for (name, path) in cases() {
        let found = match simulate::decide(&[&path]) {
            Ok(got) => difference(&canonical(&expected(&name), ""), &canonical(&got, ""), ""),
            Err(error) => Some(error.to_string()),
        };
        disagreements.extend(found.map(|d| format!("{name}: {d}")));
    }
    assert!(disagreements.is_empty(), "{} disagree\n{}", disagreements.len(), disagreements.join("\n"));
}

#[test]
fn simulations_that_share_a_compiled_cluster_decide_as_those_that_start_anew() {
    for (name, path) in cases().into_iter().step_by(2) {
        let scenario = read_scenario(&path);
        let shared = simulate::decide_scenario(&scenario, true).unwrap_or_else(|e| panic!("{name}: {e}"));
        let anew = simulate::decide_scenario(&scenario, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(shared, anew, "{name}");
    }
}
