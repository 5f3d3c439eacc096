//! The status of a NodeClass: written when something changed, looked at once a minute; what is wrong is told by events as well. What
//! its conditions say is worked out in [`conditions`](super::conditions).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::HasConditions as _;
use karpenter_api::{ConditionStatus, NodePool};
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, patch_status};
use kube::Api;
use tokio::time::Instant;

use super::conditions::{Reach, SHARED, judge};
use super::permissions::Permissions;
use super::{
    ClusterAPINodeClass, Drift, KUBELET_AS_DECLARED, LaunchMode, MANAGEMENT_CLUSTER_READY, PERMISSIONS_READY,
    Remediation, SCALABLE_RESOURCES_RESOLVED, TAINTS_DECLARED,
};
use crate::client::scalable::{Scalable, ScalableKind};
use crate::instances::fleet::Fleet;
use crate::instances::holds::HoldKind;
use crate::instances::offers::launch_hold;

/// How often a NodeClass is looked at.
const PERIOD: Duration = Duration::from_secs(60);
/// How long it is at least between two writes of a NodeClass: another one that believes it leads may see things differently.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);
/// After how long without an answer the management cluster counts as away.
const SILENCE: Duration = Duration::from_secs(90);
/// Conditions of which an event tells when they do not hold. What is left out of instance types is told by itself.
const WRONG_IF_FALSE: [&str; 5] = [
    MANAGEMENT_CLUSTER_READY,
    PERMISSIONS_READY,
    SCALABLE_RESOURCES_RESOLVED,
    TAINTS_DECLARED,
    KUBELET_AS_DECLARED,
];
/// Reasons of which an event tells although their condition holds.
const WRONG_IN_ANY_CASE: [&str; 3] = ["NewCredentialsNotUsed", "SomeForbidden", SHARED];

pub(crate) struct StatusController {
    fleet: Arc<Fleet>,
    api: Api<ClusterAPINodeClass>,
    started: Instant,
    permissions: Permissions,
    /// When each NodeClass was last written.
    written: Mutex<BTreeMap<String, Instant>>,
}

impl StatusController {
    /// For this fleet's NodeClasses.
    pub(crate) fn new(fleet: Arc<Fleet>, api: Api<ClusterAPINodeClass>) -> Self {
        let permissions = Permissions::default();
        Self { fleet, api, started: Instant::now(), permissions, written: Mutex::default() }
    }

    /// What nodes of a NodeClass cost, as it offers them now.
    fn count_prices(&self, class: &ClusterAPINodeClass) {
        let price = &self.fleet.metrics.price;
        price.delete_matching(&[("node_class", class.name())]);
        for entry in &self.fleet.offers(class).catalog.entries {
            let (resource, source) = (entry.id.to_string(), entry.price.source.to_string());
            let zone = entry.zone.as_deref().unwrap_or_default();
            price.set(&[class.name(), &resource, zone, &source], entry.price.per_hour);
        }
    }

    fn reach(&self) -> Reach {
        let hub = &self.fleet.hub;
        match hub.silent_for() {
            None => match hub.trouble() {
                Some(trouble) => Reach::Away(trouble),
                // Who has only just come knows nothing.
                None if self.started.elapsed() < SILENCE => Reach::Unknown,
                None => Reach::Away("it has not answered yet".to_owned()),
            },
            Some(silent) if silent > SILENCE => Reach::Away(
                hub.trouble().unwrap_or_else(|| format!("it has not answered for {} s", silent.as_secs())),
            ),
            Some(_) => Reach::There,
        }
    }

