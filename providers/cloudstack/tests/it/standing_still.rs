//! Machines that stand still are started, or replaced: scenario 13.

use std::sync::{Arc, Mutex};

use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::shared::OnStopped;
use karpenter_provider_cloudstack::voice::Voice;
use karpenter_provider_cloudstack::{CloudStackProvider, Objects, ProviderOptions};
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cloud::{World, seconds};

/// How many machines are started by a round and the next one.
async fn started_within_two_minutes(world: &World) -> usize {
    let first = world.round().await.started.len();
    seconds(120).await;
    first + world.round().await.started.len()
}

#[tokio::test(start_paused = true)]
async fn scenario_13_a_machine_stopped_by_a_crash_of_the_server_is_started_once() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.launch(&claim).await.expect("accepted");
    assert_eq!(world.live()[0].state, "Starting");
    world.cloud.restart();
    assert_eq!(world.live()[0].state, "Stopped");
    seconds(180).await;
    assert_eq!(started_within_two_minutes(&world).await, 1);
    seconds(60).await;
    assert_eq!(world.live()[0].state, "Running");
    world.cloud.stop_machine(&world.live()[0].id);
    assert_eq!(started_within_two_minutes(&world).await, 0, "once");
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_started_two_minutes_after_it_was_first_seen_standing_still_however_old_it_is() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    let started = async || world.round().await.started.len();
    seconds(3600).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 0, "whoever stopped it may start it");
    seconds(90).await;
    assert_eq!(started().await, 0, "not yet");
    // Somebody did; and the next stop is another one.
    world.cloud.find_machine_again(&id);
    assert_eq!(started().await, 0);
    world.cloud.stop_machine(&id);
    seconds(60).await;
    assert_eq!(started().await, 0);
    seconds(120).await;
    assert_eq!(started().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_process_counts_anew_how_long_a_machine_stands_still() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(3600).await;
    world.cloud.stop_machine(&world.live()[0].id);
    world.round().await;
    seconds(120).await;
    let next = world.another(2);
    assert!(next.round().await.expect("a round").started.is_empty(), "it has just come");
    seconds(120).await;
    assert_eq!(next.round().await.expect("a round").started.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_ran_well_for_an_hour_is_started_again() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    let started = async || started_within_two_minutes(&world).await;
    seconds(180).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 1);
    seconds(3700).await;
    assert_eq!(started().await, 0, "it runs");
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 1, "what stopped it then says nothing of now");
    seconds(60).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 0, "it does not stay up");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_restored_is_replaced() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(180).await;
    world.cloud.fail_to_restore_machine(&world.live()[0].id);
    assert!(world.round().await.started.is_empty());
    assert_eq!(world.told("VirtualMachineStopped").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_the_server_refused_in_passing_is_tried_again_before_the_machine_is_replaced() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    seconds(180).await;
    world.cloud.stop_machine(&id);
    world.round().await;
    // It takes no orders for a while, which it says in several ways.
    let busy = "The server is busy".to_owned();
    for trouble in [Trouble::Fail(530, 4250, busy), Trouble::Proxy(502), Trouble::DropRequest] {
        world.cloud.inject(Fault::once("startVirtualMachine", trouble));
        seconds(121).await;
        assert!(world.round().await.started.is_empty());
    }
    assert!(world.told("VirtualMachineStopped").is_empty());
    seconds(121).await;
    assert_eq!(world.round().await.started, [id]);
    assert_eq!(world.calls("startVirtualMachine"), 4);
    seconds(60).await;
    assert_eq!(world.live()[0].state, "Running");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_the_server_keeps_refusing_to_start_is_replaced_after_five_times() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(180).await;
    world.cloud.stop_machine(&world.live()[0].id);
    let refused = Trouble::Fail(530, 4250, "not now".to_owned());
    world.cloud.inject(Fault::times("startVirtualMachine", 100, refused));
    for _ in 0..8 {
        assert!(world.round().await.started.is_empty());
        seconds(121).await;
    }
    assert_eq!(world.calls("startVirtualMachine"), 5);
    assert!(!world.told("VirtualMachineStopped").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stops_is_started_two_minutes_after_anybody_saw_it_so() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.live()[0].id.clone();
    let stop = CancellationToken::new();
    let starts = || world.cloud.log().into_iter().find(|entry| entry.command == "startVirtualMachine");
    let life = async {
        // Just after a round, so that the next one is far.
        seconds(3 * 120 + 5).await;
        world.cloud.stop_machine(&id);
        let stopped = world.environment.clock.now();
        // Others ask for their own reasons, and then nobody does.
        seconds(5).await;
        world.provider.list().await.expect("a list");
        seconds(110).await;
        assert!(starts().is_none(), "whoever stopped it may be about to start it");
        seconds(35).await;
        let started = starts().expect("started").at.duration_since(stopped);
        assert!(started.as_secs() <= 145, "{started}");
        stop.cancel();
    };
    tokio::join!(world.provider.look_after(stop.clone()), life);
    assert_eq!(world.calls("startVirtualMachine"), 1);
}

/// Has its machines looked after while this goes on.
async fn looked_after_during(world: &World, life: impl Future<Output = ()>) {
    let stop = CancellationToken::new();
    let life = async {
        life.await;
        stop.cancel();
    };
    tokio::join!(world.provider.look_after(stop.clone()), life);
}

/// Seconds from the first order to start each machine to its next ones.
fn orders_to_start(world: &World, id: &str) -> Vec<i64> {
    let log = world.cloud.log().into_iter().filter(|entry| entry.command == "startVirtualMachine");
    let orders: Vec<_> = log.filter(|entry| entry.parameters["id"] == id).map(|entry| entry.at).collect();
    orders.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn machines_that_come_due_one_after_the_other_use_up_nobodys_starts() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for number in 0..6 {
        world.node(&format!("np-{number}")).await;
        ids.push(world.machine_of(&format!("np-{number}")).id);
    }
    let refused = Trouble::Fail(530, 4250, "not now".to_owned());
    world.cloud.inject(Fault::times("startVirtualMachine", 1000, refused));
    let life = async {
        seconds(2 * 120 + 5).await;
        for id in &ids {
            world.cloud.stop_machine(id);
            world.provider.list().await.expect("a list");
            seconds(15).await;
        }
        seconds(5 * 60).await;
        assert!(world.told("VirtualMachineStopped").is_empty(), "{:?}", world.told("VirtualMachineStopped"));
        for id in &ids {
            let pauses = orders_to_start(&world, id);
            assert!(!pauses.is_empty() && pauses.iter().all(|pause| *pause >= 120), "{pauses:?}");
        }
        seconds(20 * 60).await;
        assert!(!world.told("VirtualMachineStopped").is_empty(), "it did not pass");
        assert!(ids.iter().all(|id| orders_to_start(&world, id).len() == 4));
    };
    looked_after_during(&world, life).await;
}

#[tokio::test(start_paused = true)]
async fn rounds_that_come_early_collect_no_orphans() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for number in 0..6 {
        world.node(&format!("np-{number}")).await;
        ids.push(world.machine_of(&format!("np-{number}")).id);
    }
    for number in 0..40 {
        world.stray(&format!("np-stray-{number}"));
    }
    let life = async {
        // They are old enough to be collected by the third round; machines come due before the fourth.
        seconds(2 * 120 + 5).await;
        for id in &ids {
            world.cloud.stop_machine(id);
            world.provider.list().await.expect("a list");
            seconds(15).await;
        }
        seconds(2 * 60 - 15).await;
        assert!(world.calls("startVirtualMachine") >= 5, "{}", world.calls("startVirtualMachine"));
        assert_eq!(world.calls("destroyVirtualMachine"), 10, "by one round");
    };
    looked_after_during(&world, life).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_comes_due_during_a_round_is_not_left_to_the_next_regular_one() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for name in ["np-a", "np-b"] {
        world.node(name).await;
        ids.push(world.machine_of(name).id);
    }
    world
        .cloud
        .inject(Fault::once("startVirtualMachine", Trouble::Delay(std::time::Duration::from_secs(25))));
    let life = async {
        seconds(2 * 120 + 5).await;
        // The one that is seen to first stops last, and is due while the other is ordered to start.
        let mut stopped = world.environment.clock.now();
        for id in [&ids[1], &ids[0]] {
            seconds(15).await;
            world.cloud.stop_machine(id);
            stopped = world.environment.clock.now();
            world.provider.list().await.expect("a list");
        }
        seconds(2 * 60 + 30).await;
        let log = world.cloud.log().into_iter().filter(|entry| entry.command == "startVirtualMachine");
        let last = log.filter(|entry| entry.parameters["id"] == ids[0]).map(|entry| entry.at).next();
        let waited = last.expect("started").duration_since(stopped).as_secs();
        assert!(waited <= 140, "{waited}");
    };
    looked_after_during(&world, life).await;
}

