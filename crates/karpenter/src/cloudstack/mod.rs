//! `karpenter cloudstack`: a cloud to try things on.

mod simulator;

/// Tools for Apache CloudStack.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Serve a simulated CloudStack from memory; prints its address and keys when it answers.
    Simulator(simulator::Args),
}

/// Does what was typed.
///
/// # Errors
///
/// If that cannot be done.
pub fn cmd(args: &Args) -> anyhow::Result<std::process::ExitCode> {
    match &args.command {
        Command::Simulator(args) => simulator::cmd(args),
    }
}
