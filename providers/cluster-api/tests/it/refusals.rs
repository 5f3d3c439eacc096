//! A management cluster that refuses to have replicas set: by a quota's webhook, or for want of rights.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{Method, Request, Response};
use karpenter_provider_cluster_api::client::hub::Hub;
use karpenter_provider_cluster_api::client::scope::Ours;
use karpenter_provider_cluster_api::self_check;
use karpenter_sim::Process;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::FaultPlan;
use kube::Client;
use kube::client::Body;
use serde_json::json;

use crate::core;
use crate::features::node_pool;
use crate::rig::{
    CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, is_anything_offered, scenario,
};

const QUOTA: &str =
    "admission webhook \"quota.example.com\" denied the request: team blue has used 2 of 2 machines";
const RIGHTS: &str = "machinedeployments.cluster.x-k8s.io \"m\" is forbidden: User \"karpenter\" cannot patch resource \"machinedeployments/scale\" in API group \"cluster.x-k8s.io\" in the namespace \"fleet\"";

/// Parts, set off by commas, of the paths of what may not be changed: nothing while it is empty.
pub(crate) type Forbidden = Arc<Mutex<String>>;

/// A client to which changes of something are refused, for as long as it is said to.
fn refusing(inner: Client, forbidden: Forbidden, why: &'static str) -> Client {
    answering(inner, forbidden, Some(Method::PATCH), (403, why))
}

