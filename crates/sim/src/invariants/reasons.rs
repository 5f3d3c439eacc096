//! Why nodes go: never because somebody could not find out.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::nodeclaim::{DISRUPTION_REASON, REGISTERED};
use karpenter_api::{NodeClaim, taints};

use super::identity::{has_condition, provider_id};
use super::{Invariant, Step};
use crate::inventory::InstanceState;
use crate::objects::{Change, Objects, is_deleting, node_ready};

/// Conditions every kubelet writes; a provider's repair policies may name others.
const KUBELETS_CONDITIONS: [&str; 5] =
    ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

/// Karpenter gives up a node that works only for a reason that can be seen: a disruption it has announced, the claim's age, the
/// Node's own deletion, a static NodePool's size. What a provider lists or fails to find is none while the machine runs.
pub struct WorkingNodesStay {
    karpenter: String,
}

impl WorkingNodesStay {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned() }
    }
}

impl Invariant for WorkingNodesStay {
    fn name(&self) -> &'static str {
        "a node that works is given up only for a reason"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let deletion = step.entry.deed.starts_with("DELETE ");
        if !deletion || !step.entry.actor.starts_with(self.karpenter.as_str()) {
            return Ok(());
        }
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let Some(old) = edit.old.as_deref().filter(|old| !is_deleting(*old)) else { continue };
            let id = provider_id(old).unwrap_or_default();
            let runs = step
                .inventory
                .by_provider_id(id)
                .is_some_and(|instance| instance.state == InstanceState::Running);
            let node = step.objects.nodes.values().find(|node| {
                node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|of| of == id)
            });
            let works = node.is_some_and(|node| works(node)) && has_condition(old, REGISTERED) && runs;
            let announced =
                node.is_some_and(|node| is_disrupted(node)) || has_condition(old, DISRUPTION_REASON);
            if works && !announced && !has_reason(step.objects, old, step.now) {
                return Err(format!("NodeClaim {} was given up while its node is ready", edit.key));
            }
        }
        Ok(())
    }
}

fn works(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let known = |kind: &str| KUBELETS_CONDITIONS.contains(&kind);
    node_ready(node) == Some("True")
        && !is_deleting(node)
        && conditions.into_iter().all(|condition| known(&condition.type_))
}

/// A new leader takes back what another began and may begin it anew before it has seen its own write on the NodeClaim: the taint
/// tells the command then.
fn is_disrupted(node: &Node) -> bool {
    let mut all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    all.any(|taint| taints::DISRUPTED.matches(taint))
}

fn has_reason(objects: &Objects, claim: &NodeClaim, now: Timestamp) -> bool {
    let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let expired =
        claim.spec.expire_after().is_some_and(|after| now.duration_since(created) >= after.to_signed());
    let name = claim.metadata.labels.as_ref().and_then(|labels| labels.get(karpenter_api::labels::NODEPOOL));
    let mut pools = objects.node_pools.values().filter(|pool| pool.metadata.name.as_ref() == name);
    expired || pools.any(|pool| pool.is_static())
}
