//! Garbage collection, complete lists and drift: scenarios 15, 20 and 23.

use std::time::Duration;

use karpenter_api::ConditionStatus;
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::requests::{self, Deploy};
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use karpenter_sim::cloudstack::settings::Throttle;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cloud::{World, seconds, spec};

#[tokio::test(start_paused = true)]
async fn scenario_15_exactly_our_orphans_go_after_the_grace_the_oldest_first() {
    let world = World::new().await;
    let others = Naming::new("karpenter", "other");
    let mut orphans = Vec::new();
    for i in 0..3 {
        orphans.push(world.stray(&format!("np-{i}")));
        seconds(1).await;
    }
    let other_tag = ("kubernetes.io/cluster/other", "owned");
    let managed = ("karpenter.sh/managed-by", "karpenter");
    for i in 0..2 {
        world.cloud.add_machine(&format!("{}np-{i}", others.prefix()), &[other_tag, managed]);
    }
    world.cloud.add_machine("karpenter-x", &[]);
    // Of a name like ours, but somebody says whose it is.
    world.tagged("np-theirs", &[other_tag]);
    world.node("np-wanted").await;
    assert!(world.round().await.destroyed.is_empty(), "too young");
    seconds(310).await;
    assert_eq!(world.round().await.destroyed, orphans);
    let told = world.told("OrphanDeleted");
    assert_eq!(told.len(), 3, "{told:?}");
    for (id, message) in orphans.iter().zip(&told) {
        assert!(message.contains(id), "in order, with an event each: {told:?}");
    }
    seconds(30).await;
    let mut left: Vec<String> = world.live().into_iter().map(|machine| machine.name).collect();
    left.sort();
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.contains(&"karpenter-x".to_owned()));
    assert!(world.round().await.destroyed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_while_the_server_cannot_say_what_there_is() {
    let world = World::new().await;
    world.stray("np-a");
    seconds(400).await;
    world.cloud.inject(Fault::times("listVirtualMachines", 8, Trouble::Proxy(502)));
    assert!(world.provider.round().await.is_err());
    assert!(world.provider.list().await.is_err());
    assert_eq!(world.live().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn scenario_20_twelve_hundred_machines_are_listed_completely_or_not_at_all() {
    let world = World::new().await;
    let tags = [("kubernetes.io/cluster/test", "owned"), ("karpenter.sh/managed-by", "karpenter")];
    let ids: Vec<String> = (0..1200).map(|i| world.tagged(&format!("np-{i}"), &tags)).collect();
    let listing = world.provider.list();
    tokio::pin!(listing);
    // Churn between the pages: machines of the first page go while the list is read.
    let mut gone = 0;
    let listed = loop {
        tokio::select! {
            biased;
            listed = &mut listing => break listed.expect("a list"),
            () = tokio::time::sleep(std::time::Duration::from_millis(70)) => {
                world.cloud.expunge_machine(&ids[gone]);
                gone += 1;
            }
        }
    };
    let mut listed: Vec<String> = listed.into_iter().filter_map(|claim| claim.status?.provider_id).collect();
    let count = listed.len();
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), count, "none twice");
    for id in &ids[gone..] {
        assert!(listed.contains(&format!("external-cloudstack://{id}")), "{id} is there and was not listed");
    }
    assert!(gone > 3);
    world.cloud.inject(Fault::times("listVirtualMachines", 4, Trouble::Fail(530, 0, "x".into())).after(1));
    assert!(world.provider.list().await.is_err(), "half a list is none");
}

#[tokio::test(start_paused = true)]
async fn rows_that_are_on_two_pages_are_one_machine_each() {
    let world = World::new().await;
    world.cloud.configure(|settings| (settings.page_size, settings.rows_repeated) = (2, 1));
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(world.node(&format!("np-{number}")).await.provider_id);
    }
    let listed = world.provider.list().await.expect("a list");
    let mut listed: Vec<String> = listed.into_iter().filter_map(|claim| claim.status?.provider_id).collect();
    listed.sort();
    ids.sort();
    assert_eq!(listed, ids);
    // Whoever looks for what it has of a NodeClaim finds one machine, and none too many.
    let again = world.launch_by(&world.another(2), &world.claim("np-2", json!({"cpu": "1"}))).await;
    assert!(ids.contains(&again.expect("its machine").provider_id));
    seconds(400).await;
    assert_eq!(world.round().await.destroyed, Vec::<String>::new());
    assert_eq!((world.live().len(), world.calls("deployVirtualMachine")), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn lists_of_many_pages_are_read_twice_only_where_what_they_lack_counts_as_not_there() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.page_size = 2);
    let mut id = String::new();
    for number in 0..5 {
        id = world.node(&format!("np-{number}")).await.provider_id;
    }
    seconds(60).await;
    let asked = || world.calls("listVirtualMachines");
    let before = asked();
    world.provider.get(&id).await.expect("there");
    assert_eq!(asked() - before, 3);
    let before = asked();
    assert_eq!(world.provider.list().await.expect("a list").len(), 5);
    assert_eq!(asked() - before, 2 * 3, "by tag and by name");
    let before = asked();
    world.cloud.inject(Fault::times("deployVirtualMachine", 10, Trouble::Refuse));
    world.launch(&world.claim("np-new", json!({"cpu": "1"}))).await.expect_err("refused");
    assert_eq!(asked() - before, 2 * 3, "whether it has a machine");
}

