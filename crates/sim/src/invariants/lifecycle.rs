//! The stations of a node's life: registered, initialized, drained, gone.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, annotations, finalizers, labels, nodeclaim, taints};

use super::identity::{has_condition, has_finalizer, provider_id};
use super::{Asked, Invariant, Step};
use crate::inventory::InstanceState;
use crate::objects::{Change, Objects, is_active, node_ready};
use crate::placement;

pub(super) fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn is_unregistered(node: &Node) -> bool {
    let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    all.into_iter().any(|taint| taints::UNREGISTERED.matches(taint))
}

/// The NodeClaim of a node, by provider id.
pub(super) fn claim_of<'a>(objects: &'a Objects, node: &Node) -> Option<&'a Arc<NodeClaim>> {
    let id = node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())?;
    objects.node_claims.values().find(|claim| provider_id(claim) == Some(id))
}

/// When a node's pods may be removed by force.
pub(super) fn termination_time(claim: &NodeClaim) -> Option<Timestamp> {
    let text = claim.metadata.annotations.as_ref()?.get(annotations::NODECLAIM_TERMINATION_TIMESTAMP)?;
    text.parse().ok()
}

/// Whether Karpenter has to see a pod off before its node goes.
pub(super) fn is_drainable(pod: &Pod) -> bool {
    is_active(pod) && !may_stay(pod)
}

/// Whether a pod goes down with its node: the image of a static pod, or one that tolerates the drain.
pub(super) fn may_stay(pod: &Pod) -> bool {
    let disrupted = taints::DISRUPTED.to_taint();
    let mirror =
        pod.metadata.annotations.iter().flatten().any(|(key, _)| key == "kubernetes.io/config.mirror");
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    mirror || tolerations.into_iter().any(|toleration| placement::tolerates(toleration, &disrupted))
}

/// The label says registered in the same write that takes the taint off.
pub struct RegistrationIsOneStep;

impl Invariant for RegistrationIsOneStep {
    fn name(&self) -> &'static str {
        "a node is registered and loses its taint in one write"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I6"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::Node(edit) = &**change else { continue };
            let Some(new) = &edit.new else { continue };
            let registered = label(new, labels::REGISTERED) == Some(labels::TRUE);
            if registered && is_unregistered(new) {
                return Err(format!("node {} is labelled registered and tainted unregistered", edit.key));
            }
            if edit.old.as_deref().is_some_and(is_unregistered) && !is_unregistered(new) && !registered {
                return Err(format!(
                    "node {} lost the unregistered taint without being registered",
                    edit.key
                ));
            }
        }
        Ok(())
    }
}

/// A NodeClaim says initialized only after its node does.
pub struct InitializedNodesAreLabelled;

impl Invariant for InitializedNodesAreLabelled {
    fn name(&self) -> &'static str {
        "an initialized NodeClaim's node was labelled first"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I7"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let Some(new) = &edit.new else { continue };
            let was = edit.old.as_deref().is_some_and(|old| has_condition(old, nodeclaim::INITIALIZED));
            if was || !has_condition(new, nodeclaim::INITIALIZED) {
                continue;
            }
            let node = step.objects.nodes.values().find(|node| {
                let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
                id.is_some() && id == provider_id(new)
            });
            // The node may have gone between the two writes.
            if node.is_some_and(|node| label(node, labels::INITIALIZED) != Some(labels::TRUE)) {
                return Err(format!("NodeClaim {} is Initialized and its node is not labelled so", edit.key));
            }
        }
        Ok(())
    }
}

/// A NodeClaim is let go only when its machine is gone.
pub struct ClaimsOutliveTheirInstance;

impl Invariant for ClaimsOutliveTheirInstance {
    fn name(&self) -> &'static str {
        "a NodeClaim is let go only when its instance is gone"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I8"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let Some(old) = edit.old.as_deref().filter(|old| has_finalizer(old)) else { continue };
            if edit.new.as_deref().is_some_and(has_finalizer) {
                continue;
            }
            let instance = provider_id(old).and_then(|id| step.inventory.by_provider_id(id));
            if let Some(instance) = instance.filter(|instance| instance.state.is_live()) {
                return Err(format!(
                    "NodeClaim {} was let go while its instance {} is {:?}",
                    edit.key, instance.id, instance.state
                ));
            }
        }
        Ok(())
    }
}

/// A node goes, and its machine is removed, only after its pods have left.
pub struct NodesAreDrainedFirst;

impl NodesAreDrainedFirst {
    /// A pod that should have left first, unless force was due.
    fn undrained<'a>(step: &'a Step<'_>, node: &Node) -> Option<&'a Arc<Pod>> {
        let forced = claim_of(step.objects, node).and_then(|claim| termination_time(claim));
        if forced.is_some_and(|time| step.now >= time) {
            return None;
        }
        let name = node.metadata.name.as_deref().unwrap_or_default();
        step.objects.pods_on(name).find(|pod| is_drainable(pod))
    }
}

impl Invariant for NodesAreDrainedFirst {
    fn name(&self) -> &'static str {
        "a node is drained before it and its instance go"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I9", "I10"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        if let Some(Asked::Terminate { id }) = step.asked {
            let instance = step.inventory.get(id);
            let node = instance.and_then(|instance| step.objects.node(&instance.node_name));
            let ready = node.filter(|node| node_ready(node) == Some("True"));
            let registered = |node: &&Arc<Node>| {
                claim_of(step.objects, node).is_some_and(|claim| has_condition(claim, nodeclaim::REGISTERED))
            };
            if let Some(node) = ready.filter(registered)
                && let Some(pod) = Self::undrained(step, node)
            {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                return Err(format!("instance {id} is asked to go while pod {name} is on its ready node"));
            }
        }
        for change in step.changes {
            let Change::Node(edit) = &**change else { continue };
            let (Some(old), None) = (&edit.old, &edit.new) else { continue };
            let held = old.metadata.finalizers.iter().flatten().any(|name| name == finalizers::TERMINATION);
            let id = old.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
            let instance = step.inventory.by_provider_id(id);
            // A machine that is gone cannot be drained any more.
            let alive = instance.is_none_or(|instance| instance.state == InstanceState::Running);
            if held
                && alive
                && node_ready(old) == Some("True")
                && let Some(pod) = Self::undrained(step, old)
            {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                return Err(format!("node {} is gone while pod {name} was still on it", edit.key));
            }
        }
        Ok(())
    }
}
