//! Deletions: scenarios 16 to 18.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::requests;
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::Entry;
use serde_json::json;

use crate::cloud::{World, seconds, spec};

async fn running(world: &World, name: &str) -> std::sync::Arc<NodeClaim> {
    world.launch(&world.claim(name, json!({"cpu": "1"}))).await.expect("a machine");
    seconds(60).await;
    world.current(name)
}

#[tokio::test(start_paused = true)]
async fn scenario_16_without_the_right_to_expunge_machines_are_destroyed_and_claims_released() {
    let world = World::new().await;
    let mut class = crate::cloud::spec();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    world.class("default", class).await;
    let claim = running(&world, "np-a").await;
    assert_eq!(world.cloud.data_disks().len(), 1);
    world.delete(&claim).await.expect("gone");
    assert!(world.live().is_empty());
    assert!(world.cloud.data_disks().is_empty(), "its data disk goes with it");
    let expunges = world.cloud.log().iter().filter(|e| e.parameters.contains_key("expunge")).count();
    assert_eq!(expunges, 0, "the server says that we may not");
    assert_eq!(world.calls("destroyVirtualMachine"), 1);
}

#[tokio::test(start_paused = true)]
async fn scenario_16_a_right_that_was_promised_and_is_refused_is_not_asked_for_again() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.user_may_expunge = true);
    let mut class = spec();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    world.class("default", class.clone()).await;
    let claim = running(&world, "np-a").await;
    let other = running(&world, "np-b").await;
    // Known to be allowed, for the next ten minutes.
    world.class("default", class).await;
    world.delete(&claim).await.expect("expunged");
    assert!(
        world.cloud.machines().iter().all(|machine| machine.name != claim.metadata.name.clone().unwrap())
    );
    world.cloud.configure(|settings| settings.user_may_expunge = false);
    // How each of its orders was given: with the wish to expunge or without, and with which disks.
    let orders = |id: &str| {
        let log = world.cloud.log().into_iter();
        let of_it = log.filter(|entry| {
            entry.command == "destroyVirtualMachine" && entry.parameters.get("id").is_some_and(|of| of == id)
        });
        let how = |entry: Entry| {
            (entry.parameters.contains_key("expunge"), entry.parameters.get("volumeids").cloned())
        };
        of_it.map(how).collect::<Vec<(bool, Option<String>)>>()
    };
    let ordered = world.machine_of("np-b").id;
    world.delete(&other).await.expect("destroyed instead");
    assert!(world.live().is_empty() && world.cloud.data_disks().is_empty());
    let told = orders(&ordered);
    assert_eq!(told.iter().map(|(expunge, _)| *expunge).collect::<Vec<_>>(), [true, false]);
    assert!(told[1].1.is_some(), "its disk goes with it also the second time: {told:?}");
    assert_eq!(told[0].1, told[1].1);
    // It is known now.
    let third = running(&world, "np-c").await;
    let ordered = world.machine_of("np-c").id;
    world.delete(&third).await.expect("destroyed");
    assert_eq!(orders(&ordered).iter().map(|(expunge, _)| *expunge).collect::<Vec<_>>(), [false]);
}

#[tokio::test(start_paused = true)]
async fn scenario_17_what_is_not_there_is_not_found_and_what_is_protected_says_so() {
    let world = World::new().await;
    let expunged = running(&world, "np-a").await;
    world.cloud.expunge_machine(&world.live()[0].id);
    assert!(world.provider.delete(&expunged).await.expect_err("expunged").is_not_found());
    let never = world.claim("np-b", json!({"cpu": "1"}));
    assert!(world.provider.delete(&never).await.expect_err("never launched").is_not_found());
    let mut unknown = (*expunged).clone();
    unknown.status.as_mut().unwrap().provider_id =
        Some("external-cloudstack://00000000-0000-4000-8000-000000000000".into());
    assert!(world.provider.delete(&unknown).await.expect_err("unknown").is_not_found());
    assert!(
        world
            .provider
            .get("cloudstack:///00000000-0000-4000-8000-000000000000")
            .await
            .expect_err("unknown")
            .is_not_found()
    );

    let protected = running(&world, "np-c").await;
    let id = world.live()[0].id.clone();
    // Lists do not show it yet.
    world.cloud.configure(|settings| settings.read_lag = Duration::from_secs(15));
    world.cloud.protect_machine(&id, true);
    let orders = world.calls("destroyVirtualMachine");
    world.provider.delete(&protected).await.expect("accepted");
    seconds(10).await;
    let error = world.provider.delete(&protected).await.expect_err("protected").to_string();
    assert!(error.contains("protected from deletion") && error.contains("deleteprotection=false"), "{error}");
    let told = world.told("DeleteRefused");
    assert!(told.len() == 1 && told[0].contains("deleteprotection=false"), "{told:?}");
    seconds(10).await;
    world.provider.delete(&protected).await.expect_err("lists show it");
    assert_eq!(world.calls("destroyVirtualMachine"), orders + 1, "which needs no order");
    world.cloud.configure(|settings| settings.read_lag = Duration::ZERO);
    world.cloud.protect_machine(&id, false);
    world.delete(&protected).await.expect("gone");
}

