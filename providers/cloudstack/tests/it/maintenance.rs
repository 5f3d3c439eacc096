//! A server that takes no orders for hours is not asked by everybody every few seconds.

use futures_util::future::join_all;
use karpenter_cloudprovider::provider::CloudProvider;
use serde_json::json;

use crate::cloud::{World, seconds, spec};

#[tokio::test(start_paused = true)]
async fn while_the_server_takes_no_orders_one_asks_for_all_and_soon_after_it_does_all_are_carried_out() {
    let world = World::new().await;
    let mut ending = Vec::new();
    for name in ["np-a", "np-b", "np-c", "np-d"] {
        world.node(name).await;
        ending.push(world.current(name));
    }
    let waiting: Vec<_> = ["np-w", "np-x"].map(|name| world.claim(name, json!({"cpu": "1"}))).into();
    seconds(60).await;
    world.cloud.configure(|settings| settings.maintenance = true);
    let before = world.cloud.log().len();
    for _ in 0..360 {
        for claim in &ending {
            let error = world.provider.delete(claim).await.expect_err("not now");
            assert!(error.to_string().contains("Maintenance or Shutdown"), "{error}");
        }
        for claim in &waiting {
            let error = world.launch(claim).await.expect_err("not now");
            assert!(error.to_string().contains("Maintenance or Shutdown"), "{error}");
        }
        seconds(10).await;
    }
    let log = world.cloud.log().split_off(before);
    let orders = log.iter().filter(|entry| !entry.command.starts_with("list")).count();
    assert!((50..=80).contains(&orders), "{orders} orders in an hour");
    assert!(log.len() <= 300, "{} calls in an hour", log.len());
    world.cloud.configure(|settings| settings.maintenance = false);
    seconds(60).await;
    for claim in &ending {
        world.delete(claim).await.expect("gone");
    }
    for claim in &waiting {
        world.launch(claim).await.expect("a machine");
    }
    assert_eq!(world.live().len(), 2, "no offering was blamed, and nothing was made twice");
}

#[tokio::test(start_paused = true)]
async fn while_the_server_takes_no_orders_only_whoever_gives_one_asks_for_disks_and_lists_are_read_once_a_minute()
 {
    let world = World::new().await;
    let mut class = spec();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    world.class("default", class).await;
    let mut ending = Vec::new();
    for name in ["np-a", "np-b", "np-c", "np-d"] {
        ending.push((world.node(name).await.provider_id, world.current(name)));
    }
    seconds(60).await;
    world.cloud.configure(|settings| settings.maintenance = true);
    let before = world.cloud.log().len();
    for _ in 0..360 {
        join_all(ending.iter().map(|(_, claim)| world.provider.delete(claim))).await;
        join_all(ending.iter().map(|(id, _)| world.provider.get(id))).await;
        seconds(10).await;
    }
    let log = world.cloud.log().split_off(before);
    let calls = |command: &str| log.iter().filter(|entry| entry.command == command).count();
    let orders = calls("destroyVirtualMachine");
    assert!((50..=80).contains(&orders), "{orders} orders in an hour");
    // Those that come before the first refusal know nothing of it.
    assert!(calls("listVolumes") <= orders + ending.len(), "{} lists of disks", calls("listVolumes"));
    assert!(calls("listVirtualMachines") <= 65, "{} lists of machines", calls("listVirtualMachines"));
}
