//! Which version of each kind the management cluster serves. Asked once and again when something was not found: a management cluster
//! is upgraded while we run.
//!
//! Providers of Cluster API share groups: that one of them serves a version does not mean that the kind of another has it. Which version
//! of a kind keeps to Cluster API's contract is said by labels of its definition, `cluster.x-k8s.io/<contract>: <version>_<version>`; Cluster
//! API goes by them wherever a reference names no version, and so do we. Where the definition has none, or may not be read, it is the
//! version the server prefers among those that have the kind.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::core::{ApiResource, GroupVersionKind, Version};
use kube::{Api, Client};
use tokio::time::Instant;

use crate::names::CAPI_GROUP;

/// Versions of Cluster API we can read, best first. Each is a contract that includes those after it.
const KNOWN: &[&str] = &["v1beta2", "v1beta1"];

/// How long a version holds that no label told: rights may be granted, and providers upgraded, while we run.
const WITHOUT_LABEL: Duration = Duration::from_secs(10 * 60);

/// For how long others go on with a version that holds no longer while one asks for it anew.
const ASKING: Duration = Duration::from_secs(30);

/// The versions in use.
#[derive(Debug, Default)]
pub(crate) struct Versions(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    /// Cluster API's own.
    own: Option<String>,
    /// Kinds of other groups, and until when that holds.
    kinds: BTreeMap<(String, String), (ApiResource, Option<Instant>)>,
    /// Whether it was told that definitions may not be read.
    refusal_told: bool,
}

/// Why a kind cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The server does not know the group.
    #[error(
        "the management cluster serves no API group {0}; is Cluster API (or this infrastructure provider) installed there?"
    )]
    NoGroup(String),
    /// The server has the group without the kind.
    #[error(
        "the management cluster serves {group} without the kind {kind}; is its provider installed there?"
    )]
    NoKind { group: String, kind: String },
    /// The server has versions we do not know.
    #[error(
        "the management cluster serves {group} only as {served}; this provider reads v1beta2 and v1beta1"
    )]
    NoVersion { group: String, served: String },
    /// The server could not be asked.
    #[error("asking the management cluster for its API groups")]
    Unreachable(#[source] Box<kube::Error>),
}

impl Versions {
    /// The version of Cluster API's own kinds: the best we know.
    pub(crate) async fn own(&self, client: &Client) -> Result<String, VersionError> {
        if let Some(version) = self.known() {
            return Ok(version);
        }
        let served = served(&group(client, CAPI_GROUP).await?);
        let best = KNOWN.iter().copied().find(|known| served.iter().any(|version| version == known));
        let best = best.ok_or_else(|| VersionError::NoVersion {
            group: CAPI_GROUP.to_owned(),
            served: served.join(", "),
        })?;
        self.lock().own = Some(best.to_owned());
        Ok(best.to_owned())
    }

    /// The version of Cluster API's own kinds that was last found, if it was asked for.
    pub(crate) fn known(&self) -> Option<String> {
        self.lock().own.clone()
    }

    /// Has the server asked again.
    pub(crate) fn forget(&self) {
        let mut known = self.lock();
        known.own = None;
        known.kinds.clear();
    }

    /// A kind of a group as it is served.
    pub(crate) async fn resource(
        &self,
        client: &Client,
        group: &str,
        kind: &str,
    ) -> Result<ApiResource, VersionError> {
        if group == CAPI_GROUP {
            let version = self.own(client).await?;
            return Ok(ApiResource::from_gvk(&GroupVersionKind::gvk(group, &version, kind)));
        }
        let key = (group.to_owned(), kind.to_owned());
        let old = match self.held(&key) {
            Some((resource, true)) => return Ok(resource),
            old => old.map(|(resource, _)| resource),
        };
        let (resource, is_told) = match (self.find(client, group, kind).await, old) {
            // No answer is no reason to give up what has served until now.
            (Err(VersionError::Unreachable(_)), Some(old)) => return Ok(old),
            (found, _) => found?,
        };
        let until = (!is_told).then(|| Instant::now() + WITHOUT_LABEL);
        self.lock().kinds.insert(key, (resource.clone(), until));
        Ok(resource)
    }

    /// A kind as it was last found, and whether that still holds. If not, whoever is told so is to ask; to others it holds meanwhile.
    fn held(&self, key: &(String, String)) -> Option<(ApiResource, bool)> {
        let now = Instant::now();
        let mut known = self.lock();
        let (resource, until) = known.kinds.get_mut(key)?;
        let holds = until.is_none_or(|until| until > now);
        if !holds {
            *until = Some(now + ASKING);
        }
        Some((resource.clone(), holds))
    }

