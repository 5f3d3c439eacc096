//! NodeClasses that could never lead to a machine say so, with the field and what to do, before one is ordered.

use std::sync::Arc;

use karpenter_api::ConditionStatus;
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_provider_cloudstack::CloudStackNodeClass;
use karpenter_provider_cloudstack::client::requests::{self, Deploy};
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

/// Reason and message of a condition that is false; nothing of one that is not.
fn refused(class: &CloudStackNodeClass, name: &str) -> (String, String) {
    let condition = class.condition(name).filter(|condition| condition.status == ConditionStatus::False);
    condition.map(|c| (c.reason().to_owned(), c.message().to_owned())).unwrap_or_default()
}

/// A class with this in its spec besides what most have.
async fn class(world: &World, fields: Value) -> Arc<CloudStackNodeClass> {
    let mut spec = spec();
    for (field, value) in fields.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    world.class("default", spec).await
}

#[tokio::test(start_paused = true)]
async fn what_a_deployment_would_be_refused_for_is_told_before_it_is_ordered() {
    let world = World::new().await;
    world.cloud.add(
        "template",
        json!({"name": "large", "size": 30i64 << 30, "created": "2026-11-16T00:00:00+0000"}),
    );
    seconds(301).await;
    for (fields, reason, words) in [
        (json!({"dataDisks": [{"offering": "k8s.datacustom"}]}), "DiskSizeMissing", "spec.dataDisks"),
        (json!({"diskOffering": "k8s.datacustom"}), "DiskSizeMissing", "spec.diskOffering"),
        (
            json!({"rootDiskSize": 29, "templateSelectorTerms": [{"name": "large"}]}),
            "RootDiskTooSmall",
            "takes 30 gigabytes",
        ),
        (json!({"securityGroups": ["default"]}), "SecurityGroupsUnsupported", "spec.securityGroups"),
        (json!({"projectID": "-1"}), "InvalidID", "spec.projectID"),
        (json!({"projectID": "my project"}), "InvalidID", "listProjects"),
        (json!({"account": "a", "domainID": "*"}), "InvalidID", "spec.domainID"),
    ] {
        let class = class(&world, fields.clone()).await;
        let (found, message) = refused(&class, "ValidationSucceeded");
        assert_eq!(found, reason, "{fields}: {message}");
        assert!(message.contains(words), "{message}");
        let error = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("not ready");
        assert!(matches!(error, ProviderError::NodeClassNotReady(_)), "{error}");
    }
    assert_eq!(world.calls("deployVirtualMachine"), 0);
    let asked = world.cloud.log();
    assert!(asked.iter().all(|entry| !entry.parameters.contains_key("projectid")), "not of all projects");
    // With what is missing it is as good as any.
    let fields = json!({"dataDisks": [{"offering": "k8s.datacustom", "size": 5}], "rootDiskSize": 30,
        "templateSelectorTerms": [{"name": "large"}]});
    assert_eq!(refused(&*class(&world, fields).await, "ValidationSucceeded"), Default::default());
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
}

#[tokio::test(start_paused = true)]
async fn the_simulated_server_refuses_what_a_real_one_refuses_of_disks_and_groups() {
    let world = World::new().await;
    let id = |kind: &str, name: &str| world.cloud.id_of(kind, name).unwrap();
    let plain = Deploy {
        name: "by-hand".into(),
        zone_id: id("zone", "sim-zone-1"),
        service_offering_id: id("serviceoffering", "k8s.small"),
        template_id: id("template", "CentOS 5.6 (64-bit) no GUI (Simulator)"),
        network_ids: vec![id("network", "k8s-net")],
        job_id: "11111111-0000-4000-8000-00000000000a".into(),
        ..Deploy::default()
    };
    let small = Deploy { root_disk_size_gb: Some(1), ..plain.clone() };
    let grouped = Deploy { security_group_ids: vec![id("securitygroup", "default")], ..plain.clone() };
    for (order, words) in [
        (&small, "is smaller than template size"),
        (&grouped, "security group feature is not enabled per zone"),
    ] {
        let refusal = world.client.call(&requests::deploy(order)).await.expect_err("refused");
        assert!(refusal.code == 431 && refusal.text.contains(words), "{refusal}");
    }
    world.client.call(&requests::deploy(&plain)).await.expect("accepted");
}

