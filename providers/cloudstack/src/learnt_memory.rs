//! How much memory the nodes of an instance type really have. A machine is sold with so much; its firmware and kernel keep some
//! of it, how much depends on host and image. Until a node has shown it, it is guessed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, labels as well_known};
use karpenter_cloudprovider::conversion;
use kube::ResourceExt as _;

use crate::labels;

/// A node that has less of what was sold, in percent, says nothing about others: something is wrong with it.
const BELIEVED_PERCENT: i128 = 70;

/// Bytes of memory by NodeClass and instance type: the least that any node showed.
#[derive(Debug, Default)]
pub(crate) struct LearntMemory(Mutex<BTreeMap<(String, String), i64>>);

impl LearntMemory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, class: &str, instance_type: &str) -> Option<i64> {
        self.lock().get(&(class.to_owned(), instance_type.to_owned())).copied()
    }

    /// Whether nothing is known of the claim's instance type yet.
    pub(crate) fn lacks(&self, claim: &NodeClaim) -> bool {
        let instance_type = claim.labels().get(well_known::INSTANCE_TYPE);
        instance_type.is_some_and(|name| self.of(&claim.spec.node_class_ref.name, name).is_none())
    }

    /// Learns from the Node of a claim.
    pub(crate) fn learn(&self, claim: &NodeClaim, node: &Node) {
        let sold: Option<i128> =
            claim.labels().get(labels::INSTANCE_MEMORY).and_then(|mib| mib.parse::<i128>().ok());
        let shown = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let shown = shown.and_then(|capacity| capacity.get("memory"));
        let shown = shown.and_then(|memory| karpenter_api::Quantity::parse(&memory.0).ok());
        let (Some(instance_type), Some(sold), Some(shown)) =
            (claim.labels().get(well_known::INSTANCE_TYPE), sold, shown)
        else {
            return;
        };
        let shown = conversion::resources(&[("memory".to_owned(), shown)].into());
        let (sold, shown) = (sold << 20, shown.amount("memory").as_units_ceil());
        if shown * 100 < sold * BELIEVED_PERCENT || shown > sold {
            return;
        }
        let Ok(shown) = i64::try_from(shown) else { return };
        let key = (claim.spec.node_class_ref.name.clone(), instance_type.clone());
        self.lock().entry(key).and_modify(|least| *least = shown.min(*least)).or_insert(shown);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_least_that_a_sound_node_showed_counts() {
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {
                "node.kubernetes.io/instance-type": "small", "karpenter.k8s.cloudstack/instance-memory": "4096"}},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "default"}, "requirements": []},
        }))
        .expect("a claim");
        let node = |memory: &str| -> Node {
            serde_json::from_value(
                json!({"metadata": {"name": "n"}, "status": {"capacity": {"memory": memory}}}),
            )
            .expect("a node")
        };
        let learnt = LearntMemory::default();
        assert!(learnt.lacks(&claim));
        for odd in ["100Mi", "8Gi"] {
            learnt.learn(&claim, &node(odd));
            assert!(learnt.lacks(&claim), "{odd} of 4Gi");
        }
        learnt.learn(&claim, &node("3900Mi"));
        learnt.learn(&claim, &node("3800Mi"));
        learnt.learn(&claim, &node("3950Mi"));
        assert_eq!(learnt.of("default", "small"), Some(3800 << 20));
        assert_eq!(learnt.of("another", "small"), None, "another image may keep more");
    }
}
