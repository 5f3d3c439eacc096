//! Promises of nodes to pods: a node that pods are to move to is not disrupted for a while, and the pods are told where to go.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_engine::NodePlacement;
use karpenter_engine::pod::Pod;
use karpenter_runtime::events::{Event, EventLimiter, EventType};
use karpenter_runtime::object_key::ObjectKey;

use crate::context::Context;

/// A nomination lasts at least this long.
const LEAST: Duration = Duration::from_secs(10);

/// Makes promises; clones share the rate at which they are told.
#[derive(Clone)]
pub(crate) struct Nominations {
    context: Context,
    limiter: EventLimiter,
}

impl Nominations {
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone(), limiter: EventLimiter::new(5.0, 10) }
    }

    /// Promises nodes that exist. Room kept for pods to come is no promise.
    pub(crate) fn promise<'a>(&self, placements: impl IntoIterator<Item = &'a NodePlacement>) {
        let lasts = (2 * self.context.options.batch_max_duration).max(LEAST);
        for placement in placements {
            let mut pods =
                placement.pods.iter().map(|placed| &placed.pod).filter(|pod| pod.buffer.is_none()).peekable();
            if pods.peek().is_none() {
                continue;
            }
            let names = self.context.cluster.update(|cluster| {
                cluster.nominate(&placement.node, lasts);
                let machine = cluster.machine_named(&placement.node)?;
                let claim = machine.claim.as_ref().map(|claim| format!("nodeclaim/{}", claim.name));
                let node = machine.node.as_ref().map(|node| format!("node/{}", node.name));
                Some(claim.into_iter().chain(node).collect::<Vec<_>>().join(", "))
            });
            let Some(names) = names else { continue };
            pods.for_each(|pod| self.tell(pod, &names));
        }
    }

    /// Tells a pod where it is to go.
    pub(super) fn tell(&self, pod: &Pod, on: &str) {
        let message = format!("Pod should schedule on: {on}");
        let event = Event::new(about(&self.context, pod), EventType::Normal, "Nominated", message);
        self.context.recorder.publish(event.dedupe_by([pod.uid.to_string()]).limited_by(&self.limiter));
    }
}

/// What an event about a pod says it is about.
pub(super) fn about(context: &Context, pod: &Pod) -> ObjectReference {
    match context.stores.pods.get(&ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone())) {
        Some(pod) => pod.reference(),
        None => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.to_string()),
            namespace: Some(pod.namespace.to_string()),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        },
    }
}
