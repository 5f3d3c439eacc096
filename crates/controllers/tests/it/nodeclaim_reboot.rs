//! Nodes restarted in place.

use std::time::Duration;

use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::objects::{With, claim, condition, node, pod_on, state_of};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const GRACE: &str = "karpenter.sh/reboot-termination-grace-period";
const BOOT: &str = "karpenter.sh/reboot-pre-boot-id";

/// A claim `c` whose node is to be rebooted, with this long to drain and these pods.
async fn requested(grace: Option<&str>, pods: Vec<Value>) -> Rig {
    let rig = Rig::quiet(&[]).await;
    rig.create(node("c", "default", 1)).await;
    // Nobody here takes off what the server puts on every new node.
    rig.patch(&node("c", "default", 1), json!({"spec": {"taints": []}})).await;
    boot(&rig, "boot-1").await;
    for pod in pods {
        rig.create(pod).await;
    }
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut wanted = claim("c", "default", 1);
    if let Some(grace) = grace {
        wanted = wanted.with(json!({"metadata": {"annotations": {GRACE: grace}}}));
    }
    let rebooting = condition("Rebooting", "True", &now)
        .with(json!({"reason": "RebootRequested", "message": "rebooting for Kernel/Stuck"}));
    wanted["status"]["conditions"].as_array_mut().expect("conditions").push(rebooting);
    rig.create(wanted).await;
    rig
}

async fn boot(rig: &Rig, id: &str) {
    let info = json!({
        "bootID": id, "machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "", "architecture": "",
        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "",
    });
    rig.patch_status(&node("c", "default", 1), json!({"status": {"nodeInfo": info}})).await;
}

async fn state(rig: &Rig, type_: &str) -> (String, String, String) {
    let claim = rig.get(&claim("c", "default", 1)).await.expect("the claim");
    state_of(&claim, type_).expect("a condition")
}

async fn is_fenced(rig: &Rig) -> bool {
    let node = rig.get(&node("c", "default", 1)).await.expect("the node");
    node["spec"]["taints"].as_array().into_iter().flatten().any(|t| t["key"] == "karpenter.sh/rebooting")
}

async fn is_deleted(rig: &Rig) -> bool {
    let found = rig.get(&claim("c", "default", 1)).await;
    found.is_none_or(|claim| claim["metadata"]["deletionTimestamp"].is_string())
}

fn results(rig: &Rig, result: &str) -> Option<f64> {
    rig.metric("karpenter_nodes_reboots_total", &[("result", result)])
}