/// A client to which requests of this method, or of any, for something are answered otherwise, for as long as it is said to.
pub(crate) fn answering(
    inner: Client,
    what: Forbidden,
    method: Option<Method>,
    (code, message): (u16, &'static str),
) -> Client {
    let answer = move |request: Request<Body>| {
        let (inner, what) = (inner.clone(), Arc::clone(&what));
        let is_asked = method.as_ref().is_none_or(|method| request.method() == method);
        async move {
            let what = what.lock().expect("paths").clone();
            let path = request.uri().path();
            let is_it = what.split(',').any(|part| !part.is_empty() && path.contains(part));
            if !is_asked || !is_it {
                return inner.send(request).await;
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": if code == 403 { "Forbidden" } else { "InternalError" },
                "code": code,
            });
            let body = Body::from(status.to_string().into_bytes());
            Ok(Response::builder().status(code).body(body).expect("an answer"))
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

/// What replicas of `m` are set by.
const REPLICAS: &str = "/machinedeployments/m/scale";

pub(crate) fn forbid(forbidden: &Forbidden, what: &str) {
    what.clone_into(&mut forbidden.lock().expect("a path"));
}

/// Karpenter, to whom something is refused.
fn refused(rig: &Rig, forbidden: &Forbidden, why: &'static str) -> Arc<Process> {
    let (hub, forbidden) = (rig.hub.clone(), Arc::clone(forbidden));
    rig.world.process("karpenter", FaultPlan::none(), move |life| {
        let management = refusing(life.client_behind(&hub), Arc::clone(&forbidden), why);
        core::live_through(life, management, core::settings()).boxed()
    })
}

/// A client whose changes of something come to nothing after a while, for as long as it is said to.
fn losing(inner: Client, lost: Forbidden, after: Duration) -> Client {
    hanging(inner, Method::PATCH, lost, after)
}

/// A client whose requests of this method for something come to nothing after a while, for as long as it is said to.
pub(crate) fn hanging(inner: Client, method: Method, lost: Forbidden, after: Duration) -> Client {
    let answer = move |request: Request<Body>| {
        let (inner, lost) = (inner.clone(), Arc::clone(&lost));
        let is_asked = request.method() == method;
        async move {
            let what = lost.lock().expect("a path").clone();
            let is_it = is_asked && request.uri().path().contains(&what);
            if !is_it || what.is_empty() {
                return inner.send(request).await;
            }
            tokio::time::sleep(after).await;
            Ok(Response::builder().status(500).body(Body::empty()).expect("an answer"))
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

#[test]
fn nothing_is_ordered_for_a_node_claim_before_it_says_what_it_waits_for() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let lost = Forbidden::default();
        forbid(&lost, "/nodeclaims/");
        let (hub, writes) = (rig.hub.clone(), Arc::clone(&lost));
        let karpenter = rig.world.process("karpenter", FaultPlan::none(), move |mut life| {
            life.client = losing(life.client.clone(), Arc::clone(&writes), MINUTE);
            let management = life.client_behind(&hub);
            core::live_through(life, management, core::settings()).boxed()
        });
        karpenter.start();
        rig.want(1);
        rig.pass(20 * SECOND).await;
        // Something else has the resource looked at meanwhile.
        rig.patch(Kind::MachineDeployment, "m", json!({"metadata": {"labels": {"looked": "at"}}})).await;
        rig.pass(20 * SECOND).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (0, 0), "its end would not know of a Machine");
        forbid(&lost, "");
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.replicas("m"), 1);
        rig.pass(MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn a_place_that_is_reserved_for_long_is_not_taken_from_the_one_it_was_reserved_for() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "2")]).await;
        let (lost, handle) = (Forbidden::default(), core::Handle::default());
        let (hub, writes, left) = (rig.hub.clone(), Arc::clone(&lost), Arc::clone(&handle));
        let karpenter = rig.world.process("karpenter", FaultPlan::none(), move |mut life| {
            life.client = losing(life.client.clone(), Arc::clone(&writes), 90 * SECOND);
            let management = life.client_behind(&hub);
            let left = Arc::clone(&left);
            async move { core::live_as(life, management, core::settings(), &left).await }.boxed()
        });
        karpenter.start();
        rig.want(1);
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(2 * MINUTE).await;
        let provider = handle.lock().expect("a provider").clone().expect("a process that runs");
        assert!(is_anything_offered(&provider).await);
        forbid(&lost, "/nodeclaims/n2");
        rig.want(2);
        rig.pass(30 * SECOND).await;
        assert!(!is_anything_offered(&provider).await, "the second place is reserved");
        rig.pass(40 * SECOND).await;
        // Something else has the resource looked at meanwhile.
        rig.annotate_claim("n1", "looked", "at").await;
        rig.pass(5 * SECOND).await;
        forbid(&lost, "");
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        assert_eq!(rig.claims(), ["n1", "n2"], "nobody was turned away");
        rig.pass(MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn who_is_refused_replicas_goes_elsewhere_and_is_told_why_and_nothing_is_lost() {
    let remedy = "`karpenter cluster-api self-check` tells which rights are missing";
    for (why, remedy) in [(QUOTA, None), (RIGHTS, Some(remedy))] {
        scenario(async {
            let rig = Rig::new(json!({})).await;
            rig.deployment("m", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")]).await;
            rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
            let refuses = Forbidden::default();
            let karpenter = refused(&rig, &refuses, why);
            karpenter.start();
            rig.want(2);
            rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            assert_eq!((rig.replicas("m"), rig.replicas("m2")), (2, 0));
            forbid(&refuses, REPLICAS);
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
            forbid(&refuses, "");
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
        let refuses = Forbidden::default();
        let karpenter = refused(&rig, &refuses, RIGHTS);
        karpenter.start();
        rig.want(2);
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        forbid(&refuses, REPLICAS);
        rig.want(1);
        rig.delete_claim("n1").await;
        rig.pass(3 * MINUTE).await;
        for reason in ["DeletionStalled", "WriteRefused"] {
            let told = rig.events(reason).await;
            assert!(told.iter().any(|message| message.contains(RIGHTS)), "{reason}: {told:?}");
        }
        forbid(&refuses, "");
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

const POLICY: &str = "admission webhook \"policy.example.com\" denied the request: this Machine is protected";

#[test]
fn a_machine_that_may_not_be_claimed_keeps_no_other_launch_from_its_resource() {
    scenario(async {
        let rig = Rig::without_rules(json!({"timeouts": {"surplus": "5h"}})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        let forbidden = Forbidden::default();
        let karpenter = refused(&rig, &forbidden, POLICY);
        karpenter.start();
        rig.want(1);
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let ours = rig.read(|objects| objects.machines.keys().next().cloned());
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
        rig.pass(MINUTE).await;
        let free =
            rig.read(|objects| objects.machines.keys().find(|key| Some(*key) != ours.as_ref()).cloned());
        let free = free.expect("a Machine by hand");
        forbid(&forbidden, &format!("/machines/{}", free.name));
        for nodes in [4, 5] {
            rig.want(nodes);
            let took = rig.until("all are served", 5 * MINUTE, |objects| initialized(objects) == nodes).await;
            assert!(took < 90 * SECOND, "{nodes}: {took:?}");
        }
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (6, 5), "that one stays as it is");
        let told = rig.events("WriteRefused").await;
        assert!(told.iter().any(|message| message.contains(POLICY)), "{told:?}");
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(initialized)), (6, 5));
    });
}

#[test]
fn where_no_machine_may_be_claimed_few_are_made() {
    scenario(async {
        let rig = Rig::without_rules(json!({"timeouts": {"surplus": "5h"}})).await;
        rig.deployment("m", &[(MAX, "50")]).await;
        let forbidden = Forbidden::default();
        forbid(&forbidden, "/machines/");
        let karpenter = refused(&rig, &forbidden, POLICY);
        karpenter.start();
        rig.want(1);
        rig.pass(40 * MINUTE).await;
        assert!(rig.replicas("m") <= 4, "{}", rig.replicas("m"));
        forbid(&forbidden, "");
        rig.until("it is served", 60 * MINUTE, |objects| initialized(objects) == 1).await;
    });
}

#[test]
fn a_machine_that_may_not_be_claimed_is_not_adopted_again_and_again() {
    scenario(async {
        let rig = Rig::without_rules(json!({"adoption": "Existing"})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("a node by hand", 5 * MINUTE, |objects| objects.nodes.len() == 1).await;
        rig.create(node_pool()).await;
        rig.pass(10 * SECOND).await;
        let forbidden = Forbidden::default();
        forbid(&forbidden, "/machines/");
        let karpenter = refused(&rig, &forbidden, POLICY);
        karpenter.start();
        rig.pass(60 * MINUTE).await;
        let made = rig.writes("POST /apis/karpenter.sh/v1/nodeclaims");
        assert!((1..=3).contains(&made), "{made} NodeClaims in an hour");
        forbid(&forbidden, "");
        rig.until("it is adopted", 60 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (1, 1));
    });
}

#[test]
fn machines_that_may_not_be_marked_hold_up_no_other_however_many_they_are() {
    scenario(async {
        let rig = Rig::without_rules(json!({"timeouts": {"surplus": "2m"}})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        let forbidden = Forbidden::default();
        let karpenter = refused(&rig, &forbidden, POLICY);
        karpenter.start();
        rig.want(1);
        rig.until("a node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let ours = rig.read(|objects| objects.machines.keys().next().cloned());
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 7}})).await;
        rig.pass(MINUTE).await;
        let free: Vec<String> = rig.read(|objects| {
            let others = objects.machines.keys().filter(|key| Some(*key) != ours.as_ref());
            others.map(|key| format!("/machines/{}", key.name)).collect()
        });
        assert_eq!(free.len(), 6, "made by hand");
        forbid(&forbidden, &free.join(","));
        rig.pass(5 * MINUTE).await;
        let told = rig.events("WriteRefused").await;
        assert!(told.iter().any(|message| message.contains(POLICY)), "{told:?}");
        rig.delete_claim("n1").await;
        let took = rig.until("another serves", 10 * MINUTE, |objects| {
            initialized(objects) == 1 && objects.node_claims.keys().all(|key| &*key.name != "n1")
        });
        assert!(took.await < 3 * MINUTE);
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (7, 1));
        forbid(&forbidden, "");
        rig.until("they go", 60 * MINUTE, |objects| objects.machines.len() == 1).await;
        assert_eq!((rig.replicas("m"), rig.read(initialized)), (1, 1));
    });
}
