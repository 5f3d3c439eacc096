//! The end of NodeClaims: nodes first, then the instance, then the claim.

use std::time::Duration;

use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::objects::{With, claim, condition, fresh_claim, node, node_class, node_pool, state_of};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_deleted_claim_takes_its_node_and_its_instance_with_it() {
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    let node =
        node("c", "default", 1).with(json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}}));
    rig.create(node.clone()).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&claim("c", "default", 1)).await;
    rig.pass(2 * SECOND).await;
    let ending = rig.get(&node).await.expect("the node is drained first");
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(rig.provider.instances().len(), 1);
    rig.pass(20 * SECOND).await;
    assert_eq!((rig.get(&node).await, rig.get(&claim("c", "default", 1)).await), (None, None));
    assert!(rig.provider.instances().is_empty());
    assert_eq!(rig.metric("karpenter_nodeclaims_terminated_total", &[("nodepool", "default")]), Some(1.0));
    assert_eq!(
        rig.metric("karpenter_nodeclaims_termination_duration_seconds_count", &[("nodepool", "default")]),
        Some(1.0)
    );
    assert_eq!(
        rig.metric("karpenter_nodeclaims_instance_termination_duration_seconds_count", &[]),
        Some(1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_stays_until_its_provider_says_that_the_instance_is_gone() {
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    rig.pass(2 * SECOND).await;
    rig.provider.always(Method::Delete, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.delete(&claim("c", "default", 1)).await;
    rig.pass(300 * SECOND).await;
    assert!(rig.get(&claim("c", "default", 1)).await.is_some());
    assert!(rig.provider.count(Method::Delete) > 4, "it is asked again and again");
    rig.provider.always(Method::Delete, None);
    rig.pass(70 * SECOND).await;
    assert_eq!(rig.get(&claim("c", "default", 1)).await, None);
    assert!(rig.provider.instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_delete_is_asked_again() {
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    rig.pass(2 * SECOND).await;
    rig.provider.next(Method::Delete, Behaviour::LoseReply);
    rig.delete(&claim("c", "default", 1)).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(rig.get(&claim("c", "default", 1)).await, None);
    assert_eq!(rig.provider.count(Method::Delete), 2);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_never_launched_goes_without_a_word_to_the_provider() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::Create, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&fresh_claim("c")).await;
    rig.pass(20 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(rig.provider.count(Method::Delete), 0);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_still_being_built_is_removed_by_its_handle() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.next(Method::Create, Behaviour::Pending);
    rig.create(fresh_claim("c")).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&fresh_claim("c")).await;
    rig.pass(20 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert!(rig.provider.count(Method::Delete) >= 2, "asked, and asked whether it is gone");
    rig.provider.finish("c");
    assert!(rig.provider.instances().is_empty(), "nothing comes of it");
}

/// A NodeClaim that does not say that it is registered, deleted, and its Node.
async fn end_of_an_unregistered_claim(rig: &Rig, node: &Value) {
    let since = "2026-01-01T00:00:00Z";
    let unregistered = json!({"status": {"conditions": [
        condition("Launched", "True", since), condition("Registered", "False", since),
    ]}});
    rig.create(claim("c", "default", 1).with(unregistered)).await;
    rig.create(node.clone()).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&claim("c", "default", 1)).await;
    rig.pass(20 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_claim_that_never_registered_are_not_touched() {
    let rig = Rig::quiet(&[]).await;
    let closed =
        node("c", "default", 1).with(json!({"metadata": {"labels": {"karpenter.sh/registered": "false"}}}));
    end_of_an_unregistered_claim(&rig, &closed).await;
    assert_eq!(rig.get(&claim("c", "default", 1)).await, None);
    let node = rig.get(&closed).await.expect("the node stays");
    assert_eq!(node["metadata"]["deletionTimestamp"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_opened_is_drained_although_its_claim_was_deleted_before_it_could_say_so() {
    let rig = Rig::quiet(&[]).await;
    let open = node("c", "default", 1).with(json!({"metadata": {"finalizers": ["example.com/held"]}}));
    end_of_an_unregistered_claim(&rig, &open).await;
    let ending = rig.get(&open).await.expect("the node is drained first");
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(rig.provider.count(Method::Delete), 0, "its instance goes after it");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_opened_for_another_claim_stays_when_an_unregistered_one_with_its_id_ends() {
    let rig = Rig::quiet(&[]).await;
    let other = rig.create(claim("other", "default", 1)).await;
    let owner = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "other", "uid": other.metadata.uid});
    let open = node("c", "default", 1).with(json!({"metadata": {"ownerReferences": [owner]}}));
    end_of_an_unregistered_claim(&rig, &open).await;
    assert_eq!(rig.get(&claim("c", "default", 1)).await, None);
    let node = rig.get(&open).await.expect("the node stays");
    assert_eq!(node["metadata"]["deletionTimestamp"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_drain_is_written_down_once_and_told() {
    for (earlier, expected) in
        [(None, "2026-01-01T00:05:03Z"), (Some("2026-01-01T00:00:30Z"), "2026-01-01T00:00:30Z")]
    {
        let rig = Rig::quiet(&[]).await;
        let mut bounded = claim("c", "default", 1).with(json!({"spec": {"terminationGracePeriod": "300s"}}));
        if let Some(earlier) = earlier {
            let annotations = json!({"karpenter.sh/nodeclaim-termination-timestamp": earlier});
            bounded = bounded.with(json!({"metadata": {"annotations": annotations}}));
        }
        rig.create(bounded).await;
        rig.provider.always(Method::Delete, Some(Behaviour::Fail(ProviderError::other("no answer"))));
        let now = rig.context.now().as_second() - karpenter_sim::cluster::EPOCH.as_second();
        rig.pass(Duration::from_secs(u64::try_from(3 - now).expect("early"))).await;
        rig.delete(&claim("c", "default", 1)).await;
        rig.pass(5 * SECOND).await;
        let ending = rig.get(&claim("c", "default", 1)).await.expect("the claim");
        assert_eq!(
            ending["metadata"]["annotations"]["karpenter.sh/nodeclaim-termination-timestamp"],
            expected
        );
        let told = rig.events("NodeClaim", "c").await;
        let said = format!("TerminationGracePeriodExpiring: All pods will be deleted by {expected}");
        assert_eq!(told.contains(&said), earlier.is_none(), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn instance_terminating_is_written_while_the_instance_goes() {
    let rig = Rig::quiet(&[]).await;
    rig.create(claim("c", "default", 1)).await;
    rig.pass(2 * SECOND).await;
    rig.provider.always(Method::Delete, Some(Behaviour::Slow(5 * SECOND)));
    rig.delete(&claim("c", "default", 1)).await;
    rig.pass(7 * SECOND).await;
    let ending = rig.get(&claim("c", "default", 1)).await.expect("the claim");
    assert_eq!(state_of(&ending, "InstanceTerminating").map(|state| state.0).as_deref(), Some("True"));
    rig.pass(20 * SECOND).await;
    assert_eq!(rig.get(&claim("c", "default", 1)).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_instance_launched_while_its_claim_was_being_deleted_is_removed() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig.provider.next(Method::Create, Behaviour::Slow(Duration::from_secs(10)));
    rig.create(fresh_claim("c")).await;
    rig.pass(Duration::from_secs(5)).await;
    rig.delete(&fresh_claim("c")).await;
    rig.eventually("the claim is gone", |rig| rig.see(|objects| objects.node_claims.is_empty())).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!((rig.provider.launches(), rig.provider.instances().len()), (1, 0));
}
