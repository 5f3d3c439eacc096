//! Our decisions against Go Karpenter's, for every recorded scenario; and each plan against the independent checker.
//!
//! The comparison is the one the oracle's `agree` makes: free text and empty values aside.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use karpenter::simulate;
use karpenter_checker::check;
use serde_json::{Map, Value};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/decisions")
}

pub(crate) fn text(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if !path.to_string_lossy().ends_with(".gz") {
        return String::from_utf8(bytes).expect("text");
    }
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).expect("gzip");
    text
}

pub(crate) struct Case {
    pub(crate) name: String,
    path: PathBuf,
}

impl Case {
    pub(crate) fn all() -> Vec<Case> {
        let mut cases: Vec<Case> = fs::read_dir(folder())
            .expect("recorded decisions")
            .map(|e| e.expect("entry").path())
            .filter_map(|path| {
                let file = path.file_name()?.to_string_lossy().into_owned();
                let name = file.strip_suffix(".yaml").or(file.strip_suffix(".json.gz"))?.to_owned();
                (!name.ends_with(".expected")).then_some(Case { name, path })
            })
            .collect();
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(cases.len() > 300, "the recorded decisions are there");
        cases
    }

    fn expected(&self) -> Value {
        let path = folder().join(format!("{}.expected.json.gz", self.name));
        let file: Value = serde_json::from_str(&text(&path)).expect("JSON");
        file["canonical"]["provision"].clone()
    }

    fn decide(&self) -> Result<Value, String> {
        simulate::decide(&[&self.path]).map_err(|e| e.to_string())
    }

    /// The scenario as one document, for the checker.
    pub(crate) fn scenario(&self) -> Value {
        read_scenario(&self.path)
    }
}

/// A scenario as one document.
pub(crate) fn read_scenario(path: &Path) -> Value {
    let text = text(path);
    if path.to_string_lossy().ends_with(".gz") {
        return serde_json::from_str(&text).expect("JSON");
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let (objects, mut headers): (Vec<_>, Vec<_>) =
        documents.into_iter().filter(|d| !d.is_null()).partition(|d| d["kind"].is_string());
    let mut header = headers.remove(0);
    let mut all = objects;
    all.extend(header["objects"].as_array().cloned().unwrap_or_default());
    header["objects"] = all.into();
    header
}

/// What counts of a decision: keys of error texts instead of the texts, nothing empty, prices to nine digits.
pub(crate) fn canonical(value: &Value, key: &str) -> Value {
    match value {
        Value::Object(map) if matches!(key, "podErrors" | "ignoredPods") => map.keys().cloned().collect(),
        Value::String(text) if key == "error" => (!text.is_empty()).into(),
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (k.clone(), canonical(v, k)))
            .filter(|(_, v)| !is_empty(v))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(|v| canonical(v, "")).collect(),
        Value::Number(n) => ((n.as_f64().unwrap_or_default() * 1e9).round() / 1e9).into(),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// The first place where the two differ.
pub(crate) fn difference(want: &Value, got: &Value, path: &str) -> Option<String> {
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|k| match (a.get(k), b.get(k)) {
                (Some(x), Some(y)) => difference(x, y, &format!("{path}.{k}")),
                (Some(x), None) => Some(format!("{path}.{k}: missing {}", short(x))),
                (None, Some(y)) => Some(format!("{path}.{k}: unwanted {}", short(y))),
                (None, None) => None,
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            let inside =
                a.iter().zip(b).enumerate().find_map(|(i, (x, y))| difference(x, y, &format!("{path}[{i}]")));
            inside.or_else(|| {
                (a.len() != b.len()).then(|| format!("{path}: want {} items, got {}", a.len(), b.len()))
            })
        }
        (a, b) => (a != b).then(|| format!("{path}: want {}, got {}", short(a), short(b))),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(120).collect()
}

/// Every case with what we decide for it; decided once for all tests, on every core there is.
fn decided() -> &'static [(Case, Result<Value, String>)] {
    static DECIDED: OnceLock<Vec<(Case, Result<Value, String>)>> = OnceLock::new();
    DECIDED.get_or_init(|| {
        let cases = Case::all();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let chunk =
            |first: usize| cases.iter().skip(first).step_by(threads).map(Case::decide).collect::<Vec<_>>();
        let mut answers: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|t| {
                    let chunk = &chunk;
                    scope.spawn(move || chunk(t))
                })
                .collect();
            workers.into_iter().map(|w| w.join().expect("no panic while deciding").into_iter()).collect()
        });
        let ordered: Vec<_> = (0..cases.len()).filter_map(|i| answers[i % threads].next()).collect();
        cases.into_iter().zip(ordered).collect()
    })
}

#[test]
fn every_recorded_decision_of_go_karpenter_is_ours() {
    let mut disagreements = Vec::new();
    for (case, answer) in decided() {
        let found = match answer {
            Ok(got) => difference(&canonical(&case.expected(), ""), &canonical(got, ""), ""),
            Err(error) => Some(error.clone()),
        };
        disagreements.extend(found.map(|d| format!("{}: {d}", case.name)));
    }
    assert!(disagreements.is_empty(), "{} disagree\n{}", disagreements.len(), disagreements.join("\n"));
}

#[test]
fn every_plan_passes_the_independent_checker() {
    let mut wrong = Vec::new();
    for (case, answer) in decided() {
        let plan = answer.as_ref().unwrap_or_else(|e| panic!("{}: {e}", case.name));
        wrong.extend(check(&case.scenario(), plan).into_iter().map(|w| format!("{}: {w}", case.name)));
    }
    assert!(wrong.is_empty(), "{} complaints\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_same_files_give_the_same_bytes() {
    for (case, answer) in decided().iter().step_by(9) {
        let again = case.decide().expect("a plan").to_string();
        assert_eq!(answer.as_ref().expect("a plan").to_string(), again, "{}", case.name);
    }
}
