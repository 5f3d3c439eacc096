//! The status of a NodeClass: whether the management cluster answers, what takes part, what is left out and which key is to
//! blame. Written when something changed, looked at once a minute.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::ConditionSet;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, patch_status};
use kube::Api;

use super::{
    ClusterAPINodeClass, INSTANCE_TYPES_RESOLVED, MANAGEMENT_CLUSTER_READY, ResourceStatus,
    SCALABLE_RESOURCES_RESOLVED,
};
use crate::instances::fleet::Fleet;
use crate::instances::offers::Offers;

/// How often a NodeClass is looked at.
const PERIOD: Duration = Duration::from_secs(60);
/// After how long without an answer the management cluster counts as away.
const SILENCE: Duration = Duration::from_secs(90);
/// How many resources the status lists; more would not be read.
const MOST_RESOURCES: usize = 100;

/// See the module.
pub struct StatusController {
    fleet: Arc<Fleet>,
    api: Api<ClusterAPINodeClass>,
}

impl StatusController {
    /// For this fleet's NodeClasses.
    pub fn new(fleet: Arc<Fleet>, api: Api<ClusterAPINodeClass>) -> Self {
        Self { fleet, api }
    }

    fn judge(&self, class: &mut ClusterAPINodeClass) {
        let fleet = &self.fleet;
        let offers = fleet.offers(class);
        let resources = resources(fleet, &offers);
        let trouble = self.trouble();
        let mut conditions = ConditionSet::of(class, fleet.clock.now());
        match &trouble {
            None => conditions.set_true(MANAGEMENT_CLUSTER_READY),
            Some(why) => conditions.set_false(MANAGEMENT_CLUSTER_READY, "Unreachable", why),
        };
        if !fleet.is_synced() {
            return;
        }
        if offers.members.is_empty() {
            let scope = fleet.hub.scope();
            let message = format!(
                "no MachineDeployment or MachineSet of Cluster {}/{} carries the label {} and matches spec.scalableResourceSelector",
                scope.namespace,
                scope.cluster,
                crate::names::MEMBER
            );
            conditions.set_false(SCALABLE_RESOURCES_RESOLVED, "NoScalableResources", &message);
            conditions.set_false(INSTANCE_TYPES_RESOLVED, "NoScalableResources", "there is nothing to offer");
        } else {
            conditions.set_true(SCALABLE_RESOURCES_RESOLVED);
            let left_out: Vec<String> = offers.excluded.iter().map(ToString::to_string).collect();
            if offers.catalog.types.is_empty() {
                conditions.set_false(INSTANCE_TYPES_RESOLVED, "MissingCapacity", &left_out.join("; "));
            } else if left_out.is_empty() {
                conditions.set_true(INSTANCE_TYPES_RESOLVED);
            } else {
                // The others work; what is left out is told all the same.
                let message = format!("left out: {}", left_out.join("; "));
                conditions.set_true_with_reason(INSTANCE_TYPES_RESOLVED, "SomeLeftOut", &message);
            }
        }
        class.status.get_or_insert_default().resources = Some(resources);
    }

    fn trouble(&self) -> Option<String> {
        let hub = &self.fleet.hub;
        match hub.silent_for() {
            None => Some(hub.trouble().unwrap_or_else(|| "it has not answered yet".to_owned())),
            Some(silent) if silent > SILENCE => Some(
                hub.trouble().unwrap_or_else(|| format!("it has not answered for {} s", silent.as_secs())),
            ),
            Some(_) => None,
        }
    }

    fn tell(&self, class: &ClusterAPINodeClass) {
        let offers = self.fleet.offers(class);
        for malformed in offers.excluded.iter().chain(&self.fleet.mirror.broken()) {
            let event =
                Event::new(reference(class), EventType::Warning, "ResourceLeftOut", malformed.to_string());
            self.fleet.recorder.publish(event.dedupe_by([malformed.to_string()]));
        }
        for renamed in &offers.catalog.renamed {
            let event =
                Event::new(reference(class), EventType::Warning, "InstanceTypeRenamed", renamed.clone());
            self.fleet.recorder.publish(event.dedupe_by([renamed.clone()]));
        }
    }
}

impl Reconciler for StatusController {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(before) = self.fleet.node_class(&key.name) else { return Ok(Outcome::Done) };
        let mut after = ClusterAPINodeClass::clone(&before);
        self.judge(&mut after);
        self.tell(&before);
        let written = patch_status(&self.api, &*before, &after, Lock::Optimistic).await?;
        Ok(if written.is_conflict() { Outcome::Requeue } else { Outcome::After(PERIOD) })
    }
}

/// What takes part, by name.
fn resources(fleet: &Fleet, offers: &Offers) -> Vec<ResourceStatus> {
    let mut resources = Vec::new();
    for scalable in offers.members.iter().take(MOST_RESOURCES) {
        let name = scalable.id.to_string();
        let excluded = offers.excluded.iter().find(|malformed| malformed.object == name);
        let entry = offers.catalog.entries.iter().find(|entry| entry.id == scalable.id);
        let held = fleet.hold(scalable).map(|hold| format!("{}: {}", hold.reason, hold.message));
        let unavailable = excluded
            .map(ToString::to_string)
            .or_else(|| entry.and_then(|entry| entry.unavailable.clone()))
            .or(held);
        resources.push(ResourceStatus {
            name,
            instance_type: entry.map(|e| offers.catalog.types[e.instance_type].name.to_string()),
            zone: entry.and_then(|entry| entry.zone.clone()),
            price: entry.map(|entry| format!("{:.6}", entry.price.per_hour)),
            price_source: entry.map(|entry| entry.price.source.to_string()),
            replicas: Some(scalable.replicas),
            max_replicas: scalable.bounds().ok().and_then(|(_, max)| max),
            unavailable,
        });
    }
    resources
}
