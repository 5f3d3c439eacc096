//! The one integration-test binary of the program: its commands, and the rules of the repository.

mod chart;
mod cloudstack;
mod cloudstack_accounts;
mod cloudstack_commands;
mod cloudstack_joining;
mod cloudstack_repair;
mod cloudstack_run;
mod cloudstack_scenarios;
mod cloudstack_upkeep;
mod cluster_api;
mod cluster_api_commands;
mod crd_types;
mod decisions;
mod demo;
mod disruptions;
mod documents;
mod explain;
mod inventory;
mod mutations;
mod sim;
mod simulate;
mod tidy;