#[tokio::test(start_paused = true)]
async fn a_provider_id_of_another_cloud_is_an_error_and_not_absence() {
    let world = World::new().await;
    let mut claim = (*running(&world, "np-a").await).clone();
    claim.status.as_mut().unwrap().provider_id = Some("aws:///eu/i-1".into());
    assert!(!world.provider.delete(&claim).await.expect_err("not ours").is_not_found());
    assert!(!world.provider.get("kwok://x").await.expect_err("not ours").is_not_found());
}

#[tokio::test(start_paused = true)]
async fn scenario_18_a_delete_during_a_slow_start_is_sent_once() {
    let world = World::new().await;
    world.cloud.configure(|settings| {
        settings.latencies.first_start = Span::secs(65, 65);
        settings.latencies.start = Span::secs(65, 65);
    });
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.launch(&claim).await.expect("accepted");
    let took = world.delete(&world.current("np-a")).await.expect("gone");
    assert!(took.as_secs() >= 60, "it waited for the start: {took:?}");
    assert_eq!(world.calls("destroyVirtualMachine"), 1);
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_found_where_it_was_launched_after_its_class_names_a_project() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch(&claim).await.expect("launched");
    assert_eq!(instance.annotations["karpenter.k8s.cloudstack/scope"], "own");
    // As if the definition had let it through.
    let mut elsewhere = spec();
    elsewhere["projectID"] = "11111111-0000-4000-8000-000000000000".into();
    world.class("default", elsewhere).await;
    world.provider.get(&instance.provider_id).await.expect("still there");
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.live().is_empty(), "it was not forgotten: {:?}", world.live());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_to_be_gone_while_the_node_classes_are_not_known() {
    let world = World::new().await;
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("launched");
    let classes = std::mem::take(&mut *world.cluster.classes.lock().unwrap());
    *world.cluster.classes_unknown.lock().unwrap() = true;
    world.provider.list().await.expect_err("which projects there are is not known");
    let absent = "external-cloudstack://22222222-0000-4000-8000-000000000000";
    assert!(!world.provider.get(absent).await.expect_err("nobody knows").is_not_found());
    // A claim that does not say where it was launched: somebody took the annotation away.
    let mut silent = (*world.current("np-a")).clone();
    silent.metadata.annotations.as_mut().unwrap().remove("karpenter.k8s.cloudstack/scope");
    let error = world.provider.delete(&silent).await.expect_err("nobody knows");
    assert!(!error.is_not_found(), "{error}");
    assert_eq!(world.live().len(), 1);
    *world.cluster.classes.lock().unwrap() = classes;
    *world.cluster.classes_unknown.lock().unwrap() = false;
    world.provider.get(&instance.provider_id).await.expect("there it is");
}

/// A claim with a machine that was made with two disks.
async fn with_disks(world: &World, name: &str) -> std::sync::Arc<NodeClaim> {
    let mut class = spec();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5}]);
    world.class("default", class).await;
    running(world, name).await
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_others_survives_the_machine_it_is_attached_to() {
    let world = World::new().await;
    let claim = with_disks(&world, "np-a").await;
    let machine = world.live()[0].id.clone();
    let volume = world.cloud.attach_disk(&machine, "pvc-5f0a7f0e").expect("a volume");
    // Called as the server calls those of new machines, but made later.
    seconds(3600).await;
    let odd = world.cloud.attach_disk(&machine, "DATA-99").expect("a volume");
    world.delete(&claim).await.expect("gone");
    let left: Vec<String> = world.cloud.data_disks().into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, [volume, odd], "ours went, theirs stay");
}

