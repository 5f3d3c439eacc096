//! The controllers on the embedded API server, under virtual time.

mod capacity_buffer;
mod consolidation_events;
mod disruption;
mod disruption_doubts;
mod disruption_words;
mod metrics;
mod mirror;
mod node_health;
mod node_overlay;
mod node_termination;
mod nodeclaim_chores;
mod nodeclaim_disruption;
mod nodeclaim_end;
mod nodeclaim_lifecycle;
mod nodeclaim_reboot;
mod nodepools;
mod objects;
mod pod_deletion_cost;
mod pod_metrics;
mod provisioning;
mod repair;
mod rig;
mod static_capacity;
mod static_drift;
