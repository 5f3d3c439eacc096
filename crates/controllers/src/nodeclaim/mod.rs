//! Controllers of NodeClaims: from a claim to a node, and what may be done with it meanwhile.
//!
//! | Module | What it is |
//! |---|---|
//! | `disruption` | whether a claim may be consolidated, and whether it has drifted |
//! | `lifecycle` | one pass over a claim: `launch`, `registration`, `initialization`, `liveness`, at its end `finalize` |
//! | `expectation` | what decisions count on while a claim is not launched |
//! | `garbage_collection`, `expiration` | claims whose instance vanished, and those that are too old |
//! | `consistency` | whether a node is what was bought |
//! | `pod_events` | when a pod last came or left |
//! | `reboot` | restarts in place |
//! | `hydration` | labels that objects of older versions lack |

pub(crate) mod consistency;
pub(crate) mod disruption;
mod expectation;
pub(crate) mod expiration;
mod finalize;
pub(crate) mod garbage_collection;
pub(crate) mod hydration;
pub(crate) mod initialization;
mod launch;
pub(crate) mod lifecycle;
mod liveness;
pub(crate) mod pod_events;
pub(crate) mod reboot;
mod registration;
