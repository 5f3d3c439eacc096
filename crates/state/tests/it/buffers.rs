//! Capacity buffers become virtual pods once buffer and template are both there.

use karpenter_engine::pod::Phase;
use karpenter_engine::resources::{Amount, CPU};
use karpenter_state::Cluster;
use serde_json::{Value, json};

use crate::objects::{NOW, object, snapshot};

fn buffer(spec: Value, ready: &str, replicas: i64) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "spare", "uid": "b"}, "spec": spec,
        "status": {"replicas": replicas, "conditions": [{"type": "ReadyForProvisioning", "status": ready}]},
    })
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "nodeName": "somewhere",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}],
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "ephemeral": {}}],
    }})
}

fn by_template() -> Value {
    json!({"podTemplateRef": {"name": "web"}})
}

fn apply_template(cluster: &mut Cluster) {
    let template = json!({"metadata": {"namespace": "shop", "name": "web"}, "template": template()});
    cluster.apply_pod_template(&object(template)).expect("a valid PodTemplate");
}

#[test]
fn a_ready_buffer_has_as_many_virtual_pods_as_its_status_says() {
    let mut cluster = Cluster::new();
    cluster.apply_capacity_buffer(&object(buffer(by_template(), "True", 2)));
    assert!(snapshot(&cluster).buffer_pods.is_empty(), "the template is not there yet");
    apply_template(&mut cluster);
    let pods = snapshot(&cluster).buffer_pods;
    let keys: Vec<String> = pods.iter().map(|p| p.key()).collect();
    assert_eq!(keys, ["shop/capacity-buffer-spare-1", "shop/capacity-buffer-spare-2"]);
    let pod = &pods[1];
    assert_eq!((pod.uid.as_ref(), pod.buffer.as_deref()), ("b-2", Some("spare")));
    assert_eq!(pod.labels.get_or_empty("app"), "web");
    assert_eq!(pod.spec.requests.amount(CPU), Amount::units(2));
    assert!(pod.spec.volumes.is_empty(), "nothing would bind their claims");
    assert!(pod.status.unschedulable && pod.node_name.is_none());
    assert_eq!(pod.status.phase, Phase::Unset);
    assert_eq!(pod.created_seconds, Some(NOW.as_second()));
}

#[test]
fn a_buffer_that_is_not_ready_or_wants_nothing_has_no_pods() {
    for (ready, replicas) in [("False", 2), ("True", 0)] {
        let mut cluster = Cluster::new();
        apply_template(&mut cluster);
        cluster.apply_capacity_buffer(&object(buffer(by_template(), "True", 1)));
        cluster.apply_capacity_buffer(&object(buffer(by_template(), ready, replicas)));
        assert!(snapshot(&cluster).buffer_pods.is_empty(), "{ready} {replicas}");
    }
}

#[test]
fn a_buffer_may_take_its_template_from_a_workload() {
    for (kind, group) in
        [("Deployment", json!("apps")), ("StatefulSet", Value::Null), ("ReplicaSet", json!("apps"))]
    {
        let mut cluster = Cluster::new();
        let spec = json!({"scalableRef": {"apiGroup": group, "kind": kind, "name": "web"}});
        cluster.apply_capacity_buffer(&object(buffer(spec, "True", 1)));
        let owner = json!({"metadata": {"namespace": "shop", "name": "web"},
            "spec": {"selector": {}, "serviceName": "s", "template": template()}});
        match kind {
            "Deployment" => cluster.apply_deployment(&object(owner)),
            "StatefulSet" => cluster.apply_stateful_set(&object(owner)),
            _ => cluster.apply_replica_set(&object(owner)),
        }
        .expect("a valid workload");
        assert_eq!(snapshot(&cluster).buffer_pods.len(), 1, "{kind}");
        match kind {
            "Deployment" => cluster.delete_deployment("shop", "web"),
            "StatefulSet" => cluster.delete_stateful_set("shop", "web"),
            _ => cluster.delete_replica_set("shop", "web"),
        }
        assert!(snapshot(&cluster).buffer_pods.is_empty(), "{kind}");
    }
}

#[test]
fn a_deleted_buffer_or_template_takes_its_pods_along() {
    let mut cluster = Cluster::new();
    apply_template(&mut cluster);
    cluster.apply_capacity_buffer(&object(buffer(by_template(), "True", 1)));
    assert_eq!(snapshot(&cluster).buffer_pods.len(), 1);
    cluster.delete_capacity_buffer("shop", "spare");
    assert!(snapshot(&cluster).buffer_pods.is_empty());
    cluster.apply_capacity_buffer(&object(buffer(by_template(), "True", 1)));
    cluster.delete_pod_template("shop", "web");
    assert!(snapshot(&cluster).buffer_pods.is_empty());
}

fn wanted(spec: serde_json::Value, requests: &[(&str, i64)], workload: Option<i32>) -> i32 {
    let mut facts = karpenter_state::TemplateFacts { workload_replicas: workload, ..Default::default() };
    for (name, units) in requests {
        facts.requests.set(*name, karpenter_engine::resources::Amount::units(*units));
    }
    karpenter_state::desired_replicas(&serde_json::from_value(spec).expect("a buffer's spec"), &facts)
}

#[test]
fn the_larger_of_number_and_share_counts_as_far_as_limits_go() {
    let cpu = [("cpu", 2), ("pods", 1)];
    for (spec, workload, expected) in [
        (json!({"replicas": 3}), None, 3),
        (json!({"percentage": 20}), Some(10), 2),
        (json!({"percentage": 25}), Some(10), 3),
        (json!({"percentage": 1}), Some(1), 1),
        (json!({"percentage": 0}), Some(10), 0),
        (json!({"percentage": 50}), Some(0), 0),
        (json!({"percentage": 50}), None, 0),
        (json!({"replicas": 5, "percentage": 80}), Some(10), 8),
        (json!({"replicas": 9, "limits": {"cpu": "7"}}), None, 3),
        (json!({"limits": {"cpu": "7", "memory": "1"}}), None, 3),
        (json!({"limits": {"memory": "1"}}), None, 0),
        (json!({"replicas": 2, "limits": {"memory": "1", "pods": "1"}}), None, 2),
        (json!({"replicas": 2, "limits": {"cpu": "1"}}), None, 0),
        (json!({}), None, 0),
    ] {
        assert_eq!(wanted(spec.clone(), &cpu, workload), expected, "{spec}");
    }
}
