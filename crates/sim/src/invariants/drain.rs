//! The order in which a node is emptied: the dispensable first, daemons after what they serve, and nobody who may stay.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use karpenter_runtime::object_key::ObjectKey;

use super::disruption::overdue;
use super::lifecycle::{is_drainable, may_stay};
use super::{Invariant, Step};
use crate::objects::{Change, is_deleting, node_of};

/// How far Karpenter's view may lag behind.
const LAG: SignedDuration = SignedDuration::from_secs(180);

/// Pods leave in tiers.
pub struct TiersLeaveInOrder {
    karpenter: String,
    bound: BTreeMap<ObjectKey, Timestamp>,
}

impl TiersLeaveInOrder {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self { karpenter: karpenter.to_owned(), bound: BTreeMap::new() }
    }
}

/// Critical after dispensable pods, and among each of them daemons last.
fn tier(pod: &Pod) -> u8 {
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    let critical = matches!(class, Some("system-cluster-critical" | "system-node-critical"));
    let daemon = pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet");
    2 * u8::from(critical) + u8::from(daemon)
}

impl Invariant for TiersLeaveInOrder {
    fn name(&self) -> &'static str {
        "pods are evicted in tiers, and none that may stay"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I14", "I15"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let evicted = step.entry.actor.starts_with(self.karpenter.as_str())
            && step.entry.deed.starts_with("POST ")
            && step.entry.deed.contains("/eviction");
        for change in step.changes {
            let Change::Pod(edit) = &**change else { continue };
            let Some(old) = edit.old.as_deref() else {
                if edit.new.as_deref().and_then(node_of).is_some() {
                    self.bound.insert(edit.key.clone(), step.now);
                }
                continue;
            };
            let now_on = edit.new.as_deref().and_then(node_of);
            if node_of(old).is_none() && now_on.is_some() {
                self.bound.insert(edit.key.clone(), step.now);
            }
            if edit.new.is_none() {
                self.bound.remove(&edit.key);
            }
            if !evicted || is_deleting(old) {
                continue;
            }
            let Some(node) = node_of(old) else { continue };
            // One that has ended by itself may be evicted by someone who has not heard of it: nobody misses it.
            if may_stay(old) {
                return Err(format!("pod {} was evicted although it may stay", edit.key));
            }
            let first = step.objects.pods_on(node).find(|pod| {
                let since = self.bound.get(&ObjectKey::of(&***pod)).copied().unwrap_or(Timestamp::MIN);
                let known = step.now.duration_since(since) > LAG;
                // One whose time is up is forced out beside all tiers, and holds up nobody.
                let waits = !is_deleting(&***pod) && is_drainable(pod) && !overdue(step, pod);
                known && tier(pod) < tier(old) && waits
            });
            if let Some(first) = first {
                let first = ObjectKey::of(&**first);
                return Err(format!("pod {} was evicted before {first}, whose tier leaves first", edit.key));
            }
        }
        Ok(())
    }
}
