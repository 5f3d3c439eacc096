//! Every node's kubelet, as far as the API shows it: nodes become ready, pods run, finish and end.
//!
//! It does what kwok does, and takes its time as real kubelets do. A kubelet that was silenced ([`Cluster::set_kubelet`])
//! does nothing until it comes back.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Node,
    NodeAddress, NodeCondition, NodeStatus, Pod, PodCondition, PodIP,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use crate::actor::{Actor, Agenda, unless_gone};
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_deleting, is_finished, node_of, node_ready, phase, uid};
use crate::placement;

/// How long a pod that runs to an end does so, in seconds; without it, what [`Timing::work`] draws.
pub const RUN_SECONDS: &str = "sim.karpenter.sh/run-seconds";
/// Has a pod that runs to an end fail instead of succeed.
pub const FAILS: &str = "sim.karpenter.sh/fails";

/// How long things take on a node.
#[derive(Clone, Debug)]
pub struct Timing {
    /// From a Node's creation to its being ready.
    pub ready: Span,
    /// From a pod's binding to its running.
    pub start: Span,
    /// How long a pod that is not restarted runs.
    pub work: Span,
    /// How much of its grace period, in percent, a deleted pod takes to end.
    pub end_percent: (u64, u64),
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            ready: Span::secs(1, 10),
            start: Span::millis(200, 3000),
            work: Span::secs(20, 300),
            end_percent: (0, 100),
        }
    }
}

impl Timing {
    /// Nearly at once, as kwok does it.
    pub fn quick() -> Self {
        Self { ready: Span::NONE, start: Span::NONE, work: Span::secs(5, 5), end_percent: (0, 0) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Node(String),
    Start(ObjectKey),
    /// The kubelet is back, and so are its pods.
    Resume(ObjectKey),
    Finish(ObjectKey),
    End(ObjectKey),
}

/// All kubelets.
pub(crate) struct Kubelet {
    cluster: Cluster,
    client: kube::Client,
    chance: Chance,
    timing: Timing,
    addresses: u32,
}

impl Kubelet {
    pub(crate) fn new(cluster: &Cluster, timing: Timing) -> Self {
        Self {
            cluster: cluster.clone(),
            client: cluster.client(Self::NAME),
            chance: Chance::new(cluster.entropy(), Self::NAME),
            timing,
            addresses: 0,
        }
    }

    /// Notes what a pod of this kubelet needs.
    fn look_at(&mut self, key: &ObjectKey, pod: &Pod, agenda: &mut Agenda<Key>) {
        if node_of(pod).is_none() {
            return;
        }
        if is_deleting(pod) {
            // The first look decides how long it takes, so that later writes to the pod do not stretch it. A shortened
            // grace period does shorten it.
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default().unsigned_abs();
            let (least, most) = self.timing.end_percent;
            let percent = self.chance.between(least, most);
            let left = if is_finished(pod) { 0 } else { grace * 1000 * percent.min(100) / 100 };
            agenda.after(Key::End(key.clone()), Duration::from_millis(left));
        } else if matches!(phase(pod), "" | "Pending") {
            let start = Key::Start(key.clone());
            if !agenda.has(&start) {
                let delay = self.chance.duration(&self.timing.start);
                agenda.after(start, delay);
            }
        } else if phase(pod) == "Running" && marked_unready(pod) {
            agenda.now(Key::Resume(key.clone()));
        } else if phase(pod) == "Running" && runs_to_an_end(pod) {
            let finish = Key::Finish(key.clone());
            if !agenda.has(&finish) {
                let set = annotation(pod, RUN_SECONDS).and_then(|text| text.parse().ok());
                let delay = set.map_or_else(|| self.chance.duration(&self.timing.work), Duration::from_secs);
                agenda.after(finish, delay);
            }
        }
    }

    fn next_address(&mut self) -> String {
        self.addresses += 1;
        let [_, a, b, c] = self.addresses.to_be_bytes();
        format!("10.{a}.{b}.{c}")
    }

    async fn start_node(&mut self, name: &str) -> Result<(), kube::Error> {
        let node = self.cluster.read(|objects| objects.node(name).cloned());
        let Some(node) = node.filter(|node| node_ready(node) != Some("True")) else { return Ok(()) };
        let mut node = Node::clone(&node);
        let address = self.next_address();
        become_ready(&mut node, &address, self.cluster.now());
        let api: Api<Node> = Api::all(self.client.clone());
        unless_gone(api.replace_status(name, &PostParams::default(), &node).await).map(drop)
    }

    async fn write_status(&self, pod: &Pod) -> Result<(), kube::Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        unless_gone(api.replace_status(name, &PostParams::default(), pod).await).map(drop)
    }

    /// A pod, if its kubelet is there to look after it.
    fn reachable(&self, key: &ObjectKey) -> Option<Arc<Pod>> {
        let pod = self.cluster.read(|objects| {
            let pod = objects.pods.get(key)?;
            objects.node(node_of(pod)?)?;
            Some(Arc::clone(pod))
        })?;
        self.cluster.kubelet_alive(node_of(&pod)?).then_some(pod)
    }
}

/// Whether it is not ready only because its node was not.
fn marked_unready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.reason.as_deref() == Some("NodeNotReady"))
}

