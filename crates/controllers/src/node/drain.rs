//! Which pods of a node leave next (rules T2.1–T2.4): everything in its order, and at the deadline everything at once.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::eviction::{Deadline, EvictionQueue};
use crate::context::Context;
use crate::planted::{Bug, is_planted};
use crate::pods;
use crate::seen_pod::SeenPod;

/// What a drain does with pods that are still there at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Deletes those that would outlive it.
    ForceDelete,
    /// Leaves them where they are.
    Timeout,
}

/// Pods are still on their way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} pods are waiting to be evicted")]
pub(crate) struct Draining {
    /// How many, of all tiers.
    pub(crate) waiting: usize,
}

/// Sends off the pods of a node that are due. `Ok` once there are none left to wait for.
pub(crate) fn drain(
    context: &Context,
    evictions: &EvictionQueue,
    node: &str,
    deadline: Option<Timestamp>,
    mode: Mode,
) -> Result<(), Draining> {
    // A leap of the clock ends no pod's time: its kubelet may know nothing of it.
    let now = context.undoubted_now();
    let mut waiting = context.stores.pods_on(node);
    waiting.retain(|pod| pods::is_waiting_eviction(pod, now));
    if waiting.is_empty() {
        return Ok(());
    }
    let total = waiting.len();
    let due = |pod: &SeenPod| mode == Mode::ForceDelete && is_force_due(pod, deadline, now);
    let (forced, graceful): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|pod| due(pod));
    // Force waits for no tier: a budget on one pod must not hold up another whose time is over.
    let kind = match (mode, deadline) {
        (Mode::Timeout, Some(deadline)) => Deadline::Until(deadline),
        _ => Deadline::ForceAt(deadline),
    };
    evictions.add(Deadline::ForceAt(deadline), &forced);
    evictions.add(kind, &first_tier(graceful));
    Err(Draining { waiting: total })
}

/// Whether a pod would outlive the deadline: it is then deleted with what is left of its time (rule T3.4).
pub(crate) fn is_force_due(pod: &SeenPod, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let Some(deadline) = deadline else { return false };
    if let Some(ends) = pod.deleted {
        return ends > deadline;
    }
    let Some(grace) = pod.grace else { return false };
    let latest = deadline.saturating_sub(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MIN);
    now > latest
}

/// The pods that go before all others: those of users before daemons, both before what the cluster cannot do without.
fn first_tier(waiting: Vec<Arc<SeenPod>>) -> Vec<Arc<SeenPod>> {
    let tier = |pod: &SeenPod| (pod.is_critical, pod.owned_by.daemon_set);
    let first = waiting.iter().map(|pod| tier(pod)).min();
    let now = |pod: &SeenPod| Some(tier(pod)) == first || is_planted(Bug::KeepsNoOrder);
    waiting.into_iter().filter(|pod| now(pod)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, class: &str, owner: &str) -> Arc<SeenPod> {
        let owner = json!([{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o"}]);
        let pod = json!({
            "metadata": {"name": name, "ownerReferences": owner},
            "spec": {"containers": [], "priorityClassName": class, "terminationGracePeriodSeconds": 30},
        });
        Arc::new(SeenPod::of(&serde_json::from_value(pod).expect("a pod")))
    }

    #[test]
    fn users_pods_go_first_then_daemons_then_what_is_critical() {
        let mut waiting = vec![
            pod("critical-daemon", "system-node-critical", "DaemonSet"),
            pod("critical", "system-cluster-critical", "ReplicaSet"),
            pod("daemon", "", "DaemonSet"),
            pod("high", "very-high", "ReplicaSet"),
            pod("app", "", "ReplicaSet"),
        ];
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let tier = first_tier(waiting.clone());
            waiting.retain(|pod| !tier.contains(pod));
            order.push(tier.iter().map(|pod| pod.key.name.to_string()).collect::<Vec<_>>());
        }
        assert_eq!(order, [vec!["high", "app"], vec!["daemon"], vec!["critical"], vec!["critical-daemon"]]);
    }

    #[test]
    fn force_is_due_when_a_pods_own_time_would_end_after_the_deadline() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let deadline = Some(at("2026-01-01T01:00:00Z"));
        let running = pod("p", "", "ReplicaSet");
        assert!(!is_force_due(&running, deadline, at("2026-01-01T00:59:30Z")));
        assert!(is_force_due(&running, deadline, at("2026-01-01T00:59:31Z")));
        assert!(!is_force_due(&running, None, at("2027-01-01T00:00:00Z")));
        let mut ending = (*running).clone();
        for (ends, due) in [("2026-01-01T01:00:00Z", false), ("2026-01-01T01:00:01Z", true)] {
            ending.deleted = Some(at(ends));
            assert_eq!(is_force_due(&ending, deadline, at("2026-01-01T00:00:00Z")), due);
        }
        let mut boundless = (*running).clone();
        boundless.grace = None;
        assert!(!is_force_due(&boundless, deadline, at("2027-01-01T00:00:00Z")));
    }
}
