//! Jobs: pods that run to an end, until enough have succeeded or too many have failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_runtime::object_key::ObjectKey;
use kube::Api;
use kube::api::PostParams;

use super::count;
use crate::actor::{Actor, Agenda, unless_gone};
use crate::cluster::Cluster;
use crate::hands;
use crate::objects::{Change, Objects, is_active, is_deleting, is_ready, phase, uid};

/// What became of a job's pods, which may be gone by the time it is counted.
#[derive(Default)]
struct Tally {
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// See the module. It remembers how pods ended, where the real controller holds them with a finalizer until it has counted.
pub(crate) struct Jobs {
    cluster: Cluster,
    client: kube::Client,
    /// By the uid of the job.
    tallies: BTreeMap<String, Tally>,
}

impl Jobs {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), client: cluster.client(Self::NAME), tallies: BTreeMap::new() }
    }

    fn note(&mut self, pod: &Pod, gone: bool) {
        let owner = crate::objects::controller_uid(pod).unwrap_or_default().to_owned();
        let tally = self.tallies.entry(owner).or_default();
        let pod_uid = uid(pod).to_owned();
        match phase(pod) {
            "Succeeded" => drop(tally.succeeded.insert(pod_uid)),
            "Failed" => drop(tally.failed.insert(pod_uid)),
            // A pod that was taken away before its end counts as failed.
            _ if gone => drop(tally.failed.insert(pod_uid)),
            _ => {}
        }
    }
}

fn is_over(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

impl Actor for Jobs {
    type Key = ObjectKey;
    const NAME: &'static str = "job-controller";

    fn observe(&mut self, change: &Change, _: &Objects, agenda: &mut Agenda<ObjectKey>) {
        match change {
            Change::Job(edit) => match &edit.new {
                Some(_) => agenda.now(edit.key.clone()),
                None => {
                    if let Some(job) = &edit.old {
                        self.tallies.remove(uid(&**job));
                    }
                }
            },
            Change::Pod(edit) => {
                let Some(pod) = edit.either() else { return };
                let owners = pod.metadata.owner_references.clone().unwrap_or_default();
                for owner in owners.iter().filter(|owner| owner.kind == "Job") {
                    self.note(pod, edit.new.is_none());
                    agenda.now(ObjectKey::namespaced(edit.key.namespace.clone(), owner.name.as_str()));
                }
            }
            _ => {}
        }
    }

    async fn act(&mut self, key: &ObjectKey, _: &mut Agenda<ObjectKey>) -> Result<(), kube::Error> {
        let found = self.cluster.read(|objects| {
            let job = objects.jobs.get(key).filter(|job| !is_deleting(&***job) && !is_over(job))?;
            let active: Vec<_> = objects.pods_of(uid(&**job)).filter(|pod| is_active(pod)).cloned().collect();
            Some((Arc::clone(job), active))
        });
        let Some((job, active)) = found else { return Ok(()) };
        let Some(spec) = &job.spec else { return Ok(()) };
        let tally = self.tallies.entry(uid(&*job).to_owned()).or_default();
        let (succeeded, failed) = (count(tally.succeeded.len()), count(tally.failed.len()));
        let completions = spec.completions.unwrap_or(1);
        let complete = succeeded >= completions;
        let given_up = !complete && failed > spec.backoff_limit.unwrap_or(6);
        let suspended = spec.suspend.unwrap_or_default();
        let parallelism = if suspended { 0 } else { spec.parallelism.unwrap_or(1) };
        let wanted = if complete || given_up { 0 } else { parallelism.min(completions - succeeded) };
        let wanted = usize::try_from(wanted).unwrap_or_default();
        for _ in active.len()..wanted {
            let mut pod = hands::from_template(&spec.template, &*job);
            let labels = pod.metadata.labels.get_or_insert_default();
            labels.insert("batch.kubernetes.io/job-name".to_owned(), key.name.to_string());
            labels.insert("batch.kubernetes.io/controller-uid".to_owned(), uid(&*job).to_owned());
            hands::create_pod(&self.client, &pod).await?;
        }
        for pod in active.iter().skip(wanted) {
            hands::delete_pod(&self.client, pod, None).await?;
        }
        let now = Time(self.cluster.now());
        let running: Vec<Arc<Pod>> = self
            .cluster
            .read(|objects| objects.pods_of(uid(&*job)).filter(|pod| is_active(pod)).cloned().collect());
        let mut status = JobStatus {
            active: Some(count(running.len())).filter(|number| *number > 0),
            ready: Some(count(running.iter().filter(|pod| is_ready(pod)).count())),
            succeeded: Some(succeeded).filter(|number| *number > 0),
            failed: Some(failed).filter(|number| *number > 0),
            ..job.status.clone().unwrap_or_default()
        };
        status.start_time.get_or_insert(now.clone());
        if complete || given_up {
            let kind = if complete { "Complete" } else { "Failed" };
            let reason = if complete { "CompletionsReached" } else { "BackoffLimitExceeded" };
            status.completion_time = complete.then(|| now.clone());
            // The server wants the end announced by the condition that leads to it.
            let announced = if complete { "SuccessCriteriaMet" } else { "FailureTarget" };
            for kind in [announced, kind] {
                status.conditions.get_or_insert_default().push(JobCondition {
                    type_: kind.to_owned(),
                    status: "True".to_owned(),
                    reason: Some(reason.to_owned()),
                    last_transition_time: Some(now.clone()),
                    last_probe_time: Some(now.clone()),
                    ..JobCondition::default()
                });
            }
        }
        // Read again: the pods made above may have changed nothing here, but the owner may have been written.
        let Some(fresh) = self.cluster.read(|objects| objects.jobs.get(key).cloned()) else { return Ok(()) };
        if fresh.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut job = Job::clone(&fresh);
        job.status = Some(status);
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        unless_gone(api.replace_status(&key.name, &PostParams::default(), &job).await).map(drop)
    }
}
