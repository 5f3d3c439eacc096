//! NodeClaims on their way up: launched, registered, initialized, or given up in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use karpenter_cloudprovider::{HookResult, ProviderError, ProviderFuture, RegistrationHook};
use serde_json::{Value, json};

use crate::objects::{
    With, claim, condition, fresh_claim, joining_node, node, node_pool, pending_pod, state_of,
};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
/// The id the fake gives its first instance.
const FIRST: &str = "fake:///1";

async fn claim_now(rig: &Rig) -> Value {
    rig.get(&fresh_claim("c")).await.expect("the claim")
}

async fn state(rig: &Rig, type_: &str) -> (String, String, String) {
    state_of(&claim_now(rig).await, type_).expect("a condition")
}

fn disrupted(rig: &Rig, reason: &str) -> Option<f64> {
    rig.metric("karpenter_nodeclaims_disrupted_total", &[("reason", reason), ("nodepool", "default")])
}

fn is(status: &str, reason: &str, message: &str) -> (String, String, String) {
    (status.into(), reason.into(), message.into())
}

/// A claim `c` that was launched, without a node.
async fn launched() -> Rig {
    let rig = Rig::quiet(&[]).await;
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_held_and_launched_and_says_what_it_got() {
    let rig = Rig::quiet(&[]).await;
    let labels = json!({"topology.kubernetes.io/zone": "mine"});
    rig.create(fresh_claim("c").with(json!({"metadata": {"labels": labels}}))).await;
    rig.pass(2 * SECOND).await;
    let claim = claim_now(&rig).await;
    assert_eq!(claim["metadata"]["finalizers"], json!(["karpenter.sh/termination"]));
    assert_eq!(claim["status"]["providerID"], FIRST);
    assert_eq!(claim["metadata"]["labels"]["topology.kubernetes.io/zone"], "mine", "the claim's labels stay");
    assert_eq!(claim["metadata"]["labels"]["node.kubernetes.io/instance-type"], "fake-it-1");
    assert_eq!(claim["status"]["capacity"]["cpu"], "1");
    assert_eq!(state_of(&claim, "Launched"), Some(is("True", "Launched", "")));
    assert_eq!(
        state_of(&claim, "Registered"),
        Some(is("Unknown", "NodeNotFound", "Node not registered with cluster"))
    );
    assert_eq!(
        state_of(&claim, "Ready").map(|ready| ready.2).as_deref(),
        Some("Initialized=Unknown, Registered=Unknown")
    );
    assert_eq!((rig.provider.launches(), rig.provider.count(Method::Create)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn claims_of_other_classes_are_left_alone() {
    let rig = Rig::quiet(&[]).await;
    rig.create(fresh_claim("c").with(json!({"spec": {"nodeClassRef": {"kind": "EC2NodeClass"}}}))).await;
    rig.pass(30 * SECOND).await;
    let claim = claim_now(&rig).await;
    assert_eq!((&claim["status"], &claim["metadata"]["finalizers"]), (&Value::Null, &Value::Null));
    assert_eq!(rig.provider.count(Method::Create), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_capacity_is_deleted_and_whoever_waits_is_told() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::Fail(ProviderError::insufficient_capacity("sold out")));
    rig.create(node_pool("default").with(json!({"status": null}))).await;
    rig.create(crate::objects::node_class()).await;
    rig.create(pending_pod("p", "1")).await;
    rig.eventually("the claim is gone", |rig| disrupted(rig, "insufficient_capacity") == Some(1.0)).await;
    rig.pass(SECOND).await;
    let told = rig.events("Pod", "p").await;
    assert!(
        told.iter().any(|said| said.starts_with("InsufficientCapacityError: NodeClaim default-")
            && said.ends_with("nominated for this pod failed to launch: insufficient capacity, sold out")),
        "{told:?}"
    );
    rig.eventually("another claim is launched", |rig| rig.provider.launches() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_class_is_not_ready_is_deleted_without_an_event() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::Fail(ProviderError::node_class_not_ready("no image")));
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(disrupted(&rig, "nodeclass_not_ready"), Some(1.0));
    let told = rig.events("NodeClaim", "c").await;
    assert!(!told.iter().any(|said| said.contains("NotReady:") || said.contains("Insufficient")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_is_named_and_tried_again() {
    let rig = Rig::quiet(&[]).await;
    rig.provider
        .next(Method::Create, Behaviour::Fail(ProviderError::create("x", "QuotaExceeded", "ask for more")));
    rig.provider.next(Method::Create, Behaviour::Fail(ProviderError::other("no answer")));
    rig.create(fresh_claim("c")).await;
    rig.pass(SECOND / 2).await;
    assert_eq!(state(&rig, "Launched").await, is("Unknown", "QuotaExceeded", "ask for more"));
    rig.pass(SECOND).await;
    assert_eq!(state(&rig, "Launched").await, is("Unknown", "LaunchFailed", "no answer"));
    rig.pass(10 * SECOND).await;
    assert_eq!(state(&rig, "Launched").await, is("True", "Launched", ""));
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_another_claim_is_not_believed_and_outlives_the_claim_it_was_named_for() {
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("a", "default", 1)).await;
    let held =
        node("a", "default", 1).with(json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}}));
    rig.create(held.clone()).await;
    rig.pass(2 * SECOND).await;
    let id = held["spec"]["providerID"].as_str().expect("an id").to_owned();
    rig.provider.always(Method::Create, Some(Behaviour::WrongProviderId(id.clone())));
    rig.create(fresh_claim("b")).await;
    rig.pass(2 * SECOND).await;
    let misled = rig.get(&fresh_claim("b")).await.expect("the claim");
    let told = format!("the provider answered with instance {id}, which is that of NodeClaim a");
    assert_eq!(state_of(&misled, "Launched"), Some(is("Unknown", "InstanceOfAnother", &told)));
    assert_eq!(misled.pointer("/status/providerID"), None);
    rig.delete(&fresh_claim("b")).await;
    rig.pass(30 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("b")).await, None);
    let node = rig.get(&held).await.expect("the node of the other claim");
    assert_eq!(node["metadata"]["deletionTimestamp"], Value::Null);
    assert!(
        rig.provider.calls().iter().all(|(method, _)| *method != Method::Delete),
        "{:?}",
        rig.provider.calls()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_launch_twice() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::LoseReply);
    rig.create(fresh_claim("c")).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(state(&rig, "Launched").await.0, "True");
    assert_eq!((rig.provider.launches(), rig.provider.count(Method::Create)), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_slow_machine_is_waited_for_and_asked_for_again_only_when_it_has_come_along() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.launch_within(Duration::from_secs(20 * 60));
    rig.provider.next(Method::Create, Behaviour::Pending);
    rig.create(fresh_claim("c")).await;
    rig.pass(600 * SECOND).await;
    assert_eq!(
        state(&rig, "Launched").await,
        is("Unknown", "MachineProvisioning", "the machine is being built")
    );
    let asked = rig.provider.count(Method::Create);
    assert!(asked <= 2, "nobody polls: {asked}");
    rig.provider.finish("c");
    rig.pass(2 * SECOND).await;
    assert_eq!(state(&rig, "Launched").await.0, "True");
    assert_eq!(
        (claim_now(&rig).await["status"]["providerID"].as_str(), rig.provider.launches()),
        (Some(FIRST), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_launched_in_time_is_given_up() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::Create, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.create(fresh_claim("c")).await;
    rig.pass(295 * SECOND).await;
    assert!(rig.get(&fresh_claim("c")).await.is_some());
    rig.pass(70 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(disrupted(&rig, "launch_timeout"), Some(1.0));
    assert_eq!(disrupted(&rig, "registration_timeout"), None, "one claim is counted once");
    assert_eq!(rig.provider.count(Method::Delete), 0, "nothing was launched");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_never_answers_holds_up_nothing_for_ever() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::Hang);
    rig.create(fresh_claim("c")).await;
    rig.create(fresh_claim("d")).await;
    rig.pass(5 * SECOND).await;
    let other = rig.get(&fresh_claim("d")).await.expect("the other claim");
    assert_eq!(state_of(&other, "Launched").map(|launched| launched.0).as_deref(), Some("True"));
    rig.pass(330 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None, "given up after five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_node_does_not_come_is_given_up_and_its_instance_removed() {
    let rig = launched().await;
    rig.pass(895 * SECOND).await;
    assert!(rig.get(&fresh_claim("c")).await.is_some());
    rig.pass(20 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(disrupted(&rig, "registration_timeout"), Some(1.0));
    assert!(rig.provider.instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_time_to_register_that_becomes_known_after_the_launch_holds() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.launch_within(24 * 60 * 60 * SECOND);
    rig.create(fresh_claim("c")).await;
    rig.pass(100 * SECOND).await;
    rig.provider.limit_registrations(300 * SECOND);
    rig.pass(190 * SECOND).await;
    assert!(rig.get(&fresh_claim("c")).await.is_some());
    rig.pass(80 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(disrupted(&rig, "registration_timeout"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_registers_in_the_moment_it_is_given_up_is_kept() {
    let rig = launched().await;
    rig.pass(880 * SECOND).await;
    let held = rig.hold_requests().await;
    // The decision is made while the request that carries it out does not get through.
    rig.pass(60 * SECOND).await;
    let since = "2026-01-01T00:00:00Z";
    let registered = json!([condition("Launched", "True", since), condition("Registered", "True", since)]);
    rig.patch_status(&fresh_claim("c"), json!({"status": {"conditions": registered}})).await;
    drop(held);
    rig.pass(60 * SECOND).await;
    assert!(claim_now(&rig).await["metadata"].get("deletionTimestamp").is_none());
    assert_eq!(disrupted(&rig, "registration_timeout"), None);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_not_there_never_becomes_a_node() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::WrongProviderId("fake:///lie".to_owned()));
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    rig.create(joining_node("n", FIRST)).await;
    rig.pass(10 * SECOND).await;
    let node = rig.get(&joining_node("n", FIRST)).await.expect("the node");
    assert_eq!(node["metadata"]["labels"]["karpenter.sh/registered"], Value::Null);
    rig.pass(910 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None, "the claim is given up");
    assert!(rig.get(&joining_node("n", FIRST)).await.is_some(), "and a node that is not its own stays");
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_what_its_claim_says_and_loses_the_taint_in_one_write() {
    let rig = Rig::quiet(&[]).await;
    let claim = fresh_claim("c").with(json!({
        "metadata": {"labels": {"team": "blue", "shared": "claim"}, "annotations": {"note": "claim"}},
        "spec": {
            "taints": [{"key": "team", "value": "blue", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "booting", "effect": "NoExecute"}],
        },
    }));
    rig.create(claim).await;
    rig.pass(2 * SECOND).await;
    let node = joining_node("n", FIRST).with(json!({
        "metadata": {"labels": {"shared": "node", "own": "node"}, "annotations": {"own": "node"}},
    }));
    rig.create(node.clone()).await;
    rig.pass(2 * SECOND).await;
    let node = rig.get(&node).await.expect("the node");
    let labels = &node["metadata"]["labels"];
    assert_eq!(
        [&labels["team"], &labels["shared"], &labels["own"], &labels["karpenter.sh/registered"]],
        ["blue", "claim", "node", "true"]
    );
    assert_eq!(node["metadata"]["annotations"]["note"], "claim");
    assert_eq!(node["metadata"]["finalizers"], json!(["karpenter.sh/termination"]));
    let owner = &node["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["blockOwnerDeletion"]),
        (&json!("NodeClaim"), &json!("c"), &json!(true))
    );
    let keys: Vec<&str> =
        node["spec"]["taints"].as_array().expect("taints").iter().filter_map(|t| t["key"].as_str()).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "team", "booting"]);
    let claim = claim_now(&rig).await;
    assert_eq!(
        (state_of(&claim, "Registered").expect("a condition").0.as_str(), &claim["status"]["nodeName"]),
        ("True", &json!("n"))
    );
    assert_eq!(rig.metric("karpenter_nodes_created_total", &[("nodepool", "default")]), Some(1.0));
    assert_eq!(
        state_of(&claim, "Initialized"),
        Some(is("Unknown", "StartupTaintsExist", "StartupTaint \"booting:NoExecute\" still exists"))
    );
}

#[tokio::test(start_paused = true)]
async fn taints_of_a_node_that_wants_none_are_not_synced() {
    let rig = Rig::quiet(&[]).await;
    rig.create(fresh_claim("c").with(json!({"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}})))
        .await;
    rig.pass(2 * SECOND).await;
    let label = json!({"metadata": {"labels": {"karpenter.sh/do-not-sync-taints": "true"}}});
    rig.create(joining_node("n", FIRST).with(label)).await;
    rig.pass(2 * SECOND).await;
    let node = rig.get(&joining_node("n", FIRST)).await.expect("the node");
    let taints = node["spec"]["taints"].as_array().expect("taints");
    assert!(taints.iter().all(|taint| taint["key"] == "node.kubernetes.io/not-ready"), "{taints:?}");
    assert_eq!(node["metadata"]["labels"]["karpenter.sh/registered"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_came_without_the_taint_is_registered_and_told_about() {
    let rig = launched().await;
    rig.create(joining_node("n", FIRST).with(json!({"spec": {"taints": []}}))).await;
    rig.pass(2 * SECOND).await;
    assert_eq!(state(&rig, "Registered").await.0, "True");
    let told = rig.events("NodeClaim", "c").await;
    assert!(told.iter().any(|said| said.starts_with("UnregisteredTaintMissing: Missing karpenter.sh/unregistered taint")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn two_nodes_of_one_instance_are_nobodys() {
    let rig = Rig::quiet(&[]).await;
    rig.create(joining_node("n", FIRST)).await;
    rig.create(joining_node("m", FIRST)).await;
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    let several = is("False", "MultipleNodesFound", "Invariant violated, matched multiple nodes");
    assert_eq!(state(&rig, "Registered").await, several);
    rig.delete(&joining_node("m", FIRST)).await;
    rig.pass(5 * SECOND).await;
    assert_eq!(state(&rig, "Registered").await, several, "for good");
}

/// Lets nodes go when it is told to.
struct Hook {
    name: &'static str,
    open: Arc<AtomicBool>,
}

impl RegistrationHook for Hook {
    fn name(&self) -> &str {
        self.name
    }

    fn registered<'a>(&'a self, _: &'a NodeClaim) -> ProviderFuture<'a, HookResult> {
        let open = self.open.load(Ordering::Relaxed);
        let answer = match (open, self.name) {
            (true, _) => Ok(HookResult::Ready),
            (false, "failing") => Err(ProviderError::other("no answer")),
            (false, _) => Ok(HookResult::After(7 * SECOND)),
        };
        std::future::ready(answer).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_hold_a_node_back_until_all_are_content() {
    let rig = launched().await;
    let (slow, failing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    rig.provider.hook(Hook { name: "slow", open: Arc::clone(&slow) });
    rig.provider.hook(Hook { name: "failing", open: Arc::clone(&failing) });
    rig.create(joining_node("n", FIRST)).await;
    rig.pass(SECOND).await;
    assert_eq!(state(&rig, "Registered").await, is("Unknown", "RegistrationHookPending", "slow, failing"));
    let node = rig.get(&joining_node("n", FIRST)).await.expect("the node");
    assert_eq!(node["metadata"]["labels"]["karpenter.sh/registered"], Value::Null);
    assert_eq!(node["metadata"]["labels"]["karpenter.sh/nodepool"], "default", "the rest is synced already");
    assert_eq!(node["spec"]["taints"][0]["key"], "karpenter.sh/unregistered");
    failing.store(true, Ordering::Relaxed);
    rig.pass(60 * SECOND).await;
    assert_eq!(state(&rig, "Registered").await, is("Unknown", "RegistrationHookPending", "slow"));
    slow.store(true, Ordering::Relaxed);
    rig.pass(10 * SECOND).await;
    assert_eq!(state(&rig, "Registered").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_node_is_initialized_when_it_is_ready_and_has_what_was_asked_for() {
    let rig = Rig::quiet(&[]).await;
    let claim = fresh_claim("c").with(json!({"spec": {
        "startupTaints": [{"key": "booting", "value": "yes", "effect": "NoSchedule"}],
        "resources": {"requests": {"cpu": "500m", "example.com/gpu": "1"}},
    }}));
    rig.provider.offer(with_gpu());
    rig.create(claim).await;
    rig.pass(2 * SECOND).await;
    let node = joining_node("n", FIRST).with(json!({"status": {"conditions": []}}));
    rig.create(node.clone()).await;
    let step = async |patch: Value, status: Value| {
        rig.patch(&node, patch).await;
        rig.patch_status(&node, json!({"status": status})).await;
        rig.pass(3 * SECOND).await;
        state(&rig, "Initialized").await
    };
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let not_yet = |reason: &str, message: &str| is("Unknown", reason, message);
    assert_eq!(step(json!({}), json!({})).await, not_yet("NodeNotReady", "Node status is NotReady"));
    assert_eq!(
        step(json!({}), ready.clone()).await,
        not_yet("StartupTaintsExist", "StartupTaint \"booting=yes:NoSchedule\" still exists")
    );
    let starting = json!({"spec": {"taints": [{"key": "readiness.k8s.io/net", "effect": "NoSchedule"}]}});
    assert_eq!(
        step(starting, json!({})).await,
        not_yet(
            "KnownEphemeralTaintsExist",
            "KnownEphemeralTaint \"readiness.k8s.io/net:NoSchedule\" still exists"
        )
    );
    assert_eq!(
        step(json!({"spec": {"taints": []}}), json!({"allocatable": {"example.com/gpu": "0"}})).await,
        not_yet("ResourceNotRegistered", "Resource \"example.com/gpu\" was requested but not registered")
    );
    assert_eq!(
        step(json!({}), json!({"allocatable": {"example.com/gpu": "1"}})).await,
        is("True", "Initialized", "")
    );
    let node = rig.get(&node).await.expect("the node");
    assert_eq!(node["metadata"]["labels"]["karpenter.sh/initialized"], "true");
    assert_eq!(state(&rig, "Ready").await.0, "True");
}

/// Instance types with a device.
fn with_gpu() -> Vec<karpenter_engine::instance_type::InstanceType> {
    let mut types = karpenter_cloudprovider::fake::instance_types(1);
    let quantity = karpenter_api::Quantity::parse("1").expect("a quantity");
    let more =
        karpenter_cloudprovider::conversion::resources(&[("example.com/gpu".to_owned(), quantity)].into());
    types[0].capacity.add(&more);
    types
}

#[tokio::test(start_paused = true)]
async fn a_node_that_reboots_is_not_initialized_by_what_still_runs() {
    let rig = launched().await;
    let rebooting = condition("Rebooting", "True", "2026-01-01T00:00:00Z");
    let mut conditions =
        claim_now(&rig).await["status"]["conditions"].as_array().expect("conditions").clone();
    conditions.push(rebooting.with(json!({"reason": "Elsewhere"})));
    rig.patch_status(&fresh_claim("c"), json!({"status": {"conditions": conditions}})).await;
    rig.create(joining_node("n", FIRST)).await;
    rig.pass(5 * SECOND).await;
    assert_eq!(
        (state(&rig, "Registered").await.0.as_str(), state(&rig, "Initialized").await.0.as_str()),
        ("True", "Unknown")
    );
}

#[tokio::test(start_paused = true)]
async fn two_launches_that_come_to_nothing_make_a_pool_unhealthy_until_one_registers() {
    let rig = Rig::quiet(&[]).await;
    rig.create(crate::objects::node_class()).await;
    let pool = rig.create(node_pool("default")).await;
    let owner = json!([{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "uid": pool.metadata.uid}]);
    let owned = |name: &str| fresh_claim(name).with(json!({"metadata": {"ownerReferences": owner}}));
    let health = async || {
        let pool = rig.get(&node_pool("default")).await.expect("the pool");
        state_of(&pool, "NodeRegistrationHealthy").expect("a condition")
    };
    rig.create(owned("a")).await;
    rig.pass(930 * SECOND).await;
    assert_eq!(health().await.0, "Unknown", "one failure is chance");
    rig.create(owned("b")).await;
    rig.pass(930 * SECOND).await;
    assert_eq!(health().await, is("False", "RegistrationFailed", "Failed to register node"));
    for (name, id) in [("c", "fake:///3"), ("d", "fake:///4"), ("e", "fake:///5")] {
        rig.create(owned(name)).await;
        rig.pass(2 * SECOND).await;
        rig.create(joining_node(name, id)).await;
        rig.pass(2 * SECOND).await;
    }
    assert_eq!(health().await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_claim_vanished_while_it_was_launched_is_removed_at_once() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::Slow(5 * SECOND));
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    rig.patch(&fresh_claim("c"), json!({"metadata": {"finalizers": null}})).await;
    rig.delete(&fresh_claim("c")).await;
    rig.pass(8 * SECOND).await;
    assert!(rig.get(&fresh_claim("c")).await.is_none());
    assert_eq!((rig.provider.launches(), rig.provider.instances().len()), (1, 0));
}
