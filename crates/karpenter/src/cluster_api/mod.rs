//! `karpenter cluster-api`: what can be found out about a Cluster API before and while Karpenter runs on it.

mod explain;
mod rights;
mod self_check;

pub use rights::core as core_rights;
pub use self_check::report;

/// Tools for Cluster API.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Say what a NodePool is offered, and why MachineDeployments are none of it.
    Explain(explain::Args),
    /// Ask both clusters whether Karpenter's account may do what it does; exit status 1 if it would not work.
    SelfCheck(self_check::Args),
}

/// Does what was typed.
///
/// # Errors
///
/// If that cannot be done.
pub fn cmd(args: &Args) -> anyhow::Result<std::process::ExitCode> {
    match &args.command {
        Command::Explain(args) => explain::cmd(args),
        Command::SelfCheck(args) => self_check::cmd(args),
    }
}
