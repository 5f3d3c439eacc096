//! Controllers of Nodes: how they end, and what is done with sick ones.
//!
//! | Module | What it is |
//! |---|---|
//! | `termination` | the end of a Node: drained, volumes detached, instance gone |
//! | `drain` | which pods leave next |
//! | `eviction` | the queue of pods on their way out |
//! | `health` | replaces sick nodes, the old way |
//! | `volumes` | which volumes a drain waits for |

pub(crate) mod drain;
pub(crate) mod eviction;
pub(crate) mod health;
mod last_look;
pub(crate) mod termination;
mod volumes;
