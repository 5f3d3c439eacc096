//! The commands of the `karpenter` program, as a library so that tests can run them in process.

pub mod cloudstack;
pub mod cluster_api;
mod definitions;
pub mod demo;
pub mod explain;
pub mod files;
mod providers;
pub mod real_time;
pub mod run;
pub mod sim;
pub mod simulate;
