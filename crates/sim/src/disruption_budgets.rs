//! The status of PodDisruptionBudgets: how many pods are well, how many must be, how many may go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::objects::{Change, Objects, is_deleting, is_ready, uid};
use crate::selection::selects;
use crate::workloads::{count, scaled};

/// How long an eviction may take until its pod counts again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);

/// See the module.
pub(crate) struct DisruptionBudgets {
    cluster: Cluster,
    client: kube::Client,
}

impl DisruptionBudgets {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }
}

/// How many pods there should be in all and how many of them must be well; an error if a controller has no scale.
fn expected(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    objects: &Objects,
) -> Result<(i32, i32), String> {
    let spec = budget.spec.clone().unwrap_or_default();
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(unavailable), _) => {
            let total = expected_scale(pods, objects)?;
            Ok((total, (total - scaled(unavailable, total, true)).max(0)))
        }
        (None, Some(IntOrString::Int(number))) => Ok((count(pods.len()), *number)),
        (None, Some(percent)) => {
            let total = expected_scale(pods, objects)?;
            Ok((total, scaled(percent, total, true)))
        }
        (None, None) => Ok((count(pods.len()), 0)),
    }
}

/// The replicas all controllers of these pods are set to. Pods without one are left out.
fn expected_scale(pods: &[Arc<Pod>], objects: &Objects) -> Result<i32, String> {
    let mut seen = BTreeSet::new();
    let mut total = 0;
    for pod in pods {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let Some(owner) = owners.iter().find(|owner| owner.controller == Some(true)) else { continue };
        if !seen.insert(owner.uid.clone()) {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::namespaced(namespace, owner.name.as_str());
        let replicas = match owner.kind.as_str() {
            "ReplicaSet" => objects.replica_sets.get(&key).map(|set| {
                let owners = set.metadata.owner_references.as_deref().unwrap_or_default();
                let deployment = owners.iter().find(|owner| owner.kind == "Deployment").and_then(|owner| {
                    if !seen.insert(owner.uid.clone()) {
                        // Counted by another ReplicaSet of the same Deployment.
                        return Some(0);
                    }
                    let key = ObjectKey::namespaced(namespace, owner.name.as_str());
                    Some(objects.deployments.get(&key)?.spec.as_ref()?.replicas.unwrap_or(1))
                });
                deployment.unwrap_or_else(|| set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1))
            }),
            "StatefulSet" => objects
                .stateful_sets
                .get(&key)
                .map(|set| set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)),
            kind => return Err(format!("{} does not implement the scale subresource", kind.to_lowercase())),
        };
        total += replicas.unwrap_or_default();
    }
    Ok(total)
}

/// Evictions under way: pods that are still there and not deleting yet.
fn disrupted(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], now: Timestamp) -> BTreeMap<String, Time> {
    let noted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    let still = |name: &String, time: &Time| {
        let waiting = pods.iter().any(|pod| pod.metadata.name.as_ref() == Some(name) && !is_deleting(&**pod));
        waiting && now.duration_since(time.0) <= DELETION_TIMEOUT
    };
    let all = noted.into_iter().flatten().filter(|(name, time)| still(name, time));
    all.map(|(name, time)| (name.clone(), time.clone())).collect()
}

fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    objects: &Objects,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let old = budget.status.clone().unwrap_or_default();
    let disrupted = disrupted(budget, pods, now);
    let is_healthy = |pod: &&Arc<Pod>| {
        let leaving = pod.metadata.name.as_ref().is_some_and(|name| disrupted.contains_key(name));
        is_ready(pod) && !is_deleting(&***pod) && !leaving
    };
    let (mut new, sync_error) = match expected(budget, pods, objects) {
        Ok((total, desired)) => {
            let healthy = count(pods.iter().filter(is_healthy).count());
            let allowed = if total <= 0 { 0 } else { (healthy - desired).max(0) };
            let new = PodDisruptionBudgetStatus {
                current_healthy: Some(healthy),
                desired_healthy: Some(desired),
                expected_pods: Some(total),
                disruptions_allowed: Some(allowed),
                disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
                observed_generation: budget.metadata.generation,
                conditions: old.conditions.clone(),
            };
            (new, None)
        }
        // Better nothing may go than too much.
        Err(why) => {
            let generation = budget.metadata.generation;
            let new = PodDisruptionBudgetStatus {
                disruptions_allowed: Some(0),
                observed_generation: generation,
                ..old.clone()
            };
            (new, Some(why))
        }
    };
    let (value, reason) = match (&sync_error, new.disruptions_allowed) {
        (Some(_), _) => ("False", "SyncFailed"),
        (None, Some(0) | None) => ("False", "InsufficientPods"),
        _ => ("True", "SufficientPods"),
    };
    let conditions = new.conditions.get_or_insert_default();
    let at = conditions.iter().position(|condition| condition.type_ == "DisruptionAllowed");
    let kept = at.map(|at| &conditions[at]).filter(|condition| condition.status == value);
    let condition = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: sync_error.unwrap_or_default(),
        observed_generation: budget.metadata.generation,
        last_transition_time: kept.map_or(Time(now), |condition| condition.last_transition_time.clone()),
    };
    match at {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    new
}

impl Actor for DisruptionBudgets {
    type Key = ObjectKey;
    const NAME: &'static str = "disruption-controller";

    fn observe(&mut self, change: &Change, objects: &Objects, agenda: &mut Agenda<ObjectKey>) {
        let namespace = match change {
            Change::PodDisruptionBudget(edit) if edit.new.is_some() => return agenda.now(edit.key.clone()),
            Change::Pod(edit) => {
                let labels = |pod: &Arc<Pod>| pod.metadata.labels.clone().unwrap_or_default();
                let (old, new) = (edit.old.as_ref().map(labels), edit.new.as_ref().map(labels));
                for (key, budget) in &objects.disruption_budgets {
                    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                    let concerns =
                        |labels: &Option<_>| labels.as_ref().is_some_and(|labels| selects(selector, labels));
                    if key.namespace == edit.key.namespace && (concerns(&old) || concerns(&new)) {
                        agenda.now(key.clone());
                    }
                }
                return;
            }
            Change::Deployment(edit) => &edit.key.namespace,
            Change::ReplicaSet(edit) => &edit.key.namespace,
            Change::StatefulSet(edit) => &edit.key.namespace,
            _ => return,
        };
        for key in objects.disruption_budgets.keys().filter(|key| key.namespace == *namespace) {
            agenda.now(key.clone());
        }
    }

    async fn act(&mut self, key: &ObjectKey, agenda: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let now = self.cluster.now();
        let found = self.cluster.read(|objects| {
            let budget = objects.disruption_budgets.get(key)?;
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let covered = |pod: &&Arc<Pod>| {
                pod.metadata.namespace.as_deref() == Some(&*key.namespace)
                    && selects(selector, pod.metadata.labels.as_ref().unwrap_or(&BTreeMap::new()))
            };
            let pods: Vec<_> = objects.pods.values().filter(covered).cloned().collect();
            Some((Arc::clone(budget), status(budget, &pods, objects, now)))
        });
        let Some((budget, status)) = found else { return Ok(()) };
        if status.disrupted_pods.is_some() {
            agenda.after(key.clone(), Duration::from_secs(121));
        }
        if budget.status.as_ref() == Some(&status) {
            return Ok(());
        }
        tracing::trace!(budget = %key, uid = uid(&*budget), allowed = status.disruptions_allowed, "counted");
        let mut budget = PodDisruptionBudget::clone(&budget);
        budget.status = Some(status);
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &budget).await).map(drop)
    }
}
