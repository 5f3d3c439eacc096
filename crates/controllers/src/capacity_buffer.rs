//! Capacity buffers: finds out what a buffer is made of and how many pods it stands for, and writes that into its status. From
//! there the state makes virtual pods of it, which the provisioner finds room for.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::capacitybuffer::{LocalObjectRef, READY_FOR_PROVISIONING};
use karpenter_api::{CapacityBuffer, ConditionStatus};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::{Delta, Informer, own_key};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit;
use karpenter_runtime::store::Store;
use karpenter_runtime::work_queue::WorkQueue;
use karpenter_runtime::writes::{Lock, OVERTAKEN, Written, patch_status};
use karpenter_state::{
    MOST_REPLICAS, TemplateFacts, TemplateKind, TemplateRef, TemplateRefError, desired_replicas,
};
use kube::{Api, Resource as _};

use crate::context::Context;
use crate::provisioning::Provisioning;
use crate::watches::{Watched, Watches};

const NAME: &str = "capacitybuffer";
const AGAIN: Duration = Duration::from_secs(30);
/// Index of buffers by what they refer to.
const BY_TEMPLATE: &str = "template";

/// Does nothing unless buffers are watched.
pub(crate) fn register(
    context: &Context,
    provisioning: &Provisioning,
    watches: &mut Watches,
    program: &mut Program,
) {
    let (Some(buffers), Some(workloads)) = (&mut watches.buffers, &mut watches.workloads) else { return };
    let store = buffers.capacity_buffers.store();
    store.add_index(BY_TEMPLATE, |buffer| {
        TemplateRef::of(buffer).map(|template| index(template.kind, &template.name)).into_iter().collect()
    });
    let reconciler =
        Buffers { context: context.clone(), store: store.clone(), provisioning: provisioning.clone() };
    let controller =
        Controller::for_objects(NAME, CapacityBuffer::group(&()).as_ref(), "CapacityBuffer", reconciler)
            .workers(10)
            .limiter(rate_limit::reasonable())
            .build(&context.environment);
    let queue = controller.queue();
    buffers.capacity_buffers.feed(&queue, own_key);
    feed(&mut buffers.pod_templates, TemplateKind::PodTemplate, &store, &queue);
    feed(&mut buffers.deployments, TemplateKind::Deployment, &store, &queue);
    feed(&mut workloads.stateful_sets, TemplateKind::StatefulSet, &store, &queue);
    feed(&mut workloads.replica_sets, TemplateKind::ReplicaSet, &store, &queue);
    context.run(program, controller);
}

fn index(kind: TemplateKind, name: &str) -> String {
    format!("{kind:?}/{name}")
}

/// Buffers look again when what they refer to changes, comes or goes. What only a status says does not concern them.
fn feed<K: Watched>(
    informer: &mut Informer<K>,
    kind: TemplateKind,
    buffers: &Store<CapacityBuffer>,
    queue: &WorkQueue<ObjectKey>,
) {
    let buffers = buffers.clone();
    let generation = |meta: &ObjectMeta| meta.generation;
    informer.feed(queue, move |delta| {
        if let Delta::Updated { old, new } = delta
            && generation(old.meta()).is_some()
            && generation(old.meta()) == generation(new.meta())
        {
            return Vec::new();
        }
        let meta = delta.object().meta();
        let found = buffers.by_index(BY_TEMPLATE, &index(kind, meta.name.as_deref().unwrap_or_default()));
        let here = found.iter().filter(|buffer| buffer.metadata.namespace == meta.namespace);
        here.map(|buffer| ObjectKey::of(&**buffer)).collect()
    });
}

struct Buffers {
    context: Context,
    store: Store<CapacityBuffer>,
    provisioning: Provisioning,
}

impl Reconciler for Buffers {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(stored) = self.store.get(&key) else {
            // What it held is free: a pass takes note.
            self.provisioning.trigger_now();
            return Ok(Outcome::Done);
        };
        let mut buffer = (*stored).clone();
        let failure = self.resolve(&mut buffer);
        let strategy = buffer.spec.provisioning_strategy.clone();
        buffer.status.get_or_insert_default().provisioning_strategy = strategy;
        let api: Api<CapacityBuffer> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match patch_status(&api, &stored, &buffer, Lock::Optimistic).await {
            Ok(Written::Conflict | Written::Gone) => return Ok(Outcome::After(OVERTAKEN)),
            Ok(Written::Done(_) | Written::Unchanged) => {}
            Err(error) => return Err(ReconcileError::from(error).context("patching status")),
        }
        if let Some(error) = failure {
            return Err(error.into());
        }
        self.provisioning.trigger(stored.metadata.uid.as_deref().unwrap_or_default());
        Ok(Outcome::After(AGAIN))
    }
}

impl Buffers {
    /// Writes into the status what the buffer is made of, or why that is not known. A reference nobody understands is an
    /// error; one to something that is not there may yet be fulfilled.
    fn resolve(&self, buffer: &mut CapacityBuffer) -> Option<TemplateRefError> {
        let now = self.context.now();
        let ready = |buffer: &mut CapacityBuffer, status, reason: &str, message: &str| {
            buffer.set_condition(READY_FOR_PROVISIONING, status, reason, message, now);
        };
        let template = match TemplateRef::of(buffer) {
            Ok(template) => template,
            Err(error) => {
                ready(buffer, ConditionStatus::False, "ResolutionFailed", &error.to_string());
                return (error != TemplateRefError::Missing).then_some(error);
            }
        };
        let namespace = buffer.metadata.namespace.clone().unwrap_or_default();
        let facts =
            self.context.cluster.read(|cluster| cluster.buffer_template(&namespace, &template).cloned());
        let Some(facts) = facts else {
            let (reason, kind) = match template.kind {
                TemplateKind::PodTemplate => ("PodTemplateNotFound", "PodTemplate"),
                TemplateKind::Deployment => ("ScalableRefNotFound", "Deployment.apps"),
                TemplateKind::StatefulSet => ("ScalableRefNotFound", "StatefulSet.apps"),
                TemplateKind::ReplicaSet => ("ScalableRefNotFound", "ReplicaSet.apps"),
            };
            let message = format!("{kind} {:?} not found", template.name);
            ready(buffer, ConditionStatus::False, reason, &message);
            return None;
        };
        let replicas = desired_replicas(&buffer.spec, &facts);
        if replicas > MOST_REPLICAS {
            let message = format!(
                "{replicas} pods are more than the {MOST_REPLICAS} a buffer may stand for; lower spec.replicas, spec.percentage or spec.limits"
            );
            ready(buffer, ConditionStatus::False, "TooManyReplicas", &message);
            return None;
        }
        ready(buffer, ConditionStatus::True, "Resolved", "Pod template resolved successfully");
        let TemplateFacts { generation, .. } = facts;
        let status = buffer.status.get_or_insert_default();
        let is_template = template.kind == TemplateKind::PodTemplate;
        status.pod_template_ref = is_template.then(|| LocalObjectRef { name: template.name.to_string() });
        status.pod_template_generation = is_template.then_some(generation);
        status.replicas = Some(replicas);
        None
    }
}
