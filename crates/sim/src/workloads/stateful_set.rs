//! StatefulSets: pods with names and claims of their own, one after the other unless told otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use super::{count, template_hash};
use crate::actor::{Actor, Agenda, code, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_deleting, is_finished, is_ready, uid};

const REVISION: &str = "controller-revision-hash";

/// See the module.
pub(crate) struct StatefulSets {
    cluster: Cluster,
    client: kube::Client,
}

impl StatefulSets {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME) }
    }

    /// Makes one pod of the set, and its claims before it.
    async fn create(
        &self,
        set: &StatefulSet,
        spec: &StatefulSetSpec,
        ordinal: i32,
        revision: &str,
    ) -> Result<(), kube::Error> {
        let set_name = set.metadata.name.as_deref().unwrap_or_default();
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let name = format!("{set_name}-{ordinal}");
        let mut pod = hands::from_template(&spec.template, set);
        pod.metadata.generate_name = None;
        pod.metadata.name = Some(name.clone());
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), name.clone());
        labels.insert("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string());
        labels.insert(REVISION.to_owned(), format!("{set_name}-{revision}"));
        let pod_spec = pod.spec.get_or_insert_default();
        pod_spec.hostname = Some(name.clone());
        for template in spec.volume_claim_templates.iter().flatten() {
            let volume = template.metadata.name.clone().unwrap_or_default();
            let mut claim: PersistentVolumeClaim = template.clone();
            let claim_name = format!("{volume}-{name}");
            claim.metadata.name = Some(claim_name.clone());
            claim.metadata.namespace = Some(namespace.to_owned());
            claim.metadata.labels = spec.selector.match_labels.clone();
            claim.status = None;
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
            match claims.create(&PostParams::default(), &claim).await {
                Err(error) if matches!(code(&error), 403 | 404 | 409) => {}
                other => drop(other?),
            }
            let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
            let volumes = pod_spec.volumes.get_or_insert_default();
            volumes.retain(|other| other.name != volume);
            volumes.push(Volume { name: volume, persistent_volume_claim: Some(source), ..Volume::default() });
        }
        hands::create_pod(&self.client, &pod).await
    }

    async fn write_status(&self, key: &ObjectKey, revision: &str) -> Result<(), kube::Error> {
        let Some((set, pods)) = self.cluster.read(|objects| found(key, objects)) else { return Ok(()) };
        let ready = count(pods.values().filter(|pod| is_ready(pod) && !is_deleting(&***pod)).count());
        let revision = format!("{}-{revision}", key.name);
        let status = StatefulSetStatus {
            replicas: count(pods.len()),
            ready_replicas: Some(ready),
            available_replicas: Some(ready),
            current_replicas: Some(count(pods.len())),
            updated_replicas: Some(count(
                pods.values().filter(|pod| revision_of(pod) == Some(&revision)).count(),
            )),
            current_revision: Some(revision.clone()),
            update_revision: Some(revision.clone()),
            observed_generation: set.metadata.generation,
            ..set.status.clone().unwrap_or_default()
        };
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut set = StatefulSet::clone(&set);
        set.status = Some(status);
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &set).await).map(drop)
    }
}

fn revision_of(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(REVISION)
}

fn ordinal(pod: &Pod) -> Option<i32> {
    pod.metadata.name.as_deref()?.rsplit_once('-')?.1.parse().ok()
}

/// Pods by their number.
type Pods = BTreeMap<i32, Arc<Pod>>;

/// The set with its pods.
fn found(key: &ObjectKey, objects: &Objects) -> Option<(Arc<StatefulSet>, Pods)> {
    let set = objects.stateful_sets.get(key).filter(|set| !is_deleting(&***set))?;
    let pods =
        objects.pods_of(uid(&**set)).filter_map(|pod| Some((ordinal(pod)?, Arc::clone(pod)))).collect();
    Some((Arc::clone(set), pods))
}

impl Actor for StatefulSets {
    type Key = ObjectKey;
    const NAME: &'static str = "statefulset-controller";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::StatefulSet(edit) if edit.new.is_some() => agenda.now(edit.key.clone()),
            Change::Pod(edit) => {
                let owners =
                    edit.either().and_then(|pod| pod.metadata.owner_references.clone()).unwrap_or_default();
                for owner in owners.iter().filter(|owner| owner.kind == "StatefulSet") {
                    agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), owner.name.as_str()));
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, _: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let Some((set, pods)) = self.cluster.read(|objects| found(key, objects)) else { return Ok(()) };
        let Some(spec) = &set.spec else { return Ok(()) };
        let revision = template_hash(&spec.template);
        let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
        let wanted = spec.replicas.unwrap_or(1);
        let mut waits = false;
        for number in 0..wanted {
            match pods.get(&number) {
                None => {
                    self.create(&set, spec, number, &revision).await?;
                    waits = true;
                }
                Some(pod) if is_finished(pod) && !is_deleting(&**pod) => {
                    hands::delete_pod(&self.client, pod, None).await?;
                    waits = true;
                }
                Some(pod) => waits = is_deleting(&**pod) || !is_ready(pod),
            }
            if waits && !parallel {
                break;
            }
        }
        let mut surplus = pods.iter().rev().filter(|(number, _)| **number >= wanted).map(|(_, pod)| pod);
        if parallel {
            for pod in surplus.filter(|pod| !is_deleting(&***pod)) {
                hands::delete_pod(&self.client, pod, None).await?;
            }
        } else if !waits && let Some(pod) = surplus.next().filter(|pod| !is_deleting(&***pod)) {
            hands::delete_pod(&self.client, pod, None).await?;
        }
        let current = format!("{}-{revision}", key.name);
        let on_delete = spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("OnDelete");
        let all_well = pods.values().all(|pod| is_ready(pod) && !is_deleting(&**pod));
        let outdated = pods.values().rev().find(|pod| revision_of(pod) != Some(&current));
        if let Some(pod) = outdated.filter(|_| all_well && !waits && !on_delete) {
            hands::delete_pod(&self.client, pod, None).await?;
        }
        self.write_status(key, &revision).await
    }
}
