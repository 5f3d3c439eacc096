//! Reading single fields of objects whose shape depends on their version. Absent, null and empty are the same; a field of the
//! wrong type is an error that names the object and the key, and is nobody's panic.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// A field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{object}: {key}: {problem}")]
pub struct Malformed {
    /// Kind and key of the object.
    pub(crate) object: String,
    /// The field, annotation or label.
    pub(crate) key: String,
    /// What is wrong with it, and what it should be.
    pub(crate) problem: String,
}

/// An object with its name for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    kind: &'a str,
    object: &'a DynamicObject,
}

impl<'a> Fields<'a> {
    /// Of an object of this kind.
    pub(crate) fn of(kind: &'a str, object: &'a DynamicObject) -> Self {
        Self { kind, object }
    }

    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::of(self.object)
    }

    /// An error about one key of this object.
    pub(crate) fn malformed(&self, key: impl Into<String>, problem: impl fmt::Display) -> Malformed {
        Malformed {
            object: format!("{} {}", self.kind, self.key()),
            key: key.into(),
            problem: problem.to_string(),
        }
    }

    /// What stands at a path such as `spec.template.spec`; null is nothing.
    pub(crate) fn at(&self, path: &str) -> Option<&'a Value> {
        let mut value = &self.object.data;
        for part in path.split('.') {
            value = value.get(part)?;
        }
        (!value.is_null()).then_some(value)
    }

    /// A text; empty is nothing.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, Malformed> {
        match self.at(path) {
            None => Ok(None),
            Some(Value::String(text)) => Ok((!text.is_empty()).then(|| text.clone())),
            Some(_) => Err(self.malformed(path, "is not a text")),
        }
    }

    /// The first of several paths that has a text.
    pub(crate) fn first_text(&self, paths: &[&str]) -> Result<Option<String>, Malformed> {
        for path in paths {
            if let Some(text) = self.text(path)? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    pub(crate) fn int(&self, path: &str) -> Result<Option<i32>, Malformed> {
        match self.at(path) {
            None => Ok(None),
            Some(value) => match value.as_i64().and_then(|number| i32::try_from(number).ok()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.malformed(path, "is not a whole number")),
            },
        }
    }

    /// Yes or no; absent is no.
    pub(crate) fn flag(&self, path: &str) -> Result<bool, Malformed> {
        match self.at(path) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.malformed(path, "is neither true nor false")),
        }
    }

    /// A map of texts.
    pub(crate) fn texts(&self, path: &str) -> Result<BTreeMap<String, String>, Malformed> {
        let Some(value) = self.at(path) else { return Ok(BTreeMap::new()) };
        let Value::Object(map) = value else { return Err(self.malformed(path, "is not a map")) };
        map.iter()
            .map(|(key, value)| match value {
                Value::String(text) => Ok((key.clone(), text.clone())),
                // Quantities may be written as numbers.
                Value::Number(number) => Ok((key.clone(), number.to_string())),
                _ => Err(self.malformed(format!("{path}.{key}"), "is not a text")),
            })
            .collect()
    }

    /// The elements of a list; absent is empty.
    pub(crate) fn list(&self, path: &str) -> Result<&'a [Value], Malformed> {
        match self.at(path) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.malformed(path, "is not a list")),
        }
    }

    /// The object's labels.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.object.metadata.labels.clone().unwrap_or_default()
    }

    /// The object's annotations.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        self.object.metadata.annotations.clone().unwrap_or_default()
    }

    /// When the object was made; long ago if it does not say.
    pub(crate) fn created(&self) -> Timestamp {
        self.object.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
    }

    /// Whether the object is on its way out.
    pub(crate) fn deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// The object's uid.
    pub(crate) fn uid(&self) -> String {
        self.object.metadata.uid.clone().unwrap_or_default()
    }

    /// The object's version.
    pub(crate) fn resource_version(&self) -> String {
        self.object.metadata.resource_version.clone().unwrap_or_default()
    }

    /// The object's conditions: in v1beta1 those of the newer kind stand one level deeper.
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        let items = self.at("status.v1beta2.conditions").or_else(|| self.at("status.conditions"));
        let items = items.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(Condition::read).collect()
    }

    /// A condition of the older kind, which newer versions keep elsewhere, and some of which nothing of the newer kind says.
    pub(crate) fn older_condition(&self, kind: &str) -> Option<Condition> {
        let places = ["status.conditions", "status.deprecated.v1beta1.conditions"];
        let items = places.iter().filter_map(|place| self.at(place)?.as_array()).flatten();
        items.filter_map(Condition::read).find(|condition| condition.kind == kind)
    }

    /// A reference to another object, in either version's shape.
    pub(crate) fn reference(&self, path: &str) -> Result<Option<Reference>, Malformed> {
        let (Some(kind), Some(name)) =
            (self.text(&format!("{path}.kind"))?, self.text(&format!("{path}.name"))?)
        else {
            return Ok(None);
        };
        let api_version = self.text(&format!("{path}.apiVersion"))?.unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", ""));
        let group = self.text(&format!("{path}.apiGroup"))?.unwrap_or_else(|| group.to_owned());
        Ok(Some(Reference { group, version: version.to_owned(), kind, name }))
    }
}