#[tokio::test(start_paused = true)]
async fn rounds_that_follow_each_other_closely_keep_to_a_budget_together() {
    let world = World::new().await;
    let names = ["np-a", "np-b", "np-c"];
    for name in names {
        world.node(name).await;
        let mut claim = (*world.current(name)).clone();
        let is = |kind: &str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-11-15T08:00:30Z"});
        let status = claim.status.as_mut().expect("launched");
        status.conditions =
            serde_json::from_value(json!([is("Registered"), is("Initialized")])).expect("two");
        world.cluster.claims.lock().unwrap().insert(name.to_owned(), Arc::new(claim));
    }
    // A cluster whose NodePool lets one node go at a time, and whose watch never shows what was deleted.
    let deleted: Arc<Mutex<Vec<String>>> = Arc::default();
    let deleting = Arc::clone(&deleted);
    let answer = move |request: http::Request<kube::client::Body>| {
        let path = request.uri().path().to_owned();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let (status, body) = match request.method().as_str() {
            "DELETE" => {
                deleting.lock().unwrap().push(name);
                (200, json!({"kind": "Status", "status": "Success"}))
            }
            _ if path == "/api/v1/nodes" => {
                (200, json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": []}))
            }
            _ if path.contains("/nodepools/") => (
                200,
                json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "pool"},
                    "spec": {"disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "1"}]},
                        "template": {"spec": {"requirements": [],
                        "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"}}}}}),
            ),
            _ => (
                404,
                json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}),
            ),
        };
        let body = kube::client::Body::from(body.to_string().into_bytes());
        let answer = http::Response::builder().status(status).body(body).expect("an answer");
        std::future::ready(Ok::<_, std::convert::Infallible>(answer))
    };
    let cluster = kube::Client::new(tower::service_fn(answer), "default");
    let (recorder, _writer) = karpenter_runtime::events::recorder("karpenter", &world.environment);
    let provider = CloudStackProvider::speaking(
        world.client.clone(),
        ProviderOptions { on_stopped: OnStopped::Replace, ..ProviderOptions::new("test") },
        Arc::clone(&world.cluster) as Arc<dyn Objects>,
        Voice::new(recorder, cluster),
        &world.environment,
    );
    let stop = CancellationToken::new();
    let life = async {
        seconds(2 * 120 + 5).await;
        for name in names {
            world.cloud.stop_machine(&world.machine_of(name).id);
            provider.list().await.expect("a list");
            seconds(15).await;
        }
        seconds(105).await;
        let given_up = deleted.lock().unwrap().clone();
        assert_eq!(given_up, ["np-a"], "by whichever round");
        stop.cancel();
    };
    tokio::join!(provider.look_after(stop.clone()), life);
}
