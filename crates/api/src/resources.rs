//! Amounts of resources by name.

use std::collections::BTreeMap;

use karpenter_primitives::Quantity;

/// How much there is, or is wanted, of each resource.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Processor time.
pub const CPU: &str = "cpu";
/// Main memory.
pub const MEMORY: &str = "memory";
/// Disk space that goes with the node.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// How many pods a node holds.
pub const PODS: &str = "pods";
/// In limits: how many nodes a NodePool may have.
pub const NODES: &str = "nodes";

/// The resources every instance type declares.
pub const WELL_KNOWN: [&str; 4] = [CPU, MEMORY, EPHEMERAL_STORAGE, PODS];
