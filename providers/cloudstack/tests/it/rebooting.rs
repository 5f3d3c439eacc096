//! Nodes that are to be rebooted: only machines of this cluster.

use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use serde_json::json;

use crate::cloud::{World, seconds};

#[tokio::test(start_paused = true)]
async fn a_machine_is_rebooted_unless_it_is_another_clusters_whatever_its_nodeclaim_says() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(60).await;
    let (claim, id) = (world.current("np-a"), world.machine_of("np-a").id);
    world.provider.reboot(&claim, "1").await.expect("it is ours");
    assert_eq!(world.calls("rebootVirtualMachine"), 1);
    seconds(60).await;
    // The NodeClaim was copied from another cluster, whose machine it names.
    world.cloud.tag_machine(&id, "kubernetes.io/cluster/test", None);
    world.cloud.tag_machine(&id, "kubernetes.io/cluster/other", Some("owned"));
    let error = world.provider.reboot(&claim, "2").await.expect_err("not ours");
    assert!(matches!(error, ProviderError::RebootFailed(_)) && error.is_reboot_over(), "{error:?}");
    assert!(error.to_string().contains("another cluster"), "{error}");
    assert_eq!(world.calls("rebootVirtualMachine"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_machine_out_of_sight_is_not_rebooted_and_one_that_is_gone_is_not_found() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(60).await;
    let (claim, id) = (world.current("np-a"), world.machine_of("np-a").id);
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&id, Some("other"), None);
    let error = world.provider.reboot(&claim, "1").await.expect_err("out of sight");
    assert!(!error.is_not_found() && !error.is_reboot_over(), "{error}");
    assert_eq!(world.calls("rebootVirtualMachine"), 0);
    let gone = world.claim("np-b", json!({"cpu": "1"}));
    world.launch(&gone).await.expect("a machine");
    let gone = world.current("np-b");
    seconds(60).await;
    world.delete(&gone).await.expect("gone");
    assert!(world.provider.reboot(&gone, "2").await.expect_err("gone").is_not_found());
}
