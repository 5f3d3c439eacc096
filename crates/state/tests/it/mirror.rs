//! Everything else the mirror keeps: pods, storage, budgets, namespaces, workloads.

use karpenter_engine::pod::Phase;
use karpenter_engine::resources::{Amount, CPU, MEMORY};
use karpenter_state::Cluster;
use serde_json::{Value, json};

use crate::objects::{object, snapshot};

fn pod(namespace: &str, name: &str, cpu: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending"},
    })
}

#[test]
fn pods_come_out_in_order_of_namespace_and_name_whatever_order_they_came_in() {
    let mut cluster = Cluster::new();
    for (namespace, name) in [("b", "a"), ("a", "z"), ("a", "b")] {
        cluster.apply_pod(&object(pod(namespace, name, "1"))).expect("a valid Pod");
    }
    let keys: Vec<String> = snapshot(&cluster).pods.iter().map(|p| p.key()).collect();
    assert_eq!(keys, ["a/b", "a/z", "b/a"]);
}

#[test]
fn an_update_replaces_and_a_deletion_removes() {
    let mut cluster = Cluster::new();
    cluster.apply_pod(&object(pod("a", "p", "1"))).expect("a valid Pod");
    let mut bound = pod("a", "p", "2");
    bound["spec"]["nodeName"] = "node-1".into();
    bound["status"]["phase"] = "Running".into();
    cluster.apply_pod(&object(bound)).expect("a valid Pod");
    let pods = snapshot(&cluster).pods;
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].node_name.as_deref(), Some("node-1"));
    assert_eq!(pods[0].status.phase, Phase::Running);
    assert_eq!(pods[0].spec.requests.amount(CPU), Amount::units(2));
    cluster.delete_pod("a", "p");
    assert!(snapshot(&cluster).pods.is_empty());
}

#[test]
fn pods_of_one_shape_share_it() {
    let mut cluster = Cluster::new();
    for name in ["p-1", "p-2"] {
        cluster.apply_pod(&object(pod("a", name, "1"))).expect("a valid Pod");
    }
    let pods = snapshot(&cluster).pods;
    assert!(std::sync::Arc::ptr_eq(&pods[0].spec, &pods[1].spec));
}

#[test]
fn a_pod_that_makes_no_sense_is_refused_with_its_field_and_forgotten() {
    let mut cluster = Cluster::new();
    cluster.apply_pod(&object(pod("a", "p", "1"))).expect("a valid Pod");
    let error = cluster.apply_pod(&object(pod("a", "p", "many"))).expect_err("no quantity");
    assert_eq!(error.field, "spec.containers[0].resources.requests[cpu]");
    assert!(snapshot(&cluster).pods.is_empty());
}

#[test]
fn a_snapshot_is_not_touched_by_what_comes_later() {
    let mut cluster = Cluster::new();
    cluster.apply_pod(&object(pod("a", "p", "1"))).expect("a valid Pod");
    let before = snapshot(&cluster);
    cluster.delete_pod("a", "p");
    assert_eq!((before.pods.len(), snapshot(&cluster).pods.len()), (1, 0));
}

