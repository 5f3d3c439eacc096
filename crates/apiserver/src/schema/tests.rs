//! Behaviour of schemas on whole objects; every expectation was seen on kube-apiserver 1.36.
//!
//! The tests spell out what matters most; the recordings in `conformance/schema` hold the rest of what was asked of the
//! real server, answer by answer.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::StructuralSchema;
use crate::crd::{self, default_crd, validate_crd};
use crate::field_error::FieldError;
use crate::go_format;

/// As a CRD version would compile it.
pub(super) fn compile(schema: &Value, at: &str) -> Result<StructuralSchema, Vec<FieldError>> {
    let props = serde_json::from_value(schema.clone()).unwrap();
    StructuralSchema::compile(&props, at)
}

fn schema(spec: Value) -> StructuralSchema {
    let root = json!({"type": "object", "properties": {"spec": spec}});
    compile(&root, "schema").unwrap()
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// What an object with this spec is refused with.
fn refused(schema: &StructuralSchema, spec: Value) -> Vec<String> {
    texts(&schema.validate(&json!({"spec": spec}), None))
}

fn refused_update(schema: &StructuralSchema, old: Value, new: Value) -> Vec<String> {
    texts(&schema.validate(&json!({"spec": new}), Some(&json!({"spec": old}))))
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_its_type() {
    let schema = schema(json!({"type": "object", "properties": {"x": {"type": "string"}}}));
    assert_eq!(
        refused(&schema, json!({"x": 1})),
        [r#"spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer""#]
    );
}

#[test]
fn an_unknown_field_is_dropped_and_told_by_its_path() {
    let schema = schema(json!({"type": "object", "properties": {
        "l": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }}));
    let mut object = json!({"metadata": {"name": "n", "odd": 1}, "spec": {"l": [{"a": "1", "b": 2}], "z": 1}, "kind": "K"});
    assert_eq!(schema.prune(&mut object), ["metadata.odd", "spec.l[0].b", "spec.z"]);
    assert_eq!(object, json!({"metadata": {"name": "n"}, "spec": {"l": [{"a": "1"}]}, "kind": "K"}));
}

#[test]
fn a_null_gives_way_to_the_default_or_vanishes() {
    let schema = schema(json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "x"}, "b": {"type": "string"}, "c": {"type": "string", "nullable": true},
    }}));
    let mut object = json!({"spec": {"a": null, "b": null, "c": null}});
    assert!(schema.prune(&mut object).is_empty());
    schema.default(&mut object);
    assert_eq!(object, json!({"spec": {"a": "x", "c": null}}));
}

#[test]
fn defaults_reach_into_elements_and_entries_but_make_no_objects() {
    let point = json!({"type": "object", "properties": {"x": {"type": "integer", "default": 1}}});
    let schema = schema(json!({"type": "object", "properties": {
        "list": {"type": "array", "items": point}, "map": {"type": "object", "additionalProperties": point}, "one": point,
    }}));
    let mut object = json!({"spec": {"list": [{}, {"x": 2}], "map": {"k": {}}}});
    schema.default(&mut object);
    assert_eq!(object, json!({"spec": {"list": [{"x": 1}, {"x": 2}], "map": {"k": {"x": 1}}}}));
}

