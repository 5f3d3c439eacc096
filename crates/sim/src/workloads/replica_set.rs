//! ReplicaSets: so many pods, no more and no fewer.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::annotations::POD_DELETION_COST;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use super::count;
use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{
    Change, Objects, controller_uid, is_active, is_deleting, is_ready, node_of, phase, uid,
};

/// See the module.
pub(crate) struct ReplicaSets {
    cluster: Cluster,
    client: kube::Client,
}

impl ReplicaSets {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }

    async fn write_status(&self, key: &ObjectKey) -> Result<(), kube::Error> {
        let found = self.cluster.read(|objects| {
            let set = objects.replica_sets.get(key)?;
            let pods: Vec<_> = objects.pods_of(uid(&**set)).filter(|pod| is_active(pod)).cloned().collect();
            Some((Arc::clone(set), pods))
        });
        let Some((set, pods)) = found else { return Ok(()) };
        let ready = count(pods.iter().filter(|pod| is_ready(pod)).count());
        let status = ReplicaSetStatus {
            replicas: count(pods.len()),
            fully_labeled_replicas: Some(count(pods.len())),
            ready_replicas: Some(ready),
            available_replicas: Some(ready),
            observed_generation: set.metadata.generation,
            ..set.status.clone().unwrap_or_default()
        };
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut set = ReplicaSet::clone(&set);
        set.status = Some(status);
        let api: Api<ReplicaSet> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &set).await).map(drop)
    }
}

/// Which pods go first when there are too many: unplaced, pending, unready, cheap to delete, crowded, young; then by name.
fn in_order_of_departure(mut pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    let crowd = |node: Option<&str>, pods: &[Arc<Pod>]| {
        pods.iter().filter(|pod| node.is_some() && node_of(pod) == node).count()
    };
    let all = pods.clone();
    pods.sort_by_cached_key(|pod| {
        let cost = pod.metadata.annotations.as_ref().and_then(|a| a.get(POD_DELETION_COST));
        let cost: i32 = cost.and_then(|text| text.parse().ok()).unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            node_of(pod).is_some(),
            phase(pod) == "Running",
            is_ready(pod),
            cost,
            Reverse(crowd(node_of(pod), &all)),
            Reverse(created),
            pod.metadata.name.clone(),
        )
    });
    pods
}

impl Actor for ReplicaSets {
    type Key = ObjectKey;
    const NAME: &'static str = "replicaset-controller";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::ReplicaSet(edit) if edit.new.is_some() => agenda.now(edit.key.clone()),
            Change::Pod(edit) => {
                let Some(pod) = edit.either() else { return };
                if let Some(owner) = replica_set_of(pod, objects) {
                    agenda.now(owner);
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, _: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let found = self.cluster.read(|objects| {
            let set = objects.replica_sets.get(key).filter(|set| !is_deleting(&***set))?;
            let pods: Vec<_> = objects.pods_of(uid(&**set)).filter(|pod| is_active(pod)).cloned().collect();
            Some((Arc::clone(set), pods))
        });
        let Some((set, pods)) = found else { return Ok(()) };
        let spec = set.spec.clone().unwrap_or_default();
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        if pods.len() < wanted {
            let pod = hands::from_template(&spec.template.unwrap_or_default(), &*set);
            for _ in pods.len()..wanted {
                hands::create_pod(&self.client, &pod).await?;
            }
        } else if pods.len() > wanted {
            let surplus = pods.len() - wanted;
            for pod in in_order_of_departure(pods).iter().take(surplus) {
                hands::delete_pod(&self.client, pod, None).await?;
            }
        }
        self.write_status(key).await
    }
}

fn replica_set_of(pod: &Pod, objects: &Objects) -> Option<ObjectKey> {
    let owner =
        pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let key = ObjectKey::namespaced(namespace, owner.name.as_str());
    let set = objects.replica_sets.get(&key)?;
    (owner.kind == "ReplicaSet" && controller_uid(pod) == Some(uid(&**set))).then_some(key)
}
