//! The pod scheduler: finds a node for every pod that has none, as kube-scheduler does and with its own code.
//!
//! It shares nothing with the engine, so that a pod which lands here was placed by rules worked out twice. Its filters are
//! kube-scheduler's, in its order and with its words; its scoring is simpler (least allocated, ties by name), because where
//! several nodes do, Karpenter must not care which is taken. It does not preempt.

mod affinity;
mod ledger;
mod requests;
pub(crate) mod volumes;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Binding, Node, ObjectReference, PersistentVolumeClaim, Pod, PodCondition, PodSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::json;
use tokio::time::Instant;

use crate::actor::{Actor, Agenda, code, unless_gone};
use crate::cluster::Cluster;
use crate::objects::{Change, Objects, is_active, is_finished, node_of, uid};
use crate::placement;
use affinity::Neighbours;
use ledger::Ledger;
use volumes::Volumes;

const NAME: &str = "default-scheduler";
/// The annotation that tells the volume binder where a pod is going to be.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// A pod that found no place is tried again after this long even if nothing seems to have changed.
const FLUSH: Duration = Duration::from_secs(300);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Try the first pod in the queue.
    Cycle,
    /// Put a pod back into the queue.
    Retry(ObjectKey),
    /// See whether the volumes of a pod that has been given a node are there.
    Volumes(ObjectKey),
}

/// See the module.
pub(crate) struct Scheduler {
    cluster: Cluster,
    client: kube::Client,
    ledger: Ledger,
    /// Pods to try, most important first, then as they came.
    queue: BTreeMap<(Reverse<i32>, u64), ObjectKey>,
    places: BTreeMap<ObjectKey, (Reverse<i32>, u64)>,
    sequence: u64,
    /// Pods that found no place, and when they may be tried again.
    parked: BTreeMap<ObjectKey, Parked>,
    attempts: BTreeMap<ObjectKey, u32>,
    /// Pods that have a node and wait for their volumes.
    reserved: BTreeMap<ObjectKey, String>,
}

struct Parked {
    not_before: Instant,
}

enum Decision {
    Nothing,
    Bind(String),
    Prepare(String, Vec<Arc<PersistentVolumeClaim>>),
    Fail(Arc<Pod>, String),
}

