//! What of a node pods cannot use. Without a word in the NodeClass it is what kubelet keeps free by itself: 100Mi of memory and a
//! tenth of the disk.

use std::collections::BTreeMap;

use karpenter_api::ResourceList;
use karpenter_cloudprovider::conversion;
use karpenter_engine::instance_type::Overhead;
use karpenter_engine::resources::{Amount, Resources};
use karpenter_primitives::Quantity;

use crate::client::fields::Malformed;
use crate::nodeclass::Kubelet;

/// kubelet's own thresholds.
const DEFAULT_EVICTION: &[(&str, &str)] = &[("memory.available", "100Mi"), ("nodefs.available", "10%")];

/// The overhead of nodes with this capacity; `node_class` is for messages.
pub fn overhead(
    kubelet: Option<&Kubelet>,
    capacity: &ResourceList,
    node_class: &str,
) -> Result<Overhead, Malformed> {
    let capacity = conversion::resources(capacity);
    let mut thresholds: BTreeMap<&str, &str> = DEFAULT_EVICTION.iter().copied().collect();
    if let Some(hard) = kubelet.and_then(|kubelet| kubelet.eviction_hard.as_ref()) {
        // kubelet takes the whole map or its own, never both.
        thresholds = hard.iter().map(|(signal, value)| (signal.as_str(), value.as_str())).collect();
    }
    let mut eviction_threshold = Resources::new();
    for (signal, value) in thresholds {
        let resource = match signal {
            "memory.available" => "memory",
            "nodefs.available" => "ephemeral-storage",
            _ => continue,
        };
        let Some(whole) = capacity.get(resource) else { continue };
        let amount = threshold(value, whole).ok_or_else(|| Malformed {
            object: format!("ClusterAPINodeClass {node_class}"),
            key: format!("spec.kubelet.evictionHard[{signal}]"),
            problem: format!("{value:?} is neither a quantity nor a percentage"),
        })?;
        eviction_threshold.set(resource, amount);
    }
    let reserved = |list: Option<&ResourceList>| list.map(conversion::resources).unwrap_or_default();
    Ok(Overhead {
        kube_reserved: reserved(kubelet.and_then(|kubelet| kubelet.kube_reserved.as_ref())),
        system_reserved: reserved(kubelet.and_then(|kubelet| kubelet.system_reserved.as_ref())),
        eviction_threshold,
    })
}

/// The overhead that a Node shows: the difference between what it has and what pods may use.
pub fn learnt(capacity: &ResourceList, allocatable: &ResourceList) -> Overhead {
    let (capacity, allocatable) = (conversion::resources(capacity), conversion::resources(allocatable));
    let mut kube_reserved = Resources::new();
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        let Some(whole) = capacity.get(resource) else { continue };
        let kept = whole.minus(allocatable.amount(resource));
        if !kept.is_negative() && !kept.is_zero() {
            kube_reserved.set(resource, kept);
        }
    }
    Overhead { kube_reserved, ..Overhead::default() }
}

fn threshold(text: &str, whole: Amount) -> Option<Amount> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
        // Hundredths of a percent are as fine as anyone writes.
        #[expect(clippy::cast_possible_truncation, reason = "at most 10 000")]
        let hundredths = (percent * 100.0).round() as i128;
        return Some(Amount::nanos(whole.as_nanos() / 10_000 * hundredths));
    }
    let quantity = Quantity::parse(text.trim()).ok().filter(|quantity| !quantity.is_negative())?;
    let list: ResourceList = [("x".to_owned(), quantity)].into();
    conversion::resources(&list).get("x")
}