#[test]
fn keys_of_a_map_list_may_come_from_defaults_and_must_be_unique() {
    let schema = schema(json!({"type": "object", "properties": {"ports": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
        "items": {"type": "object", "required": ["port"], "properties": {
            "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
        }},
    }}}));
    let mut object = json!({"spec": {"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}});
    schema.default(&mut object);
    assert_eq!(
        texts(&schema.validate(&object, None)),
        [r#"spec.ports[1]: Duplicate value: {"port":1,"protocol":"TCP"}"#]
    );
}

#[test]
fn a_failed_alternative_is_summed_up_by_the_one_that_nearly_held() {
    let schema =
        schema(json!({"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}));
    assert_eq!(
        refused(&schema, json!({})),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid",
            "spec.x: Required value",
        ]
    );
    assert_eq!(
        refused(&schema, json!({"x": 1, "y": 1})),
        [concat!(
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). ",
            "Found 2 valid alternatives"
        )]
    );
}

#[test]
fn rules_wait_until_the_shape_is_right() {
    let schema =
        schema(json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.x > 1", "message": "more"}]}));
    assert_eq!(refused(&schema, json!({"x": 1})), ["spec: Invalid value: more"]);
    assert_eq!(
        refused(&schema, json!({})),
        [
            "spec.x: Required value",
            concat!(
                "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; ",
                "correct the existing errors to complete validation"
            ),
        ]
    );
}

#[test]
fn a_rule_chooses_its_reason_its_field_and_its_words() {
    let schema = schema(json!({"type": "object", "properties": {"x": {"type": "integer"}},
    "x-kubernetes-validations": [
        {"rule": "self.x < 1", "reason": "FieldValueForbidden", "fieldPath": ".x", "message": "no"},
        {"rule": "self.x < 2", "messageExpression": "'got ' + string(self.x)"},
        {"rule": "self.x < 3", "message": "kept", "messageExpression": "string(self.x / 0)"},
        {"rule": "self.x < 4"},
    ]}));
    assert_eq!(
        refused(&schema, json!({"x": 5})),
        [
            "spec.x: Forbidden: no",
            "spec: Invalid value: got 5",
            "spec: Invalid value: kept",
            "spec: Invalid value: failed rule: self.x < 4",
        ]
    );
}

#[test]
fn a_missing_field_fails_the_rule_that_reads_it() {
    let schema = schema(json!({"type": "object", "properties": {"x": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "int(self.x) > 1"}]}));
    assert_eq!(
        refused(&schema, json!({})),
        [r#"spec: Invalid value: "object": no such key: x evaluating rule: int(self.x) > 1"#]
    );
}

#[test]
fn a_transition_rule_compares_elements_of_a_map_list_by_key() {
    let schema = schema(json!({"type": "object", "properties": {"l": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {
            "k": {"type": "string"},
            "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]},
        }},
    }}}));
    let old = json!({"l": [{"k": "a", "v": 1}]});
    let moved = json!({"l": [{"k": "b", "v": 9}, {"k": "a", "v": 1}]});
    assert_eq!(refused_update(&schema, old.clone(), moved), [""; 0]);
    let changed = json!({"l": [{"k": "b", "v": 9}, {"k": "a", "v": 2}]});
    assert_eq!(refused_update(&schema, old, changed), ["spec.l[1].v: Invalid value: 2: fixed"]);
}

#[test]
fn an_optional_old_value_lets_a_transition_rule_run_on_creation() {
    let schema = schema(
        json!({"type": "object", "properties": {"x": {"type": "integer", "x-kubernetes-validations": [
            {"rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 1", "optionalOldSelf": true, "message": "grow"},
        ]}}}),
    );
    assert_eq!(refused(&schema, json!({"x": 1})), [""; 0]);
    assert_eq!(refused(&schema, json!({"x": 2})), ["spec.x: Invalid value: 2: grow"]);
    assert_eq!(refused_update(&schema, json!({"x": 1}), json!({"x": 3})), [""; 0]);
    assert_eq!(refused_update(&schema, json!({"x": 1}), json!({"x": 0})), ["spec.x: Invalid value: 0: grow"]);
}

#[test]
fn what_was_invalid_may_stay_as_long_as_it_does_not_change() {
    let schema = schema(json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 2}, "b": {"type": "integer"},
        "c": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5", "message": "over 5"}]},
    }}));
    let old = json!({"a": "long", "b": 1, "c": 1});
    assert_eq!(refused_update(&schema, old.clone(), json!({"a": "long", "b": 2, "c": 1})), [""; 0]);
    assert_eq!(
        refused_update(&schema, old.clone(), json!({"a": "longer", "b": 1, "c": 1})),
        [
            "spec.a: Too long: may not be more than 2 bytes",
            concat!(
                "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; ",
                "correct the existing errors to complete validation"
            ),
        ]
    );
    assert_eq!(
        refused_update(&schema, old, json!({"a": "long", "c": 2})),
        ["spec.c: Invalid value: 2: over 5"]
    );
}

