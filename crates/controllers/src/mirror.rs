//! What the watches see goes into the state, in the order it is seen. An object that makes no sense is left out of the state
//! and said so once per change; everything else goes on.

use std::fmt::Display;

use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::informer::{Delta, Informer};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_state::Cluster;

use crate::context::{Context, SharedCluster};
use crate::watches::{Watched, Watches};

/// Feeds the state from the watches. Comes before any other subscriber: whoever is woken by a change finds it in the state.
/// NodePools and NodeClaims that no provider here serves are another Karpenter's, and none of our business.
pub(crate) fn feed(context: &Context, watches: &mut Watches) {
    let cluster = &context.cluster;
    keep_pods(cluster, watches);
    keep(cluster, &mut watches.nodes, Cluster::apply_node, |c, k| c.delete_node(&k.name));
    let providers = context.providers.clone();
    let apply = move |cluster: &mut Cluster, claim: &NodeClaim| match providers.for_claim(claim) {
        Ok(_) => cluster.apply_node_claim(claim),
        Err(_) => {
            cluster.delete_node_claim(claim.metadata.name.as_deref().unwrap_or_default());
            Ok(())
        }
    };
    keep(cluster, &mut watches.node_claims, apply, |c, k| c.delete_node_claim(&k.name));
    let providers = context.providers.clone();
    let apply = move |cluster: &mut Cluster, pool: &NodePool| match providers.for_pool(pool) {
        Ok(_) => cluster.apply_node_pool(pool),
        Err(_) => {
            cluster.delete_node_pool(pool.metadata.name.as_deref().unwrap_or_default());
            Ok(())
        }
    };
    keep(cluster, &mut watches.node_pools, apply, |c, k| c.delete_node_pool(&k.name));
    keep(cluster, &mut watches.daemon_sets, Cluster::apply_daemon_set, |c, k| {
        c.delete_daemon_set(&k.namespace, &k.name);
    });
    keep(cluster, &mut watches.disruption_budgets, always(Cluster::apply_disruption_budget), |c, k| {
        c.delete_disruption_budget(&k.namespace, &k.name);
    });
    keep(cluster, &mut watches.volume_claims, always(Cluster::apply_volume_claim), |c, k| {
        c.delete_volume_claim(&k.namespace, &k.name);
    });
    keep(cluster, &mut watches.volumes, always(Cluster::apply_volume), |c, k| c.delete_volume(&k.name));
    keep(cluster, &mut watches.storage_classes, always(Cluster::apply_storage_class), |c, k| {
        c.delete_storage_class(&k.name);
    });
    keep(cluster, &mut watches.csi_nodes, always(Cluster::apply_csi_node), |c, k| c.delete_csi_node(&k.name));
    keep(cluster, &mut watches.namespaces, always(Cluster::apply_namespace), |c, k| {
        c.delete_namespace(&k.name);
    });
    if let Some(informer) = &mut watches.node_overlays {
        keep(cluster, informer, Cluster::apply_node_overlay, |c, k| c.delete_node_overlay(&k.name));
    }
    if let Some(workloads) = &mut watches.workloads {
        keep(cluster, &mut workloads.services, always(Cluster::apply_service), |c, k| {
            c.delete_service(&k.namespace, &k.name);
        });
        let informer = &mut workloads.replication_controllers;
        keep(cluster, informer, always(Cluster::apply_replication_controller), |c, k| {
            c.delete_replication_controller(&k.namespace, &k.name);
        });
        keep(cluster, &mut workloads.replica_sets, Cluster::apply_replica_set, |c, k| {
            c.delete_replica_set(&k.namespace, &k.name);
        });
        keep(cluster, &mut workloads.stateful_sets, Cluster::apply_stateful_set, |c, k| {
            c.delete_stateful_set(&k.namespace, &k.name);
        });
    }
    if let Some(buffers) = &mut watches.buffers {
        keep(cluster, &mut buffers.capacity_buffers, always(Cluster::apply_capacity_buffer), |c, k| {
            c.delete_capacity_buffer(&k.namespace, &k.name);
        });
        keep(cluster, &mut buffers.pod_templates, Cluster::apply_pod_template, |c, k| {
            c.delete_pod_template(&k.namespace, &k.name);
        });
        keep(cluster, &mut buffers.deployments, Cluster::apply_deployment, |c, k| {
            c.delete_deployment(&k.namespace, &k.name);
        });
    }
}

/// Pods are shown whole to the state alone: what is kept of them would not do.
fn keep_pods(cluster: &SharedCluster, watches: &mut Watches) {
    let state = cluster.clone();
    watches.pods.show(move |pod| {
        if let Err(error) = state.update(|cluster| cluster.apply_pod(pod)) {
            let object = ObjectKey::of(pod);
            tracing::error!(kind = "Pod", %object, %error, "object is left out of scheduling");
        }
    });
    let state = cluster.clone();
    watches.pods.subscribe(move |delta| {
        if let Delta::Deleted { object } = delta {
            state.update(|cluster| cluster.delete_pod(&object.key.namespace, &object.key.name));
        }
    });
}

/// For kinds of which nothing can be wrong.
fn always<K>(
    apply: fn(&mut Cluster, &K),
) -> impl Fn(&mut Cluster, &K) -> Result<(), std::convert::Infallible> {
    move |cluster, object| {
        apply(cluster, object);
        Ok(())
    }
}

fn keep<K: Watched, E: Display>(
    cluster: &SharedCluster,
    informer: &mut Informer<K>,
    apply: impl Fn(&mut Cluster, &K) -> Result<(), E> + Send + 'static,
    delete: impl Fn(&mut Cluster, &ObjectKey) + Send + 'static,
) {
    let cluster = cluster.clone();
    informer.subscribe(move |delta| {
        let object = delta.object();
        let key = ObjectKey::of(&**object);
        match delta {
            Delta::Deleted { .. } => cluster.update(|cluster| delete(cluster, &key)),
            Delta::Added { .. } | Delta::Updated { .. } => {
                if let Err(error) = cluster.update(|cluster| apply(cluster, object)) {
                    tracing::error!(kind = %K::kind(&()), object = %key, %error, "object is left out of scheduling");
                }
            }
        }
    });
}
