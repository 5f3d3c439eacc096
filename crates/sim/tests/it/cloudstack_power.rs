//! What the state of a machine allows on the simulated CloudStack: starting, stopping, rebooting, scaling; and when what was destroyed
//! goes for good.

use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::settings::Latencies;
use serde_json::{Value, json};

use crate::cloudstack_replay::{Replay, seconds};

async fn ask(replay: &Replay, role: Role, command: &str, parameters: &[(&str, &str)]) -> Value {
    let parameters: Vec<(String, String)> =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let (_, body) = replay.ask(role, true, command, &parameters).await;
    body[format!("{}response", command.to_lowercase())].clone()
}

/// Orders something for a machine.
async fn order(replay: &Replay, command: &str, parameters: &[(&str, &str)]) -> String {
    let answer = ask(replay, Role::User, command, parameters).await;
    answer["jobid"].as_str().unwrap_or_else(|| panic!("{command}: {answer}")).to_owned()
}

/// What came of a job: 0 or its code, and what it said.
async fn end(replay: &Replay, job: &str) -> (i64, String) {
    let answer = ask(replay, Role::User, "queryAsyncJobResult", &[("jobid", job)]).await;
    assert_ne!(answer["jobstatus"], 0, "it ended: {answer}");
    let text = answer["jobresult"]["errortext"].as_str().unwrap_or_default();
    (answer["jobresultcode"].as_i64().unwrap_or_default(), text.to_owned())
}

/// The same, after everything that was ordered is done.
async fn done(replay: &Replay, command: &str, parameters: &[(&str, &str)]) -> (i64, String) {
    let job = order(replay, command, parameters).await;
    seconds(60).await;
    end(replay, &job).await
}

fn state(replay: &Replay, id: &str) -> String {
    let machine = replay.cloud.machines().into_iter().find(|machine| machine.id == id);
    machine.map_or_else(|| "gone".to_owned(), |machine| machine.state)
}

/// A machine that runs.
async fn machine(replay: &Replay, name: &str) -> String {
    let id = replay.deploy(name, "k8s.small", "k8s-net", &[]).await["id"].as_str().expect("an id").to_owned();
    seconds(60).await;
    assert_eq!(state(replay, &id), "Running");
    id
}

