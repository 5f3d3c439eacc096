//! What kube-controller-manager makes of nodes: silent kubelets are found out, taints follow conditions, pods on unready nodes
//! are marked so.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::kubelet::{set_node_condition, set_pod_condition};
use crate::objects::{Change, Objects, is_ready, node_ready};
use crate::placement;

/// How long a kubelet may be silent: `--node-monitor-grace-period`.
const GRACE: Duration = Duration::from_secs(50);

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Have taints say what conditions say.
    Taints(String),
    /// See whether the kubelet is still silent.
    Silence(String),
    /// Mark a pod as not ready because its node is not.
    Pod(ObjectKey),
}

/// See the module.
pub(crate) struct NodeLifecycle {
    cluster: Cluster,
    client: kube::Client,
}

impl NodeLifecycle {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.cluster.read(|objects| objects.node(name).cloned())
    }
}

/// The taints a node has for its readiness.
fn wanted(node: &Node) -> Vec<(&'static str, &'static str)> {
    let cordon =
        placement::is_unschedulable(node).then_some(("node.kubernetes.io/unschedulable", "NoSchedule"));
    let key = match node_ready(node) {
        Some("True") => None,
        Some("Unknown") => Some(UNREACHABLE),
        // A node that has said nothing yet keeps what it was created with.
        Some(_) => Some(NOT_READY),
        None => return cordon.into_iter().chain([(NOT_READY, "NoSchedule")]).collect(),
    };
    let readiness = key.into_iter().flat_map(|key| [(key, "NoSchedule"), (key, "NoExecute")]);
    cordon.into_iter().chain(readiness).collect()
}

fn is_ours(taint: &Taint) -> bool {
    matches!(taint.key.as_str(), NOT_READY | UNREACHABLE | "node.kubernetes.io/unschedulable")
}

impl Actor for NodeLifecycle {
    type Key = Key;
    const NAME: &'static str = "node-lifecycle";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<Key>) {
        match change {
            Change::Node(edit) => {
                let Some(node) = &edit.new else { return };
                let name = edit.key.name.to_string();
                agenda.now(Key::Taints(name.clone()));
                if edit.old.is_none() {
                    agenda.after(Key::Silence(name.clone()), GRACE);
                }
                let was = edit.old.as_deref().and_then(node_ready);
                if node_ready(node) != Some("True") && was == Some("True") {
                    for pod in objects.pods_on(&name).filter(|pod| is_ready(pod)) {
                        agenda.now(Key::Pod(ObjectKey::of(&**pod)));
                    }
                }
            }
            Change::Kubelet { node, alive: false } => agenda.after(Key::Silence(node.clone()), GRACE),
            _ => {}
        }
    }

    async fn act(&mut self, key: &Key, _: &mut Agenda<Key>) -> Result<(), kube::Error> {
        let now = self.cluster.now();
        match key {
            Key::Taints(name) => {
                let Some(node) = self.node(name) else { return Ok(()) };
                let wanted = wanted(&node);
                let has = |key: &str, effect: &str| {
                    placement::taints(&node).iter().any(|taint| taint.key == key && taint.effect == effect)
                };
                let stale = |taint: &Taint| {
                    is_ours(taint) && !wanted.contains(&(taint.key.as_str(), taint.effect.as_str()))
                };
                let complete = wanted.iter().all(|(key, effect)| has(key, effect));
                if complete && !placement::taints(&node).iter().any(stale) {
                    return Ok(());
                }
                let mut taints: Vec<Taint> =
                    placement::taints(&node).iter().filter(|taint| !stale(taint)).cloned().collect();
                for (key, effect) in wanted.iter().filter(|(key, effect)| !has(key, effect)) {
                    taints.push(Taint {
                        key: (*key).to_owned(),
                        effect: (*effect).to_owned(),
                        time_added: Some(Time(now)),
                        value: None,
                    });
                }
                let mut node = Node::clone(&node);
                node.spec.get_or_insert_default().taints = Some(taints);
                let api: Api<Node> = Api::all(self.client.clone());
                unless_gone(api.replace(name, &PostParams::default(), &node).await).map(drop)
            }
            Key::Silence(name) => {
                let Some(node) = self.node(name) else { return Ok(()) };
                if self.cluster.kubelet_alive(name) || node_ready(&node) == Some("Unknown") {
                    return Ok(());
                }
                let mut node = Node::clone(&node);
                let status = node.status.get_or_insert_default();
                for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
                    let why = "Kubelet stopped posting node status.";
                    set_node_condition(status, kind, "Unknown", "NodeStatusUnknown", why, now);
                }
                let api: Api<Node> = Api::all(self.client.clone());
                unless_gone(api.replace_status(name, &PostParams::default(), &node).await).map(drop)
            }
            Key::Pod(key) => {
                let pod = self.cluster.read(|objects| objects.pods.get(key).cloned());
                let Some(pod) = pod.filter(|pod| is_ready(pod)) else { return Ok(()) };
                let mut pod = Pod::clone(&pod);
                set_pod_condition(&mut pod, "Ready", "False", Some("NodeNotReady"), now);
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
                unless_gone(api.replace_status(&key.name, &PostParams::default(), &pod).await).map(drop)
            }
        }
    }
}
