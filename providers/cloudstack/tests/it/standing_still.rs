//! Machines that stand still are started, or replaced: scenario 13.

use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cloud::{World, seconds};

/// How many machines are started by a round and the next one.
async fn started_within_two_minutes(world: &World) -> usize {
    let first = world.round().await.started.len();
    seconds(120).await;
    first + world.round().await.started.len()
}

#[tokio::test(start_paused = true)]
async fn scenario_13_a_machine_stopped_by_a_crash_of_the_server_is_started_once() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.launch(&claim).await.expect("accepted");
    assert_eq!(world.live()[0].state, "Starting");
    world.cloud.restart();
    assert_eq!(world.live()[0].state, "Stopped");
    seconds(180).await;
    assert_eq!(started_within_two_minutes(&world).await, 1);
    seconds(60).await;
    assert_eq!(world.live()[0].state, "Running");
    world.cloud.stop_machine(&world.live()[0].id);
    assert_eq!(started_within_two_minutes(&world).await, 0, "once");
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_started_two_minutes_after_it_was_first_seen_standing_still_however_old_it_is() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    let started = async || world.round().await.started.len();
    seconds(3600).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 0, "whoever stopped it may start it");
    seconds(90).await;
    assert_eq!(started().await, 0, "not yet");
    // Somebody did; and the next stop is another one.
    world.cloud.find_machine_again(&id);
    assert_eq!(started().await, 0);
    world.cloud.stop_machine(&id);
    seconds(60).await;
    assert_eq!(started().await, 0);
    seconds(120).await;
    assert_eq!(started().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_process_counts_anew_how_long_a_machine_stands_still() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(3600).await;
    world.cloud.stop_machine(&world.live()[0].id);
    world.round().await;
    seconds(120).await;
    let next = world.another(2);
    assert!(next.round().await.expect("a round").started.is_empty(), "it has just come");
    seconds(120).await;
    assert_eq!(next.round().await.expect("a round").started.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_ran_well_for_an_hour_is_started_again() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    let started = async || started_within_two_minutes(&world).await;
    seconds(180).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 1);
    seconds(3700).await;
    assert_eq!(started().await, 0, "it runs");
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 1, "what stopped it then says nothing of now");
    seconds(60).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 0, "it does not stay up");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_restored_is_replaced() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(180).await;
    world.cloud.fail_to_restore_machine(&world.live()[0].id);
    assert!(world.round().await.started.is_empty());
    assert_eq!(world.told("VirtualMachineStopped").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_the_server_refused_in_passing_is_tried_again_before_the_machine_is_replaced() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    seconds(180).await;
    world.cloud.stop_machine(&id);
    world.round().await;
    // It takes no orders for a while, which it says in several ways.
    let busy = "The server is busy".to_owned();
    for trouble in [Trouble::Fail(530, 4250, busy), Trouble::Proxy(502), Trouble::DropRequest] {
        world.cloud.inject(Fault::once("startVirtualMachine", trouble));
        seconds(121).await;
        assert!(world.round().await.started.is_empty());
    }
    assert!(world.told("VirtualMachineStopped").is_empty());
    seconds(121).await;
    assert_eq!(world.round().await.started, [id]);
    assert_eq!(world.calls("startVirtualMachine"), 4);
    seconds(60).await;
    assert_eq!(world.live()[0].state, "Running");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_the_server_keeps_refusing_to_start_is_replaced_after_five_times() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(180).await;
    world.cloud.stop_machine(&world.live()[0].id);
    let refused = Trouble::Fail(530, 4250, "not now".to_owned());
    world.cloud.inject(Fault::times("startVirtualMachine", 100, refused));
    for _ in 0..8 {
        assert!(world.round().await.started.is_empty());
        seconds(121).await;
    }
    assert_eq!(world.calls("startVirtualMachine"), 5);
    assert!(!world.told("VirtualMachineStopped").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stops_is_started_two_minutes_after_anybody_saw_it_so() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    let stop = CancellationToken::new();
    let starts = || world.cloud.log().into_iter().find(|entry| entry.command == "startVirtualMachine");
    let life = async {
        // Just after a round, so that the next one is far.
        seconds(3 * 120 + 5).await;
        world.cloud.stop_machine(&id);
        let stopped = world.environment.clock.now();
        // Others ask for their own reasons, and then nobody does.
        seconds(5).await;
        world.provider.list().await.expect("a list");
        seconds(110).await;
        assert!(starts().is_none(), "whoever stopped it may be about to start it");
        seconds(35).await;
        let started = starts().expect("started").at.duration_since(stopped);
        assert!(started.as_secs() <= 145, "{started}");
        stop.cancel();
    };
    tokio::join!(world.provider.look_after(stop.clone()), life);
    assert_eq!(world.calls("startVirtualMachine"), 1);
}
