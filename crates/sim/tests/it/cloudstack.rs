//! What the simulated CloudStack does that no sample shows: it is set back to an earlier moment, has a wrong clock, forgets jobs,
//! and fails one account only.

use std::time::Duration;

use jiff::SignedDuration;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cloudstack_replay::{Replay, Sign, seconds};

async fn ask(replay: &Replay, command: &str, parameters: &[(&str, &str)]) -> (u16, Value) {
    let parameters: Vec<(String, String)> =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    replay.ask(Role::User, false, command, &parameters).await
}

/// How long it takes until all machines run.
async fn until_running(replay: &Replay) -> Duration {
    let begun = Instant::now();
    while replay.cloud.machines().iter().any(|machine| machine.state != "Running") {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn from_a_snapshot_everything_goes_on_as_it_did_however_late_it_is_restored() {
    let replay = Replay::new();
    let empty = replay.cloud.snapshot();
    let deployed = replay.deploy("first", "k8s.small", "k8s-net", &[]).await;
    let under_way = replay.cloud.snapshot();
    let took = until_running(&replay).await;
    assert!(took > Duration::from_secs(1), "{took:?}");
    seconds(3600).await;

    replay.cloud.restore(&under_way);
    assert_ne!(replay.cloud.machines()[0].state, "Running");
    assert_eq!(until_running(&replay).await, took);

    replay.cloud.restore(&empty);
    assert!(replay.cloud.machines().is_empty());
    assert_eq!(replay.deploy("first", "k8s.small", "k8s-net", &[]).await, deployed, "with the same ids");
    assert_eq!(replay.cloud.calls()["deployVirtualMachine"], 2, "both were asked for");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_holds_what_was_to_go_wrong() {
    let replay = Replay::new();
    replay.cloud.inject(Fault::once("listZones", Trouble::Fail(530, 0, "broken".into())));
    let before = replay.cloud.snapshot();
    for _ in 0..2 {
        let codes = [ask(&replay, "listZones", &[]).await.0, ask(&replay, "listZones", &[]).await.0];
        assert_eq!(codes, [530, 200]);
        replay.cloud.restore(&before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_dates_machines_and_judges_signatures_and_hurries_no_job() {
    let replay = Replay::new();
    let start = replay.cloud.snapshot();
    replay.deploy("right", "k8s.small", "k8s-net", &[]).await;
    let took = until_running(&replay).await;
    let right = replay.cloud.machines()[0].created;

    for minutes in [10, -10] {
        replay.cloud.restore(&start);
        let ahead = SignedDuration::from_mins(minutes);
        let now = replay.now();
        replay.deploy("wrong", "k8s.small", "k8s-net", &[]).await;
        replay.cloud.set_clock_ahead(ahead);
        assert_eq!(until_running(&replay).await, took, "what is under way takes as long");
        let added = replay.cloud.add_machine("added", &[]);
        let listed = ask(&replay, "listVirtualMachines", &[("id", &added)]).await.1;
        let created = &listed["listvirtualmachinesresponse"]["virtualmachine"][0]["created"];
        let created = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", created.as_str().unwrap()).unwrap();
        let off = created.to_timestamp().unwrap().duration_since(replay.now()) - ahead;
        assert!(off.abs() < SignedDuration::from_secs(2), "{off}");
        assert!(replay.now() > now && right < now);

        let sign = |minutes: i64| Sign::Until(replay.now() + SignedDuration::from_mins(minutes));
        for (valid, status) in [(minutes + 1, 200), (minutes - 1, 401)] {
            let answer = replay.ask_signed(Role::User, false, "listZones", &[], sign(valid)).await;
            assert_eq!(answer.0, status, "valid for {valid} min, {minutes} min ahead");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_are_forgotten_a_day_after_they_ended() {
    let replay = Replay::new();
    let job = replay.deploy("first", "k8s.small", "k8s-net", &[]).await["jobid"].clone();
    let asked = [("jobid", job.as_str().unwrap())];
    seconds(20 * 3600).await;
    assert_eq!(ask(&replay, "queryAsyncJobResult", &asked).await.0, 200);
    seconds(5 * 3600).await;
    assert_eq!(ask(&replay, "queryAsyncJobResult", &asked).await.0, 431);
}

#[tokio::test(start_paused = true)]
async fn a_text_of_more_than_255_characters_is_refused() {
    let replay = Replay::new();
    assert_eq!(ask(&replay, "listZones", &[("keyword", &"x".repeat(255))]).await.0, 200);
    let (code, answer) = ask(&replay, "listZones", &[("keyword", &"x".repeat(256))]).await;
    let text = answer["listzonesresponse"]["errortext"].as_str().unwrap_or_default();
    assert!(code == 431 && text.contains("max allowed length 255"), "{code} {text}");
    // Every text there is, and not those that may be longer.
    for name in ["hypervisor", "bootmode", "keypair", "group"] {
        let (code, answer) = ask(&replay, "deployVirtualMachine", &[(name, &"x".repeat(256))]).await;
        let text = answer["deployvirtualmachineresponse"]["errortext"].as_str().unwrap_or_default();
        assert!(code == 431 && text.ends_with(&format!("255 for param: {name}")), "{code} {text}");
    }
    let (_, answer) = ask(&replay, "deployVirtualMachine", &[("userdata", &"x".repeat(256))]).await;
    let text = answer["deployvirtualmachineresponse"]["errortext"].as_str().unwrap_or_default();
    assert!(!text.contains("max allowed length"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_goes_wrong_for_one_account_goes_well_for_others() {
    let replay = Replay::new();
    replay.cloud.inject(Fault::of_any(1, Trouble::Fail(530, 0, "broken".into())).by("karp"));
    assert_eq!(replay.ask(Role::Root, false, "listZones", &[]).await.0, 200);
    assert_eq!(replay.ask(Role::User, false, "listZones", &[]).await.0, 530);
    assert_eq!(replay.ask(Role::User, false, "listZones", &[]).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn of_two_orders_to_destroy_a_machine_the_second_ends_too() {
    let replay = Replay::new();
    replay.cloud.configure(|settings| settings.user_may_expunge = true);
    replay.deploy("twice", "k8s.small", "k8s-net", &[]).await;
    until_running(&replay).await;
    let machine = replay.machine("twice");
    let order = [("id", machine.as_str()), ("expunge", "true")];
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let (_, body) = ask(&replay, "destroyVirtualMachine", &order).await;
        jobs.push(body["destroyvirtualmachineresponse"]["jobid"].as_str().unwrap_or_default().to_owned());
    }
    seconds(600).await;
    let mut ends = Vec::new();
    for job in &jobs {
        let (_, body) = ask(&replay, "queryAsyncJobResult", &[("jobid", job)]).await;
        ends.push(body["queryasyncjobresultresponse"]["jobstatus"].clone());
    }
    assert_eq!(ends, [1, 2], "the one that destroyed it, the one that found nothing");
}

/// What became of a machine that was ordered: its state, and the text if its job failed.
async fn outcome_of(replay: &Replay, name: &str, offering: &str, more: &[(&str, &str)]) -> (String, String) {
    let ordered = replay.deploy(name, offering, "k8s-net", more).await;
    seconds(60).await;
    let asked = [("jobid", ordered["jobid"].as_str().expect("a job"))];
    let (_, answer) = ask(replay, "queryAsyncJobResult", &asked).await;
    let job = &answer["queryasyncjobresultresponse"];
    let machines = replay.cloud.machines();
    let state = machines.into_iter().find(|machine| machine.name == name).expect("a machine").state;
    let code = job["jobresult"]["errorcode"].as_u64().map(|code| code.to_string()).unwrap_or_default();
    (state, format!("{code} {}", job["jobresult"]["errortext"].as_str().unwrap_or_default()))
}

#[tokio::test(start_paused = true)]
async fn no_host_takes_a_machine_with_more_or_faster_cores_than_its_own_however_much_is_free() {
    let replay = Replay::new();
    let host = json!({"name": "big", "cpunumber": 4, "cpuspeed": 2000, "cpuwithoverprovisioning": "64000", "memorytotal": 64i64 << 30, "memoryallocatedbytes": 0});
    replay.cloud.add("host", host);
    for (name, cores, mhz) in [("wide", 5, 100), ("fast", 1, 2001), ("right", 4, 2000)] {
        // More memory than the other hosts have.
        let offering = json!({"name": name, "cpunumber": cores, "cpuspeed": mhz, "memory": 16384});
        replay.cloud.add("serviceoffering", offering);
        let (state, text) = outcome_of(&replay, name, name, &[]).await;
        match name {
            "right" => assert_eq!(state, "Running", "{text}"),
            _ => assert!(state == "Error" && text.starts_with("533 No destination found"), "{name} {text}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_zone_whose_storage_is_full_starts_no_machine_until_a_volume_goes() {
    let replay = Replay::new();
    replay.cloud.configure(|settings| settings.user_may_expunge = true);
    let zone = replay.cloud.id_of("zone", "sim-zone-1").expect("the zone");
    replay.cloud.add_storage_pool(&zone, 30, "nvme, ssd");
    replay.cloud.add_storage_pool(&zone, 1000, "");
    replay.cloud.edit("serviceoffering", "k8s.small", |offering| offering["storagetags"] = "ssd".into());
    let large = [("rootdisksize", "20")];
    assert_eq!(outcome_of(&replay, "first", "k8s.small", &large).await.0, "Running");
    let (state, text) = outcome_of(&replay, "second", "k8s.small", &large).await;
    let id = replay.machine("second");
    assert_eq!(
        (state.as_str(), text),
        ("Error", format!("530 Unable to start a VM [{id}] due to insufficient capacity."))
    );
    // Whoever names no tags takes any pool.
    assert_eq!(outcome_of(&replay, "third", "Small Instance", &large).await.0, "Running");
    let first = replay.machine("first");
    let root = replay.machine("first");
    let (code, _) = ask(&replay, "destroyVirtualMachine", &[("id", &first), ("expunge", "true")]).await;
    assert_eq!((code, root.len()), (200, 36));
    seconds(60).await;
    assert_eq!(outcome_of(&replay, "fourth", "k8s.small", &large).await.0, "Running");
}

/// What the server says to a deployment with these parameters besides the least there is.
async fn deploy(replay: &Replay, role: Role, more: &[(&str, &str)]) -> (u16, Value) {
    let id = |kind: &str, name: &str| replay.cloud.id_of(kind, name).expect("in the catalogue");
    let mut parameters = vec![
        ("zoneid".to_owned(), id("zone", "sim-zone-1")),
        ("serviceofferingid".to_owned(), id("serviceoffering", "k8s.small")),
        ("templateid".to_owned(), id("template", "CentOS 5.6 (64-bit) no GUI (Simulator)")),
    ];
    parameters.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let (status, body) = replay.ask(role, true, "deployVirtualMachine", &parameters).await;
    (status, body["deployvirtualmachineresponse"].clone())
}

#[tokio::test(start_paused = true)]
async fn machines_are_shown_and_found_by_the_name_that_people_see() {
    let replay = Replay::new();
    let network = replay.cloud.id_of("network", "k8s-net").unwrap();
    for more in [&[("name", "first"), ("displayname", "Billing 1")][..], &[("name", "second")]] {
        let (status, answer) =
            deploy(&replay, Role::User, &[more, &[("networkids", &network)]].concat()).await;
        assert_eq!(status, 200, "{answer}");
    }
    let shown = async |keyword: &str| {
        let (_, answer) = ask(&replay, "listVirtualMachines", &[("keyword", keyword)]).await;
        let rows = answer["listvirtualmachinesresponse"]["virtualmachine"].as_array().cloned();
        let names = rows.into_iter().flatten().map(|row| row["displayname"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(shown("billing").await, ["Billing 1"]);
    assert_eq!(shown("first").await, ["Billing 1"]);
    assert_eq!(shown("second").await, ["second"], "it is called like that unless somebody says otherwise");
}

#[tokio::test(start_paused = true)]
async fn an_id_of_ones_own_is_for_root_and_for_one_machine() {
    let replay = Replay::new();
    let network = replay.cloud.id_of("network", "k8s-net").unwrap();
    let own = "5f0a7f0e-0000-4000-8000-00000000cafe";
    for (role, name, id, status, words) in [
        (Role::User, "a", own, 531, "not allowed to create/update custom id"),
        (Role::Root, "a", "mine", 431, "doesn't follow the UUID format"),
        (Role::Root, "a", own, 200, own),
        (Role::Root, "b", own, 431, "already exists"),
    ] {
        let more = [("name", name), ("customid", id), ("networkids", network.as_str())];
        let (found, answer) = deploy(&replay, role, &more).await;
        assert_eq!(found, status, "{answer}");
        assert!(answer.to_string().contains(words), "{answer}");
    }
    assert_eq!(replay.machine("a"), own);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_asked_for_is_given_to_one_machine() {
    let replay = Replay::new();
    let network = replay.cloud.id_of("network", "k8s-net").unwrap();
    replay.cloud.edit("network", "k8s-net", |network| network["cidr"] = "10.1.1.0/24".into());
    let wanted = [("iptonetworklist[0].networkid", network.as_str()), ("iptonetworklist[0].ip", "10.1.1.77")];
    let both = [&wanted[..], &[("networkids", &network)]].concat();
    let (status, answer) = deploy(&replay, Role::User, &both).await;
    assert!(status == 431 && answer["errortext"].as_str().unwrap().contains("ipToNetworkMap"), "{answer}");
    let unknown = [("iptonetworklist[0].networkid", "nowhere")];
    assert_eq!(deploy(&replay, Role::User, &unknown).await.0, 431);
    let (status, answer) = deploy(&replay, Role::User, &wanted).await;
    assert_eq!(status, 200, "{answer}");
    let machine = answer["id"].as_str().unwrap();
    let (_, listed) = ask(&replay, "listVirtualMachines", &[("id", machine)]).await;
    let nic = &listed["listvirtualmachinesresponse"]["virtualmachine"][0]["nic"][0];
    assert_eq!((&nic["networkid"], &nic["ipaddress"]), (&json!(network), &json!("10.1.1.77")));
    assert_eq!(deploy(&replay, Role::User, &wanted).await.0, 530, "somebody has it");
}

#[tokio::test(start_paused = true)]
async fn tags_of_networks_and_templates_are_listed_for_who_owns_them() {
    let replay = Replay::new();
    replay.cloud.add("template", json!({"name": "mine", "account": "karp", "tags": []}));
    for (kind, resource) in [("network", "k8s-net"), ("template", "mine")] {
        let id = replay.cloud.id_of(kind, resource).unwrap();
        let tag = [
            ("resourceids", id.as_str()),
            ("resourcetype", kind),
            ("tags[0].key", "team"),
            ("tags[0].value", kind),
        ];
        assert_eq!(ask(&replay, "createTags", &tag).await.0, 200);
    }
    seconds(10).await;
    let (_, answer) = ask(&replay, "listTags", &[("key", "team")]).await;
    let tags = answer["listtagsresponse"]["tag"].as_array().cloned().unwrap_or_default();
    let shown: Vec<_> = tags.iter().map(|tag| (tag["resourcetype"].clone(), tag["value"].clone())).collect();
    assert_eq!(shown, [(json!("Network"), json!("network")), (json!("Template"), json!("template"))]);
    let (_, answer) = ask(&replay, "listTags", &[("resourcetype", "Network"), ("key", "team")]).await;
    assert_eq!(answer["listtagsresponse"]["count"], 1, "{answer}");
    let others = replay.ask(Role::Root, false, "listTags", &[]).await.1;
    assert!(others["listtagsresponse"]["tag"].is_null(), "root's own: {others}");
}
