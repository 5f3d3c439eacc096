//! Machines that the infrastructure put elsewhere than they were bought for. The failure domain that it says they are in is believed,
//! unless the owner of what they come from says which zone that has, or their Node did when they were adopted: NodeClaims and Nodes
//! get the zone they are in.
//!
//! Only where nodes of the same kind are sold in that zone, and the NodePool wants nodes there: a NodeClaim that is nothing anybody
//! could buy would be replaced by another of the same, again and again.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::{CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL, TOPOLOGY_ZONE};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::events::{Event, EventType, reference};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::adoption;
use super::fleet::Fleet;
use super::node_claims::Target;
use super::offers::Offers;
use crate::client::machine::Machine;
use crate::names;

/// A NodeClaim whose Machine is elsewhere.
struct Astray {
    claim: Arc<NodeClaim>,
    /// The zone it was bought for.
    said: String,
    /// The zone its Machine is in.
    zone: String,
    /// Whether nodes of its kind are sold there.
    sold: bool,
}

/// Corrects the zones of NodeClaims whose Machines are elsewhere. What fails is done the next time.
pub(crate) async fn correct(fleet: &Fleet) {
    let mut pools: Option<Vec<NodePool>> = None;
    for machine in fleet.mirror.machines().into_iter().filter(|machine| !machine.deleting) {
        let Some(astray) = look_at(fleet, &machine) else { continue };
        if pools.is_none() && astray.sold {
            let Ok(listed) = fleet.node_claims.node_pools().await else { return };
            pools = Some(listed);
        }
        let domain = machine.placed_in.as_deref().unwrap_or_default();
        let uid = astray.claim.metadata.uid.clone().unwrap_or_default();
        let (zone, said) = (&astray.zone, &astray.said);
        let found = format!(
            "Machine {} is in failure domain {domain}, which is zone {zone}, and was bought for {said}",
            machine.key
        );
        let event = if !astray.sold {
            let message = format!(
                "{found}; nothing of its kind is offered there, so it keeps its label: see spec.failureDomainZones"
            );
            Event::new(reference(&*astray.claim), EventType::Warning, "ZoneDoubtful", message)
        } else if !is_wanted(&astray, pools.as_deref().unwrap_or_default()) {
            let message = format!("{found}; its NodePool wants no nodes there, so it keeps its label");
            Event::new(reference(&*astray.claim), EventType::Warning, "ZoneDoubtful", message)
        } else {
            if let Err(error) = write(fleet, &machine, &astray).await {
                tracing::warn!(%error, "cannot correct a zone, will retry");
                continue;
            }
            Event::new(reference(&*astray.claim), EventType::Normal, "ZoneCorrected", found)
        };
        fleet.recorder.publish(event.dedupe_by([uid, zone.clone()]));
    }
}

/// Whether a Machine of ours is elsewhere than its NodeClaim says.
fn look_at(fleet: &Fleet, machine: &Machine) -> Option<Astray> {
    let domain = machine.placed_in.as_deref()?;
    let claimed = machine.claim().filter(|claim| claim.owner == fleet.owner)?;
    let claim = fleet.node_claims.seen(&claimed.node_claim, &claimed.uid)?;
    let launched = claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
    let adopted = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::ADOPTED));
    if !launched || adopted || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let said = claim.metadata.labels.as_ref()?.get(TOPOLOGY_ZONE)?.clone();
    let class = fleet.node_class(&claim.spec.node_class_ref.name)?;
    let zone = class.zone_of(domain);
    if zone == said {
        return None;
    }
    let offers = fleet.offers(&class);
    let id = Target::of(&claim).map(|target| target.id).or_else(|| fleet.mirror.scalable_of(machine))?;
    let told = offers.blueprints.iter().find(|blueprint| blueprint.id == id)?.zone_told;
    let sold = is_sold(&offers, &claim, &zone);
    (!told).then_some(Astray { claim, said, zone, sold })
}

/// Whether nodes of a NodeClaim's type, paid for as it is, are sold in a zone.
fn is_sold(offers: &Offers, claim: &NodeClaim, zone: &str) -> bool {
    let label = |key: &str| claim.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    offers.catalog.entries.iter().any(|entry| {
        let same = |key: &str| entry.labels.get(key) == label(key);
        entry.zone.as_deref() == Some(zone) && same(INSTANCE_TYPE) && same(CAPACITY_TYPE)
    })
}

/// Whether the NodePool of a NodeClaim, if it still has one, wants nodes in the zone that it is in.
fn is_wanted(astray: &Astray, pools: &[NodePool]) -> bool {
    let mut labels = astray.claim.metadata.labels.clone().unwrap_or_default();
    labels.insert(TOPOLOGY_ZONE.to_owned(), astray.zone.clone());
    let name = labels.get(NODEPOOL);
    let pool = pools.iter().find(|pool| pool.metadata.name.as_ref() == name);
    pool.is_none_or(|pool| adoption::meets(pool, &labels))
}

/// Writes the zone on the Node, if that has the wrong one, and on the NodeClaim: in this order, for the NodeClaim says what is left to do.
async fn write(fleet: &Fleet, machine: &Machine, astray: &Astray) -> Result<(), kube::Error> {
    let labels = json!({"labels": {TOPOLOGY_ZONE: astray.zone}});
    let params = PatchParams::default();
    if let Some(name) = &machine.node_name {
        let nodes: Api<Node> = Api::all(fleet.node_claims.client());
        let node = nodes.get_opt(name).await?;
        let has = node.as_ref().and_then(|node| node.metadata.labels.as_ref()?.get(TOPOLOGY_ZONE));
        if has == Some(&astray.said) {
            nodes.patch(name, &params, &Patch::Merge(json!({"metadata": labels}))).await?;
        }
    }
    let claims: Api<NodeClaim> = Api::all(fleet.node_claims.client());
    let name = astray.claim.metadata.name.as_deref().unwrap_or_default();
    let mut metadata = labels;
    metadata["uid"] = json!(astray.claim.metadata.uid);
    match claims.patch(name, &params, &Patch::Merge(json!({"metadata": metadata}))).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}
