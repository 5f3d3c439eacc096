//! `karpenter explain machine-deployment NAME`: whether each ClusterAPINodeClass offers it, and why not. Its
//! [`Sources`] are also those of `karpenter cluster-api explain`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use karpenter_provider_cluster_api::client::fields::Reference;
use karpenter_provider_cluster_api::client::scalable::{Scalable, ScalableKind};
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::client::versions::Versions;
use karpenter_provider_cluster_api::explanation::Evidence;
use karpenter_provider_cluster_api::instances::templates;
use karpenter_provider_cluster_api::names::CAPI_GROUP;
use karpenter_provider_cluster_api::{ClusterAPINodeClass, GROUP};
use karpenter_runtime::surroundings::{self, Kubeconfigs};
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

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
    /// Manifests instead of running clusters: NodePools, NodeClasses, MachineDeployments, Clusters, templates, Machines, NodeClaims
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The cluster that pods run in [default: KUBECONFIG, or where it is usually found]
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,

    /// The management cluster, if it is another [default: CLUSTER_API_KUBECONFIG]
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
        let objects = if self.files.is_empty() { read_clusters(self)? } else { read_files(&self.files)? };
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

fn read_clusters(sources: &Sources) -> anyhow::Result<Vec<Value>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let workload = Kubeconfigs::named(sources.kubeconfig.as_deref());
    let variable = || std::env::var_os("CLUSTER_API_KUBECONFIG").map(PathBuf::from);
    let management = sources.cluster_api_kubeconfig.clone().or_else(variable).map(Kubeconfigs::File);
    let management = management.or_else(|| workload.clone());
    runtime.block_on(async {
        let client = |named: Option<Kubeconfigs>| async move {
            let config = surroundings::cluster(named.as_ref()).await?;
            Client::try_from(config).context("cannot make a client of the cluster")
        };
        let (workload, management) = (client(workload).await?, client(management).await?);
        let class = GroupVersionKind::gvk(GROUP, "v1alpha1", "ClusterAPINodeClass");
        let mut objects = list(&workload, &ApiResource::from_gvk(&class), "ClusterAPINodeClass").await?;
        let versions = Versions::default();
        for kind in ["NodePool", "NodeClaim"] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", kind));
            objects.extend(list(&workload, &resource, kind).await?);
        }
        objects.extend(price_tables(&workload, &objects).await?);
        for kind in ["Cluster", "MachineDeployment", "MachineSet", "Machine"] {
            let resource = versions.resource(&management, CAPI_GROUP, kind).await?;
            objects.extend(list(&management, &resource, kind).await?);
        }
        let templates = templates(&management, &versions, &objects).await?;
        objects.extend(templates);
        Ok(objects)
    })
}

async fn list(client: &Client, resource: &ApiResource, kind: &str) -> anyhow::Result<Vec<Value>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let found =
        api.list(&ListParams::default()).await.with_context(|| format!("cannot list {}", resource.plural))?;
    found.items.into_iter().map(|object| typed(object, resource, kind)).collect()
}

fn typed(object: DynamicObject, resource: &ApiResource, kind: &str) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = kind.into();
    Ok(value)
}

/// The ConfigMaps of prices that NodeClasses name. One that cannot be had tells nothing.
async fn price_tables(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<Value>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    let mut found = Vec::new();
    for reference in objects.iter().filter_map(|object| object.pointer("/spec/pricing/configMapRef")) {
        let text = |key: &str| reference[key].as_str().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), text("namespace"), &resource);
        if let Ok(map) = api.get(text("name")).await {
            found.push(typed(map, &resource, "ConfigMap")?);
        }
    }
    Ok(found)
}

/// The infrastructure templates that MachineDeployments and NodeClasses refer to or select from. One that cannot be had tells nothing.
async fn templates(client: &Client, versions: &Versions, objects: &[Value]) -> anyhow::Result<Vec<Value>> {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let mut references: BTreeSet<(String, Reference)> = BTreeSet::new();
    let mut kinds: BTreeSet<(String, (String, String))> = BTreeSet::new();
    for object in of_kind("MachineDeployment") {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let Ok(scalable) = Scalable::read(ScalableKind::MachineDeployment, &object) else { continue };
        let namespace = scalable.id.key.namespace.to_string();
        references.extend(scalable.infrastructure.map(|reference| (namespace, reference)));
    }
    for class in of_kind("ClusterAPINodeClass") {
        let Ok(class) = serde_json::from_value::<ClusterAPINodeClass>(class.clone()) else { continue };
        for cluster in of_kind("Cluster") {
            let namespace = cluster["metadata"]["namespace"].as_str().unwrap_or_default();
            let named = templates::references(&class);
            references.extend(named.map(|reference| (namespace.to_owned(), reference)));
            kinds.extend(templates::kind(&class).map(|kind| (namespace.to_owned(), kind)));
        }
    }
    let mut found = Vec::new();
    for (namespace, (group, kind)) in kinds {
        let Ok(resource) = versions.resource(client, &group, &kind).await else { continue };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        for template in api.list(&ListParams::default()).await.into_iter().flatten() {
            found.push(typed(template, &resource, &kind)?);
        }
    }
    for (namespace, reference) in references {
        let Ok(resource) = versions.resource(client, &reference.group, &reference.kind).await else {
            continue;
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        if let Ok(template) = api.get(&reference.name).await {
            found.push(typed(template, &resource, &reference.kind)?);
        }
    }
    Ok(found)
}
