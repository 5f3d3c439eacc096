//! Two machines of one NodeClaim: the server takes two orders of one name that come at the same time.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::provider::{CloudProvider, Launch, LaunchedInstance};
use karpenter_provider_cloudstack::shared::CollectOrphans;
use karpenter_provider_cloudstack::{CloudStackProvider, ProviderOptions};
use karpenter_sim::cloudstack::MachineView;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;

use crate::cloud::{World, seconds};

const UID: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";

/// Launches without writing anything down.
async fn launched(provider: &CloudStackProvider, claim: &NodeClaim) -> LaunchedInstance {
    match provider.create(claim).await.expect("a machine") {
        Launch::Launched(instance) => *instance,
        Launch::Pending { .. } => panic!("never pending"),
    }
}

/// The claim with the machine that was launched, as the core writes it.
fn naming(claim: &NodeClaim, instance: &LaunchedInstance, id: &str) -> Arc<NodeClaim> {
    let mut written = claim.clone();
    instance.write_into(&mut written);
    written.status.as_mut().unwrap().provider_id = Some(format!("external-cloudstack://{id}"));
    Arc::new(written)
}

/// A world in which two leaders both ordered a machine for `np-a`; the machines, older first, and what they launched.
async fn two_leaders() -> (World, CloudStackProvider, Arc<NodeClaim>, Vec<MachineView>, LaunchedInstance) {
    let world = World::new().await;
    let other = world.another(2);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let (ours, theirs) = tokio::join!(launched(&world.provider, &claim), launched(&other, &claim));
    assert_eq!(ours.provider_id, theirs.provider_id, "both take the older");
    let mut twins = world.live();
    twins.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    assert_eq!((twins.len(), &twins[0].name), (2, &twins[1].name), "the server took both");
    assert!(ours.provider_id.ends_with(&twins[0].id));
    (world, other, claim, twins, ours)
}

impl World {
    fn write(&self, claim: &Arc<NodeClaim>) {
        self.cluster.claims.lock().unwrap().insert("np-a".to_owned(), Arc::clone(claim));
    }

    fn live_ids(&self) -> Vec<String> {
        self.live().into_iter().map(|machine| machine.id).collect()
    }