    /// A kind as it is served, and whether its definition tells that.
    async fn find(
        &self,
        client: &Client,
        name: &str,
        kind: &str,
    ) -> Result<(ApiResource, bool), VersionError> {
        let contract = self.own(client).await?;
        let served = served(&group(client, name).await?);
        // The plural is the one Cluster API computes from the kind.
        let resource = |version: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(name, version, kind));
        let definition = format!("{}.{name}", resource("").plural);
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        match definitions.get_metadata(&definition).await {
            Ok(definition) => {
                let labels = definition.metadata.labels.unwrap_or_default();
                if let Some(version) = by_contract(&labels, &contract, &served) {
                    return Ok((resource(&version), true));
                }
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                if !std::mem::replace(&mut self.lock().refusal_told, true) {
                    tracing::warn!(
                        refusal = status.message,
                        "which versions of templates keep to Cluster API's contract may not be read, going by those that the server prefers"
                    );
                }
            }
            // A kind may be served without a definition.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(VersionError::Unreachable(Box::new(error))),
        }
        for version in served {
            let listed = match client.list_api_group_resources(&format!("{name}/{version}")).await {
                Ok(listed) => listed.resources,
                // Gone since it was listed.
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => return Err(VersionError::Unreachable(Box::new(error))),
            };
            let found = listed.into_iter().find(|listed| listed.kind == kind && !listed.name.contains('/'));
            if let Some(found) = found {
                return Ok((ApiResource { plural: found.name, ..resource(&version) }, false));
            }
        }
        Err(VersionError::NoKind { group: name.to_owned(), kind: kind.to_owned() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group as the server has it.
async fn group(client: &Client, name: &str) -> Result<APIGroup, VersionError> {
    let groups = client.list_api_groups().await;
    let groups = groups.map_err(|error| VersionError::Unreachable(Box::new(error)))?;
    let found = groups.groups.into_iter().find(|known| known.name == name);
    found.ok_or_else(|| VersionError::NoGroup(name.to_owned()))
}

/// The versions of a group, the one the server prefers first.
fn served(group: &APIGroup) -> Vec<String> {
    let preferred = group.preferred_version.as_ref().map(|version| version.version.clone());
    let others = group.versions.iter().map(|version| version.version.clone());
    let others = others.filter(|version| Some(version) != preferred.as_ref());
    preferred.iter().cloned().chain(others).collect()
}

/// The newest version that a definition says to keep to the newest contract that this Cluster API knows, of those that are served.
fn by_contract(labels: &BTreeMap<String, String>, contract: &str, served: &[String]) -> Option<String> {
    let contracts = KNOWN.iter().skip_while(|known| **known != contract);
    contracts
        .filter_map(|contract| labels.get(&format!("{CAPI_GROUP}/{contract}")))
        .find_map(|versions| {
            let told = versions.split('_').filter(|told| served.iter().any(|version| version == told));
            told.max_by_key(|told| Version::parse(told).priority())
        })
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const INFRA: &str = "infrastructure.cluster.x-k8s.io";

    /// A management cluster that prefers v1beta2 of the infrastructure group, which has no FakeMachineTemplate in it.
    fn server(definition: (u16, Value)) -> Client {
        let answer = move |request: http::Request<Body>| {
            let versions = |group: &str, versions: &[&str]| {
                let all: Vec<Value> = versions
                    .iter()
                    .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
                    .collect();
                json!({"name": group, "versions": all, "preferredVersion": all[0]})
            };
            let resources = |names: &[(&str, &str)]| {
                let all: Vec<Value> = names
                    .iter()
                    .map(|(name, kind)| {
                        json!({"name": name, "kind": kind, "singularName": "", "namespaced": true, "verbs": ["get"]})
                    })
                    .collect();
                json!({"kind": "APIResourceList", "groupVersion": "x", "resources": all})
            };
            let group = "/apis/infrastructure.cluster.x-k8s.io";
            let (code, body) = match request.uri().path().strip_prefix(group) {
                Some("/v1beta2") => (200, resources(&[("others", "Other")])),
                Some("/v1beta1" | "/v1alpha1") => (
                    200,
                    resources(&[
                        ("fakemachinetemplates/status", "FakeMachineTemplate"),
                        ("fakemachinetemplates", "FakeMachineTemplate"),
                    ]),
                ),
                Some(_) => (404, json!({})),
                None if request
                    .uri()
                    .path()
                    .ends_with("/fakemachinetemplates.infrastructure.cluster.x-k8s.io") =>
                {
                    definition.clone()
                }
                None => {
                    let ours = versions(CAPI_GROUP, &["v1beta2", "v1beta1"]);
                    let theirs = versions(INFRA, &["v1beta2", "v1beta1", "v1alpha1"]);
                    (200, json!({"kind": "APIGroupList", "groups": [ours, theirs]}))
                }
            };
            let body = Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).expect("an answer");
            async move { Ok::<_, Infallible>(answer) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    async fn found(definition: (u16, Value)) -> String {
        let resource = Versions::default().resource(&server(definition), INFRA, "FakeMachineTemplate").await;
        resource.expect("a resource").api_version
    }

    fn definition(labels: Value) -> (u16, Value) {
        let metadata =
            json!({"name": "fakemachinetemplates.infrastructure.cluster.x-k8s.io", "labels": labels});
        (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}))
    }

    fn status(code: u16) -> (u16, Value) {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Any", "message": "no", "code": code,
        });
        (code, status)
    }

    #[tokio::test]
    async fn the_version_of_a_kind_is_the_one_its_definition_says_keeps_to_the_contract() {
        let labels = json!({"cluster.x-k8s.io/v1beta1": "v1alpha1_v1beta1"});
        assert_eq!(found(definition(labels)).await, format!("{INFRA}/v1beta1"), "the newest of the list");
        let labels = json!({"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1alpha1"});
        assert_eq!(found(definition(labels)).await, format!("{INFRA}/v1alpha1"), "of the newest contract");
        let labels = json!({"cluster.x-k8s.io/v1beta2": "v1beta9", "cluster.x-k8s.io/v1beta1": "v1alpha1"});
        assert_eq!(found(definition(labels)).await, format!("{INFRA}/v1alpha1"), "of those that are served");
    }

    #[tokio::test]
    async fn without_labels_or_the_right_to_read_them_it_is_the_preferred_version_that_has_the_kind() {
        for definition in [definition(json!({})), status(403), status(404)] {
            assert_eq!(found(definition).await, format!("{INFRA}/v1beta1"));
        }
    }

    #[tokio::test]
    async fn a_definition_that_could_not_be_read_is_no_definition_without_labels() {
        let versions = Versions::default();
        let asked = versions.resource(&server(status(500)), INFRA, "FakeMachineTemplate").await;
        assert!(matches!(asked, Err(VersionError::Unreachable(_))), "{asked:?}");
        let asked =
            versions.resource(&server(status(404)), INFRA, "LostTemplate").await.expect_err("no such kind");
        assert!(asked.to_string().contains("without the kind LostTemplate"), "{asked}");
    }

    /// Versions of which one was found that no label told, and that holds no longer.
    async fn expired() -> Versions {
        let versions = Versions::default();
        assert_eq!(in_use(&versions, status(403)).await, format!("{INFRA}/v1beta1"));
        tokio::time::advance(WITHOUT_LABEL).await;
        versions
    }

    async fn in_use(versions: &Versions, definition: (u16, Value)) -> String {
        let resource = versions.resource(&server(definition), INFRA, "FakeMachineTemplate").await;
        resource.expect("a resource").api_version
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_serves_on_while_the_server_does_not_say_which_it_is() {
        let versions = expired().await;
        assert_eq!(in_use(&versions, status(500)).await, format!("{INFRA}/v1beta1"));
        tokio::time::advance(ASKING).await;
        let told = || definition(json!({"cluster.x-k8s.io/v1beta2": "v1alpha1"}));
        assert_eq!(in_use(&versions, told()).await, format!("{INFRA}/v1alpha1"), "it is asked again soon");
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_asked_for_anew_is_asked_for_by_one() {
        let versions = expired().await;
        let key = (INFRA.to_owned(), "FakeMachineTemplate".to_owned());
        assert_eq!(versions.held(&key).map(|(_, holds)| holds), Some(false), "the first one asks");
        let told = || definition(json!({"cluster.x-k8s.io/v1beta2": "v1alpha1"}));
        assert_eq!(in_use(&versions, told()).await, format!("{INFRA}/v1beta1"), "the others go on");
        tokio::time::advance(ASKING).await;
        assert_eq!(
            in_use(&versions, told()).await,
            format!("{INFRA}/v1alpha1"),
            "the first one has not come back"
        );
    }

    #[test]
    fn a_contract_that_this_cluster_api_does_not_know_says_nothing() {
        let labels = BTreeMap::from([
            ("cluster.x-k8s.io/v1beta1".to_owned(), "v1beta1".to_owned()),
            ("cluster.x-k8s.io/v1beta2".to_owned(), "v1beta2".to_owned()),
        ]);
        let served = ["v1beta2".to_owned(), "v1beta1".to_owned()];
        assert_eq!(by_contract(&labels, "v1beta1", &served).as_deref(), Some("v1beta1"));
        assert_eq!(by_contract(&labels, "v1beta2", &served).as_deref(), Some("v1beta2"));
    }
}
