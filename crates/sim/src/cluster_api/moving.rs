//! All objects of a Cluster made anew under new uids, as `clusterctl move` and a restored backup do: paused meanwhile, with specs,
//! annotations and status as they were, and owners by their new uids.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::kinds::{Kind, create};
use crate::actor::unless_gone;
use crate::cluster::Cluster;
use crate::objects::{Objects, is_deleting};

/// From the top: an owner is made before what it owns.
const ORDER: [Kind; 5] =
    [Kind::MachineDeployment, Kind::MachineSet, Kind::Machine, Kind::SimMachine, Kind::SimConfig];

fn all(objects: &Objects, kind: Kind, namespace: &str) -> Vec<Arc<DynamicObject>> {
    let kept = match kind {
        Kind::MachineDeployment => &objects.machine_deployments,
        Kind::MachineSet => &objects.machine_sets,
        Kind::Machine => &objects.machines,
        Kind::SimMachine => &objects.sim_machines,
        Kind::SimConfig => &objects.sim_configs,
        Kind::SimMachineTemplate => &objects.sim_machine_templates,
        Kind::Cluster | Kind::SimConfigTemplate | Kind::SimControlPlane => return Vec::new(),
    };
    kept.iter()
        .filter(|(key, _)| &*key.namespace == namespace)
        .map(|(_, object)| Arc::clone(object))
        .collect()
}

/// Makes everything of the namespace anew but for what is on its way out, which is gone. Its Clusters have to be paused, or
/// controllers take what is gone for gone.
///
/// # Errors
///
/// If the server refuses something.
pub(super) async fn make_anew(
    cluster: &Cluster,
    client: &kube::Client,
    namespace: &str,
) -> Result<(), kube::Error> {
    let mut uids: BTreeMap<String, String> = BTreeMap::new();
    let everything: Vec<(Kind, Vec<Arc<DynamicObject>>)> =
        cluster.read(|objects| ORDER.map(|kind| (kind, all(objects, kind, namespace))).into());
    // What was cloned for a Machine has its name, and goes with it.
    let goes = |kinds: &[Kind]| -> BTreeSet<String> {
        let of_these = everything.iter().filter(|(kind, _)| kinds.contains(kind));
        let leaving = of_these.flat_map(|(_, objects)| objects).filter(|object| is_deleting(&***object));
        leaving.filter_map(|object| object.metadata.name.clone()).collect()
    };
    let (machines, clones) = (goes(&[Kind::Machine]), goes(&[Kind::Machine, Kind::SimMachine]));
    let moves = |kind: Kind, object: &DynamicObject| {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let with_its_machine = matches!(kind, Kind::SimMachine | Kind::SimConfig) && machines.contains(name);
        !is_deleting(object) && !with_its_machine
    };
    for name in &clones {
        cluster.set_kubelet(name, false);
    }
    for (kind, objects) in everything.iter().rev() {
        let api = kind.api(client, namespace);
        for object in objects {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            unless_gone(api.patch(name, &PatchParams::default(), &free).await)?;
            unless_gone(api.delete(name, &DeleteParams::background()).await)?;
        }
    }
    for (kind, objects) in &everything {
        let (kind, api) = (*kind, kind.api(client, namespace));
        for object in objects.iter().filter(|object| moves(kind, object)) {
            let mut copy = serde_json::to_value(&**object).map_err(kube::Error::SerdeError)?;
            let status = copy.as_object_mut().and_then(|copy| copy.remove("status"));
            if let Some(metadata) = copy.get_mut("metadata").and_then(Value::as_object_mut) {
                for given in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
                    metadata.remove(given);
                }
                for owner in
                    metadata.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten()
                {
                    let new = owner["uid"].as_str().and_then(|old| uids.get(old)).cloned();
                    if let Some(new) = new {
                        owner["uid"] = new.into();
                    }
                }
            }
            create(client, kind, copy).await?;
            let name = object.metadata.name.as_deref().unwrap_or_default();
            if let Some(status) = status {
                let patch = Patch::Merge(json!({"status": status}));
                api.patch_status(name, &PatchParams::default(), &patch).await?;
            }
            let made = api.get(name).await?;
            uids.insert(
                object.metadata.uid.clone().unwrap_or_default(),
                made.metadata.uid.unwrap_or_default(),
            );
        }
    }
    Ok(())
}
