//! What is done for NodeClaims besides their life: garbage collection, expiration, consistency, pod events, hydration.

use std::time::Duration;

use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{NODE_CLASS_LABEL, With, claim, node, pod, pod_on, provider_id, state_of};
use crate::rig::{Refusal, Rig};

const SECOND: Duration = Duration::from_secs(1);

fn unready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
}

async fn exists(rig: &Rig, name: &str) -> bool {
    let found = rig.get(&claim(name, "default", 1)).await;
    found.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_null())
}

#[tokio::test(start_paused = true)]
async fn claims_whose_instance_vanished_are_collected_unless_their_node_reports() {
    let rig = Rig::quiet(&[]).await;
    for name in ["gone", "reporting", "nodeless", "there"] {
        rig.create(claim(name, "default", 1)).await;
        let node = node(name, "default", 1);
        match name {
            "nodeless" => {}
            "gone" | "there" => drop(rig.create(node.with(unready())).await),
            _ => drop(rig.create(node).await),
        }
    }
    rig.create(pod_on("gone", "p", "1m")).await;
    rig.pass(SECOND).await;
    for name in ["gone", "reporting", "nodeless"] {
        rig.provider.vanish(&provider_id(name));
    }
    rig.pass(125 * SECOND).await;
    let mut left = Vec::new();
    for name in ["gone", "reporting", "nodeless", "there"] {
        if exists(&rig, name).await {
            left.push(name);
        }
    }
    assert_eq!(left, ["reporting", "there"]);
    let collected = [("reason", "garbage_collected"), ("nodepool", "default")];
    assert_eq!(rig.metric("karpenter_nodeclaims_disrupted_total", &collected), Some(2.0));
    assert_eq!(rig.metric("karpenter_pods_disruption_initiated_total", &collected), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_fails_or_forgets_has_nothing_collected() {
    for behaviour in
        [Behaviour::EmptyList, Behaviour::Fail(ProviderError::other("no answer")), Behaviour::Hang]
    {
        let rig = Rig::quiet(&[]).await;
        rig.provider.always(Method::List, Some(behaviour.clone()));
        rig.create(claim("c", "default", 1)).await;
        rig.create(node("c", "default", 1).with(unready())).await;
        rig.pass(700 * SECOND).await;
        assert!(exists(&rig, "c").await, "{behaviour:?}");
        assert!(rig.provider.count(Method::List) >= 2, "{behaviour:?}");
    }
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    rig.create(node("c", "default", 1).with(unready())).await;
    rig.pass(SECOND).await;
    rig.provider.vanish(&provider_id("c"));
    rig.provider.always(Method::Get, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.pass(400 * SECOND).await;
    assert!(exists(&rig, "c").await, "the list says gone, but not for certain");
    rig.provider.always(Method::Get, None);
    rig.pass(1100 * SECOND).await;
    assert!(!exists(&rig, "c").await);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_deleted_keeps_no_other_waiting() {
    let rig = Rig::quiet(&[]).await;
    let deletion: Refusal =
        |verb, path| (verb == http::Method::DELETE && path.ends_with("/nodeclaims/kept")).then_some(403);
    rig.refuse(Some(deletion));
    for name in ["kept", "other"] {
        rig.create(claim(name, "default", 1)).await;
        rig.create(node(name, "default", 1).with(unready())).await;
    }
    rig.pass(SECOND).await;
    rig.provider.vanish(&provider_id("kept"));
    rig.pass(1300 * SECOND).await;
    assert!(exists(&rig, "kept").await && exists(&rig, "other").await);
    rig.provider.vanish(&provider_id("other"));
    rig.pass(125 * SECOND).await;
    assert!(exists(&rig, "kept").await && !exists(&rig, "other").await);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_has_not_registered_is_not_collected() {
    let rig = Rig::quiet(&[]).await;
    let conditions = json!([crate::objects::condition("Launched", "True", "2026-01-01T00:00:00Z")]);
    rig.create(claim("c", "default", 1).with(json!({"status": {"conditions": conditions}}))).await;
    rig.provider.vanish(&provider_id("c"));
    rig.pass(300 * SECOND).await;
    assert!(exists(&rig, "c").await);
}

#[tokio::test(start_paused = true)]
async fn claims_expire_when_their_time_is_over_one_after_the_other() {
    let rig = Rig::quiet(&[]).await;
    let lifetime = |after: &str| json!({"spec": {"expireAfter": after}});
    for (name, after) in [("a", "60s"), ("b", "60s"), ("late", "90s"), ("never", "Never")] {
        rig.create(claim(name, "default", 1).with(lifetime(after))).await;
        rig.create(node(name, "default", 1)).await;
    }
    rig.create(pod_on("a", "p", "1m")).await;
    rig.pass(55 * SECOND).await;
    assert!(exists(&rig, "a").await && exists(&rig, "b").await);
    rig.pass(10 * SECOND).await;
    assert!(!exists(&rig, "a").await && !exists(&rig, "b").await);
    assert!(exists(&rig, "late").await && exists(&rig, "never").await);
    rig.pass(30 * SECOND).await;
    assert!(!exists(&rig, "late").await && exists(&rig, "never").await);
    let expired = [("reason", "expired"), ("termination_mode", "graceful")];
    assert_eq!(rig.metric("karpenter_nodeclaims_disrupted_total", &expired), Some(3.0));
    assert_eq!(rig.metric("karpenter_pods_disruption_initiated_total", &expired), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_less_than_was_bought_is_told_about() {
    let rig = Rig::quiet(&[]).await;
    let wants = json!({"spec": {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}});
    rig.create(node("good", "default", 4)).await;
    rig.create(node("bad", "default", 4).with(json!({"status": {"capacity": {"memory": "6Gi"}}}))).await;
    rig.create(claim("good", "default", 4).with(wants.clone())).await;
    rig.create(claim("bad", "default", 4).with(wants)).await;
    rig.pass(610 * SECOND).await;
    let found = async |name: &str| {
        let claim = rig.get(&claim(name, "default", 4)).await.expect("the claim");
        state_of(&claim, "ConsistentStateFound").expect("a condition")
    };
    assert_eq!(found("good").await.0, "True");
    assert_eq!(
        found("bad").await,
        ("False".into(), "ConsistencyCheckFailed".into(), "Consistency Check Failed".into())
    );
    let told = rig.events("NodeClaim", "bad").await;
    let said = "FailedConsistencyCheck: expected 8Gi of resource memory, but found 6Gi (75.0% of expected)";
    assert!(told.contains(&said.to_owned()), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn lines_about_a_claim_that_expires_or_is_less_than_was_bought_name_its_node() {
    let lines = Lines::capture();
    let rig = Rig::quiet(&[]).await;
    let wants = json!({"spec": {"expireAfter": "660s", "resources": {"requests": {"memory": "1Gi"}}}});
    rig.create(node("bad", "default", 4).with(json!({"status": {"capacity": {"memory": "6Gi"}}}))).await;
    rig.create(claim("bad", "default", 4).with(wants)).await;
    rig.pass(665 * SECOND).await;
    for message in ["failed consistency check", "deleting expired nodeclaim"] {
        let told = lines.saying(message);
        let line = told.first().unwrap_or_else(|| panic!("{message} was not said"));
        assert_eq!(line["Node"], json!({"name": "node-bad"}), "{line}");
        assert_eq!(line["NodeClaim"], json!({"name": "bad"}), "{line}");
    }
}

async fn last_pod_event(rig: &Rig) -> Option<String> {
    let claim = rig.get(&claim("c", "default", 1)).await.expect("the claim");
    claim["status"]["lastPodEventTime"].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn pods_that_come_end_or_are_ending_are_noted_but_not_all_the_time() {
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    rig.create(node("c", "default", 1)).await;
    rig.pass(2 * SECOND).await;
    assert_eq!(last_pod_event(&rig).await, None);
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    let first = last_pod_event(&rig).await.expect("a time");
    rig.pass(5 * SECOND).await;
    rig.create(pod_on("c", "q", "1m")).await;
    rig.pass(SECOND).await;
    assert_eq!(last_pod_event(&rig).await, Some(first.clone()), "too soon after the last");
    rig.pass(10 * SECOND).await;
    rig.patch(&pod_on("c", "p", "1m"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    rig.pass(SECOND).await;
    assert_eq!(last_pod_event(&rig).await, Some(first.clone()), "nothing that concerns the node");
    rig.patch_status(&pod_on("c", "p", "1m"), json!({"status": {"phase": "Succeeded"}})).await;
    rig.pass(SECOND).await;
    let second = last_pod_event(&rig).await.expect("a time");
    assert!(second > first);
    rig.pass(15 * SECOND).await;
    rig.delete(&pod_on("c", "q", "1m")).await;
    rig.pass(SECOND).await;
    let third = last_pod_event(&rig).await.expect("a time");
    assert!(third > second);
    rig.pass(15 * SECOND).await;
    rig.create(pod("elsewhere", "1m")).await;
    rig.pass(SECOND).await;
    assert_eq!(last_pod_event(&rig).await, Some(third));
}

#[tokio::test(start_paused = true)]
async fn claims_and_nodes_of_older_versions_get_the_label_of_their_class() {
    let rig = Rig::quiet(&[]).await;
    let unlabelled = json!({"metadata": {"labels": {NODE_CLASS_LABEL: null}}});
    rig.create(claim("c", "default", 1).with(unlabelled.clone())).await;
    rig.create(node("c", "default", 1).with(unlabelled.clone())).await;
    rig.create(node("another", "default", 1).with(unlabelled)).await;
    rig.pass(2 * SECOND).await;
    let label = async |object: Value| {
        rig.get(&object).await.expect("the object")["metadata"]["labels"][NODE_CLASS_LABEL].clone()
    };
    assert_eq!(label(claim("c", "default", 1)).await, "default");
    assert_eq!(label(node("c", "default", 1)).await, "default");
    assert_eq!(label(node("another", "default", 1)).await, Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_refused_note_of_a_pod_names_the_pod() {
    let lines = Lines::capture();
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    rig.create(node("c", "default", 1)).await;
    rig.pass(2 * SECOND).await;
    rig.refuse(Some(|method, path| {
        (method == "PATCH" && path.ends_with("/nodeclaims/c/status")).then_some(500)
    }));
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    let errors = lines.saying("Reconciler error");
    let line = errors.iter().find(|line| line["controller"] == "nodeclaim.podevents").expect("an error");
    assert_eq!(line["controllerKind"], "Pod", "{line}");
    assert_eq!(line["Pod"], json!({"namespace": "default", "name": "p"}), "{line}");
    assert_eq!((&line["namespace"], &line["name"]), (&json!("default"), &json!("p")), "{line}");
}
