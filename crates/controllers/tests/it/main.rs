//! The controllers on the embedded API server, under virtual time.

mod capacity_buffer;
mod disruption;
mod metrics;
mod mirror;
mod node_overlay;
mod nodeclaim_disruption;
mod objects;
mod pod_deletion_cost;
mod pod_metrics;
mod provisioning;
mod repair;
mod rig;
mod static_capacity;
mod static_drift;
