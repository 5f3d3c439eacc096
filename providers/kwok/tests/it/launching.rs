//! Launching, finding, deleting and rebooting instances.

use std::time::Duration;

use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::{CloudProvider as _, Launch, LaunchedInstance};
use karpenter_provider_kwok::KwokProvider;
use karpenter_sim::objects::node_ready;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::world::{MINUTE, Scene, write_down};

async fn launch(provider: &KwokProvider, claim: &karpenter_api::NodeClaim) -> LaunchedInstance {
    match provider.create(claim).await.expect("a launch") {
        Launch::Launched(instance) => *instance,
        pending @ Launch::Pending { .. } => panic!("{pending:?}"),
    }
}

fn not_found(error: &ProviderError) -> bool {
    error.is_not_found()
}

#[tokio::test(start_paused = true)]
async fn a_launch_makes_a_node_that_becomes_ready_in_the_embedded_world() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    let instance = launch(&scene.provider, &claim).await;
    let name = instance.provider_id.strip_prefix("kwok://").expect("an id").to_owned();
    assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "c-4x-amd64-linux");
    assert_eq!(instance.allocatable["cpu"].to_string(), "3900m");
    let ready = |objects: &karpenter_sim::Objects| {
        objects.node(&name).is_some_and(|node| node_ready(node) == Some("True"))
    };
    scene.world.wait_until("the node is ready", MINUTE, ready).await.expect("ready");
    let node = scene.nodes.get(&name).await.expect("the node");
    let taints = node.spec.expect("a spec").taints.unwrap_or_default();
    assert!(
        taints.iter().any(|taint| taint.key == "karpenter.sh/unregistered" && taint.effect == "NoExecute")
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_launched_once_however_often_and_by_whomever_it_is_asked_for() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    let first = launch(&scene.provider, &claim).await;
    assert_eq!(launch(&scene.provider, &claim).await.provider_id, first.provider_id);
    assert_eq!(launch(&scene.another_provider(), &claim).await.provider_id, first.provider_id);
    assert_eq!(scene.node_names().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_found_by_its_id_until_it_is_deleted() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    let id = launch(&scene.provider, &claim).await.provider_id;
    scene
        .world
        .create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}))
        .await
        .expect("a node");
    let found = scene.provider.get(&id).await.expect("found");
    assert_eq!(found.status.as_ref().and_then(|s| s.provider_id.as_deref()), Some(id.as_str()));
    assert_eq!(
        scene.provider.list().await.expect("a list").len(),
        1,
        "a node of somebody else is no instance"
    );

    let claim = write_down(&scene, &claim, &id).await;
    assert!(not_found(&scene.provider.delete(&claim).await.expect_err("gone")));
    assert_eq!(scene.node_names().await, ["other"]);
    assert!(not_found(&scene.provider.get(&id).await.expect_err("gone")));
    assert!(not_found(&scene.provider.delete(&claim).await.expect_err("still gone")));
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_launch_was_never_written_down_is_removed_with_its_claim() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    assert!(scene.provider.launch_handle(&claim).is_some(), "so the core calls delete");
    launch(&scene.provider, &claim).await;
    assert!(not_found(&scene.another_provider().delete(&claim).await.expect_err("gone")));
    assert!(scene.node_names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_waits_for_its_instance_to_go_counts_as_gone() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    let id = launch(&scene.provider, &claim).await.provider_id;
    let name = scene.node_names().await.remove(0);
    let held = json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}});
    scene.nodes.patch(&name, &PatchParams::default(), &Patch::Merge(held)).await.expect("held");
    scene.nodes.delete(&name, &DeleteParams::default()).await.expect("going");
    assert!(not_found(&scene.provider.get(&id).await.expect_err("going")));
    assert!(not_found(&scene.provider.delete(&claim).await.expect_err("going")));
    assert_eq!(scene.node_names().await, [name], "it is not ours to let it go");
}

#[tokio::test(start_paused = true)]
async fn a_node_of_the_right_name_that_is_not_ours_is_neither_taken_nor_deleted() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    let name = scene.provider.launch_handle(&claim).expect("a handle").0;
    scene
        .world
        .create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
        .await
        .expect("a node");
    let error = scene.provider.create(&claim).await.expect_err("the name is taken");
    assert!(
        matches!(&error, ProviderError::Create { condition_message, .. } if condition_message.contains("delete the Node")),
        "{error:?}"
    );
    assert!(not_found(&scene.provider.delete(&claim).await.expect_err("not ours")));
    assert_eq!(scene.node_names().await, [name]);
}