#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_has_what_was_deleted_and_lacks_what_is_new() {
    let world = World::new().await;
    world.node("np-old").await;
    let backup = world.cloud.snapshot();
    world.delete(&world.current("np-old")).await.expect("deleted");
    world.cluster.claims.lock().unwrap().remove("np-old");
    let new = world.node("np-new").await;
    world.cloud.restore(&backup);
    let error = world.provider.get(&new.provider_id).await.expect_err("nobody knows it");
    assert!(error.is_not_found(), "{error}");
    let back = world.machine_of("np-old").id;
    seconds(400).await;
    assert_eq!(world.round().await.destroyed, [back]);
}

#[tokio::test(start_paused = true)]
async fn scenario_23_drift_has_the_right_reasons_and_lost_tags_are_only_repaired() {
    let world = World::new().await;
    let drift = async |world: &World| {
        seconds(301).await;
        world.provider.is_drifted(&world.current("np-a")).await.expect("known")
    };
    world.node("np-a").await;
    assert_eq!(drift(&world).await, None);
    let id = world.live()[0].id.clone();

    world.cloud.tag_machine(&id, "karpenter.sh/nodepool", None);
    assert_eq!(drift(&world).await, None, "a tag is no drift");
    world.round().await;
    seconds(5).await;
    assert_eq!(world.live()[0].tags["karpenter.sh/nodepool"], "pool", "but repaired");

    let small = world.cloud.id_of("serviceoffering", "k8s.small").unwrap();
    world.cloud.rescale_machine(&id, &world.cloud.id_of("serviceoffering", "k8s.medium").unwrap());
    assert_eq!(drift(&world).await.as_deref(), Some("VMDrift"));
    world.cloud.rescale_machine(&id, &small);

    // A customised offering stays the same when its machine is given more.
    let as_launched = |key: &str, value: &str| {
        let mut claim = (*world.current("np-a")).clone();
        claim
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert(format!("karpenter.k8s.cloudstack/{key}"), value.into());
        claim
    };
    for (key, value) in [("instance-cpu", "64"), ("instance-memory", "64")] {
        let reason = world.provider.is_drifted(&as_launched(key, value)).await.expect("known");
        assert_eq!(reason.as_deref(), Some("VMDrift"), "{key}");
    }

    world.cloud.unplug_machine(&id);
    assert_eq!(drift(&world).await.as_deref(), Some("NetworkDrift"));

    world.node("np-b").await;
    world
        .cloud
        .add("template", json!({"name": "CentOS 7 (Simulator)", "created": "2026-11-15T09:00:00+0000"}));
    seconds(301).await;
    let reason = world.provider.is_drifted(&world.current("np-b")).await.expect("known");
    assert_eq!(reason.as_deref(), Some("TemplateDrift"));

    let mut changed = spec();
    changed["userData"] = "#!/bin/bash\ntrue\n".into();
    world.class("default", changed).await;
    let reason = world.provider.is_drifted(&world.current("np-b")).await.expect("known");
    assert_eq!(reason.as_deref(), Some("NodeClassDrift"));
    // A claim of another version of the hash is not compared: no mass drift with a new release.
    let mut old = (*world.current("np-b")).clone();
    let version = "karpenter.k8s.cloudstack/nodeclass-hash-version".to_owned();
    old.metadata.annotations.as_mut().unwrap().insert(version, "v0".into());
    assert_ne!(world.provider.is_drifted(&old).await.expect("known").as_deref(), Some("NodeClassDrift"));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_machine_that_was_deleted_outside_is_reported_gone_at_once() {
    let world = World::new().await;
    let instance = world.node("np-a").await;
    seconds(30).await;
    assert!(world.provider.get(&instance.provider_id).await.is_ok());
    world.cloud.expunge_machine(&world.live()[0].id);
    assert!(world.provider.get(&instance.provider_id).await.expect_err("gone").is_not_found());
}

#[tokio::test(start_paused = true)]
async fn a_class_with_a_project_that_is_not_there_keeps_nothing_else_from_being_looked_after() {
    let world = World::new().await;
    let instance = world.node("np-a").await;
    let orphan = world.stray("np-x");
    let mut wrong = spec();
    wrong["projectID"] = "11111111-0000-4000-8000-000000000000".into();
    world.class("wrong", wrong).await;
    seconds(310).await;
    assert_eq!(world.provider.list().await.expect("a list").len(), 2);
    world.provider.get(&instance.provider_id).await.expect("there");
    let absent = "external-cloudstack://22222222-0000-4000-8000-000000000000";
    assert!(world.provider.get(absent).await.expect_err("nowhere").is_not_found());
    assert_eq!(world.round().await.destroyed, [orphan]);
    // A NodeClaim that may be there is another matter: what cannot be asked is not gone.
    let mut claim = (*world.current("np-a")).clone();
    claim.spec.node_class_ref.name = "wrong".into();
    claim.metadata.annotations.as_mut().unwrap().remove("karpenter.k8s.cloudstack/scope");
    world.cluster.claims.lock().unwrap().insert("np-a".into(), claim.into());
    world.provider.list().await.expect_err("half a list is none");
    assert!(!world.provider.get(absent).await.expect_err("nobody knows").is_not_found());
}

#[tokio::test(start_paused = true)]
async fn orphans_are_listed_without_touching_them_and_young_wanted_or_foreign_machines_are_none() {
    let world = World::new().await;
    let orphan = world.stray("np-old");
    world.node("np-wanted").await;
    world.cloud.add_machine("karpenter-x", &[]);
    seconds(310).await;
    world.stray("np-young");
    let listed: Vec<String> =
        world.provider.orphans().await.expect("a list").0.into_iter().map(|machine| machine.id).collect();
    assert_eq!(listed, [orphan]);
    assert_eq!(world.live().len(), 4, "it only looks");
    world.cloud.inject(Fault::times("listVirtualMachines", 8, Trouble::Proxy(502)));
    let (_, unseen) = world.provider.orphans().await.expect("a list");
    assert_eq!(unseen.len(), 1, "what cannot be found out is no empty list");
}

#[tokio::test(start_paused = true)]
async fn a_root_disk_that_somebody_made_larger_is_drift_once_others_are_as_ordered() {
    let world = World::new().await;
    let mut sized = spec();
    sized["rootDiskSize"] = 20.into();
    world.class("default", sized).await;
    for name in ["np-a", "np-b"] {
        world.node(name).await;
    }
    let drift = async |name: &str| {
        seconds(601).await;
        world.provider.is_drifted(&world.current(name)).await.expect("known")
    };
    assert_eq!(drift("np-a").await, None);
    let machine = world.machine_of("np-a");
    world.cloud.resize_root_disk(&machine.id, 50);
    assert_eq!(drift("np-a").await.as_deref(), Some("VMDrift"));
    assert_eq!(drift("np-b").await, None);
    let asked = world.cloud.log().into_iter().filter(|entry| entry.command == "listVolumes").count();
    assert_eq!(asked, 3, "one list answers for all machines for ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_root_disk_that_somebody_gave_another_offering_is_drift_once_others_are_as_ordered() {
    let world = World::new().await;
    let wanted = world.cloud.add("diskoffering", json!({"name": "fast"}));
    let other = world.cloud.add("diskoffering", json!({"name": "slow"}));
    seconds(301).await;
    let mut fast = spec();
    fast["rootDiskOffering"] = "fast".into();
    world.class("default", fast).await;
    for name in ["np-a", "np-b"] {
        world.node(name).await;
    }
    let deployed = world.cloud.log().into_iter().find(|entry| entry.command == "deployVirtualMachine");
    let deployed = deployed.expect("a deployment").parameters;
    assert_eq!(deployed["overridediskofferingid"], wanted);
    let drift = async |name: &str| {
        seconds(601).await;
        world.provider.is_drifted(&world.current(name)).await.expect("known")
    };
    assert_eq!(drift("np-a").await, None);
    let machine = world.machine_of("np-a");
    world.cloud.move_root_disk(&machine.id, &other);
    assert_eq!(drift("np-a").await.as_deref(), Some("VMDrift"));
    assert_eq!(drift("np-b").await, None);
    // Somebody else's machine with such a disk says nothing of what the server makes for this NodeClass.
    world.cloud.expunge_machine(&world.machine_of("np-b").id);
    let theirs = Deploy {
        name: "theirs".to_owned(),
        zone_id: deployed["zoneid"].clone(),
        service_offering_id: deployed["serviceofferingid"].clone(),
        template_id: deployed["templateid"].clone(),
        network_ids: vec![deployed["networkids"].clone()],
        root_disk_offering_id: Some(wanted),
        job_id: "11111111-0000-4000-8000-000000000000".to_owned(),
        ..Deploy::default()
    };
    world.client.call(&requests::deploy(&theirs)).await.expect("taken");
    assert_eq!(drift("np-a").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_class_says_which_of_its_machines_cannot_be_deleted_and_is_ready_all_the_same() {
    let world = World::new().await;
    let says = async || {
        let class = world.class("default", spec()).await;
        assert_eq!(class.condition_status("Ready"), ConditionStatus::True);
        let condition = class.condition("MachinesDeletable").expect("a condition");
        (condition.status.as_str().to_owned(), condition.reason().to_owned(), condition.message().to_owned())
    };
    world.node("np-a").await;
    world.node("np-b").await;
    seconds(60).await;
    assert_eq!(says().await.0, "True");
    let id = world.machine_of("np-b").id;
    // Found by the round, and by who wants it to go.
    world.cloud.protect_machine(&id, true);
    world.round().await;
    let (status, reason, message) = says().await;
    assert_eq!((status.as_str(), reason.as_str()), ("False", "DeleteProtected"));
    assert!(message.starts_with("1 ") && message.contains("np-b"), "{message}");
    assert!(message.contains("deleteprotection=false"), "{message}");
    world.cloud.protect_machine(&id, false);
    world.round().await;
    assert_eq!(says().await.0, "True");
    world.cloud.protect_machine(&id, true);
    world.provider.delete(&world.current("np-b")).await.expect("ordered");
    seconds(10).await;
    world.provider.delete(&world.current("np-b")).await.expect_err("protected");
    assert_eq!(says().await.0, "False");
    world.cloud.protect_machine(&id, false);
    world.delete(&world.current("np-b")).await.expect("gone");
    assert_eq!(says().await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_protected_machine_is_told_of_once_and_its_node_left_alone_until_it_is_not() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(60).await;
    let claim = world.current("np-a");
    let id = world.live()[0].id.clone();
    world.round().await;
    assert_eq!(world.provider.disruption_hold(&claim), None);
    world.cloud.protect_machine(&id, true);
    for _ in 0..2 {
        world.round().await;
    }
    let hold = world.provider.disruption_hold(&claim).expect("held");
    assert!(hold.reason.contains("deleteprotection") && !hold.leaving, "{hold:?}");
    let told = world.told("DeleteProtected");
    assert!(told.len() == 1 && told[0].contains("deleteprotection=false"), "{told:?}");
    world.cloud.protect_machine(&id, false);
    world.round().await;
    assert_eq!(world.provider.disruption_hold(&claim), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_machine_is_backed_up_or_out_of_the_servers_sight_is_left_alone_until_it_runs() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(60).await;
    let id = world.live()[0].id.clone();
    let held = async || {
        let round = world.round().await;
        assert!(round.destroyed.is_empty() && round.started.is_empty(), "{round:?}");
        world.provider.disruption_hold(&world.current("np-a")).map(|hold| hold.reason)
    };
    assert_eq!(held().await, None);
    world.cloud.back_up_machine(&id);
    assert!(held().await.is_some_and(|reason| reason.contains("BackingUp")));
    world.cloud.lose_sight_of_machine(&id);
    assert!(held().await.is_some_and(|reason| reason.contains("Unknown")));
    let class = world.class("default", spec()).await;
    assert_eq!(class.condition_status("MachinesDeletable"), ConditionStatus::True, "nobody protects it");
    world.cloud.find_machine_again(&id);
    assert_eq!(held().await, None);
}

#[tokio::test(start_paused = true)]
async fn jobs_under_way_and_ended_are_counted_and_forgotten_with_their_machines() {
    let world = World::new().await;
    let metric = |line: &str| {
        let page = world.environment.registry.encode();
        let found = page.lines().find_map(|l| l.strip_prefix(&format!("karpenter_cloudstack_{line} ")));
        found.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
    };
    world.node("np-a").await;
    world.provider.look_at_launches().await.expect("looked");
    assert_eq!(metric(r#"async_jobs{credentials="",state="deploying"}"#), 1.0);
    seconds(60).await;
    world.provider.look_at_launches().await.expect("looked");
    assert_eq!(metric(r#"async_jobs{credentials="",state="deploying"}"#), 0.0);
    assert_eq!(metric(r#"async_jobs_ended_total{job="deploy",result="succeeded"}"#), 1.0);
    world.cluster.claims.lock().unwrap().clear();
    seconds(310).await;
    assert_eq!(world.round().await.destroyed.len(), 1);
    world.provider.look_at_launches().await.expect("looked");
    assert_eq!(metric(r#"async_jobs{credentials="",state="destroying"}"#), 1.0);
    seconds(60).await;
    world.round().await;
    world.provider.look_at_launches().await.expect("looked");
    assert_eq!(
        metric(r#"async_jobs{credentials="",state="destroying"}"#),
        0.0,
        "nobody asks after an orphan"
    );
    assert_eq!(metric(r#"async_jobs_ended_total{job="destroy",result="succeeded"}"#), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_found_by_its_id_whatever_its_name_and_listed_as_its_claim_writes_it() {
    let world = World::new().await;
    let renamed = world.cloud.add_machine("somebody-renamed-it", &[]);
    let found = world.provider.get(&format!("external-cloudstack://{renamed}")).await.expect("there");
    assert_eq!(found.status.and_then(|status| status.node_name).as_deref(), Some("somebody-renamed-it"));
    world.node("np-a").await;
    let mut claim = (*world.current("np-a")).clone();
    let id = world.machine_of("np-a").id;
    let written = Some(format!("cloudstack:///{id}"));
    claim.status.as_mut().unwrap().provider_id.clone_from(&written);
    world.cluster.claims.lock().unwrap().insert("np-a".into(), std::sync::Arc::new(claim));
    let listed = world.provider.list().await.expect("a list");
    let ids: Vec<_> =
        listed.into_iter().map(|claim| claim.status.and_then(|status| status.provider_id)).collect();
    assert_eq!(ids, [written]);
}

#[tokio::test(start_paused = true)]
async fn orphans_that_cannot_be_deleted_keep_no_other_from_going() {
    let world = World::new().await;
    for i in 0..12 {
        let id = world.stray(&format!("np-kept-{i}"));
        world.cloud.protect_machine(&id, true);
        seconds(1).await;
    }
    let orphan = world.stray("np-x");
    seconds(310).await;
    assert_eq!(world.round().await.destroyed, [orphan]);
    assert_eq!(world.calls("destroyVirtualMachine"), 1, "what is protected is not asked for");
    seconds(60).await;
    assert_eq!(world.live().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_may_not_be_expunged_is_destroyed() {
    let world = World::new().await;
    // They said so when they were asked first.
    world.cloud.configure(|settings| settings.user_may_expunge = true);
    seconds(601).await;
    world.node("np-a").await;
    world.delete(&world.current("np-a")).await.expect("gone");
    world.cloud.configure(|settings| settings.user_may_expunge = false);
    for i in 0..11 {
        world.stray(&format!("np-{i}"));
        seconds(1).await;
    }
    seconds(310).await;
    for _ in 0..3 {
        world.round().await;
        seconds(60).await;
    }
    assert!(world.live().is_empty(), "{:?}", world.live());
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_gone_holds_up_nothing_elsewhere_and_its_machines_are_not_taken_for_gone() {
    let world = World::new().await;
    let (project, class) = world.project();
    world.class("default", class).await;
    let inside = world.node("np-inside").await;
    world.class("default", spec()).await;
    world.node("np-outside").await;
    let orphan = world.stray("np-x");
    seconds(310).await;
    world.cloud.remove_project(&project);
    let listed = world.provider.list().await.expect("a list");
    let ids: Vec<String> = listed.into_iter().filter_map(|claim| claim.status?.provider_id).collect();
    assert!(ids.contains(&inside.provider_id) && ids.len() == 3, "{ids:?}");
    let error = world.provider.get(&inside.provider_id).await.expect_err("nobody knows");
    assert!(!error.is_not_found(), "{error}");
    assert_eq!(world.round().await.destroyed, [orphan]);
    let error = world.provider.delete(&world.current("np-inside")).await.expect_err("nobody knows");
    assert!(!error.is_not_found() && error.to_string().contains("remove the annotation"), "{error}");
    world.delete(&world.current("np-outside")).await.expect("gone");
    // Whose machine it is nobody can say any more: it may be anywhere, and is where it is found.
    let mut somewhere = (*world.claim("np-somewhere", json!({"cpu": "1"}))).clone();
    world.launch(&somewhere).await.expect("a machine");
    somewhere.spec.node_class_ref.name = "gone".into();
    world.provider.delete(&somewhere).await.expect("found, and going");
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_somebody_wants_by_the_time_it_would_go_stays() {
    let world = World::new().await;
    world.stray("np-a");
    seconds(310).await;
    let slow = Trouble::Delay(std::time::Duration::from_secs(20));
    world.cloud.inject(Fault::once("listVirtualMachines", slow));
    let meanwhile = async {
        seconds(5).await;
        world.claim("np-a", json!({"cpu": "1"}))
    };
    let (round, _) = futures_util::future::join(world.provider.round(), meanwhile).await;
    assert!(round.expect("a round").destroyed.is_empty());
    assert_eq!(world.live().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_in_a_project_that_only_one_class_names_is_known_until_it_is_gone() {
    let world = World::new().await;
    let (_, inside) = world.project();
    let class = world.class("default", inside.clone()).await;
    let left = async || world.provider.left_behind(&class).await.map(|machines| machines.len());
    assert_eq!(left().await, Ok(0));
    world.node("np-a").await;
    // As if its answer had never come.
    world.cluster.claims.lock().unwrap().clear();
    assert_eq!(left().await, Ok(1));
    world.class("second", inside).await;
    assert_eq!(left().await, Ok(0), "another leads there");
    world.cluster.classes.lock().unwrap().remove("second");
    world.cloud.inject(Fault::times("listVirtualMachines", 4, Trouble::Proxy(502)));
    assert!(left().await.is_err(), "nobody knows");
    seconds(310).await;
    assert_eq!(world.round().await.destroyed.len(), 1);
    seconds(60).await;
    assert_eq!(left().await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_project_from_which_a_machine_may_still_come_is_not_said_to_be_empty() {
    let world = World::new().await;
    let (_, inside) = world.project();
    let class = world.class("default", inside).await;
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::DropRequest));
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("no answer");
    world.cluster.claims.lock().unwrap().clear();
    assert!(world.provider.left_behind(&class).await.is_err());
    seconds(601).await;
    assert_eq!(world.provider.left_behind(&class).await.map(|machines| machines.len()), Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_refuses_says_nothing_of_a_project() {
    for status in [401, 403, 407] {
        let world = World::new().await;
        let (_, inside) = world.project();
        let class = world.class("default", inside).await;
        world.node("np-a").await;
        // As if its answer had never come.
        world.cluster.claims.lock().unwrap().clear();
        seconds(310).await;
        world.cloud.inject(Fault::times("listVirtualMachines", 1000, Trouble::Proxy(status)));
        assert!(world.provider.left_behind(&class).await.is_err(), "{status}");
        assert!(world.provider.round().await.is_err(), "{status}");
        assert!(world.provider.list().await.is_err(), "{status}");
        world.cloud.heal();
        assert_eq!(world.provider.left_behind(&class).await.map(|machines| machines.len()), Ok(1));
        assert_eq!(world.round().await.destroyed.len(), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_project_is_closed_only_what_may_be_in_it_is_remembered() {
    let world = World::new().await;
    let (project, class) = world.project();
    world.class("default", class).await;
    world.node("np-inside").await;
    world.class("default", spec()).await;
    world.node("np-outside").await;
    seconds(60).await;
    for machine in world.live() {
        world.cloud.protect_machine(&machine.id, true);
    }
    world.round().await;
    let held = |name: &str| world.provider.disruption_hold(&world.current(name)).is_some();
    assert!(held("np-inside") && held("np-outside"));
    let outside = world.machine_of("np-outside");
    world.cloud.expunge_machine(&outside.id);
    world.cloud.remove_project(&project);
    world.round().await;
    assert!(held("np-inside"), "nobody knows better");
    assert!(!held("np-outside"), "it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_is_there_in_other_letters_keeps_no_other_from_being_repaired() {
    let world = World::new().await;
    let mut class = spec();
    class["tags"] = json!({"Team": "web"});
    world.class("default", class).await;
    world.node("np-a").await;
    seconds(60).await;
    let id = world.live()[0].id.clone();
    world.cloud.tag_machine(&id, "Team", None);
    world.cloud.tag_machine(&id, "team", Some("shop"));
    world.cloud.tag_machine(&id, "karpenter.sh/nodepool", None);
    world.round().await;
    seconds(5).await;
    let tags = &world.live()[0].tags;
    assert_eq!(tags["karpenter.sh/nodepool"], "pool");
    assert!(tags["team"] == "shop" && !tags.contains_key("Team"), "{tags:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_renamed_is_looked_after_like_any_other() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(130).await;
    let id = world.machine_of("np-a").id;
    world.cloud.rename_machine(&id, "billing");
    seconds(31).await;
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    world.cloud.stop_machine(&id);
    world.round().await;
    seconds(130).await;
    assert_eq!(world.round().await.started, [id]);
    // Once nobody wants it, only its name could tell that it is not somebody else's.
    world.cluster.claims.lock().unwrap().clear();
    seconds(400).await;
    assert!(world.round().await.destroyed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn machines_are_looked_after_though_the_server_does_not_say_what_it_is() {
    let world = World::new().await;
    let stray = world.stray("np-a");
    world.cloud.inject(Fault::times(
        "listCapabilities",
        u64::MAX,
        Trouble::Fail(431, 4350, "Cannot parse null string".into()),
    ));
    let stop = CancellationToken::new();
    let looking = world.provider.look_after(stop.clone());
    let day = async {
        seconds(600).await;
        stop.cancel();
    };
    tokio::join!(looking, day);
    assert!(world.live().iter().all(|machine| machine.id != stray), "{:?}", world.live());
}

#[tokio::test(start_paused = true)]
async fn disks_and_groups_left_in_a_project_that_only_one_class_names_are_known_and_removed_too() {
    let world = World::new().await;
    let (_, mut inside) = world.project();
    inside["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    inside["affinity"] = json!({"type": "softHostAntiAffinity"});
    let class = world.class("inside", inside).await;
    let mut claim = (*world.claim("np-a", json!({"cpu": "1"}))).clone();
    claim.spec.node_class_ref.name = "inside".into();
    world.launch(&claim).await.expect("a machine");
    seconds(60).await;
    world.round().await;
    // Somebody removes the machine by hand, its NodeClaim goes, and its NodePool is of another NodeClass by now.
    world.cloud.expunge_machine(&world.machine_of("np-a").id);
    world.cluster.claims.lock().unwrap().remove("np-a");
    world.node("np-b").await;
    let left = async || world.provider.left_behind(&class).await.expect("known");
    let disks = left().await;
    assert!(disks.len() == 1 && disks[0].starts_with("data disk "), "{disks:?}");
    seconds(310).await;
    assert_eq!(world.round().await.disks.len(), 1);
    seconds(60).await;
    assert_eq!(world.cloud.affinity_groups().len(), 1, "a NodeClaim of that NodePool is there");
    let groups = left().await;
    assert!(groups.len() == 1 && groups[0].starts_with("affinity group "), "{groups:?}");
    seconds(10).await;
    assert_eq!(left().await, Vec::<String>::new());
    assert!(world.cloud.affinity_groups().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_class_does_not_wait_for_disks_and_groups_that_its_keys_may_not_remove() {
    for code in [530, 531, 432] {
        let world = World::new().await;
        let (_, mut inside) = world.project();
        inside["dataDisks"] = json!([{"offering": "k8s.data20"}]);
        inside["affinity"] = json!({"type": "softHostAntiAffinity"});
        let class = world.class("inside", inside).await;
        let mut claim = (*world.claim("np-a", json!({"cpu": "1"}))).clone();
        claim.spec.node_class_ref.name = "inside".into();
        world.launch(&claim).await.expect("a machine");
        seconds(60).await;
        world.round().await;
        // Somebody removes the machine by hand, and its NodeClaim goes.
        world.cloud.expunge_machine(&world.machine_of("np-a").id);
        world.cluster.claims.lock().unwrap().remove("np-a");
        for command in ["deleteVolume", "deleteAffinityGroup"] {
            let text =
                format!("The API [{command}] does not exist or is not available for the account karp.");
            world.cloud.inject(Fault::times(command, 1000, Trouble::Fail(code, 9999, text)));
        }
        seconds(310).await;
        let mut left = Vec::new();
        for _ in 0..5 {
            world.round().await;
            seconds(60).await;
            left = world.provider.left_behind(&class).await.expect("known");
        }
        let told = world.told("DeleteRefused");
        if code == 530 {
            assert!(left.len() == 1 && told.is_empty(), "that may pass: {left:?} {told:?}");
            continue;
        }
        assert_eq!(left, Vec::<String>::new(), "{code}");
        let tells = |command: &str| told.iter().filter(|text| text.contains(command)).count();
        assert_eq!([tells("deleteVolume"), tells("deleteAffinityGroup")], [1, 1], "once each: {told:?}");
        let asked = world.calls("deleteVolume");
        assert_eq!(asked, 1, "{code}: and it is not asked for in every round");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_calls_that_is_set_while_everything_runs_is_kept_to() {
    let world = World::new().await;
    let stop = CancellationToken::new();
    let life = async {
        seconds(60).await;
        let throttle = Throttle { max: 200, interval: Duration::from_secs(100), counts_twice: true };
        world.cloud.configure(|settings| settings.throttle = Some(throttle));
        seconds(13 * 60).await;
        let begun = tokio::time::Instant::now();
        for _ in 0..60 {
            world.client.call(&requests::list_zones()).await.expect("taken");
        }
        assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
        stop.cancel();
    };
    tokio::join!(world.provider.look_after(stop.clone()), life);
}
