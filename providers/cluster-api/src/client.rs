//! The wire: Cluster API's objects as they are read, and the few writes that are made to them.
//!
//! Objects are read tolerantly, whatever version the management cluster serves; they are never written back whole. What is
//! written are single annotations and labels, the scale subresource, and in Machine mode new objects.
//!
//! | Module | What it is |
//! |---|---|
//! | `fields` | reading fields, with errors that name object and key |
//! | `machine`, `scalable`, `cluster`, `control_plane`, `template` | what is read of each kind |
//! | [`settings`] | where the management cluster is |
//! | [`sync_labels`] | which labels of Machines come to Nodes on request |
//! | [`credentials`] | credentials that are renewed while we run |
//! | `identity` | whether another management cluster has our Cluster |
//! | `versions` | which versions it serves |
//! | [`scope`] | which Cluster of it is ours |
//! | [`hub`] | requests to it |
//! | [`prices`] | what endpoints tell about prices |
//! | `mirror`, `watching` | what it has, as last seen |

pub(crate) mod cluster;
pub(crate) mod control_plane;
pub mod credentials;
pub(crate) mod fields;
pub mod hub;
pub(crate) mod identity;
pub(crate) mod machine;
pub(crate) mod mirror;
pub mod prices;
pub(crate) mod scalable;
pub mod scope;
pub mod settings;
pub mod sync_labels;
pub(crate) mod template;
pub(crate) mod versions;
pub(crate) mod watching;

#[cfg(test)]
mod tests;
