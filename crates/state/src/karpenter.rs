//! Karpenter's own kinds as the engine's facts.

use k8s_openapi::api::core::v1::Taint as ApiTaint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::conditions::{ConditionStatus, HasConditions, READY};
use karpenter_api::{NodeSelectorRequirement, ResourceList, nodeclaim, nodepool};
use karpenter_engine::ingest::{FieldError, Ingest};
use karpenter_engine::node::{ClaimConditions, NodeClaim};
use karpenter_engine::node_pool::{InstanceTypes, NodeClassRef, NodeOverlay, NodePool};
use karpenter_engine::requirement::SelectorRequirement;
use karpenter_engine::resources::Resources;
use karpenter_engine::taints::Taint;

use crate::convert::text;

pub(crate) fn node_pool(ingest: &mut Ingest, pool: &karpenter_api::NodePool) -> Result<NodePool, FieldError> {
    let template = &pool.spec.template;
    let meta = template.metadata.as_ref();
    let class = &template.spec.node_class_ref;
    Ok(NodePool {
        name: text(ingest, pool.metadata.name.as_ref()),
        uid: text(ingest, pool.metadata.uid.as_ref()),
        weight: pool.spec.weight.unwrap_or_default(),
        labels: ingest.map(meta.and_then(|m| m.labels.as_ref())),
        annotations: ingest.map(meta.and_then(|m| m.annotations.as_ref())),
        requirements: requirements(ingest, &template.spec.requirements),
        taints: taints(ingest, template.spec.taints()),
        startup_taints: taints(ingest, template.spec.startup_taints()),
        node_class: NodeClassRef {
            group: ingest.text(&class.group),
            kind: ingest.text(&class.kind),
            name: ingest.text(&class.name),
        },
        limits: resources(ingest, pool.spec.limits.as_ref(), "spec.limits")?,
        replicas: pool.spec.replicas,
        ready: is_ready(pool),
        deleting: pool.metadata.deletion_timestamp.is_some(),
        consolidate_after_seconds: pool.consolidate_after().map(|d| d.as_nanos() / 1_000_000_000),
        consolidation_policy: pool.consolidation_policy(),
        budgets: pool.budgets().to_vec(),
        instance_types: InstanceTypes::Unresolved { reason: ingest.text("not asked for yet") },
        tainted: Vec::new(),
    })
}

/// Ready is True, and what it depends on has been looked at: a condition that is missing counts as Unknown and takes Ready
/// with it.
fn is_ready(pool: &karpenter_api::NodePool) -> bool {
    let known = |type_: &str| pool.condition(type_).is_some();
    is_true(pool, READY) && known(nodepool::VALIDATION_SUCCEEDED) && known(nodepool::NODE_CLASS_READY)
}

fn is_true(object: &impl HasConditions, type_: &str) -> bool {
    object.condition_status(type_) == ConditionStatus::True
}

