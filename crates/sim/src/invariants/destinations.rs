//! Where the pods of disrupted nodes go: to nodes that are up, where nothing is launched in their place.
//!
//! Nobody tells what Karpenter's own simulation came to, so this looks at what it must have found: every pod on a node that is
//! taken away without a replacement has another node that could hold it, were nothing else there. How full nodes are, taints and
//! what pods want of each other may have been otherwise when Karpenter looked, and are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodeClaim, labels};
use karpenter_runtime::object_key::ObjectKey;

use super::commands::{LAG, entering, node_name, reason_of, since};
use super::lifecycle::label;
use super::replacements::{ONE_COMMAND, SLOW_COMMAND, is_excused, is_of_static_pool};
use super::restraint::occupies;
use super::{Invariant, Step};
use crate::objects::{Change, is_deleting, node_of};
use crate::{placement, scheduler};

/// A node as it was last up.
struct Up {
    node: Arc<Node>,
    /// When it ceased to be.
    until: Option<Timestamp>,
}

/// A node that was chosen to go.
struct Mark {
    at: Timestamp,
    reason: DisruptionReason,
    node: String,
    /// Pods on it that Karpenter must have seen, and which nodes could hold each of them.
    destinations: BTreeMap<ObjectKey, BTreeSet<String>>,
}

/// Nodes whose pods would have nowhere to go are not taken away.
pub struct PodsHaveSomewhereToGo {
    karpenter: String,
    /// Since when each pod is on its node.
    bound: BTreeMap<ObjectKey, Timestamp>,
    /// By name.
    up: BTreeMap<String, Up>,
    /// By NodeClaim.
    marks: BTreeMap<ObjectKey, Mark>,
    /// When Karpenter last created a NodeClaim.
    launched: Option<Timestamp>,
}

