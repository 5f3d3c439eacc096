//! What stands on the metrics page.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::objects::{With, claim, condition, node, node_class, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);

/// The value of the series of this name that has these labels among its own; none if there is no such series.
fn value(rig: &Rig, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let page = rig.context.environment.registry.encode();
    let found = page.lines().find(|line| {
        line.split(['{', ' ']).next() == Some(name)
            && labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")))
    });
    found.and_then(|line| line.rsplit(' ').next()).map(|text| text.parse().expect("a number"))
}

#[tokio::test(start_paused = true)]
async fn nodes_are_shown_with_what_they_have_and_what_pods_ask_of_them() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig.create(claim("c", "default", 2)).await;
    rig.create(
        node("c", "default", 2)
            .with(json!({"status": {"allocatable": {"cpu": "1900m"}, "phase": "Running"}})),
    )
    .await;
    rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}, "status": {"allocatable": {"cpu": "3"}}})).await;
    rig.create(pod_on("c", "p", "500m")).await;
    let daemon = json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]}});
    rig.create(pod_on("c", "d", "100m").with(daemon)).await;
    rig.create(pod_on("c", "done", "1").with(json!({"status": {"phase": "Succeeded"}}))).await;
    rig.pass(6 * SECOND).await;
    let cpu = [
        ("node_name", "node-c"),
        ("resource_type", "cpu"),
        ("managed", "true"),
        ("nodepool", "default"),
        ("phase", "Running"),
    ];
    assert_eq!(value(&rig, "karpenter_nodes_allocatable", &cpu), Some(1.9));
    assert_eq!(value(&rig, "karpenter_nodes_system_overhead", &cpu), Some(0.1));
    assert_eq!(value(&rig, "karpenter_nodes_total_pod_requests", &cpu), Some(0.6));
    assert_eq!(value(&rig, "karpenter_nodes_total_daemon_requests", &cpu), Some(0.1));
    let pods = [
        ("node_name", "node-c"),
        ("resource_type", "pods"),
        ("instance_type", "fake-it-2"),
        ("zone", "test-zone-1"),
    ];
    assert_eq!(value(&rig, "karpenter_nodes_total_pod_limits", &pods), Some(2.0));
    assert_eq!(
        value(&rig, "karpenter_nodes_allocatable", &[("node_name", "foreign"), ("managed", "false")]),
        Some(3.0)
    );
    let utilization =
        value(&rig, "karpenter_cluster_utilization_percent", &[("resource_type", "cpu")]).expect("a share");
    assert!((utilization - 100.0 * 0.6 / 4.9).abs() < 1e-9, "{utilization}");
    let age =
        value(&rig, "karpenter_nodes_current_lifetime_seconds", &[("node_name", "node-c")]).expect("an age");
    assert!((6.0..60.0).contains(&age), "{age}");

    rig.delete(&node("c", "default", 2)).await;
    rig.pass(6 * SECOND).await;
    assert_eq!(value(&rig, "karpenter_nodes_allocatable", &[("node_name", "node-c")]), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_coming_up_counts_for_what_its_claim_was_promised() {
    let rig = Rig::quiet(&[]).await;
    let since = "2024-01-01T00:00:00Z";
    let young = json!([condition("Launched", "True", since), condition("Registered", "True", since)]);
    rig.create(claim("c", "default", 2).with(json!({"status": {"conditions": young}}))).await;
    let unready = json!({"type": "Ready", "status": "False", "reason": "Starting", "message": ""});
    rig.create(node("c", "default", 2).with(json!({
        "metadata": {"labels": {"karpenter.sh/initialized": null}},
        "status": {"allocatable": {"cpu": "0"}, "conditions": [unready]},
    })))
    .await;
    rig.create(pod_on("c", "p", "500m")).await;
    rig.pass(6 * SECOND).await;
    let utilization = value(&rig, "karpenter_cluster_utilization_percent", &[("resource_type", "cpu")]);
    assert_eq!(utilization, Some(25.0));
}

#[tokio::test(start_paused = true)]
async fn pools_are_shown_with_limits_usage_and_cost() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default").with(json!({"spec": {"limits": {"cpu": "10500m", "nodes": "5"}}}))).await;
    for (name, size) in [("a", 1), ("b", 3)] {
        rig.create(claim(name, "default", size)).await;
    }
    rig.pass(11 * SECOND).await;
    let of = |resource: &'static str| [("nodepool", "default"), ("resource_type", resource)];
    assert_eq!(value(&rig, "karpenter_nodepools_limit", &of("cpu")), Some(10.5));
    assert_eq!(value(&rig, "karpenter_nodepools_limit", &of("nodes")), Some(5.0));
    let cost = value(&rig, "karpenter_nodepools_cost_total", &[("nodepool", "default")]).expect("a cost");
    assert!((cost - 0.4).abs() < 1e-9, "{cost}");
    rig.delete(&node_pool("default")).await;
    rig.pass(11 * SECOND).await;
    assert_eq!(value(&rig, "karpenter_nodepools_cost_total", &[("nodepool", "default")]), None);
}

