//! The simulated Cluster API, where nobody but people and their tools is at work.

use std::time::Duration;

use karpenter_sim::cluster_api::unrest::Unrest;
use karpenter_sim::cluster_api::{self, ClusterApi};
use karpenter_sim::faults::{FaultPlan, Faults};
use karpenter_sim::objects::node_ready;
use serde_json::json;

use crate::objects::{MINUTE, quick};

#[tokio::test(start_paused = true)]
async fn what_moves_to_another_management_cluster_lives_on_and_what_is_on_its_way_comes() {
    let world = quick(1);
    let capi = ClusterApi::install(&world).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
    let mut objects = vec![namespace, cluster_api::cluster("fleet", "c")];
    for (name, seconds) in [("there", 1), ("coming", 60)] {
        objects.push(cluster_api::template("fleet", name, json!({"provisionSeconds": seconds})));
        let mut deployment = cluster_api::machine_deployment("fleet", "c", name, name, &[]);
        deployment["spec"]["replicas"] = 1.into();
        objects.push(deployment);
    }
    for object in objects {
        world.create(object).await.unwrap();
    }
    world.run_for(Duration::from_secs(20)).await.unwrap();
    assert_eq!(world.cluster().read(|objects| (objects.machines.len(), objects.nodes.len())), (2, 1));
    let hub = Faults::new(FaultPlan::none(), world.cluster().entropy(), "hub");
    Unrest::new(&capi, &hub, "fleet", "c").move_everything().await.unwrap();
    world.run_for(10 * MINUTE).await.unwrap();
    let ready: Vec<Option<String>> = world
        .cluster()
        .read(|objects| objects.nodes.values().map(|node| node_ready(node).map(str::to_owned)).collect());
    assert_eq!(ready, vec![Some("True".to_owned()); 2]);
}
