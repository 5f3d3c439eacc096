//! Keys that the server refuses are not sent to it again and again, however many ask.

use std::sync::Arc;

use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::Session;
use karpenter_provider_cloudstack::client::signature::Credentials;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;

use crate::cloud::{Wire, World, seconds};

fn session(world: &World, keys: Credentials) -> Session {
    Session {
        endpoint: "http://cloud/client/api".into(),
        credentials: keys,
        transport: Arc::new(Wire(world.cloud.clone())),
        project: None,
    }
}

fn right_keys(world: &World) -> Credentials {
    let account = world.cloud.account(Role::User).unwrap();
    Credentials::new(account.api_key, account.secret_key)
}

/// Several controllers ask, each on its own, every second.
async fn ask_for(world: &World, secs: u64) {
    for _ in 0..secs {
        let (list, looked, round) =
            tokio::join!(world.provider.list(), world.provider.look_at_launches(), world.provider.round());
        let (instance_types, owner) = (
            world.provider.get_instance_types(&world.pool("default")).await,
            world.client.capabilities().await,
        );
        let failures = [list.is_err(), round.is_err(), owner.is_err()];
        assert_eq!(failures, [true; 3], "{looked:?} {instance_types:?}");
        seconds(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn refused_keys_are_sent_once_in_twenty_seconds_by_all_together_and_new_ones_at_once() {
    let world = World::new().await;
    world.node("np-a").await;
    for secret in ["wrong", "wrong as well"] {
        world.client.become_session(session(&world, Credentials::new("nobody", secret)));
        let before = world.cloud.log().len();
        ask_for(&world, 1).await;
        let at_first = world.cloud.log().len() - before;
        // Whoever was under way when the first refusal came.
        assert!((1..=6).contains(&at_first), "{at_first}");
        let before = world.cloud.log().len();
        ask_for(&world, 300).await;
        let calls = world.cloud.log().len() - before;
        assert!((10..=20).contains(&calls), "{calls} in five minutes");
    }
    world.client.become_session(session(&world, right_keys(&world)));
    assert_eq!(world.provider.list().await.expect("at once").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_let_in_again_are_used_within_half_a_minute() {
    let world = World::new().await;
    let refusal = "unable to verify user credentials and/or request signature".to_owned();
    world.cloud.inject(Fault::of_any(1000, Trouble::Fail(401, 0, refusal)));
    assert!(world.provider.list().await.is_err());
    assert!(world.provider.list().await.is_err());
    world.cloud.heal();
    seconds(30).await;
    world.node("np-a").await;
    assert_eq!(world.live().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_the_server_does_not_know_stops_no_other() {
    let world = World::new().await;
    // Looks like wrong keys, and is not.
    let refusal = "unable to verify user credentials and/or request signature".to_owned();
    world.cloud.inject(Fault::times("listVirtualMachines", 1, Trouble::Fail(401, 0, refusal)));
    assert!(world.provider.list().await.is_err());
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
}