#[tokio::test(start_paused = true)]
async fn only_a_machine_that_stands_still_is_started() {
    let replay = Replay::new();
    let id = machine(&replay, "a").await;
    let this = [("id", id.as_str())];
    let (code, text) = done(&replay, "startVirtualMachine", &this).await;
    assert!(code == 431 && text.ends_with("is already running"), "{code} {text}");
    assert_eq!(done(&replay, "stopVirtualMachine", &this).await.0, 0);
    assert_eq!(state(&replay, &id), "Stopped");
    assert_eq!(done(&replay, "startVirtualMachine", &this).await.0, 0);
    assert_eq!(state(&replay, &id), "Running");
    done(&replay, "destroyVirtualMachine", &this).await;
    let (code, text) = done(&replay, "startVirtualMachine", &this).await;
    assert!(code == 530 && text.ends_with("in Destroyed state"), "{code} {text}");
    assert_eq!(state(&replay, &id), "Destroyed");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_to_start_is_not_started_later() {
    let replay = Replay::new();
    replay.cloud.configure(|settings| settings.starts_fail = true);
    replay.deploy("a", "k8s.small", "k8s-net", &[]).await;
    seconds(60).await;
    replay.cloud.configure(|settings| settings.starts_fail = false);
    let id = replay.machine("a");
    let (code, text) = done(&replay, "startVirtualMachine", &[("id", &id)]).await;
    assert!(code == 530 && text.ends_with("in Error state"), "{code} {text}");
    assert_eq!(state(&replay, &id), "Error");
    // Which the server takes for success.
    assert_eq!(done(&replay, "stopVirtualMachine", &[("id", &id)]).await.0, 0);
    assert_eq!(state(&replay, &id), "Error");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_waited_for_the_end_of_a_machine_brings_nothing_back() {
    for (expunge, left) in [("false", "Destroyed"), ("true", "gone")] {
        let replay = Replay::new();
        replay.cloud.configure(|settings| settings.user_may_expunge = true);
        let id = machine(&replay, "a").await;
        order(&replay, "stopVirtualMachine", &[("id", &id)]).await;
        order(&replay, "destroyVirtualMachine", &[("id", &id), ("expunge", expunge)]).await;
        let start = order(&replay, "startVirtualMachine", &[("id", &id)]).await;
        let stop = order(&replay, "stopVirtualMachine", &[("id", &id)]).await;
        seconds(60).await;
        assert_ne!(end(&replay, &start).await.0, 0);
        assert_eq!(end(&replay, &stop).await.0, if left == "gone" { 431 } else { 0 });
        assert_eq!(state(&replay, &id), left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_stopped_is_seen_stopping_and_then_told_of() {
    let replay = Replay::new();
    let id = machine(&replay, "a").await;
    replay.cloud.configure(|settings| {
        let stop = karpenter_sim::chance::Span::secs(30, 30);
        settings.latencies = Latencies { stop, ..settings.latencies };
    });
    order(&replay, "stopVirtualMachine", &[("id", &id)]).await;
    seconds(5).await;
    assert_eq!(state(&replay, &id), "Stopping");
    seconds(60).await;
    let told = ask(&replay, Role::User, "listEvents", &[("type", "VM.STOP")]).await;
    assert_eq!(told["event"][0]["resourceid"], id.as_str(), "{told}");
    assert_eq!(
        (&told["event"][0]["state"], &told["event"][0]["username"]),
        (&json!("Completed"), &json!("karp"))
    );
}

#[tokio::test(start_paused = true)]
async fn what_does_not_run_is_not_rebooted() {
    let replay = Replay::new();
    let id = machine(&replay, "a").await;
    assert_eq!(done(&replay, "rebootVirtualMachine", &[("id", &id)]).await.0, 0);
    done(&replay, "stopVirtualMachine", &[("id", &id)]).await;
    let (code, text) = done(&replay, "rebootVirtualMachine", &[("id", &id)]).await;
    assert!(code == 431 && text.contains("is not running"), "{code} {text}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_gets_another_offering_while_it_stands_still_and_not_while_it_runs() {
    let replay = Replay::new();
    let id = machine(&replay, "a").await;
    let small = replay.cloud.machines()[0].offering.clone();
    let medium = replay.cloud.id_of("serviceoffering", "k8s.medium").expect("an offering");
    let scale = [("id", id.as_str()), ("serviceofferingid", medium.as_str())];
    assert_eq!(done(&replay, "scaleVirtualMachine", &scale).await.0, 530);
    assert_eq!(replay.cloud.machines()[0].offering, small);
    done(&replay, "stopVirtualMachine", &[("id", &id)]).await;
    assert_eq!(done(&replay, "scaleVirtualMachine", &scale).await.0, 0);
    assert_eq!(replay.cloud.machines()[0].offering, medium);
    let shown = ask(&replay, Role::User, "listVirtualMachines", &[("id", &id)]).await;
    assert_eq!(shown["virtualmachine"][0]["serviceofferingname"], "k8s.medium", "{shown}");
    assert_eq!(done(&replay, "scaleVirtualMachine", &scale).await.0, 431, "it has it");
    done(&replay, "destroyVirtualMachine", &[("id", &id)]).await;
    assert_eq!(done(&replay, "scaleVirtualMachine", &scale).await.0, 431);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_to_start_goes_with_those_that_were_destroyed() {
    let replay = Replay::new();
    replay.cloud.configure(|settings| settings.starts_fail = true);
    replay.deploy("a", "k8s.small", "k8s-net", &[]).await;
    seconds(20 * 3600).await;
    assert_eq!(replay.cloud.machines().len(), 1);
    seconds(30 * 3600).await;
    assert!(replay.cloud.machines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn users_are_shown_a_destroyed_volume_until_the_storage_is_cleaned_up() {
    let replay = Replay::new();
    let id = machine(&replay, "a").await;
    let disk = replay.cloud.attach_disk(&id, "data").expect("a disk");
    let volumes = [("id", id.as_str()), ("volumeids", disk.as_str())];
    done(&replay, "destroyVirtualMachine", &volumes).await;
    let disks = async || ask(&replay, Role::User, "listVolumes", &[("type", "DATADISK")]).await;
    let shown = disks().await;
    assert_eq!((&shown["count"], &shown["volume"][0]["state"]), (&json!(1), &json!("Destroy")), "{shown}");
    seconds(49 * 3600).await;
    assert_eq!(disks().await, json!({}));
}

#[tokio::test(start_paused = true)]
async fn only_root_is_told_that_a_network_has_no_address_left() {
    let replay = Replay::new();
    replay.cloud.edit("network", "k8s-net", |network| network["cidr"] = "10.1.1.0/31".into());
    let id = |kind: &str, name: &str| replay.cloud.id_of(kind, name).expect("in the catalogue");
    let order = [
        ("zoneid", id("zone", "sim-zone-1")),
        ("serviceofferingid", id("serviceoffering", "k8s.small")),
        ("templateid", id("template", "CentOS 5.6 (64-bit) no GUI (Simulator)")),
        ("networkids", id("network", "k8s-net")),
    ];
    let order: Vec<(&str, &str)> = order.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for (role, told) in [(Role::User, false), (Role::Root, true)] {
        let answer = ask(&replay, role, "deployVirtualMachine", &order).await;
        let text = answer["errortext"].as_str().unwrap_or_default();
        assert_eq!(
            (&answer["errorcode"], text.contains("address for network")),
            (&json!(530), told),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_over_an_order_has_taken_it_and_does_not_answer() {
    use karpenter_sim::cloudstack::faults::{Fault, Trouble};
    let replay = Replay::new();
    replay.cloud.inject(Fault::once("startVirtualMachine", Trouble::Restart));
    let id = machine(&replay, "a").await;
    done(&replay, "stopVirtualMachine", &[("id", &id)]).await;
    let request = http::Request::get("/client/api?command=startVirtualMachine").body(bytes::Bytes::new());
    let lost = replay.cloud.handle(request.expect("a request")).await;
    assert!(lost.is_err(), "{lost:?}");
    // What was under way ended without a result.
    let start = order(&replay, "startVirtualMachine", &[("id", &id)]).await;
    replay.cloud.restart();
    assert_eq!(end(&replay, &start).await, (530, String::new()));
    seconds(60).await;
    assert_eq!(state(&replay, &id), "Stopped");
}