#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_look_something_up_is_told_of_with_the_field_and_what_to_do() {
    let world = World::new().await;
    for (command, fields, words) in [
        ("listSSHKeyPairs", json!({"sshKeyPairs": ["ops"]}), "spec.sshKeyPair"),
        (
            "listUserData",
            json!({"userData": null, "userDataID": "11111111-0000-4000-8000-000000000000"}),
            "spec.userDataID",
        ),
        (
            "listAffinityGroups",
            json!({"affinity": {"groupIDs": ["11111111-0000-4000-8000-000000000000"]}}),
            "spec.affinity",
        ),
        ("listDiskOfferings", json!({"dataDisks": [{"offering": "k8s.data"}]}), "spec.dataDisks"),
    ] {
        assert_eq!(class(&world, json!({})).await.condition_status("Ready"), ConditionStatus::True);
        let text = format!("The API [{command}] does not exist or is not available for the account karp.");
        world.cloud.inject(Fault::once(command, Trouble::Fail(432, 9999, text)));
        let class = class(&world, fields).await;
        let (reason, message) = refused(&class, "ValidationSucceeded");
        assert_eq!(reason, "NotPermitted", "{command}: {:?}", class.conditions());
        assert!(
            message.contains(words) && message.contains(command) && message.contains("role"),
            "{message}"
        );
        assert_eq!(class.condition_status("CredentialsReady"), ConditionStatus::True, "the keys are good");
        seconds(61).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_server_does_not_understand_is_told_of_and_what_it_fails_at_takes_nothing_away() {
    let world = World::new().await;
    let text = "Received value sim\tzone for parameter name is invalid";
    world.cloud.inject(Fault::once("listSSHKeyPairs", Trouble::Fail(431, 9999, text.into())));
    let odd = class(&world, json!({"sshKeyPair": "a\tb"})).await;
    let (reason, message) = refused(&odd, "ValidationSucceeded");
    assert_eq!(reason, "NotUnderstood", "{:?}", odd.conditions());
    assert!(message.contains("spec.sshKeyPair") && message.contains(text), "{message}");
    // A failure is no verdict: what was ready stays so, and an event says what failed.
    let mut ready = (*class(&world, json!({})).await).clone();
    seconds(301).await;
    if let Some(spec) = &mut ready.spec {
        spec.ssh_key_pairs = vec!["ops".into()];
    }
    let hidden = "Internal error executing command, please contact your system administrator";
    world.cloud.inject(Fault::times("listSSHKeyPairs", 20, Trouble::Fail(530, 9999, hidden.into())));
    world.provider.resolve_status(&mut ready).await.expect_err("it fails");
    assert_eq!(ready.condition_status("Ready"), ConditionStatus::True, "{:?}", ready.conditions());
    let told = world.told("LookupFailed");
    assert!(told.iter().any(|text| text.contains("listSSHKeyPairs")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_is_enabled_again_is_used_within_a_minute_or_two() {
    let world = World::new().await;
    let set = |state: &str| {
        let state = Value::from(state);
        world.cloud.edit("zone", "sim-zone-1", move |zone| zone["allocationstate"] = state.clone());
    };
    set("Disabled");
    seconds(3601).await;
    let away = class(&world, json!({})).await;
    assert_eq!(refused(&away, "ZonesReady").0, "ZoneValidationFailed", "{:?}", away.conditions());
    seconds(240).await;
    set("Enabled");
    seconds(61).await;
    let back = class(&world, json!({})).await;
    assert_eq!(back.condition_status("Ready"), ConditionStatus::True, "{:?}", back.conditions());
    // One that is named before it exists is found, too, and is not asked for all the time.
    assert_eq!(
        refused(&*class(&world, json!({"zone": "zone-02"})).await, "ZonesReady").0,
        "ZoneValidationFailed"
    );
    let asked = world.calls("listZones");
    for _ in 0..10 {
        class(&world, json!({"zone": "zone-02"})).await;
    }
    assert!(world.calls("listZones") <= asked + 1, "{}", world.calls("listZones") - asked);
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_there_and_not_ready_is_told_from_one_that_is_not_there() {
    let world = World::new().await;
    world.cloud.add("template", json!({"name": "coming", "isready": false}));
    seconds(301).await;
    let message = async |name: &str| {
        let wanted = json!({"templateSelectorTerms": [{"name": name}]});
        refused(&*class(&world, wanted).await, "TemplatesReady").1
    };
    let (coming, absent) = (message("coming").await, message("absent").await);
    assert!(coming.contains("\"coming\"") && coming.contains("not ready"), "{coming}");
    assert!(absent.contains("select no template"), "{absent}");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_was_missing_is_found_within_a_minute() {
    let world = World::new().await;
    let wanted = json!({"templateSelectorTerms": [{"name": "later"}]});
    assert_eq!(
        refused(&*class(&world, wanted.clone()).await, "TemplatesReady").0,
        "TemplateResolutionFailed"
    );
    world.cloud.add("template", json!({"name": "later"}));
    seconds(61).await;
    let found = class(&world, wanted).await;
    assert_eq!(found.condition_status("Ready"), ConditionStatus::True, "{:?}", found.conditions());
}
