//! What Jobs and CronJobs must satisfy.

use serde_json::{Value, json};

use super::checks::{
    Errors, IMMUTABLE, immutable, invalid, is_empty_selector, label_selector, non_negative, required,
    selector_matches, unsupported,
};
use super::cron;
use super::fields::{at, flag, has, int, text};
use super::path::At;
use super::workload_rules::template;

const SPEC: At<'static> = At::Top("spec");

pub(super) fn job(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    let selector = at(spec, &["selector"]);
    if !flag(spec, "manualSelector") {
        let uid = text(at(object, &["metadata"]), "uid");
        if *selector != json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}) {
            invalid(errors, SPEC.field("selector"), selector.clone(), "`selector` not auto-generated");
        }
    }
    spec_and_selector(spec, errors);
}

fn spec_and_selector(spec: &Value, errors: &mut Errors) {
    job_spec(errors, SPEC, spec);
    let selector = at(spec, &["selector"]);
    if selector.is_null() {
        required(errors, SPEC.field("selector"), "");
        return;
    }
    label_selector(errors, SPEC.field("selector"), selector);
    let labels = at(spec, &["template", "metadata", "labels"]);
    if !is_empty_selector(selector) && !selector_matches(selector, labels) {
        let template_at = SPEC.field("template");
        let metadata_at = template_at.field("metadata");
        invalid(
            errors,
            metadata_at.field("labels"),
            labels.clone(),
            "`selector` does not match template `labels`",
        );
    }
}

/// A Job's spec without its selector, also within a CronJob.
fn job_spec(errors: &mut Errors, spec_at: At<'_>, spec: &Value) {
    for key in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        non_negative(errors, spec_at.field(key), int(spec, key));
    }
    let mode = text(spec, "completionMode");
    match mode {
        "Indexed" => {
            if !has(spec, "completions") {
                required(errors, spec_at.field("completions"), "when completion mode is Indexed");
            }
        }
        "NonIndexed" | "" => {}
        other => unsupported(errors, spec_at.field("completionMode"), other, &["NonIndexed", "Indexed"]),
    }
    let template_at = spec_at.field("template");
    template(errors, template_at, at(spec, &["template"]));
    let pod_at = template_at.field("spec");
    let policy = text(at(spec, &["template", "spec"]), "restartPolicy");
    if policy == "Always" {
        required(errors, pod_at.field("restartPolicy"), "valid values: \"OnFailure\", \"Never\"");
    } else if has(spec, "podFailurePolicy") && policy == "OnFailure" {
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        invalid(errors, pod_at.field("restartPolicy"), policy, detail);
    }
}

pub(super) fn job_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    if subresource == Some("status") {
        let status = at(new, &["status"]);
        for key in ["active", "succeeded", "failed", "ready", "terminating"] {
            non_negative(errors, At::Top("status").field(key), int(status, key));
        }
        return;
    }
    job(new, errors);
    // The update checks the spec once more, so that a fault is told twice.
    spec_and_selector(spec, errors);
    // An indexed Job may grow and shrink as a whole.
    let elastic =
        text(spec, "completionMode") == "Indexed" && at(spec, &["completions"]) == at(spec, &["parallelism"]);
    if !elastic {
        immutable(
            errors,
            SPEC.field("completions"),
            at(spec, &["completions"]),
            at(before, &["completions"]),
        );
    }
    immutable(errors, SPEC.field("selector"), at(spec, &["selector"]), at(before, &["selector"]));
    let (template, old_template) = (at(spec, &["template"]), at(before, &["template"]));
    if template != old_template && !only_scheduling_differs(old, template, old_template) {
        // kube-apiserver prints its own type here.
        invalid(errors, SPEC.field("template"), json!({"Spec": at(template, &["spec"])}), IMMUTABLE);
    }
    for key in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy", "managedBy"] {
        immutable(errors, SPEC.field(key), at(spec, &[key]), at(before, &[key]));
    }
}

/// Until a suspended Job has started, where its pods may run can still be decided.
fn only_scheduling_differs(old: &Value, template: &Value, old_template: &Value) -> bool {
    let suspended = flag(at(old, &["spec"]), "suspend") && !has(at(old, &["status"]), "startTime");
    let fixed = |template: &Value| {
        let mut template = template.clone();
        if let Some(metadata) = template.get_mut("metadata") {
            super::fields::remove(metadata, "labels");
            super::fields::remove(metadata, "annotations");
        }
        if let Some(spec) = template.get_mut("spec") {
            for key in ["nodeSelector", "tolerations", "schedulingGates", "affinity"] {
                super::fields::remove(spec, key);
            }
        }
        template
    };
    suspended && fixed(template) == fixed(old_template)
}

pub(super) fn cron_job(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        required(errors, SPEC.field("schedule"), "");
    } else if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        invalid(errors, SPEC.field("schedule"), schedule, detail);
    } else if let Err(error) = cron::check(schedule) {
        invalid(errors, SPEC.field("schedule"), schedule, error);
    }
    non_negative(errors, SPEC.field("startingDeadlineSeconds"), int(spec, "startingDeadlineSeconds"));
    let policy = text(spec, "concurrencyPolicy");
    if !matches!(policy, "Allow" | "Forbid" | "Replace") {
        unsupported(errors, SPEC.field("concurrencyPolicy"), policy, &["Allow", "Forbid", "Replace"]);
    }
    for key in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        non_negative(errors, SPEC.field(key), int(spec, key));
    }
    // The names of its Jobs get eleven more characters.
    let name = text(at(object, &["metadata"]), "name");
    if name.len() > 52 {
        invalid(errors, At::Top("metadata.name"), name, "must be no more than 52 characters");
    }
    let template_at = SPEC.field("jobTemplate");
    job_spec(errors, template_at.field("spec"), at(spec, &["jobTemplate", "spec"]));
}
