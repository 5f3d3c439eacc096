//! The rules about NodeClaims and CloudStack machines find what is left behind, and only that.

use std::sync::Arc;
use std::time::Duration;

use karpenter_runtime::environment::Environment;
use karpenter_runtime::metrics::Registry;
use karpenter_sim::cloudstack::{CloudStack, checks};
use karpenter_sim::{World, WorldOptions};
use serde_json::json;

async fn watched() -> (World, CloudStack) {
    let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
    let cluster = world.cluster();
    let cloud = CloudStack::new(&Environment {
        clock: Arc::new(cluster.clock().clone()),
        entropy: cluster.entropy().child("cloudstack"),
        registry: Registry::new(),
    });
    cluster.watch_over(checks::all(&cloud));
    (world, cloud)
}

/// A NodeClaim without a machine; its UID.
async fn waiting(world: &World, name: &str) -> String {
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name},
        "spec": {
            "nodeClassRef": {"group": "example.com", "kind": "ExampleNodeClass", "name": "default"},
            "requirements": [],
        },
    });
    world.create(claim).await.unwrap().metadata.uid.unwrap()
}

/// What is wrong after so many minutes.
async fn broken_after(world: &World, minutes: u64) -> Option<String> {
    let looked = world.cluster().check_at_rest(Duration::ZERO);
    assert!(looked.is_ok(), "{looked:?}");
    tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
    world.cluster().check_at_rest(Duration::ZERO).err().map(|trouble| trouble.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_to_start_and_nobody_removes_is_noticed() {
    let (world, cloud) = watched().await;
    let id = cloud.add_machine("karpenter-0a1b2c-np-1", &[]);
    cloud.fail_machine(&id);
    assert_eq!(broken_after(&world, 9).await, None);
    let broken = broken_after(&world, 2).await.expect("noticed");
    assert!(broken.contains("karpenter-0a1b2c-np-1") && broken.contains("Error"), "{broken}");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_node_claim_does_not_stand_for_the_machine_of_another_whose_name_begins_alike() {
    let (world, cloud) = watched().await;
    waiting(&world, "np-1").await;
    for name in ["karpenter-0a1b2c-np-1", "karpenter-0a1b2c-np-1--2"] {
        cloud.add_machine(name, &[]);
    }
    assert_eq!(broken_after(&world, 11).await, None);
    cloud.add_machine("karpenter-0a1b2c-np-10", &[]);
    assert!(broken_after(&world, 11).await.expect("noticed").contains("np-10"));
}

#[tokio::test(start_paused = true)]
async fn a_machine_nobody_can_remove_is_no_ones_fault_until_somebody_can() {
    let (world, cloud) = watched().await;
    let id = cloud.add_machine("karpenter-0a1b2c-np-1", &[]);
    cloud.protect_machine(&id, true);
    assert_eq!(broken_after(&world, 30).await, None);
    cloud.protect_machine(&id, false);
    cloud.configure(|settings| settings.maintenance = true);
    assert_eq!(broken_after(&world, 30).await, None);
    cloud.configure(|settings| settings.maintenance = false);
    cloud.revoke_keys(true);
    assert_eq!(broken_after(&world, 30).await, None);
    cloud.revoke_keys(false);
    assert!(broken_after(&world, 11).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_lost_its_machine_and_its_node_claim_is_noticed_unless_it_is_to_stay() {
    for (kept, noticed) in [(false, true), (true, false)] {
        let (world, cloud) = watched().await;
        let machine = cloud.add_machine("theirs", &[]);
        let disk = cloud.attach_disk(&machine, "data").expect("a disk");
        let mut tags =
            vec![("karpenter.sh/managed-by", "karpenter"), ("karpenter.k8s.cloudstack/nodeclaim-uid", "1")];
        tags.extend(kept.then_some(("karpenter.k8s.cloudstack/kept", "true")));
        cloud.tag_disk(&disk, &tags);
        assert_eq!(broken_after(&world, 30).await, None, "it has its machine");
        cloud.expunge_machine(&machine);
        assert_eq!(broken_after(&world, 11).await.is_some(), noticed);
    }
}
