//! Writes on each NodePool whether its NodeClass is there and ready (rule N2).

use karpenter_api::NodePool;
use karpenter_api::conditions::{Condition, ConditionSet, ConditionStatus, READY};
use karpenter_api::nodepool::NODE_CLASS_READY;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use kube::api::DynamicObject;

use super::{controller, follow_with_class, write_status};
use crate::context::Context;
use crate::watches::Watches;

struct Readiness {
    context: Context,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let controller = controller(context, "nodepool.readiness", Readiness { context: context.clone() });
    follow_with_class(context, watches, &controller.queue());
    context.run(program, controller);
}

impl Reconciler for Readiness {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        if self.context.providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        let class = self.context.stores.node_class(&pool.spec.template.spec.node_class_ref);
        let mut judged: NodePool = (*pool).clone();
        let mut conditions = ConditionSet::of(&mut judged, self.context.now());
        match obstacle(class.as_deref()) {
            None => conditions.set_true(NODE_CLASS_READY),
            Some((reason, message)) => conditions.set_false(NODE_CLASS_READY, &reason, &message),
        };
        write_status(&self.context, &pool, &judged).await
    }
}

/// What keeps a NodeClass from being used: reason and message.
fn obstacle(class: Option<&DynamicObject>) -> Option<(String, String)> {
    let said = |reason: &str, message: &str| Some((reason.to_owned(), message.to_owned()));
    let Some(class) = class else { return said("NodeClassNotFound", "NodeClass not found on cluster") };
    if class.metadata.deletion_timestamp.is_some() {
        return said("NodeClassTerminating", "NodeClass is Terminating");
    }
    let conditions: Vec<Condition> = class
        .data
        .pointer("/status/conditions")
        .and_then(|conditions| serde_json::from_value(conditions.clone()).ok())
        .unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == READY);
    match ready {
        Some(ready) if ready.status == ConditionStatus::True => None,
        Some(ready) if ready.status == ConditionStatus::False => said(ready.reason(), ready.message()),
        _ => said("NodeClassReadinessUnknown", "Node Class Readiness Unknown"),
    }
}
