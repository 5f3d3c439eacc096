//! What the Go provider bound and we have claimed becomes ours: its NodeClaims name their Machine as ours do (its own annotation would
//! overwrite Cluster API's on Nodes, and goes), and they and their Nodes get the labels that it did not know. Without an instance type they
//! would be of none that is offered, and be replaced for that.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::fleet::Fleet;
use super::node_claims::is_taken_over;
use super::{adoption, succession};
use crate::client::machine::Machine;
use crate::client::scalable::Scalable;
use crate::names;

type Labels = BTreeMap<String, String>;

/// Takes over what was bound to Machines of a resource that carry our claim. What fails is done at the next look.
pub(super) async fn take_over(fleet: &Fleet, scalable: &Scalable, machines: &[Machine]) {
    for machine in machines {
        let Some(held) = machine.claim().filter(|held| held.owner == fleet.owner) else { continue };
        let Some(claim) = fleet.node_claims.seen(&held.node_claim, &held.uid) else { continue };
        // What has no id yet is told its Machine when it gets one.
        let is_launched = claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
        let is_go =
            claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::GO_MACHINE));
        if is_taken_over(&claim) || !is_launched && !is_go {
            continue;
        }
        if let Err(error) = take(fleet, scalable, machine, &claim).await {
            tracing::warn!(%error, "cannot take a NodeClaim of the Go provider over, will retry");
        }
    }
}

async fn take(
    fleet: &Fleet,
    scalable: &Scalable,
    machine: &Machine,
    claim: &NodeClaim,
) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(fleet.node_claims.client());
    let node = match &machine.node_name {
        Some(name) => nodes.get_opt(name).await?,
        None => None,
    };
    let on_node = node.as_ref().and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
    let offers = fleet.node_class_of(scalable).map(|class| fleet.offers(&class));
    let entry = offers.and_then(|offers| offers.entry_of(machine, &scalable.id));
    let offered = entry.as_ref().map(|entry| &entry.labels);
    let labels = adoption::labels_of(&on_node, offered, &scalable.id.key.name);
    // The Node first: the NodeClaim says what is left to do.
    let lacking = lacks(&on_node, &labels);
    if let Some(name) = node.and_then(|node| node.metadata.name).filter(|_| !lacking.is_empty()) {
        let patch = json!({"metadata": {"labels": lacking}});
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let lacking = lacks(&claim.metadata.labels.clone().unwrap_or_default(), &labels);
    let target = succession::target(&scalable.id);
    fleet.node_claims.take_over(claim, &machine.key, &target, &lacking).await
}

/// Those of the labels that are not there, or empty, as the Go provider leaves what it does not know.
fn lacks(has: &Labels, labels: &Labels) -> Labels {
    let lacking = |(key, _): &(&String, &String)| has.get(*key).is_none_or(String::is_empty);
    labels.iter().filter(lacking).map(|(key, value)| (key.clone(), value.clone())).collect()
}
