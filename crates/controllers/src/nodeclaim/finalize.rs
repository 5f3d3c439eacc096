//! The end of a NodeClaim: its Nodes go first, then its instance, then the claim (rules L1.60–L1.65).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::{INSTANCE_TERMINATING, REGISTERED};
use karpenter_api::{NodeClaim, annotations, finalizers, labels};
use karpenter_runtime::controller::{Outcome, ReconcileResult};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::writes::{self, Lock, Written};
use kube::{Api, Resource as _, ResourceExt as _};

use super::launch::may_have_instance;
use super::lifecycle::{Lifecycle, Pass};
use crate::pairing::{provider_id, provider_id_of_node};
use crate::planted::{Bug, is_planted};
use crate::times::rfc3339;
use crate::totals::label;

/// How often a provider is asked whether an instance has gone.
const INSTANCE_POLL: Duration = Duration::from_secs(5);

/// A step towards the end.
enum Step {
    /// Done; the next may follow.
    Next,
    /// Not yet.
    Wait(Outcome),
}

/// Whether a Node was registered for another NodeClaim: registration makes the claim an owner.
fn is_anothers(node: &Node, claim: &NodeClaim) -> bool {
    let kind = NodeClaim::kind(&());
    let mut owners = node.owner_references().iter().filter(|owner| owner.kind == kind).peekable();
    owners.peek().is_some() && owners.all(|owner| Some(&owner.uid) != claim.metadata.uid.as_ref())
}

impl Lifecycle {
    pub(super) async fn finalize(&self, mut pass: Pass) -> ReconcileResult {
        let held =
            pass.claim.metadata.finalizers.iter().flatten().any(|name| name == finalizers::TERMINATION);
        if !held {
            return Ok(Outcome::Done);
        }
        if let Step::Wait(outcome) = self.set_deadline(&mut pass).await? {
            return Ok(outcome);
        }
        if let Step::Wait(outcome) = self.remove_nodes(&pass).await? {
            return Ok(outcome);
        }
        if let Step::Wait(outcome) = self.remove_instance(&mut pass).await? {
            return Ok(outcome);
        }
        self.let_go(&pass).await
    }

    /// Writes down when the drain must be over. A time that is there, from repair or an earlier pass, stays.
    async fn set_deadline(&self, pass: &mut Pass) -> Result<Step, ReconcileError> {
        let claim = &pass.claim;
        let key = annotations::NODECLAIM_TERMINATION_TIMESTAMP;
        let known = claim.metadata.annotations.iter().flatten().any(|(name, _)| name == key);
        let (Some(deleted), Some(period), false) =
            (&claim.metadata.deletion_timestamp, &claim.spec.termination_grace_period, known)
        else {
            return Ok(Step::Next);
        };
        let deadline = deleted.0.saturating_add(period.to_signed()).unwrap_or(jiff::Timestamp::MAX);
        let deadline = rfc3339(deadline);
        let mut annotated = claim.clone();
        annotated.metadata.annotations.get_or_insert_default().insert(key.to_owned(), deadline.clone());
        let written = writes::patch(&self.claims, claim, &annotated, Lock::Optimistic).await;
        let written = written.map_err(|e| {
            ReconcileError::from(e).context("adding nodeclaim terminationGracePeriod annotation")
        })?;
        match written {
            Written::Done(claim) => pass.claim = *claim,
            Written::Unchanged => {}
            Written::Gone => return Ok(Step::Wait(Outcome::Done)),
            Written::Conflict => return Ok(Step::Wait(Outcome::Requeue)),
        }
        tracing::info!("karpenter.sh/nodeclaim-termination-timestamp" = deadline, "annotated nodeclaim");
        let event = Event::new(
            reference(&pass.claim),
            EventType::Warning,
            "TerminationGracePeriodExpiring",
            format!("All pods will be deleted by {deadline}"),
        );
        self.context.recorder.publish(event.dedupe_by(pass.claim.metadata.name.clone()));
        Ok(Step::Next)
    }

