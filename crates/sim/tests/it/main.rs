//! The simulated world as Karpenter would find it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod autoscaler;
mod budgets;
mod cloud;
mod cloudstack;
mod cloudstack_replay;
mod cluster_api;
mod commands;
mod faults;
mod invariants;
mod machinery;
mod nodes;
mod objects;
mod scheduling;
mod volumes;
mod workloads;
