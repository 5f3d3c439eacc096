//! Repository rules as tests: what reviewers would otherwise have to say again and again.
//!
//! Each rule names the offending file and line and what to do instead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longer than this and a file is more than one thought; tests in files of their own may be longer.
const MAX_SOURCE_LINES: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Files of the repository, relative to its root, without build output and version control.
fn files() -> Vec<PathBuf> {
    fn walk(dir: &Path, root: &Path, out: &mut Vec<PathBuf>) {
        let mut entries: Vec<_> = fs::read_dir(dir)
            .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
            .map(|entry| entry.expect("a readable directory entry").path())
            .collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // In a second worktree `.git` is a file.
            if matches!(name.as_str(), "target" | ".git" | "node_modules") {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, out);
            } else {
                out.push(path.strip_prefix(root).expect("below the root").to_owned());
            }
        }
    }
    let root = root();
    let mut out = Vec::new();
    walk(&root, &root, &mut out);
    out
}

fn with_extension(ext: &str) -> impl Iterator<Item = (PathBuf, String)> {
    let root = root();
    files().into_iter().filter(move |f| f.extension().is_some_and(|e| e == ext)).map(move |f| {
        let text =
            fs::read_to_string(root.join(&f)).unwrap_or_else(|e| panic!("{} is not text: {e}", f.display()));
        (f, text)
    })
}

fn assert_none(found: Vec<String>, remedy: &str) {
    assert!(found.is_empty(), "{remedy}\n  {}", found.join("\n  "));
}

#[test]
fn every_source_file_opens_with_its_purpose() {
    let found = with_extension("rs")
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(f, _)| f.display().to_string())
        .collect();
    assert_none(found, "open the file with `//! what it is for`:");
}

#[test]
fn nothing_is_left_for_later_in_the_code() {
    // Spelled in halves so that this file does not find itself.
    let banned = [
        ["to", "do!("].concat(),
        ["unimpl", "emented!("].concat(),
        ["FIX", "ME"].concat(),
        ["X", "XX"].concat(),
    ];
    let mut found = Vec::new();
    for (file, text) in with_extension("rs") {
        for (i, line) in text.lines().enumerate() {
            if banned.iter().any(|b| line.contains(b.as_str())) {
                found.push(format!("{}:{}: {}", file.display(), i + 1, line.trim()));
            }
        }
    }
    assert_none(found, "finish it, or say in an issue that it is missing:");
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    let banned = ["utils", "util", "helpers", "helper", "common", "manager", "misc"];
    let found = files()
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "rs"))
        .filter(|f| {
            f.components().any(|c| {
                let name = c.as_os_str().to_string_lossy();
                banned.contains(&name.trim_end_matches(".rs"))
            })
        })
        .map(|f| f.display().to_string())
        .collect();
    assert_none(found, "name the module after the thing it holds:");
}

#[test]
fn a_source_file_is_one_thought() {
    let found = with_extension("rs")
        .filter(|(f, _)| !is_test_file(f))
        .map(|(f, text)| (f, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_SOURCE_LINES)
        .map(|(f, lines)| format!("{} has {lines} lines", f.display()))
        .collect();
    assert_none(found, "split the file where its thoughts part:");
}

fn is_test_file(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains("/tests/") || text.ends_with("tests.rs")
}

#[test]
fn tests_do_not_sleep_and_are_not_ignored() {
    let banned = [["thread::", "sleep"].concat(), ["#[ig", "nore"].concat(), ["assert!(", "true)"].concat()];
    // The demo shows virtual time at the pace of the wall.
    let paced = Path::new("crates/karpenter/src/demo/screen.rs");
    let mut found = Vec::new();
    for (file, text) in with_extension("rs").filter(|(file, _)| file != paced) {
        for (i, line) in text.lines().enumerate() {
            if banned.iter().any(|b| line.contains(b.as_str())) {
                found.push(format!("{}:{}: {}", file.display(), i + 1, line.trim()));
            }
        }
    }
    assert_none(found, "wait on a condition or on paused time, and let every test run:");
}

#[test]
fn links_in_documents_lead_somewhere() {
    let root = root();
    let mut found = Vec::new();
    for (file, text) in with_extension("md") {
        let dir = root.join(file.parent().unwrap_or(Path::new("")));
        for (i, line) in text.lines().enumerate() {
            for target in link_targets(line) {
                let path = target.split('#').next().unwrap_or_default();
                if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
                    continue;
                }
                if !dir.join(path).exists() {
                    found.push(format!("{}:{}: {target}", file.display(), i + 1));
                }
            }
        }
    }
    assert_none(found, "mend the link or remove it:");
}

fn link_targets(line: &str) -> Vec<&str> {
    line.match_indices("](")
        .filter_map(|(at, _)| {
            let rest = &line[at + 2..];
            rest.find(')').map(|end| &rest[..end])
        })
        .collect()
}

