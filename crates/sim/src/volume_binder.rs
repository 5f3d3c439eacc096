//! Gives claims their volumes: existing ones that fit, or new ones where a StorageClass can make them.
//!
//! A class that waits for the first consumer has its volume made in the zone of the node the scheduler chose; an immediate
//! one somewhere the class allows, and the pod has to follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::labels::TOPOLOGY_ZONE;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::actor::{Actor, Agenda, code, unless_gone};
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_deleting, uid};
use crate::placement;
use crate::scheduler::SELECTED_NODE;
use crate::scheduler::volumes::is_bound;

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// Provisioners that make nothing.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// See the module.
pub(crate) struct VolumeBinder {
    cluster: Cluster,
    client: kube::Client,
    chance: Chance,
    /// How long making a volume takes.
    provisioning: Span,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// See what a claim needs.
    Look(ObjectKey),
    /// Its volume has had the time to be made.
    Provision(ObjectKey),
    /// A volume may have lost its claim.
    Reclaim(String),
}

impl VolumeBinder {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let chance = Chance::new(cluster.entropy(), Self::NAME);
        let provisioning = Span::millis(200, 4000);
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME), chance, provisioning }
    }

    async fn bind(&self, claim: &PersistentVolumeClaim, volume: &str) -> Result<(), kube::Error> {
        let key = ObjectKey::of(claim);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "name": &*key.name, "namespace": &*key.namespace, "uid": uid(claim),
        });
        let params = PatchParams::default();
        let taken = Patch::Merge(json!({"spec": {"claimRef": reference}}));
        unless_gone(volumes.patch(volume, &params, &taken).await)?;
        unless_gone(
            volumes.patch_status(volume, &params, &Patch::Merge(json!({"status": {"phase": "Bound"}}))).await,
        )?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let given = Patch::Merge(json!({
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume},
        }));
        unless_gone(claims.patch(&key.name, &params, &given).await)?;
        let spec = claim.spec.clone().unwrap_or_default();
        let status = Patch::Merge(json!({"status": {
            "phase": "Bound",
            "accessModes": spec.access_modes,
            "capacity": spec.resources.and_then(|resources| resources.requests),
        }}));
        unless_gone(claims.patch_status(&key.name, &params, &status).await).map(drop)
    }

    /// Makes a volume in a zone, if the class has any.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        zone: Option<String>,
    ) -> Result<(), kube::Error> {
        let spec = claim.spec.clone().unwrap_or_default();
        let name = format!("pvc-{}", uid(claim));
        let node_affinity = zone.map(|zone| VolumeNodeAffinity {
            required: Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_expressions: Some(vec![NodeSelectorRequirement {
                        key: TOPOLOGY_ZONE.to_owned(),
                        operator: "In".to_owned(),
                        values: Some(vec![zone]),
                    }]),
                    match_fields: None,
                }],
            }),
        });
        let volume = PersistentVolume {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            spec: Some(PersistentVolumeSpec {
                access_modes: spec.access_modes,
                capacity: spec.resources.and_then(|resources| resources.requests),
                claim_ref: Some(ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("PersistentVolumeClaim".to_owned()),
                    name: claim.metadata.name.clone(),
                    namespace: claim.metadata.namespace.clone(),
                    uid: claim.metadata.uid.clone(),
                    ..ObjectReference::default()
                }),
                csi: Some(CSIPersistentVolumeSource {
                    driver: class.provisioner.clone(),
                    volume_handle: name.clone(),
                    ..CSIPersistentVolumeSource::default()
                }),
                node_affinity,
                persistent_volume_reclaim_policy: class.reclaim_policy.clone().or(Some("Delete".to_owned())),
                storage_class_name: class.metadata.name.clone(),
                ..PersistentVolumeSpec::default()
            }),
            status: None,
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        match volumes.create(&PostParams::default(), &volume).await {
            Err(error) if code(&error) == 409 => {}
            other => drop(other?),
        }
        self.bind(claim, &name).await
    }

    /// A volume that is free and fits.
    fn free_volume(claim: &PersistentVolumeClaim, objects: &Objects) -> Option<String> {
        let spec = claim.spec.as_ref()?;
        if let Some(name) = spec.volume_name.clone().filter(|name| !name.is_empty()) {
            return objects.volumes.contains_key(&ObjectKey::cluster(name.as_str())).then_some(name);
        }
        let class = class_of(claim, objects).and_then(|class| class.metadata.name.clone());
        let named =
            spec.storage_class_name.clone().filter(|name| !name.is_empty()).or(class).unwrap_or_default();
        objects.volumes.iter().find_map(|(key, volume)| {
            let volume = volume.spec.as_ref()?;
            let free = volume.claim_ref.as_ref().is_none_or(|reference| reference.uid == claim.metadata.uid);
            let same = volume.storage_class_name.as_deref().unwrap_or_default() == named;
            let storage = |list: &Option<BTreeMap<String, _>>| {
                let quantity: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> =
                    list.as_ref().and_then(|list| list.get("storage"));
                quantity
                    .and_then(|text| karpenter_primitives::Quantity::parse(&text.0).ok())
                    .unwrap_or_default()
            };
            let asked =
                spec.resources.as_ref().map(|resources| storage(&resources.requests)).unwrap_or_default();
            (free && same && storage(&volume.capacity) >= asked).then(|| key.name.to_string())
        })
    }
}

/// The class of a claim: the one it names, or the default if it names none at all.
pub(crate) fn class_of<'a>(
    claim: &PersistentVolumeClaim,
    objects: &'a Objects,
) -> Option<&'a Arc<StorageClass>> {
    match claim.spec.as_ref()?.storage_class_name.as_deref() {
        Some(name) => objects.storage_classes.get(&ObjectKey::cluster(name)),
        None => objects.storage_classes.values().find(|class| {
            class
                .metadata
                .annotations
                .iter()
                .flatten()
                .any(|(key, value)| key == IS_DEFAULT && value == "true")
        }),
    }
}

