//! Forgets how a NodePool's launches went when it or its NodeClass changes: they may go otherwise now (rule N4). After a
//! restart it takes over what the condition says.

use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodepool::NODE_REGISTRATION_HEALTHY;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::Delta;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;

use super::health::{Health, RegistrationHealth};
use super::{controller, follow_with_class, write_status};
use crate::context::Context;
use crate::watches::Watches;

struct Reset {
    context: Context,
    health: RegistrationHealth,
}

/// Makes the controller part of the program.
pub(crate) fn register(
    context: &Context,
    watches: &mut Watches,
    program: &mut Program,
    health: &RegistrationHealth,
) {
    let reset = Reset { context: context.clone(), health: health.clone() };
    let controller = controller(context, "nodepool.registrationhealth", reset);
    follow_with_class(context, watches, &controller.queue());
    let health = health.clone();
    watches.node_pools.subscribe(move |delta| {
        if let Delta::Deleted { object } = delta {
            health.forget(object.metadata.uid.as_deref().unwrap_or_default());
        }
    });
    context.run(program, controller);
}

impl Reconciler for Reset {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        let class = self.context.stores.node_class(&pool.spec.template.spec.node_class_ref);
        let Some(class) = class else { return Ok(Outcome::Done) };
        let uid = pool.metadata.uid.as_deref().unwrap_or_default();
        let condition = pool.condition(NODE_REGISTRATION_HEALTHY);
        if self.health.of(uid) == Health::Unknown {
            match condition.map(|condition| condition.status) {
                Some(ConditionStatus::True) => self.health.set(uid, Health::Healthy),
                Some(ConditionStatus::False) => self.health.set(uid, Health::Unhealthy),
                Some(ConditionStatus::Unknown) | None => {}
            }
        }
        let class_generation = class.metadata.generation.unwrap_or_default();
        let seen = pool.status.as_ref().and_then(|status| status.node_class_observed_generation);
        let pool_generation = pool.metadata.generation.unwrap_or_default();
        let judged_by = condition.and_then(|condition| condition.observed_generation).unwrap_or_default();
        let mut reset = (*pool).clone();
        let changed = seen.unwrap_or_default() != class_generation || judged_by != pool_generation;
        if condition.is_none() || changed {
            ConditionSet::of(&mut reset, self.context.now()).set_unknown(NODE_REGISTRATION_HEALTHY);
            self.health.set(uid, Health::Unknown);
        }
        // Zero is how Go writes nothing.
        reset.status.get_or_insert_default().node_class_observed_generation =
            (class_generation != 0).then_some(class_generation).or(seen);
        write_status(&self.context, &pool, &reset).await
    }
}
