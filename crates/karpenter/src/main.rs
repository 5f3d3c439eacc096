//! The `karpenter` binary: which command was typed, and what its outcome means to the shell.
//!
//! Exit status: 0 done, 1 done with a finding (see the command), 2 an error (also one of usage). Whoever reads our output may
//! stop reading at any time.

mod apiserver;
mod crds;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use karpenter::{cloudstack, cluster_api, demo, explain, run, sim, simulate};
use karpenter_runtime::error::with_causes;

/// glibc's takes nearly half the time of a small write in the embedded server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Karpenter, the node autoprovisioner for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "karpenter", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve an empty Kubernetes API from memory.
    Apiserver(apiserver::Args),
    /// Tools for Apache CloudStack.
    Cloudstack(cloudstack::Args),
    /// Tools for Cluster API.
    #[command(visible_alias = "capi")]
    ClusterApi(cluster_api::Args),
    /// Print the custom resource definitions.
    Crds(crds::Args),
    /// Show Karpenter at work on a cluster in memory; needs nothing.
    Demo(demo::Args),
    /// Say why a node is not taken away, or what would take it away.
    Explain(explain::Args),
    /// Run Karpenter in a cluster.
    Run(run::Args),
    /// Run Karpenter in simulated worlds in which things go wrong.
    Sim(sim::Args),
    /// Print what Karpenter would do with a cluster given as files; exit status 1 if some pod has no place.
    Simulate(simulate::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Apiserver(args) => apiserver::cmd(&args).map(|()| ExitCode::SUCCESS),
        Command::Cloudstack(args) => cloudstack::cmd(&args),
        Command::ClusterApi(args) => cluster_api::cmd(&args),
        Command::Crds(args) => crds::cmd(&args).map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => demo::cmd(&args),
        Command::Explain(args) => explain::cmd(&args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::cmd(&args),
        Command::Sim(args) => sim::cmd(&args),
        Command::Simulate(args) => simulate::run(&args).map(found_a_place).map_err(anyhow::Error::from),
    };
    match outcome {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

fn found_a_place(all_pods: bool) -> ExitCode {
    if all_pods { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}