/// Whether a class can make volumes for a node with these labels.
pub(crate) fn topology_accepts(class: &StorageClass, labels: &BTreeMap<String, String>) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let matches = |term: &k8s_openapi::api::core::v1::TopologySelectorTerm| {
        let expressions = term.match_label_expressions.iter().flatten();
        expressions.into_iter().all(|e| labels.get(&e.key).is_some_and(|value| e.values.contains(value)))
    };
    terms.is_empty() || terms.iter().any(matches)
}

/// The zones a class may use: those it names, or all there are.
fn zones(class: &StorageClass, objects: &Objects) -> Vec<String> {
    let terms = class.allowed_topologies.iter().flatten();
    let named: Vec<String> = terms
        .flat_map(|term| term.match_label_expressions.iter().flatten())
        .filter(|expression| expression.key == TOPOLOGY_ZONE)
        .flat_map(|expression| expression.values.clone())
        .collect();
    if !named.is_empty() {
        return named;
    }
    let all: BTreeSet<String> = objects
        .nodes
        .values()
        .filter_map(|node| placement::labels(node).get(TOPOLOGY_ZONE).cloned())
        .collect();
    all.into_iter().collect()
}

impl Actor for VolumeBinder {
    type Key = Key;
    const NAME: &'static str = "volume-binder";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<Key>) {
        let unbound = |agenda: &mut Agenda<Key>| {
            for (key, _) in objects.volume_claims.iter().filter(|(_, claim)| !is_bound(claim)) {
                agenda.now(Key::Look(key.clone()));
            }
        };
        match change {
            Change::PersistentVolumeClaim(edit) => match &edit.new {
                Some(claim) if !is_bound(claim) => agenda.now(Key::Look(edit.key.clone())),
                Some(_) => {}
                None => {
                    let spec = edit.old.as_ref().and_then(|claim| claim.spec.as_ref());
                    if let Some(volume) = spec.and_then(|spec| spec.volume_name.clone()) {
                        agenda.now(Key::Reclaim(volume));
                    }
                }
            },
            Change::PersistentVolume(edit) if edit.old.is_none() => unbound(agenda),
            Change::StorageClass(_) => unbound(agenda),
            _ => {}
        }
    }

    async fn act(&mut self, key: &Key, agenda: &mut Agenda<Key>) -> Result<(), kube::Error> {
        match key {
            Key::Look(key) => {
                let found = self.cluster.read(|objects| {
                    let claim =
                        objects.volume_claims.get(key).filter(|c| !is_bound(c) && !is_deleting(&***c))?;
                    Some((
                        Arc::clone(claim),
                        Self::free_volume(claim, objects),
                        class_of(claim, objects).cloned(),
                    ))
                });
                let Some((claim, volume, class)) = found else { return Ok(()) };
                let waits = class.as_ref().and_then(|c| c.volume_binding_mode.as_deref())
                    == Some("WaitForFirstConsumer");
                if waits && selected_node(&claim).is_none() {
                    return Ok(());
                }
                if let Some(volume) = volume {
                    return self.bind(&claim, &volume).await;
                }
                let provision = Key::Provision(key.clone());
                if class.is_some_and(|class| class.provisioner != NO_PROVISIONER) && !agenda.has(&provision) {
                    let delay = self.chance.duration(&self.provisioning);
                    agenda.after(provision, delay);
                }
                Ok(())
            }
            Key::Provision(key) => {
                let found = self.cluster.read(|objects| {
                    let claim =
                        objects.volume_claims.get(key).filter(|c| !is_bound(c) && !is_deleting(&***c))?;
                    let class = class_of(claim, objects)?;
                    let node = selected_node(claim).map(|name| objects.node(&name).cloned());
                    Some((Arc::clone(claim), Arc::clone(class), node, zones(class, objects)))
                });
                let Some((claim, class, node, zones)) = found else { return Ok(()) };
                let zone = match node {
                    Some(Some(node)) => placement::labels(&node).get(TOPOLOGY_ZONE).cloned(),
                    Some(None) => {
                        // The chosen node has gone: the scheduler has to choose again.
                        let claims: Api<PersistentVolumeClaim> =
                            Api::namespaced(self.client.clone(), &key.namespace);
                        let forget =
                            Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: null}}}));
                        return unless_gone(claims.patch(&key.name, &PatchParams::default(), &forget).await)
                            .map(drop);
                    }
                    None => self.chance.pick(&zones).cloned(),
                };
                self.provision(&claim, &class, zone).await
            }
            Key::Reclaim(name) => {
                let found = self.cluster.read(|objects| {
                    let volume = objects.volumes.get(&ObjectKey::cluster(name.as_str()))?;
                    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
                    let claim = ObjectKey::namespaced(
                        reference.namespace.as_deref().unwrap_or_default(),
                        reference.name.as_deref().unwrap_or_default(),
                    );
                    let owned =
                        objects.volume_claims.get(&claim).is_some_and(|c| c.metadata.uid == reference.uid);
                    (!owned).then(|| Arc::clone(volume))
                });
                let Some(volume) = found else { return Ok(()) };
                let policy =
                    volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
                let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
                if policy == Some("Delete") {
                    return hands::delete(&volumes, &*volume, None).await;
                }
                let released = Patch::Merge(json!({"status": {"phase": "Released"}}));
                unless_gone(volumes.patch_status(name, &PatchParams::default(), &released).await).map(drop)
            }
        }
    }
}

fn selected_node(claim: &PersistentVolumeClaim) -> Option<String> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).filter(|name| !name.is_empty()).cloned()
}
