//! Feature gates: what is off until asked for, or on until refused.

use super::flags::parse_bool;

/// The gates of Karpenter 1.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// Replace or reboot nodes whose conditions match the provider's repair policies.
    pub node_repair: bool,
    /// Use and prefer capacity reservations.
    pub reserved_capacity: bool,
    /// Let consolidation swap a spot node for a cheaper spot node.
    pub spot_to_spot_consolidation: bool,
    /// The NodeOverlay API.
    pub node_overlay: bool,
    /// Static NodePools (`spec.replicas`).
    pub static_capacity: bool,
    /// The CapacityBuffer API.
    pub capacity_buffer: bool,
    /// Drift may delete before replacing when no replacement can be staged.
    pub terminate_first_drift: bool,
    /// The same for repair.
    pub terminate_first_repair: bool,
    /// Karpenter writes pods' deletion costs.
    pub pod_deletion_cost_management: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
            node_repair: false,
            reserved_capacity: true,
            spot_to_spot_consolidation: false,
            node_overlay: false,
            static_capacity: false,
            capacity_buffer: false,
            terminate_first_drift: false,
            terminate_first_repair: false,
            pod_deletion_cost_management: false,
        }
    }
}

impl FeatureGates {
    /// The names, in the order Go lists them.
    pub const NAMES: [&str; 9] = [
        "NodeRepair",
        "ReservedCapacity",
        "SpotToSpotConsolidation",
        "NodeOverlay",
        "StaticCapacity",
        "CapacityBuffer",
        "TerminateFirstDrift",
        "TerminateFirstRepair",
        "PodDeletionCostManagement",
    ];

    /// Reads `Name=bool,…` over the defaults; the names it does not know come back beside. The error says what is wrong.
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        let mut gates = Self::default();
        let mut unknown = Vec::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(format!("{pair:?} is not of the form Name=true or Name=false"));
            };
            let (name, value) = (name.trim(), value.trim());
            let Some(on) = parse_bool(value) else {
                return Err(format!("gate {name} is set to {value:?}, which is neither true nor false"));
            };
            match gates.gate(name) {
                Some(gate) => *gate = on,
                None => unknown.push(name.to_owned()),
            }
        }
        Ok((gates, unknown))
    }

    /// Every gate with its state.
    pub fn states(&self) -> Vec<(&'static str, bool)> {
        let mut gates = *self;
        Self::NAMES.iter().map(|name| (*name, gates.gate(name).is_some_and(|gate| *gate))).collect()
    }

    fn gate(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "NodeRepair" => &mut self.node_repair,
            "ReservedCapacity" => &mut self.reserved_capacity,
            "SpotToSpotConsolidation" => &mut self.spot_to_spot_consolidation,
            "NodeOverlay" => &mut self.node_overlay,
            "StaticCapacity" => &mut self.static_capacity,
            "CapacityBuffer" => &mut self.capacity_buffer,
            "TerminateFirstDrift" => &mut self.terminate_first_drift,
            "TerminateFirstRepair" => &mut self.terminate_first_repair,
            "PodDeletionCostManagement" => &mut self.pod_deletion_cost_management,
            _ => return None,
        })
    }
}
