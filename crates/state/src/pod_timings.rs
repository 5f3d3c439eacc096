//! When what was thought about a pod: first seen waiting, first tried, first given a place. In memory only, kept until the pod
//! runs or is gone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_engine::labels::Text;

use crate::cluster::Key;

/// What is known of every pod that waits or waited.
#[derive(Default)]
pub struct PodTimings(BTreeMap<Key, PodTiming>);

/// What was thought about a pod, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodTiming {
    /// First seen waiting.
    pub acknowledged: Option<Timestamp>,
    /// First tried.
    pub decided: Option<Timestamp>,
    /// First given a place; starts over when a later pass finds none.
    pub schedulable: Option<Timestamp>,
    /// First given a place in a NodePool whose nodes have been registering; starts over when it is given another.
    pub schedulable_in_healthy_pool: Option<Timestamp>,
    /// The NodeClaim it was given.
    pub node_claim: Option<Text>,
}

impl PodTimings {
    /// What is known of this pod.
    pub fn of(&self, namespace: &str, name: &str) -> PodTiming {
        self.0.get(&(namespace.into(), name.into())).cloned().unwrap_or_default()
    }

    /// The pod was seen waiting; only the first time counts.
    pub fn acknowledge(&mut self, pod: Key, now: Timestamp) {
        self.0.entry(pod).or_default().acknowledged.get_or_insert(now);
    }

    /// A pass found no place for the pod. At the first try: how long it had been waiting for one, in seconds.
    pub fn failed(&mut self, pod: Key, now: Timestamp) -> Option<f64> {
        let timing = self.0.entry(pod).or_default();
        timing.schedulable = None;
        timing.schedulable_in_healthy_pool = None;
        timing.node_claim = None;
        timing.tried(now)
    }

    /// A pass found a place for the pod, in a NodePool whose nodes register or not. At the first try: how long it had been
    /// waiting for one, in seconds.
    pub fn placed(&mut self, pod: Key, healthy_pool: bool, now: Timestamp) -> Option<f64> {
        let timing = self.0.entry(pod).or_default();
        timing.schedulable.get_or_insert(now);
        if healthy_pool {
            timing.schedulable_in_healthy_pool.get_or_insert(now);
        } else {
            timing.schedulable_in_healthy_pool = None;
        }
        timing.tried(now)
    }

    /// The place is this NodeClaim.
    pub fn assign(&mut self, pod: Key, claim: &Text) {
        self.0.entry(pod).or_default().node_claim = Some(claim.clone());
    }

    /// The pods that were given this NodeClaim.
    pub fn pods_of(&self, claim: &str) -> Vec<Key> {
        let given = |timing: &PodTiming| timing.node_claim.as_deref() == Some(claim);
        self.0.iter().filter(|(_, timing)| given(timing)).map(|(pod, _)| pod.clone()).collect()
    }

    /// The pod runs, or is gone.
    pub fn forget(&mut self, namespace: &str, name: &str) {
        self.0.remove(&(namespace.into(), name.into()));
    }
}

impl PodTiming {
    fn tried(&mut self, now: Timestamp) -> Option<f64> {
        if self.decided.is_some() {
            return None;
        }
        self.decided = Some(now);
        self.acknowledged.map(|since| now.duration_since(since).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod() -> Key {
        ("ns".into(), "p".into())
    }

    #[test]
    fn the_first_look_and_the_first_try_count() {
        let mut timings = PodTimings::default();
        timings.acknowledge(pod(), at(10));
        timings.acknowledge(pod(), at(20));
        assert_eq!(timings.failed(pod(), at(13)), Some(3.0));
        assert_eq!(timings.placed(pod(), true, at(15)), None, "that was no first try");
        let timing = timings.of("ns", "p");
        assert_eq!((timing.acknowledged, timing.decided), (Some(at(10)), Some(at(13))));
        assert_eq!((timing.schedulable, timing.schedulable_in_healthy_pool), (Some(at(15)), Some(at(15))));
    }

    #[test]
    fn a_place_lost_starts_over_and_one_in_an_ailing_pool_is_no_healthy_one() {
        let mut timings = PodTimings::default();
        assert_eq!(timings.placed(pod(), true, at(1)), None, "never seen waiting");
        timings.assign(pod(), &"claim".into());
        assert_eq!(timings.pods_of("claim"), [pod()]);
        timings.placed(pod(), false, at(2));
        let timing = timings.of("ns", "p");
        assert_eq!((timing.schedulable, timing.schedulable_in_healthy_pool), (Some(at(1)), None));
        timings.failed(pod(), at(3));
        assert_eq!(timings.of("ns", "p").schedulable, None);
        assert!(timings.pods_of("claim").is_empty());
        timings.placed(pod(), true, at(4));
        assert_eq!(timings.of("ns", "p").schedulable, Some(at(4)));
        timings.forget("ns", "p");
        assert_eq!(timings.of("ns", "p"), PodTiming::default());
    }
}
