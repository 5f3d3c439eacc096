//! Jobs and CronJobs.

use serde_json::{Value, json};

use super::batch_rules;
use super::fields::{at, child, default_to, flag, has, inner, items_mut, set, text};
use super::workloads::default_template;
use super::{Lookup, Rules};
use crate::status::ApiError;

pub(super) const JOB: Rules = Rules {
    default: default_job,
    prepare_create: prepare_job,
    validate_create: batch_rules::job,
    validate_update: batch_rules::job_update,
    ..Rules::NONE
};
pub(super) const CRON_JOB: Rules = Rules {
    default: default_cron_job,
    validate_create: batch_rules::cron_job,
    validate_update: |new, _, subresource, errors| {
        if subresource.is_none() {
            batch_rules::cron_job(new, errors);
        }
    },
    ..Rules::NONE
};

fn default_job(job: &mut Value) {
    let labels = at(job, &["spec", "template", "metadata", "labels"]).clone();
    if labels.is_object() {
        default_to(child(job, "metadata"), "labels", labels);
    }
    let spec = child(job, "spec");
    if !has(spec, "completions") && !has(spec, "parallelism") {
        set(spec, "completions", 1);
    }
    default_to(spec, "parallelism", 1);
    let limit = if has(spec, "backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
    default_to(spec, "backoffLimit", limit);
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    let replace = if has(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default_to(spec, "podReplacementPolicy", replace);
    default_to(spec, "manualSelector", false);
    default_failure_policy(spec);
    default_template(spec);
}

fn default_failure_policy(spec: &mut Value) {
    let Some(policy) = inner(spec, "podFailurePolicy") else { return };
    for rule in items_mut(policy, "rules") {
        for pattern in items_mut(rule, "onPodConditions") {
            if text(pattern, "status").is_empty() {
                set(pattern, "status", "True");
            }
        }
    }
}

/// Unless the user brings a selector of their own, a Job selects its pods by its own uid.
fn prepare_job(job: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    if flag(at(job, &["spec"]), "manualSelector") {
        return Ok(());
    }
    let metadata = at(job, &["metadata"]);
    let (uid, name) = (text(metadata, "uid").to_owned(), text(metadata, "name").to_owned());
    // Labels taken over from the template stay the template's: what it gains, the Job gains.
    let given = at(metadata, &["labels"]);
    let shared = given.is_null() || given == at(job, &["spec", "template", "metadata", "labels"]);
    let spec = child(job, "spec");
    let labels = child(child(child(spec, "template"), "metadata"), "labels");
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("job-name", &name),
    ] {
        default_to(labels, key, value.as_str());
    }
    let labels = labels.clone();
    if !has(spec, "selector") {
        set(spec, "selector", json!({}));
    }
    let selector = child(spec, "selector");
    default_to(child(selector, "matchLabels"), "batch.kubernetes.io/controller-uid", uid);
    if shared {
        set(child(job, "metadata"), "labels", labels);
    }
    Ok(())
}

fn default_cron_job(cron: &mut Value) {
    let spec = child(cron, "spec");
    default_to(spec, "concurrencyPolicy", "Allow");
    default_to(spec, "suspend", false);
    default_to(spec, "successfulJobsHistoryLimit", 3);
    default_to(spec, "failedJobsHistoryLimit", 1);
    let job = child(child(spec, "jobTemplate"), "spec");
    default_failure_policy(job);
    default_template(job);
}
