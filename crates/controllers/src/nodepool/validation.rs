//! Writes on each NodePool whether it keeps the rules the API server cannot check (rule N3).

use karpenter_api::conditions::ConditionSet;
use karpenter_api::label_rules::LabelRules;
use karpenter_api::nodepool::VALIDATION_SUCCEEDED;
use karpenter_api::{GROUP, NodePool, Operator, labels};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;

use super::write_status;
use crate::context::Context;
use crate::watches::Watches;

const WORKERS: u32 = 10;

struct Validation {
    context: Context,
    rules: LabelRules,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let validation = Validation { context: context.clone(), rules: context.providers.label_rules() };
    let controller = Controller::for_objects("nodepool.validation", GROUP, "NodePool", validation)
        .workers(WORKERS)
        .build(&context.environment);
    watches.node_pools.feed(&controller.queue(), own_key);
    context.run(program, controller);
}

impl Reconciler for Validation {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        if self.context.providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        let problems = pool.runtime_validate(&self.rules);
        let mut judged: NodePool = (*pool).clone();
        let mut conditions = ConditionSet::of(&mut judged, self.context.now());
        let news = if problems.is_empty() {
            conditions.set_true(VALIDATION_SUCCEEDED)
        } else {
            conditions.set_false(VALIDATION_SUCCEEDED, "NodePoolValidationFailed", &problems.join("; "))
        };
        if news {
            tell_ignored_values(&pool);
        }
        write_status(&self.context, &pool, &judged).await
    }
}

/// Capacity types that do not exist do no harm beside one that does; they are named all the same.
fn tell_ignored_values(pool: &NodePool) {
    let known = [labels::CAPACITY_TYPE_SPOT, labels::CAPACITY_TYPE_ON_DEMAND, labels::CAPACITY_TYPE_RESERVED];
    let requirements = pool.spec.template.spec.requirements.iter();
    let asked = requirements.filter(|r| r.key == labels::CAPACITY_TYPE && r.operator == Operator::In);
    for requirement in asked {
        let (valid, invalid): (Vec<String>, Vec<String>) =
            requirement.values().iter().cloned().partition(|value| known.contains(&value.as_str()));
        if !valid.is_empty() && !invalid.is_empty() {
            tracing::error!(
                error = "invalid values found for key",
                key = requirement.key,
                "valid-values" = %logging::json(valid),
                "invalid-values" = %logging::json(invalid),
                "please correct found invalid values, proceeding with valid values"
            );
        }
    }
}
