//! Get and List: the Machines of ours that have an id, as NodeClaims. Always a fresh read: a list that may be incomplete is an
//! error, and a Machine whose resource is gone is listed all the same.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use karpenter_api::NodeClaim;
use karpenter_api::nodeclaim::NodeClaimStatus;
use karpenter_cloudprovider::{ProviderError, conversion};

use super::fleet::Fleet;
use crate::client::machine::Machine;
use crate::names;

/// Every instance this cluster has.
pub(crate) async fn list(fleet: &Arc<Fleet>) -> Result<Vec<NodeClaim>, ProviderError> {
    fleet.ready().await?;
    let count = fleet.census.count(&fleet.hub).await.map_err(ProviderError::other)?;
    count.is_complete()?;
    let ours = count.machines.iter().filter(|m| is_ours(fleet, m)).map(|machine| node_claim(fleet, machine));
    Ok(ours.filter(|claim| claim.status.as_ref().is_some_and(|s| s.provider_id.is_some())).collect())
}

/// The instance of this id.
pub(crate) async fn get(fleet: &Arc<Fleet>, provider_id: &str) -> Result<NodeClaim, ProviderError> {
    if provider_id.is_empty() {
        return Err(ProviderError::other("an empty provider id names no Machine"));
    }
    fleet.ready().await?;
    if let Some(seen) = fleet.mirror.machine_by_provider_id(provider_id) {
        match fleet.hub.machine(&seen.key.name).await {
            Ok(machine) if machine.provider_id.as_deref() == Some(provider_id) => {
                return Ok(node_claim(fleet, &machine));
            }
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(ProviderError::other(error)),
        }
    }
    let count = fleet.census.count(&fleet.hub).await.map_err(ProviderError::other)?;
    count.is_complete()?;
    let found = count.machines.iter().find(|machine| id_of(fleet, machine).as_deref() == Some(provider_id));
    let missing = || ProviderError::not_found(format!("no Machine has the provider id {provider_id:?}"));
    found.map(|machine| node_claim(fleet, machine)).ok_or_else(missing)
}

/// The id of a Machine: its own, or the one its NodeClaim was launched with before Cluster API copied it.
fn id_of(fleet: &Fleet, machine: &Machine) -> Option<String> {
    machine.provider_id.clone().or_else(|| {
        let claim = machine.claim().filter(|claim| claim.owner == fleet.owner)?;
        fleet.node_claims.provider_id(&claim.node_claim, &claim.uid)
    })
}

/// Claimed by us, or by the Go provider that was here before; or a NodeClaim's that has its id, whatever became of the claim.
fn is_ours(fleet: &Fleet, machine: &Machine) -> bool {
    let Some(claim) = machine.claim() else {
        let is_member = machine.labels.contains_key(names::MEMBER);
        let bound = fleet.node_claims.bound_to(&machine.key);
        let has_its_id = |id: &Option<String>| id.is_some() && *id == machine.provider_id;
        return bound.iter().any(|bound| is_member || has_its_id(&bound.facts.provider_id));
    };
    claim.owner == fleet.owner
}

fn node_claim(fleet: &Fleet, machine: &Machine) -> NodeClaim {
    let id = fleet.mirror.scalable_of(machine);
    let scalable = id.as_ref().and_then(|id| fleet.mirror.scalable(id));
    let class = scalable.as_ref().and_then(|scalable| fleet.node_class_of(scalable));
    let offers = class.as_ref().map(|class| fleet.offers(class));
    let entry = offers.as_ref().zip(id.as_ref()).and_then(|(offers, id)| offers.entry_of(machine, id));
    let instance_type = entry.as_ref().zip(offers.as_ref()).map(|(e, o)| &o.catalog.types[e.instance_type]);
    let claim = machine.claim();
    let status = NodeClaimStatus {
        provider_id: id_of(fleet, machine),
        node_name: machine.node_name.clone(),
        capacity: instance_type.map(|t| conversion::resource_list(&t.capacity)),
        allocatable: instance_type.map(|t| conversion::resource_list(&conversion::allocatable(t))),
        ..NodeClaimStatus::default()
    };
    NodeClaim {
        metadata: ObjectMeta {
            name: claim.as_ref().map(|claim| claim.node_claim.clone()),
            uid: claim.as_ref().map(|claim| claim.uid.clone()),
            labels: entry.map(|entry| entry.labels),
            annotations: Some([(names::MACHINE.to_owned(), machine.key.to_string())].into()),
            creation_timestamp: Some(Time(machine.created)),
            deletion_timestamp: machine.deleting.then(|| Time(fleet.clock.now())),
            ..ObjectMeta::default()
        },
        status: Some(status),
        ..NodeClaim::default()
    }
}
