//! What a pod is to those who want it off its node: whether it counts, may be moved, must be waited for.
//!
//! The predicates are upstream's, on pods as the watch has them. What scheduling asks of pods is the engine's.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Toleration};
use karpenter_api::{annotations, taints};
use karpenter_runtime::events::{Event, EventType, Recorder, reference};
use karpenter_runtime::go_duration::GoDuration;

use crate::times::rfc3339;

/// A pod that is still there so long after its grace period has ended is not waited for.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// The node it is bound to.
pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether it has run to its end.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// Whether it is on its way out.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Neither at its end nor on its way out.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// Whether its kubelet should have ended it a while ago.
fn is_stuck_terminating(pod: &Pod, now: Timestamp) -> bool {
    let until = pod.metadata.deletion_timestamp.as_ref();
    until.is_some_and(|until| now.duration_since(until.0) > STUCK_AFTER)
}

fn is_owned_by(pod: &Pod, api_version: &str, kind: &str) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.api_version == api_version && owner.kind == kind)
}

/// Whether a DaemonSet put it there.
pub(crate) fn is_daemon(pod: &Pod) -> bool {
    is_owned_by(pod, "apps/v1", "DaemonSet")
}

/// Whether it is the image of a static pod, which the API cannot remove.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    is_owned_by(pod, "v1", "Node")
}

/// Whether it will need another place when its node goes. A StatefulSet's pod comes back only after it is gone, so it needs
/// one even while it ends.
pub(crate) fn is_reschedulable(pod: &Pod) -> bool {
    let comes_back = is_terminating(pod) && is_owned_by(pod, "apps/v1", "StatefulSet");
    (is_active(pod) || comes_back) && !is_daemon(pod) && !is_mirror(pod)
}

/// Whether it stays on nodes that are being drained.
pub(crate) fn tolerates_disruption(pod: &Pod) -> bool {
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.any(answers_disruption)
}

fn answers_disruption(toleration: &Toleration) -> bool {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    let matches = |text: &Option<String>, wanted: &str| {
        text.as_deref().is_none_or(|text| text.is_empty() || text == wanted)
    };
    let taint = taints::DISRUPTED;
    matches(&toleration.effect, taint.effect.as_str())
        && matches(&toleration.key, taint.key)
        && match text(&toleration.operator).as_str() {
            // The taint has no value.
            "" | "Equal" => text(&toleration.value).is_empty(),
            "Exists" => true,
            _ => false,
        }
}

/// Whether a drain has anything to do with it. One that asks not to be disrupted counts: the drain waits for it.
pub(crate) fn is_drainable(pod: &Pod, now: Timestamp) -> bool {
    !tolerates_disruption(pod) && !is_stuck_terminating(pod, now) && !is_mirror(pod)
}

/// Whether a drain waits for it.
pub(crate) fn is_waiting_eviction(pod: &Pod, now: Timestamp) -> bool {
    !is_terminal(pod) && is_drainable(pod, now)
}

/// Whether it may be evicted now.
pub(crate) fn is_evictable(pod: &Pod, now: Timestamp, recorder: &Recorder) -> bool {
    is_active(pod) && !tolerates_disruption(pod) && !is_mirror(pod) && !is_protected(pod, now, Some(recorder))
}

/// Whether `karpenter.sh/do-not-disrupt` protects it at this moment: `true`, or a duration since it started. Whoever waits
/// for it is told, if there is a recorder.
pub(crate) fn is_protected(pod: &Pod, now: Timestamp, recorder: Option<&Recorder>) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let Some(value) = annotations.and_then(|annotations| annotations.get(annotations::DO_NOT_DISRUPT)) else {
        return false;
    };
    if value == "true" {
        return true;
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let tell = |event_type, reason, message: String, dedupe: Vec<String>| {
        if let Some(recorder) = recorder {
            recorder.publish(Event::new(reference(pod), event_type, reason, message).dedupe_by(dedupe));
        }
    };
    let period = match protection(value) {
        Ok(period) => period,
        Err(problem) => {
            let message =
                format!("Invalid {} annotation: {problem}, ignoring annotation", annotations::DO_NOT_DISRUPT);
            tell(EventType::Warning, "InvalidDoNotDisruptAnnotation", message, vec![uid, problem]);
            return false;
        }
    };
    let Some(started) = pod.status.as_ref().and_then(|status| status.start_time.as_ref()) else {
        // It cannot be told how long it has run: rather too careful.
        return true;
    };
    let until = started.0.saturating_add(period).unwrap_or(Timestamp::MAX);
    if now < until {
        let time = rfc3339(until);
        let message = format!("The {} grace period will elapse at {time}", annotations::DO_NOT_DISRUPT);
        tell(EventType::Normal, "DoNotDisruptUntil", message, vec![uid, time]);
        return true;
    }
    let message =
        format!("The {} grace period has elapsed, pod is now disruptable", annotations::DO_NOT_DISRUPT);
    tell(EventType::Normal, "DoNotDisruptGracePeriodElapsed", message, vec![uid]);
    false
}

