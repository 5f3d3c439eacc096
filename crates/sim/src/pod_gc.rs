//! Collects pods that nobody looks after any more: those of nodes that are gone, and unscheduled ones that are ending.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::kubelet::set_pod_condition;
use crate::objects::{Change, Objects, is_deleting, is_finished, node_of};

/// How long a node must be gone: kube-controller-manager waits 40 seconds and looks every 20.
const QUARANTINE: Duration = Duration::from_secs(40);

/// See the module.
pub(crate) struct PodGc {
    cluster: Cluster,
    client: kube::Client,
}

impl PodGc {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }
}

impl Actor for PodGc {
    type Key = ObjectKey;
    const NAME: &'static str = "pod-gc";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::Node(edit) if edit.new.is_none() => {
                for pod in objects.pods_on(&edit.key.name) {
                    agenda.after(ObjectKey::of(&**pod), QUARANTINE);
                }
            }
            Change::Pod(edit) => {
                let Some(pod) = &edit.new else { return };
                let orphaned = node_of(pod).is_some_and(|node| objects.node(node).is_none());
                let ending = node_of(pod).is_none() && is_deleting(&**pod);
                if (orphaned || ending) && !agenda.has(&edit.key) {
                    agenda.after(edit.key.clone(), QUARANTINE);
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, _: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let abandoned = self.cluster.read(|objects| {
            let pod = objects.pods.get(key)?;
            let gone = match node_of(pod) {
                Some(node) => objects.node(node).is_none(),
                None => is_deleting(&**pod),
            };
            gone.then(|| pod.clone())
        });
        let Some(pod) = abandoned else { return Ok(()) };
        if !is_finished(&pod) {
            let mut failed = Pod::clone(&pod);
            set_pod_condition(
                &mut failed,
                "DisruptionTarget",
                "True",
                Some("DeletionByPodGC"),
                self.cluster.now(),
            );
            failed.status.get_or_insert_default().phase = Some("Failed".to_owned());
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
            unless_gone(api.replace_status(&key.name, &PostParams::default(), &failed).await)?;
        }
        hands::delete_pod(&self.client, &pod, Some(0)).await
    }
}