#[tokio::test(start_paused = true)]
async fn a_price_that_is_not_known_is_asked_for_once_and_counts_as_nothing() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default").with(json!({"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}})))
        .await;
    rig.provider.offer(vec![]);
    rig.create(node("a", "default", 1)).await;
    rig.create(claim("a", "default", 1)).await;
    rig.pass(11 * SECOND).await;
    let cost = |rig: &Rig| value(rig, "karpenter_nodepools_cost_total", &[("nodepool", "default")]);
    assert_eq!(cost(&rig), Some(0.0));
    rig.provider.offer(karpenter_cloudprovider::fake::instance_types(1));
    rig.patch(&claim("a", "default", 1), json!({"metadata": {"annotations": {"x": "y"}}})).await;
    rig.pass(20 * SECOND).await;
    assert_eq!(cost(&rig), Some(0.0), "not for every change");
    rig.pass(3600 * SECOND).await;
    assert_eq!(cost(&rig), Some(0.1));
}

#[tokio::test(start_paused = true)]
async fn prices_that_cannot_be_had_are_an_error_of_cost_only_where_a_node_needs_them() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::GetInstanceTypes, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.create(node_pool("default")).await;
    rig.pass(3700 * SECOND).await;
    let failed = value(&rig, "controller_runtime_reconcile_errors_total", &[("controller", "state.pricing")]);
    assert!(failed > Some(0.0), "{failed:?}");
    let errors =
        |rig: &Rig| value(rig, "karpenter_nodepools_cost_tracker_errors_total", &[("nodepool", "default")]);
    assert_eq!(errors(&rig), None);
    rig.create(claim("a", "default", 1)).await;
    rig.pass(5 * SECOND).await;
    assert!(errors(&rig) >= Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_changes_is_counted_timed_and_told() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig.create(node("c", "default", 1)).await;
    rig.pass(SECOND).await;
    let node_c = |status: &'static str| [("name", "node-c"), ("type", "Ready"), ("status", status)];
    assert_eq!(value(&rig, "operator_node_status_condition_count", &node_c("True")), Some(1.0));
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let unready = json!({"type": "Ready", "status": "False", "reason": "Broken", "message": "it is", "lastTransitionTime": now});
    rig.patch_status(&node("c", "default", 1), json!({"status": {"conditions": [unready]}})).await;
    rig.pass(30 * SECOND).await;
    assert_eq!(value(&rig, "operator_node_status_condition_count", &node_c("True")), None);
    assert_eq!(value(&rig, "operator_node_status_condition_count", &node_c("False")), Some(1.0));
    let stood = value(&rig, "operator_node_status_condition_current_status_seconds", &node_c("False"))
        .expect("an age");
    assert!((30.0..32.0).contains(&stood), "{stood}");
    let transitions = [
        ("type", "Ready"),
        ("status", "False"),
        ("reason", "Broken"),
        ("karpenter_sh_nodepool", "default"),
        ("karpenter_test_sh_fakenodeclass", "default"),
    ];
    assert_eq!(value(&rig, "operator_node_status_condition_transitions_total", &transitions), Some(1.0));
    let timed = [("type", "Ready"), ("status", "True"), ("to_status", "False")];
    assert_eq!(value(&rig, "operator_node_status_condition_transition_seconds_count", &timed), Some(1.0));
    assert_eq!(
        value(&rig, "operator_status_condition_count", &[("kind", "Node")]),
        None,
        "nodes are not in the general families"
    );
    let told = rig.events("Node", "node-c").await;
    let said = "Ready: Status condition transitioned, Type: Ready, Status: True -> False, Reason: Broken, Message: it is";
    assert_eq!(told, [said]);
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_is_unknown_at_first_sight_is_no_transition() {
    let rig = Rig::quiet(&[]).await;
    let unknown = json!({"type": "Ready", "status": "Unknown", "reason": "Lost", "message": ""});
    let full = json!({"type": "DiskPressure", "status": "True", "reason": "Full", "message": ""});
    rig.create(node("c", "default", 1).with(json!({"status": {"conditions": [unknown, full]}}))).await;
    rig.pass(SECOND).await;
    let count = "operator_node_status_condition_count";
    assert_eq!(value(&rig, count, &[("type", "Ready"), ("status", "Unknown")]), Some(1.0));
    let transitions = "operator_node_status_condition_transitions_total";
    assert_eq!(value(&rig, transitions, &[("type", "Ready")]), None);
    assert_eq!(value(&rig, transitions, &[("type", "DiskPressure"), ("status", "True")]), Some(1.0));
    assert!(rig.events("Node", "node-c").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_objects_series_go_with_it_and_its_termination_is_timed() {
    let rig = Rig::quiet(&[]).await;
    let held = node_pool("held").with(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    rig.create(held.clone()).await;
    rig.pass(SECOND).await;
    let ready = [("name", "held"), ("type", "Ready")];
    assert_eq!(value(&rig, "operator_nodepool_status_condition_count", &ready), Some(1.0));
    assert_eq!(
        value(
            &rig,
            "operator_status_condition_count",
            &[("name", "held"), ("kind", "NodePool"), ("group", "karpenter.sh")]
        ),
        Some(1.0)
    );
    rig.delete(&held).await;
    rig.pass(40 * SECOND).await;
    let going = value(&rig, "operator_nodepool_termination_current_time_seconds", &[("name", "held")])
        .expect("an age");
    assert!((39.0..42.0).contains(&going), "{going}");
    rig.patch(&held, json!({"metadata": {"finalizers": []}})).await;
    rig.pass(SECOND).await;
    assert_eq!(value(&rig, "operator_nodepool_status_condition_count", &ready), None);
    assert_eq!(value(&rig, "operator_nodepool_termination_current_time_seconds", &[("name", "held")]), None);
    assert_eq!(value(&rig, "operator_nodepool_termination_duration_seconds_count", &[]), Some(1.0));
    assert!(
        rig.events("NodePool", "held").await.contains(&"Finalized: Finalized example.com/hold".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn what_readiness_depends_on_is_unknown_until_someone_says_otherwise() {
    let rig = Rig::quiet(&[]).await;
    rig.create(
        claim("c", "default", 1)
            .with(json!({"status": {"conditions": [condition("Launched", "True", "2024-01-01T00:00:00Z")]}})),
    )
    .await;
    rig.pass(SECOND).await;
    let of = |type_: &'static str, status: &'static str| [("name", "c"), ("type", type_), ("status", status)];
    assert_eq!(value(&rig, "operator_nodeclaim_status_condition_count", &of("Launched", "True")), Some(1.0));
    assert_eq!(
        value(&rig, "operator_nodeclaim_status_condition_count", &of("Registered", "Unknown")),
        Some(1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn observability_of_the_cluster_can_be_switched_off() {
    let rig = Rig::quiet(&["--disable-cluster-state-observability=true"]).await;
    rig.create(node("c", "default", 1)).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(value(&rig, "karpenter_nodes_allocatable", &[]), None);
    assert_eq!(value(&rig, "operator_node_status_condition_count", &[]), None);
}

/// Families of the program around the controllers: its client, its lease, its build (which `karpenter run` tells and tests), the
/// providers it wraps.
const OUTSIDE: [&str; 12] = [
    "karpenter_build_info",
    "karpenter_cloudprovider_duration_seconds",
    "karpenter_cloudprovider_errors_total",
    "client_go_request_duration_seconds",
    "client_go_request_total",
    "rest_client_requests_total",
    "leader_election_master_status",
    "certwatcher_read_certificate_total",
    "certwatcher_read_certificate_errors_total",
    "controller_runtime_webhook_panics_total",
    "controller_runtime_conversion_webhook_panics_total",
    "controller_runtime_webhook_",
];

/// Whether type and labels are equal, and buckets but for the last digits.
fn are_alike(a: &(String, BTreeSet<String>, Vec<f64>), b: &(String, BTreeSet<String>, Vec<f64>)) -> bool {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= b * 1e-9;
    (&a.0, &a.1, a.2.len()) == (&b.0, &b.1, b.2.len()) && a.2.iter().zip(&b.2).all(close)
}

#[tokio::test(start_paused = true)]
async fn every_family_of_upstreams_core_is_there_with_its_type_labels_and_buckets() {
    let gates = "--feature-gates=NodeRepair=true,NodeOverlay=true,StaticCapacity=true,CapacityBuffer=true,PodDeletionCostManagement=true";
    let rig = Rig::quiet(&[gates]).await;
    let registered: BTreeMap<String, (String, BTreeSet<String>, Vec<f64>)> = rig
        .context
        .environment
        .registry
        .families()
        .into_iter()
        .map(|family| {
            (family.name, (family.kind.to_owned(), family.labels.into_iter().collect(), family.buckets))
        })
        .collect();
    let list: Value =
        serde_json::from_str(include_str!("../../../../conformance/metrics/metrics.json")).expect("the list");
    let mut wrong = Vec::new();
    for family in list["metrics"].as_array().expect("metrics") {
        let name = family["name"].as_str().expect("a name");
        if OUTSIDE.iter().any(|outside| name.starts_with(outside)) {
            continue;
        }
        let labels = family["labels"].as_array().expect("labels").iter().map(|label| match label.as_str() {
            Some("<nodeclass label>") => "karpenter_test_sh_fakenodeclass".to_owned(),
            label => label.expect("a label").to_owned(),
        });
        let buckets = family["buckets"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        let expected =
            (family["type"].as_str().expect("a type").to_owned(), labels.collect(), buckets.collect());
        match registered.get(name) {
            None => wrong.push(format!("{name} is missing")),
            Some(found) if !are_alike(found, &expected) => {
                wrong.push(format!("{name} is {found:?}, not {expected:?}"));
            }
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
