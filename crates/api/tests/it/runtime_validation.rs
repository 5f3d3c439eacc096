//! What controllers check themselves, against the recorded messages and the verdicts of `conformance/crds/cases.json`.

use karpenter_api::label_rules::LabelRules;
use karpenter_api::{NodeOverlay, NodePool};
use serde_json::Value;

use crate::{rows, text};

fn problems(kind: &str, object: Value) -> Vec<String> {
    let rules = LabelRules::core();
    match kind {
        "NodePool" => serde_json::from_value::<NodePool>(object).unwrap().runtime_validate(&rules),
        "NodeOverlay" => serde_json::from_value::<NodeOverlay>(object).unwrap().runtime_validate(&rules),
        other => panic!("{other} has no runtime validation"),
    }
}

#[test]
fn every_recorded_spec_gets_the_message_go_gives() {
    for row in rows(include_str!("../../../../conformance/api/validation.json")) {
        let object = serde_json::json!({ "metadata": {}, "spec": row["spec"] });
        assert_eq!(problems(text(&row, "kind"), object).join("; "), text(&row, "error"), "{}", row["spec"]);
    }
}

#[test]
fn every_case_with_a_runtime_verdict_gets_it() {
    let file: Value = serde_json::from_str(include_str!("../../../../conformance/crds/cases.json")).unwrap();
    let mut judged = 0;
    for case in file["cases"].as_array().unwrap() {
        let Some(expected) = case["runtimeValidate"].as_str() else { continue };
        let mut object = file["bases"][text(case, "kind")].clone();
        for path in case["unset"].as_array().into_iter().flatten() {
            unset(&mut object, path.as_str().unwrap());
        }
        // A row that first creates and then updates is judged on what it ends with.
        for mutation in ["beforeUpdate", "mutations"].iter().flat_map(|&list| case[list].as_array()).flatten()
        {
            *reach(&mut object, &steps(text(mutation, "path"))) = mutation["value"].clone();
        }
        let found = problems(text(case, "kind"), object);
        let verdict = if found.is_empty() { "valid" } else { "invalid" };
        assert_eq!(verdict, expected, "{} {}: {found:?}", text(case, "id"), text(case, "title"));
        judged += 1;
    }
    assert_eq!(judged, 147);
}

/// The steps of a path such as `$.a.b[0]['c.d/e']`.
fn steps(path: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut rest = path.strip_prefix('$').unwrap();
    while !rest.is_empty() {
        let (step, after) = if let Some(quoted) = rest.strip_prefix("['") {
            quoted.split_once("']").unwrap()
        } else if let Some(index) = rest.strip_prefix('[') {
            index.split_once(']').unwrap()
        } else {
            let name = rest.strip_prefix('.').unwrap();
            name.split_at(name.find(['.', '[']).unwrap_or(name.len()))
        };
        steps.push(step.to_owned());
        rest = after;
    }
    steps
}

fn reach<'a>(value: &'a mut Value, steps: &[String]) -> &'a mut Value {
    let Some((first, rest)) = steps.split_first() else { return value };
    if value.is_null() {
        *value = Value::Object(serde_json::Map::new());
    }
    let child = match value {
        Value::Array(items) => &mut items[first.parse::<usize>().unwrap()],
        other => &mut other[first.as_str()],
    };
    reach(child, rest)
}

fn unset(object: &mut Value, path: &str) {
    let steps = steps(path);
    let (last, head) = steps.split_last().unwrap();
    if let Value::Object(parent) = reach(object, head) {
        parent.remove(last);
    }
}
