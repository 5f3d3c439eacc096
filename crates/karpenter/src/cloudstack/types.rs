//! `karpenter cloudstack types`: service offerings as instance types.

use std::path::PathBuf;
use std::process::ExitCode;

use karpenter_provider_cloudstack::doctor;

/// List what a NodeClass could buy, with price and availability.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file with a CloudStackNodeClass.
    #[arg(long, short = 'f', value_name = "FILE")]
    node_class: PathBuf,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let class = super::node_class(&args.node_class)?;
    let (client, options, environment) = super::client(Some("types"))?;
    let rows = super::in_real_time(async {
        Ok(doctor::what_can_be_bought(client, options, class, &environment).await?)
    })?;
    println!(
        "{:<34} {:<16} {:>4} {:>9} {:>4} {:<10} {:>9} {:<9} OFFERING",
        "INSTANCE TYPE", "ZONE", "CPU", "MEMORY", "GPU", "CAPACITY", "PRICE/H", "AVAILABLE"
    );
    for row in &rows {
        println!(
            "{:<34} {:<16} {:>4} {:>6}MiB {:>4} {:<10} {:>9.4} {:<9} {}",
            row.name,
            row.zone,
            row.cpu,
            row.memory_mib,
            row.gpus,
            row.capacity_type,
            row.price,
            if row.available { "yes" } else { "no" },
            row.offering,
        );
    }
    Ok(ExitCode::SUCCESS)
}