/// Pods that are not restarted when they succeed.
fn runs_to_an_end(pod: &Pod) -> bool {
    matches!(pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()), Some("Never" | "OnFailure"))
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn become_ready(node: &mut Node, address: &str, now: Timestamp) {
    let name = placement::name(node).to_owned();
    let status = node.status.get_or_insert_default();
    set_node_condition(status, "Ready", "True", "KubeletReady", "kubelet is posting ready status", now);
    for (kind, reason, message) in [
        ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ] {
        set_node_condition(status, kind, "False", reason, message, now);
    }
    let addresses = status.addresses.get_or_insert_default();
    if addresses.is_empty() {
        addresses.push(NodeAddress { type_: "InternalIP".to_owned(), address: address.to_owned() });
        addresses.push(NodeAddress { type_: "Hostname".to_owned(), address: name.clone() });
    }
    if status.allocatable.as_ref().is_none_or(|allocatable| allocatable.is_empty()) {
        status.allocatable = status.capacity.clone();
    }
    let info = status.node_info.get_or_insert_default();
    if info.kubelet_version.is_empty() {
        info.kubelet_version = "v1.36.3".to_owned();
        info.architecture = "amd64".to_owned();
        info.operating_system = "linux".to_owned();
        info.boot_id = format!("boot-{name}");
    }
}

