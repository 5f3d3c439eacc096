//! What may be left of a Machine that is gone: its infrastructure, which then still runs and costs. Cluster API lets a Machine go only
//! after that, so that something is left only where somebody took its finalizer off, or where a clone never got its Machine. A NodeClaim
//! does not end before that is gone, too.

use karpenter_api::NodeClaim;

use super::fleet::Fleet;
use super::node_claims::Target;
use super::standalone::kind_of_clones;
use crate::client::fields::{Reference, parse_key};
use crate::client::hub::HubError;
use crate::client::versions::VersionError;
use crate::names;

/// The infrastructure that is left of a NodeClaim's Machine, which is gone. `None` only if the management cluster says that there is none,
/// or that it is none of our business.
pub(crate) async fn infrastructure(
    fleet: &Fleet,
    claim: &NodeClaim,
    target: Option<&Target>,
) -> Result<Option<Reference>, HubError> {
    let Some(reference) = reference(fleet, claim, target) else { return Ok(None) };
    let found = match fleet.hub.get(&reference).await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(None),
        // Whoever may not look never learns: Cluster API's word, by which the Machine is gone, has to do.
        Err(HubError::Refused { .. }) => return Ok(None),
        // There are no objects of a kind that does not exist.
        Err(HubError::Version(VersionError::NoGroup(_) | VersionError::NoKind { .. })) => return Ok(None),
        Err(error) => return Err(error),
    };
    let uid = claim.metadata.uid.as_ref();
    let made_for = found.metadata.annotations.as_ref().and_then(|all| all.get(names::NODECLAIM_UID));
    let is_clone = target.is_some_and(|target| target.standalone);
    // One of our name that was made for somebody else. What Cluster API makes says nothing of NodeClaims.
    if made_for != uid && (is_clone || made_for.is_some()) {
        return Ok(None);
    }
    // That of a Machine which is there is that Machine's, and that is another NodeClaim's.
    let owners = found.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.kind == "Machine").map(|owner| owner.name.as_str());
    match fleet.hub.machine(owner.unwrap_or(&reference.name)).await {
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(Some(reference)),
        Err(error) => Err(error),
    }
}

/// The infrastructure of a NodeClaim's Machine: as the Machine named it when it was last seen, else by its name, which Machines of
/// MachineSets and Machines of their own share with it.
fn reference(fleet: &Fleet, claim: &NodeClaim, target: Option<&Target>) -> Option<Reference> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if let Some(seen) = fleet.journeys.ran_on(uid) {
        return Some(seen);
    }
    let target = target?;
    let note = |key: &str| claim.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let machine = note(names::MACHINE).or_else(|| note(names::GO_MACHINE));
    let machine = machine.and_then(|text| parse_key(text)).map(|key| key.name.to_string());
    let own = claim.metadata.name.clone().filter(|_| target.standalone);
    let template = fleet.blueprint(&target.id)?.infrastructure.clone()?;
    Some(Reference { kind: kind_of_clones(&template).to_owned(), name: machine.or(own)?, ..template })
}
