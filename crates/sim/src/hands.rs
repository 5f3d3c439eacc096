//! The few writes that several actors make: pods from templates, deletions that mean one very object.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::actor::{code, unless_gone};
use crate::objects::uid;

/// That `owner` controls what carries this.
pub(crate) fn controlled_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: uid(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod as a template says, owned by `owner`, named by the server.
pub(crate) fn from_template<K: Resource<DynamicType = ()>>(template: &PodTemplateSpec, owner: &K) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", owner.meta().name.as_deref().unwrap_or_default())),
        namespace: owner.meta().namespace.clone(),
        labels: meta.labels,
        annotations: meta.annotations,
        finalizers: meta.finalizers,
        owner_references: Some(vec![controlled_by(owner)]),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: template.spec.clone(), status: None }
}

/// Creates a pod; one that exists already under its fixed name is as good.
pub(crate) async fn create_pod(client: &kube::Client, pod: &Pod) -> Result<(), kube::Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match pods.create(&PostParams::default(), pod).await {
        Err(error) if code(&error) == 409 => Ok(()),
        // The namespace is going, and everything in it.
        Err(error) if matches!(code(&error), 403 | 404) => Ok(()),
        other => other.map(drop),
    }
}

/// Deletes this pod and no later one of its name.
pub(crate) async fn delete_pod(
    client: &kube::Client,
    pod: &Pod,
    grace_seconds: Option<u32>,
) -> Result<(), kube::Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    delete(&Api::<Pod>::namespaced(client.clone(), namespace), pod, grace_seconds).await
}

/// Deletes this object and no later one of its name.
pub(crate) async fn delete<K>(api: &Api<K>, object: &K, grace_seconds: Option<u32>) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let preconditions = Preconditions { uid: object.meta().uid.clone(), ..Preconditions::default() };
    let params = DeleteParams {
        grace_period_seconds: grace_seconds,
        preconditions: Some(preconditions),
        ..DeleteParams::background()
    };
    let name = object.meta().name.as_deref().unwrap_or_default();
    match api.delete(name, &params).await {
        // Another of the same name: ours is gone.
        Err(error) if code(&error) == 409 => Ok(()),
        other => unless_gone(other).map(drop),
    }
}
