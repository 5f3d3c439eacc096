//! `karpenter explain machine-deployment NAME`: whether each ClusterAPINodeClass offers it, and why not. Its
//! [`Sources`] are also those of `karpenter cluster-api explain`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::explanation::Evidence;
use karpenter_provider_cluster_api::gathering::gather;
use karpenter_provider_cluster_api::wiring;
use karpenter_runtime::options::Options;
use karpenter_runtime::surroundings;
use serde_json::Value;

use crate::real_time;

/// What was asked.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The MachineDeployment or MachineSet, with or without its namespace; or NODECLASS.NAME of a template that a NodeClass names or selects
    #[arg(value_name = "[NAMESPACE/]NAME")]
    name: String,

    #[command(flatten)]
    sources: Sources,
}

/// Where what is known comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct Sources {
    /// Manifests instead of running clusters: NodePools, NodeClasses, MachineDeployments, Clusters, templates, Machines, NodeClaims, Nodes
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The cluster that Karpenter runs in [default: KUBECONFIG, or where it is usually found]
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,

    /// The management cluster, if it is another [default: as Karpenter's settings say: CLUSTER_API_KUBECONFIG, CLUSTER_API_URL, CLUSTER_API_IN_MANAGEMENT_CLUSTER]
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    cluster_api_kubeconfig: Option<PathBuf>,
}

/// The answer.
pub(super) fn report(args: &Args) -> anyhow::Result<String> {
    Ok(args.sources.evidence()?.explain(&args.name)?)
}

/// Settings of the operator that decide about offers.
const SETTINGS: [&str; 5] = [
    "CLUSTER_API_DEFAULT_ARCH",
    "CLUSTER_API_SYNC_LABELS",
    "VM_MEMORY_OVERHEAD_PERCENT",
    "CLUSTER_NAME",
    "CLUSTER_NAMESPACE",
];

impl Sources {
    /// What is known.
    pub(crate) fn evidence(&self) -> anyhow::Result<Evidence> {
        if self.files.is_empty() {
            return read_clusters(self);
        }
        let objects = read_files(&self.files)?;
        let set = |name: &str| SETTINGS.contains(&name).then(|| std::env::var(name).ok()).flatten();
        Ok(Evidence::of(Settings::read(set)?, objects))
    }
}

fn read_files(files: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .with_context(|| format!("{} is neither YAML nor JSON", file.display()))?;
        for mut document in documents {
            match document.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => objects.extend(items),
                _ => objects.push(document),
            }
        }
    }
    Ok(objects)
}

/// What running clusters tell, as Karpenter itself reaches them by its settings.
fn read_clusters(sources: &Sources) -> anyhow::Result<Evidence> {
    let environ = Options::environ(std::env::vars_os())?;
    let flag =
        |name: &str, path: &Option<PathBuf>| path.as_ref().map(|path| format!("--{name}={}", path.display()));
    let flags: Vec<String> = [
        flag("kubeconfig", &sources.kubeconfig),
        flag("cluster-api-kubeconfig", &sources.cluster_api_kubeconfig),
    ]
    .into_iter()
    .flatten()
    .collect();
    let options = Options::parse(flags.iter().map(String::as_str), &environ)?;
    real_time::run(async {
        let own = surroundings::cluster(options.kubeconfig.as_ref()).await?;
        Ok(gather(&wiring::clusters(own, &options).await?).await?)
    })
}
