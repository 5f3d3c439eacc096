//! Capacity buffers: room kept free for pods to come, as the virtual pods that stand for it.
//!
//! How many pods a buffer wants and whether its template was found is its controller's to say (in the buffer's status); here
//! buffers and templates are put together, whichever came first.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use karpenter_api::capacitybuffer::READY_FOR_PROVISIONING;
use karpenter_api::{CapacityBuffer, ConditionStatus};
use karpenter_engine::ingest::{FieldError, Ingest};
use karpenter_engine::labels::{Labels, Text};
use karpenter_engine::pod::{Owners, Pod, PodSpec, PodStatus};

use crate::cluster::Key;

/// Where a pod template stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TemplateKind {
    PodTemplate,
    Deployment,
    StatefulSet,
    ReplicaSet,
}

/// Buffers that are ready, and the templates they may refer to.
#[derive(Default)]
pub(crate) struct Buffers {
    ready: BTreeMap<Key, Buffer>,
    templates: BTreeMap<(TemplateKind, Key), Template>,
}

struct Buffer {
    uid: Text,
    replicas: i32,
    template: (TemplateKind, Text),
}

struct Template {
    labels: Labels,
    spec: Arc<PodSpec>,
}

impl Buffers {
    /// A buffer that is not ready, wants nothing, or refers to nothing has no pods.
    pub(crate) fn apply(&mut self, ingest: &mut Ingest, key: Key, buffer: &CapacityBuffer) {
        match read(ingest, buffer) {
            Some(buffer) => drop(self.ready.insert(key, buffer)),
            None => drop(self.ready.remove(&key)),
        }
    }

    pub(crate) fn delete(&mut self, key: &Key) {
        self.ready.remove(key);
    }

    pub(crate) fn apply_template(
        &mut self,
        ingest: &mut Ingest,
        kind: TemplateKind,
        key: Key,
        template: Option<&core::PodTemplateSpec>,
    ) -> Result<(), FieldError> {
        let slot = (kind, key);
        self.templates.remove(&slot);
        let Some(template) = template else { return Ok(()) };
        let labels = ingest.map(template.metadata.as_ref().and_then(|m| m.labels.as_ref()));
        let spec = without_claims(template.spec.clone().unwrap_or_default());
        let spec = ingest.pod_spec(&spec, None)?;
        self.templates.insert(slot, Template { labels, spec });
        Ok(())
    }

    pub(crate) fn delete_template(&mut self, kind: TemplateKind, key: Key) {
        self.templates.remove(&(kind, key));
    }

    /// Whether there are virtual pods.
    pub(crate) fn wants_pods(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The virtual pods, in order of buffer and number. They are as old as the moment they are made for.
    pub(crate) fn pods(&self, now: Timestamp) -> Vec<Arc<Pod>> {
        let mut out = Vec::new();
        for ((namespace, name), buffer) in &self.ready {
            let (kind, template) = &buffer.template;
            let Some(template) = self.templates.get(&(*kind, (namespace.clone(), template.clone()))) else {
                continue;
            };
            for number in 1..=buffer.replicas {
                out.push(Arc::new(Pod {
                    namespace: namespace.clone(),
                    name: format!("capacity-buffer-{name}-{number}").into(),
                    uid: format!("{}-{number}", buffer.uid).into(),
                    labels: template.labels.clone(),
                    spec: template.spec.clone(),
                    created_seconds: Some(now.as_second()),
                    node_name: None,
                    status: PodStatus { unschedulable: true, ..PodStatus::default() },
                    owners: Owners::default(),
                    do_not_disrupt: None,
                    buffer: Some(name.clone()),
                }));
            }
        }
        out
    }
}

fn read(ingest: &mut Ingest, buffer: &CapacityBuffer) -> Option<Buffer> {
    let status = buffer.status.as_ref()?;
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|c| c.type_ == READY_FOR_PROVISIONING && c.status == ConditionStatus::True);
    let replicas = status.replicas.filter(|r| *r > 0 && ready)?;
    let template = match (&buffer.spec.pod_template_ref, &buffer.spec.scalable_ref) {
        (Some(template), _) => (TemplateKind::PodTemplate, ingest.text(&template.name)),
        (None, Some(scalable)) if matches!(scalable.api_group.as_deref(), None | Some("" | "apps")) => {
            let kind = match scalable.kind.as_str() {
                "Deployment" => TemplateKind::Deployment,
                "StatefulSet" => TemplateKind::StatefulSet,
                "ReplicaSet" => TemplateKind::ReplicaSet,
                _ => return None,
            };
            (kind, ingest.text(&scalable.name))
        }
        _ => return None,
    };
    Some(Buffer { uid: buffer.metadata.uid.as_deref().unwrap_or_default().into(), replicas, template })
}

/// A virtual pod has no volumes of its own: nothing would ever bind their claims.
fn without_claims(mut spec: core::PodSpec) -> core::PodSpec {
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|v| v.persistent_volume_claim.is_none() && v.ephemeral.is_none());
    }
    spec.node_name = None;
    spec
}
