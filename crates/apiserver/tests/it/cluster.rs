//! What the tests stand on: a server in process, a client to it, and a few objects.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use karpenter_apiserver::{ApiServer, Options, Seeded};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

pub(crate) fn server() -> ApiServer {
    server_with(Options::default())
}

pub(crate) fn server_with(options: Options) -> ApiServer {
    ApiServer::new(Seeded::default(), options)
}

pub(crate) fn client(server: &ApiServer) -> Client {
    Client::new(server.service(), "default")
}

pub(crate) fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap()
}

/// A pod on a node, so that its deletion takes its grace period.
pub(crate) fn bound_pod(name: &str) -> Pod {
    pod(name, json!({"nodeName": "node-1"}))
}

pub(crate) fn pod(name: &str, spec: Value) -> Pod {
    let mut object = json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// Creates an object and gives back its uid.
pub(crate) async fn create<K>(api: &Api<K>, object: &K) -> String
where
    K: kube::Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), object).await.unwrap().uid().unwrap()
}

/// The status code of a refused request.
pub(crate) fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> u16 {
    status(result).code
}

pub(crate) fn status<T: std::fmt::Debug>(result: kube::Result<T>) -> kube::core::Status {
    match result {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
