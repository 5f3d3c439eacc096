//! Nodes of machines that may be taken away at any time: Cluster API labels them when the infrastructure says so, which no template does.
//! Their NodeClaims are spot from then on, whatever they were launched as, and what they come from is offered as spot until its template
//! is another.
//!
//! Only where their NodePool wants spot nodes: a NodeClaim that its NodePool does not want would be replaced by another of the same, again
//! and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::{CAPACITY_TYPE, CAPACITY_TYPE_SPOT, NODEPOOL};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::events::{Event, EventType, reference};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::adoption;
use super::fleet::Fleet;
use super::learning::{machines_of_their_own, machines_of_today};
use super::node_claims::Target;
use crate::names;

/// How often Nodes are looked at.
const PERIOD: Duration = Duration::from_secs(60);

/// When Nodes were last looked at.
#[derive(Debug, Default)]
pub(crate) struct Interruptible(Option<Instant>);

impl Interruptible {
    /// Makes spot what turned out to be. What fails is done the next time.
    pub(crate) async fn correct(&mut self, fleet: &Fleet) {
        if self.0.is_some_and(|at| at.elapsed() < PERIOD) {
            return;
        }
        let nodes: Api<Node> = Api::all(fleet.node_claims.client());
        let labelled = ListParams::default().labels(names::INTERRUPTIBLE);
        let Ok(found) = nodes.list(&labelled).await else { return };
        self.0 = Some(Instant::now());
        let mut pools: Option<Vec<NodePool>> = None;
        for node in found.items {
            let spot = |labels: &Option<BTreeMap<String, String>>| {
                labels
                    .as_ref()
                    .and_then(|all| all.get(CAPACITY_TYPE))
                    .is_some_and(|is| is == CAPACITY_TYPE_SPOT)
            };
            let Some(claim) = claim_of(fleet, &node) else { continue };
            if spot(&node.metadata.labels) && spot(&claim.metadata.labels) {
                remember(fleet, &claim);
                continue;
            }
            if pools.is_none() {
                let Ok(listed) = fleet.node_claims.node_pools().await else { return };
                pools = Some(listed);
            }
            let doubt = if is_sold_otherwise(fleet, &claim) {
                let key = names::CAPACITY_TYPE;
                Some(format!("what it comes from says that it is not spot: correct its annotation {key}"))
            } else if !is_wanted(&claim, pools.as_deref().unwrap_or_default()) {
                Some("its NodePool wants no spot nodes, so it keeps its label".to_owned())
            } else {
                None
            };
            if let Some(doubt) = doubt {
                let message = format!("its machine may be taken away at any time, and {doubt}");
                let event =
                    Event::new(reference(&*claim), EventType::Warning, "CapacityTypeDoubtful", message);
                fleet.recorder.publish(event.dedupe_by([claim.metadata.uid.clone().unwrap_or_default()]));
                continue;
            }
            let change = Patch::Merge(json!({"metadata": {"labels": {CAPACITY_TYPE: CAPACITY_TYPE_SPOT}}}));
            let claims: Api<NodeClaim> = Api::all(fleet.node_claims.client());
            let name = |name: &Option<String>| name.clone().unwrap_or_default();
            let params = PatchParams::default();
            let written = match claims.patch(&name(&claim.metadata.name), &params, &change).await {
                Ok(_) => nodes.patch(&name(&node.metadata.name), &params, &change).await.map(drop),
                Err(error) => Err(error),
            };
            match written {
                Ok(()) => {
                    remember(fleet, &claim);
                    let message = "its machine may be taken away at any time: it counts as spot".to_owned();
                    let event =
                        Event::new(reference(&*claim), EventType::Normal, "CapacityTypeCorrected", message);
                    fleet.recorder.publish(event.dedupe_by([name(&claim.metadata.uid)]));
                }
                Err(error) => tracing::warn!(%error, "cannot correct a capacity type, will retry"),
            }
        }
    }
}

/// Whether the owner of what a NodeClaim was bought from says how it is paid for. A NodeClaim that says otherwise would be replaced by
/// another of the same, again and again.
fn is_sold_otherwise(fleet: &Fleet, claim: &NodeClaim) -> bool {
    let target = Target::of(claim);
    let class = fleet.node_class(&claim.spec.node_class_ref.name);
    let Some((target, class)) = target.zip(class) else { return true };
    let offers = fleet.offers(&class);
    let blueprint = offers.blueprints.iter().find(|blueprint| blueprint.id == target.id);
    blueprint
        .is_none_or(|blueprint| blueprint.capacity_type_told && blueprint.capacity_type != CAPACITY_TYPE_SPOT)
}

/// Whether the NodePool of a NodeClaim, if it still has one, wants it as spot.
fn is_wanted(claim: &NodeClaim, pools: &[NodePool]) -> bool {
    let mut labels = claim.metadata.labels.clone().unwrap_or_default();
    labels.insert(CAPACITY_TYPE.to_owned(), CAPACITY_TYPE_SPOT.to_owned());
    let name = labels.get(NODEPOOL);
    let pool = pools.iter().find(|pool| pool.metadata.name.as_ref() == name);
    pool.is_none_or(|pool| adoption::meets(pool, &labels))
}

/// What a NodeClaim's Machine came from gives spot nodes, if it is made from the same now.
fn remember(fleet: &Fleet, claim: &NodeClaim) {
    let target = Target::of(claim).zip(fleet.node_class(&claim.spec.node_class_ref.name));
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let Some(((target, class), machine)) = target.zip(fleet.mirror.machine_of(uid)) else { return };
    let Some(scalable) = fleet.blueprint(&target.id) else { return };
    let mut of_today = machines_of_today(fleet, &scalable);
    of_today.extend(machines_of_their_own(fleet, &class, &scalable));
    if of_today.iter().any(|found| found.key == machine.key) {
        fleet.lessons.turned_out_spot(&scalable, &fleet.mirror);
    }
}

/// The live NodeClaim of a Node, if its Machine is claimed by us.
pub(super) fn claim_of(fleet: &Fleet, node: &Node) -> Option<Arc<NodeClaim>> {
    let id = node.spec.as_ref()?.provider_id.as_deref()?;
    let machine = fleet.mirror.machine_by_provider_id(id)?;
    let claim = machine.claim().filter(|claim| claim.owner == fleet.owner)?;
    let found = fleet.node_claims.seen(&claim.node_claim, &claim.uid)?;
    found.metadata.deletion_timestamp.is_none().then_some(found)
}
