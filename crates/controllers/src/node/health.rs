//! Replaces sick nodes, the old way (rules H2.1–H2.4): behind the gate `NodeRepair` with `--legacy-node-repair`. The new way is
//! a method of disruption.
//!
//! A node whose condition a provider wants repaired, for longer than it is to be borne, loses its claim at once and without
//! a drain to wait for. Only when more than a fifth of its pool is sick nothing is done: then it is not the nodes.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use karpenter_api::{NodeClaim, annotations, labels};
use karpenter_cloudprovider::{RepairAction, RepairPolicy};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::informer::{Delta, own_key};
use karpenter_runtime::logging;
use karpenter_runtime::metrics::CounterVec;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{reasonable, scale};
use karpenter_runtime::writes::{self, Lock};
use kube::Api;
use regex::Regex;
use tracing::Instrument as _;

use crate::context::{Context, STUCK_RETRY};
use crate::pods;
use crate::times::{after, rfc3339, until};
use crate::totals::{Totals, label, snake_case, termination_mode};
use crate::watches::Watches;

/// How many of a pool's nodes, in percent and rounded up, may be sick before nothing is repaired any more.
const SICK_PERCENT: usize = 20;
const BLOCKED_RETRY: Duration = Duration::from_secs(5 * 60);
const EVENT_DEDUPE: Duration = Duration::from_secs(15 * 60);

/// A policy that replaces nodes; others are not for this controller.
struct Policy {
    policy: RepairPolicy,
    reason: Option<Regex>,
}

impl Policy {
    fn matches(&self, condition: &NodeCondition) -> bool {
        condition.type_ == self.policy.condition_type
            && condition.status == self.policy.condition_status
            && self
                .reason
                .as_ref()
                .is_none_or(|regex| regex.is_match(condition.reason.as_deref().unwrap_or_default()))
    }
}

/// The reconciler of `node.health`.
struct Health {
    context: Context,
    nodes: Vec<(Arc<str>, Vec<Policy>)>,
    claims: Api<NodeClaim>,
    totals: Totals,
    unhealthy: CounterVec,
}

/// Makes the controller part of the program, if it was asked for and a provider has something to repair.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let options = &context.options;
    let policies: Vec<_> = context
        .providers
        .providers()
        .iter()
        .map(|provider| (Arc::from(provider.name()), replacing(provider.repair_policies())))
        .collect();
    let any = policies.iter().any(|(_, policies)| !policies.is_empty());
    if !(options.feature_gates.node_repair && options.legacy_node_repair && any) {
        return;
    }
    let health = Health {
        context: context.clone(),
        nodes: policies,
        claims: Api::all(context.client.clone()),
        totals: Totals::new(&context.environment.registry),
        unhealthy: context.environment.registry.counter(
            "karpenter_nodeclaims_unhealthy_disrupted_total",
            "NodeClaims whose node was repaired, by condition, NodePool, capacity type, image and termination mode",
            &["condition", "nodepool", "capacity_type", "image_id", "termination_mode"],
        ),
    };
    let controller = Controller::for_objects("node.health", "", "Node", health)
        .workers(scale(options.cpu_requests_millicores, 10, 1000))
        .limiter(reasonable())
        .build(&context.environment);
    watches.nodes.feed(&controller.queue(), |delta| match delta {
        Delta::Updated { old, new } if !changed(old, new) => Vec::new(),
        _ => own_key(delta),
    });
    context.run(program, controller);
}

/// The policies that replace nodes. One whose expression makes no sense is named and left out.
fn replacing(policies: Vec<RepairPolicy>) -> Vec<Policy> {
    let replacing = policies.into_iter().filter(|policy| policy.action == RepairAction::ReplaceNode);
    replacing
        .filter_map(|policy| {
            if policy.reason_regex.is_empty() {
                return Some(Policy { policy, reason: None });
            }
            match Regex::new(&policy.reason_regex) {
                Ok(regex) => Some(Policy { policy, reason: Some(regex) }),
                Err(error) => {
                    let regex = policy.reason_regex.as_str();
                    tracing::error!(%error, "reason-regex" = regex, "ignoring repair policy");
                    None
                }
            }
        })
        .collect()
}

