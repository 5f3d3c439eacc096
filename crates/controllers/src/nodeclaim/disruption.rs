//! `nodeclaim.disruption`: writes on NodeClaims whether they may be consolidated (`Consolidatable`) and whether they no longer
//! are what was asked for (`Drifted`). Whether anything follows from that is for the disruption loop to say.
//!
//! Pods are not watched here as they are upstream: what matters of them is in `status.lastPodEventTime`, whose change wakes
//! this controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions};
use karpenter_api::{NodeClaim, NodePool, annotations, labels, nodeclaim};
use karpenter_cloudprovider::{ProviderError, conversion};
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::requirement::{Requirement, SelectorRequirement};
use karpenter_engine::requirements::Requirements;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::{Field, ReconcileError, Structured};
use karpenter_runtime::informer::{Delta, own_key};
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::scale;
use karpenter_runtime::ttl_cache::TtlCache;
use karpenter_runtime::writes::{Lock, OVERTAKEN, Written, patch_status};
use kube::{Api, Resource};
use tracing::Instrument as _;

use super::lifecycle::node_span;
use crate::context::{BY_NODE_POOL, Context};
use crate::times::iso8601;
use crate::watches::Watches;

const NAME: &str = "nodeclaim.disruption";

/// How often drift is looked for without an occasion: as long as providers are taken to cache what they compare with.
const DRIFT_PERIOD: Duration = Duration::from_secs(5 * 60);

/// How old a claim is before its instance type is looked for.
const INSTANCE_TYPE_AGE: SignedDuration = SignedDuration::from_hours(1);

/// How long an instance type that was found is not looked for again.
const INSTANCE_TYPE_TTL: Duration = Duration::from_secs(30 * 60);

/// The hash of the NodePool's template is another than the claim was made with.
const NODE_POOL_DRIFTED: &str = "NodePoolDrifted";
/// The claim's labels do not meet the NodePool's requirements any more.
const REQUIREMENTS_DRIFTED: &str = "RequirementsDrifted";
/// The provider knows nothing of the claim's instance type, or no such offering of it.
const INSTANCE_TYPE_NOT_FOUND: &str = "InstanceTypeNotFound";

/// Puts the controller into the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let conditions =
        Conditions { context: context.clone(), found: Mutex::new(TtlCache::new(INSTANCE_TYPE_TTL)) };
    let controller = Controller::for_objects(NAME, karpenter_api::GROUP, "NodeClaim", conditions)
        .workers(scale(context.options.cpu_requests_millicores, 10, 1000))
        .build(&context.environment);
    let queue = controller.queue();
    watches.node_claims.feed(&queue, own_key);
    let claims = context.stores.node_claims.clone();
    watches.node_pools.feed(&queue, {
        let claims = claims.clone();
        move |delta| {
            if !says_something_else(delta) {
                return Vec::new();
            }
            let pool = delta.object().metadata.name.as_deref().unwrap_or_default();
            claims.by_index(BY_NODE_POOL, pool).iter().map(|claim| ObjectKey::of(&**claim)).collect()
        }
    });
    for ((group, kind), informer) in &mut watches.node_classes {
        let (claims, group, kind) = (claims.clone(), group.clone(), kind.clone());
        informer.feed(&queue, move |delta| {
            let name = delta.object().metadata.name.as_deref().unwrap_or_default();
            let refers = |claim: &&Arc<NodeClaim>| {
                let class = &claim.spec.node_class_ref;
                class.group == group && class.kind == kind && class.name == name
            };
            claims.list().iter().filter(refers).map(|claim| ObjectKey::of(&**claim)).collect()
        });
    }
    context.run(program, controller);
}

/// A NodePool's counters change all the time and concern no claim; its spec and its hash do.
fn says_something_else(delta: &Delta<NodePool>) -> bool {
    match delta {
        Delta::Updated { old, new } => {
            old.metadata.generation != new.metadata.generation
                || old.metadata.annotations != new.metadata.annotations
        }
        Delta::Added { .. } => true,
        Delta::Deleted { .. } => false,
    }
}

struct Conditions {
    context: Context,
    /// UIDs of claims whose instance type was found of late.
    found: Mutex<TtlCache<String, ()>>,
}

impl Reconciler for Conditions {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Context { stores, providers, .. } = &self.context;
        let Some(stored) = stores.node_claims.get(&key) else { return Ok(Outcome::Done) };
        if stored.metadata.deletion_timestamp.is_some() || providers.for_claim(&stored).is_err() {
            return Ok(Outcome::Done);
        }
        let Some(pool) = stored.meta().labels.as_ref().and_then(|labels| labels.get(labels::NODEPOOL)) else {
            return Ok(Outcome::Done);
        };
        let Some(pool) = stores.node_pools.get(&ObjectKey::cluster(pool.as_str())) else {
            return Ok(Outcome::Done);
        };
        self.judge(&pool, &stored).instrument(node_span(&stored)).await
    }
}

