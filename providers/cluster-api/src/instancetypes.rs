//! What could be bought: every scalable resource that takes part is one way to get a node. Pure functions of what was read.
//!
//! | Module | What it is |
//! |---|---|
//! | [`capacity`] | what a node has, from annotations, templates or overrides |
//! | [`annotated`] | where annotations are looked for |
//! | [`devices`] | what pods would get by claims |
//! | [`node_labels`], [`taints`] | what a node carries |
//! | [`overhead`], [`price`] | what of it pods may use, and what it costs |
//! | [`blueprint`] | all of that for one scalable resource, or why it cannot be offered |
//! | [`catalog`] | instance types and offerings of a NodeClass, and where each leads |
//! | [`kept`] | types that nodes run as and that nothing offers any more |

pub(crate) mod annotated;
pub(crate) mod blueprint;
pub(crate) mod capacity;
pub(crate) mod catalog;
pub(crate) mod devices;
pub(crate) mod kept;
pub(crate) mod node_labels;
pub(crate) mod overhead;
pub(crate) mod price;
pub(crate) mod taints;

#[cfg(test)]
mod tests;