#[test]
fn a_rule_that_does_not_fit_the_schema_is_refused_with_the_crd() {
    let refused = |rule: &str| {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": rule}]});
        texts(&compile(&schema, "s").err().unwrap_or_default())
    };
    let shown = |rule: &str| {
        format!(
            "s.x-kubernetes-validations[0].rule: Invalid value: {{\"Rule\":\"{rule}\",\"Message\":\"\",\
             \"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: "
        )
    };
    let undefined = "compilation failed: ERROR: <input>:1:5: undefined field 'b'\n | self.b == 'x'\n | ....^";
    assert_eq!(refused("self.b == 'x'"), [shown("self.b == 'x'") + undefined]);
    assert_eq!(refused("self.a"), [shown("self.a") + "cel expression must evaluate to a bool"]);
    assert_eq!(refused("self.metadata.name == self.a"), [""; 0]);
}

#[test]
fn an_update_of_the_status_is_held_against_the_schema_of_the_status() {
    let schema = compile(
        &json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"y": {"type": "integer", "maximum": 3}}},
        }}),
        "schema",
    )
    .unwrap();
    let old = json!({"spec": {"x": "wrong"}, "status": {}});
    let new = json!({"spec": {"x": "wrong"}, "status": {"y": 4}});
    assert_eq!(
        texts(&schema.validate_status(&new, &old)),
        ["status.y: Invalid value: 4: y in body should be less than or equal to 3"]
    );
}

/// Recorded answers differ from ours only here, and only in how a value or a foreign error is worded.
const WORDED_OTHERWISE: [&str; 2] = ["status root", "spec pattern"];

fn sorted(errors: &[FieldError]) -> Vec<[String; 3]> {
    let mut all: Vec<[String; 3]> =
        errors.iter().map(|e| [e.field.clone(), e.reason.as_cause().to_owned(), e.body()]).collect();
    all.sort();
    all
}

fn recorded_errors(case: &Value) -> Vec<[String; 3]> {
    serde_json::from_value(case.get("errors").cloned().unwrap_or_else(|| json!([]))).unwrap()
}

fn replay(recording: &str) -> usize {
    let mut schema: Option<Arc<StructuralSchema>> = None;
    let mut cases = 0;
    for line in recording.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let title = case["title"].as_str().unwrap_or_default();
        if let Some(definition) = case.get("crd") {
            schema = Some(crd::versions(definition).unwrap().remove(0).schema);
        } else if let Some(definition) = case.get("definition") {
            let mut definition = definition.clone();
            default_crd(&mut definition);
            let mut ours = sorted(&validate_crd(&definition, case.get("old")));
            let mut real = recorded_errors(&case);
            if WORDED_OTHERWISE.contains(&title) {
                ours.iter_mut().chain(&mut real).for_each(|error| error[2].clear());
            }
            assert_eq!(ours, real, "{title}");
            cases += 1;
        } else {
            let schema = schema.as_ref().unwrap();
            let mut object = case["object"].clone();
            let mut dropped = schema.prune(&mut object);
            dropped.sort();
            schema.default(&mut object);
            let errors = sorted(&schema.validate(&object, case.get("old")));
            assert_eq!(errors, recorded_errors(&case), "{title}");
            if errors.is_empty() && case.get("old").is_none() {
                // How a whole float is written (`2.0` or `2`) is for whoever encodes the object.
                let stored = case.get("stored").unwrap_or(&case["object"]);
                assert_eq!(go_format::json(&object), go_format::json(stored), "{title}");
                assert_eq!(json!(dropped), *case.get("dropped").unwrap_or(&json!([])), "{title}");
            }
            cases += 1;
        }
    }
    cases
}

#[test]
fn recorded_values_rules_updates_and_definitions_are_answered_as_the_real_server_did() {
    assert_eq!(replay(include_str!("../../../../conformance/schema/values.jsonl")), 583);
    assert_eq!(replay(include_str!("../../../../conformance/schema/rules.jsonl")), 160);
    assert_eq!(replay(include_str!("../../../../conformance/schema/ratcheting.jsonl")), 27);
    assert_eq!(replay(include_str!("../../../../conformance/schema/definitions.jsonl")), 112);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abck]|spec|metadata|kind", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Schemas that often compile, with every keyword at one place or another.
