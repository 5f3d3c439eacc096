//! Tests of the provider as a whole: its requests against what a real server lists, and its behaviour on a simulated one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod absence;
mod buying;
mod capacity;
mod clocks;
mod cloud;
mod deleting;
mod described;
mod disks;
mod doctor;
mod documents;
mod finding;
mod furnishing;
mod go_faults;
mod joining;
mod last_word;
mod launching;
mod limited_sight;
mod logs;
mod looking_after;
mod maintenance;
mod metrics;
mod old_servers;
mod rebooting;
mod refusals;
mod refused_keys;
mod requests;
mod resolving;
mod standing_still;
mod tagging;
mod templates;
mod tenancy;
mod tls;
mod twins;
mod validation;
mod wire;
