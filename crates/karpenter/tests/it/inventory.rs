//! The table that says which of our tests stand for upstream's names only tests that exist.

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
    for folder in ["crates/engine", "crates/state", "crates/api", "crates/controllers", "crates/karpenter"] {
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
