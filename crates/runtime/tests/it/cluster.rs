//! A server, and links to it that can be cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_apiserver::{ApiServer, Options, Seeded};
use karpenter_runtime::environment::Environment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use tower::{BoxError, Service, service_fn};

pub(crate) struct Cluster {
    server: ApiServer,
}

/// The way from one client to the server.
#[derive(Clone, Default)]
pub(crate) struct Link(Arc<AtomicBool>);

impl Link {
    pub(crate) fn cut(&self, cut: bool) {
        self.0.store(cut, Ordering::Relaxed);
    }
}

pub(crate) fn environment(seed: u64) -> Environment {
    Environment::seeded("2026-01-01T00:00:00Z".parse().expect("a time"), seed)
}

impl Cluster {
    /// With room for so many events before watches have to start over.
    pub(crate) fn new(history_events: usize) -> Self {
        Self { server: ApiServer::new(Seeded::default(), Options { history_events, ..Options::default() }) }
    }

    pub(crate) fn client(&self, link: &Link) -> Client {
        let (service, link) = (self.server.service(), link.clone());
        let linked = service_fn(move |request: Request<Body>| {
            let (mut service, link) = (service.clone(), link.clone());
            async move {
                if link.0.load(Ordering::Relaxed) {
                    return Err(BoxError::from("connection refused"));
                }
                service.call(request).await.map_err(BoxError::from)
            }
        });
        Client::new(linked, "default")
    }

    /// A client nothing ever happens to.
    pub(crate) fn kubectl(&self) -> Client {
        self.client(&Link::default())
    }

    pub(crate) async fn create(&self, name: &str) {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.labels = Some(BTreeMap::from([("watched".to_owned(), "yes".to_owned())]));
        self.config_maps().create(&PostParams::default(), &object).await.expect("created");
    }

    pub(crate) async fn write(&self, name: &str, value: &str) {
        let patch = serde_json::json!({"data": {"value": value}});
        self.config_maps().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.config_maps().delete(name, &Default::default()).await.expect("deleted");
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.kubectl(), "default")
    }
}

pub(crate) async fn seconds(secs: u64) {
    tokio::time::sleep(std::time::Duration::from_secs(secs)).await;
}
