//! Capacity buffers: room kept free for pods to come, as the virtual pods that stand for it.
//!
//! How many pods a buffer wants and whether its template was found its controller writes into its status, by the rules here;
//! then buffers and templates are put together, whichever came first.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::capacitybuffer::CapacityBufferSpec;
use karpenter_api::capacitybuffer::READY_FOR_PROVISIONING;
use karpenter_api::{CapacityBuffer, ConditionStatus};
use karpenter_engine::ingest::{FieldError, Ingest};
use karpenter_engine::labels::{Labels, Text};
use karpenter_engine::pod::{EvictionHints, Owners, Pod, PodSpec, PodStatus};
use karpenter_engine::resources::{PODS, Resources};

use crate::cluster::Key;

/// The most pods a buffer may stand for. More are a mistake, and each takes memory as a pod does.
pub const MOST_REPLICAS: i32 = 10_000;

/// Where a pod template stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateKind {
    /// In a PodTemplate.
    PodTemplate,
    /// In a Deployment.
    Deployment,
    /// In a StatefulSet.
    StatefulSet,
    /// In a ReplicaSet.
    ReplicaSet,
}

/// What a buffer refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateRef {
    /// Where the template stands.
    pub kind: TemplateKind,
    /// The name of what it stands in.
    pub name: Text,
}

/// Why what a buffer refers to is not to be had, whatever exists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateRefError {
    /// It refers to nothing.
    #[error("Neither podTemplateRef nor scalableRef is set")]
    Missing,
    /// Nothing of that group is understood.
    #[error("unsupported scalableRef API group {0:?}")]
    Group(String),
    /// Nothing of that kind is understood.
    #[error("unsupported kind {0:?}")]
    Kind(String),
}

impl TemplateRef {
    /// What this buffer refers to.
    pub fn of(buffer: &CapacityBuffer) -> Result<Self, TemplateRefError> {
        if let Some(template) = &buffer.spec.pod_template_ref {
            return Ok(Self { kind: TemplateKind::PodTemplate, name: template.name.as_str().into() });
        }
        let Some(scalable) = &buffer.spec.scalable_ref else { return Err(TemplateRefError::Missing) };
        if let Some(group) = scalable.api_group.as_deref().filter(|group| !["", "apps"].contains(group)) {
            return Err(TemplateRefError::Group(group.to_owned()));
        }
        let kind = match scalable.kind.as_str() {
            "Deployment" => TemplateKind::Deployment,
            "StatefulSet" => TemplateKind::StatefulSet,
            "ReplicaSet" => TemplateKind::ReplicaSet,
            other => return Err(TemplateRefError::Kind(other.to_owned())),
        };
        Ok(Self { kind, name: scalable.name.as_str().into() })
    }
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
    template: TemplateRef,
}

struct Template {
    labels: Labels,
    spec: Arc<PodSpec>,
    facts: TemplateFacts,
}

/// What a buffer's size is reckoned from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateFacts {
    /// What one pod asks for.
    pub requests: Resources,
    /// The generation of what the template stands in.
    pub generation: i64,
    /// How many pods the workload wants; none for a mere PodTemplate.
    pub workload_replicas: Option<i32>,
}

/// How many pods a buffer stands for: the larger of its number and its share of the workload, as far as its limits go; with
/// limits alone, as many as they allow.
pub fn desired_replicas(spec: &CapacityBufferSpec, template: &TemplateFacts) -> i32 {
    let share = spec.percentage.zip(template.workload_replicas.filter(|replicas| *replicas > 0));
    let share = share.map(|(percentage, replicas)| {
        let exact = (i64::from(replicas) * i64::from(percentage)).max(0);
        let rounded_up =
            i32::try_from(exact.div_euclid(100) + i64::from(exact % 100 > 0)).unwrap_or(i32::MAX);
        if percentage > 0 { rounded_up.max(1) } else { rounded_up }
    });
    let desired = spec.replicas.max(share);
    match (within_limits(spec, &template.requests), desired) {
        (Some(most), Some(desired)) => desired.min(most),
        (Some(most), None) => most,
        (None, desired) => desired.unwrap_or_default(),
    }
}

/// How many pods the limits allow; nothing if they limit nothing a pod asks for.
fn within_limits(spec: &CapacityBufferSpec, requests: &Resources) -> Option<i32> {
    let limits = spec.limits.iter().flatten();
    let counts = limits.filter_map(|(name, limit)| {
        // Every pod counts as one of `pods` for scheduling, which is none of its requests.
        let request = requests.get(name).filter(|request| !request.is_zero() && name != PODS)?;
        let count = i128::from(limit.milli_value()).div_euclid(request.as_milli_ceil().max(1));
        Some(i32::try_from(count).unwrap_or(i32::MAX))
    });
    counts.min()
}

impl Buffers {
    /// A buffer that is not ready, wants nothing, or refers to nothing has no pods.
    pub(crate) fn apply(&mut self, key: Key, buffer: &CapacityBuffer) {
        match read(buffer) {
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
        meta: &ObjectMeta,
        workload_replicas: Option<i32>,
        template: Option<&core::PodTemplateSpec>,
    ) -> Result<(), FieldError> {
        let slot = (kind, crate::convert::key(ingest, meta));
        self.templates.remove(&slot);
        let Some(template) = template else { return Ok(()) };
        let labels = ingest.map(template.metadata.as_ref().and_then(|m| m.labels.as_ref()));
        let spec = without_claims(template.spec.clone().unwrap_or_default());
        let spec = ingest.pod_spec(&spec, None)?;
        let facts = TemplateFacts {
            requests: spec.requests.clone(),
            generation: meta.generation.unwrap_or_default(),
            workload_replicas,
        };
        self.templates.insert(slot, Template { labels, spec, facts });
        Ok(())
    }

    pub(crate) fn facts(&self, namespace: &str, template: &TemplateRef) -> Option<&TemplateFacts> {
        let slot = (template.kind, (namespace.into(), template.name.clone()));
        self.templates.get(&slot).map(|template| &template.facts)
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
            let TemplateRef { kind, name: template } = buffer.template.clone();
            let Some(template) = self.templates.get(&(kind, (namespace.clone(), template))) else { continue };
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
                    eviction: EvictionHints::default(),
                    buffer: Some(name.clone()),
                }));
            }
        }
        out
    }
}

fn read(buffer: &CapacityBuffer) -> Option<Buffer> {
    let status = buffer.status.as_ref()?;
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|c| c.type_ == READY_FOR_PROVISIONING && c.status == ConditionStatus::True);
    let replicas = status.replicas.filter(|r| (1..=MOST_REPLICAS).contains(r) && ready)?;
    let template = TemplateRef::of(buffer).ok()?;
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