#[test]
fn no_path_of_a_machine_and_no_registry_host_is_written_down() {
    let needles = [
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/"].concat(),
        ["proxy.go", "lang.org"].concat(),
        ["index.cra", "tes.io"].concat(),
        ["static.cra", "tes.io"].concat(),
        ["registry.npm", "js.org"].concat(),
        ["files.python", "hosted.org"].concat(),
    ];
    let root = root();
    let mut found = Vec::new();
    for file in files() {
        if file.extension().is_some_and(|e| e == "lock" || e == "sum") {
            continue;
        }
        let Ok(text) = fs::read_to_string(root.join(&file)) else { continue };
        for (i, line) in text.lines().enumerate() {
            if needles.iter().any(|n| line.contains(n.as_str())) {
                found.push(format!("{}:{}", file.display(), i + 1));
            }
        }
    }
    assert_none(found, "write it relative to the repository, or leave it out:");
}

/// The arrows of the design: who may depend on whom inside the workspace.
#[test]
fn dependencies_between_the_crates_point_down() {
    let allowed: &[(&str, &[&str])] = &[
        ("karpenter-primitives", &[]),
        ("karpenter-api", &["karpenter-primitives"]),
        ("karpenter-apiserver", &["karpenter-primitives"]),
        ("karpenter-engine", &["karpenter-api", "karpenter-primitives"]),
        (
            "karpenter-controllers",
            &[
                "karpenter-api",
                "karpenter-cloudprovider",
                "karpenter-engine",
                "karpenter-primitives",
                "karpenter-runtime",
                "karpenter-state",
            ],
        ),
        ("karpenter-state", &["karpenter-api", "karpenter-engine", "karpenter-primitives"]),
        // Shares nothing, on purpose: see its documentation.
        ("karpenter-checker", &[]),
        ("karpenter-runtime", &["karpenter-primitives"]),
        (
            "karpenter-cloudprovider",
            &["karpenter-api", "karpenter-engine", "karpenter-primitives", "karpenter-runtime"],
        ),
        (
            "karpenter-sim",
            &["karpenter-api", "karpenter-apiserver", "karpenter-primitives", "karpenter-runtime"],
        ),
        (
            "karpenter-provider-kwok",
            &[
                "karpenter-api",
                "karpenter-cloudprovider",
                "karpenter-engine",
                "karpenter-primitives",
                "karpenter-runtime",
            ],
        ),
        (
            "karpenter-provider-cluster-api",
            &[
                "karpenter-api",
                "karpenter-cloudprovider",
                "karpenter-engine",
                "karpenter-primitives",
                "karpenter-runtime",
            ],
        ),
        (
            "karpenter-provider-cloudstack",
            &[
                "karpenter-api",
                "karpenter-cloudprovider",
                "karpenter-engine",
                "karpenter-primitives",
                "karpenter-runtime",
            ],
        ),
    ];
    let mut found = Vec::new();
    for package in workspace_packages() {
        let Some((_, may)) = allowed.iter().find(|(name, _)| *name == package.name) else {
            if package.name != "karpenter" {
                found.push(format!("{} has no place in this test's list yet", package.name));
            }
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.starts_with("karpenter")) {
            if !may.contains(&dependency.as_str()) {
                found.push(format!("{} depends on {dependency}", package.name));
            }
        }
    }
    assert_none(found, "see the arrows in ARCHITECTURE.md:");
}

#[test]
fn every_dependency_has_a_licence_that_deny_toml_allows() {
    let deny = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let allowed: BTreeSet<&str> = deny
        .lines()
        .skip_while(|l| !l.starts_with("allow = ["))
        .take_while(|l| *l != "]")
        .filter_map(|l| l.trim().strip_prefix('"')?.split('"').next())
        .collect();
    assert!(allowed.contains("Apache-2.0"), "the list in deny.toml was read");
    let found = metadata()["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .filter_map(|p| {
            let licence = p["license"].as_str().unwrap_or("none");
            (!licence_allowed(licence, &allowed)).then(|| format!("{}: {licence}", p["name"]))
        })
        .collect();
    assert_none(found, "replace the crate, or allow its licence in deny.toml with a reason:");
}

/// Any alternative will do; every part of a conjunction must do.
fn licence_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    expression
        .replace(['(', ')'], "")
        .split(" AND ")
        .all(|part| part.split(" OR ").flat_map(|alt| alt.split('/')).any(|alt| allowed.contains(alt.trim())))
}

struct Package {
    name: String,
    dependencies: Vec<String>,
}

/// The crates of the workspace with their ordinary (not development) dependencies.
fn workspace_packages() -> Vec<Package> {
    metadata()["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .filter(|p| p["source"].is_null())
        .map(|p| Package {
            name: p["name"].as_str().expect("name").to_owned(),
            dependencies: p["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .filter(|d| d["kind"].is_null())
                .map(|d| d["name"].as_str().expect("name").to_owned())
                .collect(),
        })
        .collect()
}

/// What is built here: of crates for other platforms a machine that has only built this one knows nothing.
fn metadata() -> serde_json::Value {
    let about = Command::new(env!("CARGO")).arg("-vV").output().expect("cargo runs");
    let about = String::from_utf8_lossy(&about.stdout).into_owned();
    let platform = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("a platform");
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", platform])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}
