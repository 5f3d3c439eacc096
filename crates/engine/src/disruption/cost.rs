//! What disturbing pods costs, and what a node costs.

use crate::instance_type::InstanceType;
use crate::labels::{CAPACITY_TYPE, Labels, ZONE};
use crate::node::NodeClaim;
use crate::pod::{CostHint, Pod};
use crate::snapshot::Snapshot;

/// What disturbing a node costs even if nothing runs on it.
pub(crate) const BASE: f64 = 1.0;

/// What evicting the pod costs: about one, more or less as its owner says, between -10 and 10.
pub(crate) fn eviction(pod: &Pod, karpenter_writes_deletion_cost: bool) -> f64 {
    let mut cost = 1.0;
    let hint = match pod.eviction.disruption_cost {
        CostHint::Absent if karpenter_writes_deletion_cost => CostHint::Absent,
        CostHint::Absent => pod.eviction.deletion_cost,
        // One that cannot be read counts as zero; the other annotation is not asked then.
        given => given,
    };
    if let CostHint::Is(value) = hint {
        cost += f64::from(value) / f64::from(1u32 << 27);
    }
    if let Some(priority) = pod.eviction.priority {
        cost += f64::from(priority) / f64::from(1u32 << 25);
    }
    cost.clamp(-10.0, 10.0)
}

/// How much of its life the node has left, between 0 and 1.
pub(crate) fn lifetime_remaining(claim: &NodeClaim, snapshot: &Snapshot) -> f64 {
    let Some(lifetime) = claim.expire_after_seconds else { return 1.0 };
    // Go subtracts whole durations, which saturate for a claim without a creation time.
    let created = claim.created_seconds.unwrap_or(i64::MIN);
    let nanos = snapshot.now.as_nanosecond() - i128::from(created) * 1_000_000_000;
    let age = nanos.min(i128::from(i64::MAX)) as f64 / 1e9;
    let total = lifetime as f64;
    let remaining = (total - age) / total;
    if remaining.is_nan() { remaining } else { remaining.clamp(0.0, 1.0) }
}

/// The price of the first offering in the node's zone with its capacity type, available or not; unknown is nothing.
pub(crate) fn price(labels: &Labels, instance_type: Option<&InstanceType>) -> f64 {
    let (zone, capacity_type) = (labels.get_or_empty(ZONE), labels.get_or_empty(CAPACITY_TYPE));
    let value = |offering: &crate::instance_type::Offering, key: &str| {
        offering.requirements.get(key).filter(|r| !r.complement).and_then(|r| r.values.first().cloned())
    };
    instance_type
        .into_iter()
        .flat_map(|t| &t.offerings)
        .find(|o| {
            value(o, ZONE).as_deref().unwrap_or_default() == zone
                && value(o, CAPACITY_TYPE).as_deref().unwrap_or_default() == capacity_type
        })
        .map(|o| o.price)
        .filter(|price| !price.is_nan())
        .unwrap_or(0.0)
}
