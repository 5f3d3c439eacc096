//! What Karpenter holds back from: repairing what must not be repaired, taking nodes for empty that were not a moment ago,
//! growing a static pool beyond its limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodePool, annotations, labels};
use karpenter_runtime::object_key::ObjectKey;

use super::commands::{LAG, entering, node_name, pool_of, since};
use super::lifecycle::is_drainable;
use super::{Invariant, Step};
use crate::objects::{Change, is_active, node_of};

/// How long a consolidation waits before it is looked at again and carried out.
const VALIDATION_DELAY: SignedDuration = SignedDuration::from_secs(15);

/// Nodes that ask not to be repaired are not.
#[derive(Default)]
pub struct RepairIsVetoed {
    /// Since when each node asks.
    asking: BTreeMap<String, Timestamp>,
}

impl Invariant for RepairIsVetoed {
    fn name(&self) -> &'static str {
        "a node that must not be repaired is not"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I29"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::Node(edit) = &**change else { continue };
            let wishes = edit.new.as_deref().and_then(|node| node.metadata.annotations.as_ref());
            let asks =
                wishes.and_then(|all| all.get(annotations::DO_NOT_REPAIR)).is_some_and(|wish| wish == "true");
            since(&mut self.asking, edit.key.name.to_string(), asks, step.now);
        }
        for (key, claim, reason) in entering(step) {
            let Some(node) = node_name(step.objects, claim) else { continue };
            let asked = self.asking.get(node).is_some_and(|at| step.now.duration_since(*at) > LAG);
            if reason == DisruptionReason::Unhealthy && asked {
                return Err(format!("NodeClaim {key} is repaired although node {node} asks not to be"));
            }
        }
        Ok(())
    }
}

/// Where more than a fifth of a pool is broken, something else must be wrong: nothing is repaired there.
pub struct RepairStopsWhereMuchIsBroken {
    condition: String,
    /// Since when each node is broken.
    broken: BTreeMap<String, Timestamp>,
    /// The most nodes each pool had of late, and when.
    most: BTreeMap<String, Vec<(Timestamp, usize)>>,
}

impl RepairStopsWhereMuchIsBroken {
    /// For nodes of which this condition says that they are broken.
    pub fn new(condition: &str) -> Self {
        Self { condition: condition.to_owned(), broken: BTreeMap::new(), most: BTreeMap::new() }
    }
}

fn pool_of_node(node: &Node) -> Option<&str> {
    node.metadata.labels.as_ref()?.get(labels::NODEPOOL).map(String::as_str)
}

impl Invariant for RepairStopsWhereMuchIsBroken {
    fn name(&self) -> &'static str {
        "nothing is repaired where more than a fifth is broken"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I29"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let mut nodes_changed = false;
        for change in step.changes {
            let Change::Node(edit) = &**change else { continue };
            nodes_changed = true;
            let conditions = edit.new.as_deref().and_then(|node| node.status.as_ref()?.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            let is_broken = conditions.any(|c| c.type_ == self.condition && c.status == "True");
            since(&mut self.broken, edit.key.name.to_string(), is_broken, step.now);
        }
        if nodes_changed {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for pool in step.objects.nodes.values().filter_map(|node| pool_of_node(node)) {
                *counts.entry(pool).or_default() += 1;
            }
            for (pool, count) in counts {
                let seen = self.most.entry(pool.to_owned()).or_default();
                seen.retain(|(at, _)| step.now.duration_since(*at) <= LAG);
                seen.push((step.now, count));
            }
        }
        for (key, claim, reason) in entering(step) {
            let Some(pool) = pool_of(claim).filter(|_| reason == DisruptionReason::Unhealthy) else {
                continue;
            };
            let known =
                |node: &str| self.broken.get(node).is_some_and(|at| step.now.duration_since(*at) > LAG);
            let nodes = step.objects.nodes.values().filter(|node| pool_of_node(node) == Some(pool));
            let broken = nodes.filter(|node| node.metadata.name.as_deref().is_some_and(known)).count();
            let most = self.most.get(pool).into_iter().flatten().map(|(_, count)| *count).max().unwrap_or(0);
            if broken > most.div_ceil(5) {
                return Err(format!(
                    "NodeClaim {key} is repaired although {broken} of at most {most} nodes of {pool} are broken"
                ));
            }
        }
        Ok(())
    }
}

/// A node is taken for empty only if it was when that was decided, and decided only once the wait was over.
#[derive(Default)]
pub struct EmptyNodesWereEmpty {
    /// Since when each pod is on its node.
    bound: BTreeMap<ObjectKey, Timestamp>,
    /// Pods that left of late, by node: since when they were there, and when they left.
    left: BTreeMap<String, Vec<(ObjectKey, Timestamp, Timestamp)>>,
}

