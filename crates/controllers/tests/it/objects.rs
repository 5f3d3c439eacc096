//! Builders of the objects tests speak of: plain JSON that is what a test needs unless it says otherwise with [`With::with`].

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub(crate) const NODE_CLASS_LABEL: &str = "karpenter.test.sh/fakenodeclass";

/// Changes what a builder made.
pub(crate) trait With {
    /// As it is, but for `patch` (a JSON merge patch).
    fn with(self, patch: Value) -> Self;
}

impl With for Value {
    fn with(mut self, patch: Value) -> Self {
        merge(&mut self, patch);
        self
    }
}

fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(&key);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch,
    }
}

/// The NodeClass everything here refers to, ready.
pub(crate) fn node_class() -> Value {
    json!({
        "apiVersion": "karpenter.test.sh/v1alpha1", "kind": "FakeNodeClass", "metadata": {"name": "default"},
        "status": {"conditions": [condition("Ready", "True", "2024-01-01T00:00:00Z")]},
    })
}

/// A NodePool that is ready, consolidates at once and lets everything be disrupted.
pub(crate) fn node_pool(name: &str) -> Value {
    let since = "2024-01-01T00:00:00Z";
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "disruption": {
                "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized",
                "budgets": [{"nodes": "100%"}],
            },
            "template": {"spec": {
                "requirements": [],
                "expireAfter": "Never",
                "nodeClassRef": {"group": "karpenter.test.sh", "kind": "FakeNodeClass", "name": "default"},
            }},
        },
        "status": {"conditions": [
            condition("ValidationSucceeded", "True", since),
            condition("NodeClassReady", "True", since),
            condition("Ready", "True", since),
        ]},
    })
}

/// A NodeClaim of this pool that is launched, registered and initialized on `fake-it-<size>`, on demand in the first zone.
/// Its provider id and node name follow from its name.
pub(crate) fn claim(name: &str, pool: &str, size: u32) -> Value {
    let since = "2024-01-01T00:00:00Z";
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "labels": machine_labels(pool, size)},
        "spec": {
            "requirements": [],
            "expireAfter": "Never",
            "nodeClassRef": {"group": "karpenter.test.sh", "kind": "FakeNodeClass", "name": "default"},
        },
        "status": {
            "providerID": provider_id(name), "nodeName": node_name(name),
            "capacity": capacity(size), "allocatable": capacity(size),
            "conditions": [
                condition("Launched", "True", since),
                condition("Registered", "True", since),
                condition("Initialized", "True", since),
                condition("Ready", "True", since),
            ],
        },
    })
}

/// A NodeClaim nothing has happened to yet.
pub(crate) fn fresh_claim(name: &str) -> Value {
    claim(name, "default", 1).with(json!({"status": null, "metadata": {"labels": null}})).with(
        json!({"metadata": {"labels": {"karpenter.sh/nodepool": "default", NODE_CLASS_LABEL: "default"}}}),
    )
}

/// A Node that has just joined, of the instance of this provider id: ready, and tainted until it is registered.
pub(crate) fn joining_node(name: &str, provider_id: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {
            "providerID": provider_id,
            "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}],
        },
        "status": {
            "capacity": capacity(1), "allocatable": capacity(1),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    })
}

/// The Node of a [`claim`] of the same arguments: ready and initialized.
pub(crate) fn node(claim: &str, pool: &str, size: u32) -> Value {
    let mut labels = machine_labels(pool, size);
    labels.insert("karpenter.sh/registered".into(), "true".into());
    labels.insert("karpenter.sh/initialized".into(), "true".into());
    labels.insert("kubernetes.io/hostname".into(), node_name(claim));
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(claim), "labels": labels},
        "spec": {"providerID": provider_id(claim)},
        "status": {
            "capacity": capacity(size), "allocatable": capacity(size),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    })
}

/// A pod that asks for this much. It has no owner: one that does not exist would have the server collect it.
pub(crate) fn pod(name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"app": name},
        },
        "spec": {"containers": [{
            "name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "10Mi"}},
        }]},
    })
}

/// The same pod after kube-scheduler found no place for it.
pub(crate) fn pending_pod(name: &str, cpu: &str) -> Value {
    pod(name, cpu).with(json!({"status": {"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/0 nodes are available",
    }]}}))
}

/// The same pod running on the node of this claim.
pub(crate) fn pod_on(claim: &str, name: &str, cpu: &str) -> Value {
    pod(name, cpu).with(json!({
        "spec": {"nodeName": node_name(claim)},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

pub(crate) fn condition(type_: &str, status: &str, since: &str) -> Value {
    json!({"type": type_, "status": status, "reason": type_, "message": "", "lastTransitionTime": since})
}

/// The condition of this type of an object the server gave.
pub(crate) fn condition_of<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

/// Status, reason and message of an object's condition.
pub(crate) fn state_of(object: &Value, type_: &str) -> Option<(String, String, String)> {
    let condition = condition_of(object, type_)?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

pub(crate) fn provider_id(claim: &str) -> String {
    format!("fake:///{claim}")
}

pub(crate) fn node_name(claim: &str) -> String {
    format!("node-{claim}")
}

fn capacity(size: u32) -> Value {
    json!({"cpu": size.to_string(), "memory": format!("{}Gi", 2 * size), "pods": (10 * size).to_string()})
}

fn machine_labels(pool: &str, size: u32) -> BTreeMap<String, String> {
    let instance_type = format!("fake-it-{size}");
    [
        ("karpenter.sh/nodepool", pool),
        (NODE_CLASS_LABEL, "default"),
        ("node.kubernetes.io/instance-type", &instance_type),
        ("karpenter.sh/capacity-type", "on-demand"),
        ("topology.kubernetes.io/zone", "test-zone-1"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}
