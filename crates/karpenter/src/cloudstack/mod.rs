//! `karpenter cloudstack`: what can be found out about a CloudStack before and while Karpenter runs on it, and a cloud to try
//! things on. Keys come from the environment, as for `karpenter run`.

mod doctor;
mod orphans;
mod simulator;
pub mod soak;
pub mod stage;
mod types;

use std::path::Path;

use anyhow::Context as _;
use karpenter_provider_cloudstack::CloudStackNodeClass;
use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_provider_cloudstack::client::Client;
use karpenter_provider_cloudstack::installation::client_of_environment;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::options::{CloudStackOptions, Options};

/// Tools for Apache CloudStack.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check keys, rights, limits and a NodeClass against a CloudStack; exit status 1 if Karpenter would not work.
    Doctor(doctor::Args),
    /// List virtual machines of a cluster that no NodeClaim wants.
    Orphans(orphans::Args),
    /// List what a NodeClass could buy, with price and availability.
    Types(types::Args),
    /// Serve a simulated CloudStack from memory; prints its address and keys when it answers.
    Simulator(simulator::Args),
    /// Run for hours of virtual time on a simulated CloudStack with bad days; exit status 1 if a rule was broken.
    Soak(soak::Args),
}

/// Does what was typed.
///
/// # Errors
///
/// If that cannot be done.
pub fn cmd(args: &Args) -> anyhow::Result<std::process::ExitCode> {
    match &args.command {
        Command::Doctor(args) => doctor::cmd(args),
        Command::Orphans(args) => orphans::cmd(args),
        Command::Types(args) => types::cmd(args),
        Command::Simulator(args) => simulator::cmd(args),
        Command::Soak(args) => soak::cmd(args),
    }
}

/// What the environment says.
fn given() -> anyhow::Result<CloudStackOptions> {
    let environ = Options::environ(std::env::vars_os())?;
    Ok(Options::parse([], &environ)?.cloudstack)
}

/// A client by the environment's settings; `cluster` is used where nobody names the cluster.
fn client(cluster: Option<&str>) -> anyhow::Result<(Client, ProviderOptions, Environment)> {
    let mut given = given()?;
    if let Some(cluster) = cluster.filter(|_| given.cluster_name.is_empty()) {
        cluster.clone_into(&mut given.cluster_name);
    }
    let environment = Environment::real();
    let (client, options) = client_of_environment(&given, &environment)?;
    Ok((client, options, environment))
}

/// The NodeClass in a file.
fn node_class(file: &Path) -> anyhow::Result<CloudStackNodeClass> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("{} is no YAML", file.display()))?;
    let class = documents
        .into_iter()
        .find(|document| document["kind"] == "CloudStackNodeClass")
        .with_context(|| format!("{} holds no CloudStackNodeClass", file.display()))?;
    serde_json::from_value(class).with_context(|| format!("the CloudStackNodeClass in {}", file.display()))
}
