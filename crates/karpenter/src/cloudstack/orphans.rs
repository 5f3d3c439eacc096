//! `karpenter cloudstack orphans`: machines of a cluster that no NodeClaim wants. It only looks.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use karpenter_api::NodeClaim;
use karpenter_provider_cloudstack::{CloudStackNodeClass, CloudStackProvider, doctor::Snapshot};
use karpenter_runtime::surroundings;
use kube::api::ListParams;
use kube::{Api, Client};

/// List virtual machines of a cluster that no NodeClaim wants; exit status 1 if there are any.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's kubeconfig; without it, as kubectl finds it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let (client, options, environment) = super::client(None)?;
    super::in_real_time(async {
        let config = surroundings::cluster(args.kubeconfig.as_deref()).await?;
        let cluster = Client::try_from(config).context("cannot make a client of the cluster")?;
        let all = ListParams::default();
        let classes: Api<CloudStackNodeClass> = Api::all(cluster.clone());
        let claims: Api<NodeClaim> = Api::all(cluster);
        let name = options.cluster_name.clone();
        // Machines whose NodeClaim is made while we look are too young to be orphans.
        let snapshot = Snapshot {
            classes: classes
                .list(&all)
                .await
                .context("cannot list CloudStackNodeClasses")?
                .items
                .into_iter()
                .map(Arc::new)
                .collect(),
            claims: claims
                .list(&all)
                .await
                .context("cannot list NodeClaims")?
                .items
                .into_iter()
                .map(Arc::new)
                .collect(),
        };
        if snapshot.classes.is_empty() {
            bail!("this cluster has no CloudStackNodeClass; is it the cluster {name:?} of CLUSTER_NAME?");
        }
        let provider = CloudStackProvider::new(client, options, Arc::new(snapshot), &environment);
        let orphans = provider.orphans().await?;
        for machine in &orphans {
            println!(
                "{} {} {} {} created {}",
                machine.id, machine.name, machine.zonename, machine.state, machine.created
            );
        }
        eprintln!("{} virtual machines of cluster {name} have no NodeClaim", orphans.len());
        Ok(if orphans.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    })
}
