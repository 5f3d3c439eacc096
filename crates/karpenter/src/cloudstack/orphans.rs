//! `karpenter cloudstack orphans`: machines of a cluster that no NodeClaim wants. It only looks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Secret;
use karpenter_api::NodeClaim;
use karpenter_provider_cloudstack::doctor::Snapshot;
use karpenter_provider_cloudstack::installation::client_of_secret;
use karpenter_provider_cloudstack::labels;
use karpenter_provider_cloudstack::nodeclass::CredentialsRef;
use karpenter_provider_cloudstack::voice::Voice;
use karpenter_provider_cloudstack::{CloudStackNodeClass, CloudStackProvider, Objects, ProviderOptions};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::options::CloudStackOptions;
use karpenter_runtime::surroundings::{self, Kubeconfigs};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::real_time;

/// List virtual machines of a cluster that no NodeClaim wants; exit status 1 if there are any.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's kubeconfig; without it, as kubectl finds it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let given = super::given()?;
    real_time::run(async {
        let config = surroundings::cluster(Kubeconfigs::named(args.kubeconfig.as_deref()).as_ref()).await?;
        let cluster = Client::try_from(config).context("cannot make a client of the cluster")?;
        let all = ListParams::default();
        let classes: Api<CloudStackNodeClass> = Api::all(cluster.clone());
        let claims: Api<NodeClaim> = Api::all(cluster.clone());
        let name = given.cluster_name.as_str();
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
        // Ours first, whether or not a NodeClass uses them now: one that did may be gone.
        let mut accounts: BTreeSet<Option<CredentialsRef>> = BTreeSet::from([None]);
        accounts.extend(snapshot.classes.iter().map(|class| class.credentials().cloned()));
        // NodeClaims may outlive the NodeClass that named their keys.
        let written = snapshot.claims.iter().filter_map(|claim| claim.annotations().get(labels::CREDENTIALS));
        accounts.extend(written.filter_map(|text| CredentialsRef::read(text)).map(Some));
        let snapshot = Arc::new(snapshot);
        // Two Secrets may hold keys of one account.
        let mut orphans = BTreeMap::new();
        let mut is_all_seen = true;
        for whose in accounts {
            let (client, options, environment) = match &whose {
                None => super::client(None)?,
                Some(reference) => of_secret(&cluster, reference, &given).await?,
            };
            let objects: Arc<dyn Objects> = Arc::clone(&snapshot) as Arc<dyn Objects>;
            let silent = Voice::default();
            let provider =
                CloudStackProvider::with_keys_of(whose, client, options, objects, silent, &environment);
            let (found, unseen) = provider.orphans().await?;
            for (scope, error) in unseen {
                eprintln!("what is in {} cannot be seen: {error}", scope.write());
                is_all_seen = false;
            }
            orphans.extend(found.into_iter().map(|machine| (machine.id.clone(), machine)));
        }
        for machine in orphans.values() {
            println!(
                "{} {} {} {} created {}",
                machine.id, machine.name, machine.zonename, machine.state, machine.created
            );
        }
        eprintln!("{} virtual machines of cluster {name} have no NodeClaim", orphans.len());
        Ok(if orphans.is_empty() && is_all_seen { ExitCode::SUCCESS } else { ExitCode::from(1) })
    })
}

/// A client with the keys a NodeClass names.
async fn of_secret(
    cluster: &Client,
    reference: &CredentialsRef,
    given: &CloudStackOptions,
) -> anyhow::Result<(karpenter_provider_cloudstack::client::Client, ProviderOptions, Environment)> {
    let secrets: Api<Secret> = Api::namespaced(cluster.clone(), &reference.namespace);
    let secret = secrets.get(&reference.name).await.with_context(|| {
        format!(
            "cannot read the Secret {reference}, which a NodeClass names in spec.credentialsRef or a NodeClaim in its annotation {}",
            labels::CREDENTIALS
        )
    })?;
    let environment = Environment::real();
    let (client, options) = client_of_secret(reference, &secret, given, &environment)?;
    Ok((client, options, environment))
}
