//! Every recorded decision of Go Karpenter keeps the rules; the same decision with something broken does not.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use karpenter_checker::check;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/decisions")
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if path.extension().is_some_and(|e| e == "gz") {
        let mut text = String::new();
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).expect("gzip");
        text
    } else {
        String::from_utf8(bytes).expect("text")
    }
}

/// A scenario as one document; in YAML the one without `kind` is the header.
fn scenario(path: &Path) -> Value {
    let text = read(path);
    if path.extension().is_some_and(|e| e == "gz") {
        return serde_json::from_str(&text).expect("JSON");
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let (objects, mut headers): (Vec<_>, Vec<_>) =
        documents.into_iter().filter(|d| !d.is_null()).partition(|d| d["kind"].is_string());
    let mut header = headers.remove(0);
    let mut all = header["objects"].as_array().cloned().unwrap_or_default();
    all.splice(0..0, objects);
    header["objects"] = Value::Array(all);
    header
}

fn cases() -> Vec<(String, Value, Value)> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder())
        .expect("recorded decisions")
        .map(|e| e.expect("entry").path())
        .filter(|p| {
            let name = p.to_string_lossy();
            !name.contains(".expected.") && (name.ends_with(".yaml") || name.ends_with(".json.gz"))
        })
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|path| {
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            let base = name.trim_end_matches(".gz").rsplit_once('.').expect("extension").0.to_owned();
            let expected: Value =
                serde_json::from_str(&read(&folder().join(format!("{base}.expected.json.gz"))))
                    .expect("JSON");
            (base, scenario(&path), expected["canonical"]["provision"].clone())
        })
        .collect()
}

#[test]
fn every_decision_of_go_karpenter_passes() {
    let mut wrong = Vec::new();
    for (name, scenario, plan) in cases() {
        wrong.extend(check(&scenario, &plan).into_iter().map(|w| format!("{name}: {w}")));
    }
    assert!(wrong.is_empty(), "{} complaints\n{}", wrong.len(), wrong.join("\n"));
}

/// Applies `damage` to each recorded decision it can damage and counts those the checker then complains about.
fn noticed(damage: impl Fn(&Value, &mut Value) -> bool) -> (usize, usize) {
    let (mut damaged, mut seen) = (0, 0);
    for (_, scenario, mut plan) in cases() {
        if damage(&scenario, &mut plan) {
            damaged += 1;
            seen += usize::from(!check(&scenario, &plan).is_empty());
        }
    }
    (damaged, seen)
}

#[test]
fn a_lost_pod_is_always_noticed() {
    let (damaged, seen) = noticed(|_, plan| {
        let Some(claims) = plan["newNodeClaims"].as_array_mut() else { return false };
        let Some(pods) = claims.iter_mut().find_map(|c| c["pods"].as_array_mut().filter(|p| p.len() > 1))
        else {
            return false;
        };
        pods.pop().is_some_and(|p| p.is_string())
    });
    assert!(damaged > 100);
    // A pod of a node that goes away may rightly stay without an answer.
    assert!(seen * 100 >= damaged * 90, "{seen} of {damaged}");
}

#[test]
fn one_claim_for_all_pods_of_a_pool_is_mostly_noticed() {
    let (damaged, seen) = noticed(|_, plan| {
        let Some(claims) = plan["newNodeClaims"].as_array_mut() else { return false };
        let Some(last) = claims.pop() else { return false };
        let Some(first) = claims.first_mut().filter(|c| c["nodePool"] == last["nodePool"]) else {
            return false;
        };
        let more = last["pods"].as_array().cloned().unwrap_or_default();
        first["pods"].as_array_mut().expect("pods").extend(more);
        true
    });
    assert!(damaged > 50);
    assert!(seen * 100 >= damaged * 95, "{seen} of {damaged}");
}

#[test]
fn a_type_that_is_too_small_or_elsewhere_is_noticed() {
    let (damaged, seen) = noticed(|scenario, plan| {
        let Some(claim) = plan["newNodeClaims"].get_mut(0) else { return false };
        let listed = claim["instanceTypes"].as_array().cloned().unwrap_or_default();
        let types = scenario["instanceTypes"].as_array().cloned().unwrap_or_default();
        let Some(other) = types.iter().map(|t| t["name"].clone()).find(|n| !listed.contains(n)) else {
            return false;
        };
        claim["instanceTypes"].as_array_mut().expect("types").push(other);
        true
    });
    assert!(damaged > 100);
    assert!(seen * 100 >= damaged * 70, "{seen} of {damaged}");
}

#[test]
fn a_wrong_price_is_noticed() {
    let (damaged, seen) = noticed(|_, plan| {
        let Some(claim) = plan["newNodeClaims"].get_mut(0) else { return false };
        let overlaid =
            claim["priceOverlay"].as_bool() == Some(true) || claim["capacityOverlay"].as_bool() == Some(true);
        let bounded = claim["requirements"]
            .as_array()
            .is_some_and(|r| r.iter().any(|r| r["operator"] == "Gte" || r["operator"] == "Lte"));
        let Some(price) = claim["cheapestPrice"].as_f64().filter(|_| !overlaid && !bounded) else {
            return false;
        };
        claim["cheapestPrice"] = json!(price * 2.0 + 1.0);
        true
    });
    assert!(damaged > 100);
    assert_eq!(seen, damaged);
}
