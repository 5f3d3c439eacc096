//! What the provider says and does in the cluster itself: events for the people who look at an object, and giving up NodeClaims
//! whose machine will never come.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use karpenter_api::NodeClaim;
use karpenter_runtime::events::{Event, EventType, Recorder, reference};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Resource, ResourceExt as _};

use crate::nodeclass::ValueRef;

/// Why a value of the cluster cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoValue {
    /// It is not there: somebody has to write it.
    #[error("{0}")]
    Missing(String),
    /// Nobody knows whether it is there.
    #[error("{0}")]
    Unreadable(String),
}

/// The provider's way to tell and to act. Without a cluster it keeps silent.
#[derive(Clone, Default)]
pub struct Voice {
    recorder: Option<Recorder>,
    claims: Option<Api<NodeClaim>>,
    client: Option<kube::Client>,
}

impl Voice {
    /// In a cluster.
    pub fn new(recorder: Recorder, client: kube::Client) -> Self {
        Self { recorder: Some(recorder), claims: Some(Api::all(client.clone())), client: Some(client) }
    }

    /// A value of a Secret or ConfigMap.
    pub(crate) async fn value_of(&self, wanted: &ValueRef) -> Result<String, NoValue> {
        let ValueRef { kind, namespace, name, key } = wanted;
        let kind = kind.as_deref().unwrap_or("Secret");
        let place = format!("{kind} {namespace}/{name}");
        let client = self
            .client
            .clone()
            .ok_or_else(|| NoValue::Unreadable(format!("no cluster to read {place} from")))?;
        let cannot = |error: kube::Error| NoValue::Unreadable(format!("{place} cannot be read: {error}"));
        let missing = |text: String| NoValue::Missing(text);
        let value = if kind == "ConfigMap" {
            let object =
                Api::<ConfigMap>::namespaced(client, namespace).get_opt(name).await.map_err(cannot)?;
            let object = object.ok_or_else(|| missing(format!("there is no {place}")))?;
            object.data.and_then(|mut data| data.remove(key))
        } else {
            let object = Api::<Secret>::namespaced(client, namespace).get_opt(name).await.map_err(cannot)?;
            let object = object.ok_or_else(|| missing(format!("there is no {place}")))?;
            let bytes = object.data.and_then(|mut data| data.remove(key));
            bytes
                .map(|bytes| String::from_utf8(bytes.0))
                .transpose()
                .map_err(|_| missing(format!("{place}: {key} is no text")))?
        };
        value.filter(|value| !value.is_empty()).ok_or_else(|| missing(format!("{place} has no key {key}")))
    }

    /// Something that somebody should look at.
    pub(crate) fn warn<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.tell(object, EventType::Warning, reason.into(), message.into());
    }

    /// Something that is as it should be.
    pub(crate) fn inform<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.tell(object, EventType::Normal, reason.into(), message.into());
    }

    fn tell<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        kind: EventType,
        reason: Cow<'static, str>,
        message: String,
    ) {
        if let Some(recorder) = &self.recorder {
            let name = object.meta().name.clone().unwrap_or_default();
            let values = [name, message.clone()];
            recorder.publish(Event::new(reference(object), kind, reason, message).dedupe_by(values));
        }
    }

    /// Deletes a NodeClaim whose machine is lost, so that the core makes another. Only this very one.
    pub(crate) async fn give_up(&self, claim: &NodeClaim, reason: &'static str, why: &str) {
        self.warn(claim, reason, why);
        let Some(claims) = &self.claims else { return };
        let only_this = Preconditions { uid: claim.uid(), resource_version: None };
        let how = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        match claims.delete(&claim.name_any(), &how).await {
            Ok(_) => tracing::info!(NodeClaim = claim.name_any(), why, "gave up a NodeClaim"),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
            Err(error) => tracing::warn!(NodeClaim = claim.name_any(), %error, "will give it up later"),
        }
    }
}
