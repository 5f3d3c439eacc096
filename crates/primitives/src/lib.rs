//! Kubernetes quantities, durations, label selectors and name syntax, shared by the API types and the embedded API server.
//!
//! A leaf: it knows text and numbers, nothing of Kubernetes objects, JSON or Karpenter. Where Go's apimachinery has a
//! habit that users can see (a spelling that survives, an error text, a rounding), it is kept and recorded answers
//! of the Go library under `conformance/api` hold us to it.

pub mod go_duration;
pub mod names;
pub mod quantity;
pub mod quote;
pub mod selector;

pub use go_duration::GoDuration;
pub use quantity::{Format, ParseQuantityError, Quantity};
pub use selector::{LabelSelector, LabelSelectorRequirement, Selector, SelectorError};
