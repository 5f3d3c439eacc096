//! The first stage of a NodeClaim: asks its provider for an instance (rules L1.10–L1.15).
//!
//! A launch is never asked for twice knowingly: what was launched is remembered until the claim says so. That memory does not
//! outlive the process, and need not: providers recognise a claim by its UID.

use std::sync::Arc;

use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::{INSTANCE_TERMINATING, LAUNCHED};
use karpenter_api::{NodeClaim, labels};
use karpenter_cloudprovider::error::truncated;
use karpenter_cloudprovider::{Launch, LaunchFailure, LaunchedInstance, ProviderError};
use karpenter_runtime::controller::Outcome;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::{logging, writes};

use super::lifecycle::{Lifecycle, Pass, Stage};
use crate::pods;
use crate::seen_pod::SeenPod;

impl Lifecycle {
    pub(super) async fn launch(&self, pass: &mut Pass) -> Result<Stage, ReconcileError> {
        let uid = pass.claim.metadata.uid.clone().unwrap_or_default();
        let known = pass.conditions(&self.context).get(LAUNCHED).cloned().unwrap_or_default();
        if known.status != ConditionStatus::Unknown {
            let mut conditions = pass.conditions(&self.context);
            conditions.set(LAUNCHED, known.status, known.reason(), known.message());
            if known.status == ConditionStatus::True {
                self.launches().remove(&uid);
            }
            return Ok(Stage::Next(Outcome::Done));
        }
        let remembered = self.launches().get(&uid).cloned();
        let instance = match remembered {
            Some(instance) => instance,
            None => match pass.provider.create(&pass.claim).await {
                Ok(Launch::Launched(instance)) => {
                    if let Some(holder) = self.holder_of(&instance.provider_id, &uid) {
                        self.expect_after_failure(pass).await;
                        return Err(refuse(pass.conditions(&self.context), &instance.provider_id, &holder));
                    }
                    tell(&instance);
                    self.launches().insert(uid, (*instance).clone());
                    *instance
                }
                Ok(Launch::Pending { reason, message, .. }) => {
                    // The provider wakes us when there is more to know.
                    self.expect(pass);
                    let message = truncated(message);
                    pass.conditions(&self.context).set_unknown_with_reason(LAUNCHED, &reason, &message);
                    return Ok(Stage::Next(Outcome::Done));
                }
                Err(error) => return self.launch_failed(pass, error).await,
            },
        };
        instance.write_into(&mut pass.claim);
        pass.conditions(&self.context).set_true(LAUNCHED);
        Ok(Stage::Next(Outcome::Done))
    }

    /// The other NodeClaim that has this instance.
    fn holder_of(&self, provider_id: &str, uid: &str) -> Option<Arc<NodeClaim>> {
        let claims = self.context.stores.claims_of(provider_id);
        claims.into_iter().find(|claim| claim.metadata.uid.as_deref() != Some(uid))
    }

    async fn launch_failed(&self, pass: &mut Pass, error: ProviderError) -> Result<Stage, ReconcileError> {
        match error.launch_failure() {
            LaunchFailure::GiveUp { counted_as, told } => {
                if told {
                    self.tell_no_capacity(&pass.claim, &error);
                }
                tracing::error!(%error, "failed launching nodeclaim");
                let deleted = match writes::delete(&self.claims, &pass.claim).await {
                    Ok(deleted) => deleted,
                    Err(refused) => {
                        self.expect_after_failure(pass).await;
                        return Err(refused.into());
                    }
                };
                self.expect_nothing(pass);
                if deleted {
                    self.totals.claim_disrupted(counted_as, &pass.claim, "");
                }
                Ok(Stage::Deleted)
            }
            LaunchFailure::Retry { reason, message } => {
                self.expect_after_failure(pass).await;
                pass.conditions(&self.context).set_unknown_with_reason(LAUNCHED, &reason, &message);
                Err(ReconcileError::from(error).context("launching nodeclaim"))
            }
        }
    }

    fn tell_no_capacity(&self, claim: &NodeClaim, error: &ProviderError) {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let message = truncated(format!("NodeClaim {name} event: {error}"));
        let event = Event::new(reference(claim), EventType::Warning, NO_CAPACITY, message);
        self.context.recorder.publish(event.dedupe_by(claim.metadata.uid.clone()));
        let message = truncated(format!("NodeClaim {name} nominated for this pod failed to launch: {error}"));
        for pod in self.pods_waiting_for(name) {
            let event = Event::new(pod.reference(), EventType::Warning, NO_CAPACITY, message.clone());
            let event = event.dedupe_by([pod.uid.to_string()]).limited_by(&self.pod_events);
            self.context.recorder.publish(event);
        }
    }

    /// The pods the claim was made for that still wait. One that found a place, ended or is ending meanwhile does not care.
    fn pods_waiting_for(&self, claim: &str) -> Vec<Arc<SeenPod>> {
        let keys = self.context.cluster.read(|cluster| cluster.timings().pods_of(claim));
        let pods = &self.context.stores.pods;
        let known = keys.iter().filter_map(|(namespace, name)| {
            pods.get(&ObjectKey::namespaced(namespace.as_ref(), name.as_ref()))
        });
        known.filter(|pod| pod.node.is_none() && pods::is_active(pod)).collect()
    }
}

const NO_CAPACITY: &str = "InsufficientCapacityError";

/// A provider that answers with somebody else's instance is not believed: with its id written down, the end of this claim would
/// be the end of that instance and its Node.
fn refuse(
    mut conditions: ConditionSet<'_, NodeClaim>,
    provider_id: &str,
    holder: &NodeClaim,
) -> ReconcileError {
    let holder = holder.metadata.name.as_deref().unwrap_or_default();
    let message =
        format!("the provider answered with instance {provider_id}, which is that of NodeClaim {holder}");
    conditions.set_unknown_with_reason(LAUNCHED, "InstanceOfAnother", &message);
    ReconcileError::message(message).context("launching nodeclaim")
}

fn tell(instance: &LaunchedInstance) {
    let label = |key: &str| instance.labels.get(key).map(String::as_str).unwrap_or_default();
    let allocatable = serde_json::to_value(&instance.allocatable).unwrap_or_default();
    tracing::info!(
        "provider-id" = instance.provider_id,
        "instance-type" = label(labels::INSTANCE_TYPE),
        zone = label(labels::TOPOLOGY_ZONE),
        "capacity-type" = label(labels::CAPACITY_TYPE),
        allocatable = %logging::json(allocatable),
        "launched nodeclaim"
    );
}

/// Whether a claim may have an instance at its provider: it was launched, a launch was begun and has a handle, or one is being
/// removed and not known to be gone.
pub(super) fn may_have_instance(pass: &Pass) -> bool {
    !crate::pairing::provider_id(&pass.claim).is_empty()
        || pass.claim.condition_status(LAUNCHED) == ConditionStatus::True
        || pass.claim.condition_status(INSTANCE_TERMINATING) == ConditionStatus::True
        || pass.provider.launch_handle(&pass.claim).is_some()
}
