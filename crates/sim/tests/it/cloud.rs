//! The cloud: machines that become nodes, and everything that can go wrong with them.

use std::time::Duration;

use karpenter_sim::chance::Span;
use karpenter_sim::cloud::{CloudError, CloudFaults, CloudOptions};
use karpenter_sim::inventory::{InstanceState, Launch, NodeTemplate};
use karpenter_sim::objects::node_ready;
use karpenter_sim::{Objects, World, WorldOptions};

use crate::objects::MINUTE;

pub(crate) fn launch(token: &str) -> Launch {
    let amounts = || {
        [("cpu", "4"), ("memory", "8Gi"), ("pods", "110")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    };
    Launch {
        token: token.to_owned(),
        claim_uid: token.to_owned(),
        instance_type: "m.large".to_owned(),
        zone: "a".to_owned(),
        capacity_type: "spot".to_owned(),
        node: NodeTemplate { capacity: amounts(), allocatable: amounts(), ..NodeTemplate::default() },
        ..Launch::default()
    }
}

fn world(cloud: CloudOptions) -> World {
    World::bare(WorldOptions { seed: 9, cloud, ..WorldOptions::default() })
}

#[tokio::test(start_paused = true)]
async fn a_machine_boots_into_a_node_and_takes_it_along_when_it_goes() {
    let world = world(CloudOptions::default());
    let cloud = world.cloud().handle("test");
    let instance = cloud.launch(launch("one")).await.unwrap();
    assert_eq!(instance.state, InstanceState::Booting);
    let name = instance.node_name.clone();
    let up = |objects: &Objects| objects.node(&name).is_some_and(|node| node_ready(node) == Some("True"));
    world.wait_until("its node is ready", 3 * MINUTE, up).await.unwrap();
    let id = world
        .cluster()
        .read(|objects| objects.node(&name).unwrap().spec.clone().unwrap().provider_id.unwrap());
    assert_eq!(id, instance.provider_id);
    assert_eq!(world.cluster().inventory(|i| i.by_provider_id(&id).unwrap().id.clone()), instance.id);
    cloud.terminate(&instance.id).await.unwrap();
    assert_eq!(cloud.get(&instance.id).await.unwrap().state, InstanceState::ShuttingDown);
    cloud.terminate(&instance.id).await.unwrap();
    world.wait_until("its node is gone", 3 * MINUTE, |objects| objects.nodes.is_empty()).await.unwrap();
    assert_eq!(cloud.terminate(&instance.id).await, Err(CloudError::NotFound(instance.id.clone())));
    assert!(matches!(cloud.get(&instance.id).await, Err(CloudError::NotFound(_))));
}

#[tokio::test(start_paused = true)]
async fn one_token_is_one_machine_where_tokens_are_honoured() {
    for (honours_tokens, machines) in [(true, 1), (false, 2)] {
        let world = world(CloudOptions { honours_tokens, ..CloudOptions::default() });
        let cloud = world.cloud().handle("test");
        cloud.launch(launch("same")).await.unwrap();
        cloud.launch(launch("same")).await.unwrap();
        assert_eq!(world.cluster().inventory(|inventory| inventory.live().count()), machines);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_lag_behind_and_capacity_runs_dry() {
    let world = world(CloudOptions { list_lag: Span::secs(30, 30), ..CloudOptions::default() });
    let cloud = world.cloud().handle("test");
    let instance = cloud.launch(launch("one")).await.unwrap();
    assert_eq!(cloud.list().await.unwrap().len(), 0, "too new to be listed");
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(cloud.list().await.unwrap().len(), 1);
    world.cloud().vanish(&instance.id);
    assert_eq!(cloud.list().await.unwrap().len(), 1, "gone, and still listed");
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(cloud.list().await.unwrap().len(), 0);
    world.cloud().run_dry("m.large", "a", "spot", Duration::from_secs(60));
    assert!(matches!(cloud.launch(launch("two")).await, Err(CloudError::NoCapacity { .. })));
    world.run_for(2 * MINUTE).await.unwrap();
    cloud.launch(launch("two")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_can_be_lost_after_the_machine_was_bought() {
    let faults = CloudFaults { lost_reply: 1.0, ..CloudFaults::default() };
    let world = world(CloudOptions { faults, ..CloudOptions::default() });
    let cloud = world.cloud().handle("test");
    assert_eq!(cloud.launch(launch("one")).await, Err(CloudError::TimedOut));
    assert_eq!(world.cluster().inventory(|inventory| inventory.live().count()), 1);
    world.cloud().heal();
    cloud.launch(launch("one")).await.unwrap();
    assert_eq!(world.cluster().inventory(|inventory| inventory.live().count()), 1, "the same one");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_vanishes_leaves_an_unreachable_node_behind_for_a_while() {
    let options = CloudOptions { node_deletion: Some(Span::secs(300, 300)), ..CloudOptions::default() };
    let world = world(options);
    let instance = world.cloud().handle("test").launch(launch("one")).await.unwrap();
    world.run_for(3 * MINUTE).await.unwrap();
    world.cloud().vanish(&instance.id);
    let unknown = |objects: &Objects| objects.nodes.values().any(|node| node_ready(node) == Some("Unknown"));
    world.wait_until("the node is unreachable", 2 * MINUTE, unknown).await.unwrap();
    world.wait_until("the node is gone", 6 * MINUTE, |objects| objects.nodes.is_empty()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_machine_may_join_and_not_be_ready_before_faults_end_or_ever_if_it_goes() {
    let faults = CloudFaults { never_ready: 1.0, ..CloudFaults::default() };
    let world = world(CloudOptions { faults, node_deletion: None, ..CloudOptions::default() });
    let cloud = world.cloud().handle("test");
    let (stays, goes) =
        (cloud.launch(launch("one")).await.unwrap(), cloud.launch(launch("two")).await.unwrap());
    let readiness = |node: &str| {
        world
            .cluster()
            .read(|objects| objects.node(node).and_then(|node| node_ready(node).map(str::to_owned)))
    };
    world.run_for(30 * MINUTE).await.unwrap();
    assert_eq!(readiness(&stays.node_name).as_deref(), Some("Unknown"), "its Node is there");
    cloud.terminate(&goes.id).await.unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
    world.cloud().heal();
    world.run_for(2 * MINUTE).await.unwrap();
    assert_eq!(readiness(&stays.node_name).as_deref(), Some("True"));
    assert_eq!(readiness(&goes.node_name).as_deref(), Some("Unknown"));
    let late = cloud.launch(launch("three")).await.unwrap();
    world.run_for(3 * MINUTE).await.unwrap();
    assert_eq!(readiness(&late.node_name).as_deref(), Some("True"));
}
