//! Tags of machines that run: what the NodeClass says otherwise reaches them, and nothing else is taken off.

use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

fn tagged(tags: Value) -> Value {
    let mut spec = spec();
    spec["tags"] = tags;
    spec
}

/// Two rounds, each with the time for its orders.
async fn two_rounds(world: &World) {
    for _ in 0..2 {
        world.round().await;
        seconds(120).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_gets_another_value_gets_it_on_machines_that_run_and_no_other_is_taken_off() {
    let world = World::new().await;
    world.class("default", tagged(json!({"team": "red", "cost": "1"}))).await;
    world.node("np-a").await;
    seconds(60).await;
    let id = world.live()[0].id.clone();
    world.cloud.tag_machine(&id, "theirs", Some("x"));
    let mut wanted = world.live()[0].tags.clone();
    assert_eq!(wanted["team"], "red");
    world.class("default", tagged(json!({"team": "blue", "cost": "1"}))).await;
    two_rounds(&world).await;
    wanted.insert("team".to_owned(), "blue".to_owned());
    assert_eq!(world.live()[0].tags, wanted);
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    // Nobody knows who put there what the NodeClass has no more.
    world.class("default", tagged(json!({"team": "blue"}))).await;
    seconds(600).await;
    two_rounds(&world).await;
    assert_eq!(world.live()[0].tags, wanted);
    assert_eq!(world.calls("deleteTags"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_take_tags_off_leaves_them_and_is_asked_rarely() {
    let world = World::new().await;
    world.class("default", tagged(json!({"team": "red"}))).await;
    world.node("np-a").await;
    seconds(60).await;
    let before = world.live()[0].tags.clone();
    let text = "The API [deleteTags] does not exist or is not available for the account karp.";
    world.cloud.inject(Fault::times("deleteTags", 1000, Trouble::Fail(432, 9999, text.into())));
    world.class("default", tagged(json!({"team": "blue"}))).await;
    two_rounds(&world).await;
    assert_eq!((world.live()[0].tags.clone(), world.calls("deleteTags")), (before, 1));
    world.cloud.heal();
    seconds(600).await;
    two_rounds(&world).await;
    assert_eq!((world.live()[0].tags["team"].as_str(), world.calls("deleteTags")), ("blue", 2));
}
