//! What is told of holds: by the NodeClass's status, by events of the NodeClass, by NodeClaims that wait; and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use http::{Request, Response};
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::FaultPlan;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;

use crate::core;
use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, initialized, launched, scenario};

const PRICE: &str = "karpenter.cluster.x-k8s.io/price";

/// The status, reason and message of a condition of the NodeClass.
async fn condition(rig: &Rig, kind: &str) -> (String, String, String) {
    let api: Api<ClusterAPINodeClass> = Api::all(rig.world.cluster().client("user"));
    let status = api.get("default").await.expect("the NodeClass").status.unwrap_or_default();
    let found = status.conditions.unwrap_or_default().into_iter().find(|condition| condition.type_ == kind);
    let found = found.unwrap_or_else(|| panic!("the NodeClass has no condition {kind}"));
    (found.status.as_str().to_owned(), found.reason().to_owned(), found.message().to_owned())
}

/// Somebody holds `m` by this change of an object: the NodeClass says so, in its status and by an event, until it is taken back.
async fn is_told(
    what: (Kind, &str),
    change: serde_json::Value,
    back: serde_json::Value,
    reason: &str,
    message: &str,
) {
    let rig = Rig::new(json!({})).await;
    let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "10")]);
    deployment["metadata"]["labels"]["topology.cluster.x-k8s.io/owned"] = "".into();
    deployment["metadata"]["labels"]["topology.cluster.x-k8s.io/deployment-name"] = "workers".into();
    rig.create(deployment).await;
    rig.deployment("other", &[(MAX, "10")]).await;
    rig.karpenter.start();
    rig.pass(2 * MINUTE).await;
    assert_eq!(rig.events(reason).await, Vec::<String>::new());
    rig.patch(what.0, what.1, change).await;
    rig.pass(2 * MINUTE).await;
    let unavailable = rig.resource("m").await.unavailable.unwrap_or_default();
    assert_eq!(unavailable, format!("{reason}: {message}"));
    let told = rig.events(reason).await;
    assert_eq!(told, [message], "once, of what is held alone");
    rig.patch(what.0, what.1, back).await;
    rig.pass(2 * MINUTE).await;
    assert_eq!(rig.resource("m").await.unavailable, None);
}

#[test]
fn replicas_that_somebody_else_sets_are_told_by_status_and_event() {
    scenario(async {
        let key = "cluster.x-k8s.io/replicas-managed-by";
        let annotated = |value: Option<&str>| json!({"metadata": {"annotations": {key: value}}});
        let message = format!("MachineDeployment fleet/m: its annotation {key} names \"keda\"");
        let of = (Kind::MachineDeployment, "m");
        is_told(of, annotated(Some("keda")), annotated(None), "ReplicasManagedByAnother", &message).await;
        let sets = |workers: serde_json::Value| json!({"spec": {"topology": {"workers": {"machineDeployments": workers}}}});
        let message = "MachineDeployment fleet/m: the Cluster's topology sets 2 replicas and would set them again; remove replicas there";
        let (taken, back) = (sets(json!([{"name": "workers", "replicas": 2}])), sets(json!([])));
        is_told((Kind::Cluster, CLUSTER), taken, back, "ReplicasOwnedByTopology", message).await;
    });
}

#[test]
fn a_pause_is_told_by_status_and_event() {
    scenario(async {
        let paused =
            |value: Option<&str>| json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": value}}});
        let message = "MachineDeployment fleet/m is paused";
        is_told((Kind::MachineDeployment, "m"), paused(Some("")), paused(None), "Paused", message).await;
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.deployment("other", &[(MAX, "10")]).await;
        rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"paused": true}})).await;
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.events("Paused").await, ["the Cluster is paused"], "once for all that it holds");
    });
}

#[test]
fn a_template_that_is_not_there_is_named_by_who_waits_for_it() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.api(Kind::SimMachineTemplate).delete("t", &Default::default()).await.expect("a deletion");
        rig.karpenter.start();
        rig.want(1);
        rig.pass(2 * MINUTE).await;
        let told = rig.read(launched);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].0, "TemplateMissing");
        assert!(told[0].1.contains("fleet/t does not exist"), "{told:?}");
        let template = json!({"provisionSeconds": 3, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "t", template)).await;
        rig.until("it is made", 10 * MINUTE, |objects| initialized(objects) == 1).await;
    });
}

#[test]
fn a_check_that_cluster_api_makes_before_machines_is_told_by_status_and_by_who_waits() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        rig.capi.run_machine_sets(false);
        rig.want(1);
        // Of checks that Cluster API has today all are about versions; it may get others.
        let message = "Scaling up from 0 to 1 replicas is blocked because:\n* MachineSet asks for too much (\"QuotaIsLeft\" preflight check failed)";
        let now = rig.world.cluster().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let blocked = json!([{"type": "ScalingUp", "status": "True", "reason": "ScalingUp", "message": message, "lastTransitionTime": now}]);
        let set = rig.read(|objects| objects.machine_sets.keys().next().map(|key| key.name.to_string()));
        let set = set.expect("a MachineSet");
        for _ in 0..12 {
            rig.patch_status(Kind::MachineSet, &set, json!({"status": {"conditions": blocked}})).await;
            rig.pass(10 * SECOND).await;
        }
        let told = rig.read(launched);
        assert_eq!(told.first().map(|told| told.0.as_str()), Some("PreflightCheckFailed"), "{told:?}");
        assert!(told[0].1.contains("QuotaIsLeft"), "{told:?}");
        let row = rig.resource("m").await;
        assert_eq!(row.unavailable, None, "it is offered all the same");
        let waiting = row.waiting.unwrap_or_default();
        assert!(waiting.starts_with("PreflightCheckFailed: MachineSet fleet/"), "{waiting}");
    });
}

