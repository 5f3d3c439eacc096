//! The controllers on the embedded API server, under virtual time.

mod metrics;
mod mirror;
mod nodeclaim_disruption;
mod objects;
mod provisioning;
mod rig;