    fn tell(&self, class: &ClusterAPINodeClass) {
        let offers = self.fleet.offers(class);
        for malformed in offers.excluded.iter().chain(&self.fleet.mirror.broken()) {
            let event =
                Event::new(reference(class), EventType::Warning, "ResourceLeftOut", malformed.to_string());
            self.fleet.recorder.publish(event.dedupe_by([malformed.to_string()]));
        }
        let spec = class.spec();
        let by_karpenter = spec.drift == Some(Drift::Karpenter)
            && spec.launch_mode.unwrap_or_default() == LaunchMode::MachineDeployment;
        let rolls = |member: &&Arc<Scalable>| {
            by_karpenter && member.id.kind == ScalableKind::MachineDeployment && !member.on_delete
        };
        for member in offers.members.iter().filter(rolls) {
            let message = format!(
                "{}: with drift: Karpenter its strategy should be OnDelete; Cluster API replaces its nodes as well",
                member.id
            );
            let event = Event::new(reference(class), EventType::Warning, "RolloutStrategy", message);
            self.fleet.recorder.publish(event.dedupe_by([member.id.to_string()]));
        }
        let mode = spec.launch_mode.unwrap_or_default();
        let paused = class.launches_while_rollout_paused();
        for member in &offers.members {
            let hold = launch_hold(&self.fleet.mirror, member, mode, paused);
            // What Cluster API holds up by itself, and what somebody holds up for a moment, NodeClaims tell that wait for it.
            let Some(hold) = hold.filter(|hold| matches!(hold.kind, HoldKind::NotOurs | HoldKind::NoWrites))
            else {
                continue;
            };
            let event = Event::new(reference(class), EventType::Warning, hold.reason, hold.message.clone());
            self.fleet.recorder.publish(event.dedupe_by([hold.message]));
        }
        let repairs = spec.remediation == Some(Remediation::NodeRepair)
            || spec.repair_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty());
        if repairs && !self.fleet.settings.node_repair {
            let message = "remediation: NodeRepair and repairConditions take the feature gate NodeRepair, which is off: nothing comes of them";
            let event = Event::new(reference(class), EventType::Warning, "NodeRepairOff", message.to_owned());
            self.fleet.recorder.publish(event.dedupe_by([class.name().to_owned()]));
        }
        let control_plane = self.fleet.mirror.control_plane();
        if let Some(Err(trouble)) = control_plane.as_deref().filter(|_| class.makes_machines()) {
            let message = format!("versions cannot be compared before Machines are made: {trouble}");
            let event = Event::new(reference(class), EventType::Warning, "ControlPlaneUnknown", message);
            self.fleet.recorder.publish(event.dedupe_by([trouble.clone()]));
        }
        for ignored in &offers.ignored {
            let what = ignored.what.to_string();
            let event = Event::new(reference(class), EventType::Warning, ignored.reason, what.clone());
            self.fleet.recorder.publish(event.dedupe_by([what]));
        }
        for renamed in &offers.catalog.renamed {
            let event =
                Event::new(reference(class), EventType::Warning, "InstanceTypeRenamed", renamed.clone());
            self.fleet.recorder.publish(event.dedupe_by([renamed.clone()]));
        }
    }

    /// Tells by events, too, what conditions say is wrong. What is told in parts elsewhere is not told again.
    fn tell_of_conditions(&self, class: &ClusterAPINodeClass) {
        for condition in class.conditions() {
            let is_false =
                condition.status == ConditionStatus::False && WRONG_IF_FALSE.contains(&&*condition.type_);
            if is_false || WRONG_IN_ANY_CASE.contains(&condition.reason()) {
                let (reason, message) = (condition.reason().to_owned(), condition.message().to_owned());
                let event = Event::new(reference(class), EventType::Warning, reason, message);
                // What is said may count seconds: that is no other event.
                self.fleet.recorder.publish(event.dedupe_by([class.name().to_owned()]));
            }
        }
    }

    /// The NodePools, where it matters what they declare. `None` if they cannot be had just now.
    async fn node_pools(&self, class: &ClusterAPINodeClass) -> Option<Vec<NodePool>> {
        if self.fleet.offers(class).blueprints.iter().all(|blueprint| blueprint.taints.is_empty()) {
            return Some(Vec::new());
        }
        self.fleet.node_claims.node_pools().await.ok()
    }
}

impl Reconciler for StatusController {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(before) = self.fleet.node_class(&key.name) else {
            self.fleet.metrics.price.delete_matching(&[("node_class", &key.name)]);
            return Ok(Outcome::Done);
        };
        self.count_prices(&before);
        let missing = self.permissions.missing(&self.fleet, &before).await;
        let Some(pools) = self.node_pools(&before).await else { return Ok(Outcome::After(BETWEEN_WRITES)) };
        let mut after = ClusterAPINodeClass::clone(&before);
        judge(&self.fleet, &before, (self.reach(), missing), &pools, &mut after);
        self.tell(&before);
        self.tell_of_conditions(&after);
        if after == *before {
            return Ok(Outcome::After(PERIOD));
        }
        let now = Instant::now();
        {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            let since = written.get(before.name()).map(|at| now.saturating_duration_since(*at));
            if let Some(rest) =
                since.and_then(|since| BETWEEN_WRITES.checked_sub(since)).filter(|r| !r.is_zero())
            {
                return Ok(Outcome::After(rest));
            }
            written.insert(before.name().to_owned(), now);
        }
        let written = patch_status(&self.api, &*before, &after, Lock::Optimistic).await?;
        Ok(if written.is_conflict() { Outcome::After(BETWEEN_WRITES) } else { Outcome::After(PERIOD) })
    }
}
