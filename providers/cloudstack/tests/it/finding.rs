//! What was made and lost sight of is found again, once: scenarios 9 to 12 and 14.

use std::sync::Arc;
use std::time::Duration;

use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;

use crate::cloud::{World, seconds};

#[tokio::test(start_paused = true)]
async fn scenario_9_a_lost_answer_still_makes_one_machine() {
    for trouble in [Trouble::DropResponse, Trouble::Truncate] {
        let world = World::new().await;
        world.cloud.inject(Fault::once("deployVirtualMachine", trouble));
        let claim = world.claim("np-a", json!({"cpu": "1"}));
        let instance = world.launch(&claim).await.expect("found again");
        assert_eq!(world.live().len(), 1);
        assert_eq!(instance.provider_id, format!("external-cloudstack://{}", world.live()[0].id));
        assert!(world.live()[0].tags.contains_key("karpenter.sh/nodeclaim"));
        assert_eq!(world.calls("deployVirtualMachine"), 1, "never sent again blindly");
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_10_a_request_that_never_arrived_is_made_again_under_another_job() {
    let world = World::new().await;
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::DropRequest));
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let error = world.launch(&claim).await.expect_err("nobody knows");
    assert!(matches!(error, ProviderError::Other(_)), "retried, not given up: {error}");
    seconds(10).await;
    world.launch(&claim).await.expect("a machine");
    assert_eq!(world.live().len(), 1);
    let jobs: Vec<String> = world
        .cloud
        .log()
        .iter()
        .filter(|entry| entry.command == "deployVirtualMachine")
        .map(|entry| entry.parameters["customjobid"].clone())
        .collect();
    assert_eq!(jobs.len(), 2);
    assert_ne!(jobs[0], jobs[1], "an id used twice leaves a machine behind");
}

#[tokio::test(start_paused = true)]
async fn scenario_11_a_new_leader_adopts_what_the_old_one_had_accepted_and_not_tagged() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.cloud.inject(Fault::times("createTags", 100, Trouble::DropRequest));
    {
        let launch = world.launch(&claim);
        tokio::pin!(launch);
        // Killed as soon as the machine is there.
        while world.cloud.machines().is_empty() {
            tokio::select! {
                biased;
                _ = &mut launch => panic!("launched"),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
    }
    assert!(world.live()[0].tags.is_empty());
    world.cloud.heal();
    let successor = world.another(2);
    world.launch_by(&successor, &claim).await.expect("adopted");
    assert_eq!((world.live().len(), world.calls("deployVirtualMachine")), (1, 1));
    seconds(5).await;
    assert_eq!(world.live()[0].tags["karpenter.k8s.cloudstack/nodeclaim-uid"], "uid-np-a");
    seconds(600).await;
    assert_eq!(successor.round().await.expect("a round").destroyed, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn scenario_12_of_two_machines_by_two_leaders_the_older_is_kept() {
    let world = World::new().await;
    let other = world.another(2);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let (a, b) = tokio::join!(world.launch(&claim), world.launch_by(&other, &claim));
    // Both were accepted: the server checks names and writes them down separately.
    let made = world.cloud.machines().len();
    assert!(made == 2 && a.is_ok() && b.is_ok(), "{made} {a:?} {b:?}");
    let oldest = world.cloud.machines().into_iter().min_by_key(|machine| machine.created).expect("one").id;
    // For twenty seconds nobody knows that there are two.
    for _ in 0..10 {
        let (ours, theirs) = tokio::join!(world.launch(&claim), world.launch_by(&other, &claim));
        assert_eq!(ours.expect("one").provider_id, theirs.expect("the same").provider_id);
        let (ours, theirs) = tokio::join!(world.provider.round(), other.round());
        assert!(ours.is_ok() && theirs.is_ok());
        seconds(2).await;
    }
    seconds(30).await;
    let kept = world.launch(&claim).await.expect("one of them");
    assert!(kept.provider_id.ends_with(&oldest), "the older");
    assert_eq!(world.calls("deployVirtualMachine"), 2, "no third");
    seconds(400).await;
    world.round().await;
    seconds(60).await;
    let live = world.live();
    assert_eq!(live.len(), 1, "{made} were made");
    assert_eq!(kept.provider_id, format!("external-cloudstack://{}", live[0].id));
    assert!(world.provider.get(&kept.provider_id).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn scenario_14_a_machine_that_cannot_be_tagged_is_not_lost() {
    let world = World::new().await;
    let failing = |times, code, text: &str| {
        world.cloud.inject(Fault::times("createTags", times, Trouble::Fail(code, 4545, text.to_owned())));
    };
    failing(3, 530, "Internal error executing command, please contact your system administrator");
    failing(2, 429, "The given user has reached his/her account api limit, please retry after [900] ms.");
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch(&claim).await.expect("a machine");
    let id = world.live()[0].id.clone();
    // By its name it is wanted even before its NodeClaim says which it is.
    world.cluster.claims.lock().unwrap().insert("np-a".to_owned(), claim);
    let written = Arc::new({
        let mut written = (*world.current("np-a")).clone();
        instance.write_into(&mut written);
        written
    });
    for failed in 2..=3 {
        assert!(world.live()[0].tags.is_empty());
        let listed = world.provider.list().await.expect("a list");
        assert_eq!(listed.len(), 1, "listed by its name");
        world.provider.get(&instance.provider_id).await.expect("there");
        seconds(600).await;
        assert!(world.round().await.destroyed.is_empty(), "its NodeClaim lives");
        assert_eq!(world.calls("createTags"), failed, "tried again by every round");
        world.cluster.claims.lock().unwrap().insert("np-a".to_owned(), Arc::clone(&written));
    }
    // Too many calls are no failure: it is asked again after the pause the server names.
    world.round().await;
    seconds(10).await;
    assert_eq!(world.calls("createTags"), 6);
    let machine = &world.live()[0];
    assert_eq!((machine.id.as_str(), machine.tags["karpenter.sh/nodeclaim"].as_str()), (id.as_str(), "np-a"));
    assert_eq!(machine.tags["kubernetes.io/cluster/test"], "owned");
    world.round().await;
    assert_eq!(world.calls("createTags"), 6, "nothing is missing any more");
    assert_eq!(world.calls("destroyVirtualMachine"), 0);
}

#[tokio::test(start_paused = true)]
async fn the_machine_of_another_claim_is_not_taken_for_one_of_ours() {
    let world = World::new().await;
    let prefix = Naming::new("karpenter", "test").prefix().to_owned();
    world.claim("web-1", json!({"cpu": "1"}));
    // Made for `web-1` and not tagged yet: it is not the second machine of `web`.
    let theirs = world.cloud.add_machine(&format!("{prefix}web-1"), &[]);
    let claim = world.claim("web", json!({"cpu": "1"}));
    assert!(world.provider.delete(&claim).await.expect_err("it has none").is_not_found());
    let instance = world.launch(&claim).await.expect("a machine of its own");
    assert!(!instance.provider_id.ends_with(&theirs), "{}", instance.provider_id);
    seconds(400).await;
    assert!(world.round().await.destroyed.is_empty());
    seconds(10).await;
    let machine = world.live().into_iter().find(|machine| machine.id == theirs).expect("still there");
    assert_eq!(machine.tags["karpenter.k8s.cloudstack/nodeclaim-uid"], "uid-web-1");
}
