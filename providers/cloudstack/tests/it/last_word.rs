//! Nothing is destroyed on the word of a watch alone: it may be late.

use std::sync::Arc;
use std::time::Duration;

use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cloud::{World, seconds, spec};

impl World {
    /// The watch loses sight of this claim, which is as it was.
    fn lose_sight_of(&self, name: &str) {
        let claim = self.cluster.claims.lock().unwrap().remove(name).expect("a claim");
        self.cluster.ahead.lock().unwrap().insert(name.to_owned(), Some(claim));
    }

    /// The NodeClaim is gone for the API server too.
    fn end(&self, name: &str) {
        self.cluster.ahead.lock().unwrap().insert(name.to_owned(), None);
    }

    async fn collected(&self) -> usize {
        self.round().await.destroyed.len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_machine_whose_nodeclaim_the_watch_does_not_show_stays_until_it_is_really_gone() {
    let world = World::new().await;
    world.node("np-a").await;
    world.lose_sight_of("np-a");
    seconds(400).await;
    assert_eq!((world.collected().await, world.live().len()), (0, 1));
    *world.cluster.unreadable.lock().unwrap() = true;
    world.end("np-a");
    assert_eq!((world.collected().await, world.live().len()), (0, 1), "nobody knows");
    *world.cluster.unreadable.lock().unwrap() = false;
    assert_eq!(world.collected().await, 1);
    seconds(30).await;
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_tags_stays_while_the_api_server_has_a_nodeclaim_that_may_want_it() {
    let world = World::new().await;
    let by_name = world.stray("np-a");
    let by_id = world.stray("np-renamed");
    world.claim("np-a", json!({"cpu": "1"}));
    let mut claim = (*world.claim("np-b", json!({"cpu": "1"}))).clone();
    claim.status.get_or_insert_default().provider_id = Some(format!("external-cloudstack://{by_id}"));
    world.cluster.claims.lock().unwrap().insert("np-b".to_owned(), Arc::new(claim));
    world.lose_sight_of("np-a");
    world.lose_sight_of("np-b");
    seconds(400).await;
    assert_eq!((world.collected().await, world.live().len()), (0, 2));
    world.end("np-b");
    assert_eq!(world.round().await.destroyed, [by_id]);
    world.end("np-a");
    assert_eq!(world.round().await.destroyed, [by_name]);
}

#[tokio::test(start_paused = true)]
async fn all_nodeclaims_are_read_once_a_round_at_most_and_only_where_something_would_go() {
    let world = World::new().await;
    world.node("np-wanted").await;
    for i in 0..5 {
        world.stray(&format!("np-{i}"));
    }
    let reads = || *world.cluster.reads.lock().unwrap();
    let before = reads();
    world.round().await;
    assert_eq!(reads(), before, "they are young");
    seconds(400).await;
    assert_eq!((world.collected().await, reads()), (5, before + 1));
    seconds(60).await;
    assert_eq!((world.collected().await, reads()), (0, before + 1), "nothing is left to ask for");
}

#[tokio::test(start_paused = true)]
async fn who_leads_no_more_destroys_nothing_more_in_the_middle_of_a_round() {
    let world = World::new().await;
    for i in 0..4 {
        world.stray(&format!("np-{i}"));
        seconds(1).await;
    }
    seconds(400).await;
    world.cloud.inject(Fault::once("destroyVirtualMachine", Trouble::Delay(Duration::from_secs(20))));
    let stop = CancellationToken::new();
    let loses = async {
        seconds(10).await;
        stop.cancel();
    };
    let (round, ()) = tokio::join!(world.provider.round_until(&stop), loses);
    assert_eq!(round.expect("a round").destroyed.len(), 1, "the order that was under way");
    assert_eq!(world.calls("destroyVirtualMachine"), 1);
    let round = world.provider.round_until(&stop).await.expect("a round");
    assert!(round.destroyed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn data_disks_and_groups_of_nodeclaims_that_the_watch_does_not_show_stay_too() {
    let world = World::new().await;
    let mut class = spec();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    class["affinity"] = json!({"type": "softHostAntiAffinity"});
    world.class("default", class).await;
    world.node("np-a").await;
    seconds(60).await;
    world.round().await;
    world.cloud.expunge_machine(&world.machine_of("np-a").id);
    world.lose_sight_of("np-a");
    seconds(400).await;
    let there = || (world.cloud.data_disks().len(), world.cloud.affinity_groups().len());
    assert!(world.round().await.disks.is_empty());
    assert_eq!(there(), (1, 1), "its NodeClaim is there, and may get another machine");
    world.end("np-a");
    assert_eq!(world.round().await.disks.len(), 1);
    seconds(60).await;
    world.round().await;
    assert_eq!(there(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_nodeclass_is_used_while_the_api_server_has_a_nodeclaim_of_it_and_while_nobody_knows() {
    let world = World::new().await;
    let (class, other) = (world.class("default", spec()).await, world.class("other", spec()).await);
    let used = async || world.provider.is_used(&class).await.ok();
    assert_eq!(used().await, Some(false));
    world.claim("np-a", json!({"cpu": "1"}));
    world.lose_sight_of("np-a");
    assert_eq!(used().await, Some(true), "the watch is late");
    assert_eq!(world.provider.is_used(&other).await, Ok(false));
    *world.cluster.unreadable.lock().unwrap() = true;
    assert_eq!(used().await, None);
    *world.cluster.unreadable.lock().unwrap() = false;
    world.end("np-a");
    assert_eq!(used().await, Some(false));
}
