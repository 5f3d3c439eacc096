//! What Karpenter asks of a cloud, and how it finds the right one.
//!
//! A provider implements [`CloudProvider`]; a NodePool or NodeClaim reaches it through the [`Registry`] by the kind of its
//! NodeClass, so several providers serve one cluster side by side. Errors are typed because the core acts on their kind: see
//! [`ProviderError`].
//!
//! | Module | What it is |
//! |---|---|
//! | [`provider`] | the trait, and what a launch comes to |
//! | [`error`] | what can go wrong, and what the core does about it |
//! | [`registry`] | which provider serves which NodeClass |
//! | [`measured`] | a provider with metrics and a limit on every call |
//! | [`installation`] | how a provider joins the program |
//! | [`repair`] | which node conditions a provider wants repaired |
//! | [`selection`] | what a NodeClaim could be launched as |
//! | [`conversion`] | between the API's words and the engine's |
//! | [`fake`] | a provider in memory that does what a test tells it to |

pub mod conversion;
pub mod error;
pub mod fake;
pub mod installation;
pub mod measured;
pub mod provider;
pub mod registry;
pub mod repair;
pub mod selection;

pub use error::{LaunchFailure, ProviderError};
pub use installation::{InstallError, Installation, Part, Surroundings};
pub use measured::Measured;
pub use provider::{
    CloudProvider, DisruptionHold, HookResult, Launch, LaunchHandle, LaunchWaker, LaunchedInstance,
    NodeClassKind, ProviderFuture, RegistrationHook,
};
pub use registry::{Registry, RegistryError, UnknownNodeClass};
pub use repair::{RepairAction, RepairPolicy};
