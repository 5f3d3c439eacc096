//! What Karpenter writes down on a MachineDeployment, and what becomes of it when somebody edits that.

use karpenter_sim::cluster_api::Kind;
use serde_json::{Value, json};

use crate::rig::{MAX, MINUTE, Rig, claimed, initialized, replicas, scenario};

const PROTECTED: &str = "karpenter.cluster.x-k8s.io/protected-replicas";
const EPOCH: &str = "karpenter.cluster.x-k8s.io/epoch";

async fn edit(rig: &Rig, key: &str, value: Value) {
    rig.patch(Kind::MachineDeployment, "m", json!({"metadata": {"annotations": {key: value}}})).await;
}

fn annotation(rig: &Rig, wanted: &str) -> Option<String> {
    rig.read(|objects| {
        let (_, deployment) = objects.machine_deployments.iter().find(|(key, _)| &*key.name == "m")?;
        deployment.metadata.annotations.as_ref()?.get(wanted).cloned()
    })
}

/// Three nodes of ours besides one that was there before.
async fn three_besides_one() -> Rig {
    let rig = Rig::new(json!({})).await;
    rig.deployment("m", &[(MAX, "30")]).await;
    rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
    rig.pass(MINUTE).await;
    rig.karpenter.start();
    rig.want(3);
    rig.until("three nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
    assert_eq!(rig.replicas("m"), 4);
    rig
}

#[test]
fn a_count_of_protected_replicas_that_is_taken_away_is_counted_again_and_raises_nothing() {
    scenario(async {
        let rig = three_besides_one().await;
        edit(&rig, PROTECTED, Value::Null).await;
        rig.want(4);
        rig.until("the fourth is ready", 5 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (5, 4));
        assert_eq!(annotation(&rig, PROTECTED).as_deref(), Some("1"));
        rig.at_rest();
    });
}

#[test]
fn a_count_of_protected_replicas_that_cannot_be_read_holds_launches_until_it_is_mended() {
    scenario(async {
        let rig = three_besides_one().await;
        edit(&rig, PROTECTED, "two".into()).await;
        rig.pass(MINUTE).await;
        rig.want(4);
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (4, 3), "whose replicas are cannot be told");
        let told = rig.resource("m").await.unavailable.unwrap_or_default();
        assert!(told.contains(PROTECTED) && told.contains("\"two\" is not a number"), "{told}");
        edit(&rig, PROTECTED, "1".into()).await;
        rig.until("the fourth is ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.replicas("m"), 5);
        rig.at_rest();
    });
}

#[test]
fn an_epoch_that_is_yet_to_come_raises_nothing_and_is_begun_anew() {
    scenario(async {
        let rig = three_besides_one().await;
        edit(&rig, EPOCH, "2099-01-01T00:00:00Z".into()).await;
        rig.want(4);
        rig.until("the fourth is ready", 5 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.read(|objects| replicas(objects, "m")), rig.read(claimed)), (5, 4));
        assert!(annotation(&rig, EPOCH).is_some_and(|epoch| !epoch.starts_with("2099")));
        rig.at_rest();
    });
}
