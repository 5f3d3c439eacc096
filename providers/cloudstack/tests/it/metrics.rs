//! What metrics tell of launches, deletions, orphans, caches, keys and calls.

use std::sync::Arc;

use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::nodeclass::CredentialsRef;
use karpenter_provider_cloudstack::voice::Voice;
use karpenter_provider_cloudstack::{CloudStackProvider, Objects, ProviderOptions};
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;

use crate::cloud::{World, seconds, spec};

/// The value of a series whose name and labels these words are part of; nothing if there is none.
fn value(world: &World, words: &[&str]) -> Option<f64> {
    let text = world.environment.registry.encode();
    let line = text.lines().filter(|line| !line.starts_with('#'));
    let mut line = line.filter(|line| words.iter().all(|word| line.contains(word)));
    line.next().and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_came_and_went_was_counted_and_timed() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(60).await;
    world.provider.look_at_launches().await.expect("looked at");
    world.delete(&world.current("np-a")).await.expect("gone");
    let place = ["zone=\"sim-zone-1\"", "offering=\"k8s.small\""];
    let counted = |name: &str, reason: &str| {
        let reason = format!("reason=\"{reason}\"");
        let words: Vec<&str> = [name, reason.as_str()].into_iter().chain(place).collect();
        value(&world, &words)
    };
    assert_eq!(counted("karpenter_cloudstack_vms_created_total", "launched"), Some(1.0));
    assert_eq!(value(&world, &["karpenter_cloudstack_vms_deleted_total"]), Some(1.0));
    for phase in ["accept", "job"] {
        let phase = format!("phase=\"{phase}\"");
        let timed = ["karpenter_cloudstack_vm_launch_duration_seconds_count", phase.as_str()];
        assert_eq!(value(&world, &timed), Some(1.0), "{phase}");
    }
    assert_eq!(value(&world, &["karpenter_cloudstack_orphans_deleted_total"]).unwrap_or(0.0), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_launch_after_refusals_and_an_orphan_are_counted_as_such() {
    let world = World::new().await;
    let text = "No suitable host found.";
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Fail(530, 4250, text.into())));
    world.node("np-a").await;
    let refused = ["karpenter_cloudstack_vms_created_total", "reason=\"others-refused\""];
    assert_eq!(value(&world, &refused), Some(1.0));
    world.stray("lost");
    seconds(400).await;
    world.round().await;
    seconds(30).await;
    assert_eq!(value(&world, &["karpenter_cloudstack_orphans_deleted_total"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn lookups_calls_and_keys_are_told_of() {
    let world = World::new().await;
    let looked_up = |result: &str| {
        let result = format!("result=\"{result}\"");
        value(&world, &["karpenter_cloudstack_cache_requests_total", "cache=\"templates\"", &result])
    };
    let misses = looked_up("miss").expect("asked for");
    world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert!(looked_up("hit") > Some(0.0), "remembered");
    assert_eq!(looked_up("miss"), Some(misses));
    world.cloud.inject(Fault::of_any(10_000, Trouble::Proxy(503)));
    seconds(400).await;
    world.provider.get_instance_types(&world.pool("default")).await.expect("what was known");
    assert!(looked_up("stale") > Some(0.0), "used all the same");
    world.cloud.heal();
    let zones = "command=\"listZones\"";
    assert!(value(&world, &["karpenter_cloudstack_api_requests_total", zones]) > Some(0.0));
    assert!(value(&world, &["karpenter_cloudstack_api_request_duration_seconds_count", zones]) > Some(0.0));
    assert_eq!(value(&world, &["karpenter_cloudstack_api_inflight"]), Some(0.0));
    assert_eq!(value(&world, &["karpenter_cloudstack_credentials_valid"]), Some(1.0));
    seconds(100).await;
    world.class("default", spec()).await;
    assert!(value(&world, &["karpenter_cloudstack_credentials_age_seconds"]) >= Some(100.0));
    world.cloud.rotate_keys("other", "keys");
    seconds(4000).await;
    world.class("default", spec()).await;
    assert_eq!(value(&world, &["karpenter_cloudstack_credentials_valid"]), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_type_that_is_not_on_offer_any_more_is_told_of_no_more() {
    let world = World::new().await;
    let told = |name: &str| {
        let of = format!("instance_type=\"{name}\"");
        ["price", "cpu_cores", "memory_bytes"].map(|what| {
            value(&world, &[&format!("karpenter_cloudstack_instance_type_{what}"), of.as_str()]).is_some()
        })
    };
    assert_eq!((told("k8s.small"), told("k8s.medium")), ([true; 3], [true; 3]));
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.medium"}]);
    world.class("default", class).await;
    assert_eq!((told("k8s.small"), told("k8s.medium")), ([false; 3], [true; 3]));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_the_limits_is_told_apart_by_whose_they_are() {
    let world = World::new().await;
    let left = |of: &str| {
        let of = format!("scope=\"{of}\"");
        value(&world, &["karpenter_cloudstack_quota_available", "resource=\"user_vm\"", of.as_str()])
    };
    let before = left("own").expect("limited");
    let (project, inside) = world.project();
    world.class("team", inside).await;
    assert_eq!(left(&format!("project/{project}")), None, "a project without limits");
    assert_eq!(left("own"), Some(before), "which says nothing of the account's own");
}

#[tokio::test(start_paused = true)]
async fn accounts_tell_of_their_own_types_and_of_no_others() {
    let world = World::new().await;
    let told = |whose: &str| {
        let whose = format!("credentials=\"{whose}\"");
        ["price", "cpu_cores", "memory_bytes"].map(|what| {
            let of = "instance_type=\"k8s.small\"";
            value(&world, &[&format!("karpenter_cloudstack_instance_type_{what}"), of, &whose]).is_some()
        })
    };
    let whose = CredentialsRef { namespace: "karpenter".into(), name: "team-a".into() };
    let label = whose.to_string();
    let objects = Arc::clone(&world.cluster) as Arc<dyn Objects>;
    let other = CloudStackProvider::with_keys_of(
        Some(whose),
        world.client.clone(),
        ProviderOptions::new("test"),
        objects,
        Voice::default(),
        &world.environment,
    );
    world.class_by(&other, "theirs", spec()).await;
    assert_eq!((told(""), told(&label)), ([true; 3], [true; 3]));
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.medium"}]);
    world.class_by(&other, "theirs", class).await;
    assert_eq!((told(""), told(&label)), ([true; 3], [false; 3]));
}