impl Scheduler {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self {
            cluster: cluster.clone(),
            client: cluster.client(Self::NAME),
            ledger: Ledger::default(),
            queue: BTreeMap::new(),
            places: BTreeMap::new(),
            sequence: 0,
            parked: BTreeMap::new(),
            attempts: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }
    }

    fn enqueue(&mut self, key: &ObjectKey, pod: &Pod) {
        self.parked.remove(key);
        if self.places.contains_key(key) || self.reserved.contains_key(key) {
            return;
        }
        self.sequence += 1;
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
        let place = (Reverse(priority), self.sequence);
        self.places.insert(key.clone(), place);
        self.queue.insert(place, key.clone());
    }

    fn forget(&mut self, key: &ObjectKey) {
        if let Some(place) = self.places.remove(key) {
            self.queue.remove(&place);
        }
        self.parked.remove(key);
        self.attempts.remove(key);
        self.reserved.remove(key);
    }

    /// Something changed that may help pods which found no place.
    fn unpark(&mut self, agenda: &mut Agenda<Key>) {
        let now = Instant::now();
        for (key, parked) in &self.parked {
            agenda.after(Key::Retry(key.clone()), parked.not_before.saturating_duration_since(now));
        }
    }

    fn decide(&self, key: &ObjectKey, objects: &Objects) -> Decision {
        let Some(pod) = objects.pods.get(key).filter(|pod| is_pending(pod)) else { return Decision::Nothing };
        if objects.nodes.is_empty() {
            return Decision::Fail(Arc::clone(pod), "no nodes available to schedule pods".to_owned());
        }
        let total = objects.nodes.len();
        let spec = pod.spec.clone().unwrap_or_default();
        let volumes = match Volumes::of(pod, objects) {
            Ok(volumes) => volumes,
            Err(why) => {
                let message = format!(
                    "0/{total} nodes are available: {why}. preemption: 0/{total} nodes are available: {total} Preemption is not helpful for scheduling."
                );
                return Decision::Fail(Arc::clone(pod), message);
            }
        };
        let wanted = requests::of_pod(&spec);
        let ports = requests::host_ports(&spec);
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let neighbours = Neighbours::of(pod, objects);
        let mut reasons = Reasons::default();
        let mut best: Option<(Score, &Arc<Node>)> = None;
        for node in objects.nodes.values() {
            let objection = if placement::is_unschedulable(node)
                && placement::untolerated(tolerations, &[unschedulable_taint()], &["NoSchedule"]).is_some()
            {
                Some(Objection::fixed("node(s) were unschedulable"))
            } else if placement::untolerated(
                tolerations,
                placement::taints(node),
                &["NoSchedule", "NoExecute"],
            )
            .is_some()
            {
                Some(Objection::fixed("node(s) had untolerated taint(s)"))
            } else if !placement::accepts(&spec, node) {
                Some(Objection::fixed("node(s) didn't match Pod's node affinity/selector"))
            } else if self.ledger.ports_taken(placement::name(node), &ports) {
                Some(Objection::open("node(s) didn't have free ports for the requested pod ports"))
            } else if let Some(lacking) = self.ledger.lacking(node, &wanted) {
                Some(lacking)
            } else if let Some(why) = volumes.objection(node, objects) {
                Some(if why == volumes::TOO_MANY { Objection::open(why) } else { Objection::fixed(why) })
            } else {
                neighbours.objection(node).map(|why| match why {
                    affinity::SPREAD_LABEL | affinity::AFFINITY => Objection::fixed(why),
                    _ => Objection::open(why),
                })
            };
            if let Some(objection) = objection {
                reasons.add(objection);
                continue;
            }
            let score = self.score(&spec, node, &wanted);
            if best.as_ref().is_none_or(|(other, _)| score > *other) {
                best = Some((score, node));
            }
        }
        let Some((_, node)) = best else { return Decision::Fail(Arc::clone(pod), reasons.message(total)) };
        let claims: Vec<_> = volumes.waiting().cloned().collect();
        let node = placement::name(node).to_owned();
        if claims.is_empty() { Decision::Bind(node) } else { Decision::Prepare(node, claims) }
    }

    fn score(
        &self,
        spec: &k8s_openapi::api::core::v1::PodSpec,
        node: &Node,
        wanted: &requests::Amounts,
    ) -> Score {
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let avoided =
            placement::untolerated(tolerations, placement::taints(node), &["PreferNoSchedule"]).is_some();
        Score {
            welcome: !avoided,
            preference: placement::preference(spec, node),
            free_percent: self.ledger.free_percent(node, wanted),
        }
    }

    async fn bind(
        &mut self,
        key: &ObjectKey,
        node: String,
        agenda: &mut Agenda<Key>,
    ) -> Result<(), kube::Error> {
        let uid = self.cluster.read(|objects| objects.pods.get(key).map(|pod| uid(&**pod).to_owned()));
        let binding = Binding {
            metadata: ObjectMeta { name: Some(key.name.to_string()), uid, ..ObjectMeta::default() },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node),
                ..ObjectReference::default()
            },
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let bound: Result<Status, _> =
            pods.create_subresource("binding", &key.name, &PostParams::default(), &binding).await;
        match bound {
            Ok(_) => self.forget(key),
            Err(error) if matches!(code(&error), 404 | 409) => self.forget(key),
            Err(error) => {
                agenda.after(Key::Retry(key.clone()), FIRST_BACKOFF);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn fail(
        &mut self,
        key: &ObjectKey,
        pod: &Pod,
        message: String,
        agenda: &mut Agenda<Key>,
    ) -> Result<(), kube::Error> {
        let attempts = self.attempts.entry(key.clone()).or_default();
        *attempts += 1;
        let backoff = (FIRST_BACKOFF * 2u32.saturating_pow(*attempts - 1)).min(MAX_BACKOFF);
        self.parked.insert(key.clone(), Parked { not_before: Instant::now() + backoff });
        agenda.after(Key::Retry(key.clone()), FLUSH);
        let Some(pod) = unschedulable(pod, message, self.cluster.now()) else { return Ok(()) };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        match pods.replace_status(&key.name, &PostParams::default(), &pod).await {
            // Somebody else wrote to it: it will come round again.
            Err(error) if code(&error) == 409 => {
                agenda.after(Key::Retry(key.clone()), backoff);
                Ok(())
            }
            other => unless_gone(other).map(drop),
        }
    }
}

/// The pod with the condition that it found no place; `None` if it says so already.
fn unschedulable(pod: &Pod, message: String, now: jiff::Timestamp) -> Option<Pod> {
    let mut pod = pod.clone();
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    let old = conditions.iter().position(|condition| condition.type_ == "PodScheduled");
    let same = old.map(|at| &conditions[at]).filter(|condition| condition.status == "False");
    if same.is_some_and(|condition| condition.message.as_ref() == Some(&message)) {
        return None;
    }
    let since = same.and_then(|condition| condition.last_transition_time.clone());
    let condition = PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("Unschedulable".to_owned()),
        message: Some(message),
        last_transition_time: since.or(Some(Time(now))),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    };
    match old {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    Some(pod)
}

fn unschedulable_taint() -> k8s_openapi::api::core::v1::Taint {
    k8s_openapi::api::core::v1::Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Default::default()
    }
}

