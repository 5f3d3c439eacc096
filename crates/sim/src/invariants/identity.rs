//! Who owns what: objects held by finalizers, machines and the NodeClaims they were launched for.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::{Condition, ConditionStatus, NodeClaim, finalizers};
use serde_json::Value;

use super::{Asked, Invariant, Rest, Step};
use crate::objects::{Change, uid};

/// An object with a finalizer goes only when somebody takes the finalizer away.
pub struct FinalizersHold;

impl Invariant for FinalizersHold {
    fn name(&self) -> &'static str {
        "an object with a finalizer does not vanish"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        // Taking the last finalizer off ends the object in the same write: a PUT or PATCH, or a status of it.
        let taken_off = step.entry.deed.starts_with("PUT ") || step.entry.deed.starts_with("PATCH ");
        for change in step.raw.iter().filter(|change| change.is_deletion()) {
            let Some(before) = change.before() else { continue };
            let object: Value = serde_json::from_slice(&before).unwrap_or_default();
            let held = object.pointer("/metadata/finalizers").and_then(Value::as_array);
            if held.is_some_and(|finalizers| !finalizers.is_empty()) && !taken_off {
                return Err(format!(
                    "{change:?} while it was held by {:?}",
                    held.into_iter().flatten().collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }
}

/// No two machines are paid for on behalf of one NodeClaim.
pub struct OneInstancePerClaim;

impl Invariant for OneInstancePerClaim {
    fn name(&self) -> &'static str {
        "a NodeClaim has at most one instance"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I2"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for instance in step.inventory.live() {
            if !seen.insert(instance.launch.claim_uid.as_str()) {
                return Err(format!(
                    "instance {} is not the only one launched for NodeClaim uid {}",
                    instance.id, instance.launch.claim_uid
                ));
            }
        }
        Ok(())
    }
}

/// How long after its deletion a launch for a NodeClaim may still be under way: a watch may lag, and the call itself takes time.
const LAUNCH_SLACK: SignedDuration = SignedDuration::from_secs(120);

/// A machine is asked for only by a NodeClaim that can see to its end: one with the finalizer, not known to be on its way out.
pub struct LaunchesHaveAnOwner;

impl Invariant for LaunchesHaveAnOwner {
    fn name(&self) -> &'static str {
        "launches are for living NodeClaims with a finalizer"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I1", "I4"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let Some(Asked::Launch { claim_uid }) = step.asked else { return Ok(()) };
        let claim = step.objects.node_claims.values().find(|claim| uid(&***claim) == claim_uid);
        let Some(claim) = claim else {
            return Err(format!("a launch for NodeClaim uid {claim_uid}, which does not exist"));
        };
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        if !has_finalizer(claim) {
            return Err(format!("a launch for NodeClaim {name}, which does not carry the finalizer yet"));
        }
        let deleted = claim.metadata.deletion_timestamp.as_ref();
        if deleted.is_some_and(|time| step.now.duration_since(time.0) > LAUNCH_SLACK) {
            return Err(format!("a launch for NodeClaim {name}, which is being deleted"));
        }
        Ok(())
    }
}

pub(super) fn has_finalizer(claim: &NodeClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == finalizers::TERMINATION)
}

pub(super) fn provider_id(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

pub(crate) fn has_condition(claim: &NodeClaim, kind: &str) -> bool {
    let is_it = |condition: &Condition| condition.type_ == kind && condition.status == ConditionStatus::True;
    claim.conditions().iter().any(is_it)
}

/// A NodeClaim keeps the machine it was given.
pub struct ProviderIdsStay;

impl Invariant for ProviderIdsStay {
    fn name(&self) -> &'static str {
        "a NodeClaim's provider id and launch are final"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I3"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
            if uid(&**old) != uid(&**new) {
                continue;
            }
            let (was, is) = (provider_id(old), provider_id(new));
            if was.is_some() && was != is {
                return Err(format!("NodeClaim {}: provider id {was:?} became {is:?}", edit.key));
            }
            let launched = karpenter_api::nodeclaim::LAUNCHED;
            if has_condition(old, launched) && !has_condition(new, launched) {
                return Err(format!("NodeClaim {}: Launched is no longer True", edit.key));
            }
        }
        Ok(())
    }
}

/// Once everything has come right, every machine has a NodeClaim.
pub struct NoOrphans {
    /// How long a machine may be without one.
    pub window: Duration,
}

impl Default for NoOrphans {
    /// Garbage collection looks every two minutes and spares what is younger than five.
    fn default() -> Self {
        Self { window: Duration::from_secs(10 * 60) }
    }
}

impl Invariant for NoOrphans {
    fn name(&self) -> &'static str {
        "no instance is left without a NodeClaim"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I5"]
    }

    fn check(&mut self, _: &Step<'_>) -> Result<(), String> {
        Ok(())
    }

    fn check_at_rest(&mut self, rest: &Rest<'_>) -> Result<(), String> {
        if rest.healed_for < self.window {
            return Ok(());
        }
        for instance in rest.inventory.live() {
            let age = Duration::try_from(rest.now.duration_since(instance.launched_at)).unwrap_or_default();
            let owned = rest.objects.node_claims.values().any(|claim| {
                provider_id(claim) == Some(&instance.provider_id)
                    || uid(&**claim) == instance.launch.claim_uid
            });
            if age > self.window && !owned {
                return Err(format!(
                    "instance {} (launched for NodeClaim uid {}) has no NodeClaim",
                    instance.id, instance.launch.claim_uid
                ));
            }
        }
        Ok(())
    }
}