#[test]
fn a_daemon_sets_template_has_its_limits_as_requests_where_it_has_none() {
    let mut cluster = Cluster::new();
    let daemon_set = json!({
        "metadata": {"namespace": "kube-system", "name": "agent", "uid": "d"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [
            {"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}]}}},
    });
    cluster.apply_daemon_set(&object(daemon_set)).expect("a valid DaemonSet");
    let daemons = snapshot(&cluster).daemon_sets;
    let requests = &daemons[0].template.spec.requests;
    assert_eq!((requests.amount(CPU), requests.amount(MEMORY)), (Amount::units(1), Amount::units(1 << 30)));
    cluster.delete_daemon_set("kube-system", "agent");
    assert!(snapshot(&cluster).daemon_sets.is_empty());
}

#[test]
fn the_newest_pod_of_a_daemon_set_is_remembered_as_long_as_the_set_is_there() {
    let set = |uid: &str| {
        object(json!({
            "metadata": {"namespace": "a", "name": "agent", "uid": uid},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c"}]}}},
        }))
    };
    let daemon = |name: &str, created: &str, uid: &str| {
        let mut daemon = pod("a", name, "2");
        daemon["metadata"]["creationTimestamp"] = created.into();
        daemon["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": uid, "controller": true}
        ]);
        object(daemon)
    };
    let last = |cluster: &Cluster| {
        snapshot(cluster).daemon_sets[0].last_pod.as_ref().map(|pod| pod.name.to_string())
    };
    let mut cluster = Cluster::new();
    cluster.apply_daemon_set(&set("d")).expect("a valid DaemonSet");
    for (name, created, uid) in [
        ("old", "2024-01-01T00:00:00Z", "d"),
        ("new", "2024-01-02T00:00:00Z", "d"),
        ("of-another", "2024-01-03T00:00:00Z", "e"),
    ] {
        cluster.apply_pod(&daemon(name, created, uid)).expect("a valid Pod");
    }
    assert_eq!(last(&cluster), None, "they are there");
    for name in ["new", "of-another", "old"] {
        cluster.delete_pod("a", name);
        assert_eq!(last(&cluster).as_deref(), Some("new"), "{name} is gone");
    }
    cluster.apply_daemon_set(&set("d")).expect("a valid DaemonSet");
    assert_eq!(last(&cluster).as_deref(), Some("new"), "changed, it is the same set");
    cluster.apply_daemon_set(&set("e")).expect("a valid DaemonSet");
    assert_eq!(last(&cluster), None, "another of the same name");
}

#[test]
fn storage_keeps_what_tells_where_a_volume_can_be() {
    let mut cluster = Cluster::new();
    cluster.apply_volume_claim(&object(json!({
        "metadata": {"namespace": "a", "name": "c", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v", "storageClassName": "fast"}, "status": {"phase": "Lost"},
    })));
    cluster.apply_volume(&object(json!({
        "metadata": {"name": "v"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]}}},
    })));
    cluster.apply_volume(&object(
        json!({"metadata": {"name": "old"}, "spec": {"awsElasticBlockStore": {"volumeID": "x"}}}),
    ));
    cluster
        .apply_volume(&object(json!({"metadata": {"name": "here"}, "spec": {"hostPath": {"path": "/x"}}})));
    cluster.apply_storage_class(&object(json!({
        "metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": "Immediate",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["z"]}]}],
    })));
    let storage = snapshot(&cluster).storage;
    let claim = &storage.claims[&("a".into(), "c".into())];
    assert!(claim.lost && claim.bind_completed && !claim.deleting);
    assert_eq!((claim.volume_name.as_ref(), claim.storage_class.as_ref()), ("v", "fast"));
    assert_eq!(storage.volumes["v"].driver.as_ref(), "d");
    assert_eq!(storage.volumes["v"].node_affinity.as_ref().map(Vec::len), Some(1));
    assert_eq!(storage.volumes["old"].driver.as_ref(), "ebs.csi.aws.com");
    assert!(storage.volumes["here"].host_bound);
    assert!(storage.classes["fast"].binds_immediately);
    assert_eq!(storage.classes["fast"].allowed_topologies[0][0].0.as_ref(), "zone");
    cluster.delete_volume_claim("a", "c");
    cluster.delete_volume("v");
    cluster.delete_storage_class("fast");
    let storage = snapshot(&cluster).storage;
    assert_eq!((storage.claims.len(), storage.volumes.len(), storage.classes.len()), (0, 2, 0));
}

#[test]
fn only_budgets_that_can_never_be_met_block_for_good() {
    for (spec, want) in [
        (json!({"maxUnavailable": 0}), true),
        (json!({"maxUnavailable": "0%"}), true),
        (json!({"minAvailable": "100%"}), true),
        (json!({"minAvailable": 100}), false),
        (json!({"maxUnavailable": 1, "minAvailable": "50%"}), false),
    ] {
        let mut cluster = Cluster::new();
        cluster.apply_disruption_budget(&object(
            json!({"metadata": {"namespace": "a", "name": "b"}, "spec": spec}),
        ));
        assert_eq!(snapshot(&cluster).budgets[0].fully_blocking, want, "{spec}");
        cluster.delete_disruption_budget("a", "b");
        assert!(snapshot(&cluster).budgets.is_empty());
    }
}

#[test]
fn services_are_listed_by_name_and_those_without_selector_are_left_out() {
    let mut cluster = Cluster::new();
    for (name, selector) in [("z", json!({"app": "z"})), ("a", json!({"app": "a"})), ("m", Value::Null)] {
        cluster.apply_service(&object(
            json!({"metadata": {"namespace": "n", "name": name}, "spec": {"selector": selector}}),
        ));
    }
    let services = &snapshot(&cluster).workloads.services["n"];
    let selected: Vec<&str> = services.iter().map(|s| s.get_or_empty("app")).collect();
    assert_eq!(selected, ["a", "z"]);
    cluster.delete_service("n", "z");
    assert_eq!(snapshot(&cluster).workloads.services["n"].len(), 1);
}

#[test]
fn namespaces_and_owners_are_kept_by_name() {
    let mut cluster = Cluster::new();
    cluster.apply_namespace(&object(json!({"metadata": {"name": "n", "labels": {"team": "a"}}})));
    let owner = |name: &str| json!({"metadata": {"namespace": "n", "name": name}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": {}, "serviceName": "s"}});
    cluster.apply_replica_set(&object(owner("rs"))).expect("a valid ReplicaSet");
    cluster.apply_stateful_set(&object(owner("ss"))).expect("a valid StatefulSet");
    cluster.apply_replication_controller(&object(
        json!({"metadata": {"namespace": "n", "name": "rc"}, "spec": {"selector": {"app": "x"}}}),
    ));
    let before = snapshot(&cluster);
    assert_eq!(before.namespaces["n"].get_or_empty("team"), "a");
    assert_eq!(before.workloads.replica_sets.len(), 1);
    assert_eq!(before.workloads.stateful_sets.len(), 1);
    assert_eq!(before.workloads.replication_controllers.len(), 1);
    cluster.delete_namespace("n");
    cluster.delete_replica_set("n", "rs");
    cluster.delete_stateful_set("n", "ss");
    cluster.delete_replication_controller("n", "rc");
    let after = snapshot(&cluster);
    assert!(after.namespaces.is_empty() && after.workloads.replica_sets.is_empty());
    assert!(after.workloads.stateful_sets.is_empty() && after.workloads.replication_controllers.is_empty());
}
