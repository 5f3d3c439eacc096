//! Data disks: which go, which stay, which are attached later, which lost their machine.

use karpenter_cloudprovider::provider::CloudProvider as _;
use karpenter_provider_cloudstack::client::request::Scope;
use karpenter_provider_cloudstack::client::requests::{self, NewDisk};
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

fn with(disks: Value) -> Value {
    let mut class = spec();
    class["dataDisks"] = disks;
    class
}

/// A claim with a machine that runs.
async fn running(world: &World, name: &str) {
    world.launch(&world.claim(name, json!({"cpu": "1"}))).await.expect("a machine");
    seconds(60).await;
}

/// Names of the data disks, sorted.
fn names(world: &World) -> Vec<String> {
    let mut names: Vec<String> = world.cloud.names_of_disks().into_values().collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn disks_that_lost_their_machine_go_with_the_claim_and_those_of_others_stay() {
    let world = World::new().await;
    world
        .class(
            "default",
            with(json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5}])),
        )
        .await;
    running(&world, "np-a").await;
    running(&world, "np-b").await;
    let machine = world.live()[0].clone();
    assert_eq!(machine.tags["karpenter.sh/nodeclaim"], "np-a");
    let others = world.cloud.attach_disk(&machine.id, "pvc-5f0a7f0e").expect("a volume");
    // By hand, without its disks.
    world.cloud.expunge_machine(&machine.id);
    seconds(400).await;
    let round = world.provider.round().await.expect("a round");
    assert!(round.disks.is_empty(), "its NodeClaim is there, so somebody may want them");
    world.cluster.claims.lock().unwrap().remove("np-a");
    let mut gone = world.provider.round().await.expect("a round").disks;
    gone.sort();
    let left: Vec<String> = world.cloud.data_disks().into_iter().map(|(id, _)| id).collect();
    assert_eq!(
        (gone.len(), left.len()),
        (2, 3),
        "its two; the other machine's and the volume of a driver stay"
    );
    assert!(left.contains(&others));
    assert!(world.provider.round().await.expect("a round").disks.is_empty(), "once");
}

#[tokio::test(start_paused = true)]
async fn no_disk_goes_while_the_server_cannot_say_which_there_are_or_orphans_are_only_told_of() {
    use karpenter_provider_cloudstack::ProviderOptions;
    use karpenter_provider_cloudstack::shared::CollectOrphans;

    let world = World::new().await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    running(&world, "np-a").await;
    world.cloud.expunge_machine(&world.live()[0].id);
    world.cluster.claims.lock().unwrap().clear();
    seconds(400).await;
    world.cloud.inject(Fault::times("listVolumes", 8, Trouble::Proxy(502)));
    assert!(world.provider.round().await.expect("a round").disks.is_empty());
    world.cloud.heal();
    let only_tells =
        ProviderOptions { collect_orphans: CollectOrphans::Tell, ..ProviderOptions::new("test") };
    assert!(world.with_options(only_tells).round().await.expect("a round").disks.is_empty());
    let other = ProviderOptions::new("another-cluster");
    assert!(world.with_options(other).round().await.expect("a round").disks.is_empty(), "not its own");
    assert_eq!(world.provider.round().await.expect("a round").disks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_to_stay_survives_its_machine_and_garbage_collection() {
    let world = World::new().await;
    let disks = json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5, "deleteOnTermination": false}]);
    world.class("default", with(disks)).await;
    running(&world, "np-a").await;
    let kept = |world: &World| {
        let tags = world.cloud.tags_of_disks();
        tags.into_iter()
            .filter(|(_, tags)| tags.contains_key("karpenter.k8s.cloudstack/kept"))
            .collect::<Vec<_>>()
    };
    let [(id, tags)] = kept(&world).try_into().expect("one is marked");
    assert!(
        !tags.contains_key("kubernetes.io/cluster/test"),
        "nothing says that it is ours to remove: {tags:?}"
    );
    world.delete(&world.current("np-a")).await.expect("gone");
    world.cluster.claims.lock().unwrap().clear();
    seconds(400).await;
    assert!(world.provider.round().await.expect("a round").disks.is_empty());
    assert_eq!(world.cloud.data_disks(), [(id, None)]);
}

