//! Objects for tests, in few words.

use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::client::machine::Machine;
use crate::client::scalable::{Scalable, ScalableKind};

/// An object from JSON.
pub(crate) fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

/// A MachineDeployment `default/<name>` with these annotations besides 4 cores and 16Gi.
pub(crate) fn deployment_json(name: &str, annotations: &[(&str, &str)]) -> Value {
    let mut all = json!({
        "capacity.cluster-autoscaler.kubernetes.io/cpu": "4",
        "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi",
    });
    for (key, value) in annotations {
        all[*key] = (*value).into();
    }
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "labels": {"node.cluster.x-k8s.io/karpenter-member": "", "cluster.x-k8s.io/cluster-name": "c"},
            "annotations": all,
        },
        "spec": {"clusterName": "c", "replicas": 0, "template": {"metadata": {}, "spec": {
            "infrastructureRef": {"apiGroup": "infra.x", "kind": "FakeMachineTemplate", "name": "t"},
        }}},
    })
}

/// The same, read.
pub(crate) fn deployment(name: &str, annotations: &[(&str, &str)]) -> Scalable {
    read_deployment(deployment_json(name, annotations))
}

pub(crate) fn read_deployment(value: Value) -> Scalable {
    Scalable::read(ScalableKind::MachineDeployment, &object(value)).expect("a MachineDeployment")
}

/// A Machine `default/<name>`, made at this second of 2026.
pub(crate) fn machine(name: &str, second: i64, annotations: &[(&str, &str)]) -> Machine {
    let created = jiff::Timestamp::from_second(1_767_225_600 + second).expect("a time");
    let mut value = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "creationTimestamp": created.to_string(), "annotations": {},
            "labels": {"cluster.x-k8s.io/deployment-name": "m", "cluster.x-k8s.io/set-name": "m-1"},
        },
        "spec": {"clusterName": "c"},
    });
    for (key, text) in annotations {
        value["metadata"]["annotations"][*key] = (*text).into();
    }
    Machine::read(&object(value)).expect("a Machine")
}
