//! One watch per kind, whoever needs it. Controllers subscribe while the program is put together; then all watches start.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate, ReplicationController,
    Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool, labels};
use karpenter_cloudprovider::Registry;
use karpenter_runtime::entropy::Entropy;
use karpenter_runtime::informer::Informer;
use karpenter_runtime::options::Options;
use karpenter_runtime::program::Program;
use karpenter_runtime::store::Store;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::context::{ATTACHMENTS_BY_NODE, BY_NODE_POOL, BY_PROVIDER_ID, Listed, PODS_BY_NODE, Stores};
use crate::seen_pod::SeenPod;

/// Every watch of the program. What a feature gate closes is not watched.
pub(crate) struct Watches {
    pub(crate) pods: Informer<Pod, SeenPod>,
    pub(crate) nodes: Informer<Node>,
    pub(crate) node_claims: Informer<NodeClaim>,
    pub(crate) node_pools: Informer<NodePool>,
    pub(crate) daemon_sets: Informer<DaemonSet>,
    pub(crate) disruption_budgets: Informer<PodDisruptionBudget>,
    pub(crate) volume_claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    pub(crate) attachments: Informer<VolumeAttachment>,
    pub(crate) storage_classes: Informer<StorageClass>,
    pub(crate) csi_nodes: Informer<CSINode>,
    pub(crate) namespaces: Informer<Namespace>,
    pub(crate) node_classes: BTreeMap<(String, String), Informer<DynamicObject>>,
    /// With `NodeOverlay`.
    pub(crate) node_overlays: Option<Informer<NodeOverlay>>,
    /// With default spread constraints or `CapacityBuffer`.
    pub(crate) workloads: Option<WorkloadWatches>,
    /// With `CapacityBuffer`.
    pub(crate) buffers: Option<BufferWatches>,
}

/// What default spread constraints take their selectors from, and buffers their templates.
pub(crate) struct WorkloadWatches {
    pub(crate) services: Informer<Service>,
    pub(crate) replication_controllers: Informer<ReplicationController>,
    pub(crate) replica_sets: Informer<ReplicaSet>,
    pub(crate) stateful_sets: Informer<StatefulSet>,
}

/// What only capacity buffers are made of.
pub(crate) struct BufferWatches {
    pub(crate) capacity_buffers: Informer<CapacityBuffer>,
    pub(crate) pod_templates: Informer<PodTemplate>,
    pub(crate) deployments: Informer<Deployment>,
}

