//! A management cluster that refuses to have replicas set: by a quota's webhook, or for want of rights.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use http::{Method, Request, Response};
use karpenter_provider_cluster_api::client::hub::Hub;
use karpenter_provider_cluster_api::client::scope::Ours;
use karpenter_provider_cluster_api::self_check;
use karpenter_sim::Process;
use karpenter_sim::cluster_api;
use karpenter_sim::faults::FaultPlan;
use kube::Client;
use kube::client::Body;
use serde_json::json;

use crate::core;
use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, claimed, initialized, scenario};

const QUOTA: &str =
    "admission webhook \"quota.example.com\" denied the request: team blue has used 2 of 2 machines";
const RIGHTS: &str = "machinedeployments.cluster.x-k8s.io \"m\" is forbidden: User \"karpenter\" cannot patch resource \"machinedeployments/scale\" in API group \"cluster.x-k8s.io\" in the namespace \"fleet\"";

/// A client to which replicas of `m` are refused, for as long as it is said to.
fn refusing(inner: Client, refuses: Arc<AtomicBool>, why: &'static str) -> Client {
    let answer = move |request: Request<Body>| {
        let (inner, refuses) = (inner.clone(), Arc::clone(&refuses));
        async move {
            let scales = request.method() == Method::PATCH
                && request.uri().path().ends_with("/machinedeployments/m/scale");
            if !scales || !refuses.load(Ordering::Relaxed) {
                return inner.send(request).await;
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": why, "reason": "Forbidden", "code": 403,
            });
            let body = Body::from(status.to_string().into_bytes());
            Ok(Response::builder().status(403).body(body).expect("an answer"))
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

/// Karpenter, to whom replicas of `m` are refused.
fn refused(rig: &Rig, refuses: &Arc<AtomicBool>, why: &'static str) -> Arc<Process> {
    let (hub, refuses) = (rig.hub.clone(), Arc::clone(refuses));
    rig.world.process("karpenter", FaultPlan::none(), move |life| {
        let management = refusing(life.client_behind(&hub), Arc::clone(&refuses), why);
        core::live_through(life, management, core::settings()).boxed()
    })
}

#[test]
fn who_is_refused_replicas_goes_elsewhere_and_is_told_why_and_nothing_is_lost() {
    let remedy = "`karpenter cluster-api self-check` tells which rights are missing";
    for (why, remedy) in [(QUOTA, None), (RIGHTS, Some(remedy))] {
        scenario(async {
            let rig = Rig::new(json!({})).await;
            rig.deployment("m", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")]).await;
            rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
            let refuses = Arc::new(AtomicBool::new(false));
            let karpenter = refused(&rig, &refuses, why);
            karpenter.start();
            rig.want(2);
            rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            assert_eq!((rig.replicas("m"), rig.replicas("m2")), (2, 0));
            refuses.store(true, Ordering::Relaxed);
            rig.want(4);
            let took =
                rig.until("the dearer one serves", 5 * MINUTE, |objects| initialized(objects) == 4).await;
            assert!(took < 2 * MINUTE, "{took:?}");
            assert_eq!((rig.replicas("m"), rig.replicas("m2")), (2, 2));
            let told = rig.resource("m").await.unavailable.unwrap_or_default();
            let refusal = format!("MachineDeployment fleet/m: the management cluster refused: {why}");
            assert!(told.contains(&refusal), "{told}");
            assert!(remedy.is_none_or(|remedy| told.contains(remedy)), "{told}");

            // What is to go waits: its place cannot be given up.
            rig.want(3);
            rig.delete_claim("n1").await;
            rig.pass(2 * MINUTE).await;
            assert_eq!((rig.replicas("m"), rig.read(claimed)), (2, 4), "nobody else's Machine goes for it");
            refuses.store(false, Ordering::Relaxed);
            rig.until("it goes", 10 * MINUTE, |objects| objects.node_claims.len() == 3).await;
            rig.pass(MINUTE).await;
            assert_eq!((rig.replicas("m"), rig.replicas("m2"), rig.read(claimed)), (1, 2, 3));

            // Nobody stays away from it for ever.
            rig.pass(30 * MINUTE).await;
            rig.want(4);
            rig.until("the cheaper one serves again", 5 * MINUTE, |objects| initialized(objects) == 4).await;
            assert_eq!((rig.replicas("m"), rig.replicas("m2")), (2, 2));
            rig.pass(MINUTE).await;
            rig.at_rest();
        });
    }
}

#[test]
fn a_node_claim_that_cannot_end_says_what_was_refused() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let refuses = Arc::new(AtomicBool::new(false));
        let karpenter = refused(&rig, &refuses, RIGHTS);
        karpenter.start();
        rig.want(2);
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        refuses.store(true, Ordering::Relaxed);
        rig.want(1);
        rig.delete_claim("n1").await;
        rig.pass(3 * MINUTE).await;
        for reason in ["DeletionStalled", "WriteRefused"] {
            let told = rig.events(reason).await;
            assert!(told.iter().any(|message| message.contains(RIGHTS)), "{reason}: {told:?}");
        }
        refuses.store(false, Ordering::Relaxed);
        rig.until("it goes", 10 * MINUTE, |objects| objects.node_claims.len() == 1).await;
        rig.pass(MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn rights_to_machine_sets_are_asked_for_where_one_is_scaled_itself() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let client = rig.world.cluster().client("karpenter");
        let hub = Hub::new(client.clone(), Ours::new(&core::settings()));
        let asked = async || {
            let classes = self_check::node_classes(&client).await.expect("NodeClasses");
            let rights = self_check::in_management_cluster(&hub, &classes).await.expect("rights");
            let patches = rights.into_iter().filter(|right| right.verbs.contains(&"patch"));
            patches.map(|right| right.resource).filter(|of| of.starts_with("machinesets")).collect::<Vec<_>>()
        };
        rig.deployment("m", &[]).await;
        assert_eq!(asked().await, Vec::<String>::new());
        let mut set = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "lone", "t", &[]);
        set["kind"] = "MachineSet".into();
        rig.create(set).await;
        assert_eq!(asked().await, ["machinesets", "machinesets/scale"]);
    });
}
