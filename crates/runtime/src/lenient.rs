//! Objects read one by one: what cannot be read is known by name, and does not take the rest of a list with it.
//!
//! kube decodes a list as a whole, so that a single object of a newer version, or one a lax schema let through, would blind a
//! watch for all others. The bookkeeping of field managers is not read at all: it is half of a typical object, and of no use to
//! any controller.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object, or what is known of one that cannot be read.
#[derive(Clone, Debug)]
pub struct Lenient<K>(pub Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Its name and the like, as far as they can be read.
    pub metadata: ObjectMeta,
    /// What is wrong with it.
    pub problem: String,
}

#[derive(Default, Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Identity,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<K> From<K> for Lenient<K> {
    fn from(object: K) -> Self {
        Self(Ok(object))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Box::<RawValue>::deserialize(deserializer)?;
        let text = without_field_managers(whole.get());
        Ok(Self(serde_json::from_str(&text).map_err(|error| {
            let Identity { name, namespace, uid, resource_version } =
                serde_json::from_str::<Named>(&text).unwrap_or_default().metadata;
            let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
            Unreadable { metadata, problem: error.to_string() }
        })))
    }
}

/// The same object with nothing in its `metadata.managedFields`. Text that is laid out otherwise than servers do stays as it is.
fn without_field_managers(text: &str) -> Cow<'_, str> {
    // Quotes within strings are escaped: this can only be a key.
    const KEY: &str = r#""managedFields":["#;
    let Some(start) = text.find(KEY).map(|at| at + KEY.len()) else { return Cow::Borrowed(text) };
    let (mut depth, mut in_string, mut escaped) = (1, false, false);
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Cow::Owned([&text[..start], &text[at..]].concat());
        }
    }
    Cow::Borrowed(text)
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn api_version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::api_version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, containers: serde_json::Value) -> serde_json::Value {
        json!({"metadata": {"name": name, "namespace": "ns", "resourceVersion": "7"}, "spec": {"containers": containers}})
    }

    #[test]
    fn an_odd_object_does_not_take_the_list_with_it() {
        let list = json!({
            "apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "9"},
            "items": [pod("good", json!([])), pod("odd", json!("none")), pod("fine", json!([]))],
        });
        let list: ObjectList<Lenient<Pod>> = serde_json::from_str(&list.to_string()).expect("a list");
        let names: Vec<_> =
            list.items.iter().map(|pod| (pod.meta().name.as_deref(), pod.0.is_ok())).collect();
        assert_eq!(names, [(Some("good"), true), (Some("odd"), false), (Some("fine"), true)]);
        let odd = list.items[1].0.as_ref().expect_err("odd");
        assert_eq!(odd.metadata.namespace.as_deref(), Some("ns"));
        assert!(odd.problem.contains("expected"), "{odd}");
    }

    #[test]
    fn field_managers_are_left_out_whatever_they_wrote_and_nothing_else_is() {
        let managers =
            r#"[{"manager":"a ] \" }","fieldsV1":{"f:metadata":{"k:{\"x\":[1]}":{}}}},{"manager":"\\"}]"#;
        let note = r#"{\"managedFields\":[1,2]}"#;
        let text = |managers: &str| {
            format!(
                r#"{{"metadata":{{"annotations":{{"note":"{note}"}},"managedFields":{managers},"name":"p"}},"spec":{{"containers":[]}}}}"#
            )
        };
        assert_eq!(without_field_managers(&text(managers)), text("[]"));
        assert_eq!(without_field_managers(&text("[]")), text("[]"));
        assert_eq!(without_field_managers(r#""managedFields":[{"#), r#""managedFields":[{"#, "cut short");
        let Lenient(pod) = serde_json::from_str::<Lenient<Pod>>(&text(managers)).expect("a pod");
        let meta = pod.expect("a pod").metadata;
        assert_eq!(meta.name.as_deref(), Some("p"));
        assert_eq!(meta.annotations.expect("annotations")["note"], r#"{"managedFields":[1,2]}"#);
    }

    #[test]
    fn an_odd_object_in_a_watch_keeps_its_version() {
        let event = json!({"type": "MODIFIED", "object": pod("odd", json!(3))});
        // As servers write it: the type first.
        let line = format!(r#"{{"type":"MODIFIED","object":{}}}"#, event["object"]);
        let event: WatchEvent<Lenient<Pod>> = serde_json::from_str(&line).expect("an event");
        let WatchEvent::Modified(odd) = event else { panic!("{event:?}") };
        assert_eq!(odd.meta().resource_version.as_deref(), Some("7"));
        assert!(odd.0.is_err());
    }
}
