//! Label selectors against the recorded parses and matches.

use std::collections::BTreeMap;

use karpenter_primitives::{LabelSelector, Selector};

use crate::{rows, text};

#[test]
fn every_recorded_selector_parses_prints_and_matches_as_in_go() {
    let mut wrong = Vec::new();
    let mut sets: Vec<BTreeMap<String, String>> = Vec::new();
    for row in rows(include_str!("../../../../conformance/api/selectors.json")) {
        if row["sets"].is_array() {
            sets = serde_json::from_value(row["sets"].clone()).unwrap();
            continue;
        }
        let selector = if row["object"].is_object() {
            serde_json::from_value::<LabelSelector>(row["object"].clone()).unwrap().to_selector()
        } else {
            Selector::parse(text(&row, "in"))
        };
        let (got, want) = match selector {
            Err(error) => (error.to_string(), text(&row, "error").to_owned()),
            Ok(selector) => {
                let matched: Vec<usize> =
                    sets.iter().enumerate().filter(|(_, s)| selector.matches(s)).map(|(i, _)| i).collect();
                let recorded: Vec<usize> = serde_json::from_value(row["matches"].clone()).unwrap_or_default();
                (format!("{selector} {matched:?}"), format!("{} {recorded:?}", text(&row, "out")))
            }
        };
        if got != want {
            wrong.push(format!("{row}: got {got}, Go says {want}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn an_absent_selector_selects_nothing_and_an_empty_one_everything() {
    let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    assert!(!Selector::nothing().matches(&labels));
    assert!(LabelSelector::default().to_selector().unwrap().matches(&labels));
}

#[test]
fn an_exact_match_is_found_only_where_one_value_is_pinned() {
    let selector = Selector::parse("a=b,c in (d),e in (f,g),h!=i").unwrap();
    let pinned = |key| selector.exact_match(key);
    assert_eq!((pinned("a"), pinned("c")), (Some("b"), Some("d")));
    assert_eq!((pinned("e"), pinned("h"), pinned("z")), (None, None, None));
}
