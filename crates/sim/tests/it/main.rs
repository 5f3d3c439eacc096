//! The simulated world as Karpenter would find it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod autoscaler;
mod budgets;
mod cloud;
mod cloudstack;
mod cloudstack_ownership;
mod cloudstack_power;
mod cloudstack_replay;
mod cloudstack_rules;
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
