//! NodePools' hash, books and fitness for use.

use std::time::Duration;

use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::objects::{With, claim, condition, fresh_claim, node, node_class, node_pool, state_of};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const HASH: &str = "karpenter.sh/nodepool-hash";
const VERSION: &str = "karpenter.sh/nodepool-hash-version";

async fn pool(rig: &Rig) -> Value {
    rig.get(&node_pool("default")).await.expect("the pool")
}

fn bare_pool() -> Value {
    node_pool("default").with(json!({"status": null}))
}

#[tokio::test(start_paused = true)]
async fn a_pools_hash_follows_its_template_and_not_its_behaviour() {
    let rig = Rig::quiet(&[]).await;
    rig.create(bare_pool()).await;
    rig.pass(SECOND).await;
    let hash =
        async || pool(&rig).await["metadata"]["annotations"][HASH].as_str().expect("a hash").to_owned();
    assert_eq!(pool(&rig).await["metadata"]["annotations"][VERSION], "v3");
    let first = hash().await;
    rig.patch(
        &bare_pool(),
        json!({"spec": {"weight": 7, "limits": {"cpu": "10"}, "disruption": {"consolidateAfter": "5m"}}}),
    )
    .await;
    rig.pass(SECOND).await;
    assert_eq!(hash().await, first);
    rig.patch(&bare_pool(), json!({"spec": {"template": {"metadata": {"labels": {"team": "blue"}}}}})).await;
    rig.pass(SECOND).await;
    assert_ne!(hash().await, first);
}

#[tokio::test(start_paused = true)]
async fn a_new_version_of_the_hash_is_carried_over_to_claims_that_have_not_drifted() {
    let rig = Rig::quiet(&[]).await;
    let old = json!({"metadata": {"annotations": {HASH: "1", VERSION: "v2"}}});
    let drifted = claim("drifted", "default", 1);
    let mut conditions = drifted["status"]["conditions"].as_array().expect("conditions").clone();
    conditions.push(condition("Drifted", "True", "2024-01-01T00:00:00Z"));
    // A drift that is found again and again.
    rig.provider.drift(Some("ImageDrifted"));
    rig.create(claim("fine", "another", 1).with(old.clone())).await;
    rig.create(drifted.with(old.clone()).with(json!({"status": {"conditions": conditions}}))).await;
    rig.create(bare_pool().with(old.clone())).await;
    rig.create(
        claim("c", "default", 1).with(json!({"metadata": {"annotations": {HASH: "1", VERSION: "v3"}}})),
    )
    .await;
    rig.pass(2 * SECOND).await;
    let annotations = async |object: Value| {
        let annotations = rig.get(&object).await.expect("the object")["metadata"]["annotations"].clone();
        (
            annotations[HASH].as_str().unwrap_or_default().to_owned(),
            annotations[VERSION].as_str().unwrap_or_default().to_owned(),
        )
    };
    let (hash, version) = annotations(node_pool("default")).await;
    assert!(hash != "1" && version == "v3");
    assert_eq!(annotations(claim("drifted", "default", 1)).await, ("1".into(), "v3".into()));
    assert_eq!(annotations(claim("c", "default", 1)).await, ("1".into(), "v3".into()), "current already");
    assert_eq!(annotations(claim("fine", "another", 1)).await, ("1".into(), "v2".into()), "another's");

    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1).with(old.clone())).await;
    rig.create(bare_pool().with(old)).await;
    rig.pass(2 * SECOND).await;
    let claim = rig.get(&claim("c", "default", 1)).await.expect("the claim");
    assert_eq!(claim["metadata"]["annotations"][HASH], hash);
}