/// Whether a node could hold a pod if nothing else were there.
pub(crate) fn could_hold(node: &Node, spec: &PodSpec) -> bool {
    let allocatable = ledger::allocatable(node);
    let wanted = requests::of_pod(spec);
    wanted.iter().all(|(name, amount)| *amount <= allocatable.get(name).copied().unwrap_or_default())
}

/// Whether it is this scheduler's turn.
fn is_pending(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let ours = spec.scheduler_name.as_deref().unwrap_or(NAME) == NAME;
    node_of(pod).is_none() && is_active(pod) && ours && !gated
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    welcome: bool,
    preference: i64,
    free_percent: i64,
}

/// Why a node does not do; `open` if removing pods from it could help.
pub(crate) struct Objection {
    reasons: Vec<String>,
    open: bool,
}

impl Objection {
    fn fixed(reason: &str) -> Self {
        Self { reasons: vec![reason.to_owned()], open: false }
    }

    fn open(reason: &str) -> Self {
        Self { reasons: vec![reason.to_owned()], open: true }
    }
}

/// The objections of all nodes, counted.
#[derive(Default)]
struct Reasons {
    counts: BTreeMap<String, usize>,
    open: usize,
    fixed: usize,
}

impl Reasons {
    fn add(&mut self, objection: Objection) {
        for reason in objection.reasons {
            *self.counts.entry(reason).or_default() += 1;
        }
        if objection.open { self.open += 1 } else { self.fixed += 1 }
    }

    fn message(&self, total: usize) -> String {
        let listed = |counts: &mut dyn Iterator<Item = (&str, usize)>| {
            let mut texts: Vec<String> = counts.map(|(reason, count)| format!("{count} {reason}")).collect();
            texts.sort();
            texts.join(", ")
        };
        let reasons = listed(&mut self.counts.iter().map(|(reason, count)| (reason.as_str(), *count)));
        let preemption = [
            ("No preemption victims found for incoming pod", self.open),
            ("Preemption is not helpful for scheduling", self.fixed),
        ];
        let preemption = listed(&mut preemption.into_iter().filter(|(_, count)| *count > 0));
        let mut message = format!("0/{total} nodes are available: {reasons}.");
        // Writing into a string cannot fail.
        let _ = write!(message, " preemption: 0/{total} nodes are available: {preemption}.");
        message
    }
}

