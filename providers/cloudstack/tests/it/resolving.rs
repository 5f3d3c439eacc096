//! NodeClasses: what they come to, and what they say when it is nothing. Scenario 2.

use karpenter_api::ConditionStatus;
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::CloudStackNodeClass;
use karpenter_provider_cloudstack::client::Session;
use karpenter_provider_cloudstack::client::signature::Credentials;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

/// A NodeClass as users of the Go provider have it.
const NODE_CLASS: &str = include_str!("../../../../conformance/cloudstack/nodeclass.yaml");

fn condition<'a>(class: &'a CloudStackNodeClass, name: &str) -> (&'static str, &'a str, &'a str) {
    let condition = class.condition(name).unwrap_or_else(|| panic!("{name} of {:?}", class.status));
    (condition.status.as_str(), condition.reason(), condition.message())
}

#[tokio::test(start_paused = true)]
async fn scenario_2_the_manifest_users_have_becomes_ready_with_all_conditions() {
    let world = World::new().await;
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["name"] = "zone-01".into());
    world.cloud.edit("network", "k8s-net", |network| network["name"] = "k8s-network".into());
    world.cloud.add("template", json!({"name": "ubuntu-22.04-k8s"}));
    seconds(3700).await;
    let manifest: serde_json::Value = serde_saphyr::from_str(NODE_CLASS).expect("YAML");
    let class = world.class("default", manifest["spec"].clone()).await;
    for name in [
        "Ready",
        "ValidationSucceeded",
        "CredentialsReady",
        "ZonesReady",
        "NetworksReady",
        "NetworkReady",
        "TemplatesReady",
        "ServiceOfferingsReady",
        "AffinityReady",
        "QuotaAvailable",
        "MachinesDeletable",
    ] {
        assert_eq!(
            class.condition_status(name),
            ConditionStatus::True,
            "{name}: {:?}",
            class.condition(name)
        );
    }
    let status = class.status.as_ref().unwrap();
    assert_eq!(status.service_offerings.as_ref().unwrap()[0].name, "k8s.medium");
    assert_eq!(status.networks.as_ref().unwrap()[0].name, "k8s-network");
    let found = status.service_offerings.as_ref().unwrap().len();
    assert_eq!(status.offerings_available, Some(format!("{found}/{found}")), "a column of kubectl");
    let zones: Vec<&str> = status.zones.iter().flatten().map(|zone| zone.name.as_str()).collect();
    assert_eq!(status.zone_names, Some(zones.join(",")));
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a node of it");
}

#[tokio::test(start_paused = true)]
async fn scenario_2_what_selects_nothing_is_not_ready_with_field_and_remedy() {
    let world = World::new().await;
    for (field, value, name, reason) in [
        ("zone", json!("nowhere"), "ZonesReady", "ZoneValidationFailed"),
        ("networkSelectorTerms", json!([{"name": "none"}]), "NetworksReady", "NetworkResolutionFailed"),
        ("templateSelectorTerms", json!([{"name": "none"}]), "TemplatesReady", "TemplateResolutionFailed"),
        (
            "serviceOfferingSelectorTerms",
            json!([{"tags": {"a": "b"}}]),
            "ServiceOfferingsReady",
            "ServiceOfferingResolutionFailed",
        ),
        ("dataDisks", json!([{"offering": "none"}]), "ValidationSucceeded", "DiskOfferingNotFound"),
    ] {
        let mut spec = spec();
        spec[field] = value;
        let class = world.class("default", spec).await;
        let (status, found, message) = condition(&class, name);
        assert_eq!((status, found), ("False", reason), "{message}");
        assert!(message.contains(&format!("spec.{field}")), "{message}");
        assert_eq!(class.condition_status("Ready"), ConditionStatus::False);
        let error = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("not ready");
        assert!(matches!(error, ProviderError::NodeClassNotReady(_)), "{error}");
    }
    assert_eq!(world.calls("deployVirtualMachine"), 0);
}

