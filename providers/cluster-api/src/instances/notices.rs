//! What conditions tell of a node's end. Where those that the NodeClass names say that a machine is about to be taken away, on the
//! Machine or on its Node, the NodeClaim is deleted, so that the node is drained and replaced in time. Where they say that a Node is
//! broken, the Node gets a condition of our own, by which node repair replaces it within budgets: the policies of a provider are the
//! same for all its NodeClasses.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::NodeClaim;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::writes::{Lock, patch_status};
use kube::Api;
use kube::api::ListParams;
use tokio::time::Instant;

use super::fleet::Fleet;
use super::interruptible::claim_of;
use crate::client::fields::condition;
use crate::nodeclass::{ClusterAPINodeClass, ClusterAPINodeClassSpec, RepairCondition};

/// Condition of a Node: whether none of the conditions that its NodeClass names has been borne for long enough.
pub(crate) const NODE_HEALTHY: &str = "ClusterAPINodeHealthy";

/// How often Nodes are looked at: machines are taken away two minutes after it is said, or sooner.
const PERIOD: Duration = Duration::from_secs(20);

/// When Nodes were last looked at, and whether some said that they are broken.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    looked: Option<Instant>,
    broken: bool,
}

impl Notices {
    /// Does what conditions call for. What fails is done the next time.
    pub(crate) async fn heed(&mut self, fleet: &Fleet) {
        heed_machines(fleet).await;
        if self.looked.is_some_and(|at| at.elapsed() < PERIOD) {
            return;
        }
        let repairs = fleet.settings.node_repair;
        // What we wrote in another life, or while a NodeClass wanted it, is taken back.
        let outlived = repairs && (self.broken || self.looked.is_none());
        if !outlived && !fleet.node_classes.list().iter().any(|class| looks_at_nodes(class, repairs)) {
            return;
        }
        let nodes: Api<Node> = Api::all(fleet.node_claims.client());
        let Ok(found) = nodes.list(&ListParams::default()).await else { return };
        self.looked = Some(Instant::now());
        self.broken = false;
        for node in &found.items {
            let Some(claim) = claim_of(fleet, node) else { continue };
            let class = fleet.node_class(&claim.spec.node_class_ref.name);
            let Some(spec) = class.map(|class| class.spec()) else { continue };
            if let Some(said) = interruption(&spec, node) {
                let message = format!("Node {}: {said}", node.metadata.name.as_deref().unwrap_or_default());
                interrupt(fleet, &claim, message).await;
            } else if repairs {
                let wanted = spec.repair_conditions.unwrap_or_default();
                let trouble = trouble(&wanted, node, |since| fleet.clock.undoubted_since(since));
                self.broken |= trouble.is_some();
                if let Some(marked) = marked(node, trouble, fleet.clock.now())
                    && let Err(error) = patch_status(&nodes, node, &marked, Lock::Optimistic).await
                {
                    tracing::warn!(%error, Node = node.metadata.name, "cannot say whether a Node is broken, will retry");
                }
            }
        }
    }
}

/// Whether conditions of Nodes matter to a NodeClass.
fn looks_at_nodes(class: &ClusterAPINodeClass, repairs: bool) -> bool {
    let spec = class.spec();
    let interruptions = spec.interruption_conditions.is_some_and(|all| !all.is_empty());
    interruptions || (repairs && spec.repair_conditions.is_some_and(|all| !all.is_empty()))
}

async fn heed_machines(fleet: &Fleet) {
    for machine in fleet.mirror.machines().into_iter().filter(|machine| !machine.deleting) {
        let Some(claim) = machine.claim().filter(|claim| claim.owner == fleet.owner) else { continue };
        let Some(found) = fleet.node_claims.seen(&claim.node_claim, &claim.uid) else { continue };
        let class = fleet.node_class(&found.spec.node_class_ref.name);
        let named = class.and_then(|class| class.spec().interruption_conditions).unwrap_or_default();
        let said = named.iter().filter_map(|kind| condition(&machine.conditions, kind)).find(|c| c.is_true());
        let Some(said) = said.filter(|_| found.metadata.deletion_timestamp.is_none()) else { continue };
        let message = format!("Machine {}: {}: {}", machine.key, said.kind, said.message);
        interrupt(fleet, &found, message).await;
    }
}

/// Deletes the NodeClaim of a machine that is about to be taken away.
async fn interrupt(fleet: &Fleet, claim: &Arc<NodeClaim>, message: String) {
    let event = Event::new(reference(&**claim), EventType::Warning, "Interruption", message);
    fleet.recorder.publish(event.dedupe_by([claim.metadata.uid.clone().unwrap_or_default()]));
    if let Err(error) = fleet.node_claims.delete(claim).await {
        tracing::warn!(%error, "cannot delete the NodeClaim of a machine that is taken away, will retry");
    }
}

