//! `karpenter cluster-api self-check`: what it asks for is what the chart grants, and what is refused it names. And `explain`, which gets
//! along with the same rights.

use std::collections::BTreeSet;
use std::path::Path;

use karpenter::cluster_api::{core_rights, report};
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_cluster_api::client::hub::Hub;
use karpenter_provider_cluster_api::client::scope::Ours;
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::gathering::gather;
use karpenter_provider_cluster_api::wiring::Clusters;
use karpenter_runtime::options::{Environ, FeatureGates, Options};
use karpenter_sim::cluster_api::{self, ClusterApi};
use karpenter_sim::{World, WorldOptions, in_virtual_time};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

const NAMESPACE: &str = "fleet";

#[test]
fn the_rights_of_the_core_are_those_the_chart_grants() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/karpenter/templates/clusterrole-core.yaml");
    let template = std::fs::read_to_string(file).expect("the chart");
    // With every condition met: what is written between braces is left out.
    let mut text = String::new();
    for part in template.split("{{") {
        text.push_str(part.split_once("}}").map_or(part, |(_, rest)| rest));
    }
    let first = text.split("\n---").next().expect("a document").replace("name: -core", "name: core");
    let role: Value = serde_saphyr::from_str(&first).expect("YAML");
    let mut granted = BTreeSet::new();
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).expect("texts") };
    for rule in role["rules"].as_array().expect("rules") {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.extend(
                    texts(&rule["verbs"]).into_iter().map(|verb| (group.clone(), resource.clone(), verb)),
                );
            }
        }
    }
    let gates = FeatureGates {
        node_overlay: true,
        capacity_buffer: true,
        pod_deletion_cost_management: true,
        ..FeatureGates::default()
    };
    let mut asked = BTreeSet::new();
    for right in core_rights(&gates, true) {
        let triple = |verb: &&str| (right.group.clone(), right.resource.clone(), (*verb).to_owned());
        asked.extend(right.verbs.iter().map(triple));
    }
    assert_eq!(asked, granted);
}

/// A client whose account may do all but what `refuses` says, by verb and resource.
fn account(inner: Client, refuses: fn(&str, &str) -> bool) -> Client {
    let answer = move |request: http::Request<Body>| {
        let inner = inner.clone();
        async move {
            let is_review = request.uri().path().ends_with("/selfsubjectaccessreviews");
            let answer = inner.send(request).await?;
            if !is_review {
                return Ok::<_, kube::Error>(answer);
            }
            let (parts, body) = answer.into_parts();
            let body = body.collect_bytes().await?;
            let mut review: Value = serde_json::from_slice(&body).expect("JSON");
            let asked = &review["spec"]["resourceAttributes"];
            let text = |key: &str| asked[key].as_str().unwrap_or_default();
            if refuses(text("verb"), text("resource")) {
                review["status"] = json!({"allowed": false});
            }
            Ok(http::Response::from_parts(parts, Body::from(review.to_string().into_bytes())))
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

/// What is said where the account is refused this: whether all is well, and the lines that are not `ok`.
async fn checked(world: &World, refuses: fn(&str, &str) -> bool) -> (bool, Vec<String>) {
    let options =
        Options::parse(["--leader-election-namespace", "kube-system"], &Environ::new()).expect("options");
    let client = || account(world.cluster().client("karpenter"), refuses);
    let settings = Settings {
        cluster_name: Some("c".to_owned()),
        cluster_namespace: Some(NAMESPACE.to_owned()),
        ..Settings::default()
    };
    let management = Hub::new(client(), Ours::new(&settings));
    let clusters = Clusters { workload: client(), management, settings };
    let mut out = Vec::new();
    let well = report(&clusters, &options, &mut out).await.expect("a report");
    let text = String::from_utf8(out).expect("text");
    assert!(
        text.contains("ok   workload   get, update leases.coordination.k8s.io karpenter-leader-election"),
        "{text}"
    );
    (well, text.lines().filter(|line| !line.starts_with("ok ")).map(str::to_owned).collect())
}

#[test]
fn what_the_account_may_not_do_is_named_and_only_what_is_needed_fails() {
    in_virtual_time(async {
        let world = World::new(WorldOptions::default()).await.expect("a world");
        let _controllers = ClusterApi::install(&world).await.expect("Cluster API");
        for object in [
            ClusterAPINodeClass::crd().to_json(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            cluster_api::cluster(NAMESPACE, "c"),
            cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[]),
            json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "default"}, "spec": {"launchMode": "Machine"},
            }),
        ] {
            world.create(object).await.expect("an object");
        }
        assert_eq!(checked(&world, |_, _| false).await, (true, Vec::new()));
        let useful = |verb: &str, resource: &str| verb == "get" && resource == "customresourcedefinitions";
        let told =
            "note management may not get customresourcedefinitions.apiextensions.k8s.io; it is done without";
        assert_eq!(checked(&world, useful).await, (true, vec![told.to_owned()]));
        let needed = |verb: &str, resource: &str| verb == "create" && resource == "simmachines";
        let told =
            "FAIL management may not create simmachines.infrastructure.cluster.x-k8s.io in namespace fleet";
        assert_eq!(checked(&world, needed).await, (false, vec![told.to_owned()]));
    })
    .expect("a runtime");
}

/// A client whose account may read Cluster API's kinds in one namespace only, as the chart's Role has it.
fn of_one_namespace(inner: Client) -> Client {
    let answer = move |request: http::Request<Body>| {
        let inner = inner.clone();
        async move {
            let path = request.uri().path();
            let is_wide = path.starts_with("/apis/cluster.x-k8s.io/v") && path.split('/').count() > 4;
            if is_wide && !path.contains(&format!("/namespaces/{NAMESPACE}/")) {
                let refusal = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
                    "message": "not in all namespaces", "metadata": {},
                });
                let refusal = Body::from(refusal.to_string().into_bytes());
                let refusal = http::Response::builder().status(403).body(refusal).expect("an answer");
                return Ok::<_, kube::Error>(refusal);
            }
            inner.send(request).await
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

#[test]
fn explaining_takes_no_more_rights_than_karpenter_has_and_is_about_our_cluster_alone() {
    in_virtual_time(async {
        let world = World::new(WorldOptions::default()).await.expect("a world");
        let _controllers = ClusterApi::install(&world).await.expect("Cluster API");
        for object in [
            ClusterAPINodeClass::crd().to_json(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            cluster_api::cluster(NAMESPACE, "c"),
            cluster_api::cluster(NAMESPACE, "d"),
            cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[]),
            cluster_api::machine_deployment(NAMESPACE, "d", "n", "t", &[]),
            json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "default"},
                "spec": {"clusterRef": {"name": "c", "namespace": NAMESPACE}},
            }),
        ] {
            world.create(object).await.expect("an object");
        }
        let client = || of_one_namespace(world.cluster().client("karpenter"));
        let settings = Settings::default();
        let management = Hub::new(client(), Ours::new(&settings).asking(client()));
        let clusters = Clusters { workload: client(), management, settings };
        let evidence = gather(&clusters).await.expect("what there is");
        let told = evidence.explain("m").expect("an answer");
        assert!(told.contains("ClusterAPINodeClass default: offered as m,"), "{told}");
        let error = evidence.explain("n").expect_err("another Cluster's").to_string();
        assert!(error.ends_with("there are fleet/m"), "{error}");
    })
    .expect("a runtime");
}
