//! The simulated world as Karpenter would find it.

mod budgets;
mod cloud;
mod faults;
mod invariants;
mod machinery;
mod nodes;
mod objects;
mod scheduling;
mod volumes;
mod workloads;
