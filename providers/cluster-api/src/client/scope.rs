//! Which Cluster of the management cluster is ours: the one that was named, else the only one there is. Found out when the management
//! cluster answers, and once and for all: another Cluster's Machines are not ours.

use std::sync::OnceLock;

use karpenter_runtime::object_key::ObjectKey;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};

use super::settings::Settings;
use super::versions::{VersionError, Versions};
use crate::names::CAPI_GROUP;

/// Which Cluster is ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub cluster: String,
}

/// Why it is not known which Cluster is ours.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// The management cluster has none.
    #[error(
        "no Cluster {wanted} in the management cluster; set CLUSTER_NAME and CLUSTER_NAMESPACE to the one this cluster is"
    )]
    NoCluster {
        /// What was looked for.
        wanted: String,
    },
    /// It has several, and which is ours was not said.
    #[error(
        "the management cluster has several Clusters ({0}); set CLUSTER_NAME and CLUSTER_NAMESPACE to the one this cluster is"
    )]
    WhichCluster(String),
    /// It serves no version we can read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// It could not be asked.
    #[error("listing the Clusters of the management cluster")]
    Unreachable(#[source] Box<kube::Error>),
}

/// What was said about our Cluster, and which it is once that is known.
#[derive(Debug, Default)]
pub struct Ours {
    name: Option<String>,
    namespace: Option<String>,
    found: OnceLock<Scope>,
}

impl Ours {
    /// As the settings say.
    pub fn new(settings: &Settings) -> Self {
        let (name, namespace) = (settings.cluster_name.clone(), settings.cluster_namespace.clone());
        let found = OnceLock::new();
        if let (Some(cluster), Some(namespace)) = (&name, &namespace) {
            // Nobody has set it before.
            let _ = found.set(Scope { namespace: namespace.clone(), cluster: cluster.clone() });
        }
        Self { name, namespace, found }
    }

    /// Which it is, if that is known.
    pub fn known(&self) -> Option<&Scope> {
        self.found.get()
    }

    /// Which it is; the management cluster is asked if that is not known.
    pub async fn find(&self, client: &Client, versions: &Versions) -> Result<&Scope, ScopeError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let resource = versions.resource(client, CAPI_GROUP, "Cluster").await?;
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let clusters = api.list(&ListParams::default()).await;
        let clusters = clusters.map_err(|error| ScopeError::Unreachable(Box::new(error)))?;
        let wanted = |key: &ObjectKey| self.name.as_deref().is_none_or(|name| name == &*key.name);
        let mut keys: Vec<ObjectKey> = clusters.items.iter().map(ObjectKey::of).filter(wanted).collect();
        keys.sort();
        match keys.as_slice() {
            [only] => {
                let scope = Scope { namespace: only.namespace.to_string(), cluster: only.name.to_string() };
                Ok(self.found.get_or_init(|| scope))
            }
            [] => Err(ScopeError::NoCluster { wanted: self.name.clone().unwrap_or_default() }),
            several => {
                let names: Vec<String> = several.iter().take(5).map(ToString::to_string).collect();
                Err(ScopeError::WhichCluster(names.join(", ")))
            }
        }
    }
}