fn conditions(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    node.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// Whether any condition changed: kubelet's reports alone are no news.
fn changed(old: &Node, new: &Node) -> bool {
    let facts = |node: &Node| -> Vec<(String, String, Option<Timestamp>)> {
        let since = |condition: &NodeCondition| condition.last_transition_time.as_ref().map(|time| time.0);
        conditions(node).map(|c| (c.type_.clone(), c.status.clone(), since(c))).collect()
    };
    facts(old) != facts(new)
}

impl Reconciler for Health {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(node) = self.context.stores.nodes.get(&key) else { return Ok(Outcome::Done) };
        let Some(claim) = self.context.stores.claim_of(&node).one() else { return Ok(Outcome::Done) };
        let span = tracing::error_span!("node", NodeClaim = %logging::object(&ObjectKey::of(&*claim)));
        self.see_to(&node, &claim).instrument(span).await
    }
}

impl Health {
    async fn see_to(&self, node: &Node, claim: &NodeClaim) -> ReconcileResult {
        let Some((condition, due)) = self.sickness(node, claim) else {
            self.forget_deadline(claim).await?;
            return Ok(Outcome::Done);
        };
        let left = until(self.context.now(), due).max(self.context.environment.clock.doubted_for());
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        if let Some(obstacle) = self.obstacle(claim) {
            self.tell_blocked(node, claim, &obstacle);
            return Ok(Outcome::After(BLOCKED_RETRY));
        }
        if self.context.is_stuck(claim) {
            return Ok(Outcome::After(STUCK_RETRY));
        }
        let Some(claim) = self.end_drain_now(claim).await? else { return Ok(Outcome::Done) };
        if claim.metadata.deletion_timestamp.is_some() || !writes::delete(&self.claims, &claim).await? {
            return Ok(Outcome::Done);
        }
        tracing::info!("deleting unhealthy node");
        self.count(node, &claim, condition);
        Ok(Outcome::Done)
    }

    /// What a node is judged by, its own or one beside it, where `claim` is to be repaired. A node that does not say whose it is
    /// counts as the claim's provider sees it: where everything is sick nothing is to be repaired, whoever it belongs to.
    fn policies(&self, node: &Node, claim: &NodeClaim) -> &[Policy] {
        let providers = &self.context.providers;
        let its_own = providers.provider_of_node(node.metadata.labels.as_ref());
        let provider = its_own.or_else(|| providers.for_claim(claim).ok());
        let policies =
            provider.and_then(|provider| self.nodes.iter().find(|(name, _)| **name == *provider.name()));
        policies.map(|(_, policies)| policies.as_slice()).unwrap_or_default()
    }