#[tokio::test(start_paused = true)]
async fn a_node_class_that_is_missing_or_not_ready_gives_the_claim_up() {
    let scene = Scene::new("0s").await;
    let claim = scene.claim("a").await;
    let mut homeless = claim.clone();
    homeless.spec.node_class_ref.name = "missing".to_owned();
    let error = scene.provider.create(&homeless).await.expect_err("no NodeClass");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert!(error.to_string().contains("kwoknodeclasses.karpenter.kwok.sh \"missing\" not found"), "{error}");

    let classes: kube::Api<karpenter_provider_kwok::KWOKNodeClass> =
        kube::Api::all(scene.world.cluster().client("user"));
    let not_ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "False", "reason": "Broken", "message": "out of order",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    classes
        .patch_status("default", &PatchParams::default(), &Patch::Merge(not_ready))
        .await
        .expect("patched");
    let error = scene.provider.create(&claim).await.expect_err("not ready");
    assert_eq!(error.to_string(), "NodeClassRef not ready, out of order");
    assert!(matches!(error, ProviderError::NodeClassNotReady(_)));
    assert!(scene.node_names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_joins_after_the_registration_delay() {
    let scene = Scene::new("30s").await;
    let claim = scene.claim("a").await;
    let instance = launch(&scene.provider, &claim).await;
    launch(&scene.provider, &claim).await;
    scene.world.run_for(Duration::from_secs(29)).await.expect("all well");
    assert!(scene.node_names().await.is_empty());
    scene.world.run_for(Duration::from_secs(2)).await.expect("all well");
    assert_eq!(scene.node_names().await, [instance.provider_id.replace("kwok://", "")]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_not_joined_yet_never_does_once_its_claim_is_deleted() {
    let scene = Scene::new("30s").await;
    let (a, b) = (scene.claim("a").await, scene.claim("b").await);
    launch(&scene.provider, &a).await;
    launch(&scene.provider, &b).await;
    assert!(not_found(&scene.provider.delete(&a).await.expect_err("not there yet")));
    // Somebody else deletes the other; this process does not hear of it.
    scene.claims.delete("b", &DeleteParams::default()).await.expect("deleted");
    scene.world.run_for(MINUTE).await.expect("all well");
    assert!(scene.node_names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_nodes_still_join_when_they_were_going_to() {
    let scene = Scene::new("30s").await;
    let (claim, deleted, registered) =
        (scene.claim("a").await, scene.claim("b").await, scene.claim("c").await);
    for claim in [&claim, &deleted, &registered] {
        // As Go's provider names its instances; the process that was to make the Node is gone.
        write_down(&scene, claim, &format!("kwok://kwok-{}-silly-1-x-2", claim.name_any())).await;
    }
    scene.claims.delete("b", &DeleteParams::default()).await.expect("deleted");
    let launched =
        json!({"type": "Launched", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let seen = json!({"type": "Registered", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"conditions": [launched, seen]}});
    scene.claims.patch_status("c", &PatchParams::default(), &Patch::Merge(status)).await.expect("patched");
    scene.world.run_for(Duration::from_secs(20)).await.expect("all well");

    let stop = CancellationToken::new();
    let running: Vec<_> =
        scene.install().parts.into_iter().map(|part| tokio::spawn((part.run)(stop.clone()))).collect();
    scene.world.run_for(Duration::from_secs(9)).await.expect("all well");
    assert!(scene.node_names().await.is_empty());
    scene.world.run_for(Duration::from_secs(2)).await.expect("all well");
    assert_eq!(scene.node_names().await, ["kwok-a-silly-1-x-2"]);
    assert!(running.iter().all(|part| !part.is_finished()), "a part of the program runs until it is stopped");
    stop.cancel();
    for part in running {
        part.await.expect("a clean end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reboot_gives_the_node_another_boot_id_and_the_same_one_when_asked_again() {
    let scene = Scene::new("0s").await;
    let mut claim = scene.claim("a").await;
    let error = scene.provider.reboot(&claim, "1").await.expect_err("not registered");
    assert!(error.to_string().starts_with("rebooting nodeclaim, node is not registered"), "{error}");
    launch(&scene.provider, &claim).await;
    let name = scene.node_names().await.remove(0);
    claim.status.get_or_insert_default().node_name = Some(name.clone());
    for _ in 0..2 {
        scene.provider.reboot(&claim, "op-7").await.expect("rebooted");
        let node = scene.nodes.get(&name).await.expect("the node");
        assert_eq!(
            node.status.and_then(|s| s.node_info).map(|info| info.boot_id).as_deref(),
            Some("kwok-op-7")
        );
    }
    claim.status.get_or_insert_default().node_name = Some("gone".to_owned());
    assert!(not_found(&scene.provider.reboot(&claim, "op-8").await.expect_err("no node")));
}

#[tokio::test(start_paused = true)]
async fn policies_and_rules_are_gos() {
    let scene = Scene::new("0s").await;
    let policies = scene.provider.repair_policies();
    let fallbacks = policies.iter().filter(|policy| policy.reason_regex.is_empty()).count();
    assert_eq!((policies.len(), fallbacks), (4, 1));
    let rules = scene.provider.scheduling_rules();
    assert!(rules.well_known_labels.contains("karpenter.kwok.sh/instance-cpu"));
    assert!(rules.restricted_label_domains.contains("karpenter.kwok.sh"));
    assert_eq!(scene.provider.supported_node_classes()[0].label_key(), "karpenter.kwok.sh/kwoknodeclass");
    let claim = scene.claim("a").await;
    assert_eq!(scene.provider.is_drifted(&claim).await.expect("an answer"), None);
}
