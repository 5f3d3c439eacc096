//! The provider under a small core, against simulated Cluster API, in virtual time.

mod both_modes;
mod clock;
mod core;
mod ends;
mod explaining;
mod features;
mod go_faults;
mod keeping;
mod lessons;
mod machine_mode;
mod moves;
mod node_class;
mod outage;
mod records;
mod refusals;
mod repair;
mod rig;
mod rollouts;
mod safety;
mod scaling;
mod seeds;
mod starting;
mod takeover;
mod telling;
mod topology;
