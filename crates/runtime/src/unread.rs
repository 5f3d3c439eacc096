//! Objects as a server sends them: known by name and version, and read one by one. What cannot be read does not take the rest
//! of a list with it.
//!
//! kube decodes a list as a whole, so that a single object of a newer version, or one a lax schema let through, would blind a
//! watch for all others. The bookkeeping of field managers is not read at all: it is half of a typical object, and of no use to
//! any controller. And as objects of all kinds look the same here, the code that watches is there once, not once for every kind.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object of whatever kind.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Its name and the like, as far as they can be read.
    metadata: ObjectMeta,
    text: Box<str>,
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

impl Unread {
    /// As an object of this kind; otherwise what is wrong with it.
    ///
    /// # Errors
    ///
    /// If it is no such object.
    pub fn read<K: DeserializeOwned>(&self) -> Result<K, serde_json::Error> {
        serde_json::from_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Box::<RawValue>::deserialize(deserializer)?;
        let text: Box<str> = without_field_managers(whole.get()).into();
        let Identity { name, namespace, uid, resource_version } =
            serde_json::from_str::<Named>(&text).unwrap_or_default().metadata;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self { metadata, text })
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

impl Resource for Unread {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
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
        let list: ObjectList<Unread> = serde_json::from_str(&list.to_string()).expect("a list");
        let names: Vec<_> =
            list.items.iter().map(|pod| (pod.meta().name.as_deref(), pod.read::<Pod>().is_ok())).collect();
        assert_eq!(names, [(Some("good"), true), (Some("odd"), false), (Some("fine"), true)]);
        assert_eq!(list.items[1].meta().namespace.as_deref(), Some("ns"));
        let problem = list.items[1].read::<Pod>().expect_err("odd").to_string();
        assert!(problem.contains("expected"), "{problem}");
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
        let unread: Unread = serde_json::from_str(&text(managers)).expect("an object");
        let meta = unread.read::<Pod>().expect("a pod").metadata;
        assert_eq!(meta.name.as_deref(), Some("p"));
        assert_eq!(meta.annotations.expect("annotations")["note"], r#"{"managedFields":[1,2]}"#);
    }

    #[test]
    fn an_odd_object_in_a_watch_keeps_its_version() {
        let event = json!({"type": "MODIFIED", "object": pod("odd", json!(3))});
        // As servers write it: the type first.
        let line = format!(r#"{{"type":"MODIFIED","object":{}}}"#, event["object"]);
        let event: WatchEvent<Unread> = serde_json::from_str(&line).expect("an event");
        let WatchEvent::Modified(odd) = event else { panic!("{event:?}") };
        assert_eq!(odd.meta().resource_version.as_deref(), Some("7"));
        assert!(odd.read::<Pod>().is_err());
    }
}