#[test]
fn a_cluster_that_is_not_there_is_named() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.api(Kind::Cluster).delete(CLUSTER, &Default::default()).await.expect("a deletion");
        rig.pass(MINUTE).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        let (status, reason, message) = condition(&rig, "ScalableResourcesResolved").await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "NoCluster"));
        assert!(
            message.starts_with("there is no Cluster fleet/c in the management cluster; set"),
            "{message}"
        );
        assert_eq!(rig.events("NoCluster").await, [message]);
    });
}

/// A client whose server says that all may be done in Cluster API's groups, and definitions may not be read as long as that is refused.
fn reviewed(inner: Client, refuses: Arc<AtomicBool>) -> Client {
    let answer = move |request: Request<Body>| {
        let (inner, refuses) = (inner.clone(), Arc::clone(&refuses));
        async move {
            if !request.uri().path().ends_with("/selfsubjectrulesreviews") {
                return inner.send(request).await;
            }
            let rule = |group: &str| json!({"apiGroups": [group], "resources": ["*"], "verbs": ["*"]});
            let rules = match refuses.load(Ordering::Relaxed) {
                true => vec![rule("cluster.x-k8s.io")],
                false => vec![rule("*")],
            };
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "metadata": {}, "spec": {},
                "status": {"incomplete": false, "nonResourceRules": [], "resourceRules": rules},
            });
            let body = Body::from(review.to_string().into_bytes());
            Ok(Response::builder().status(201).body(body).expect("an answer"))
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

#[test]
fn rights_that_are_done_without_are_named_and_stop_nothing() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let refuses = Arc::new(AtomicBool::new(true));
        let (hub, refusing) = (rig.hub.clone(), Arc::clone(&refuses));
        let karpenter = rig.world.process("karpenter", FaultPlan::none(), move |life| {
            let management = reviewed(life.client_behind(&hub), Arc::clone(&refusing));
            core::live_through(life, management, core::settings()).boxed()
        });
        karpenter.start();
        rig.pass(3 * MINUTE).await;
        let (status, reason, message) = condition(&rig, "PermissionsReady").await;
        assert_eq!((status.as_str(), reason.as_str()), ("True", "SomeForbidden"));
        assert!(
            message.contains("done without: get customresourcedefinitions.apiextensions.k8s.io"),
            "{message}"
        );
        assert_eq!(rig.events("SomeForbidden").await, [message]);
        assert_eq!(condition(&rig, "Ready").await.0, "True");
        refuses.store(false, Ordering::Relaxed);
        rig.pass(3 * MINUTE).await;
        assert_ne!(condition(&rig, "PermissionsReady").await.1, "SomeForbidden", "looked at again");
    });
}

#[test]
fn new_credentials_that_are_not_used_are_told_while_the_old_ones_work() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        let provider = rig.provider();
        let hub = provider.hub();
        hub.note_unused_credentials(Some("they lead nowhere".to_owned()));
        rig.pass(2 * MINUTE).await;
        let (status, reason, message) = condition(&rig, "ManagementClusterReady").await;
        assert_eq!((status.as_str(), reason.as_str()), ("True", "NewCredentialsNotUsed"));
        assert_eq!(message, "new credentials are not used: they lead nowhere");
        assert_eq!(rig.events("NewCredentialsNotUsed").await, [message]);
        rig.hub.cut_off(10 * MINUTE);
        rig.pass(5 * MINUTE).await;
        let (status, reason, message) = condition(&rig, "ManagementClusterReady").await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "Unreachable"));
        assert!(message.ends_with("; new credentials are not used: they lead nowhere"), "{message}");
        hub.note_unused_credentials(None);
        rig.pass(10 * MINUTE).await;
        assert_eq!(condition(&rig, "ManagementClusterReady").await.1, "ManagementClusterReady");
    });
}

#[test]
fn what_is_written_how_long_it_took_and_what_it_costs_is_counted() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10"), (PRICE, "0.25")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(2 * MINUTE).await;
        let provider = rig.provider();
        let metrics = provider.metrics();
        assert_eq!(metrics.writes.get(&["scale"]), 1.0, "both by one change of replicas");
        assert_eq!(metrics.writes.get(&["claim"]), 2.0);
        let id = "MachineDeployment fleet/m";
        assert_eq!(metrics.launch_seconds.with(&[id]).count(), 2);
        assert_eq!(metrics.price.get(&["default", id, "", "annotation"]), Some(0.25));
        assert!(
            metrics.silence.get(&[]).is_some_and(|silence| silence <= 45.0),
            "{:?}",
            metrics.silence.get(&[])
        );
        rig.hub.cut_off(10 * MINUTE);
        rig.pass(9 * MINUTE).await;
        assert!(
            metrics.silence.get(&[]).is_some_and(|silence| silence > 480.0),
            "{:?}",
            metrics.silence.get(&[])
        );
        rig.pass(5 * MINUTE).await;
        assert!(
            metrics.silence.get(&[]).is_some_and(|silence| silence <= 45.0),
            "{:?}",
            metrics.silence.get(&[])
        );
        rig.want(0);
        let names = rig
            .read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect::<Vec<_>>());
        for name in &names {
            rig.delete_claim(name).await;
        }
        rig.until("all are gone", 10 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        assert_eq!(metrics.writes.get(&["mark"]), 2.0);
        assert_eq!(metrics.writes.get(&["scale"]), 2.0, "and both go together");
    });
}