/// Whether a pod keeps its node from being empty.
pub(super) fn occupies(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    node_of(pod).is_some() && is_drainable(pod) && !owners.into_iter().any(|owner| owner.kind == "DaemonSet")
}

impl Invariant for EmptyNodesWereEmpty {
    fn name(&self) -> &'static str {
        "a node that is taken for empty has been empty for the wait"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I32"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        for change in step.changes {
            let Change::Pod(edit) = &**change else { continue };
            if edit.new.as_deref().is_some_and(occupies) {
                self.bound.entry(edit.key.clone()).or_insert(step.now);
            } else if let Some(came) = self.bound.remove(&edit.key)
                && let Some(node) = edit.old.as_deref().and_then(node_of)
            {
                let left = self.left.entry(node.to_owned()).or_default();
                left.retain(|(_, _, at)| step.now.duration_since(*at) < VALIDATION_DELAY);
                left.push((edit.key.clone(), came, step.now));
            }
        }
        for (key, claim, reason) in entering(step) {
            if reason != DisruptionReason::Empty {
                continue;
            }
            let Some(node) = node_name(step.objects, claim) else { continue };
            let decided = step.now.saturating_sub(VALIDATION_DELAY).unwrap_or(step.now);
            // Who has come later than that may not have been seen when it was decided.
            let seen = decided.saturating_sub(LAG).unwrap_or(decided);
            let mut there = step.objects.pods_on(node).filter(|pod| occupies(pod) && is_active(pod));
            let stays =
                there.find(|pod| self.bound.get(&ObjectKey::of(&***pod)).is_some_and(|came| *came < seen));
            if let Some(pod) = stays {
                let pod = ObjectKey::of(&**pod);
                return Err(format!("NodeClaim {key} is disrupted as empty, and pod {pod} is there"));
            }
            let left = self.left.get(node).into_iter().flatten();
            if let Some((pod, ..)) = left.into_iter().find(|(_, came, at)| *came < seen && *at > decided) {
                return Err(format!(
                    "NodeClaim {key} is disrupted as empty, and pod {pod} was there less than {} s ago",
                    VALIDATION_DELAY.as_secs()
                ));
            }
        }
        Ok(())
    }
}

/// A static pool never has more NodeClaims than its limit, those on their way out counted.
pub struct StaticPoolsKeepTheirLimit {
    karpenter: String,
    /// What each pool said of late, and until when.
    said: BTreeMap<String, Vec<(Timestamp, Arc<NodePool>)>>,
}

impl StaticPoolsKeepTheirLimit {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned(), said: BTreeMap::new() }
    }
}

fn limit(pool: &NodePool) -> i64 {
    let limit = pool.spec.limits.as_ref().and_then(|limits| limits.get("nodes"));
    limit.map_or(i64::MAX, karpenter_api::Quantity::value)
}

impl Invariant for StaticPoolsKeepTheirLimit {
    fn name(&self) -> &'static str {
        "a static pool does not grow beyond its limit"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I28"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let by_karpenter = step.entry.actor.starts_with(self.karpenter.as_str());
        for change in step.changes {
            match &**change {
                Change::NodePool(edit) => {
                    let said = self.said.entry(edit.key.name.to_string()).or_default();
                    said.retain(|(until, _)| step.now.duration_since(*until) <= LAG);
                    said.extend(edit.old.clone().map(|old| (step.now, old)));
                }
                Change::NodeClaim(edit) if by_karpenter && edit.old.is_none() => {
                    let Some(name) = edit.new.as_deref().and_then(pool_of) else { continue };
                    let Some(pool) = step.objects.node_pools.get(&ObjectKey::cluster(name)) else { continue };
                    if !pool.is_static() {
                        continue;
                    }
                    let earlier = self.said.get(name).into_iter().flatten();
                    let earlier = earlier.filter(|(until, _)| step.now.duration_since(*until) <= LAG);
                    let most = earlier.map(|(_, pool)| limit(pool)).chain([limit(pool)]).max();
                    let claims = step.objects.node_claims.values();
                    let count = claims.filter(|claim| pool_of(claim) == Some(name)).count();
                    if most.is_some_and(|most| i64::try_from(count).unwrap_or(i64::MAX) > most) {
                        return Err(format!(
                            "NodeClaim {} is the {count}. of static NodePool {name}, whose limit is {}",
                            edit.key,
                            limit(pool)
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
