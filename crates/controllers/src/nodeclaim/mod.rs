//! Controllers of NodeClaims: from a claim to a node, and what may be done with it meanwhile.
//!
//! | Module | What it is |
//! |---|---|
//! | `disruption` | whether a claim may be consolidated, and whether it has drifted |
//! | `lifecycle` | one pass over a claim: `launch`, `registration`, `initialization`, `liveness`, at its end `finalize` |

pub(crate) mod disruption;
mod finalize;
pub(crate) mod initialization;
mod launch;
pub(crate) mod lifecycle;
mod liveness;
mod registration;