#[tokio::test(start_paused = true)]
async fn a_reboot_fences_drains_issues_and_ends_when_the_node_is_back() {
    let rig = requested(Some("60s"), vec![]).await;
    rig.pass(3 * SECOND).await;
    assert!(is_fenced(&rig).await);
    assert_eq!(rig.provider.count(Method::Reboot), 0, "late pods are waited for");
    rig.pass(5 * SECOND).await;
    assert_eq!(rig.provider.count(Method::Reboot), 1);
    let rebooting =
        |reason: &str| ("True".to_owned(), reason.to_owned(), "rebooting for Kernel/Stuck".to_owned());
    assert_eq!(state(&rig, "Rebooting").await, rebooting("RebootIssued"));
    assert_eq!(
        state(&rig, "Initialized").await,
        ("Unknown".into(), "Rebooting".into(), "node is rebooting".into())
    );
    let away = rig.get(&node("c", "default", 1)).await.expect("the node");
    assert_eq!(away["metadata"]["labels"]["karpenter.sh/initialized"], Value::Null);
    rig.pass(60 * SECOND).await;
    assert_eq!(state(&rig, "Rebooting").await, rebooting("RebootIssued"), "the same boot is no reboot");
    boot(&rig, "boot-2").await;
    rig.pass(20 * SECOND).await;
    assert_eq!(
        state(&rig, "Rebooting").await,
        ("False".into(), "RebootSucceeded".into(), "node rebooted and rejoined the cluster".into())
    );
    rig.pass(5 * SECOND).await;
    assert_eq!(state(&rig, "Initialized").await.0, "True", "and is initialized anew");
    assert!(!is_fenced(&rig).await);
    let claim = rig.get(&claim("c", "default", 1)).await.expect("the claim");
    assert_eq!(claim["metadata"]["annotations"][BOOT], Value::Null);
    assert_eq!((results(&rig, "succeeded"), rig.provider.count(Method::Reboot)), (Some(1.0), 1));
    let told = rig.events("NodeClaim", "c").await;
    assert!(told.iter().any(|said| said.starts_with("RebootObserved: New boot observed")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_are_asked_to_leave_but_ride_along_when_the_time_is_over() {
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let rig = requested(Some("40s"), vec![pod_on("c", "p", "1m").with(protected)]).await;
    rig.pass(35 * SECOND).await;
    assert_eq!(rig.provider.count(Method::Reboot), 0);
    rig.pass(10 * SECOND).await;
    assert_eq!(rig.provider.count(Method::Reboot), 1);
    let pod = rig.get(&pod_on("c", "p", "1m")).await.expect("the pod");
    assert_eq!(pod["metadata"]["deletionTimestamp"], Value::Null, "never by force");
}

#[tokio::test(start_paused = true)]
async fn without_grace_a_reboot_is_issued_at_once_and_without_a_bound_it_waits() {
    let rig = requested(Some("0s"), vec![pod_on("c", "p", "1m")]).await;
    rig.pass(SECOND).await;
    assert_eq!(rig.provider.count(Method::Reboot), 1);
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let rig = requested(None, vec![pod_on("c", "p", "1m").with(protected)]).await;
    rig.pass(3600 * SECOND).await;
    assert_eq!(rig.provider.count(Method::Reboot), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_makes_no_sense_ends_the_reboot_and_nothing_else() {
    for wrong in ["soon", "-5s"] {
        let rig = requested(Some(wrong), vec![]).await;
        rig.pass(5 * SECOND).await;
        let (status, reason, message) = state(&rig, "Rebooting").await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "RebootFailed"));
        assert!(message.starts_with("invalid reboot request: "), "{message}");
        assert!(!is_deleted(&rig).await);
        assert_eq!(results(&rig, "invalid_request"), Some(1.0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_is_the_same_reboot() {
    let rig = requested(Some("0s"), vec![]).await;
    rig.provider.next(Method::Reboot, Behaviour::LoseReply);
    rig.pass(10 * SECOND).await;
    assert_eq!(state(&rig, "Rebooting").await.1, "RebootIssued");
    assert_eq!(rig.provider.count(Method::Reboot), 2, "asked again, with the same operation id");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_refuses_or_does_not_take_the_order_has_the_node_replaced() {
    let rig = requested(Some("0s"), vec![]).await;
    rig.provider.always(Method::Reboot, Some(Behaviour::Fail(ProviderError::RebootNotImplemented)));
    rig.pass(3 * SECOND).await;
    assert!(is_deleted(&rig).await);
    assert_eq!(results(&rig, "provider_error"), Some(1.0));
    let told = rig.events("NodeClaim", "c").await;
    assert!(
        told.contains(&"RebootFailed: reboot not implemented by the cloud provider".to_owned()),
        "{told:?}"
    );

    let rig = requested(Some("0s"), vec![]).await;
    rig.provider.always(Method::Reboot, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.pass(200 * SECOND).await;
    assert!(!is_deleted(&rig).await);
    rig.pass(200 * SECOND).await;
    assert!(is_deleted(&rig).await);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_come_back_is_replaced() {
    let rig = requested(Some("30s"), vec![]).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(state(&rig, "Rebooting").await.1, "RebootIssued");
    rig.pass(1150 * SECOND).await;
    assert!(!is_deleted(&rig).await);
    rig.pass(80 * SECOND).await;
    assert!(is_deleted(&rig).await);
    assert_eq!(results(&rig, "recovery_timeout"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_reboot_whose_claim_is_gone_is_neither_told_nor_counted() {
    let rig = requested(Some("0s"), vec![]).await;
    rig.refuse(Some(|method, path| (method == "DELETE" && path.ends_with("/nodeclaims/c")).then_some(404)));
    rig.provider.always(Method::Reboot, Some(Behaviour::Fail(ProviderError::RebootNotImplemented)));
    rig.pass(3 * SECOND).await;
    assert!(rig.provider.count(Method::Reboot) > 0, "it was tried, and was to be replaced");
    let told = rig.events("NodeClaim", "c").await;
    assert!(!told.iter().any(|said| said.starts_with("RebootFailed")), "{told:?}");
    assert_eq!(results(&rig, "provider_error"), None);
}