    /// The condition that is to be borne the shortest, and until when.
    fn sickness<'a>(&self, node: &'a Node, claim: &NodeClaim) -> Option<(&'a NodeCondition, Timestamp)> {
        let policies = self.policies(node, claim);
        let matches = policies.iter().flat_map(|policy| {
            conditions(node).filter(|condition| policy.matches(condition)).map(move |condition| {
                let since = condition.last_transition_time.as_ref().map_or(Timestamp::MIN, |time| time.0);
                (condition, after(since, policy.policy.toleration))
            })
        });
        matches.min_by_key(|(_, due)| *due)
    }

    /// Why nothing is repaired at the moment.
    fn obstacle(&self, claim: &NodeClaim) -> Option<String> {
        let pool = claim.metadata.labels.as_ref().and_then(|labels| labels.get(labels::NODEPOOL));
        let mut nodes = self.context.stores.nodes.list();
        if let Some(pool) = pool {
            nodes.retain(|node| label(&**node, labels::NODEPOOL) == pool);
        }
        let sick = nodes.iter().filter(|node| self.sickness(node, claim).is_some()).count();
        let bearable = (nodes.len() * SICK_PERCENT).div_ceil(100);
        // The second spelling is Go's.
        (sick > bearable).then(|| match pool {
            Some(_) => format!("more than {SICK_PERCENT}% nodes are unhealthy in the nodepool"),
            None => format!("more then {SICK_PERCENT}% nodes are unhealthy in the cluster"),
        })
    }

    fn tell_blocked(&self, node: &Node, claim: &NodeClaim, obstacle: &str) {
        let named = claim.metadata.labels.as_ref().and_then(|labels| labels.get(labels::NODEPOOL));
        let pools = &self.context.stores.node_pools;
        let pool = named.and_then(|name| pools.get(&ObjectKey::cluster(name.as_str())));
        if named.is_some() && pool.is_none() {
            // As in Go, which has nobody to tell of.
            return;
        }
        let pool = pool.map(|pool| pool.metadata.uid.clone());
        // All are about the node, as in Go.
        for about in
            [Some(node.metadata.uid.clone()), Some(claim.metadata.uid.clone()), pool].into_iter().flatten()
        {
            let event = Event::new(reference(node), EventType::Warning, "NodeRepairBlocked", obstacle)
                .dedupe_by(about)
                .dedupe_for(EVENT_DEDUPE);
            self.context.recorder.publish(event);
        }
    }

    /// The claim, marked so that its drain waits for nothing; none if it is gone. A mark that lies in the past stays.
    async fn end_drain_now(&self, claim: &NodeClaim) -> Result<Option<NodeClaim>, ReconcileError> {
        let key = annotations::NODECLAIM_TERMINATION_TIMESTAMP;
        let now = self.context.now();
        let known = claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
        let known: Option<Timestamp> = known.and_then(|known| known.parse().ok());
        if known.is_some_and(|known| known < now) {
            return Ok(Some(claim.clone()));
        }
        let deadline = rfc3339(now);
        let mut marked = claim.clone();
        marked.metadata.annotations.get_or_insert_default().insert(key.to_owned(), deadline.clone());
        match writes::patch(&self.claims, claim, &marked, Lock::None).await? {
            writes::Written::Done(written) => {
                tracing::info!(
                    "karpenter.sh/nodeclaim-termination-timestamp" = deadline,
                    "annotated nodeclaim"
                );
                Ok(Some(*written))
            }
            writes::Written::Unchanged => Ok(Some(claim.clone())),
            writes::Written::Gone | writes::Written::Conflict => Ok(None),
        }
    }

    /// Takes off the mark of a repair that was begun and not carried out before the node recovered: it would force the pods off
    /// at its next disruption.
    async fn forget_deadline(&self, claim: &NodeClaim) -> Result<(), ReconcileError> {
        let key = annotations::NODECLAIM_TERMINATION_TIMESTAMP;
        let set = claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
        let set: Option<Timestamp> = set.and_then(|set| set.parse().ok());
        let is_past = set.is_some_and(|set| set <= self.context.now());
        if !is_past || claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut unmarked = claim.clone();
        if let Some(annotations) = &mut unmarked.metadata.annotations {
            annotations.remove(key);
        }
        // Over the version that was read: it may be going by now.
        match writes::patch(&self.claims, claim, &unmarked, Lock::Optimistic).await? {
            writes::Written::Conflict => Err(ReconcileError::message("nodeclaim changed meanwhile")),
            _ => Ok(()),
        }
    }

    fn count(&self, node: &Node, claim: &NodeClaim, condition: &NodeCondition) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let moving =
            self.context.stores.pods_on(name).iter().filter(|pod| pods::is_reschedulable(pod)).count();
        self.totals.repaired(node, claim, moving);
        let image = claim.status.as_ref().and_then(|status| status.image_id.as_deref()).unwrap_or_default();
        self.unhealthy.inc(&[
            &snake_case(&condition.type_),
            label(node, labels::NODEPOOL),
            label(node, labels::CAPACITY_TYPE),
            image,
            termination_mode(claim),
        ]);
    }
}
