//! One list of all Machines for everybody who asks while it is not begun: many NodeClaims that end together ask the same.
//!
//! While the Cluster is paused its objects may be on the move to another management cluster, and without it nothing is known: what
//! is not listed then is not known to be gone. It is read before the list, for whoever moves objects pauses first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use karpenter_cloudprovider::ProviderError;
use karpenter_runtime::error::NotYet;
use tokio::sync::Mutex;

use crate::client::hub::{Hub, HubError};
use crate::client::machine::Machine;

/// The last list. Lists are numbered as they begin; one serves those who asked before it did.
#[derive(Debug, Default)]
pub(crate) struct Census {
    begun: AtomicU64,
    last: Mutex<(u64, Arc<Count>)>,
}

/// All Machines of our Cluster.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Those that were listed.
    pub(crate) machines: Vec<Machine>,
    /// Whether there may be others.
    paused: bool,
}

impl Census {
    /// All Machines of our Cluster, as they are now or will be in a moment.
    pub(crate) async fn count(&self, hub: &Hub) -> Result<Arc<Count>, HubError> {
        let asked = self.begun.load(Ordering::Relaxed);
        let mut last = self.last.lock().await;
        if last.0 <= asked {
            let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
            let paused = hub.cluster().await?.paused;
            *last = (number, Arc::new(Count { machines: hub.machines(None).await?, paused }));
        }
        Ok(Arc::clone(&last.1))
    }
}

impl Count {
    /// That what was not listed is gone, or why that is not known.
    pub(crate) fn is_complete(&self) -> Result<(), ProviderError> {
        if self.paused {
            let why = "the Cluster is paused: its Machines may be on the move, and none is known to be gone";
            return Err(ProviderError::other(NotYet::new(why)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::client::scope::Ours;
    use crate::client::settings::Settings;

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_at_once_are_served_by_few_lists() {
        let lists = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&lists);
        let answer = move |request: http::Request<Body>| {
            let version = json!({"groupVersion": "cluster.x-k8s.io/v1beta2", "version": "v1beta2"});
            let body = match request.uri().path() {
                "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                    {"name": "cluster.x-k8s.io", "versions": [version]},
                ]}),
                "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
                path if path.ends_with("/clusters/c") => json!({
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                    "metadata": {"name": "c", "namespace": "fleet"},
                }),
                _ => {
                    counting.fetch_add(1, Ordering::Relaxed);
                    json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineList", "metadata": {}, "items": []})
                }
            };
            async move {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(
                    body.to_string().into_bytes(),
                )))
            }
        };
        let settings = Settings {
            cluster_name: Some("c".to_owned()),
            cluster_namespace: Some("fleet".to_owned()),
            ..Settings::default()
        };
        let hub = Hub::new(Client::new(tower::service_fn(answer), "default"), Ours::new(&settings));
        let census = Census::default();
        let asked = (0..30).map(|_| census.count(&hub));
        let answers = futures_util::future::join_all(asked).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(
            lists.load(Ordering::Relaxed),
            2,
            "one for the first, one for all who asked after it began"
        );
        census.count(&hub).await.expect("Machines");
        assert_eq!(lists.load(Ordering::Relaxed), 3, "who asks later hears what is then");
    }
}
