//! What could be bought: instance types, their offerings, and what of a machine is left for pods.

use std::collections::BTreeMap;

use crate::labels::{CAPACITY_TYPE, RESERVED, Text};
use crate::requirements::Requirements;
use crate::resources::{MEMORY, Resources};

/// A machine type a provider offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceType {
    /// Name: the value of the instance-type label.
    pub name: Text,
    /// What its nodes' labels will be, or can be.
    pub requirements: Requirements,
    /// Where and how it can be bought.
    pub offerings: Vec<Offering>,
    /// What the whole machine has.
    pub capacity: Resources,
    /// What kubelet and system keep for themselves.
    pub overhead: Overhead,
    /// How many volumes of a CSI driver can be attached.
    pub volume_limits: BTreeMap<Text, i64>,
    /// Whether a NodeOverlay changed its capacity.
    pub capacity_overlaid: bool,
}

/// One way to buy an instance type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offering {
    /// Zone, capacity type and whatever else distinguishes it.
    pub requirements: Requirements,
    /// Price per hour.
    pub price: f64,
    /// Whether it can be bought at the moment; a full reservation is still available.
    pub available: bool,
    /// Free slots of a reservation.
    pub reservation_capacity: i64,
    /// Capacity that replaces the type's own, per resource.
    pub capacity_override: Resources,
    /// Overhead that replaces the type's own, per resource.
    pub overhead_override: Option<Overhead>,
    /// Whether a NodeOverlay set its price.
    pub price_overlaid: bool,
}

/// What of a machine is not for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// For kubelet and runtime.
    pub kube_reserved: Resources,
    /// For the system.
    pub system_reserved: Resources,
    /// Kept free so that eviction can act.
    pub eviction_threshold: Resources,
}

impl Overhead {
    /// The sum of all three.
    pub fn total(&self) -> Resources {
        let mut total = self.kube_reserved.clone();
        total.add(&self.system_reserved);
        total.add(&self.eviction_threshold);
        total
    }
}

impl Offering {
    /// The capacity type, when the offering names exactly one.
    pub fn capacity_type(&self) -> Option<&Text> {
        self.requirements.get(CAPACITY_TYPE).filter(|r| !r.complement).and_then(|r| r.values.first())
    }

    /// Whether a node can be launched into it now: available and, if reserved, with a slot left.
    pub fn launchable(&self) -> bool {
        self.available
            && (self.reservation_capacity > 0
                || self.requirements.get(CAPACITY_TYPE).is_none_or(|r| !r.has(RESERVED)))
    }

    fn has_override(&self) -> bool {
        !self.capacity_override.is_empty() || self.overhead_override.is_some()
    }
}

/// Offerings that leave pods the same resources.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AllocatableGroup {
    pub(crate) allocatable: Resources,
    /// Indices into [`InstanceType::offerings`], available ones only.
    pub(crate) offerings: Vec<usize>,
}

impl InstanceType {
    /// Available offerings grouped by what they leave for pods; the first group is the type's own capacity.
    pub(crate) fn allocatable_groups(&self) -> Vec<AllocatableGroup> {
        let mut groups =
            vec![AllocatableGroup { allocatable: self.allocatable(None), offerings: Vec::new() }];
        let mut keys: Vec<Option<&Offering>> = vec![None];
        for (index, offering) in self.offerings.iter().enumerate().filter(|(_, o)| o.available) {
            let same = |key: &Option<&Offering>| match key {
                None => !offering.has_override(),
                Some(other) => {
                    offering.has_override()
                        && other.capacity_override == offering.capacity_override
                        && other.overhead_override == offering.overhead_override
                }
            };
            let at = keys.iter().position(same).unwrap_or_else(|| {
                keys.push(Some(offering));
                groups.push(AllocatableGroup {
                    allocatable: self.allocatable(Some(offering)),
                    offerings: Vec::new(),
                });
                groups.len() - 1
            });
            groups[at].offerings.push(index);
        }
        groups
    }

    /// What is left for pods: capacity less overhead, and less memory set aside as huge pages.
    pub(crate) fn allocatable(&self, offering: Option<&Offering>) -> Resources {
        let mut capacity = self.capacity.clone();
        let mut overhead = self.overhead.total();
        if let Some(offering) = offering {
            capacity = capacity.overridden_by(&offering.capacity_override);
            if let Some(replacement) = &offering.overhead_override {
                overhead = overhead.overridden_by(&replacement.total());
            }
        }
        let mut allocatable = capacity.minus(&overhead);
        for (name, pages) in capacity.iter().filter(|(name, _)| name.starts_with("hugepages-")) {
            let _ = name;
            let memory = allocatable.amount(MEMORY).minus(*pages).max(Default::default());
            allocatable.set(MEMORY, memory);
        }
        allocatable
    }
}