/// What another object points to; it lives in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) group: String,
    /// Version, where the reference names one: v1beta1 did.
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A condition of a Cluster API object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Which aspect.
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    /// Why, for programs.
    pub(crate) reason: String,
    /// Why, for people.
    pub(crate) message: String,
}

impl Condition {
    fn read(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = text("type");
        (!kind.is_empty()).then(|| Self {
            kind,
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
        })
    }

    /// Whether it is known not to hold.
    pub(crate) fn is_false(&self) -> bool {
        self.status == "False"
    }

    pub(crate) fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// Conditions, as they stand in an object, with one of them set anew; `None` if it is so already.
pub(crate) fn with_condition(
    mut conditions: Vec<Value>,
    wanted: &Condition,
    now: Timestamp,
) -> Option<Vec<Value>> {
    let at = conditions.iter().position(|condition| condition["type"] == *wanted.kind);
    let before = at.and_then(|at| Condition::read(&conditions[at]));
    if before.as_ref() == Some(wanted) {
        return None;
    }
    let since = at.map(|at| conditions[at]["lastTransitionTime"].clone()).filter(|since| !since.is_null());
    let unchanged = before.is_some_and(|before| before.status == wanted.status);
    let set = json!({
        "type": wanted.kind, "status": wanted.status, "reason": wanted.reason, "message": wanted.message,
        "lastTransitionTime": since.filter(|_| unchanged).unwrap_or_else(|| json!(Time(now))),
    });
    match at {
        Some(at) => conditions[at] = set,
        None => conditions.push(set),
    }
    Some(conditions)
}

/// The condition of a type.
pub(crate) fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// `namespace/name`, as annotations hold it: exactly one slash, both parts non-empty.
pub(crate) fn parse_key(text: &str) -> Option<ObjectKey> {
    let (namespace, name) = text.split_once('/')?;
    let (namespace, name) = (namespace.trim(), name.trim());
    let whole = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
    whole.then(|| ObjectKey::namespaced(namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_set_among_the_others_and_not_twice() {
        let condition = |status: &str, message: &str| Condition {
            kind: "UpToDate".to_owned(),
            status: status.to_owned(),
            reason: "Reason".to_owned(),
            message: message.to_owned(),
        };
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).expect("a time");
        let other = json!({"type": "Ready", "status": "True", "observedGeneration": 3});
        let first = with_condition(vec![other.clone()], &condition("True", ""), at(0)).expect("set");
        assert_eq!(
            (first.len(), &first[0], &first[1]["lastTransitionTime"]),
            (2, &other, &json!(Time(at(0))))
        );
        assert_eq!(with_condition(first.clone(), &condition("True", ""), at(5)), None);
        let reworded = with_condition(first, &condition("True", "words"), at(10)).expect("set");
        assert_eq!(reworded[1]["lastTransitionTime"], json!(Time(at(0))), "it holds since then");
        let turned = with_condition(reworded, &condition("False", "words"), at(20)).expect("set");
        assert_eq!((turned.len(), &turned[1]["lastTransitionTime"]), (2, &json!(Time(at(20)))));
    }
}
