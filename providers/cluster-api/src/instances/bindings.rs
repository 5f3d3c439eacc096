//! NodeClaims that the Go provider bound to a Machine (`cluster.x-k8s.io/machine`). Until that carries a claim, the binding, and the id if
//! there is one, tell whose it is: it is claimed for them as for those that wait, and goes with them when they end.

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{Launch, LaunchHandle, ProviderError};
use karpenter_runtime::error::NotYet;
use karpenter_runtime::object_key::ObjectKey;

use super::fleet::Fleet;
use super::launch;
use super::ledger::is_our_mark;
use super::node_claims::{AssignError, bound_by_go, facts};
use super::{restoration, succession};
use crate::client::fields::parse_key;
use crate::client::machine::{Claim, Machine};
use crate::names;

/// What becomes of a NodeClaim's binding when its instance is asked for.
pub(super) enum Bound {
    /// There is none.
    Not,
    /// Its Machine is about to be claimed for it.
    Kept(Launch),
    /// It can have that Machine no more: this is the NodeClaim without the binding, to be served like any other.
    Released(Box<NodeClaim>),
}

/// Has the Machine claimed that a NodeClaim is bound to, or gives up the binding if it cannot have it.
pub(super) async fn keep(fleet: &Fleet, claim: &NodeClaim) -> Result<Bound, ProviderError> {
    if !claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::GO_MACHINE)) {
        return Ok(Bound::Not);
    }
    let machine = match bound_by_go(claim) {
        Some(key) => find(fleet, &key).await?,
        None => None,
    };
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let may_be_its = |machine: &Machine| {
        // Under its name and another uid it was claimed for this one before that was restored from a backup.
        let its = |held: Claim| held.owner == fleet.owner && (held.uid == uid || held.node_claim == name);
        let anothers = machine.claim().is_some_and(|held| !its(held));
        !anothers && !machine.deleting && !is_our_mark(machine)
    };
    let Some(machine) = machine.filter(may_be_its) else { return release(fleet, claim).await };
    if machine.claim().is_some_and(|held| held.uid != uid) {
        restoration::reclaim(fleet, &machine).await.map_err(ProviderError::other)?;
    }
    // Its time with us begins with us.
    let is_overdue = launch::is_overdue(fleet, claim, launch::age(fleet, claim).min(fleet.since_start()));
    let Some(id) = fleet.mirror.scalable_of(&machine) else {
        if is_overdue {
            return release(fleet, claim).await;
        }
        // It may only not have been seen yet.
        let why = format!("Machine {} is of no MachineDeployment or MachineSet that is known", machine.key);
        return Err(ProviderError::create(NotYet::new(why.clone()), "MachinePending", why));
    };
    let target = succession::target(&id);
    // By its target the core is told what is to come, and reminded of it.
    fleet.node_claims.reassign(claim, &target).await.map_err(|error| match error {
        AssignError::Gone(_) => ProviderError::not_found(error),
        AssignError::Write { .. } => ProviderError::other(error),
    })?;
    if let Some(why) = fleet.journeys.refusal(uid) {
        return Err(ProviderError::insufficient_capacity(why));
    }
    fleet.poke(&id);
    let pending = |(reason, message): (String, String)| {
        Bound::Kept(Launch::Pending { reason, message, handle: LaunchHandle(target.to_string()) })
    };
    if let Some(message) = launch::away(fleet) {
        return Ok(pending(("ManagementUnavailable".to_owned(), message)));
    }
    let hold = fleet.mirror.scalable(&id).and_then(|scalable| fleet.hold(&scalable));
    let told = match hold {
        Some(hold) => (hold.reason.to_owned(), hold.message),
        None if machine.is_paused() => ("Paused".to_owned(), format!("Machine {} is paused", machine.key)),
        None => (
            "MachinePending".to_owned(),
            format!("Machine {}, which the Go provider bound it to, is about to be claimed", machine.key),
        ),
    };
    if is_overdue {
        return Err(ProviderError::insufficient_capacity(told.1));
    }
    Ok(pending(told))
}

/// Gives up a binding: the NodeClaim is one like any other from now on.
async fn release(fleet: &Fleet, claim: &NodeClaim) -> Result<Bound, ProviderError> {
    match fleet.node_claims.release(claim).await {
        Ok(Some(now)) => Ok(Bound::Released(Box::new(now))),
        Ok(None) => Err(ProviderError::not_found("the NodeClaim is gone")),
        Err(error) => Err(ProviderError::other(error)),
    }
}

/// A Machine of our Cluster. `None` only if the management cluster says that there is none.
pub(super) async fn find(fleet: &Fleet, key: &ObjectKey) -> Result<Option<Machine>, ProviderError> {
    if let Some(seen) = fleet.mirror.machine(key) {
        return Ok(Some(Machine::clone(&seen)));
    }
    let count = fleet.census.count(&fleet.hub).await.map_err(ProviderError::other)?;
    match count.machines.iter().find(|machine| machine.key == *key) {
        Some(machine) => Ok(Some(machine.clone())),
        None => count.is_complete().map(|()| None),
    }
}

/// What the Go provider bound a NodeClaim to.
pub(super) struct Binding<'a> {
    claim: &'a NodeClaim,
    machine: ObjectKey,
    /// All other NodeClaims, as the server has them.
    others: Vec<NodeClaim>,
}

impl<'a> Binding<'a> {
    /// `None` if it did not.
    pub(super) async fn of(fleet: &Fleet, claim: &'a NodeClaim) -> Result<Option<Self>, ProviderError> {
        let Some(machine) = bound_by_go(claim) else { return Ok(None) };
        let others = fleet.node_claims.others(claim).await.map_err(ProviderError::other)?;
        Ok(Some(Self { claim, machine, others }))
    }

    /// Whether it is to this Machine.
    pub(super) fn is_to(&self, machine: &Machine) -> bool {
        self.machine == machine.key
    }

    /// Whether no other NodeClaim has this Machine: the Go provider may have bound two to one.
    pub(super) fn is_alone(&self, machine: &Machine) -> bool {
        !self.others.iter().any(|other| self.gives_way_to(other, machine))
    }

    /// Whether another NodeClaim names a Machine or has its id. Of two that end, one that has no id can spare it, and the younger can.
    fn gives_way_to(&self, other: &NodeClaim, machine: &Machine) -> bool {
        let id = other.status.as_ref().and_then(|status| status.provider_id.as_ref());
        let place = |claim: &NodeClaim| {
            let facts = facts(claim);
            (facts.created, facts.name)
        };
        let ends = other.metadata.deletion_timestamp.is_some();
        if ends && (id.is_none() || place(other) > place(self.claim)) {
            return false;
        }
        let annotations = other.metadata.annotations.as_ref();
        let names_it = [names::MACHINE, names::GO_MACHINE].iter().any(|key| {
            let named = annotations.and_then(|all| all.get(*key)).and_then(|text| parse_key(text));
            named.as_ref() == Some(&machine.key)
        });
        names_it || id.is_some() && id == machine.provider_id.as_ref()
    }
}