pub(crate) fn node_claim(
    ingest: &mut Ingest,
    claim: &karpenter_api::NodeClaim,
) -> Result<NodeClaim, FieldError> {
    let status = claim.status.as_ref();
    let true_since = |type_: &str| {
        let condition = claim.condition(type_).filter(|c| c.status == ConditionStatus::True)?;
        Some(condition.last_transition_time.as_ref().map_or(0, |t| t.0.as_second()))
    };
    let reboot_ended = claim.condition(nodeclaim::REBOOTING).filter(|c| c.status == ConditionStatus::False);
    let rebooting = claim.condition(nodeclaim::REBOOTING).filter(|c| c.status == ConditionStatus::True);
    let initialized = claim.condition(nodeclaim::INITIALIZED).filter(|c| c.status == ConditionStatus::True);
    let seconds = |t: &Time| t.0.as_second();
    Ok(NodeClaim {
        name: text(ingest, claim.metadata.name.as_ref()),
        uid: claim.metadata.uid.as_deref().unwrap_or_default().into(),
        created_seconds: claim.metadata.creation_timestamp.as_ref().map(seconds),
        expire_after_seconds: claim
            .spec
            .expire_after
            .as_ref()
            .and_then(|e| e.as_duration())
            .map(|d| d.as_nanos() / 1_000_000_000),
        termination_grace_period_seconds: claim
            .spec
            .termination_grace_period
            .as_ref()
            .map(|d| d.as_nanos() / 1_000_000_000),
        provider_id: status.and_then(|s| s.provider_id.as_deref()).unwrap_or_default().into(),
        labels: ingest.map(claim.metadata.labels.as_ref()),
        annotations: ingest.map(claim.metadata.annotations.as_ref()),
        taints: taints(ingest, claim.spec.taints()),
        startup_taints: taints(ingest, claim.spec.startup_taints()),
        capacity: resources(ingest, status.and_then(|s| s.capacity.as_ref()), "status.capacity")?,
        allocatable: resources(ingest, status.and_then(|s| s.allocatable.as_ref()), "status.allocatable")?,
        deleting: claim.metadata.deletion_timestamp.is_some(),
        deleting_since_seconds: claim.metadata.deletion_timestamp.as_ref().map(seconds),
        conditions: ClaimConditions {
            initialized_since_seconds: initialized.and_then(|c| c.last_transition_time.as_ref()).map(seconds),
            instance_terminating: is_true(claim, nodeclaim::INSTANCE_TERMINATING),
            rebooting: rebooting.is_some(),
            reboot_waits_since_seconds: rebooting
                .filter(|c| c.reason() == nodeclaim::reboot::REQUESTED)
                .and_then(|c| c.last_transition_time.as_ref())
                .map(seconds),
            reboot_ended_seconds: reboot_ended.and_then(|c| c.last_transition_time.as_ref()).map(seconds),
            consolidatable: is_true(claim, nodeclaim::CONSOLIDATABLE),
            drifted_since_seconds: true_since(nodeclaim::DRIFTED),
            last_pod_event_seconds: status.and_then(|s| s.last_pod_event_time.as_ref()).map(seconds),
        },
    })
}

pub(crate) fn node_overlay(
    ingest: &mut Ingest,
    overlay: &karpenter_api::NodeOverlay,
) -> Result<NodeOverlay, FieldError> {
    let spec = &overlay.spec;
    // One of the two at most: the schema forbids both.
    let price = spec.price.as_ref().or(spec.price_adjustment.as_ref());
    let capacity = match &spec.capacity {
        Some(list) => Some(resources(ingest, Some(list), "spec.capacity")?),
        None => None,
    };
    Ok(NodeOverlay {
        name: text(ingest, overlay.metadata.name.as_ref()),
        weight: spec.weight.unwrap_or_default(),
        requirements: requirements(ingest, &spec.requirements),
        price: price.map(|p| ingest.text(p)),
        capacity,
    })
}

fn requirements(ingest: &mut Ingest, list: &[NodeSelectorRequirement]) -> Vec<SelectorRequirement> {
    list.iter()
        .map(|r| SelectorRequirement {
            key: ingest.text(&r.key),
            operator: ingest.text(r.operator.as_str()),
            values: r.values().iter().map(|v| ingest.text(v)).collect(),
            min_values: r.min_values,
        })
        .collect()
}

fn taints(ingest: &mut Ingest, list: &[ApiTaint]) -> Vec<Taint> {
    list.iter()
        .map(|t| Taint {
            key: ingest.text(&t.key),
            value: text(ingest, t.value.as_ref()),
            effect: ingest.text(&t.effect),
        })
        .collect()
}

fn resources(ingest: &mut Ingest, list: Option<&ResourceList>, field: &str) -> Result<Resources, FieldError> {
    let mut out = Resources::new();
    for (name, quantity) in list.into_iter().flatten() {
        let amount = ingest
            .amount(&quantity.to_string())
            .map_err(|problem| FieldError { field: format!("{field}[{name}]"), problem })?;
        out.set(ingest.text(name), amount);
    }
    Ok(out)
}