fn conditions(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    node.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// What a Node says about its machine being taken away.
fn interruption(spec: &ClusterAPINodeClassSpec, node: &Node) -> Option<String> {
    let named = spec.interruption_conditions.as_deref().unwrap_or_default();
    let said = conditions(node).find(|c| c.status == "True" && named.contains(&c.type_))?;
    Some(format!("{}: {}", said.type_, said.message.as_deref().unwrap_or_default()))
}

/// What has been wrong with a Node for longer than it is to be borne. Of what does not say since when it is so nothing is known.
fn trouble(wanted: &[RepairCondition], node: &Node, age: impl Fn(Timestamp) -> Duration) -> Option<String> {
    let is_due = |c: &&NodeCondition| {
        let since = c.last_transition_time.as_ref().map(|time| age(time.0));
        wanted.iter().any(|wanted| {
            wanted.type_ == c.type_
                && wanted.status.as_str() == c.status
                && since.is_some_and(|since| since >= wanted.toleration())
        })
    };
    let said = conditions(node).find(is_due)?;
    Some(format!("{} is {}: {}", said.type_, said.status, said.message.as_deref().unwrap_or_default()))
}

/// The Node with our condition, if it says something else. One that has never been broken does not say anything.
fn marked(node: &Node, trouble: Option<String>, now: Timestamp) -> Option<Node> {
    let status = if trouble.is_some() { "False" } else { "True" };
    let said = conditions(node).position(|known| known.type_ == NODE_HEALTHY);
    let said_status = said.and_then(|at| conditions(node).nth(at)).map(|known| known.status.as_str());
    if said_status.unwrap_or("True") == status {
        return None;
    }
    let (reason, message) = match trouble {
        Some(trouble) => ("RepairCondition", trouble),
        None => {
            ("NoRepairCondition", "nothing that its ClusterAPINodeClass names is wrong with it".to_owned())
        }
    };
    let condition = NodeCondition {
        type_: NODE_HEALTHY.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    let mut marked = node.clone();
    let all = marked.status.get_or_insert_default().conditions.get_or_insert_default();
    match said {
        Some(at) => all[at] = condition,
        None => all.push(condition),
    }
    Some(marked)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(conditions: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}}))
            .expect("a Node")
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "message": "so", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn a_node_is_broken_when_a_named_condition_was_borne_for_long_enough() {
        let wanted: Vec<RepairCondition> = serde_json::from_value(json!([
            {"type": "GPUHealthy", "status": "False", "after": "10m"}, {"type": "Corrupt", "status": "True"},
        ]))
        .expect("conditions");
        let told = |node: &Node, minutes: u64| trouble(&wanted, node, |_| Duration::from_secs(60 * minutes));
        let sick = node(json!([condition("GPUHealthy", "False")]));
        assert_eq!(told(&sick, 9), None);
        assert_eq!(told(&sick, 10).as_deref(), Some("GPUHealthy is False: so"));
        assert_eq!(told(&node(json!([condition("GPUHealthy", "Unknown")])), 60), None);
        let corrupt = node(json!([condition("Corrupt", "True")]));
        assert_eq!(
            (told(&corrupt, 29), told(&corrupt, 30).is_some()),
            (None, true),
            "half an hour by default"
        );
        let undated = node(json!([{"type": "Corrupt", "status": "True"}]));
        assert_eq!(told(&undated, 60), None);
    }

    #[test]
    fn only_what_has_changed_is_said_of_a_node() {
        let said = |node: &Node| {
            let said = conditions(node).find(|known| known.type_ == NODE_HEALTHY);
            said.map(|known| known.status.clone())
        };
        let healthy = node(json!([condition("Ready", "True")]));
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(marked(&healthy, None, now), None, "it need not say so");
        let broken = marked(&healthy, Some("x".to_owned()), now).expect("a change");
        assert_eq!(said(&broken).as_deref(), Some("False"));
        assert_eq!(marked(&broken, Some("y".to_owned()), now), None);
        let mended = marked(&broken, None, now).expect("a change");
        assert_eq!((said(&mended).as_deref(), conditions(&mended).count()), (Some("True"), 2));
    }

    #[test]
    fn a_node_tells_of_its_end_by_the_conditions_that_are_named() {
        let spec = ClusterAPINodeClassSpec {
            interruption_conditions: Some(vec!["SpotTermination".to_owned()]),
            ..ClusterAPINodeClassSpec::default()
        };
        let told = |kind: &str, status: &str| interruption(&spec, &node(json!([condition(kind, status)])));
        assert_eq!(told("SpotTermination", "True").as_deref(), Some("SpotTermination: so"));
        assert_eq!((told("SpotTermination", "False"), told("Ready", "True")), (None, None));
    }
}
