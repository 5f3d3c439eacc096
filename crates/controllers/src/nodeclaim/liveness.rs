//! The last stage of a NodeClaim on its way up: it is given up when it takes too long (rules L1.50–L1.53).

use std::time::Duration;

use karpenter_api::nodeclaim::{LAUNCHED, REGISTERED};
use karpenter_cloudprovider::provider::DEFAULT_LAUNCH_TIMEOUT;
use karpenter_runtime::controller::Outcome;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::writes::{self, Deleted};

use super::lifecycle::{Lifecycle, Pass, Stage};
use crate::times::{after, until};
use crate::totals::reason;

/// How long a claim may take from its creation to its registration, if its provider launches as fast as most.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// When a claim that has time left to register is looked at again at the latest: how much it has may change, or be known later.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

impl Lifecycle {
    pub(super) async fn liveness(&self, pass: &mut Pass) -> Result<Stage, ReconcileError> {
        let launch_timeout = pass.provider.launch_timeout();
        let registration = pass.provider.registration_timeout(&pass.claim);
        let refused = self.refused_since(&pass.claim);
        let conditions = pass.conditions(&self.context);
        if conditions.is_true(&[REGISTERED]) {
            return Ok(Stage::Next(Outcome::Done));
        }
        let launched = conditions.is_true(&[LAUNCHED]);
        let (condition, timeout, reason) = if !launched {
            (LAUNCHED, launch_timeout, reason::LAUNCH_TIMEOUT)
        } else if let Some(timeout) = registration {
            // From the launch on, however long that took.
            (LAUNCHED, timeout, reason::REGISTRATION_TIMEOUT)
        } else {
            // Both times count from the claim's creation: a provider that needs longer to launch must not lose the time its
            // nodes need to register.
            let slower = launch_timeout.saturating_sub(DEFAULT_LAUNCH_TIMEOUT);
            (REGISTERED, REGISTRATION_TIMEOUT + slower, reason::REGISTRATION_TIMEOUT)
        };
        let since =
            conditions.get(condition).map_or_else(|| self.context.now(), |condition| condition.since());
        // Where nothing can be written every pass begins anew, and its conditions with it.
        let since = refused.map_or(since, |refused| refused.min(since));
        let left = until(self.context.now(), after(since, timeout));
        if !left.is_zero() {
            // A pass over what is not launched asks for the launch again; whoever launches tells when that is worth it.
            let again = if launched { left.min(LOOK_AGAIN) } else { left };
            return Ok(Stage::Next(Outcome::After(again)));
        }
        let doubt = self.context.environment.clock.doubted_for();
        if !doubt.is_zero() {
            return Ok(Stage::Next(Outcome::After(doubt)));
        }
        // What nobody can replace would be missed, and may yet come up.
        if self.context.is_stuck(&pass.claim) {
            return Ok(Stage::Next(Outcome::After(LOOK_AGAIN)));
        }
        // As it was read: it may have got there in the last moment.
        let deleted = writes::delete_unchanged(&self.claims, &pass.claim).await;
        let deleted =
            deleted.map_err(|e| ReconcileError::from(e).context("deleting nodeclaim for timeout"))?;
        match deleted {
            Deleted::Conflict => return Ok(Stage::Next(Outcome::Requeue)),
            Deleted::Gone => {}
            Deleted::Yes => {
                tracing::debug!(timeout = %logging::duration(timeout), reason, "terminating due to timeout");
                self.totals.claim_disrupted(reason, &pass.claim, "");
            }
        }
        // There is nothing left to try again on.
        if let Err(error) = self.record_launch(&pass.claim, false).await {
            tracing::error!(%error, "noting the failed launch on the nodepool");
        }
        Ok(Stage::Deleted)
    }
}