/// Sets a node's condition, keeping the time of its last transition where its status stays.
pub(crate) fn set_node_condition(
    status: &mut NodeStatus,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let old = conditions.iter().position(|condition| condition.type_ == kind);
    let kept = old.map(|at| &conditions[at]).filter(|condition| condition.status == value);
    let since = kept.and_then(|condition| condition.last_transition_time.clone()).unwrap_or(Time(now));
    let condition = NodeCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(since),
    };
    match old {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// Sets a pod's condition, keeping the time of its last transition where its status stays.
pub(crate) fn set_pod_condition(
    pod: &mut Pod,
    kind: &str,
    value: &str,
    reason: Option<&str>,
    now: Timestamp,
) {
    let generation = pod.metadata.generation;
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    let old = conditions.iter().position(|condition| condition.type_ == kind);
    let kept = old.map(|at| &conditions[at]).filter(|condition| condition.status == value);
    let since = kept.and_then(|condition| condition.last_transition_time.clone()).unwrap_or(Time(now));
    let condition = PodCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: reason.map(str::to_owned),
        last_transition_time: Some(since),
        observed_generation: generation,
        ..PodCondition::default()
    };
    match old {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

fn run(pod: &mut Pod, address: &str, host: Option<String>, now: Timestamp) {
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"] {
        set_pod_condition(pod, kind, "True", None, now);
    }
    let started = |container: &Container, running: bool| ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ready: true,
        started: Some(running),
        state: Some(if running {
            let running = ContainerStateRunning { started_at: Some(Time(now)) };
            ContainerState { running: Some(running), ..ContainerState::default() }
        } else {
            let terminated = ContainerStateTerminated {
                exit_code: 0,
                reason: Some("Completed".to_owned()),
                finished_at: Some(Time(now)),
                ..ContainerStateTerminated::default()
            };
            ContainerState { terminated: Some(terminated), ..ContainerState::default() }
        }),
        ..ContainerStatus::default()
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Running".to_owned());
    status.start_time = Some(Time(now));
    status.host_ip = host;
    status.pod_ip = Some(address.to_owned());
    status.pod_ips = Some(vec![PodIP { ip: address.to_owned() }]);
    status.container_statuses =
        Some(spec.containers.iter().map(|container| started(container, true)).collect());
    let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    status.init_container_statuses = spec
        .init_containers
        .map(|all| all.iter().map(|container| started(container, is_sidecar(container))).collect());
}

impl Actor for Kubelet {
    type Key = Key;
    const NAME: &'static str = "kubelet";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<Key>) {
        match change {
            Change::Node(edit) => {
                let Some(node) = &edit.new else { return };
                let key = Key::Node(edit.key.name.to_string());
                if edit.old.is_none() && node_ready(node) != Some("True") {
                    let delay = self.chance.duration(&self.timing.ready);
                    agenda.after(key, delay);
                }
                if edit.old.is_none() {
                    // Pods may have been bound to it before it was there.
                    for pod in objects.pods_on(&edit.key.name) {
                        self.look_at(&ObjectKey::of(&**pod), pod, agenda);
                    }
                }
            }
            Change::Pod(edit) => {
                if let Some(pod) = &edit.new {
                    let ending = |pod: &Pod| (is_deleting(pod), pod.metadata.deletion_grace_period_seconds);
                    let news = edit.old.as_ref().is_none_or(|old| {
                        ending(old) != ending(pod) || phase(old) != phase(pod) || node_of(old) != node_of(pod)
                    });
                    if news {
                        self.look_at(&edit.key, pod, agenda);
                    }
                }
            }
            Change::Kubelet { node, alive: true } => {
                agenda.now(Key::Node(node.clone()));
                for pod in objects.pods_on(node) {
                    self.look_at(&ObjectKey::of(&**pod), pod, agenda);
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &Key, _: &mut Agenda<Key>) -> Result<(), kube::Error> {
        let now = self.cluster.now();
        match key {
            Key::Node(name) if self.cluster.kubelet_alive(name) => self.start_node(name).await,
            Key::Node(_) => Ok(()),
            Key::Start(key) => {
                let Some(pod) = self.reachable(key) else { return Ok(()) };
                if is_deleting(&*pod) || !matches!(phase(&pod), "" | "Pending") {
                    return Ok(());
                }
                let host = self.cluster.read(|objects| {
                    let node = objects.node(node_of(&pod)?)?;
                    Some(node.status.as_ref()?.addresses.as_ref()?.first()?.address.clone())
                });
                let mut pod = Pod::clone(&pod);
                let address = self.next_address();
                run(&mut pod, &address, host, now);
                self.write_status(&pod).await
            }
            Key::Resume(key) => {
                let Some(pod) = self.reachable(key) else { return Ok(()) };
                if !marked_unready(&pod) {
                    return Ok(());
                }
                let mut pod = Pod::clone(&pod);
                set_pod_condition(&mut pod, "Ready", "True", None, now);
                self.write_status(&pod).await
            }
            Key::Finish(key) => {
                let Some(pod) = self.reachable(key) else { return Ok(()) };
                if is_deleting(&*pod) || phase(&pod) != "Running" {
                    return Ok(());
                }
                let failed = annotation(&pod, FAILS) == Some("true");
                let mut pod = Pod::clone(&pod);
                for kind in ["Ready", "ContainersReady"] {
                    set_pod_condition(&mut pod, kind, "False", Some("PodCompleted"), now);
                }
                let phase = if failed { "Failed" } else { "Succeeded" };
                pod.status.get_or_insert_default().phase = Some(phase.to_owned());
                self.write_status(&pod).await
            }
            Key::End(key) => {
                let Some(pod) = self.reachable(key).filter(|pod| is_deleting(&**pod)) else { return Ok(()) };
                tracing::trace!(pod = %key, uid = uid(&*pod), "ends");
                hands::delete_pod(&self.client, &pod, Some(0)).await
            }
        }
    }
}
