//! How the latest launches of each NodePool went: the last four, in memory (rules L1.28, L1.29).
//!
//! Two failures among them make a pool unhealthy, which its condition `NodeRegistrationHealthy` shows. The condition is
//! written here, by whoever learns how a launch ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodepool::NODE_REGISTRATION_HEALTHY;
use karpenter_api::{NodeClaim, NodePool, labels, nodeclaim};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::Api;

use crate::context::Context;
use crate::totals::label;

/// How many launches are remembered.
const REMEMBERED: usize = 4;
/// How many of them must have failed.
const UNHEALTHY: usize = 2;

/// What the latest launches say of a NodePool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nothing.
    Unknown,
    /// At most one failed.
    Healthy,
    /// Too many failed.
    Unhealthy,
}

/// The latest launches of every NodePool, by UID; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegistrationHealth(Arc<Mutex<BTreeMap<String, Launches>>>);

/// The latest launches of one NodePool: whether they went well, the oldest first.
#[derive(Clone, Debug, Default)]
struct Launches(VecDeque<bool>);

impl Launches {
    fn record(&mut self, success: bool) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(success);
    }

    fn health(&self) -> Health {
        match self.0.iter().filter(|success| !**success).count() {
            _ if self.0.is_empty() => Health::Unknown,
            UNHEALTHY.. => Health::Unhealthy,
            _ => Health::Healthy,
        }
    }
}

impl RegistrationHealth {
    fn with<T>(&self, uid: &str, edit: impl FnOnce(&mut Launches) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        edit(all.entry(uid.to_owned()).or_default())
    }

    /// What the latest launches say.
    pub(crate) fn of(&self, uid: &str) -> Health {
        self.with(uid, |launches| launches.health())
    }

    /// Takes over what another process had found out.
    pub(crate) fn set(&self, uid: &str, health: Health) {
        let known: &[bool] = match health {
            Health::Unknown => &[],
            Health::Healthy => &[true],
            Health::Unhealthy => &[false; UNHEALTHY],
        };
        self.with(uid, |launches| launches.0 = known.iter().copied().collect());
    }

    /// Forgets a NodePool that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// What they would say after one more.
    fn after(&self, uid: &str, success: bool) -> Health {
        let mut launches = self.with(uid, |launches| launches.clone());
        launches.record(success);
        launches.health()
    }

    /// Notes how the launch of `claim` ended, on its NodePool and here. False: the NodePool changed meanwhile, come again.
    pub(crate) async fn record(
        &self,
        context: &Context,
        claim: &NodeClaim,
        success: bool,
    ) -> Result<bool, kube::Error> {
        let Some(pool) = pool_of(context, claim) else { return Ok(true) };
        let uid = pool.metadata.uid.clone().unwrap_or_default();
        let mut changed = (*pool).clone();
        let mut conditions = ConditionSet::of(&mut changed, context.now());
        let known = pool.condition_status(NODE_REGISTRATION_HEALTHY);
        let news = match self.after(&uid, success) {
            Health::Healthy if success => conditions.set_true(NODE_REGISTRATION_HEALTHY),
            Health::Unhealthy if !success && known != ConditionStatus::False => {
                let (reason, message) = failure(claim);
                conditions.set_false(NODE_REGISTRATION_HEALTHY, &reason, &message)
            }
            _ => false,
        };
        if news {
            let api: Api<NodePool> = Api::all(context.client.clone());
            if let Written::Conflict = writes::patch_status(&api, &pool, &changed, Lock::Optimistic).await? {
                return Ok(false);
            }
        }
        self.with(&uid, |launches| launches.record(success));
        Ok(true)
    }
}

/// The NodePool that made this NodeClaim, if it is still there: not another of its name.
fn pool_of(context: &Context, claim: &NodeClaim) -> Option<Arc<NodePool>> {
    let name = label(claim, labels::NODEPOOL);
    let pool = context.stores.node_pools.get(&ObjectKey::cluster(name))?;
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owned =
        owners.any(|owner| owner.kind == "NodePool" && Some(&owner.uid) == pool.metadata.uid.as_ref());
    owned.then_some(pool)
}

/// Why a claim did not become a node: it was not launched, for the reason its condition gives, or did not register.
fn failure(claim: &NodeClaim) -> (String, String) {
    match claim.condition(nodeclaim::LAUNCHED) {
        Some(launched) if launched.status != ConditionStatus::True => {
            (launched.reason().to_owned(), launched.message().to_owned())
        }
        _ => ("RegistrationFailed".to_owned(), "Failed to register node".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_among_the_last_four_make_a_pool_unhealthy() {
        let health = RegistrationHealth::default();
        let record = |success| health.with("p", |launches| launches.record(success));
        assert_eq!(health.of("p"), Health::Unknown);
        record(false);
        assert_eq!(health.of("p"), Health::Healthy, "one failure is chance");
        assert_eq!(health.after("p", false), Health::Unhealthy);
        record(false);
        record(true);
        assert_eq!(health.of("p"), Health::Unhealthy, "one success does not make up for two failures");
        record(true);
        assert_eq!(health.after("p", true), Health::Healthy, "the oldest failure is forgotten");
        record(true);
        assert_eq!(health.of("p"), Health::Healthy);
        assert_eq!(health.of("another"), Health::Unknown);
    }

    #[test]
    fn what_another_process_found_out_is_taken_over() {
        let health = RegistrationHealth::default();
        for known in [Health::Healthy, Health::Unhealthy, Health::Unknown] {
            health.set("p", known);
            assert_eq!(health.of("p"), known);
        }
    }
}
