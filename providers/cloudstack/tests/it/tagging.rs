//! Tags of machines that run: what the NodeClass says otherwise reaches them, and nothing else is taken off.

use karpenter_cloudprovider::provider::{CloudProvider, Launch};
use karpenter_sim::chance::Span;
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
    for _ in 0..2 {
        seconds(600).await;
        two_rounds(&world).await;
    }
    assert_eq!(world.calls("deleteTags"), 1, "the answer is known");
    world.cloud.heal();
    seconds(3600).await;
    two_rounds(&world).await;
    assert_eq!((world.live()[0].tags["team"].as_str(), world.calls("deleteTags")), ("blue", 2));
}

#[tokio::test(start_paused = true)]
async fn a_tag_gets_its_new_value_although_the_server_sets_it_before_it_takes_the_old_one_off() {
    let mut turned_round = 0;
    for seed in 1..=6 {
        let world = World::seeded(seed).await;
        world.class("default", tagged(json!({"team": "red"}))).await;
        world.node("np-a").await;
        seconds(60).await;
        // Each of the two jobs takes its time, and none waits for the other.
        world.cloud.configure(|settings| settings.latencies.small_job = Span::secs(0, 60));
        world.class("default", tagged(json!({"team": "blue"}))).await;
        world.round().await;
        seconds(100).await;
        turned_round += usize::from(!world.live()[0].tags.contains_key("team"));
        two_rounds(&world).await;
        assert_eq!(world.live()[0].tags["team"], "blue", "seed {seed}");
    }
    assert!(turned_round > 0, "the order was the same each time");
}

/// What the tag of the only machine says of what it was made by.
fn made_by(world: &World) -> String {
    world.live()[0].tags["karpenter.k8s.cloudstack/nodeclass-hash"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_tags_were_lost_is_tagged_with_what_made_it_although_the_class_says_otherwise_by_now()
{
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let lost = "Internal error executing command, please contact your system administrator".to_owned();
    world.cloud.inject(Fault::times("createTags", 1000, Trouble::Fail(530, 0, lost)));
    // Its leader ends before anything but the annotations is written.
    let Launch::Launched(instance) = world.provider.create(&claim).await.expect("a machine") else {
        panic!("never pending")
    };
    world.cloud.heal();
    seconds(60).await;
    assert!(!world.live()[0].tags.contains_key("karpenter.k8s.cloudstack/nodeclass-hash"));
    let mut begun = (*claim).clone();
    begun.metadata.annotations = Some(instance.annotations.clone());
    let mut edited = spec();
    edited["userData"] = "#!/bin/bash\necho something else\n".into();
    let class = world.class("default", edited).await;
    let adopted = world.launch_by(&world.another(7), &begun).await.expect("found");
    seconds(10).await;
    let hash = "karpenter.k8s.cloudstack/nodeclass-hash";
    assert_eq!(adopted.annotations[hash], instance.annotations[hash]);
    assert!(made_by(&world).ends_with(&instance.annotations[hash]), "{}", made_by(&world));
    assert_ne!(instance.annotations[hash], class.hash());
    let drift = world.provider.is_drifted(&world.current("np-a")).await.expect("known");
    assert_eq!(drift.as_deref(), Some("NodeClassDrift"));
    // Lost again, they come back as they were.
    let id = world.live()[0].id.clone();
    world.cloud.tag_machine(&id, hash, None);
    world.round().await;
    seconds(10).await;
    assert!(made_by(&world).ends_with(&instance.annotations[hash]), "{}", made_by(&world));
}