#[tokio::test(start_paused = true)]
async fn whether_disks_stay_can_be_changed_while_their_machines_run_and_replaces_none() {
    let world = World::new().await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    running(&world, "np-a").await;
    world.class("default", with(json!([{"offering": "k8s.data20", "deleteOnTermination": false}]))).await;
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    world.delete(&world.current("np-a")).await.expect("gone");
    assert_eq!(world.cloud.data_disks().len(), 1, "as the NodeClass says by now");
    // A machine that has lost every tag does not say which of its disks were to stay, so all do.
    running(&world, "np-b").await;
    let machine = world.live()[0].clone();
    for key in machine.tags.keys() {
        world.cloud.tag_machine(&machine.id, key, None);
    }
    world.delete(&world.current("np-b")).await.expect("gone");
    assert_eq!(world.cloud.data_disks().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn servers_before_4_21_get_further_disks_attached_once_the_machine_runs() {
    let world = World::new().await;
    world.cloud.set_version("4.20.2.0");
    seconds(601).await;
    let disks = json!([
        {"offering": "k8s.data20"},
        {"offering": "k8s.datacustom", "size": 5},
        {"offering": "k8s.datacustom", "size": 6, "deleteOnTermination": false},
    ]);
    world.class("default", with(disks)).await;
    // Neither an answer that is lost nor one that refuses makes a disk twice.
    world.cloud.inject(Fault::once("createVolume", Trouble::DropResponse));
    world.cloud.inject(Fault::once("attachVolume", Trouble::Fail(530, 4250, "x".into())));
    running(&world, "np-a").await;
    for _ in 0..12 {
        world.provider.look_at_launches().await.expect("a look");
        seconds(16).await;
    }
    let machine = world.live()[0].clone();
    let second = format!("{}-data-2", machine.name);
    let third = format!("{}-data-3", machine.name);
    assert_eq!(names(&world).len(), 3, "{:?}", names(&world));
    assert_eq!(names(&world)[1..], [second.clone(), third.clone()]);
    assert!(world.cloud.data_disks().iter().all(|(_, attached)| *attached == Some(machine.id.clone())));
    assert!(world.cloud.tags_of_disks().values().all(|tags| tags.contains_key("karpenter.sh/nodeclaim")));
    let asked = world.calls("listVolumes");
    world.provider.look_at_launches().await.expect("a look");
    assert_eq!(world.calls("listVolumes"), asked, "and nobody asks again");
    world.delete(&world.current("np-a")).await.expect("gone");
    assert_eq!(names(&world), [third], "the one that is to stay");
}

/// A server that gives a machine one disk at most, and `np-a`, which is to have two.
async fn with_two_disks_to_attach() -> World {
    let world = World::new().await;
    world.cloud.set_version("4.20.2.0");
    seconds(601).await;
    let disks = json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5}]);
    world.class("default", with(disks)).await;
    running(&world, "np-a").await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_was_made_for_a_machine_that_is_gone_goes_too() {
    let world = with_two_disks_to_attach().await;
    // Made, and neither tagged nor attached before the machine goes.
    world.cloud.inject(Fault::times("createTags", 5, Trouble::Fail(530, 4250, "x".into())));
    world.provider.look_at_launches().await.expect("a look");
    world.cloud.heal();
    assert_eq!(names(&world).len(), 2);
    world.delete(&world.current("np-a")).await.expect("gone");
    assert_eq!(names(&world).len(), 1, "it was not attached");
    seconds(400).await;
    assert!(
        world.provider.round().await.expect("a round").disks.is_empty(),
        "the NodeClaim may still want it"
    );
    world.cluster.claims.lock().unwrap().clear();
    assert_eq!(world.provider.round().await.expect("a round").disks.len(), 1);
    assert!(names(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn of_a_disk_that_two_leaders_made_one_is_attached_and_the_other_goes() {
    let world = with_two_disks_to_attach().await;
    // By the leader before, and the one before that.
    let machine = world.live()[0].clone();
    let (zone, offering) = (
        world.cloud.id_of("zone", "sim-zone-1").unwrap(),
        world.cloud.id_of("diskoffering", "k8s.datacustom"),
    );
    let disk = NewDisk { offering_id: offering.unwrap(), size_gb: Some(5), iops: None };
    for _ in 0..2 {
        let request = requests::create_volume(&format!("{}-data-2", machine.name), &zone, &disk, &Scope::Own);
        world.client.call(&request).await.expect("made");
        seconds(2).await;
    }
    assert_eq!(names(&world).len(), 3, "{:?}", names(&world));
    for _ in 0..12 {
        world.provider.look_at_launches().await.expect("a look");
        seconds(16).await;
    }
    assert_eq!(names(&world).len(), 2, "{:?}", names(&world));
    assert!(world.cloud.data_disks().iter().all(|(_, attached)| *attached == Some(machine.id.clone())));
}

#[tokio::test(start_paused = true)]
async fn a_disk_whose_device_is_taken_is_told_of_and_not_ordered_for_ever() {
    for stays in [false, true] {
        let world = World::new().await;
        world.cloud.set_version("4.20.2.0");
        seconds(601).await;
        let second = json!({"offering": "k8s.datacustom", "size": 5, "deleteOnTermination": !stays});
        world.class("default", with(json!([{"offering": "k8s.data20"}, second]))).await;
        running(&world, "np-a").await;
        let machine = world.live()[0].id.clone();
        world.cloud.attach_disk_as(&machine, "pvc-5f0a7f0e", 2).expect("a volume");
        for _ in 0..120 {
            world.provider.look_at_launches().await.expect("a look");
            seconds(30).await;
        }
        let attached = world.cloud.data_disks().into_iter().filter(|(_, to)| to.is_some()).count();
        let (orders, told) = (world.calls("attachVolume"), world.told("DataDiskMissing"));
        if stays {
            // As which device it is attached says that it stays.
            assert_eq!(attached, 2);
            assert!((4..=12).contains(&orders), "ever more rarely: {orders}");
            assert!(!told.is_empty());
            let says = |text: &String| text.contains("deviceId 2 is used by") && text.contains("detach");
            assert!(told.iter().all(says), "{told:?}");
        } else {
            assert_eq!((attached, orders, told.len()), (3, 2, 0), "as another device: {told:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_somebody_marked_as_kept_is_not_collected() {
    let world = World::new().await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    running(&world, "np-a").await;
    let (disk, _) = world.cloud.data_disks().remove(0);
    let kept = [("karpenter.k8s.cloudstack/kept".to_owned(), "true".to_owned())].into();
    world.client.call(&requests::create_tags("Volume", &[disk], &kept)).await.expect("tagged");
    seconds(5).await;
    world.cloud.expunge_machine(&world.live()[0].id);
    world.cluster.claims.lock().unwrap().clear();
    seconds(400).await;
    assert!(world.provider.round().await.expect("a round").disks.is_empty());
    assert_eq!(world.cloud.data_disks().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn disks_whose_tags_were_ordered_and_lost_are_tagged_again() {
    let world = World::new().await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    // The order was taken, and the server died before it came to it.
    world.cloud.restart();
    for _ in 0..4 {
        seconds(130).await;
        world.provider.round().await.expect("a round");
    }
    seconds(10).await;
    let tags = world.cloud.tags_of_disks();
    assert_eq!(tags.len(), 1);
    assert!(
        tags.values().all(|tags| tags.contains_key("karpenter.k8s.cloudstack/nodeclaim-uid")),
        "{tags:?}"
    );
    let asked = world.calls("listVolumes");
    seconds(130).await;
    world.provider.round().await.expect("a round");
    // Once more for those that lost their machine.
    assert!(world.calls("listVolumes") <= asked + 2, "who has seen them tagged does not ask again");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_to_stay_is_not_left_over_and_nobody_asks_for_it_for_ever() {
    let world = World::new().await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    running(&world, "np-a").await;
    // Somebody wants to keep the disk of a machine that is gone.
    world.cloud.expunge_machine(&world.live()[0].id);
    let [(disk, _)] = world.cloud.data_disks().try_into().expect("a disk");
    let kept = [("karpenter.k8s.cloudstack/kept".to_owned(), "true".to_owned())].into();
    world.client.call(&requests::create_tags("Volume", &[disk], &kept)).await.expect("tagged");
    world.cluster.claims.lock().unwrap().clear();
    world.class("default", spec()).await;
    seconds(400).await;
    assert!(world.round().await.disks.is_empty());
    let asked = world.calls("listVolumes");
    seconds(400).await;
    assert!(world.round().await.disks.is_empty());
    assert_eq!(world.calls("listVolumes"), asked, "no NodeClass wants disks");
    assert_eq!(world.cloud.data_disks().len(), 1);
}

/// A role that may not list disks.
fn may_not_list_disks(world: &World) {
    let text = "The API [listVolumes] does not exist or is not available for the account.";
    world.cloud.inject(Fault::times("listVolumes", 10_000, Trouble::Fail(432, 9999, text.into())));
}

#[tokio::test(start_paused = true)]
async fn who_may_not_list_disks_deletes_machines_all_the_same_and_is_told_once_that_disks_stay() {
    let world = World::new().await;
    may_not_list_disks(&world);
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    for name in ["np-a", "np-b"] {
        running(&world, name).await;
    }
    let asked = world.calls("listVolumes");
    world.provider.look_at_launches().await.expect("a look");
    world.provider.round().await.expect("a round");
    assert!(
        world.calls("listVolumes") <= asked + 1,
        "nobody asks for each machine in order to tag its disks"
    );
    for name in ["np-a", "np-b"] {
        world.delete(&world.current(name)).await.expect("gone");
    }
    assert_eq!((world.live().len(), world.cloud.data_disks().len()), (0, 2));
    let told = world.told("DeleteRefused");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("allow listVolumes to the role"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_stays_while_its_disks_cannot_be_listed_for_a_reason_that_may_pass() {
    let world = World::new().await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    running(&world, "np-a").await;
    for trouble in [Trouble::Proxy(502), Trouble::Fail(531, 4365, "no permission".into())] {
        world.cloud.inject(Fault::times("listVolumes", 100, trouble));
        assert!(world.provider.delete(&world.current("np-a")).await.is_err());
        world.cloud.heal();
        assert_eq!((world.live().len(), world.calls("destroyVirtualMachine")), (1, 0));
        seconds(60).await;
    }
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.cloud.data_disks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_orphan_without_tags_goes_though_nobody_may_list_its_disks() {
    let world = World::new().await;
    may_not_list_disks(&world);
    let orphan = world.stray("np-x");
    seconds(400).await;
    assert_eq!(world.round().await.destroyed, [orphan]);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_list_disks_sees_every_drift_but_that_of_root_disks() {
    let world = World::new().await;
    may_not_list_disks(&world);
    let mut class = spec();
    class["rootDiskSize"] = 30.into();
    world.class("default", class.clone()).await;
    running(&world, "np-a").await;
    for _ in 0..2 {
        assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    }
    assert_eq!(world.calls("listVolumes"), 1, "and it is asked once");
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.medium"}]);
    world.class("default", class).await;
    let drift = world.provider.is_drifted(&world.current("np-a")).await.expect("known");
    assert_eq!(drift.as_deref(), Some("ServiceOfferingDrift"));
}

#[tokio::test(start_paused = true)]
async fn a_disk_goes_in_its_time_although_the_servers_clock_is_ahead() {
    let world = World::whose_server_is_ahead(8).await;
    world.class("default", with(json!([{"offering": "k8s.data20"}]))).await;
    running(&world, "np-a").await;
    world.cloud.expunge_machine(&world.live()[0].id);
    world.cluster.claims.lock().unwrap().clear();
    assert!(world.round().await.disks.is_empty());
    seconds(280).await;
    assert!(world.round().await.disks.is_empty(), "it may be of a NodeClaim nobody has seen yet");
    seconds(40).await;
    assert_eq!(world.round().await.disks.len(), 1, "by the server's clock it is yet to be made");
}