impl Watches {
    /// Of this cluster; none runs yet.
    pub(crate) fn new(client: &Client, entropy: &Entropy, providers: &Registry, options: &Options) -> Self {
        let gates = &options.feature_gates;
        let with_workloads = gates.capacity_buffer || !options.default_topology_spread.is_empty();
        let pods = all::<Pod>(client, entropy).keeping(|pod| SeenPod::of(&pod));
        let mut nodes = all::<Node>(client, entropy);
        nodes.trim(trim_node);
        pods.store().add_index(PODS_BY_NODE, |pod| pod.node.iter().map(|node| node.to_string()).collect());
        nodes.store().add_index(BY_PROVIDER_ID, |node| {
            let ids = node.spec.iter().filter_map(|spec| spec.provider_id.clone());
            ids.filter(|id| !id.is_empty()).collect()
        });
        let node_claims = all::<NodeClaim>(client, entropy);
        node_claims.store().add_index(BY_PROVIDER_ID, |claim| {
            let ids = claim.status.iter().filter_map(|status| status.provider_id.clone());
            ids.filter(|id| !id.is_empty()).collect()
        });
        node_claims.store().add_index(BY_NODE_POOL, |claim| {
            claim.metadata.labels.iter().filter_map(|labels| labels.get(labels::NODEPOOL).cloned()).collect()
        });
        let attachments = all::<VolumeAttachment>(client, entropy);
        attachments
            .store()
            .add_index(ATTACHMENTS_BY_NODE, |attachment| vec![attachment.spec.node_name.clone()]);
        let node_classes = providers.node_classes().map(|kind| {
            let gvk = GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind);
            let api = Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, &kind.plural));
            let informer = Informer::of_kind(&kind.to_string(), api, watcher::Config::default(), entropy);
            ((kind.group.clone(), kind.kind.clone()), informer)
        });
        Self {
            pods,
            nodes,
            node_claims,
            node_pools: all(client, entropy),
            daemon_sets: all(client, entropy),
            disruption_budgets: all(client, entropy),
            volume_claims: all(client, entropy),
            volumes: all(client, entropy),
            attachments,
            storage_classes: all(client, entropy),
            csi_nodes: all(client, entropy),
            namespaces: all(client, entropy),
            node_classes: node_classes.collect(),
            node_overlays: gates.node_overlay.then(|| all(client, entropy)),
            workloads: with_workloads.then(|| WorkloadWatches {
                services: all(client, entropy),
                replication_controllers: all(client, entropy),
                replica_sets: all(client, entropy),
                stateful_sets: all(client, entropy),
            }),
            buffers: gates.capacity_buffer.then(|| BufferWatches {
                capacity_buffers: all(client, entropy),
                pod_templates: all(client, entropy),
                deployments: all(client, entropy),
            }),
        }
    }

    /// What will be seen.
    pub(crate) fn stores(&self) -> Stores {
        Stores {
            pods: self.pods.store(),
            nodes: self.nodes.store(),
            node_claims: self.node_claims.store(),
            node_pools: self.node_pools.store(),
            daemon_sets: self.daemon_sets.store(),
            disruption_budgets: self.disruption_budgets.store(),
            volume_claims: self.volume_claims.store(),
            volumes: self.volumes.store(),
            attachments: self.attachments.store(),
            capacity_buffers: self.buffers.as_ref().map(|buffers| buffers.capacity_buffers.store()),
            node_classes: self
                .node_classes
                .iter()
                .map(|(kind, informer)| (kind.clone(), informer.store()))
                .collect(),
            lists: self.lists().into(),
        }
    }

    /// One of every watch. No field is left out unseen: a decision made before one kind is listed takes it for empty.
    fn lists(&self) -> Vec<Listed> {
        let Self {
            pods,
            nodes,
            node_claims,
            node_pools,
            daemon_sets,
            disruption_budgets,
            volume_claims,
            volumes,
            attachments,
            storage_classes,
            csi_nodes,
            namespaces,
            node_classes,
            node_overlays,
            workloads,
            buffers,
        } = self;
        let mut lists = vec![
            listed(pods.store()),
            listed(nodes.store()),
            listed(node_claims.store()),
            listed(node_pools.store()),
            listed(daemon_sets.store()),
            listed(disruption_budgets.store()),
            listed(volume_claims.store()),
            listed(volumes.store()),
            listed(attachments.store()),
            listed(storage_classes.store()),
            listed(csi_nodes.store()),
            listed(namespaces.store()),
        ];
        lists.extend(node_classes.values().map(|informer| listed(informer.store())));
        lists.extend(node_overlays.as_ref().map(|informer| listed(informer.store())));
        if let Some(WorkloadWatches { services, replication_controllers, replica_sets, stateful_sets }) =
            workloads
        {
            let of_workloads = [
                listed(services.store()),
                listed(replication_controllers.store()),
                listed(replica_sets.store()),
                listed(stateful_sets.store()),
            ];
            lists.extend(of_workloads);
        }
        if let Some(BufferWatches { capacity_buffers, pod_templates, deployments }) = buffers {
            lists.extend([
                listed(capacity_buffers.store()),
                listed(pod_templates.store()),
                listed(deployments.store()),
            ]);
        }
        lists
    }

    /// Starts with whoever leads: a replica that stands by sees nothing, and costs nothing.
    pub(crate) fn run_in(self, program: &mut Program) {
        program.while_leading("watch pods", self.pods);
        program.while_leading("watch nodes", self.nodes);
        program.while_leading("watch nodeclaims", self.node_claims);
        program.while_leading("watch nodepools", self.node_pools);
        program.while_leading("watch daemonsets", self.daemon_sets);
        program.while_leading("watch poddisruptionbudgets", self.disruption_budgets);
        program.while_leading("watch persistentvolumeclaims", self.volume_claims);
        program.while_leading("watch persistentvolumes", self.volumes);
        program.while_leading("watch volumeattachments", self.attachments);
        program.while_leading("watch storageclasses", self.storage_classes);
        program.while_leading("watch csinodes", self.csi_nodes);
        program.while_leading("watch namespaces", self.namespaces);
        for ((group, kind), informer) in self.node_classes {
            program.while_leading(format!("watch {group}/{kind}"), informer);
        }
        if let Some(informer) = self.node_overlays {
            program.while_leading("watch nodeoverlays", informer);
        }
        if let Some(workloads) = self.workloads {
            program.while_leading("watch services", workloads.services);
            program.while_leading("watch replicationcontrollers", workloads.replication_controllers);
            program.while_leading("watch replicasets", workloads.replica_sets);
            program.while_leading("watch statefulsets", workloads.stateful_sets);
        }
        if let Some(buffers) = self.buffers {
            program.while_leading("watch capacitybuffers", buffers.capacity_buffers);
            program.while_leading("watch podtemplates", buffers.pod_templates);
            program.while_leading("watch deployments", buffers.deployments);
        }
    }
}

/// What a kind must be to be watched by its type.
pub(crate) trait Watched:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

fn all<K: Watched>(client: &Client, entropy: &Entropy) -> Informer<K> {
    Informer::all(client, watcher::Config::default(), entropy)
}

fn listed<K: Send + Sync + 'static>(store: Store<K>) -> Listed {
    Box::new(move || store.is_synced())
}

/// The images on a node are the longest part of it.
fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}
