//! The simulated bootstrap provider: data for machines to join with is there after a while, or never.

use std::time::Duration;

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::json;

use super::kinds::{Kind, is_paused, label, patch_status, text};
use crate::actor::{Actor, Agenda};
use crate::cluster::Cluster;
use crate::objects::{Change, Objects, is_deleting};

/// How often data for a machine of a paused Cluster is looked at.
const AGAIN: Duration = Duration::from_secs(5);

/// How bootstrap data comes to be: `spec` of a SimConfig, from its template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Behaviour {
    /// Seconds until it is there.
    ready_seconds: u64,
    /// It never is.
    never: bool,
}

/// Whether a Machine waits for its bootstrap data.
pub(super) fn is_awaited(machine: &DynamicObject) -> bool {
    machine.data.pointer("/spec/bootstrap/configRef").is_some()
        && text(machine, "/spec/bootstrap/dataSecretName").is_empty()
}

/// The bootstrap provider.
pub(super) struct Bootstrap {
    cluster: Cluster,
    client: kube::Client,
}

impl Bootstrap {
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }
}

impl Actor for Bootstrap {
    type Key = ObjectKey;
    const NAME: &'static str = "bootstrap";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<ObjectKey>) {
        let Change::SimConfig(edit) = change else { return };
        let Some(config) = edit.new.as_ref().filter(|_| !agenda.has(&edit.key)) else { return };
        let behaviour: Behaviour =
            config.data.get("spec").and_then(|spec| Behaviour::deserialize(spec).ok()).unwrap_or_default();
        if !behaviour.never && text(config, "/status/dataSecretName").is_empty() {
            agenda.after(edit.key.clone(), Duration::from_secs(behaviour.ready_seconds));
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let (config, paused) = self.cluster.read(|objects| {
            let config = objects.sim_configs.get(key).cloned();
            let paused = config.as_ref().is_some_and(|config| {
                let name = label(config, "cluster.x-k8s.io/cluster-name");
                let cluster = objects.capi_clusters.get(&ObjectKey::namespaced(key.namespace.clone(), name));
                is_paused(config, cluster.map(|found| &**found))
            });
            (config, paused)
        });
        let Some(config) = config.filter(|config| !is_deleting(&**config)) else { return Ok(()) };
        if paused {
            agenda.after(key.clone(), AGAIN);
            return Ok(());
        }
        let status = json!({"dataSecretName": &*key.name, "initialization": {"dataSecretCreated": true}});
        patch_status(&self.client, Kind::SimConfig, &config, status).await
    }
}