    /// Deletes the claim's Nodes, whose own end is a drain, and waits for that. A claim that never registered has none of ours;
    /// one whose Node is registered and that was deleted before it could say so itself has.
    async fn remove_nodes(&self, pass: &Pass) -> Result<Step, ReconcileError> {
        let claim = &pass.claim;
        let nodes = self.context.stores.nodes_of(provider_id(claim));
        let is_open = |node: &Arc<Node>| {
            label(&**node, labels::REGISTERED) == labels::TRUE && !is_anothers(node, claim)
        };
        if claim.condition_status(REGISTERED) != ConditionStatus::True && !nodes.iter().any(is_open) {
            return Ok(Step::Next);
        }
        let api: Api<Node> = Api::all(self.context.client.clone());
        for node in nodes.iter().filter(|node| node.metadata.deletion_timestamp.is_none()) {
            writes::delete(&api, node).await?;
        }
        if !nodes.is_empty() {
            // Their end comes by the watch.
            return Ok(Step::Wait(Outcome::Done));
        }
        // The instance goes next. Where no drain has said so before, it must not be a lagging watch that lets it go.
        if claim.condition_status(INSTANCE_TERMINATING) != ConditionStatus::True
            && let Some(name) = claim.status.as_ref().and_then(|status| status.node_name.as_deref())
            && let Some(node) = api.get_opt(name).await?
            && provider_id_of_node(&node) == provider_id(claim)
        {
            return Ok(Step::Wait(Outcome::Requeue));
        }
        Ok(Step::Next)
    }

    /// Has the provider remove the instance and waits until it says there is none.
    async fn remove_instance(&self, pass: &mut Pass) -> Result<Step, ReconcileError> {
        let before = pass.claim.clone();
        if provider_id(&pass.claim).is_empty() {
            // Launched by us a moment ago and deleted before that could be written down.
            let uid = pass.claim.metadata.uid.clone().unwrap_or_default();
            let launched = self.launches().get(&uid).cloned();
            if let Some(instance) = launched {
                instance.write_into(&mut pass.claim);
                // Labels and annotations of a claim that goes are of no use to anyone.
                pass.claim.metadata.clone_from(&before.metadata);
            }
        }
        if !may_have_instance(pass) {
            return Ok(Step::Next);
        }
        let gone = match pass.provider.delete(&pass.claim).await {
            Ok(()) => is_planted(Bug::LetsGoEarly),
            Err(error) if error.is_not_found() => true,
            Err(error) => return Err(error.into()),
        };
        pass.conditions(&self.context).set_true(INSTANCE_TERMINATING);
        match writes::patch_status(&self.claims, &before, &pass.claim, Lock::Optimistic).await? {
            Written::Done(claim) => pass.claim = *claim,
            Written::Unchanged => {}
            Written::Gone => return Ok(Step::Wait(Outcome::Done)),
            Written::Conflict => return Ok(Step::Wait(Outcome::Requeue)),
        }
        if !gone {
            return Ok(Step::Wait(Outcome::After(INSTANCE_POLL)));
        }
        if let Some(condition) = pass.claim.condition(INSTANCE_TERMINATING) {
            let took = self.context.environment.clock.since(condition.since());
            let pool = label(&pass.claim, labels::NODEPOOL);
            self.metrics.instance_termination.observe(&[pool], took.as_secs_f64());
        }
        Ok(Step::Next)
    }

    async fn let_go(&self, pass: &Pass) -> ReconcileResult {
        let claim = &pass.claim;
        let mut freed = claim.clone();
        freed.metadata.finalizers.get_or_insert_default().retain(|name| name != finalizers::TERMINATION);
        let written = writes::patch(&self.claims, claim, &freed, Lock::Optimistic).await;
        let written =
            written.map_err(|error| ReconcileError::from(error).context("removing termination finalizer"))?;
        match written {
            Written::Done(_) | Written::Unchanged => {}
            Written::Gone => return Ok(Outcome::Done),
            Written::Conflict => return Ok(Outcome::Requeue),
        }
        tracing::info!("deleted nodeclaim");
        self.launches().remove(&claim.metadata.uid.clone().unwrap_or_default());
        if let Some(deleted) = &claim.metadata.deletion_timestamp {
            let took = self.context.environment.clock.since(deleted.0);
            self.metrics.termination.observe(&[label(claim, labels::NODEPOOL)], took.as_secs_f64());
        }
        self.totals.claim_terminated(claim);
        Ok(Outcome::Done)
    }
}