fn any_schema() -> impl Strategy<Value = Value> {
    let keyword = prop_oneof![
        prop::sample::select(vec!["date-time", "duration", "byte", "int32", "uuid", "odd"])
            .prop_map(|f| json!({"format": f})),
        (-3i64..9).prop_map(|n| json!({"minimum": n, "maxLength": n, "maxItems": n, "maxProperties": n})),
        (0.0f64..3.0).prop_map(|n| json!({"multipleOf": n, "maximum": n, "exclusiveMaximum": true})),
        prop::sample::select(vec!["^a", "[", "\\d+$", "(?i)x"]).prop_map(|p| json!({"pattern": p})),
        any_json().prop_map(|v| json!({"default": v})),
        any_json().prop_map(|v| json!({"enum": [v]})),
        Just(json!({"nullable": true})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        Just(json!({"x-kubernetes-embedded-resource": true})),
        Just(json!({"x-kubernetes-list-type": "set"})),
        Just(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]})),
        Just(json!({"required": ["a", "k"], "minProperties": 1})),
        Just(json!({"anyOf": [{"required": ["a"]}, {"minLength": 2}], "not": {"required": ["b"]}})),
        prop::sample::select(vec![
            "self == oldSelf",
            "self.a > self.b",
            "self[0] in self",
            "size(self) > 1 ||",
            "has(self.a)"
        ])
        .prop_map(|rule| json!({"x-kubernetes-validations": [{"rule": rule}]})),
        Just(json!({})),
    ];
    let kinds = vec!["string", "integer", "number", "boolean", "object", "array"];
    let leaf = (prop::sample::select(kinds), keyword)
        .prop_map(|(kind, keyword)| merged(json!({"type": kind}), keyword));
    leaf.clone().prop_recursive(4, 24, 4, move |inner| {
        let properties = prop::collection::btree_map("[abck]|spec|metadata|kind", inner.clone(), 0..4);
        prop_oneof![
            (leaf.clone(), properties).prop_map(|(node, properties)| {
                merged(merged(node, json!({"type": "object"})), json!({"properties": properties}))
            }),
            (leaf.clone(), inner.clone())
                .prop_map(|(node, items)| merged(node, json!({"type": "array", "items": items}))),
            (leaf.clone(), inner).prop_map(|(node, each)| merged(
                node,
                json!({"type": "object", "additionalProperties": each})
            )),
        ]
    })
}

fn merged(mut a: Value, b: Value) -> Value {
    if let (Some(a), Value::Object(b)) = (a.as_object_mut(), b) {
        a.extend(b);
    }
    a
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_schema_and_no_object_cause_a_panic_and_pruning_and_defaulting_settle(
        spec in any_schema(), object in any_json(), old in any_json(),
    ) {
        let root = json!({"type": "object", "properties": {"spec": spec}});
        if let Ok(schema) = compile(&root, "schema") {
            let mut object = json!({"spec": object});
            schema.prune(&mut object);
            let pruned = object.clone();
            prop_assert!(schema.prune(&mut object).is_empty());
            prop_assert_eq!(&object, &pruned);
            schema.default(&mut object);
            let defaulted = object.clone();
            schema.default(&mut object);
            prop_assert_eq!(&object, &defaulted);
            schema.validate(&object, None);
            schema.validate(&object, Some(&json!({"spec": old})));
            schema.validate_status(&object, &json!({"spec": old}));
        }
    }

    #[test]
    fn no_text_as_a_rule_a_pattern_or_a_path_causes_a_panic(text in "\\PC{0,24}|[a-z.()\\[\\]{}?:'\"&|<>=+0-9 *]{0,32}") {
        let root = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": text}},
            "x-kubernetes-validations": [{"rule": text, "messageExpression": text, "fieldPath": text}]});
        let _ = compile(&root, "schema");
        let _ = crd::jsonpath::JsonPath::parse(&text);
        let mut definition = json!({"metadata": {"name": text}, "spec": {"group": text, "names": {"plural": text}}});
        default_crd(&mut definition);
        validate_crd(&definition, None);
    }
}
