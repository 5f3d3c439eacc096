//! VolumeAttachments: a volume is attached to a node while a pod there uses it, and detached some time after.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::actor::{Actor, Agenda, code, unless_gone};
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_finished, node_of};
use crate::scheduler::volumes::claim_names;

/// See the module.
pub(crate) struct AttachDetach {
    cluster: Cluster,
    client: kube::Client,
    chance: Chance,
    detaching: Span,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Attach what a node's pods use.
    Node(String),
    /// Detach a volume nobody uses any more, by the name of its attachment.
    Detach(String),
}

impl AttachDetach {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self {
            cluster: cluster.clone(),
            client: cluster.client(Self::NAME),
            chance: Chance::new(cluster.entropy(), Self::NAME),
            detaching: Span::secs(1, 15),
        }
    }
}

/// The volumes in use on a node.
fn in_use(node: &str, objects: &Objects) -> BTreeSet<String> {
    let pods = objects.pods_on(node).filter(|pod| !is_finished(pod));
    let claims = pods.flat_map(|pod| {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        claim_names(pod).into_iter().map(move |name| ObjectKey::namespaced(namespace.as_str(), name.as_str()))
    });
    let volumes =
        claims.filter_map(|key| objects.volume_claims.get(&key)?.spec.as_ref()?.volume_name.clone());
    volumes.collect()
}

/// The name external attachers give an attachment: a digest of what is attached where.
fn attachment_name(volume: &PersistentVolume, node: &str) -> Option<(String, String)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    let digest = Sha256::digest(format!("{}{}{node}", csi.volume_handle, csi.driver));
    let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some((format!("csi-{text}"), csi.driver.clone()))
}

impl Actor for AttachDetach {
    type Key = Key;
    const NAME: &'static str = "attach-detach";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<Key>) {
        if let Change::Pod(edit) = change {
            let uses_volumes = edit.either().is_some_and(|pod| !claim_names(pod).is_empty());
            let news = edit.old.as_deref().map(|pod| (node_of(pod), is_finished(pod)))
                != edit.new.as_deref().map(|pod| (node_of(pod), is_finished(pod)));
            if uses_volumes
                && news
                && let Some(node) = edit.either().and_then(|pod| node_of(pod))
            {
                agenda.now(Key::Node(node.to_owned()));
            }
        }
    }

    async fn act(&mut self, key: &Key, agenda: &mut Agenda<Key>) -> Result<(), kube::Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        match key {
            Key::Node(node) => {
                let (missing, unused) = self.cluster.read(|objects| {
                    let used = in_use(node, objects);
                    let here = objects.volume_attachments.values().filter(|a| a.spec.node_name == *node);
                    let attached: Vec<(String, String)> = here
                        .filter_map(|a| {
                            Some((a.metadata.name.clone()?, a.spec.source.persistent_volume_name.clone()?))
                        })
                        .collect();
                    let wanted =
                        used.iter().filter(|volume| attached.iter().all(|(_, other)| other != *volume));
                    let missing: Vec<_> = wanted
                        .filter_map(|name| {
                            Some((
                                name.clone(),
                                attachment_name(
                                    objects.volumes.get(&ObjectKey::cluster(name.as_str()))?,
                                    node,
                                )?,
                            ))
                        })
                        .collect();
                    let unused: Vec<_> = attached
                        .into_iter()
                        .filter(|(_, volume)| !used.contains(volume))
                        .map(|(name, _)| name)
                        .collect();
                    (missing, unused)
                });
                for name in unused {
                    let detach = Key::Detach(name);
                    if !agenda.has(&detach) {
                        let delay = self.chance.duration(&self.detaching);
                        agenda.after(detach, delay);
                    }
                }
                for (volume, (name, driver)) in missing {
                    let attachment = VolumeAttachment {
                        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                        spec: VolumeAttachmentSpec {
                            attacher: driver,
                            node_name: node.clone(),
                            source: VolumeAttachmentSource {
                                persistent_volume_name: Some(volume),
                                inline_volume_spec: None,
                            },
                        },
                        status: None,
                    };
                    match api.create(&PostParams::default(), &attachment).await {
                        Err(error) if code(&error) == 409 => {}
                        other => drop(other?),
                    }
                    let attached = Patch::Merge(json!({"status": {"attached": true}}));
                    unless_gone(api.patch_status(&name, &PatchParams::default(), &attached).await)?;
                }
                Ok(())
            }
            Key::Detach(name) => {
                let attachment = self.cluster.read(|objects| {
                    let attachment = objects.volume_attachments.get(&ObjectKey::cluster(name.as_str()))?;
                    let volume = attachment.spec.source.persistent_volume_name.as_ref()?;
                    (!in_use(&attachment.spec.node_name, objects).contains(volume))
                        .then(|| attachment.clone())
                });
                match attachment {
                    Some(attachment) => hands::delete(&api, &*attachment, None).await,
                    None => Ok(()),
                }
            }
        }
    }
}
