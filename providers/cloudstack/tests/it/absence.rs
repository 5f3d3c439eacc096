//! What no list shows is gone only if the server says so: a NodeClaim that was let go does not come back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::requests;
use karpenter_provider_cloudstack::{CloudStackProvider, ProviderOptions};
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;

use crate::cloud::{World, seconds};

const ACCOUNT_ID: &str = "karpenter.k8s.cloudstack/account-id";

async fn running(world: &World, name: &str) -> Arc<NodeClaim> {
    world.launch(&world.claim(name, json!({"cpu": "1"}))).await.expect("a machine");
    seconds(60).await;
    world.current(name)
}

fn id_of(claim: &NodeClaim) -> &str {
    claim.status.as_ref().unwrap().provider_id.as_deref().unwrap()
}

/// What is said of a claim's machine, asked after and asked to go.
async fn said(provider: &CloudStackProvider, claim: &NodeClaim) -> [ProviderError; 2] {
    let asked = provider.get(id_of(claim)).await.expect_err("nobody sees it");
    [asked, provider.delete(claim).await.expect_err("nobody sees it")]
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_given_to_another_account_is_not_gone() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    let machine = world.live()[0].id.clone();
    let tenant = world.cloud.account(Role::User).unwrap().name;
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&machine, Some("other"), None);
    seconds(10).await;
    for error in said(&world.provider, &claim).await {
        assert!(!error.is_not_found() && error.to_string().contains("closed to these keys"), "{error}");
    }
    assert_eq!(world.told("MachineHidden").len(), 1);
    assert_eq!(world.live().len(), 1, "and nothing happened to it");
    world.cloud.assign_machine(&machine, Some(&tenant), None);
    seconds(10).await;
    world.delete(&claim).await.expect("gone");
    assert!(world.live().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_moved_into_a_project_of_ours_is_not_gone_and_the_project_is_named() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    let machine = world.live()[0].id.clone();
    let project = world.cloud.add_project("blue");
    world.cloud.assign_machine(&machine, None, Some(&project));
    seconds(10).await;
    for error in said(&world.provider, &claim).await {
        assert!(!error.is_not_found() && error.to_string().contains("project \"blue\""), "{error}");
    }
    assert_eq!(world.live().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_list_of_ids_leaves_out_for_an_administrator_is_not_gone() {
    let world = World::new().await;
    let mut claims = Vec::new();
    for name in ["np-a", "np-b"] {
        let mut claim = (*running(&world, name).await).clone();
        // As releases before wrote them down.
        claim.metadata.annotations.as_mut().unwrap().remove(ACCOUNT_ID);
        let claim = Arc::new(claim);
        world.cluster.claims.lock().unwrap().insert(name.to_owned(), Arc::clone(&claim));
        claims.push(claim);
    }
    let tenant = world.cloud.account(Role::User).unwrap().name;
    let admin = world.with_role(Role::DomainAdmin, ProviderOptions::new("test"));
    let (one, other) = join(admin.delete(&claims[0]), admin.delete(&claims[1])).await;
    for said in [one, other] {
        let error = said.expect_err("not where it is looked for");
        assert!(!error.is_not_found() && error.to_string().contains(&tenant), "{error}");
    }
    assert_eq!(world.live().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_somebody_else_destroyed_is_gone_although_the_server_keeps_it_for_a_day() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    let machine = world.live()[0].id.clone();
    world.client.call(&requests::destroy(&machine, false, &[])).await.expect("taken");
    seconds(30).await;
    assert_eq!(world.cloud.machines().len(), 1, "its row is there");
    let error = world.provider.get(id_of(&claim)).await.expect_err("no list shows it");
    assert!(!error.is_not_found(), "lists may be late: {error}");
    world.provider.delete(&claim).await.expect("waits");
    seconds(60).await;
    for error in said(&world.provider, &claim).await {
        assert!(error.is_not_found(), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_never_saw_a_machine_out_of_sight_takes_it_for_gone_no_sooner() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    world.cloud.configure(|settings| settings.read_lag = Duration::from_secs(20));
    let machine = world.live()[0].id.clone();
    let tenant = world.cloud.account(Role::User).unwrap().name;
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&machine, Some("other"), None);
    for _ in 0..2 {
        seconds(25).await;
        world.client.call(&requests::list_nics(&machine)).await.expect_err("it is another's");
    }
    world.cloud.assign_machine(&machine, Some(&tenant), None);
    seconds(10).await;
    let error = world.provider.get(id_of(&claim)).await.expect_err("lists are late");
    assert!(!error.is_not_found() && error.to_string().contains("show it late"), "{error}");
    seconds(30).await;
    world.provider.get(id_of(&claim)).await.expect("it was there all the time");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_came_back_a_moment_ago_is_not_gone_because_lists_are_late() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    let machine = world.live()[0].id.clone();
    let tenant = world.cloud.account(Role::User).unwrap().name;
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&machine, Some("other"), None);
    seconds(10).await;
    for error in said(&world.provider, &claim).await {
        assert!(error.to_string().contains("closed to these keys"), "{error}");
    }
    world.cloud.assign_machine(&machine, Some(&tenant), None);
    // No list shows it, and it answers: as destroyed machines do, and those that lists show late.
    world.client.call(&requests::destroy(&machine, false, &[])).await.expect("taken");
    seconds(30).await;
    let error = world.provider.get(id_of(&claim)).await.expect_err("no list shows it");
    assert!(!error.is_not_found() && error.to_string().contains("being destroyed"), "{error}");
    seconds(60).await;
    for error in said(&world.provider, &claim).await {
        assert!(error.is_not_found(), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_listed_in_between_is_out_of_sight_anew() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    world.cloud.configure(|settings| settings.read_lag = Duration::from_secs(20));
    let machine = world.live()[0].id.clone();
    let tenant = world.cloud.account(Role::User).unwrap().name;
    world.cloud.add_account("other", "k8s-net");
    // Lists that leave it out for some seconds although it is there.
    let late = async || {
        world.cloud.assign_machine(&machine, Some("other"), None);
        for _ in 0..2 {
            seconds(25).await;
            world.client.call(&requests::list_nics(&machine)).await.expect_err("it is another's");
        }
        world.cloud.assign_machine(&machine, Some(&tenant), None);
        seconds(1).await;
    };
    late().await;
    let error = world.provider.get(id_of(&claim)).await.expect_err("lists are late");
    assert!(!error.is_not_found(), "{error}");
    for _ in 0..8 {
        seconds(20).await;
        world.provider.get(id_of(&claim)).await.expect("listed");
    }
    late().await;
    let error = world.provider.get(id_of(&claim)).await.expect_err("lists are late once more");
    assert!(!error.is_not_found() && error.to_string().contains("show it late"), "{error}");
    world.provider.delete(&claim).await.expect("waits");
    seconds(30).await;
    world.provider.get(id_of(&claim)).await.expect("it was there all the time");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_late_lists_asks_no_more_than_twice_per_machine() {
    let world = World::new().await;
    let mut claims = Vec::new();
    for name in ["np-a", "np-b", "np-c"] {
        claims.push(running(&world, name).await);
    }
    for machine in world.live() {
        world.client.call(&requests::destroy(&machine.id, false, &[])).await.expect("taken");
    }
    seconds(30).await;
    // Whoever leads next knows of no order.
    let next = world.another(2);
    let before = world.cloud.calls();
    let mut waits = claims.clone();
    for _ in 0..20 {
        let mut left = Vec::new();
        for claim in waits {
            if !next.delete(&claim).await.is_err_and(|error| error.is_not_found()) {
                left.push(claim);
            }
        }
        waits = left;
        seconds(5).await;
    }
    assert!(waits.is_empty(), "{waits:?}");
    let asked = |command: &str| world.calls(command) - before.get(command).copied().unwrap_or(0);
    assert_eq!(asked("listNics"), 2 * claims.len());
    let everywhere = world
        .cloud
        .log()
        .into_iter()
        .filter(|entry| entry.parameters.get("projectid").is_some_and(|id| id == "-1"));
    assert_eq!(everywhere.count(), 2 * claims.len());
}

#[tokio::test(start_paused = true)]
async fn an_order_of_ours_is_over_when_its_job_says_so() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.latencies.destroy = Span::secs(60, 60));
    let claim = running(&world, "np-a").await;
    world.provider.delete(&claim).await.expect("ordered");
    // Out of sight before its job is through.
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&world.live()[0].id, Some("other"), None);
    seconds(10).await;
    world.provider.delete(&claim).await.expect("under way");
    let error = world.provider.get(id_of(&claim)).await.expect_err("nobody sees it");
    assert!(error.to_string().contains("being destroyed"), "{error}");
    seconds(60).await;
    let asked = world.calls("listNics");
    assert!(world.provider.delete(&claim).await.expect_err("gone").is_not_found());
    assert_eq!(world.calls("listNics"), asked, "the job is proof enough");
    let jobs = world.calls("queryAsyncJobResult");
    assert!(world.provider.get(id_of(&claim)).await.expect_err("gone").is_not_found());
    assert!(world.provider.delete(&claim).await.expect_err("gone").is_not_found());
    let asked_again = (world.calls("listNics") - asked, world.calls("queryAsyncJobResult") - jobs);
    assert_eq!(asked_again, (0, 0), "and needs none a moment later");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_ends_holds_up_no_node_claim_whose_machine_is_gone() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.latencies.destroy = Span::secs(36_000, 36_000));
    let claim = running(&world, "np-a").await;
    world.provider.delete(&claim).await.expect("ordered");
    world.cloud.expunge_machine(&world.live()[0].id);
    let mut waited = 0;
    while !world.provider.delete(&claim).await.is_err_and(|error| error.is_not_found()) {
        waited += 5;
        assert!(waited < 1200, "it waits for the job");
        seconds(5).await;
    }
    assert!(waited > 500, "the job was believed for {waited} s only");
}

#[tokio::test(start_paused = true)]
async fn while_the_server_does_not_say_whether_a_machine_is_gone_it_is_not() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    world.cloud.expunge_machine(&world.live()[0].id);
    world.cloud.inject(Fault::times("listNics", 20, Trouble::Proxy(502)));
    for error in said(&world.provider, &claim).await {
        assert!(!error.is_not_found(), "{error}");
    }
    world.cloud.heal();
    assert!(said(&world.provider, &claim).await.iter().all(ProviderError::is_not_found));
}

#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_ask_goes_by_what_lists_show() {
    let world = World::new().await;
    let claim = running(&world, "np-a").await;
    let machine = world.live()[0].id.clone();
    let project = world.cloud.add_project("blue");
    let denied = || Trouble::Fail(432, 9999, "The API [listNics] does not exist".to_owned());
    world.cloud.inject(Fault::times("listNics", 20, denied()));
    world.cloud.assign_machine(&machine, None, Some(&project));
    seconds(10).await;
    for error in said(&world.provider, &claim).await {
        assert!(!error.is_not_found() && error.to_string().contains("blue"), "{error}");
    }
    world.cloud.expunge_machine(&machine);
    seconds(10).await;
    assert!(!world.provider.get(id_of(&claim)).await.expect_err("no list shows it").is_not_found());
    seconds(60).await;
    assert!(said(&world.provider, &claim).await.iter().all(ProviderError::is_not_found));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_refuses_one_question_does_not_make_a_machine_gone() {
    for status in [401, 403, 407] {
        let world = World::new().await;
        let claim = running(&world, "np-a").await;
        world.cloud.add_account("other", "k8s-net");
        world.cloud.assign_machine(&world.live()[0].id, Some("other"), None);
        world.cloud.inject(Fault::times("listNics", 1000, Trouble::Proxy(status)));
        for _ in 0..5 {
            seconds(25).await;
            for error in said(&world.provider, &claim).await {
                assert!(!error.is_not_found(), "{status}: {error}");
            }
        }
        assert_eq!(world.live().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_begun_with_keys_of_another_account_is_not_begun_again() {
    let world = World::new().await;
    let first = world.launch(&world.claim("np-0", json!({"cpu": "1"}))).await.expect("a machine");
    let mut claim = (*world.claim("np-a", json!({"cpu": "1"}))).clone();
    // What is written down before a machine is ordered; of its order no answer came.
    claim.metadata.annotations = Some(
        [("karpenter.k8s.cloudstack/scope", "own"), (ACCOUNT_ID, first.annotations[ACCOUNT_ID].as_str())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    world.cloud.add_account("other", "k8s-net");
    let other = world.as_account("other");
    let error = other.create(&claim).await.expect_err("it may have a machine already").to_string();
    assert!(error.contains("another by now"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 1, "the first one");
    world.launch(&claim).await.expect("with the keys it was begun with");
}
