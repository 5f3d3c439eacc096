//! The world as a whole: the same seed, the same tape; a thousand pods; users who come and go.

use std::time::Duration;

use karpenter_sim::chance::Chance;
use karpenter_sim::objects::{is_active, node_of};
use karpenter_sim::traffic::{Script, Volume};
use karpenter_sim::{Tape, World, WorldOptions, in_virtual_time, invariants};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use crate::objects::{MINUTE, deployment, node, quick, ready};

/// A quarter of an hour of users' doings on nodes that are there already.
async fn busy(seed: u64) -> Tape {
    let world = World::new(WorldOptions { seed, ..WorldOptions::default() }).await.unwrap();
    world.cluster().watch_over(invariants::all("karpenter"));
    for number in 0..4 {
        let zone = ["a", "b", "c", "d"][number];
        world.create(node(&format!("n{number}"), zone, 16)).await.unwrap();
    }
    let mut chance = Chance::new(world.cluster().entropy(), "traffic");
    let volume = Volume { deployments: 4, replicas: 5, period: 10 * MINUTE };
    Script::draw(&mut chance, &volume).play(&world).await.unwrap();
    world.run_for(5 * MINUTE).await.unwrap();
    world.cluster().check_at_rest(5 * MINUTE).unwrap();
    world.cluster().tape(Clone::clone)
}

#[test]
fn the_same_seed_gives_the_same_tape_and_another_seed_another() {
    let run = |seed| in_virtual_time(busy(seed)).unwrap();
    let (first, second, other) = (run(11), run(11), run(12));
    assert!(first.entries().len() > 100, "{first:?}");
    assert_eq!(first.first_difference(&second), None);
    assert_eq!(first.digest(), second.digest());
    assert_ne!(first.digest(), other.digest());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_pods_find_their_places_on_nodes_that_are_there() {
    let world = quick(1);
    for number in 0..20 {
        world.create(node(&format!("n{number:02}"), ["a", "b"][number % 2], 64)).await.unwrap();
    }
    for number in 0..5 {
        let mut object = deployment(&format!("web-{number}"), 200, "1");
        for path in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
            object.pointer_mut(path).unwrap()["app"] = format!("web-{number}").into();
        }
        world.create(object).await.unwrap();
    }
    let took =
        world.wait_until("a thousand are ready", 5 * MINUTE, |objects| ready(objects) == 1000).await.unwrap();
    assert!(took < MINUTE, "{took:?}");
    let placed = world
        .cluster()
        .read(|objects| (0..20).map(|n| objects.pods_on(&format!("n{n:02}")).count()).collect::<Vec<_>>());
    assert!(
        placed.iter().all(|count| (40..=60).contains(count)),
        "evenly, as the least allocated goes first: {placed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_written_by_another_road_is_seen_after_catching_up() {
    let mut world = quick(2);
    let aside = kube::Client::new(world.cluster().server().service(), "default");
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(aside);
    let object = serde_json::from_value(node("n1", "a", 2)).unwrap();
    nodes.create(&PostParams::default(), &object).await.unwrap();
    assert!(world.cluster().read(|objects| objects.nodes.is_empty()));
    world.cluster().catch_up();
    assert_eq!(world.cluster().read(|objects| objects.nodes.len()), 1);
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    world.run_for(Duration::from_secs(1)).await.unwrap();
    world.cluster().catch_up();
    assert!(world.cluster().read(|objects| objects.nodes.is_empty()));
    world.follow_outside(Duration::from_millis(100));
    nodes.create(&PostParams::default(), &object).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    let up = |objects: &karpenter_sim::Objects| {
        karpenter_sim::objects::node_ready(objects.node("n1").unwrap()) == Some("True")
    };
    assert!(world.cluster().read(up), "the kubelet heard of it");
    let stray = world
        .cluster()
        .read(|objects| objects.pods.values().any(|pod| is_active(pod) && node_of(pod).is_some()));
    assert!(!stray);
}