#[tokio::test(start_paused = true)]
async fn a_pools_books_follow_its_nodes() {
    let rig = Rig::quiet(&[]).await;
    rig.create(bare_pool().with(json!({"spec": {"disruption": {"consolidateAfter": "Never"}}}))).await;
    rig.pass(7 * SECOND).await;
    let none = json!({"cpu": "0", "memory": "0", "pods": "0", "ephemeral-storage": "0", "nodes": "0"});
    assert_eq!(
        (&pool(&rig).await["status"]["resources"], &pool(&rig).await["status"]["nodes"]),
        (&none, &json!(0))
    );
    for name in ["a", "b"] {
        rig.create(claim(name, "default", 2)).await;
        rig.create(node(name, "default", 2)).await;
    }
    rig.create(claim("other", "another", 2)).await;
    rig.pass(7 * SECOND).await;
    let two = json!({"cpu": "4", "memory": "8Gi", "pods": "40", "ephemeral-storage": "0", "nodes": "2"});
    assert_eq!(
        (&pool(&rig).await["status"]["resources"], &pool(&rig).await["status"]["nodes"]),
        (&two, &json!(2))
    );
    rig.delete(&claim("a", "default", 2)).await;
    rig.pass(30 * SECOND).await;
    assert_eq!(pool(&rig).await["status"]["nodes"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_is_not_counted_as_a_node_of_its_pool() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::Create, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.create(node_class()).await;
    rig.create(bare_pool()).await;
    rig.create(fresh_claim("c")).await;
    rig.pass(20 * SECOND).await;
    assert!(rig.provider.count(Method::Create) > 0);
    assert!(
        !rig.context.cluster.read(|cluster| cluster.node_pool_usage("default").is_empty()),
        "limits leave room for it"
    );
    assert_eq!(pool(&rig).await["status"]["nodes"], 0);
    assert_eq!(pool(&rig).await["status"]["resources"]["cpu"], "0");
    assert_eq!(rig.metric("karpenter_cluster_state_node_count", &[]), Some(0.0));
    rig.provider.always(Method::Create, None);
    rig.pass(60 * SECOND).await;
    assert_eq!(pool(&rig).await["status"]["nodes"], 1);
    assert_eq!(rig.metric("karpenter_cluster_state_node_count", &[]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_pool_says_what_is_wrong_with_its_class() {
    let rig = Rig::quiet(&[]).await;
    rig.create(bare_pool()).await;
    let ready = async || {
        rig.pass(SECOND).await;
        let pool = pool(&rig).await;
        (
            state_of(&pool, "NodeClassReady").expect("a condition"),
            state_of(&pool, "Ready").expect("a condition").0,
        )
    };
    let not =
        |reason: &str, message: &str| (("False".into(), reason.into(), message.into()), "False".to_owned());
    assert_eq!(ready().await, not("NodeClassNotFound", "NodeClass not found on cluster"));
    rig.create(node_class().with(json!({"status": null, "metadata": {"finalizers": ["example.com/x"]}})))
        .await;
    assert_eq!(ready().await, not("NodeClassReadinessUnknown", "Node Class Readiness Unknown"));
    let broken = condition("Ready", "False", "2026-01-01T00:00:00Z")
        .with(json!({"reason": "NoImage", "message": "find one"}));
    rig.patch_status(&node_class(), json!({"status": {"conditions": [broken]}})).await;
    assert_eq!(ready().await, not("NoImage", "find one"));
    let fine = condition("Ready", "True", "2026-01-01T00:00:00Z");
    rig.patch_status(&node_class(), json!({"status": {"conditions": [fine]}})).await;
    assert_eq!(ready().await, (("True".into(), "NodeClassReady".into(), String::new()), "True".to_owned()));
    rig.delete(&node_class()).await;
    assert_eq!(ready().await, not("NodeClassTerminating", "NodeClass is Terminating"));
    rig.patch(&node_class(), json!({"metadata": {"finalizers": []}})).await;
    assert_eq!(ready().await, not("NodeClassNotFound", "NodeClass not found on cluster"));
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_class_is_missing_names_it_with_field_and_remedy() {
    let rig = Rig::quiet(&[]).await;
    rig.create(bare_pool()).await;
    rig.pass(10 * SECOND).await;
    let told = rig.events("NodePool", "default").await;
    let told: Vec<_> = told.iter().filter(|said| said.starts_with("UnknownNodeClass: ")).collect();
    let said = "UnknownNodeClass: spec.template.spec.nodeClassRef: there is no FakeNodeClass \"default\" of karpenter.test.sh; create it, or name one that there is";
    assert_eq!(told, [said]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_says_which_rule_it_breaks() {
    let rig = Rig::quiet(&[]).await;
    rig.create(bare_pool()).await;
    rig.pass(SECOND).await;
    assert_eq!(state_of(&pool(&rig).await, "ValidationSucceeded").expect("a condition").0, "True");
    let wrong = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["rented"]}]);
    rig.patch(&bare_pool(), json!({"spec": {"template": {"spec": {"requirements": wrong}}}})).await;
    rig.pass(SECOND).await;
    let (status, reason, message) = state_of(&pool(&rig).await, "ValidationSucceeded").expect("a condition");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NodePoolValidationFailed"));
    assert!(message.contains("karpenter.sh/capacity-type"), "{message}");
    let partly =
        json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["rented", "spot"]}]);
    rig.patch(&bare_pool(), json!({"spec": {"template": {"spec": {"requirements": partly}}}})).await;
    rig.pass(SECOND).await;
    assert_eq!(state_of(&pool(&rig).await, "ValidationSucceeded").expect("a condition").0, "True");
}

#[tokio::test(start_paused = true)]
async fn health_is_forgotten_when_the_pool_or_its_class_changes() {
    for (status, change_class) in [("True", false), ("False", true)] {
        let rig = Rig::quiet(&[]).await;
        rig.create(node_class()).await;
        let known = condition("NodeRegistrationHealthy", status, "2026-01-01T00:00:00Z")
            .with(json!({"observedGeneration": 1}));
        let mut pool_with = node_pool("default");
        pool_with["status"]["conditions"].as_array_mut().expect("conditions").push(known);
        rig.create(pool_with.with(json!({"status": {"nodeClassObservedGeneration": 1}}))).await;
        rig.pass(SECOND).await;
        let health = async || state_of(&pool(&rig).await, "NodeRegistrationHealthy").expect("a condition");
        assert_eq!(health().await.0, status, "kept as long as nothing changes");
        if change_class {
            rig.patch(&node_class(), json!({"spec": {"image": "new"}})).await;
        } else {
            rig.patch(&node_pool("default"), json!({"spec": {"weight": 5}})).await;
        }
        rig.pass(SECOND).await;
        assert_eq!(health().await.0, "Unknown");
    }
}

#[tokio::test(start_paused = true)]
async fn pools_of_other_classes_are_left_alone_and_told_so_by_an_event() {
    let rig = Rig::quiet(&[]).await;
    let foreign = json!({"spec": {"template": {"spec": {"nodeClassRef": {"kind": "EC2NodeClass"}}}}});
    rig.create(bare_pool().with(foreign)).await;
    rig.pass(10 * SECOND).await;
    let pool = pool(&rig).await;
    assert_eq!((&pool["status"], &pool["metadata"]["annotations"]), (&Value::Null, &Value::Null));
    let told = rig.events("NodePool", "default").await;
    let told: Vec<_> = told.iter().filter(|said| said.starts_with("UnknownNodeClass: ")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("spec.template.spec.nodeClassRef") && told[0].contains("EC2NodeClass"),
        "{told:?}"
    );
}
