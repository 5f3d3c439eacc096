//! The status of a CRD: which names it got, whether it is served, which versions were ever stored.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::go_format;

/// Accepts the names of `crd` unless another of its group has them, and establishes it.
pub(crate) fn establish(crd: &mut Value, other_crds: &[&Value], now: &str) {
    remember_storage_version(crd);
    let group = crd["spec"]["group"].clone();
    let wanted = crd["spec"]["names"].clone();
    let accepted = crd["status"]["acceptedNames"].clone();
    let taken =
        Taken::by(other_crds.iter().copied().filter(|other| other["spec"]["group"] == group), &accepted);
    let mut names = accepted.as_object().cloned().unwrap_or_default();
    let mut conflict: Option<(&str, String)> = None;
    let scalars = [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("shortNames", "ShortNamesConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ];
    for (field, reason, taken) in scalars {
        match unavailable(&wanted[field], &accepted[field], taken) {
            Some(message) => conflict = Some((reason, message)),
            None => copy(&mut names, &wanted, field),
        }
    }
    copy(&mut names, &wanted, "categories");
    for required in ["kind", "plural"] {
        names.entry(required).or_insert_with(|| "".into());
    }
    let status = status_of(crd);
    status.insert("acceptedNames".into(), Value::Object(names));
    match conflict {
        None => {
            set_condition(status, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now);
            let message = "the initial names have been accepted";
            if !is_true(status, "Established") {
                set_condition(status, "Established", "True", "InitialNamesAccepted", message, now);
            }
        }
        Some((reason, message)) => {
            set_condition(status, "NamesAccepted", "False", reason, &message, now);
            if condition(status, "Established").is_none() {
                set_condition(
                    status,
                    "Established",
                    "False",
                    "NotAccepted",
                    "not all names are accepted",
                    now,
                );
            }
        }
    }
}

/// Adds the storage version to `status.storedVersions`, where it stays until someone migrates the objects.
pub(super) fn remember_storage_version(crd: &mut Value) {
    let versions = crd["spec"]["versions"].as_array();
    let storage = versions.into_iter().flatten().find(|v| v["storage"] == true).map(|v| v["name"].clone());
    let Some(storage) = storage else { return };
    let stored = status_of(crd).entry("storedVersions").or_insert_with(|| json!([]));
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Some(stored) = stored.as_array_mut().filter(|stored| !stored.contains(&storage)) {
        stored.push(storage);
    }
}

fn status_of(crd: &mut Value) -> &mut Map<String, Value> {
    if !crd.is_object() {
        *crd = json!({});
    }
    let status = &mut crd["status"];
    if !status.is_object() {
        *status = json!({});
    }
    match status {
        Value::Object(map) => map,
        _ => unreachable!("just made an object"),
    }
}

/// Names that CRDs of the group hold.
struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    fn by<'a>(others: impl Iterator<Item = &'a Value>, own: &Value) -> Self {
        let mut taken = Self { resources: BTreeSet::new(), kinds: BTreeSet::new() };
        for names in others.map(|crd| &crd["status"]["acceptedNames"]).chain([own]) {
            let text = |field: &str| names[field].as_str().map(str::to_owned);
            let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
            taken.resources.extend(text("plural").into_iter().chain(text("singular")));
            taken.resources.extend(short.map(str::to_owned));
            taken.kinds.extend(text("kind").into_iter().chain(text("listKind")));
        }
        taken
    }
}

/// Why `wanted` cannot be had, if it cannot. What is already ours always can.
fn unavailable(wanted: &Value, accepted: &Value, taken: &BTreeSet<String>) -> Option<String> {
    if wanted == accepted {
        return None;
    }
    let ours = |name: &str| accepted.as_array().is_some_and(|list| list.iter().any(|own| own == name));
    let names: Vec<&str> = match wanted {
        Value::Array(list) => list.iter().filter_map(Value::as_str).filter(|name| !ours(name)).collect(),
        other => other.as_str().into_iter().collect(),
    };
    let conflicts: Vec<String> = names
        .into_iter()
        .filter(|name| taken.contains(*name))
        .map(|name| format!("{} is already in use", go_format::quote(name)))
        .collect();
    match conflicts.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}

fn copy(names: &mut Map<String, Value>, wanted: &Value, field: &str) {
    match &wanted[field] {
        Value::Null => names.remove(field),
        value => names.insert(field.into(), value.clone()),
    };
}

fn condition<'a>(status: &'a Map<String, Value>, kind: &str) -> Option<&'a Value> {
    status.get("conditions")?.as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn is_true(status: &Map<String, Value>, kind: &str) -> bool {
    condition(status, kind).is_some_and(|condition| condition["status"] == "True")
}

fn set_condition(
    status: &mut Map<String, Value>,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    let fresh = json!({
        "type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now,
    });
    match list.iter_mut().find(|condition| condition["type"] == kind) {
        None => list.push(fresh),
        Some(existing) => {
            let since = existing["lastTransitionTime"].clone();
            let same = existing["status"] == value && !since.is_null();
            *existing = fresh;
            if same {
                existing["lastTransitionTime"] = since;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(plural: &str, kind: &str) -> Value {
        json!({
            "spec": {"group": "example.com", "versions": [{"name": "v1", "storage": true}], "names": {
                "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"),
            }},
        })
    }

    #[test]
    fn free_names_are_accepted_and_the_crd_is_established() {
        let mut crd = crd("widgets", "Widget");
        establish(&mut crd, &[], "2026-11-15T09:00:00Z");
        assert_eq!(
            crd["status"],
            json!({
                "acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "storedVersions": ["v1"],
                "conditions": [
                    {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found", "lastTransitionTime": "2026-11-15T09:00:00Z"},
                    {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted", "lastTransitionTime": "2026-11-15T09:00:00Z"},
                ],
            })
        );
    }

    #[test]
    fn a_name_in_use_by_another_crd_of_the_group_is_a_conflict() {
        let mut first = crd("widgets", "Widget");
        establish(&mut first, &[], "t0");
        let mut second = crd("gadgets", "Widget");
        establish(&mut second, &[&first], "t1");
        let conditions = &second["status"]["conditions"];
        assert_eq!(conditions[0]["reason"], "ListKindConflict");
        assert_eq!(conditions[0]["message"], "\"WidgetList\" is already in use");
        assert_eq!(conditions[1]["reason"], "NotAccepted");
        assert_eq!(second["status"]["acceptedNames"], json!({"plural": "gadgets", "kind": ""}));
    }

    #[test]
    fn establishing_again_keeps_the_times() {
        let mut crd = crd("widgets", "Widget");
        establish(&mut crd, &[], "t0");
        let once = crd.clone();
        establish(&mut crd, &[], "t1");
        assert_eq!(crd, once);
    }
}
