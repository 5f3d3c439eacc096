//! Karpenter for Apache CloudStack: service offerings as instance types, virtual machines as nodes.
//!
//! | Module | What it is |
//! |---|---|
//! | [`nodeclass`], [`labels`] | the CloudStackNodeClass, and the labels and tags of nodes and machines |
//! | `instancetypes`, `prices`, `reservations` | what could be bought: service offerings, and at what price |
//! | `zones`, `networks`, `templates`, `affinity` | where, with what, from what, beside whom |
//! | `candidates`, `instances`, `ownership`, `description` | what was bought: virtual machines, how they are made, whose they are, how they are told of |
//! | `removal`, `deletions` | how they go, and which orders to that end are under way |
//! | `bootstrap`, `talos`, `tokens`, `userdata` | how they join the cluster, with what, and what they are told |
//! | `disks`, `later_disks`, `stray_disks` | which disks go with a machine, which are attached to it later, which lost theirs |
//! | `quota` | what machines take of the account's limits |
//! | `garbage`, `drift`, `made_by`, `interruptions`, [`repair`] | what nobody wants any more, what is no longer as it should be |
//! | `tagging` | tags of machines while they run |
//! | `lookups`, `absence`, `sightings` | how machines are asked after by their ids, when one is gone for certain, and since when one is as it is |
//! | `twins` | what becomes of several machines of one NodeClaim |
//! | `last_word` | what the API server says before anything is destroyed that the watch says nobody wants |
//! | `catalogue`, `inventory`, `unavailable`, `aftermath`, `learnt_memory` | what is remembered, and for how long |
//! | [`client`], `keys`, [`credentials`] | the wire, what Secrets say, and how keys are exchanged |
//! | [`doctor`] | what can be found out before anything is launched |
//! | `launches` | what becomes of machines after they were accepted |
//! | `node_names`, `unregistered`, `abandoned_nodes` | names Nodes where no cloud controller manager does; knows which Nodes are no NodeClaim's yet; removes those that lost their machine before |
//! | [`settings`], [`voice`] | what the environment says, and what is said in the cluster |
//! | `controller`, `status`, `judgement` | keeps the status of NodeClasses: looks, and judges |
//! | `webhook` | refuses NodeClasses that make no sense before they are stored, where that is wanted |
//! | [`installation`] | how it joins the program |
//! | [`provider`], `accounts` | the CloudProvider: of one account, and of all that NodeClasses name |

mod abandoned_nodes;
mod absence;
mod accounts;
mod affinity;
mod aftermath;
mod bootstrap;
mod candidates;
mod catalogue;
pub mod client;
mod controller;
pub mod credentials;
mod deletions;
mod described;
mod description;
mod disks;
pub mod doctor;
mod drift;
pub mod garbage;
pub mod installation;
mod instances;
mod instancetypes;
mod interruptions;
mod inventory;
mod judgement;
mod keys;
pub mod labels;
mod last_word;
mod later_disks;
mod launches;
mod learnt_memory;
mod lookups;
mod made_by;
mod measured;
pub mod naming;
mod networks;
mod node_names;
pub mod nodeclass;
mod nodeclass_schema;
mod ownership;
mod prices;
mod protection;
pub mod provider;
mod quota;
mod removal;
pub mod repair;
mod reservations;
mod resolved;
mod root_disks;
mod selection;
pub mod settings;
pub mod shared;
mod sightings;
mod status;
mod stray_disks;
mod tagging;
mod talos;
mod templates;
mod tokens;
mod twins;
mod unavailable;
mod unregistered;
mod userdata;
pub mod voice;
mod webhook;
mod zones;

pub use catalogue::Lifetimes;
pub use installation::install;
pub use nodeclass::CloudStackNodeClass;
pub use provider::CloudStackProvider;
pub use shared::{Objects, ProviderOptions, Watched};
pub use webhook::WebhookOptions;

/// The provider's API group.
pub const GROUP: &str = "karpenter.k8s.cloudstack";
