//! Compares each node with what its NodeClaim was promised, every ten minutes (rules L3.1–L3.4).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::{CONSISTENT_STATE_FOUND, INITIALIZED};
use karpenter_api::{NodeClaim, Quantity};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::scale;
use karpenter_runtime::ttl_cache::TtlCache;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::Api;

use super::lifecycle::node_span;
use crate::context::Context;
use crate::pairing::{Paired, provider_id, provider_id_of_node};
use crate::times::{after, until};
use crate::watches::Watches;

const PERIOD: Duration = Duration::from_secs(10 * 60);

/// A node with less than this part of what was promised is not what was bought.
const ENOUGH: f64 = 0.90;

struct Consistency {
    context: Context,
    claims: Api<NodeClaim>,
    /// When each claim was last looked at, by UID.
    scanned: Mutex<TtlCache<String, Timestamp>>,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let consistency = Consistency {
        context: context.clone(),
        claims: Api::all(context.client.clone()),
        scanned: Mutex::new(TtlCache::new(PERIOD)),
    };
    let controller =
        Controller::for_objects("nodeclaim.consistency", karpenter_api::GROUP, "NodeClaim", consistency)
            .workers(scale(context.options.cpu_requests_millicores, 10, 1000))
            .build(&context.environment);
    let queue = controller.queue();
    watches.node_claims.feed(&queue, own_key);
    let stores = context.stores.clone();
    watches.nodes.feed(&queue, move |delta| {
        let claims = stores.claims_of(provider_id_of_node(delta.object()));
        claims.iter().map(|claim| ObjectKey::of(&**claim)).collect()
    });
    context.run(program, controller);
}

impl Reconciler for Consistency {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(claim) = self.context.stores.node_claims.get(&key) else { return Ok(Outcome::Done) };
        if provider_id(&claim).is_empty() || self.context.providers.for_claim(&claim).is_err() {
            return Ok(Outcome::Done);
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let now = self.context.now();
        let last = self.scanned().get(&uid).copied();
        let left = last.map(|last| until(now, after(last, PERIOD))).unwrap_or_default();
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        self.scanned().insert(uid.clone(), now);
        // Several nodes are for the lifecycle to see to.
        let Paired::One(node) = self.context.stores.node_of(&claim) else { return Ok(Outcome::Done) };
        let issues = shape_issues(&node, &claim);
        let span = node_span(&claim);
        for issue in &issues {
            span.in_scope(|| tracing::info!(issue, "failed consistency check"));
            let event =
                Event::new(reference(&*claim), EventType::Warning, "FailedConsistencyCheck", issue.as_str());
            self.context.recorder.publish(event.dedupe_by([uid.clone(), issue.clone()]));
        }
        let mut judged = (*claim).clone();
        let mut conditions = ConditionSet::of(&mut judged, now);
        if !issues.is_empty() {
            conditions.set_false(
                CONSISTENT_STATE_FOUND,
                "ConsistencyCheckFailed",
                "Consistency Check Failed",
            );
        } else if !conditions.is_true(&[CONSISTENT_STATE_FOUND]) {
            conditions.set_true(CONSISTENT_STATE_FOUND);
        }
        match writes::patch_status(&self.claims, &claim, &judged, Lock::Optimistic).await? {
            Written::Conflict => {
                self.scanned().remove(&uid);
                Ok(Outcome::After(writes::OVERTAKEN))
            }
            Written::Gone => Ok(Outcome::Done),
            Written::Done(_) | Written::Unchanged => Ok(Outcome::After(PERIOD)),
        }
    }
}

impl Consistency {
    fn scanned(&self) -> MutexGuard<'_, TtlCache<String, Timestamp>> {
        self.scanned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the node has too little of, of what pods were promised.
fn shape_issues(node: &Node, claim: &NodeClaim) -> Vec<String> {
    let initialized = claim.condition_status(INITIALIZED) == ConditionStatus::True;
    if claim.metadata.deletion_timestamp.is_some() || !initialized {
        return Vec::new();
    }
    let requests = claim.spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let promised = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let has = |name: &str| {
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let quantity = capacity.and_then(|capacity| capacity.get(name));
        quantity.and_then(|quantity| Quantity::parse(&quantity.0).ok()).unwrap_or_default()
    };
    let requested = requests.into_iter().flatten().filter(|(_, quantity)| !quantity.is_zero());
    requested
        .filter_map(|(name, _)| {
            let expected = promised?.get(name).filter(|expected| !expected.is_zero())?;
            let found = has(name);
            let part = found.as_approximate_f64() / expected.as_approximate_f64();
            (part < ENOUGH).then(|| {
                format!(
                    "expected {expected} of resource {name}, but found {found} ({:.1}% of expected)",
                    part * 100.0
                )
            })
        })
        .collect()
}
