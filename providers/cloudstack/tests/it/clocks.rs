//! A server whose clock is wrong: nothing goes for an age it does not have, and nothing stays for ever.

use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::ProviderOptions;

use crate::cloud::{World, seconds};

#[tokio::test(start_paused = true)]
async fn a_server_whose_clock_is_behind_makes_no_machine_look_old() {
    let world = World::whose_server_is_ahead(-15).await;
    world.node("np-a").await;
    // A watch that is late: its NodeClaim is not known here yet.
    world.cluster.claims.lock().unwrap().remove("np-a");
    seconds(240).await;
    assert!(world.round().await.destroyed.is_empty(), "it is four minutes old");
    seconds(120).await;
    assert_eq!(world.round().await.destroyed.len(), 1, "nobody wants it");
}

#[tokio::test(start_paused = true)]
async fn a_new_process_learns_from_nodeclaims_that_the_servers_clock_is_behind() {
    let world = World::whose_server_is_ahead(-10).await;
    world.node("np-a").await;
    world.node("np-b").await;
    // Another leader launched it, and the new one's watch is late.
    world.cluster.claims.lock().unwrap().remove("np-b");
    seconds(60).await;
    let new = world.with_options(ProviderOptions::new("test"));
    assert!(new.round().await.expect("a round").destroyed.is_empty(), "it is a minute old");
    seconds(250).await;
    assert_eq!(new.round().await.expect("a round").destroyed.len(), 1);
    seconds(10).await;
    assert_eq!(world.live().len(), 1, "np-a is wanted");
}

#[tokio::test(start_paused = true)]
async fn a_nodeclaim_restored_from_a_backup_makes_no_servers_clock_look_months_behind() {
    let world = World::new().await;
    world.node("np-a").await;
    let stray = world.stray("np-stray");
    seconds(60 * 24 * 3600).await;
    let mut restored = (*world.current("np-a")).clone();
    let now = world.environment.clock.now();
    restored.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    world.cluster.claims.lock().unwrap().insert("np-a".into(), std::sync::Arc::new(restored));
    let new = world.with_options(ProviderOptions::new("test"));
    assert_eq!(new.round().await.expect("a round").destroyed, [stray], "it is two months old");
    seconds(10).await;
    assert_eq!(world.live().len(), 1, "np-a is wanted");
}

#[tokio::test(start_paused = true)]
async fn what_a_server_dates_into_the_future_is_as_old_as_it_was_seen() {
    let world = World::whose_server_is_ahead(9).await;
    let stray = world.stray("np-stray");
    assert!(world.round().await.destroyed.is_empty());
    seconds(290).await;
    assert!(world.round().await.destroyed.is_empty(), "it is no five minutes old");
    seconds(20).await;
    assert_eq!(world.round().await.destroyed, [stray]);
}

#[tokio::test(start_paused = true)]
async fn on_a_server_whose_clock_is_wrong_machines_are_launched_kept_and_deleted() {
    for minutes in [-10, 9] {
        let world = World::whose_server_is_ahead(minutes).await;
        world.node("np-a").await;
        world.node("np-b").await;
        for _ in 0..15 {
            seconds(120).await;
            let round = world.round().await;
            assert!(round.destroyed.is_empty() && round.started.is_empty(), "{minutes} min: {round:?}");
        }
        assert_eq!(world.provider.list().await.expect("a list").len(), 2);
        world.delete(&world.current("np-a")).await.expect("deleted");
        assert_eq!(world.live().len(), 1, "{minutes} min");
    }
}

#[tokio::test(start_paused = true)]
async fn where_signatures_are_over_before_they_arrive_nothing_is_taken_for_gone() {
    let world = World::new().await;
    let node = world.node("np-a").await;
    world.stray("np-stray");
    seconds(400).await;
    world.cloud.set_clock_ahead(jiff::SignedDuration::from_mins(11));
    assert!(world.provider.list().await.is_err());
    assert!(world.provider.round().await.is_err());
    let error = world.provider.get(&node.provider_id).await.expect_err("nobody answers");
    assert!(!error.is_not_found(), "{error}");
    let error = world.provider.delete(&world.current("np-a")).await.expect_err("nobody answers");
    assert!(!error.is_not_found(), "{error}");
    assert_eq!(world.live().len(), 2);
    world.cloud.set_clock_ahead(jiff::SignedDuration::ZERO);
    // Which looks like refused keys, and those are not sent again at once.
    seconds(20).await;
    assert_eq!(world.provider.list().await.expect("a list").len(), 2);
}
