//! Karpenter for Apache CloudStack: service offerings as instance types, virtual machines as nodes.
//!
//! | Module | What it is |
//! |---|---|
//! | [`nodeclass`], [`labels`] | the CloudStackNodeClass, and the labels and tags of nodes and machines |
//! | `instancetypes` | what could be bought: service offerings |
//! | `zones`, `networks`, `templates` | where, with what, from what |
//! | `instances` | what was bought: virtual machines |
//! | `garbage`, `drift` | what nobody wants any more, what is no longer as it should be |
//! | `catalogue`, `inventory`, `unavailable` | what is remembered, and for how long |
//! | [`client`], `credentials` | the wire, and the keys |
//! | `controller`, `status` | keeps the status of NodeClasses |
//! | [`installation`] | how it joins the program |
//! | [`provider`] | the CloudProvider |

mod catalogue;
pub mod client;
mod controller;
mod credentials;
mod drift;
pub mod garbage;
pub mod installation;
mod instances;
mod instancetypes;
mod inventory;
pub mod labels;
pub mod naming;
mod networks;
pub mod nodeclass;
pub mod provider;
mod resolved;
mod selection;
pub mod shared;
mod status;
mod templates;
mod unavailable;
mod userdata;
mod zones;

pub use catalogue::Lifetimes;
pub use installation::install;
pub use nodeclass::CloudStackNodeClass;
pub use provider::CloudStackProvider;
pub use shared::{Objects, ProviderOptions, Watched};

/// The provider's API group.
pub const GROUP: &str = "karpenter.k8s.cloudstack";