fn protection(value: &str) -> Result<SignedDuration, String> {
    let period: GoDuration =
        value.parse().map_err(|error| format!("failed to parse {value:?} as a duration: {error}"))?;
    if period.as_nanos() <= 0 {
        return Err(format!("duration {value:?} must be positive"));
    }
    Ok(SignedDuration::from_nanos(period.as_nanos()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(edit: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": []},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        });
        merge(&mut pod, &edit);
        serde_json::from_value(pod).expect("a pod")
    }

    fn merge(target: &mut Value, edit: &Value) {
        match (target, edit) {
            (Value::Object(target), Value::Object(edit)) => {
                for (key, value) in edit {
                    merge(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (target, edit) => *target = edit.clone(),
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_toleration_of_the_disrupted_taint_keeps_a_pod_where_it_is() {
        let tolerating = |toleration: Value| pod(json!({"spec": {"tolerations": [toleration]}}));
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": "karpenter.sh/disrupted", "operator": "Exists"}),
            json!({"key": "karpenter.sh/disrupted", "operator": "Equal", "effect": "NoSchedule"}),
            json!({"key": "karpenter.sh/disrupted"}),
        ] {
            assert!(tolerates_disruption(&tolerating(toleration.clone())), "{toleration}");
        }
        for toleration in [
            json!({"key": "karpenter.sh/disrupted", "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": "karpenter.sh/disrupted", "operator": "Equal", "value": "x"}),
            json!({"key": "other", "operator": "Exists"}),
        ] {
            assert!(!tolerates_disruption(&tolerating(toleration.clone())), "{toleration}");
        }
    }

    #[test]
    fn a_drain_waits_for_pods_that_end_but_not_for_ever() {
        let ending = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z"}}));
        assert!(is_waiting_eviction(&ending, at("2026-01-01T00:01:30Z")));
        assert!(!is_waiting_eviction(&ending, at("2026-01-01T00:01:31Z")));
        let ended = pod(json!({"status": {"phase": "Succeeded"}}));
        assert!(!is_waiting_eviction(&ended, at("2026-01-01T00:00:00Z")));
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}]);
        let mirror = pod(json!({"metadata": {"ownerReferences": owner}}));
        assert!(!is_waiting_eviction(&mirror, at("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn protection_lasts_for_ever_for_a_time_or_not_at_all() {
        let annotated =
            |value: &str| pod(json!({"metadata": {"annotations": {annotations::DO_NOT_DISRUPT: value}}}));
        let protected = |value: &str, time: &str| is_protected(&annotated(value), at(time), None);
        assert!(protected("true", "2030-01-01T00:00:00Z"));
        assert!(protected("5m", "2026-01-01T00:04:59Z"));
        assert!(!protected("5m", "2026-01-01T00:05:00Z"));
        for wrong in ["false", "-5m", "0s", "5", ""] {
            assert!(!protected(wrong, "2026-01-01T00:00:00Z"), "{wrong}");
        }
        let mut not_started = annotated("5m");
        not_started.status.as_mut().expect("a status").start_time = None;
        assert!(is_protected(&not_started, at("2030-01-01T00:00:00Z"), None));
    }

    #[test]
    fn a_stateful_sets_pod_needs_a_place_even_while_it_ends() {
        let owned = |kind: &str, deleted: Option<&str>| {
            let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o"}]);
            pod(json!({"metadata": {"ownerReferences": owner, "deletionTimestamp": deleted}}))
        };
        assert!(is_reschedulable(&owned("ReplicaSet", None)));
        assert!(!is_reschedulable(&owned("ReplicaSet", Some("2026-01-01T00:00:00Z"))));
        assert!(is_reschedulable(&owned("StatefulSet", Some("2026-01-01T00:00:00Z"))));
        assert!(!is_reschedulable(&owned("DaemonSet", None)));
    }
}