#[tokio::test(start_paused = true)]
async fn the_disks_a_machine_is_made_with_are_tagged_as_its_own_at_once_or_by_the_next_round() {
    use karpenter_sim::cloudstack::faults::{Fault, Trouble};

    let world = World::new().await;
    with_disks(&world, "np-a").await;
    let tags = |world: &World| world.cloud.tags_of_disks();
    assert_eq!(tags(&world).len(), 2);
    for tags in tags(&world).values() {
        assert_eq!(tags["karpenter.k8s.cloudstack/nodeclaim-uid"], "uid-np-a");
        assert_eq!(tags["kubernetes.io/cluster/test"], "owned");
    }
    world.cloud.inject(Fault::times("listVolumes", 6, Trouble::Proxy(502)));
    running(&world, "np-b").await;
    let tagged = |world: &World| tags(world).values().filter(|tags| !tags.is_empty()).count();
    assert_eq!(tagged(&world), 2, "those of the first");
    seconds(120).await;
    world.provider.round().await.expect("a round");
    seconds(5).await;
    assert_eq!(tagged(&world), 4);
    let asked = |world: &World| {
        let log = world.cloud.log();
        let asks = log.iter().filter(|entry| entry.command == "listVolumes");
        asks.filter(|entry| entry.parameters.contains_key("virtualmachineid")).count()
    };
    // A look at what came of it.
    world.provider.round().await.expect("a round");
    let before = asked(&world);
    world.provider.round().await.expect("a round");
    assert_eq!(asked(&world), before, "and nobody asks again");
}

#[tokio::test(start_paused = true)]
async fn a_class_that_says_destroy_has_its_machines_destroyed_only() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.user_may_expunge = true);
    let mut class = spec();
    class["deletionPolicy"] = "Destroy".into();
    world.class("default", class).await;
    let claim = running(&world, "np-a").await;
    world.delete(&claim).await.expect("gone");
    assert!(world.live().is_empty());
    let expunges = world.cloud.log().iter().filter(|e| e.parameters.contains_key("expunge")).count();
    assert_eq!(expunges, 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_order_again_what_the_old_one_has_ordered() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.latencies.destroy = Span::secs(60, 60));
    let claim = running(&world, "np-a").await;
    world.provider.delete(&claim).await.expect("ordered");
    seconds(5).await;
    let next = world.another(7);
    next.delete(&claim).await.expect("under way");
    assert_eq!(world.calls("destroyVirtualMachine"), 1);
    seconds(90).await;
    assert!(next.delete(&claim).await.expect_err("gone").is_not_found());
}

