//! What servers before 4.17 do not know and ignore in silence: several key pairs, a disk offering for the root disk.

use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider;
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

async fn older() -> World {
    let world = World::new().await;
    world.cloud.set_version("4.16.1.0");
    for pair in ["admins", "builders"] {
        world.cloud.add_key_pair(pair, None);
    }
    world.cloud.add("diskoffering", json!({"name": "fast"}));
    seconds(3700).await;
    world
}

/// Status and message of what is said of a NodeClass with this field.
async fn judged(world: &World, field: &str, value: Value) -> (String, String) {
    let mut class = spec();
    class[field] = value;
    let class = world.class("default", class).await;
    let condition = class.condition("ValidationSucceeded").cloned().expect("a condition");
    (condition.status.as_str().to_owned(), condition.message().to_owned())
}

#[tokio::test(start_paused = true)]
async fn one_key_pair_is_named_to_older_servers_in_the_way_they_know() {
    for (field, value) in [("sshKeyPair", json!("admins")), ("sshKeyPairs", json!(["admins"]))] {
        let world = older().await;
        let (status, message) = judged(&world, field, value).await;
        assert_eq!(status, "True", "{message}");
        world.node("np-a").await;
        let deployed = world.cloud.log().into_iter().find(|entry| entry.command == "deployVirtualMachine");
        let sent = deployed.expect("an order").parameters;
        assert_eq!((sent.get("keypair").map(String::as_str), sent.get("keypairs")), (Some("admins"), None));
        seconds(400).await;
        let claim = world.current("np-a");
        assert_eq!(world.provider.is_drifted(&claim).await.expect("known"), None, "it has the key pair");
    }
}

#[tokio::test(start_paused = true)]
async fn what_older_servers_ignore_is_said_with_field_and_remedy() {
    for (field, value) in
        [("sshKeyPairs", json!(["admins", "builders"])), ("rootDiskOffering", json!("fast"))]
    {
        let world = older().await;
        let (status, message) = judged(&world, field, value.clone()).await;
        assert_eq!(status, "False", "{message}");
        let parts = [&format!("spec.{field}"), "4.16.1.0", "upgrade the server to 4.17"];
        assert!(parts.iter().all(|part| message.contains(*part)), "{message}");
        world.cloud.set_version("4.17.0.0");
        seconds(3700).await;
        let (status, message) = judged(&world, field, value).await;
        assert_eq!(status, "True", "{message}");
    }
}
