//! The table that says which of our tests stand for upstream's names only tests that exist, and every event of upstream is in
//! a test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of functions in every Rust file below `folder`.
fn functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            functions(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).expect("source");
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            into.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_behaviour_of_upstream_names_tests_that_exist() {
    let mut known = BTreeSet::new();
    let folders = [
        "crates/api",
        "crates/cloudprovider",
        "crates/controllers",
        "crates/engine",
        "crates/karpenter",
        "crates/runtime",
        "crates/state",
        "providers/kwok",
    ];
    for folder in folders {
        functions(&root().join(folder), &mut known);
    }
    let table = fs::read_to_string(root().join("docs/upstream-tests.md")).expect("the table");
    let mut rows = 0;
    for row in table.lines().filter(|l| l.starts_with('|') && l.contains('`')) {
        let names: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        rows += 1;
        for name in names {
            let recorded = ["decisions", "disruptions"]
                .iter()
                .any(|folder| root().join(format!("conformance/{folder}/{name}.yaml")).exists());
            assert!(
                recorded || known.contains(name),
                "{name} is neither a recorded decision nor a test: {row}"
            );
        }
    }
    assert!(rows > 50, "{rows} rows");
}

/// The text of every file of tests below `folder`.
fn tests_of(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of tests") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            tests_of(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push_str(&fs::read_to_string(&path).expect("source"));
        }
    }
}

#[test]
fn every_event_of_upstream_is_in_a_test() {
    let recorded: serde_json::Value =
        serde_json::from_str(include_str!("../../../../conformance/events/events.json")).expect("JSON");
    let mut tests = String::new();
    tests_of(&root().join("crates/controllers/tests"), &mut tests);
    tests.push_str(&fs::read_to_string(root().join("crates/runtime/src/events_tests.rs")).expect("source"));
    let mut seen = 0;
    for event in recorded["events"].as_array().expect("events") {
        let reason = event["reason"].as_str().expect("a reason");
        // Conditions that change are told under their own name, which `a_condition_that_changes_is_counted_timed_and_told` has.
        if event["emitted"] == false || reason.starts_with('<') {
            continue;
        }
        seen += 1;
        // Alone or before its message, as tests write it down; not as a part of another.
        let forms = [format!("\"{reason}\""), format!("\"{reason}: ")];
        assert!(forms.iter().any(|text| tests.contains(text)), "no test sees an event {reason}");
    }
    assert!(seen > 25, "{seen} events");
}
