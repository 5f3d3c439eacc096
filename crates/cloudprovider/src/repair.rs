//! Which node conditions a provider wants repaired, and how: the engine's terms, since the engine decides with them.

pub use karpenter_engine::disruption::{RepairAction, RepairPolicy};