impl Conditions {
    async fn judge(&self, pool: &NodePool, stored: &NodeClaim) -> ReconcileResult {
        let mut claim = stored.clone();
        let drift = self.drift(pool, &mut claim).await;
        // Nodes of static NodePools are never consolidated.
        let consolidation = if pool.is_static() {
            Outcome::Done
        } else {
            consolidation(pool, &mut claim, self.context.undoubted_now())
        };
        // What a claim begins with is the lifecycle's to write, at the same time: two who did would overtake each other.
        let same = |kind| claim.condition(kind) == stored.condition(kind);
        if same(nodeclaim::DRIFTED) && same(nodeclaim::CONSOLIDATABLE) {
            return Ok(Outcome::combine([drift?, consolidation]));
        }
        let api = Api::<NodeClaim>::all(self.context.client.clone());
        // The list of conditions is replaced whole: only over the one that was read.
        match patch_status(&api, stored, &claim, Lock::Optimistic).await? {
            Written::Conflict => return Ok(Outcome::After(OVERTAKEN)),
            Written::Gone => return Ok(Outcome::Done),
            Written::Unchanged | Written::Done(_) => {}
        }
        Ok(Outcome::combine([drift?, consolidation]))
    }

    /// Sets or takes away `Drifted` (rules L2.10–L2.15).
    async fn drift(&self, pool: &NodePool, claim: &mut NodeClaim) -> ReconcileResult {
        let known = claim.condition(nodeclaim::DRIFTED).is_some();
        if claim.condition_status(nodeclaim::LAUNCHED) != ConditionStatus::True {
            if known {
                tracing::debug!("removing drift status condition, isn't launched");
            }
            clear(claim, nodeclaim::DRIFTED, self.context.now());
            return Ok(Outcome::Done);
        }
        let reason = match self.drift_reason(pool, claim).await {
            Ok(reason) => reason,
            Err(error) if error.is_gone => return Ok(Outcome::Done),
            Err(error) => return Err(ReconcileError::from(error.error).context("getting drift")),
        };
        match reason {
            Drift::Unknown => tracing::debug!("drift is not known, no instance types are listed"),
            Drift::None => {
                if known {
                    tracing::debug!("removing drifted status condition, not drifted");
                }
                clear(claim, nodeclaim::DRIFTED, self.context.now());
            }
            Drift::Because(reason) => {
                if !known {
                    tracing::debug!(reason, "marking drifted");
                }
                ConditionSet::of(claim, self.context.now()).set_true_with_reason(
                    nodeclaim::DRIFTED,
                    &reason,
                    &reason,
                );
            }
        }
        Ok(Outcome::After(DRIFT_PERIOD))
    }

    /// Why the claim is not what was asked for any more; what costs nothing to find out comes first.
    async fn drift_reason(&self, pool: &NodePool, claim: &NodeClaim) -> Result<Drift, DriftError> {
        if has_other_hash(pool, claim) {
            return Ok(Drift::Because(NODE_POOL_DRIFTED.to_owned()));
        }
        if breaks_requirements(pool, claim) {
            return Ok(Drift::Because(REQUIREMENTS_DRIFTED.to_owned()));
        }
        let Ok(provider) = self.context.providers.for_claim(claim) else { return Ok(Drift::None) };
        let mut otherwise = Drift::None;
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let age = claim.metadata.creation_timestamp.as_ref().map(|t| self.context.now().duration_since(t.0));
        let looked_up = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&uid).is_some();
        if !looked_up && age.is_some_and(|age| age > INSTANCE_TYPE_AGE) {
            let types = provider.get_instance_types(pool).await;
            let types =
                types.map_err(|error| DriftError::of("checking instance type drift", error, claim))?;
            let rules = provider.scheduling_rules();
            if types.is_empty() {
                // A cloud that lists nothing at all is sick, and an empty answer is no reason to replace nodes.
                otherwise = Drift::Unknown;
            } else if offers(&types, claim, &rules, &provider.reserved_capacity_labels()) {
                self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(uid, ());
            } else {
                return Ok(Drift::Because(INSTANCE_TYPE_NOT_FOUND.to_owned()));
            }
        }
        let reason = provider.is_drifted(claim).await;
        let reason = reason.map_err(|error| DriftError::of("checking cloud provider drift", error, claim))?;
        Ok(reason.filter(|reason| !reason.is_empty()).map_or(otherwise, Drift::Because))
    }
}

/// Whether a claim is what is wanted.
enum Drift {
    /// It is.
    None,
    /// It is not.
    Because(String),
    /// Nobody can say: what was said of it before stays.
    Unknown,
}

/// Why drift could not be told.
struct DriftError {
    error: Structured,
    /// The instance does not exist: others see to that.
    is_gone: bool,
}

impl DriftError {
    fn of(doing: &str, error: ProviderError, claim: &NodeClaim) -> Self {
        let is_gone = error.is_not_found();
        let error = Structured::new(format!("{doing}, {error}"))
            .with("NodeClaim", Field::object(&ObjectKey::of(claim)));
        Self { error, is_gone }
    }
}