#[tokio::test(start_paused = true)]
async fn machines_that_go_together_are_asked_after_together_and_an_unknown_id_spoils_nothing() {
    let world = World::new().await;
    let mut claims = Vec::new();
    for i in 0..5 {
        claims.push(running(&world, &format!("np-{i}")).await);
    }
    for machine in world.live() {
        world.cloud.expunge_machine(&machine.id);
    }
    let before = world.calls("listVirtualMachines");
    let gone = futures_util::future::join_all(claims.iter().map(|claim| world.provider.delete(claim))).await;
    assert!(gone.into_iter().all(|gone| gone.is_err_and(|error| error.is_not_found())));
    let asked = world.calls("listVirtualMachines") - before;
    assert_eq!(asked, 2, "one list, and one call for all that it does not have");

    let mut unknown = (*claims[0]).clone();
    unknown.status.as_mut().unwrap().provider_id =
        Some("external-cloudstack://00000000-0000-4000-8000-000000000000".into());
    seconds(10).await;
    let before = world.calls("listVirtualMachines");
    let known = futures_util::future::join_all(claims.iter().map(|claim| world.provider.delete(claim)));
    let (known, unknown) = futures_util::future::join(known, world.provider.delete(&unknown)).await;
    assert!(known.into_iter().all(|known| known.is_err_and(|error| error.is_not_found())));
    assert!(unknown.expect_err("never there").is_not_found());
    let asked = world.calls("listVirtualMachines") - before;
    assert_eq!(asked, 3, "one list, one call for all, and one without the id that nobody knows");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_a_tag_claims_for_another_cluster_is_not_destroyed() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    let id = world.live()[0].id.clone();
    // As a cluster sees it that was made from a backup of another and got a name of its own.
    world.cloud.tag_machine(&id, "kubernetes.io/cluster/test", None);
    world.cloud.tag_machine(&id, "kubernetes.io/cluster/original", Some("owned"));
    let error = world.provider.delete(&claim).await.expect_err("not ours");
    let text = error.to_string();
    assert!(!error.is_not_found() && text.contains("kubernetes.io/cluster/original"), "{text}");
    assert!(text.contains("tag it kubernetes.io/cluster/test=owned"), "{text}");
    assert_eq!(world.told("DeleteRefused").len(), 1);
    assert_eq!(world.calls("destroyVirtualMachine"), 0);
    world.cloud.tag_machine(&id, "kubernetes.io/cluster/test", Some("owned"));
    world.delete(&claim).await.expect("somebody says that it is ours");
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_right_to_expunge_that_was_refused_is_asked_for_again_after_an_hour() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.user_may_expunge = true);
    let mut claims = Vec::new();
    for name in ["np-a", "np-b", "np-c", "np-d"] {
        claims.push(running(&world, name).await);
    }
    let asked = || world.cloud.log().iter().filter(|e| e.parameters.contains_key("expunge")).count();
    // What the server allows was asked for long ago, and is again.
    seconds(700).await;
    world.delete(&claims[0]).await.expect("gone");
    assert_eq!(asked(), 1);
    world.cloud.configure(|settings| settings.user_may_expunge = false);
    world.delete(&claims[1]).await.expect("destroyed instead");
    assert_eq!(asked(), 2);
    world.cloud.configure(|settings| settings.user_may_expunge = true);
    world.delete(&claims[2]).await.expect("gone");
    assert_eq!(asked(), 2, "refused a moment ago");
    seconds(3700).await;
    world.delete(&claims[3]).await.expect("gone");
    assert_eq!(asked(), 3);
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_destroyed_is_told_of_and_ordered_again_ever_more_rarely() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    world.cloud.configure(|settings| settings.destroys_fail = true);
    let mut refused = 0;
    // As often as somebody asks who hears of no error.
    for _ in 0..360 {
        refused += usize::from(world.provider.delete(&claim).await.is_err());
        seconds(5).await;
    }
    let orders = world.calls("destroyVirtualMachine");
    assert!((5..=9).contains(&orders), "{orders} orders in half an hour");
    assert!(refused > 300, "the core hears that it failed, so that it asks less often: {refused}");
    let told = world.told("DeleteRefused");
    assert!(
        told[0].contains("Unable to contact the agent") && told[0].contains(&world.live()[0].id),
        "{told:?}"
    );
    let text = world.environment.registry.encode();
    let count = text.lines().find(|line| line.starts_with("karpenter_cloudstack_vms_deleted_total{"));
    assert!(count.is_some_and(|line| line.ends_with(" 1")), "counted once: {count:?}");
    world.cloud.configure(|settings| settings.destroys_fail = false);
    seconds(600).await;
    world.delete(&claim).await.expect("gone");
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn of_two_jobs_of_a_machine_the_one_that_destroys_it_is_followed() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    world.cloud.configure(|settings| {
        settings.latencies.stop = Span::secs(20, 20);
        settings.latencies.destroy = Span::secs(60, 60);
    });
    let machine = world.live()[0].id.clone();
    // Somebody restarts it, and whoever led before us has it destroyed after that.
    world.client.call(&requests::reboot(&machine)).await.expect("taken");
    seconds(2).await;
    world.client.call(&requests::destroy(&machine, false, &[])).await.expect("taken");
    let next = world.another(2);
    next.delete(&claim).await.expect("it goes");
    // The first job is through, the second at work, and lists do not show the machine.
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&machine, Some("other"), None);
    seconds(25).await;
    next.delete(&claim).await.expect("it still goes");
    assert_eq!(world.live().len(), 1);
    seconds(60).await;
    assert!(next.delete(&claim).await.expect_err("gone").is_not_found());
    assert!(world.live().is_empty());
    assert_eq!(world.calls("destroyVirtualMachine"), 1, "one order is enough");
}
