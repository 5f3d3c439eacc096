//! Reads from running clusters what [`crate::explanation`] goes by: of our Cluster alone, in its namespace, and with no more rights than
//! Karpenter has itself, wherever it runs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_api::{NodeClaim, NodePool};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ClusterAPINodeClass;
use crate::client::cluster::Cluster;
use crate::client::fields::Reference;
use crate::client::hub::{Hub, HubError};
use crate::client::scalable::{Scalable, ScalableKind};
use crate::client::settings::Settings;
use crate::explanation::Evidence;
use crate::instances::templates;
use crate::names::CAPI_GROUP;
use crate::wiring::Clusters;

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// The management cluster does not tell.
    #[error("reading the management cluster")]
    Management(#[from] HubError),
    /// The workload cluster does not tell.
    #[error("listing the {what} of the workload cluster")]
    Workload {
        /// What was asked for.
        what: String,
        /// Why it does not.
        #[source]
        source: Box<kube::Error>,
    },
    /// What a cluster tells cannot be read.
    #[error("reading what a cluster tells")]
    Unreadable(#[from] serde_json::Error),
}

/// What both clusters tell about our Cluster.
pub async fn gather(clusters: &Clusters) -> Result<Evidence, GatherError> {
    let Clusters { workload, management, settings } = clusters;
    let scope = management.find_scope().await?.clone();
    let classes: Vec<ClusterAPINodeClass> = listed(workload).await?;
    let mut objects = values(&classes)?;
    objects.extend(values(&listed::<NodePool>(workload).await?)?);
    objects.extend(values(&listed::<NodeClaim>(workload).await?)?);
    for class in &classes {
        objects.extend(prices(workload, class).await.map(|map| value(&map)).transpose()?);
    }
    let (mut references, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for class in &classes {
        references.extend(templates::references(class));
        kinds.extend(templates::kind(class));
    }
    for kind in ["Cluster", "MachineDeployment", "MachineSet", "Machine"] {
        for object in management.all(CAPI_GROUP, kind).await? {
            let belongs_to = match kind {
                "Cluster" => object.metadata.name.as_deref(),
                _ => object.data.pointer("/spec/clusterName").and_then(Value::as_str),
            };
            if belongs_to != Some(&scope.cluster) {
                continue;
            }
            references.extend(infrastructure(kind, &object));
            if kind == "Cluster" && classes.iter().any(ClusterAPINodeClass::makes_machines) {
                objects.extend(control_plane(management, &object).await?);
            }
            objects.push(typed(management, &object, CAPI_GROUP, kind).await?);
        }
    }
    objects.extend(templates_of(management, references, kinds).await?);
    let settings = Settings {
        cluster_name: Some(scope.cluster.clone()),
        cluster_namespace: Some(scope.namespace.clone()),
        ..settings.clone()
    };
    Ok(Evidence::of(settings, objects))
}

/// What a MachineDeployment, or a MachineSet that belongs to none, clones its Machines' infrastructure from.
fn infrastructure(kind: &str, object: &DynamicObject) -> Option<Reference> {
    let kind = [ScalableKind::MachineDeployment, ScalableKind::MachineSet]
        .into_iter()
        .find(|known| known.as_str() == kind)?;
    let scalable = Scalable::read(kind, object).ok()?;
    scalable.infrastructure.filter(|_| kind != ScalableKind::MachineSet || scalable.controlled_by.is_none())
}

/// The Cluster's control plane, whose version Machines of their own have to suit. One that cannot be had tells nothing.
async fn control_plane(hub: &Hub, cluster: &DynamicObject) -> Result<Option<Value>, GatherError> {
    let reference = Cluster::read(cluster).ok().and_then(|cluster| cluster.control_plane);
    let Some(reference) = reference else { return Ok(None) };
    match hub.get(&reference).await {
        Ok(found) => typed(hub, &found, &reference.group, &reference.kind).await.map(Some),
        Err(_) => Ok(None),
    }
}

async fn listed<K>(client: &Client) -> Result<Vec<K>, GatherError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let found = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    let what = K::plural(&()).into_owned();
    Ok(found.map_err(|source| GatherError::Workload { what, source: Box::new(source) })?.items)
}

/// Objects as manifests have them.
fn values<K: Resource<DynamicType = ()> + Serialize>(objects: &[K]) -> Result<Vec<Value>, serde_json::Error> {
    objects.iter().map(value).collect()
}

fn value<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = K::api_version(&()).into_owned().into();
    value["kind"] = K::kind(&()).into_owned().into();
    Ok(value)
}

async fn typed(hub: &Hub, object: &DynamicObject, group: &str, kind: &str) -> Result<Value, GatherError> {
    let resource = hub.versions().resource(hub.client(), group, kind).await.map_err(HubError::from)?;
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = resource.api_version.into();
    value["kind"] = kind.into();
    Ok(value)
}

/// The ConfigMap of prices that a NodeClass names. One that cannot be had tells nothing.
async fn prices(client: &Client, class: &ClusterAPINodeClass) -> Option<ConfigMap> {
    let reference = class.spec().pricing?.config_map_ref?;
    Api::namespaced(client.clone(), &reference.namespace).get(&reference.name).await.ok()
}

/// Infrastructure templates that are referred to, and all of these kinds. One that cannot be had tells nothing.
async fn templates_of(
    hub: &Hub,
    references: BTreeSet<Reference>,
    kinds: BTreeSet<(String, String)>,
) -> Result<Vec<Value>, GatherError> {
    let mut found = Vec::new();
    for (group, kind) in kinds {
        for template in hub.all(&group, &kind).await.unwrap_or_default() {
            found.push(typed(hub, &template, &group, &kind).await?);
        }
    }
    for reference in references {
        if let Ok(template) = hub.get(&reference).await {
            found.push(typed(hub, &template, &reference.group, &reference.kind).await?);
        }
    }
    Ok(found)
}
