//! `karpenter cloudstack types`: service offerings as instance types.

use std::path::PathBuf;
use std::process::ExitCode;

use karpenter_provider_cloudstack::{CloudStackNodeClass, doctor};

use crate::real_time;

/// List what a NodeClass could buy, with price and availability.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file with a CloudStackNodeClass.
    #[arg(long, short = 'f', value_name = "FILE")]
    node_class: PathBuf,
}

/// What of the NodeClass is in a cluster, which nobody asks here, so that what follows may be otherwise there.
fn oddities(class: &CloudStackNodeClass) -> Vec<String> {
    let credentials = class.credentials().map(|reference| {
        format!("spec.credentialsRef: these are what the keys of the environment see; Karpenter would use those of Secret {reference}")
    });
    let pricing = class.spec.as_ref().and_then(|spec| spec.pricing.as_ref());
    let prices = pricing.and_then(|pricing| pricing.config_map_ref.as_ref()).map(|map| {
        format!(
            "spec.pricing.configMapRef: prices are without those of ConfigMap {}/{}, which is not read here",
            map.namespace, map.name
        )
    });
    credentials.into_iter().chain(prices).collect()
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let class = super::node_class(&args.node_class)?;
    let (client, options, environment) = super::client(Some("types"))?;
    for odd in oddities(&class) {
        eprintln!("{odd}");
    }
    let rows = real_time::run(async {
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
