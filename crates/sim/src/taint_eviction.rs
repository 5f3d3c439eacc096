//! Pods leave nodes whose `NoExecute` taints they do not tolerate, or tolerate only for a while.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::kubelet::set_pod_condition;
use crate::objects::{Change, Objects, is_active, node_of};
use crate::placement;

/// See the module.
pub(crate) struct TaintEviction {
    cluster: Cluster,
    client: kube::Client,
}

impl TaintEviction {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }
}

/// When the pod has to leave the node; `None` if it may stay.
fn leaves_at(pod: &Pod, node: &Node, now: Timestamp) -> Option<Timestamp> {
    let spec = pod.spec.as_ref()?;
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let mut first: Option<Timestamp> = None;
    for taint in placement::taints(node).iter().filter(|taint| taint.effect == "NoExecute") {
        let covering: Vec<_> = tolerations.iter().filter(|t| placement::tolerates(t, taint)).collect();
        if covering.is_empty() {
            return Some(now);
        }
        // The shortest patience counts; a toleration without a limit does not shorten another's.
        let limit = covering.iter().filter_map(|toleration| toleration.toleration_seconds).min();
        if let Some(seconds) = limit {
            let since = taint.time_added.as_ref().map_or(now, |time| time.0);
            let at = since
                .saturating_add(jiff::SignedDuration::from_secs(seconds.max(0)))
                .unwrap_or(Timestamp::MAX);
            first = Some(first.map_or(at, |first| first.min(at)));
        }
    }
    first
}

impl Actor for TaintEviction {
    type Key = ObjectKey;
    const NAME: &'static str = "taint-eviction";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::Node(edit) if edit.new.as_deref().is_some_and(has_no_execute) => {
                for pod in objects.pods_on(&edit.key.name) {
                    agenda.now(ObjectKey::of(&**pod));
                }
            }
            Change::Pod(edit) => {
                let placed = |pod: &Pod| node_of(pod).map(str::to_owned);
                let Some(node) = edit.new.as_deref().and_then(placed) else { return };
                let moved = edit.old.as_deref().and_then(placed).as_ref() != Some(&node);
                if moved && objects.node(&node).is_some_and(|node| has_no_execute(node)) {
                    agenda.now(edit.key.clone());
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let now = self.cluster.now();
        let found = self.cluster.read(|objects| {
            let pod = objects.pods.get(key).filter(|pod| is_active(pod))?;
            let node = objects.node(node_of(pod)?)?;
            Some((pod.clone(), leaves_at(pod, node, now)?))
        });
        let Some((pod, at)) = found else { return Ok(()) };
        if at > now {
            agenda.after(key.clone(), Duration::try_from(at.duration_since(now)).unwrap_or_default());
            return Ok(());
        }
        let mut marked = Pod::clone(&pod);
        set_pod_condition(&mut marked, "DisruptionTarget", "True", Some("DeletionByTaintManager"), now);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &marked).await)?;
        hands::delete_pod(&self.client, &pod, None).await
    }
}

fn has_no_execute(node: &Node) -> bool {
    placement::taints(node).iter().any(|taint| taint.effect == "NoExecute")
}
