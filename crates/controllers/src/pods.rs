//! What a pod is to those who want it off its node: whether it counts, may be moved, must be waited for.
//!
//! The predicates are upstream's, on what is kept of pods. What scheduling asks of pods is the engine's.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::annotations;
use karpenter_runtime::events::{Event, EventType, Recorder};
use karpenter_runtime::go_duration::GoDuration;

use crate::seen_pod::{Phase, SeenPod};
use crate::times::rfc3339;

/// A pod that is still there so long after its grace period has ended is not waited for.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Whether it has run to its end.
pub(crate) fn is_terminal(pod: &SeenPod) -> bool {
    matches!(pod.phase, Phase::Failed | Phase::Succeeded)
}

/// Whether it is on its way out.
pub(crate) fn is_terminating(pod: &SeenPod) -> bool {
    pod.deleted.is_some()
}

/// Neither at its end nor on its way out.
pub(crate) fn is_active(pod: &SeenPod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// Whether its kubelet should have ended it a while ago.
fn is_stuck_terminating(pod: &SeenPod, now: Timestamp) -> bool {
    pod.deleted.is_some_and(|until| now.duration_since(until) > STUCK_AFTER)
}

/// Whether it will need another place when its node goes. A StatefulSet's pod comes back only after it is gone, so it needs
/// one even while it ends.
pub(crate) fn is_reschedulable(pod: &SeenPod) -> bool {
    let comes_back = is_terminating(pod) && pod.owned_by.stateful_set;
    (is_active(pod) || comes_back) && !pod.owned_by.daemon_set && !pod.owned_by.node
}

/// Whether a drain has anything to do with it. One that asks not to be disrupted counts: the drain waits for it.
pub(crate) fn is_drainable(pod: &SeenPod, now: Timestamp) -> bool {
    !pod.tolerates_disruption && !is_stuck_terminating(pod, now) && !pod.owned_by.node
}

/// Whether a drain waits for it.
pub(crate) fn is_waiting_eviction(pod: &SeenPod, now: Timestamp) -> bool {
    !is_terminal(pod) && is_drainable(pod, now)
}

/// Whether it may be evicted now.
pub(crate) fn is_evictable(pod: &SeenPod, now: Timestamp, recorder: &Recorder) -> bool {
    is_active(pod)
        && !pod.tolerates_disruption
        && !pod.owned_by.node
        && !is_protected(pod, now, Some(recorder))
}

/// Whether `karpenter.sh/do-not-disrupt` protects it at this moment: `true`, or a duration since it started. Whoever waits
/// for it is told, if there is a recorder.
pub(crate) fn is_protected(pod: &SeenPod, now: Timestamp, recorder: Option<&Recorder>) -> bool {
    let Some(value) = pod.do_not_disrupt.as_deref() else { return false };
    if value == "true" {
        return true;
    }
    let uid = pod.uid.to_string();
    let tell = |event_type, reason, message: String, dedupe: Vec<String>| {
        if let Some(recorder) = recorder {
            recorder.publish(Event::new(pod.reference(), event_type, reason, message).dedupe_by(dedupe));
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
    let Some(started) = pod.started else {
        // It cannot be told how long it has run: rather too careful.
        return true;
    };
    let until = started.saturating_add(period).unwrap_or(Timestamp::MAX);
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

    fn pod(edit: Value) -> SeenPod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": []},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        });
        merge(&mut pod, &edit);
        SeenPod::of(&serde_json::from_value(pod).expect("a pod"))
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
        not_started.started = None;
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
