//! Deployments: a ReplicaSet per pod template, the newest brought up while the others are taken down.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{scaled, template_hash};
use crate::actor::{Actor, Agenda, code, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, controller_uid, is_deleting, uid};

const HASH_LABEL: &str = "pod-template-hash";

/// See the module.
pub(crate) struct Deployments {
    cluster: Cluster,
    client: kube::Client,
}

impl Deployments {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }

    fn api(&self, key: &ObjectKey) -> Api<ReplicaSet> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    async fn create_set(
        &self,
        deployment: &Deployment,
        name: &str,
        hash: &str,
        replicas: i32,
    ) -> Result<(), kube::Error> {
        let spec = deployment.spec.clone().unwrap_or_default();
        let mark = |labels: &mut Option<BTreeMap<String, String>>| {
            labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.to_owned());
        };
        let mut template = spec.template;
        mark(&mut template.metadata.get_or_insert_default().labels);
        let mut selector = spec.selector;
        mark(&mut selector.match_labels);
        let set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: deployment.metadata.namespace.clone(),
                labels: template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()),
                owner_references: Some(vec![hands::controlled_by(deployment)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(replicas),
                selector,
                template: Some(template),
                min_ready_seconds: spec.min_ready_seconds,
            }),
            status: None,
        };
        match self.api(&ObjectKey::of(deployment)).create(&PostParams::default(), &set).await {
            Err(error) if matches!(code(&error), 403 | 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    async fn scale(&self, set: &ReplicaSet, replicas: i32) -> Result<(), kube::Error> {
        if replicas_of(set) == replicas {
            return Ok(());
        }
        let key = ObjectKey::of(set);
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        unless_gone(self.api(&key).patch(&key.name, &PatchParams::default(), &patch).await).map(drop)
    }

    async fn write_status(&self, key: &ObjectKey, newest: &str) -> Result<(), kube::Error> {
        let Some((deployment, sets)) = self.cluster.read(|objects| found(key, objects)) else {
            return Ok(());
        };
        let now = self.cluster.now();
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let sum = |of: fn(&ReplicaSet) -> i32| sets.iter().map(|set| of(set)).sum::<i32>();
        let updated = sets.iter().filter(|set| set.metadata.name.as_deref() == Some(newest));
        let available = sum(available_of);
        let mut status = DeploymentStatus {
            replicas: Some(sum(made_of)),
            updated_replicas: Some(updated.map(|set| made_of(set)).sum()),
            ready_replicas: Some(available),
            available_replicas: Some(available),
            unavailable_replicas: Some((wanted - available).max(0)),
            observed_generation: deployment.metadata.generation,
            ..deployment.status.clone().unwrap_or_default()
        };
        let enough = available >= wanted - max_unavailable(&deployment, wanted);
        let conditions = status.conditions.get_or_insert_default();
        set_condition(
            conditions,
            "Available",
            enough,
            if enough { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" },
            now,
        );
        set_condition(
            conditions,
            "Progressing",
            true,
            if available >= wanted { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" },
            now,
        );
        if deployment.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut deployment = Deployment::clone(&deployment);
        deployment.status = Some(status);
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &deployment).await).map(drop)
    }
}

fn set_condition(
    conditions: &mut Vec<DeploymentCondition>,
    kind: &str,
    holds: bool,
    reason: &str,
    now: jiff::Timestamp,
) {
    let value = if holds { "True" } else { "False" };
    let old = conditions.iter().position(|condition| condition.type_ == kind);
    if let Some(at) = old
        && conditions[at].status == value
        && conditions[at].reason.as_deref() == Some(reason)
    {
        return;
    }
    let condition = DeploymentCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        last_transition_time: Some(Time(now)),
        last_update_time: Some(Time(now)),
        ..DeploymentCondition::default()
    };
    match old {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

fn replicas_of(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn made_of(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

fn available_of(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or_default()
}

fn rolling(deployment: &Deployment) -> (IntOrString, IntOrString) {
    let quarter = || IntOrString::String("25%".to_owned());
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    let update = strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
    (update.max_surge.unwrap_or_else(quarter), update.max_unavailable.unwrap_or_else(quarter))
}

/// How many pods may be missing during an update; one if otherwise neither more nor fewer were allowed.
fn max_unavailable(deployment: &Deployment, wanted: i32) -> i32 {
    let (surge, unavailable) = rolling(deployment);
    let unavailable = scaled(&unavailable, wanted, false);
    if unavailable == 0 && scaled(&surge, wanted, true) == 0 { 1 } else { unavailable.min(wanted) }
}

fn found(key: &ObjectKey, objects: &Objects) -> Option<(Arc<Deployment>, Vec<Arc<ReplicaSet>>)> {
    let deployment = objects.deployments.get(key).filter(|deployment| !is_deleting(&***deployment))?;
    let owned = |set: &&Arc<ReplicaSet>| controller_uid(&***set) == Some(uid(&**deployment));
    let sets = objects.replica_sets.values().filter(owned).cloned().collect();
    Some((Arc::clone(deployment), sets))
}

impl Actor for Deployments {
    type Key = ObjectKey;
    const NAME: &'static str = "deployment-controller";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::Deployment(edit) if edit.new.is_some() => agenda.now(edit.key.clone()),
            Change::ReplicaSet(edit) => {
                let owners =
                    edit.either().and_then(|set| set.metadata.owner_references.clone()).unwrap_or_default();
                for owner in owners.iter().filter(|owner| owner.kind == "Deployment") {
                    agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), owner.name.as_str()));
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, _: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let Some((deployment, sets)) = self.cluster.read(|objects| found(key, objects)) else {
            return Ok(());
        };
        let Some(spec) = &deployment.spec else { return Ok(()) };
        let wanted = spec.replicas.unwrap_or(1);
        let hash = template_hash(&spec.template);
        let name = format!("{}-{hash}", key.name);
        let (newest, old): (Vec<_>, Vec<_>) =
            sets.into_iter().partition(|set| set.metadata.name.as_deref() == Some(&name));
        let recreate = spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate");
        let old_total: i32 = old.iter().map(|set| replicas_of(set)).sum();
        let surge = scaled(&rolling(&deployment).0, wanted, true);
        let room = if recreate {
            // Nothing new before everything old has gone.
            if old.iter().all(|set| made_of(set) == 0) { wanted } else { 0 }
        } else {
            (wanted + surge - old_total).clamp(0, wanted)
        };
        match newest.first() {
            None => self.create_set(&deployment, &name, &hash, room).await?,
            // An update only brings the newest up; scaling also takes it down.
            Some(set) => {
                self.scale(
                    set,
                    if room < replicas_of(set) && wanted >= replicas_of(set) {
                        replicas_of(set)
                    } else {
                        room
                    },
                )
                .await?
            }
        }
        let available: i32 = old.iter().chain(&newest).map(|set| available_of(set)).sum();
        let mut spare = if recreate {
            old_total
        } else {
            (available - (wanted - max_unavailable(&deployment, wanted))).max(0)
        };
        for set in &old {
            // Pods that are not up are nobody's loss.
            let idle = (replicas_of(set) - available_of(set)).max(0);
            let less = (idle + spare).min(replicas_of(set));
            spare -= (less - idle).max(0);
            self.scale(set, replicas_of(set) - less).await?;
        }
        self.write_status(key, &name).await
    }
}
