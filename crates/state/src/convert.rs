//! Kubernetes' own kinds as the engine's facts, one object at a time. Nothing is remembered or decided here.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_engine::cluster::{DaemonSet, DisruptionBudget, StorageClass, Volume, VolumeClaim};
use karpenter_engine::ingest::{FieldError, Ingest};
use karpenter_engine::labels::Text;
use karpenter_engine::node::Node;
use karpenter_engine::pod::Pod;

/// Volumes a node takes, per CSI driver: a count, or no limit.
pub(crate) type CsiLimits = BTreeMap<Text, Option<i64>>;

/// Names the CSI driver of volumes that predate CSI: the only in-tree plugin upstream still counts by its volumes.
const EBS_DRIVER: &str = "ebs.csi.aws.com";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

pub(crate) fn node(ingest: &mut Ingest, node: &core::Node) -> Result<Node, FieldError> {
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    Ok(Node {
        name: text(ingest, node.metadata.name.as_ref()),
        provider_id: spec.and_then(|s| s.provider_id.as_deref()).unwrap_or_default().into(),
        labels: ingest.map(node.metadata.labels.as_ref()),
        annotations: ingest.map(node.metadata.annotations.as_ref()),
        taints: ingest.taints(spec.and_then(|s| s.taints.as_ref())),
        capacity: ingest.resources(status.and_then(|s| s.capacity.as_ref()), "status.capacity")?,
        allocatable: ingest.resources(status.and_then(|s| s.allocatable.as_ref()), "status.allocatable")?,
        deleting: node.metadata.deletion_timestamp.is_some(),
        created_seconds: node.metadata.creation_timestamp.as_ref().map(|t| t.0.as_second()),
        ready: karpenter_engine::ingest::is_ready(status),
        conditions: ingest.node_conditions(status),
        csi_limits: CsiLimits::new(),
    })
}

pub(crate) fn csi_limits(ingest: &mut Ingest, csi: &storage::CSINode) -> CsiLimits {
    let limit = |d: &storage::CSINodeDriver| d.allocatable.as_ref().and_then(|a| a.count).map(i64::from);
    csi.spec.drivers.iter().map(|d| (ingest.text(&d.name), limit(d))).collect()
}

pub(crate) fn volume_claim(ingest: &mut Ingest, claim: &core::PersistentVolumeClaim) -> VolumeClaim {
    let spec = claim.spec.as_ref();
    let annotations = claim.metadata.annotations.as_ref();
    VolumeClaim {
        volume_name: text(ingest, spec.and_then(|s| s.volume_name.as_ref())),
        storage_class: text(ingest, spec.and_then(|s| s.storage_class_name.as_ref())),
        deleting: claim.metadata.deletion_timestamp.is_some(),
        lost: claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost"),
        bind_completed: annotations.is_some_and(|a| a.contains_key(BIND_COMPLETED)),
    }
}

pub(crate) fn volume(ingest: &mut Ingest, volume: &core::PersistentVolume) -> Volume {
    let spec = volume.spec.as_ref();
    let driver = match spec {
        Some(core::PersistentVolumeSpec { csi: Some(csi), .. }) => csi.driver.as_str(),
        Some(core::PersistentVolumeSpec { aws_elastic_block_store: Some(_), .. }) => EBS_DRIVER,
        _ => "",
    };
    let required = spec.and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    Volume {
        node_affinity: required.map(|r| ingest.node_terms(&r.node_selector_terms)),
        host_bound: spec.is_some_and(|s| s.local.is_some() || s.host_path.is_some()),
        driver: ingest.text(driver),
        deleting: volume.metadata.deletion_timestamp.is_some(),
    }
}

pub(crate) fn storage_class(ingest: &mut Ingest, class: &storage::StorageClass) -> StorageClass {
    let allowed_topologies = class
        .allowed_topologies
        .iter()
        .flatten()
        .map(|term| {
            let expressions = term.match_label_expressions.iter().flatten();
            expressions
                .map(|e| (ingest.text(&e.key), e.values.iter().map(|v| ingest.text(v)).collect()))
                .collect()
        })
        .collect();
    StorageClass {
        provisioner: ingest.text(&class.provisioner),
        binds_immediately: class.volume_binding_mode.as_deref() == Some("Immediate"),
        allowed_topologies,
    }
}

pub(crate) fn disruption_budget(
    ingest: &mut Ingest,
    budget: &policy::PodDisruptionBudget,
) -> DisruptionBudget {
    let (namespace, name) = key(ingest, &budget.metadata);
    let spec = budget.spec.as_ref();
    let max_unavailable = spec.and_then(|s| s.max_unavailable.as_ref());
    let min_available = spec.and_then(|s| s.min_available.as_ref());
    let is = |value: Option<&IntOrString>, wanted: &str| matches!(value, Some(IntOrString::String(s)) if s == wanted);
    DisruptionBudget {
        namespace,
        name,
        selector: ingest.selector(spec.and_then(|s| s.selector.as_ref())),
        disruptions_allowed: budget.status.as_ref().and_then(|s| s.disruptions_allowed).unwrap_or_default(),
        // Only these spellings count, as upstream: a minAvailable equal to the replica count does not.
        fully_blocking: matches!(max_unavailable, Some(IntOrString::Int(0)))
            || is(max_unavailable, "0%")
            || is(min_available, "100%"),
        always_allows_unhealthy: spec.and_then(|s| s.unhealthy_pod_eviction_policy.as_deref())
            == Some("AlwaysAllow"),
    }
}

pub(crate) fn daemon_set(ingest: &mut Ingest, daemon_set: &apps::DaemonSet) -> Result<DaemonSet, FieldError> {
    let (namespace, name) = key(ingest, &daemon_set.metadata);
    let uid = daemon_set.metadata.uid.as_deref().unwrap_or_default().into();
    Ok(DaemonSet { namespace, name, uid, template: daemon_pod(ingest, daemon_set)?, last_pod: None })
}

fn daemon_pod(ingest: &mut Ingest, daemon_set: &apps::DaemonSet) -> Result<Arc<Pod>, FieldError> {
    let template = daemon_set.spec.as_ref().and_then(|s| s.template.spec.clone()).unwrap_or_default();
    let pod = core::Pod {
        metadata: ObjectMeta {
            name: daemon_set.metadata.name.clone(),
            namespace: daemon_set.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(with_limits_as_requests(template)),
        status: None,
    };
    let below_template =
        |e: FieldError| FieldError { field: format!("spec.template.{}", e.field), problem: e.problem };
    ingest.pod(&pod).map_err(below_template)
}

/// The API server gives pods their limits as requests where they have none; a template has not been through it.
fn with_limits_as_requests(mut spec: core::PodSpec) -> core::PodSpec {
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        let Some(resources) = &mut container.resources else { continue };
        for (name, limit) in resources.limits.clone().unwrap_or_default() {
            resources.requests.get_or_insert_default().entry(name).or_insert(limit);
        }
    }
    spec
}

pub(crate) fn text(ingest: &mut Ingest, text: Option<&String>) -> Text {
    ingest.text(text.map_or("", String::as_str))
}

pub(crate) fn key(ingest: &mut Ingest, meta: &ObjectMeta) -> (Text, Text) {
    (text(ingest, meta.namespace.as_ref()), text(ingest, meta.name.as_ref()))
}