impl Actor for Scheduler {
    type Key = Key;
    const NAME: &'static str = "scheduler";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<Key>) {
        match change {
            Change::Pod(edit) => {
                self.ledger.follow(edit);
                let was_pending = edit.old.as_deref().is_some_and(is_pending);
                let placed =
                    |pod: Option<&Pod>| pod.is_some_and(|pod| node_of(pod).is_some() && !is_finished(pod));
                match edit.new.as_deref().filter(|pod| is_pending(pod)) {
                    Some(pod) if !was_pending => {
                        self.enqueue(&edit.key, pod);
                        agenda.now(Key::Cycle);
                    }
                    Some(_) => {}
                    None => self.forget(&edit.key),
                }
                // Room was made, or a neighbour came or went.
                if placed(edit.old.as_deref()) != placed(edit.new.as_deref()) {
                    self.unpark(agenda);
                }
            }
            Change::Node(edit) => {
                let relevant = |node: &Arc<Node>| {
                    let status = node.status.as_ref();
                    (
                        node.metadata.labels.clone(),
                        node.spec.clone(),
                        status.and_then(|s| s.allocatable.clone()),
                    )
                };
                if edit.new.is_some() && edit.old.as_ref().map(relevant) != edit.new.as_ref().map(relevant) {
                    self.unpark(agenda);
                }
            }
            Change::PersistentVolumeClaim(_) | Change::PersistentVolume(_) => {
                self.unpark(agenda);
                for key in self.reserved.keys() {
                    agenda.now(Key::Volumes(key.clone()));
                }
            }
            Change::StorageClass(_) | Change::CSINode(_) | Change::Namespace(_) => self.unpark(agenda),
            _ => {}
        }
    }

    async fn act(&mut self, key: &Key, agenda: &mut Agenda<Key>) -> Result<(), kube::Error> {
        match key {
            Key::Retry(key) => {
                let pod = self.cluster.read(|objects| objects.pods.get(key).cloned());
                if let Some(pod) = pod.filter(|pod| is_pending(pod)) {
                    self.enqueue(key, &pod);
                    agenda.now(Key::Cycle);
                }
                Ok(())
            }
            Key::Volumes(key) => {
                let Some(node) = self.reserved.get(key).cloned() else { return Ok(()) };
                let (there, ready) = self.cluster.read(|objects| {
                    let volumes = objects.pods.get(key).and_then(|pod| Volumes::of(pod, objects).ok());
                    let ready = volumes.is_some_and(|volumes| volumes.waiting().next().is_none());
                    (objects.node(&node).is_some(), ready)
                });
                if !there {
                    // The node went before its volumes came: back to the queue.
                    self.ledger.release(key);
                    self.reserved.remove(key);
                    agenda.now(Key::Retry(key.clone()));
                    return Ok(());
                }
                if !ready {
                    agenda.after(Key::Volumes(key.clone()), MAX_BACKOFF);
                    return Ok(());
                }
                self.ledger.release(key);
                self.bind(key, node, agenda).await
            }
            Key::Cycle => {
                let Some((_, key)) = self.queue.pop_first() else { return Ok(()) };
                self.places.remove(&key);
                if !self.queue.is_empty() {
                    agenda.now(Key::Cycle);
                }
                match self.cluster.read(|objects| self.decide(&key, objects)) {
                    Decision::Nothing => Ok(()),
                    Decision::Bind(node) => self.bind(&key, node, agenda).await,
                    Decision::Fail(pod, message) => self.fail(&key, &pod, message, agenda).await,
                    Decision::Prepare(node, claims) => {
                        if let Some(pod) = self.cluster.read(|objects| objects.pods.get(&key).cloned()) {
                            self.ledger.reserve(&key, &pod, &node);
                        }
                        self.reserved.insert(key.clone(), node.clone());
                        agenda.after(Key::Volumes(key.clone()), FIRST_BACKOFF);
                        for claim in claims {
                            let api: Api<PersistentVolumeClaim> =
                                Api::namespaced(self.client.clone(), &key.namespace);
                            let name = claim.metadata.name.as_deref().unwrap_or_default();
                            let patch = json!({"metadata": {"annotations": {SELECTED_NODE: node}}});
                            unless_gone(
                                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await,
                            )?;
                        }
                        Ok(())
                    }
                }
            }
        }
    }
}