impl PodsHaveSomewhereToGo {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self {
            karpenter: karpenter.to_owned(),
            bound: BTreeMap::new(),
            up: BTreeMap::new(),
            marks: BTreeMap::new(),
            launched: None,
        }
    }

    fn follow(&mut self, step: &Step<'_>, by_karpenter: bool) {
        for change in step.changes {
            match &**change {
                Change::Pod(edit) => {
                    let there = edit.new.as_deref().is_some_and(occupies);
                    since(&mut self.bound, edit.key.clone(), there, step.now);
                }
                Change::Node(edit) => {
                    let name = edit.key.name.to_string();
                    if let Some(node) = edit.new.as_ref().filter(|node| is_up(node)) {
                        self.up.insert(name, Up { node: Arc::clone(node), until: None });
                    } else if let Some(up) = self.up.get_mut(&name) {
                        up.until.get_or_insert(step.now);
                    }
                }
                Change::NodeClaim(edit) => {
                    let stays_marked = edit.new.as_deref().is_some_and(|claim| reason_of(claim).is_some());
                    if !stays_marked {
                        self.marks.remove(&edit.key);
                    }
                    if by_karpenter && edit.old.is_none() {
                        self.launched = Some(step.now);
                    }
                }
                _ => {}
            }
        }
        self.up.retain(|_, up| up.until.is_none_or(|until| step.now.duration_since(until) <= LAG));
    }

    /// Which nodes, up now or of late, could hold a pod.
    fn destinations(&self, pod: &Pod) -> BTreeSet<String> {
        let Some(spec) = &pod.spec else { return BTreeSet::new() };
        let could_go = |up: &Up| placement::accepts(spec, &up.node) && scheduler::could_hold(&up.node, spec);
        self.up.iter().filter(|(_, up)| could_go(up)).map(|(name, _)| name.clone()).collect()
    }

    fn mark(&self, step: &Step<'_>, claim: &NodeClaim, reason: DisruptionReason) -> Option<Mark> {
        let moves = matches!(reason, DisruptionReason::Underutilized | DisruptionReason::Drifted);
        // These may be terminated first, where nothing can be launched beside them.
        let goes_first = is_of_static_pool(step, claim) || is_reserved(claim);
        // Pods that will not move by themselves do not keep these, and nothing is simulated for them.
        let is_bounded = reason == DisruptionReason::Drifted && claim.spec.termination_grace_period.is_some();
        let node = node_name(step.objects, claim).filter(|_| moves && !goes_first && !is_bounded)?;
        let is_known = |pod: &Pod| {
            let bound = self.bound.get(&ObjectKey::of(pod));
            bound.is_some_and(|at| step.now.duration_since(*at) > LAG)
        };
        let known = step.objects.pods_on(node).filter(|pod| is_known(pod));
        let destinations = known.map(|pod| (ObjectKey::of(&**pod), self.destinations(pod))).collect();
        Some(Mark { at: step.now, reason, node: node.to_owned(), destinations })
    }

    /// A pod of a node that is taken away by its command, and has nowhere else to be.
    fn homeless<'a>(&self, step: &Step<'_>, mark: &'a Mark) -> Option<&'a ObjectKey> {
        let is_late = step.now.duration_since(mark.at) >= SLOW_COMMAND;
        let is_replaced = self.launched.is_some_and(|at| at >= mark.at);
        if is_late || is_replaced {
            return None;
        }
        let goes_too = |other: &&Mark| {
            let apart = other.at.duration_since(mark.at).abs();
            other.node == mark.node
                || (mark.reason == DisruptionReason::Underutilized
                    && other.reason == mark.reason
                    && apart < ONE_COMMAND)
        };
        let going: BTreeSet<&str> =
            self.marks.values().filter(goes_too).map(|other| other.node.as_str()).collect();
        let stays = |pod: &ObjectKey| {
            let pod = step.objects.pods.get(pod);
            pod.is_some_and(|pod| node_of(pod) == Some(&*mark.node) && occupies(pod))
        };
        let nowhere = |nodes: &BTreeSet<String>| nodes.iter().all(|node| going.contains(node.as_str()));
        mark.destinations.iter().find(|(pod, nodes)| stays(pod) && nowhere(nodes)).map(|(pod, _)| pod)
    }
}

/// Whether Karpenter takes a node for one that pods can go to: it is initialized, or not Karpenter's.
fn is_up(node: &Node) -> bool {
    label(node, labels::INITIALIZED) == Some(labels::TRUE) || label(node, labels::NODEPOOL).is_none()
}

fn is_reserved(claim: &NodeClaim) -> bool {
    let kind = claim.metadata.labels.as_ref().and_then(|all| all.get(labels::CAPACITY_TYPE));
    kind.is_some_and(|kind| kind == labels::CAPACITY_TYPE_RESERVED)
}

impl Invariant for PodsHaveSomewhereToGo {
    fn name(&self) -> &'static str {
        "the pods of a node that is not replaced could be on another that is up"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I27"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let by_karpenter = step.entry.actor.starts_with(self.karpenter.as_str());
        self.follow(step, by_karpenter);
        for (key, claim, reason) in entering(step) {
            match self.mark(step, claim, reason) {
                Some(mark) => self.marks.insert(key.clone(), mark),
                None => self.marks.remove(key),
            };
        }
        for change in step.changes.iter().filter(|_| by_karpenter) {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (Some(old), Some(new)) = (edit.old.as_deref(), edit.new.as_deref()) else { continue };
            if is_deleting(old) || !is_deleting(new) || is_excused(step, new) {
                continue;
            }
            let Some(mark) = self.marks.get(&edit.key) else { continue };
            if let Some(pod) = self.homeless(step, mark) {
                return Err(format!(
                    "NodeClaim {} is deleted ({}) and not replaced, and no other node that is up could hold pod {pod}",
                    edit.key,
                    mark.reason.as_str()
                ));
            }
        }
        Ok(())
    }
}
