//! NodeClaims that the Go provider bound to a Machine (`cluster.x-k8s.io/machine`) and that have no id yet, so that the binding alone tells
//! whose the Machine is: it is claimed for them as for those that wait, and goes with them when they end.

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{Launch, LaunchHandle, ProviderError};
use karpenter_runtime::object_key::ObjectKey;

use super::fleet::Fleet;
use super::launch;
use super::ledger::is_our_mark;
use super::node_claims::bound_by_go;
use super::succession;
use crate::client::fields::parse_key;
use crate::client::machine::Machine;
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
    let may_be_its = |machine: &Machine| {
        let anothers = machine.claim().is_some_and(|held| held.owner != fleet.owner || held.uid != uid);
        !anothers && !machine.deleting && !is_our_mark(machine)
    };
    let machine = machine.filter(may_be_its);
    let Some((machine, id)) = machine.and_then(|m| fleet.mirror.scalable_of(&m).map(|id| (m, id))) else {
        return match fleet.node_claims.release(claim).await {
            Ok(Some(now)) => Ok(Bound::Released(Box::new(now))),
            Ok(None) => Err(ProviderError::not_found("the NodeClaim is gone")),
            Err(error) => Err(ProviderError::other(error)),
        };
    };
    let target = succession::target(&id);
    if let Some(why) = fleet.refusal(uid) {
        return Err(ProviderError::insufficient_capacity(why));
    }
    fleet.poke(&id);
    let handle = LaunchHandle(target.to_string());
    if let Some(message) = launch::away(fleet) {
        return Ok(Bound::Kept(Launch::Pending {
            reason: "ManagementUnavailable".to_owned(),
            message,
            handle,
        }));
    }
    let hold = fleet.mirror.scalable(&id).and_then(|scalable| fleet.hold(&scalable));
    let (reason, message) = match hold {
        Some(hold) => (hold.reason.to_owned(), hold.message),
        None => (
            "MachinePending".to_owned(),
            format!("Machine {}, which the Go provider bound it to, is about to be claimed", machine.key),
        ),
    };
    // Its time with us begins with us.
    if launch::is_overdue(fleet, claim, launch::age(fleet, claim).min(fleet.since_start())) {
        return Err(ProviderError::insufficient_capacity(message));
    }
    Ok(Bound::Kept(Launch::Pending { reason, message, handle }))
}

/// A Machine of our Cluster. `None` only if the management cluster says that there is none.
async fn find(fleet: &Fleet, key: &ObjectKey) -> Result<Option<Machine>, ProviderError> {
    if let Some(seen) = fleet.mirror.machine(key) {
        return Ok(Some(Machine::clone(&seen)));
    }
    let count = fleet.census.count(&fleet.hub).await.map_err(ProviderError::other)?;
    match count.machines.iter().find(|machine| machine.key == *key) {
        Some(machine) => Ok(Some(machine.clone())),
        None => count.is_complete().map(|()| None),
    }
}

/// What the Go provider bound a NodeClaim to that has no id yet.
pub(super) struct Binding {
    machine: ObjectKey,
    /// All other NodeClaims, as the server has them.
    others: Vec<NodeClaim>,
}

impl Binding {
    /// `None` if it did not, or there is an id to go by.
    pub(super) async fn of(fleet: &Fleet, claim: &NodeClaim) -> Result<Option<Self>, ProviderError> {
        let has_id = claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
        let Some(machine) = bound_by_go(claim).filter(|_| !has_id) else { return Ok(None) };
        let others = fleet.node_claims.others(claim).await.map_err(ProviderError::other)?;
        Ok(Some(Self { machine, others }))
    }

    /// Whether it is to this Machine, and no other NodeClaim has that: the Go provider may have bound two to one.
    pub(super) fn holds(&self, machine: &Machine) -> bool {
        self.machine == machine.key && !self.others.iter().any(|other| has(other, machine))
    }
}

/// Whether a NodeClaim names a Machine or has its id. One that ends as well, and has no id either, can spare it.
fn has(claim: &NodeClaim, machine: &Machine) -> bool {
    let id = claim.status.as_ref().and_then(|status| status.provider_id.as_ref());
    if id.is_none() && claim.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let annotations = claim.metadata.annotations.as_ref();
    let names_it = [names::MACHINE, names::GO_MACHINE].iter().any(|key| {
        let named = annotations.and_then(|all| all.get(*key)).and_then(|text| parse_key(text));
        named.as_ref() == Some(&machine.key)
    });
    names_it || id.is_some() && id == machine.provider_id.as_ref()
}