/// Sets or takes away `Consolidatable` (rules L2.20–L2.22).
fn consolidation(pool: &NodePool, claim: &mut NodeClaim, now: Timestamp) -> Outcome {
    let known = claim.condition(nodeclaim::CONSOLIDATABLE).is_some();
    let removing = |reason: &str| {
        if known {
            tracing::debug!(reason, "removing consolidatable status condition");
        }
    };
    let Some(after) = pool.consolidate_after() else {
        removing("consolidation is disabled");
        clear(claim, nodeclaim::CONSOLIDATABLE, now);
        return Outcome::Done;
    };
    let initialized = claim.condition(nodeclaim::INITIALIZED).filter(|c| c.status == ConditionStatus::True);
    let Some(initialized) = initialized else {
        removing("nodeclaim isn't initialized");
        clear(claim, nodeclaim::CONSOLIDATABLE, now);
        return Outcome::Done;
    };
    // Before the first pod event the node has been waiting for pods since it was initialized.
    let event = claim.status.as_ref().and_then(|status| status.last_pod_event_time.as_ref());
    let since = event.map_or_else(|| initialized.since(), |time| time.0);
    let quiet = now.duration_since(since);
    if after.as_nanos() > 0 && quiet < after.to_signed() {
        if known {
            tracing::debug!(
                reason = "consolidateAfter window not yet elapsed",
                lastPodEventTime = iso8601(since),
                consolidateAfter = %logging::duration(after.to_std()),
                timeSincePodEvent = %logging::duration(Duration::try_from(quiet).unwrap_or_default()),
                "removing consolidatable status condition"
            );
        }
        clear(claim, nodeclaim::CONSOLIDATABLE, now);
        let rest = after.to_signed().saturating_sub(quiet);
        return Outcome::After(Duration::try_from(rest).unwrap_or_default());
    }
    if !known {
        tracing::debug!("marking consolidatable");
    }
    ConditionSet::of(claim, now).set_true(nodeclaim::CONSOLIDATABLE);
    Outcome::Done
}

fn clear(claim: &mut NodeClaim, condition: &str, now: Timestamp) {
    // Only what Ready depends on cannot be cleared, and neither condition here is of that sort.
    let _ = ConditionSet::of(claim, now).clear(condition);
}

/// Whether the template changed since the claim was made. Hashes of different versions say nothing of each other.
fn has_other_hash(pool: &NodePool, claim: &NodeClaim) -> bool {
    let annotation = |annotations: &Option<BTreeMap<String, String>>, key: &str| {
        annotations.as_ref().and_then(|annotations| annotations.get(key).cloned())
    };
    let hash_of = |annotations: &Option<BTreeMap<String, String>>| {
        let version = annotation(annotations, annotations::NODEPOOL_HASH_VERSION)?;
        Some((version, annotation(annotations, annotations::NODEPOOL_HASH)?))
    };
    match (hash_of(&pool.metadata.annotations), hash_of(&claim.metadata.annotations)) {
        (Some((version, hash)), Some((claim_version, claim_hash))) => {
            version == claim_version && hash != claim_hash
        }
        _ => false,
    }
}

/// Whether the claim's labels contradict the NodePool's requirements. Requirements that make no sense contradict nothing:
/// validation tells of them.
fn breaks_requirements(pool: &NodePool, claim: &NodeClaim) -> bool {
    let selectors: Vec<SelectorRequirement> =
        pool.spec.template.spec.requirements.iter().map(conversion::selector).collect();
    let Ok(wanted) = Requirements::from_selectors(&selectors) else { return false };
    label_requirements(claim).compatible(&wanted, |_| false).is_err()
}

/// Whether the claim's instance type is offered where and how the claim runs, available or not.
fn offers(
    types: &[InstanceType],
    claim: &NodeClaim,
    rules: &SchedulingRules,
    reserved_labels: &BTreeSet<String>,
) -> bool {
    let label = |key: &str| claim.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let name = label(labels::INSTANCE_TYPE).map_or("", String::as_str);
    let Some(instance_type) = types.iter().find(|it| &*it.name == name) else { return false };
    let mut wanted = label_requirements(claim);
    // A reserved node may have been turned into one on demand before its label says so; whether the NodePool allows that is
    // for its requirements to say, and which reservation it is for the provider.
    if label(labels::CAPACITY_TYPE).is_some_and(|value| value == labels::CAPACITY_TYPE_RESERVED) {
        let either = [labels::CAPACITY_TYPE_RESERVED, labels::CAPACITY_TYPE_ON_DEMAND];
        wanted.replace(Requirement::one_of(labels::CAPACITY_TYPE, either));
        for key in reserved_labels {
            wanted.remove(key);
        }
    }
    let known = |key: &str| {
        karpenter_engine::labels::WELL_KNOWN.contains(&key) || rules.well_known_labels.contains(key)
    };
    instance_type.offerings.iter().any(|offering| wanted.compatible(&offering.requirements, known).is_ok())
}

fn label_requirements(claim: &NodeClaim) -> Requirements {
    let mut requirements = Requirements::new();
    for (key, value) in claim.metadata.labels.iter().flatten() {
        requirements.add(Requirement::one_of(key.as_str(), [value.as_str()]));
    }
    requirements
}

#[cfg(test)]
#[path = "disruption_tests.rs"]
mod tests;
