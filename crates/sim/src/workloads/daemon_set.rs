//! DaemonSets: one pod on every node that will have it, pinned there for the scheduler to confirm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use super::{count, template_hash};
use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_deleting, is_finished, is_ready, node_of, uid};
use crate::placement;

const REVISION: &str = "controller-revision-hash";

/// See the module.
pub(crate) struct DaemonSets {
    cluster: Cluster,
    client: kube::Client,
}

impl DaemonSets {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }

    async fn write_status(&self, key: &ObjectKey, revision: &str) -> Result<(), kube::Error> {
        let Some(found) = self.cluster.read(|objects| Found::of(key, objects)) else { return Ok(()) };
        let Found { set, wanted, pods, .. } = found;
        let placed = wanted.iter().filter_map(|node| pods.get(node)).flatten();
        let current: Vec<&Arc<Pod>> = placed.filter(|pod| !is_deleting(&***pod)).collect();
        let ready = count(current.iter().filter(|pod| is_ready(pod)).count());
        let desired = count(wanted.len());
        let status = DaemonSetStatus {
            desired_number_scheduled: desired,
            current_number_scheduled: count(current.len()),
            number_ready: ready,
            number_available: Some(ready),
            number_unavailable: Some(desired - ready).filter(|number| *number > 0),
            number_misscheduled: count(pods.keys().filter(|node| !wanted.contains(*node)).count()),
            updated_number_scheduled: Some(count(
                current.iter().filter(|pod| is_current(pod, revision)).count(),
            )),
            observed_generation: set.metadata.generation,
            ..set.status.clone().unwrap_or_default()
        };
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut set = DaemonSet::clone(&set);
        set.status = Some(status);
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &set).await).map(drop)
    }
}

fn is_current(pod: &Pod, revision: &str) -> bool {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION)).is_some_and(|mine| mine == revision)
}

/// What is needed to decide about a set.
struct Found {
    set: Arc<DaemonSet>,
    /// The nodes that are to have a pod.
    wanted: BTreeSet<String>,
    /// The nodes on which one that is there may stay: a taint that only keeps new pods away drives none out.
    tolerable: BTreeSet<String>,
    /// The set's pods by the node they are on or pinned to.
    pods: BTreeMap<String, Vec<Arc<Pod>>>,
}

impl Found {
    fn of(key: &ObjectKey, objects: &Objects) -> Option<Self> {
        let set = objects.daemon_sets.get(key).filter(|set| !is_deleting(&***set))?;
        let spec = daemon_spec(set.spec.as_ref()?);
        let on = |effects: &[&str]| -> BTreeSet<String> {
            let nodes = objects.nodes.values().filter(|node| fits(&spec, node, effects));
            nodes.map(|node| placement::name(node).to_owned()).collect()
        };
        let (wanted, tolerable) = (on(&["NoSchedule", "NoExecute"]), on(&["NoExecute"]));
        let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in objects.pods_of(uid(&**set)) {
            let node = node_of(pod).map(str::to_owned).or_else(|| pinned_to(pod)).unwrap_or_default();
            pods.entry(node).or_default().push(Arc::clone(pod));
        }
        Some(Self { set: Arc::clone(set), wanted, tolerable, pods })
    }
}

/// Whether a pod of the set may be on the node, as far as affinity and taints of these effects go.
fn fits(spec: &PodSpec, node: &Node, effects: &[&str]) -> bool {
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    placement::accepts(spec, node)
        && placement::untolerated(tolerations, placement::taints(node), effects).is_none()
}

/// The template's spec with the tolerations every daemon has.
fn daemon_spec(set: &DaemonSetSpec) -> PodSpec {
    let mut spec = set.template.spec.clone().unwrap_or_default();
    let mut always = vec![
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    if spec.host_network == Some(true) {
        always.push(("node.kubernetes.io/network-unavailable", "NoSchedule"));
    }
    spec.tolerations.get_or_insert_default().extend(always.into_iter().map(|(key, effect)| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    }));
    spec
}

/// Restricts a pod to one node, as the controller does: whatever node affinity it had, only its name counts.
fn pin(spec: &mut PodSpec, node: &str) {
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = affinity.required_during_scheduling_ignored_during_execution.take();
    let mut terms = required.map(|required| required.node_selector_terms).unwrap_or_default();
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in &mut terms {
        term.match_expressions = None;
        term.match_fields = Some(vec![by_name.clone()]);
    }
    terms.truncate(1);
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: terms });
}

fn pinned_to(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let field = terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten())
        .find(|f| f.key == "metadata.name")?;
    field.values.as_ref()?.first().cloned()
}

impl Actor for DaemonSets {
    type Key = ObjectKey;
    const NAME: &'static str = "daemonset-controller";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::DaemonSet(edit) if edit.new.is_some() => agenda.now(edit.key.clone()),
            Change::Node(edit) => {
                let relevant = |node: &Node| (node.metadata.labels.clone(), placement::taints(node).to_vec());
                let (old, new) = (edit.old.as_deref().map(relevant), edit.new.as_deref().map(relevant));
                if old != new {
                    for key in objects.daemon_sets.keys() {
                        agenda.now(key.clone());
                    }
                }
            }
            Change::Pod(edit) => {
                let owners =
                    edit.either().and_then(|pod| pod.metadata.owner_references.clone()).unwrap_or_default();
                for owner in owners.iter().filter(|owner| owner.kind == "DaemonSet") {
                    agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), owner.name.as_str()));
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, _: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let Some(found) = self.cluster.read(|objects| Found::of(key, objects)) else { return Ok(()) };
        let Some(spec) = &found.set.spec else { return Ok(()) };
        let revision = template_hash(&spec.template);
        for (node, pods) in &found.pods {
            let stays = found.tolerable.contains(node);
            // One stays, the eldest; finished ones are replaced.
            let (finished, running): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| is_finished(pod));
            let surplus = running.into_iter().filter(|pod| !is_deleting(&***pod)).skip(usize::from(stays));
            for pod in finished.into_iter().filter(|pod| !is_deleting(&***pod)).chain(surplus) {
                hands::delete_pod(&self.client, pod, None).await?;
            }
        }
        for node in found.wanted.iter().filter(|node| !found.pods.contains_key(*node)) {
            let mut pod = hands::from_template(&spec.template, &*found.set);
            pod.metadata.labels.get_or_insert_default().insert(REVISION.to_owned(), revision.clone());
            let mut pod_spec = daemon_spec(spec);
            pin(&mut pod_spec, node);
            pod.spec = Some(pod_spec);
            hands::create_pod(&self.client, &pod).await?;
        }
        // An update replaces one pod at a time, and only while all are well.
        let all: Vec<&Arc<Pod>> = found.pods.values().flatten().collect();
        let well = all.iter().all(|pod| is_ready(pod) && !is_deleting(&***pod));
        let on_delete = spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("OnDelete");
        if let Some(pod) = all.iter().find(|pod| !is_current(pod, &revision)).filter(|_| well && !on_delete) {
            hands::delete_pod(&self.client, pod, None).await?;
        }
        self.write_status(key, &revision).await
    }
}
