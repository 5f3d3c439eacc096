//! Whether the Cluster that another management cluster has is ours. Its name says little, for there are namesakes; nor does its uid say
//! that it is not, for who moves a Cluster to another management cluster makes it anew there. It is the same if its API server is where
//! ours is, or if it has Machines that were claimed for this cluster. Of a namesake's Machines none are ours: they would all be taken
//! for gone, their NodeClaims would end, and what runs would be left behind.

use karpenter_runtime::error::with_causes;

use super::hub::Hub;

/// What to do about credentials that are not used.
const REMEDY: &str = "Karpenter goes on with the old ones; give it a kubeconfig of the management cluster that has this cluster's \
                      Machines, or restart it if this is the one";

/// What is known of our Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OurCluster {
    /// Where its API server is, if that was seen.
    pub(crate) endpoint: Option<String>,
    /// This cluster, as Machines name whom they were claimed for.
    pub(crate) owner: String,
    /// Whether anything was launched that is to be found again.
    pub(crate) launched: bool,
}

impl OurCluster {
    /// Fails unless this management cluster has our Cluster; also if it does not say.
    pub(crate) async fn is_at(&self, there: &Hub) -> Result<(), String> {
        let cluster = there.cluster().await.map_err(|error| with_causes(&error))?;
        if let (Some(ours), Some(theirs)) = (&self.endpoint, &cluster.endpoint) {
            if ours == theirs {
                return Ok(());
            }
            return Err(format!(
                "they lead to another Cluster {}: its spec.controlPlaneEndpoint is {theirs} and ours {ours}; {REMEDY}",
                cluster.key
            ));
        }
        if !self.launched {
            return Ok(());
        }
        let machines = there.machines(None).await.map_err(|error| with_causes(&error))?;
        let ours = |claim: super::machine::Claim| claim.owner == self.owner;
        if machines.iter().any(|machine| machine.claim().is_some_and(ours)) {
            return Ok(());
        }
        Err(format!(
            "they lead to a Cluster {} that may be another: it has none of this cluster's Machines, and its \
             spec.controlPlaneEndpoint or ours is not known; {REMEDY}",
            cluster.key
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use karpenter_runtime::renewal::renewable;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::client::credentials::{Files, Judge, Make, follow_files};
    use crate::client::scope::{Ours, Scope};
    use crate::client::settings::{Access, Settings};
    use crate::names;

    /// A management cluster with a Cluster `fleet/c`, whose API server is on this host, and a Machine for each of these owners.
    fn management(uid: &str, host: &str, owners: &[&str]) -> Client {
        let machine = |(index, owner): (usize, &&str)| {
            json!({
                "metadata": {
                    "name": format!("m{index}"), "namespace": "fleet",
                    "annotations": {names::NODECLAIM: "n", names::NODECLAIM_UID: "u", names::OWNER: owner},
                },
                "spec": {"clusterName": "c"},
            })
        };
        let machines: Vec<Value> = owners.iter().enumerate().map(machine).collect();
        let endpoint = json!({"host": host, "port": if host.is_empty() { 0 } else { 6443 }});
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "fleet", "uid": uid},
            "spec": {"controlPlaneEndpoint": endpoint},
        });
        let version = json!({"groupVersion": "cluster.x-k8s.io/v1beta2", "version": "v1beta2"});
        let groups = json!({"kind": "APIGroupList", "groups": [
            {"name": "cluster.x-k8s.io", "versions": [version.clone()], "preferredVersion": version},
        ]});
        let list = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineList", "metadata": {}, "items": machines,
        });
        let answer = move |request: http::Request<Body>| {
            let path = request.uri().path();
            let said = if path.ends_with("/clusters/c") {
                &cluster
            } else if path.ends_with("/machines") {
                &list
            } else {
                &groups
            };
            let body = Body::from(said.to_string().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn hub(client: Client) -> Hub {
        Hub::new(client, Ours::is(Scope { namespace: "fleet".to_owned(), cluster: "c".to_owned() }))
    }

    fn known(endpoint: Option<&str>, launched: bool) -> OurCluster {
        OurCluster { endpoint: endpoint.map(str::to_owned), owner: "us".to_owned(), launched }
    }

    #[tokio::test]
    async fn a_cluster_is_ours_by_where_its_api_server_is_else_by_its_machines() {
        let here = Some("ours.example:6443");
        for (known, host, owners, is_ours) in [
            (known(here, true), "Ours.example", &[][..], true),
            (known(here, true), "theirs.example", &["us"][..], false),
            (known(here, false), "theirs.example", &[][..], false),
            (known(here, true), "", &["others", "us"][..], true),
            (known(here, true), "", &["others"][..], false),
            (known(None, true), "theirs.example", &[][..], false),
            (known(None, true), "ours.example", &["us"][..], true),
            (known(None, false), "ours.example", &[][..], true),
        ] {
            let found = known.is_at(&hub(management("u", host, owners))).await;
            assert_eq!(found.is_ok(), is_ours, "{known:?} {host:?} {owners:?}: {found:?}");
        }
    }

    /// Knows our Cluster by a fixed address, and what it was told.
    #[derive(Clone, Default)]
    struct Fixed(Arc<Mutex<Option<String>>>);

    impl Judge for Fixed {
        fn check<'a>(&'a self, client: &'a Client) -> BoxFuture<'a, Result<(), String>> {
            let known = known(Some("ours.example:6443"), true);
            async move { known.is_at(&hub(client.clone())).await }.boxed()
        }

        fn tell(&self, unused: Option<&str>) {
            *self.0.lock().expect("a text") = unused.map(str::to_owned);
        }
    }

    fn kubeconfig(server: &str) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        })
        .to_string()
    }

    /// The uid of the Cluster that is followed from one kubeconfig to another, and why that is not used.
    async fn followed(name: &str, to: &str) -> (String, Option<String>) {
        let path = std::env::temp_dir().join(format!("karpenter-identity-{name}-{}", std::process::id()));
        std::fs::write(&path, kubeconfig("https://old")).expect("a file");
        let settings = Settings { access: Access::Kubeconfig(path.clone()), ..Settings::default() };
        let known = Files::of(&settings);
        let make: Make = Box::new(|config| {
            Ok(match config.cluster_url.host().unwrap_or_default() {
                "moved" => management("moved", "ours.example", &[]),
                _ => management("namesake", "theirs.example", &[]),
            })
        });
        let (client, switch) = renewable(management("old", "ours.example", &[]));
        let (stop, judge) = (CancellationToken::new(), Fixed::default());
        let following =
            tokio::spawn(follow_files(settings, known, switch, make, judge.clone(), stop.clone()));
        std::fs::write(&path, kubeconfig(to)).expect("a file");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let uid = hub(client).cluster().await.expect("a Cluster").uid;
        stop.cancel();
        following.await.expect("it ends");
        std::fs::remove_file(&path).expect("the file");
        let told = judge.0.lock().expect("a text").clone();
        (uid, told)
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubeconfig_that_leads_to_a_namesake_is_not_used() {
        let (uid, told) = followed("namesake", "https://namesake").await;
        assert_eq!(uid, "old");
        let told = told.expect("it is told");
        for part in ["another Cluster fleet/c", "theirs.example:6443", "ours.example:6443", "restart"] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubeconfig_of_the_management_cluster_that_ours_was_moved_to_is_used() {
        assert_eq!(followed("moved", "https://moved").await, ("moved".to_owned(), None));
    }
}
