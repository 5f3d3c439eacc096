//! `karpenter cluster-api explain NODEPOOL`: what a NodePool is offered, and why MachineDeployments are none of it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::explain::machine_deployment::Sources;

/// Say what a NodePool is offered, and why MachineDeployments are none of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The NodePool
    #[arg(value_name = "NODEPOOL")]
    name: String,

    #[command(flatten)]
    sources: Sources,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let text = args.sources.evidence()?.explain_pool(&args.name)?;
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
