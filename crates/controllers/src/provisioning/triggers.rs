//! What asks for a pass: pods that kube-scheduler found no place for, and nodes whose pods will have to move. Each asks again
//! every ten seconds until that is over: one pass may not be enough.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::taints;
use karpenter_engine::eligibility;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit;

use super::batcher::Batcher;
use crate::context::{Context, SharedCluster};
use crate::watches::Watches;

/// How soon the same object asks again.
const AGAIN: Duration = Duration::from_secs(10);

pub(super) fn register(
    context: &Context,
    batcher: &Arc<Batcher>,
    watches: &mut Watches,
    program: &mut Program,
) {
    let workers = rate_limit::scale(context.options.cpu_requests_millicores, 10, 1000);
    let pods = PodTrigger { context: context.clone(), batcher: Arc::clone(batcher) };
    let pods = Controller::for_objects("provisioner.trigger.pod", "", "Pod", pods)
        .workers(workers)
        .build(&context.environment);
    let cluster = context.cluster.clone();
    watches.pods.feed(&pods.queue(), move |delta| {
        let keys = own_key(delta).into_iter();
        keys.filter(|key| is_provisionable(&cluster, key)).collect()
    });
    context.run(program, pods);

    let nodes = NodeTrigger { context: context.clone(), batcher: Arc::clone(batcher) };
    let nodes = Controller::for_objects("provisioner.trigger.node", "", "Node", nodes)
        .workers(workers)
        .build(&context.environment);
    watches
        .nodes
        .feed(&nodes.queue(), |delta| if is_disrupted(delta.object()) { own_key(delta) } else { Vec::new() });
    context.run(program, nodes);
}

struct PodTrigger {
    context: Context,
    batcher: Arc<Batcher>,
}

impl Reconciler for PodTrigger {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let now = self.context.now();
        let uid = self.context.cluster.update(|cluster| {
            let pod =
                cluster.pod(&key.namespace, &key.name).filter(|pod| eligibility::is_provisionable(pod))?;
            let uid = pod.uid.clone();
            cluster.timings_mut().acknowledge((key.namespace, key.name), now);
            Some(uid)
        });
        let Some(uid) = uid else { return Ok(Outcome::Done) };
        self.batcher.trigger(&uid);
        Ok(Outcome::After(AGAIN))
    }
}

struct NodeTrigger {
    context: Context,
    batcher: Arc<Batcher>,
}

impl Reconciler for NodeTrigger {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(node) = self.context.stores.nodes.get(&key).filter(|node| is_disrupted(node)) else {
            return Ok(Outcome::Done);
        };
        self.batcher.trigger(node.metadata.uid.as_deref().unwrap_or_default());
        Ok(Outcome::After(AGAIN))
    }
}

/// Whether kube-scheduler gave up on the pod. What the watches saw is in the state before anyone is woken by it.
fn is_provisionable(cluster: &SharedCluster, key: &ObjectKey) -> bool {
    cluster.read(|cluster| {
        cluster.pod(&key.namespace, &key.name).is_some_and(|pod| eligibility::is_provisionable(pod))
    })
}

fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.iter().filter_map(|spec| spec.taints.as_ref()).flatten();
    taints.into_iter().any(|taint| taints::DISRUPTED.matches(taint))
}