#[tokio::test(start_paused = true)]
async fn user_data_that_is_too_long_is_refused_before_anything_is_made() {
    let world = World::new().await;
    let mut noise = String::new();
    let mut state = 1u64;
    while noise.len() < 60_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.push_str(&format!("{:x}", state >> 16));
    }
    let mut long = spec();
    long["userData"] = noise.into();
    let class = world.class("default", long).await;
    let (status, reason, message) = condition(&class, "ValidationSucceeded");
    assert_eq!((status, reason), ("False", "UserDataTooLong"), "{message}");
    assert!(message.contains("spec.userData") && message.contains("32768"), "{message}");
    let error = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("too long");
    assert!(matches!(&error, ProviderError::NodeClassNotReady(_)), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_outage_takes_nothing_away_that_was_resolved() {
    let world = World::new().await;
    let mut class = (*world.class("default", spec()).await).clone();
    world.cloud.inject(Fault::of_any(10_000, Trouble::Proxy(503)));
    // Beyond what is remembered.
    seconds(4000).await;
    assert!(world.provider.resolve_status(&mut class).await.is_err());
    assert_eq!(class.condition_status("Ready"), ConditionStatus::True, "{:?}", class.status);
    assert!(!class.status.as_ref().unwrap().networks.as_ref().unwrap().is_empty());
    assert!(world.provider.get_instance_types(&world.pool("default")).await.is_err(), "unknown is not empty");
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_bridged_by_what_is_remembered() {
    let world = World::new().await;
    world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    world.cloud.inject(Fault::of_any(10_000, Trouble::Proxy(503)));
    seconds(400).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("what was known");
    assert_eq!(types.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn revoked_keys_are_a_condition_that_says_so() {
    let world = World::new().await;
    let mut class = (*world.class("default", spec()).await).clone();
    world.cloud.rotate_keys("other", "keys");
    seconds(4000).await;
    assert!(world.provider.resolve_status(&mut class).await.is_err());
    let (status, reason, message) = condition(&class, "CredentialsReady");
    assert_eq!((status, reason), ("False", "CredentialsRefused"), "{message}");
    assert!(message.contains("check the keys Karpenter was given"), "{message}");
    let (status, reason, _) = condition(&class, "Ready");
    assert_eq!((status, reason), ("Unknown", "ReconcilingDependents"), "nothing can be launched with them");
}

#[tokio::test(start_paused = true)]
async fn keys_that_anybody_was_refused_with_are_told_of_at_once_though_what_they_found_is_remembered() {
    let world = World::new().await;
    let mut class = (*world.class("default", spec()).await).clone();
    let is_valid = || {
        let metrics = world.environment.registry.encode();
        metrics.contains("karpenter_cloudstack_credentials_valid{credentials=\"\"} 1")
    };
    assert!(is_valid());
    world.cloud.rotate_keys("other", "keys");
    assert!(world.provider.list().await.is_err(), "somebody else asks");
    assert!(world.provider.resolve_status(&mut class).await.is_err());
    let (status, reason, message) = condition(&class, "CredentialsReady");
    assert_eq!((status, reason), ("False", "CredentialsRefused"), "{message}");
    assert_eq!(condition(&class, "Ready").0, "Unknown", "nothing can be launched with them");
    assert!(!is_valid());
    let session = Session { credentials: Credentials::new("other", "keys"), ..world.client.session() };
    world.client.become_session(session);
    world.provider.resolve_status(&mut class).await.expect("they are taken");
    assert_eq!((condition(&class, "CredentialsReady").0, condition(&class, "Ready").0), ("True", "True"));
    assert!(is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_not_there_is_told_of_with_its_field() {
    let world = World::new().await;
    let mut elsewhere = spec();
    elsewhere["projectID"] = "11111111-0000-4000-8000-000000000000".into();
    let class = world.class("elsewhere", elsewhere).await;
    let (status, reason, message) = condition(&class, "ValidationSucceeded");
    assert_eq!((status, reason), ("False", "ProjectNotFound"), "{message}");
    assert!(message.contains("spec.projectID"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_proxy_and_half_an_answer_are_told_of_without_keys() {
    for trouble in [Trouble::Proxy(502), Trouble::Truncate] {
        let world = World::new().await;
        world.cloud.inject(Fault::of_any(10_000, trouble));
        seconds(4000).await;
        let class = world.class("fresh", spec()).await;
        let (status, reason, message) = condition(&class, "ZonesReady");
        assert_eq!((status, reason), ("Unknown", "CloudStackUnreachable"), "{message}");
        let account =
            world.cloud.account(karpenter_sim::cloudstack::account::Role::User).expect("an account");
        let text = serde_json::to_string(&class.status).expect("JSON");
        assert!(!text.contains(&account.api_key) && !text.contains(&account.secret_key), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn kubeadm_joins_nobody_unknown_unless_it_is_told_to() {
    let world = World::new().await;
    let mut class = spec();
    class["bootstrap"] = json!({"mode": "Kubeadm", "apiServer": "api:6443",
        "tokenSecretRef": {"namespace": "n", "name": "s", "key": "token"}});
    let refused = world.class("default", class.clone()).await;
    let condition = refused.condition("ValidationSucceeded").expect("a condition");
    assert_eq!(condition.reason(), "CACertHashMissing");
    assert!(condition.message().contains("spec.bootstrap.caCertHash"), "{}", condition.message());
    class["bootstrap"]["caVerification"] = "Skip".into();
    let skipped = world.class("default", class.clone()).await;
    assert_eq!(
        skipped.condition("ValidationSucceeded").expect("a condition").reason(),
        "ValidationSucceeded"
    );
}

#[tokio::test(start_paused = true)]
async fn zones_are_selected_by_tags_too_and_those_that_are_missing_are_told_of() {
    let world = World::new().await;
    let tags = json!([{"key": "k8s", "value": "yes"}]);
    let second =
        world.cloud.add("zone", json!({"name": "zone-2", "allocationstate": "Enabled", "tags": tags}));
    for (kind, name) in [("network", "k8s-net"), ("template", "CentOS 7")] {
        world.cloud.add(kind, json!({"name": name, "zoneid": second, "zonename": "zone-2"}));
    }
    seconds(3601).await;
    let mut class = spec();
    class["zones"] = json!(["zone-3"]);
    class["zoneSelectorTerms"] = json!([{"tags": {"k8s": "yes"}}]);
    let class = world.class("default", class).await;
    let zones = class.status.as_ref().unwrap().zones.clone().unwrap();
    assert_eq!(zones.iter().map(|zone| zone.name.as_str()).collect::<Vec<_>>(), ["sim-zone-1", "zone-2"]);
    let (status, reason, message) = condition(&class, "ZonesReady");
    assert_eq!((status, reason), ("True", "SomeZonesMissing"), "{message}");
    assert!(message.contains("\"zone-3\""), "{message}");
    assert_eq!(class.condition_status("Ready"), ConditionStatus::True);
}

#[tokio::test(start_paused = true)]
async fn types_are_unknown_and_not_none_while_the_only_zone_is_disabled() {
    let world = World::new().await;
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["allocationstate"] = "Disabled".into());
    seconds(3700).await;
    let error = world.provider.get_instance_types(&world.pool("default")).await.expect_err("no zone");
    assert!(error.to_string().contains("there is no enabled zone \"sim-zone-1\""), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_zone_without_a_template_still_offers_what_runs_there_but_nothing_new() {
    let world = World::new().await;
    let mut class = spec();
    class["templateSelectorTerms"] = json!([{"name": "none"}]);
    world.class("default", class).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert!(!types.is_empty() && types.iter().all(|it| it.offerings.iter().all(|o| !o.available)));
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_resources_replaces_no_node_and_is_refused_where_it_makes_no_sense() {
    let world = World::new().await;
    let plain = world.class("default", spec()).await.hash();
    let mut class = spec();
    class["kubeReserved"] = json!({"cpu": "500m"});
    class["gpuResource"] = "amd.com/gpu".into();
    let said = world.class("default", class.clone()).await;
    assert_eq!((said.hash(), said.condition_status("Ready")), (plain, ConditionStatus::True));
    for (field, value) in
        [("systemReserved", json!({"memory": "-1Gi"})), ("gpuResource", json!("gpu of mine"))]
    {
        let mut class = class.clone();
        class[field] = value;
        let class = world.class("default", class).await;
        let (status, reason, message) = condition(&class, "ValidationSucceeded");
        assert_eq!((status, reason), ("False", "InvalidResources"), "{message}");
        assert!(message.contains(&format!("spec.{field}")), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_project_is_not_blamed_for_what_else_is_denied() {
    let world = World::new().await;
    let denied = Trouble::Fail(531, 4365, "The account is not allowed to list networks".into());
    world.cloud.inject(Fault::times("listNetworks", 10_000, denied));
    let mut elsewhere = spec();
    elsewhere["projectID"] = "11111111-0000-4000-8000-000000000000".into();
    let class = world.class("elsewhere", elsewhere).await;
    let blamed = class.condition("ValidationSucceeded").is_some_and(|c| c.reason() == "ProjectNotFound");
    assert!(!blamed, "{:?}", class.status);
}

#[tokio::test(start_paused = true)]
async fn templates_are_selected_by_family_and_version_the_newest_first() {
    let world = World::new().await;
    let template = |version: &str, created: &str| {
        json!({
            "name": format!("image {version}"), "created": created,
            "tags": [{"key": "karpenter.k8s.cloudstack/family", "value": "ubuntu"}, {"key": "version", "value": version}],
        })
    };
    let older = world.cloud.add("template", template("22.04.1", "2026-10-01T00:00:00+0000"));
    let newer = world.cloud.add("template", template("22.04.2", "2026-10-02T00:00:00+0000"));
    let other = world.cloud.add("template", template("24.04.1", "2026-10-03T00:00:00+0000"));
    let selected = async |term: serde_json::Value| {
        let mut class = spec();
        class["templateSelectorTerms"] = json!([term]);
        let status = world.class("default", class).await.status.clone().unwrap_or_default();
        status.templates.unwrap_or_default().into_iter().map(|template| template.id).collect::<Vec<_>>()
    };
    seconds(301).await;
    assert_eq!(selected(json!({"family": "ubuntu"})).await, [other.clone(), newer.clone(), older.clone()]);
    assert_eq!(selected(json!({"family": "ubuntu", "version": "22.04.*"})).await, [newer, older.clone()]);
    assert_eq!(selected(json!({"name": "image*", "family": "ubuntu", "version": "22.04.1"})).await, [older]);
    assert_eq!(selected(json!({"family": "talos"})).await, Vec::<String>::new());
    assert_eq!(selected(json!({"name": "*4.04.1", "family": "ubuntu"})).await, [other]);
}

#[tokio::test(start_paused = true)]
async fn registered_user_data_that_is_not_there_is_told_of_before_anything_is_launched() {
    let world = World::new().await;
    let mut class = spec();
    class.as_object_mut().unwrap().remove("userData");
    class["userDataID"] = "11111111-0000-4000-8000-000000000000".into();
    let missing = world.class("default", class.clone()).await;
    let condition = missing.condition("ValidationSucceeded").expect("a condition");
    assert_eq!(condition.status.as_str(), "False", "{condition:?}");
    assert!(condition.message().contains("spec.userDataID"), "{}", condition.message());
    class["userDataID"] = world.cloud.add_user_data("join").into();
    seconds(61).await;
    let there = world.class("default", class).await;
    assert_eq!(there.condition("Ready").expect("a condition").status.as_str(), "True");
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
}

#[tokio::test(start_paused = true)]
async fn an_offering_of_no_or_absurd_size_is_left_out_and_named() {
    let world = World::new().await;
    for (name, cpu, memory) in [("k8s.none", 0, 1024), ("k8s.absurd", 2, 1i64 << 40)] {
        world.cloud.add("serviceoffering", json!({"name": name, "cpunumber": cpu, "memory": memory}));
    }
    seconds(301).await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.none"}, {"name": "k8s.absurd"}]);
    let refused = world.class("default", class.clone()).await;
    let (status, _, message) = condition(&refused, "ServiceOfferingsReady");
    assert_eq!(status, "False", "{message}");
    assert!(message.contains("k8s.none") && message.contains("k8s.absurd"), "{message}");
    class["serviceOfferingSelectorTerms"] =
        json!([{"name": "k8s.small"}, {"name": "k8s.none"}, {"name": "k8s.absurd"}]);
    let used = world.class("default", class).await;
    let (status, reason, message) = condition(&used, "ServiceOfferingsReady");
    assert_eq!((status, reason), ("True", "SomeOfferingsLeftOut"), "{message}");
    assert!(message.contains("\"k8s.none\" has 0 cores") && message.contains("k8s.absurd"), "{message}");
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert_eq!(types.iter().map(|it| it.name.to_string()).collect::<Vec<_>>(), ["k8s.small"]);
}

#[tokio::test(start_paused = true)]
async fn a_price_that_is_none_is_told_with_its_place() {
    let world = World::new().await;
    assert!(world.told("PriceNotUsable").is_empty());
    let written = |text: &'static str| {
        world.cloud.edit("serviceoffering", "k8s.small", |offering| {
            offering["serviceofferingdetails"] = json!({"karpenter.sh/price": text});
        });
    };
    written("NaN");
    seconds(301).await;
    let class = world.class("default", spec()).await;
    let told = world.told("PriceNotUsable");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("\"k8s.small\"") && told[0].contains("karpenter.sh/price"), "{told:?}");
    assert_eq!(class.condition_status("Ready"), ConditionStatus::True, "others say what it costs");
    written("0.5");
    seconds(301).await;
    world.class("default", spec()).await;
    assert_eq!(world.told("PriceNotUsable").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_goes_away_is_told_without_taking_readiness_away() {
    let world = World::new().await;
    let mut class = (*world.class("default", spec()).await).clone();
    assert!(world.told("CloudStackUnreachable").is_empty());
    world.cloud.inject(Fault::of_any(10_000, Trouble::Proxy(503)));
    // Once what is remembered is bridged with, and once it is too old for that.
    for (passed, known) in [(400, true), (8000, false)] {
        seconds(passed).await;
        assert_eq!(world.provider.resolve_status(&mut class).await.is_ok(), known);
        assert_eq!(class.condition_status("Ready"), ConditionStatus::True, "{:?}", class.status);
        let told = world.told("CloudStackUnreachable");
        assert!(told.last().is_some_and(|message| message.contains("503")), "{told:?}");
    }
    let told = world.told("CloudStackUnreachable").len();
    world.cloud.heal();
    world.provider.resolve_status(&mut class).await.expect("it is back");
    assert_eq!(world.told("CloudStackUnreachable").len(), told);
}

#[tokio::test(start_paused = true)]
async fn a_template_that_denies_user_data_is_told_of_wherever_that_comes_from() {
    let world = World::new().await;
    world.cloud.edit("template", "CentOS 5.6 (64-bit) no GUI (Simulator)", |template| {
        template["userdatapolicy"] = "DENYOVERRIDE".into();
    });
    seconds(3601).await;
    let told = async |field: &str, value: serde_json::Value| {
        let mut class = spec();
        class.as_object_mut().expect("an object").remove("userData");
        class[field] = value;
        let class = world.class("default", class).await;
        condition(&class, "TemplatesReady").1.to_owned()
    };
    let secret = json!({"kind": "Secret", "namespace": "karpenter", "name": "x", "key": "y"});
    for (field, value) in [
        ("userData", json!("#!/bin/sh\n")),
        ("userDataRef", secret),
        ("bootstrap", json!({"mode": "K3s", "apiServer": "https://api:6443"})),
    ] {
        assert_eq!(told(field, value).await, "TemplateDeniesUserData", "{field}");
    }
    assert_ne!(told("rootDiskSize", json!(30)).await, "TemplateDeniesUserData");
}

#[tokio::test(start_paused = true)]
async fn offerings_with_volatile_root_disks_are_used_only_where_the_class_says_so() {
    let world = World::new().await;
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["isvolatile"] = true.into());
    seconds(3601).await;
    let offered = async |volatile: bool| {
        let mut class = spec();
        class["volatileOfferings"] = volatile.into();
        world.class("default", class).await;
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        types.iter().map(|it| (*it.name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(offered(false).await, ["k8s.medium"]);
    assert!(offered(true).await.contains(&"k8s.small".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_class_says_how_much_memory_machines_never_see_and_in_what_group_they_are() {
    let world = World::new().await;
    let before = world.class("default", spec()).await.hash();
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}]);
    class["vmMemoryOverheadPercent"] = 10.into();
    class["group"] = "workers".into();
    class["volatileOfferings"] = true.into();
    assert_eq!(world.class("default", class).await.hash(), before, "no node is replaced for that");
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let memory = types[0].capacity.get("memory").expect("some").as_units_ceil();
    assert_eq!(memory, (4096 * 90 / 100) << 20);
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let log = world.cloud.log();
    let deploy = log.iter().find(|entry| entry.command == "deployVirtualMachine").expect("a deployment");
    assert_eq!(deploy.parameters["group"], "workers");
}

#[tokio::test(start_paused = true)]
async fn a_basic_zone_is_told_of_before_anything_is_launched() {
    let world = World::new().await;
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["networktype"] = "Basic".into());
    seconds(3700).await;
    let class = world.class("default", spec()).await;
    let (status, reason, message) = condition(&class, "ZonesReady");
    assert_eq!((status, reason), ("False", "ZoneValidationFailed"), "{message}");
    assert!(message.contains("\"sim-zone-1\"") && message.contains("Basic"), "{message}");
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("not ready");
    assert_eq!(world.calls("deployVirtualMachine"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_leaves_no_memory_is_a_condition_with_its_numbers() {
    let world = World::new().await;
    for (resource, word) in
        [("memory", "MiB of memory"), ("primary_storage", "GB of primary storage"), ("volume", "volumes")]
    {
        world.cloud.limit(resource, 0);
        seconds(61).await;
        let class = world.class("default", spec()).await;
        let (status, reason, message) = condition(&class, "QuotaAvailable");
        assert_eq!((status, reason), ("False", "LimitReached"), "{resource}: {message}");
        assert!(message.contains(&format!("0 {word}")), "{message}");
        world.cloud.limit(resource, -1);
    }
    seconds(61).await;
    let class = world.class("default", spec()).await;
    assert_eq!(condition(&class, "QuotaAvailable").0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_root_disk_is_as_large_as_its_offering_says() {
    let world = World::new().await;
    let mut class = spec();
    class["rootDiskOffering"] = "Large".into();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}]);
    world.class("default", class.clone()).await;
    let gib = async || {
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        types[0].capacity.get("ephemeral-storage").expect("a disk").as_units_ceil() >> 30
    };
    assert!((90..=100).contains(&gib().await), "{}", gib().await);
    // Less is left than it needs.
    world.cloud.limit("primary_storage", 60);
    seconds(61).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("over the limit");
    assert_eq!(world.calls("deployVirtualMachine"), 0, "it is known before");
    class["rootDiskSize"] = 30.into();
    world.class("default", class).await;
    assert!((26..=30).contains(&gib().await), "what the NodeClass says counts: {}", gib().await);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_nobody_trusts_is_told_of_with_the_key_of_the_secret_that_helps() {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use karpenter_provider_cloudstack::client::signature::Credentials;
    use karpenter_provider_cloudstack::client::throttle::Rate;
    use karpenter_provider_cloudstack::client::transport::{Transport, TransportError};
    use karpenter_provider_cloudstack::client::{Client, Session};
    use karpenter_provider_cloudstack::{CloudStackProvider, Objects, ProviderOptions};

    struct Untrusted(&'static str);

    impl Transport for Untrusted {
        fn send(
            &self,
            _: http::Request<Bytes>,
        ) -> BoxFuture<'_, Result<http::Response<Bytes>, TransportError>> {
            std::future::ready(Err(TransportError::NotSent(self.0.to_owned()))).boxed()
        }
    }

    let world = World::new().await;
    for (cause, remedy) in [
        ("client error (Connect): invalid peer certificate: UnknownIssuer", "ca-bundle"),
        (
            "client error (Connect): invalid peer certificate: certificate not valid for name \"cloud\"",
            "tls-server-name",
        ),
        ("client error (Connect): invalid peer certificate: certificate expired", "renew"),
        ("client error (Connect): dns error: failed to lookup address information", "api-url"),
    ] {
        let session = Session {
            endpoint: "https://cloud/client/api".into(),
            credentials: Credentials::new("key", "secret"),
            transport: Arc::new(Untrusted(cause)),
            project: None,
        };
        let environment = karpenter_runtime::environment::Environment {
            registry: karpenter_runtime::metrics::Registry::new(),
            ..world.environment.clone()
        };
        let client = Client::new(session, Rate::default(), &environment);
        let objects = Arc::clone(&world.cluster) as Arc<dyn Objects>;
        let provider = CloudStackProvider::new(client, ProviderOptions::new("test"), objects, &environment);
        let class = world.class_by(&provider, "default", spec()).await;
        let (status, reason, message) = condition(&class, "CredentialsReady");
        assert_eq!((status, reason), ("Unknown", "CloudStackUnreachable"));
        assert!(message.contains(cause) && message.contains(remedy), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_offering_that_takes_no_root_disk_but_its_own_is_left_out_where_another_is_wanted() {
    let world = World::new().await;
    world.cloud.add("diskoffering", json!({"name": "fast"}));
    world.cloud.edit("serviceoffering", "k8s.small", |it| it["diskofferingstrictness"] = true.into());
    seconds(301).await;
    let sold = async |class: Value| {
        let class = world.class("default", class).await;
        let (status, reason, message) = condition(&class, "ServiceOfferingsReady");
        let said = (status.to_owned(), reason.to_owned(), message.to_owned());
        let types = world.provider.get_instance_types(&world.pool("default")).await;
        let types = types.ok().into_iter().flat_map(|types| types.to_vec()).collect::<Vec<_>>();
        (said, types.iter().map(|it| it.name.to_string()).collect::<Vec<_>>())
    };
    let (_, names) = sold(spec()).await;
    assert_eq!(names.len(), 2, "with its own disk it is as good as any: {names:?}");
    let mut fast = spec();
    fast["rootDiskOffering"] = "fast".into();
    let ((status, reason, message), names) = sold(fast.clone()).await;
    assert_eq!(names, ["k8s.medium"]);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "SomeOfferingsLeftOut"), "{message}");
    assert!(message.contains("\"k8s.small\"") && message.contains("spec.rootDiskOffering"), "{message}");
    fast["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}]);
    let ((status, reason, message), _) = sold(fast).await;
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ServiceOfferingResolutionFailed"), "{message}");
    assert!(message.contains("diskofferingstrictness"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_class_may_name_its_zones_without_the_one_zone() {
    let world = World::new().await;
    for fields in [json!({"zones": ["sim-zone-1"]}), json!({"zoneSelectorTerms": [{"name": "sim-zone-1"}]})] {
        let mut class = spec();
        class.as_object_mut().unwrap().remove("zone");
        class.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let hash = world.class("one", spec()).await.hash();
        let class = world.class("default", class).await;
        assert_eq!(condition(&class, "Ready").0, "True", "{fields}");
        assert_eq!(class.hash(), hash, "which zone is no drift");
    }
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
}
