//! What is read of a Cluster, in v1beta1 and v1beta2.

use std::collections::BTreeMap;

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use serde_json::Value;

use super::fields::{Condition, Fields, Malformed, Reference};
use crate::names;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    /// Whether Cluster API's controllers leave all of it alone.
    pub(crate) paused: bool,
    /// Failure domains in which worker nodes may be, by name.
    pub(crate) failure_domains: Vec<String>,
    /// The replicas its topology sets, by the name of the topology's MachineDeployment.
    pub(crate) topology_replicas: BTreeMap<String, i64>,
    /// Its control plane, where it is an object of its own.
    pub(crate) control_plane: Option<Reference>,
    /// Where its API server is, host and port, once that is known.
    pub(crate) endpoint: Option<String>,
    /// The version its topology is to have, if it has one.
    pub(crate) topology_version: Option<String>,
    /// The version that the topology's upgrade has come to, while it is on its way.
    pub(crate) upgrade_step: Option<String>,
    pub(crate) conditions: Vec<Condition>,
}

impl Cluster {
    pub(crate) fn read(object: &DynamicObject) -> Result<Self, Malformed> {
        let fields = Fields::of("Cluster", object);
        let mut topology_replicas = BTreeMap::new();
        for deployment in fields.list("spec.topology.workers.machineDeployments")? {
            let name = deployment.get("name").and_then(Value::as_str).unwrap_or_default();
            if let Some(replicas) = deployment.get("replicas").and_then(Value::as_i64) {
                topology_replicas.insert(name.to_owned(), replicas);
            }
        }
        Ok(Self {
            key: fields.key(),
            uid: fields.uid(),
            paused: fields.flag("spec.paused")? || fields.annotations().contains_key(names::PAUSED),
            failure_domains: failure_domains(&fields),
            topology_replicas,
            control_plane: fields.reference("spec.controlPlaneRef")?,
            endpoint: endpoint(&fields)?,
            topology_version: fields.text("spec.topology.version")?,
            upgrade_step: fields
                .annotations()
                .remove(names::UPGRADE_STEP)
                .filter(|version| !version.is_empty()),
            conditions: fields.conditions(),
        })
    }
}

fn endpoint(fields: &Fields<'_>) -> Result<Option<String>, Malformed> {
    let host = fields.text("spec.controlPlaneEndpoint.host")?;
    let port = fields.int("spec.controlPlaneEndpoint.port")?.filter(|port| *port != 0);
    Ok(host.zip(port).map(|(host, port)| format!("{}:{port}", host.to_lowercase())))
}

/// v1beta2 has a list, v1beta1 a map; those for the control plane only are none of ours.
fn failure_domains(fields: &Fields<'_>) -> Vec<String> {
    match fields.at("status.failureDomains") {
        Some(Value::Object(map)) => map.keys().cloned().collect(),
        Some(Value::Array(items)) => {
            let mut names: Vec<String> = items
                .iter()
                .filter_map(|item| item.get("name").and_then(Value::as_str).map(str::to_owned))
                .collect();
            names.sort();
            names
        }
        _ => Vec::new(),
    }
}
