//! Which version of each API group the management cluster serves. Asked once and again when something was not found: a
//! management cluster is upgraded while we run.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};

use crate::names::CAPI_GROUP;

/// Versions of Cluster API we can read, best first.
const KNOWN: &[&str] = &["v1beta2", "v1beta1"];

/// The versions in use, by group.
#[derive(Debug, Default)]
pub struct Versions(Mutex<BTreeMap<String, String>>);

/// Why a kind cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The server does not know the group.
    #[error(
        "the management cluster serves no API group {0}; is Cluster API (or this infrastructure provider) installed there?"
    )]
    NoGroup(String),
    /// The server has versions we do not know.
    #[error(
        "the management cluster serves {group} only as {served}; this provider reads v1beta2 and v1beta1"
    )]
    NoVersion {
        /// Which group.
        group: String,
        /// In which versions.
        served: String,
    },
    /// The server could not be asked.
    #[error("asking the management cluster for its API groups")]
    Unreachable(#[source] Box<kube::Error>),
}

impl Versions {
    /// The version of a group: for Cluster API the best we know, otherwise the one the server prefers.
    pub async fn of(&self, client: &Client, group: &str) -> Result<String, VersionError> {
        if let Some(version) = self.lock().get(group) {
            return Ok(version.clone());
        }
        let groups = client.list_api_groups().await;
        let groups = groups.map_err(|error| VersionError::Unreachable(Box::new(error)))?;
        let found = groups.groups.iter().find(|known| known.name == group);
        let found = found.ok_or_else(|| VersionError::NoGroup(group.to_owned()))?;
        let served: Vec<&str> = found.versions.iter().map(|version| version.version.as_str()).collect();
        let best = if group == CAPI_GROUP {
            KNOWN.iter().copied().find(|known| served.contains(known))
        } else {
            let preferred = found.preferred_version.as_ref().map(|version| version.version.as_str());
            preferred.or_else(|| served.first().copied())
        };
        let best = best
            .ok_or_else(|| VersionError::NoVersion { group: group.to_owned(), served: served.join(", ") })?;
        self.lock().insert(group.to_owned(), best.to_owned());
        Ok(best.to_owned())
    }

    /// The version last found, if the group was asked for.
    pub fn known(&self, group: &str) -> Option<String> {
        self.lock().get(group).cloned()
    }

    /// Has the server asked again.
    pub fn forget(&self) {
        self.lock().clear();
    }

    /// A kind of a group as it is served. The plural is the one Cluster API computes from the kind.
    pub async fn resource(
        &self,
        client: &Client,
        group: &str,
        kind: &str,
    ) -> Result<ApiResource, VersionError> {
        let version = self.of(client, group).await?;
        Ok(ApiResource::from_gvk(&GroupVersionKind::gvk(group, &version, kind)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