    /// Both leaders look at their launches for a while.
    async fn watch_launches_for(&self, other: &CloudStackProvider, secs: u64) {
        for _ in 0..secs / 5 {
            let (ours, theirs) = tokio::join!(self.provider.look_at_launches(), other.look_at_launches());
            assert!(ours.is_ok() && theirs.is_ok());
            seconds(5).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whichever_machine_the_nodeclaim_names_stays_and_the_launch_that_lost_destroys_its_own() {
    for named in 0..2 {
        let (world, other, claim, twins, instance) = two_leaders().await;
        world.write(&naming(&claim, &instance, &twins[named].id));
        world.watch_launches_for(&other, 40).await;
        assert_eq!(world.live_ids(), [twins[named].id.clone()], "named: {named}");
        // Both see that it has to go, and say so once.
        let destroyed =
            world.cloud.log().into_iter().filter(|entry| entry.command == "destroyVirtualMachine");
        let destroyed: Vec<String> = destroyed.map(|entry| entry.parameters["id"].clone()).collect();
        assert!(
            destroyed.len() <= 2 && destroyed.iter().all(|id| *id == twins[1 - named].id),
            "{destroyed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_lost_destroys_its_machine_also_after_the_other_has_its_node() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = launched(&world.provider, &claim).await;
    let ours = world.live_ids().remove(0);
    let theirs = world.tagged("np-a", &[(UID, "uid-np-a")]);
    let mut registered = (*naming(&claim, &instance, &theirs)).clone();
    registered.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
        {"type": "Registered", "status": "True", "reason": "Registered", "message": "",
            "lastTransitionTime": "2026-11-15T08:00:30Z"},
    ]))
    .expect("conditions");
    world.write(&Arc::new(registered));
    seconds(30).await;
    // Whoever has not ordered it leaves it to garbage collection, and asks nothing.
    let before = world.cloud.log().len();
    world.another(3).look_at_launches().await.expect("a look");
    assert_eq!((world.cloud.log().len(), world.live().len()), (before, 2));
    world.provider.look_at_launches().await.expect("a look");
    seconds(20).await;
    assert_eq!(world.live_ids(), [theirs], "{ours} went");
    let before = world.cloud.log().len();
    world.provider.look_at_launches().await.expect("a look");
    assert_eq!(world.cloud.log().len(), before, "that is done with");
}

#[tokio::test(start_paused = true)]
async fn while_the_nodeclaim_names_no_machine_none_of_two_is_destroyed() {
    let (world, other, claim, twins, _) = two_leaders().await;
    for _ in 0..5 {
        let (ours, theirs) = tokio::join!(launched(&world.provider, &claim), launched(&other, &claim));
        assert!(ours.provider_id.ends_with(&twins[0].id) && theirs.provider_id.ends_with(&twins[0].id));
        world.watch_launches_for(&other, 10).await;
    }
    assert_eq!(world.calls("destroyVirtualMachine"), 0, "either may yet be written down");
    assert_eq!(world.calls("deployVirtualMachine"), 2, "and no third is made");
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_does_not_say_destroys_nothing_and_garbage_collection_waits_for_it() {
    let (world, other, claim, twins, instance) = two_leaders().await;
    *world.cluster.unreadable.lock().unwrap() = true;
    world.write(&naming(&claim, &instance, &twins[1].id));
    world.watch_launches_for(&other, 60).await;
    launched(&other, &claim).await;
    assert_eq!(world.live().len(), 2, "nobody knows which is which");
    seconds(300).await;
    assert!(world.round().await.destroyed.is_empty(), "nor after its time");
    *world.cluster.unreadable.lock().unwrap() = false;
    assert_eq!(world.round().await.destroyed, [twins[0].id.clone()]);
    seconds(30).await;
    assert_eq!(world.live_ids(), [twins[1].id.clone()]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_watch_is_late_takes_the_machine_that_is_named_and_destroys_the_other() {
    let (world, other, claim, twins, instance) = two_leaders().await;
    let written = naming(&claim, &instance, &twins[1].id);
    world.cluster.ahead.lock().unwrap().insert("np-a".to_owned(), Some(written));
    seconds(30).await;
    let found = launched(&other, &claim).await;
    assert!(found.provider_id.ends_with(&twins[1].id), "not the older one");
    seconds(30).await;
    assert_eq!(world.live_ids(), [twins[1].id.clone()]);
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_nodeclaim_went_while_it_was_ordered_does_not_wait_for_garbage_collection() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = launched(&world.provider, &claim).await;
    world.cluster.claims.lock().unwrap().clear();
    let id = world.live_ids().remove(0);
    // The watch is wrong about that.
    for there in [Arc::clone(&claim), naming(&claim, &instance, &id)] {
        world.cluster.ahead.lock().unwrap().insert("np-a".to_owned(), Some(there));
        for _ in 0..4 {
            world.provider.look_at_launches().await.expect("a look");
            seconds(5).await;
        }
        assert_eq!(world.live().len(), 1, "it may be written down yet, or is");
    }
    world.cluster.ahead.lock().unwrap().clear();
    for _ in 0..4 {
        world.provider.look_at_launches().await.expect("a look");
        seconds(5).await;
    }
    assert!(world.live().is_empty(), "{}", instance.provider_id);
    let told = world.told("OrphanDeleted");
    assert!(told.len() == 1 && told[0].contains("np-a, which is gone"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn where_orphans_are_left_to_people_so_is_a_machine_whose_nodeclaim_went_and_a_twin_goes_all_the_same()
{
    for collect_orphans in [CollectOrphans::Tell, CollectOrphans::Never] {
        let world = World::new().await;
        let provider =
            world.with_options(ProviderOptions { collect_orphans, ..ProviderOptions::new("test") });
        let claim = world.claim("np-a", json!({"cpu": "1"}));
        launched(&provider, &claim).await;
        let orphan = world.live_ids().remove(0);
        world.cluster.claims.lock().unwrap().clear();
        let look_for_a_while = async || {
            for _ in 0..6 {
                provider.look_at_launches().await.expect("a look");
                seconds(5).await;
            }
        };
        look_for_a_while().await;
        assert_eq!(world.live_ids(), std::slice::from_ref(&orphan), "{collect_orphans:?}");
        world.launch_by(&provider, &world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
        let twin = world.tagged("np-b", &[(UID, "uid-np-b")]);
        look_for_a_while().await;
        let left = world.live_ids();
        assert!(left.len() == 2 && left.contains(&orphan) && !left.contains(&twin), "{left:?}");
        seconds(310).await;
        assert!(provider.round().await.expect("a round").destroyed.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_machines_under_one_job_the_one_that_starts_is_taken_although_the_other_is_older() {
    let world = World::new().await;
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::TwiceUnderOneJob));
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let ours = launched(&world.provider, &claim).await;
    let mut machines = world.live();
    machines.sort_by_key(|machine| machine.created);
    assert_eq!(machines.len(), 2);
    assert!(machines[0].created < machines[1].created, "{machines:?}");
    assert!(machines[0].state == "Stopped" && machines[1].state != "Stopped", "{machines:?}");
    assert!(ours.provider_id.ends_with(&machines[1].id), "{ours:?}");
    // Nor does whoever comes after it take the other.
    let theirs = launched(&world.another(2), &claim).await;
    assert!(theirs.provider_id.ends_with(&machines[1].id), "{theirs:?}");
    world.write(&naming(&claim, &ours, &machines[1].id));
    for _ in 0..6 {
        world.provider.look_at_launches().await.expect("a look");
        seconds(5).await;
    }
    assert_eq!(world.live_ids(), [machines[1].id.clone()]);
}

#[tokio::test(start_paused = true)]
async fn a_twin_that_is_gone_says_nothing_of_the_machine_that_the_nodeclaim_names() {
    let world = World::new().await;
    world.node("np-a").await;
    let named = world.live_ids().remove(0);
    world.cloud.add_account("other", "k8s-net");
    // Where these keys do not see it.
    world.cloud.assign_machine(&named, Some("other"), None);
    world.tagged("np-a", &[(UID, "uid-np-a")]);
    seconds(60).await;
    let gone = "Unable to execute API command destroyvirtualmachine due to invalid value. Invalid parameter id value=1 due to incorrect long value format, or entity does not exist or due to incorrect parameter annotation for the field in api cmd class.";
    world.cloud.inject(Fault::once("destroyVirtualMachine", Trouble::Fail(431, 9999, gone.to_owned())));
    let claim = world.current("np-a");
    let first = world.provider.delete(&claim).await;
    assert!(first.is_ok(), "its own is there: {first:?}");
    for _ in 0..5 {
        seconds(30).await;
        if let Err(error) = world.provider.delete(&claim).await {
            assert!(!error.is_not_found(), "{error}");
        }
    }
    assert_eq!(world.live_ids(), [named]);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_came_twice_ends_in_one_machine_which_the_nodeclaim_names() {
    let world = World::new().await;
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Twice));
    world.node("np-a").await;
    assert_eq!(world.live().len(), 2, "the server took both");
    for _ in 0..6 {
        world.provider.look_at_launches().await.expect("a look");
        seconds(5).await;
    }
    let named = world.current("np-a").status.as_ref().unwrap().provider_id.clone().unwrap();
    assert_eq!(world.live().len(), 1);
    assert_eq!(named, format!("external-cloudstack://{}", world.live()[0].id));
}

#[tokio::test(start_paused = true)]
async fn deleting_a_nodeclaim_destroys_its_twins_before_it_is_said_to_be_gone() {
    let named_is_gone = [false, true];
    for tags in [vec![(UID, "uid-np-a"), ("kubernetes.io/cluster/test", "owned")], vec![]] {
        for named_is_gone in named_is_gone {
            let world = World::new().await;
            let instance = world.node("np-a").await;
            let named = world.live_ids().remove(0);
            let twin = world.tagged("np-a", &tags);
            let neighbour = world.tagged("np-b", &[(UID, "uid-np-b")]);
            seconds(60).await;
            if named_is_gone {
                world.cloud.expunge_machine(&named);
            }
            let claim = world.current("np-a");
            let first = world.provider.delete(&claim).await;
            assert!(first.is_ok(), "something is there: {first:?}, {}", instance.provider_id);
            world.delete(&claim).await.expect("gone");
            assert_eq!(world.live_ids(), [neighbour], "{tags:?} {named_is_gone} {twin}");
            let orders = if named_is_gone { 1 } else { 2 };
            assert_eq!(world.calls("destroyVirtualMachine"), orders, "one each");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_machines_to_delete_one_that_is_gone_says_nothing_of_the_other() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    for _ in 0..2 {
        world.tagged("np-a", &[(UID, "uid-np-a")]);
    }
    let gone = "Unable to execute API command destroyvirtualmachine due to invalid value. Invalid parameter id value=1 due to incorrect long value format, or entity does not exist or due to incorrect parameter annotation for the field in api cmd class.";
    world.cloud.inject(Fault::once("destroyVirtualMachine", Trouble::Fail(431, 9999, gone.to_owned())));
    let first = world.provider.delete(&claim).await;
    assert!(first.is_ok(), "the other is there: {first:?}");
    assert_eq!(world.calls("destroyVirtualMachine"), 2, "and was told to go");
    world.delete(&claim).await.expect("gone");
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nodes_without_twins_come_and_go_with_six_calls_each() {
    let world = World::new().await;
    let names: Vec<String> = (0..10).map(|i| format!("np-{i}")).collect();
    let calls = || world.cloud.calls().values().sum::<usize>();
    let before = calls();
    let launches = names.iter().map(|name| world.node(name));
    futures_util::future::join_all(launches).await;
    for _ in 0..12 {
        world.provider.look_at_launches().await.expect("a look");
        seconds(5).await;
    }
    let watched = 12;
    let claims: Vec<_> = names.iter().map(|name| world.current(name)).collect();
    let ends = futures_util::future::join_all(claims.iter().map(|claim| world.delete(claim))).await;
    assert!(ends.iter().all(Result::is_ok) && world.live().is_empty());
    let each = (calls() - before - watched) as f64 / 10.0;
    assert!(each <= 6.0, "{each} {:?}", world.cloud.calls());
}

#[tokio::test(start_paused = true)]
async fn garbage_collection_takes_the_twin_that_is_not_named_after_its_time_and_leaves_the_named_one() {
    let (world, _, claim, twins, instance) = two_leaders().await;
    seconds(20).await;
    for twin in &twins {
        let tagged = world.live().into_iter().find(|machine| machine.id == twin.id).expect("there");
        assert_eq!(tagged.tags[UID], "uid-np-a", "both are tagged as the NodeClaim's");
    }
    world.write(&naming(&claim, &instance, &twins[1].id));
    seconds(200).await;
    assert!(world.round().await.destroyed.is_empty(), "not yet");
    seconds(120).await;
    assert_eq!(world.round().await.destroyed, [twins[0].id.clone()]);
    seconds(30).await;
    assert_eq!(world.live_ids(), [twins[1].id.clone()]);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(world.round().await.destroyed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_stays_while_its_launch_may_be_writing_it_down_and_the_watch_shows_no_nodeclaim()
 {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.volumes_fail = true);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    launched(&world.provider, &claim).await;
    let late = world.cluster.claims.lock().unwrap().remove("np-a");
    world.cluster.ahead.lock().unwrap().insert("np-a".to_owned(), late);
    for _ in 0..6 {
        seconds(5).await;
        world.provider.look_at_launches().await.expect("a look");
    }
    assert_eq!(world.cloud.machines()[0].state, "Error");
    assert_eq!(world.calls("destroyVirtualMachine"), 0);
    world.cluster.ahead.lock().unwrap().insert("np-a".to_owned(), None);
    world.provider.look_at_launches().await.expect("a look");
    assert_eq!(world.calls("destroyVirtualMachine"), 1, "now it is nobody's");
}
