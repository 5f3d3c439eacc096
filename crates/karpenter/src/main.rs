//! The `karpenter` binary: which command was typed, and what its outcome means to the shell.
//!
//! Exit status: 0 done, 2 an error (also one of usage). Whoever reads our output may stop reading at any time.

mod crds;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Karpenter, the node autoprovisioner for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "karpenter", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the custom resource definitions.
    Crds(crds::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Crds(args) => crds::cmd(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}
