//! Gives NodeClaims and Nodes from before it was written the label of their NodeClass (rule L6.1).

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, NodeClassReference, labels};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{reasonable, scale};
use karpenter_runtime::writes::{self, Lock};
use kube::{Api, Resource};

use crate::context::Context;
use crate::pairing::provider_id;
use crate::watches::Watches;

const WORKERS: (u32, u32) = (1000, 5000);

struct OfClaims {
    context: Context,
    claims: Api<NodeClaim>,
}

struct OfNodes {
    context: Context,
    nodes: Api<Node>,
}

/// Makes `nodeclaim.hydration` and `node.hydration` part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let workers = scale(context.options.cpu_requests_millicores, WORKERS.0, WORKERS.1);
    let claims = OfClaims { context: context.clone(), claims: Api::all(context.client.clone()) };
    let claims = Controller::for_objects("nodeclaim.hydration", karpenter_api::GROUP, "NodeClaim", claims)
        .workers(workers)
        .limiter(reasonable())
        .build(&context.environment);
    watches.node_claims.feed(&claims.queue(), own_key);
    context.run(program, claims);
    let nodes = OfNodes { context: context.clone(), nodes: Api::all(context.client.clone()) };
    let nodes = Controller::for_objects("node.hydration", "", "Node", nodes)
        .workers(workers)
        .limiter(reasonable())
        .build(&context.environment);
    watches.nodes.feed(&nodes.queue(), own_key);
    let stores = context.stores.clone();
    watches.node_claims.feed(&nodes.queue(), move |delta| {
        let nodes = stores.nodes_of(provider_id(delta.object()));
        nodes.iter().map(|node| ObjectKey::of(&**node)).collect()
    });
    context.run(program, nodes);
}

impl Reconciler for OfClaims {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(claim) = self.context.stores.node_claims.get(&key) else { return Ok(Outcome::Done) };
        if self.context.providers.for_claim(&claim).is_err() {
            return Ok(Outcome::Done);
        }
        if let Some(labelled) = labelled(&*claim, &claim.spec.node_class_ref) {
            writes::patch(&self.claims, &claim, &labelled, Lock::None).await?;
        }
        Ok(Outcome::Done)
    }
}

impl Reconciler for OfNodes {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(node) = self.context.stores.nodes.get(&key) else { return Ok(Outcome::Done) };
        let Some(claim) = self.context.stores.claim_of(&node).one() else { return Ok(Outcome::Done) };
        if self.context.providers.for_claim(&claim).is_err() {
            return Ok(Outcome::Done);
        }
        if let Some(labelled) = labelled(&*node, &claim.spec.node_class_ref) {
            writes::patch(&self.nodes, &node, &labelled, Lock::None).await?;
        }
        Ok(Outcome::Done)
    }
}

/// The object with the label, if it lacks it.
fn labelled<K: Resource + Clone>(object: &K, class: &NodeClassReference) -> Option<K> {
    let key = labels::node_class(&class.group, &class.kind);
    let known = object.meta().labels.as_ref().and_then(|labels| labels.get(&key));
    if known == Some(&class.name) {
        return None;
    }
    let mut labelled = object.clone();
    labelled.meta_mut().labels.get_or_insert_default().insert(key, class.name.clone());
    Some(labelled)
}
