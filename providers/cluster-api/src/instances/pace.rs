//! How fast nodes may be launched, so that a burst does not overwhelm the infrastructure: so many per minute over all resources of a
//! NodeClass. How many a single resource may have on their way at once is the ledger's affair, but for Machines of their own.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::nodeclass::LaunchLimits;

const MINUTE: f64 = 60.0;

/// The launches of late, by NodeClass, and who waits for a turn.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    buckets: BTreeMap<String, Bucket>,
    /// By the uid of the NodeClaim, where there are limits.
    turns: BTreeMap<String, Turn>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// Whether a launch is held back by the limits. The time it may take starts when it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Waits,
    /// Not since then.
    Came(Instant),
}

impl Bucket {
    /// The bucket of a NodeClass as it is now.
    fn of<'a>(state: &'a mut State, node_class: &str, per_minute: f64) -> &'a mut Self {
        let now = Instant::now();
        let bucket = state.buckets.entry(node_class.to_owned()).or_insert(Self { left: per_minute, at: now });
        let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * per_minute / MINUTE;
        *bucket = Self { left: (bucket.left + gained).min(per_minute), at: now };
        bucket
    }
}

impl Pace {
    /// Of `wanted` launches, how many may start now; the rest after the time that comes back with it.
    pub(crate) fn take(
        &self,
        node_class: &str,
        per_minute: Option<u32>,
        wanted: usize,
    ) -> (usize, Option<Duration>) {
        let Some(per_minute) = per_minute.map(|rate| f64::from(rate.max(1))) else { return (wanted, None) };
        let mut state = self.lock();
        let bucket = Bucket::of(&mut state, node_class, per_minute);
        let mut granted = 0;
        while granted < wanted && bucket.left >= 1.0 {
            bucket.left -= 1.0;
            granted += 1;
        }
        let wait = (granted < wanted)
            .then(|| Duration::from_secs_f64(((1.0 - bucket.left) * MINUTE / per_minute).max(1.0)));
        (granted, wait)
    }

    /// Gives back what was taken and not used.
    pub(crate) fn give_back(&self, node_class: &str, count: usize) {
        if let Some(bucket) = self.lock().buckets.get_mut(node_class) {
            bucket.left += count as f64;
        }
    }

    /// Whether a single launch may start now that has so many before it at its resource. One whose turn has come keeps it, however
    /// often it has to be tried.
    pub(crate) fn begin(
        &self,
        node_class: &str,
        limits: Option<LaunchLimits>,
        ahead: usize,
        uid: &str,
    ) -> bool {
        let Some(limits) = limits else {
            self.forget(uid);
            return true;
        };
        if matches!(self.turn(uid), Some(Turn::Came(_))) {
            return true;
        }
        let most = limits.per_resource.and_then(|most| usize::try_from(most).ok());
        let granted =
            most.is_none_or(|most| ahead < most) && self.take(node_class, limits.per_minute, 1).0 > 0;
        if granted {
            self.admit(uid)
        } else {
            self.hold(uid)
        }
        granted
    }

    /// Gives back the turn of a single launch that came to nothing.
    pub(crate) fn give_back_turn(&self, node_class: &str, uid: &str) {
        let turn = self.lock().turns.remove(uid);
        if matches!(turn, Some(Turn::Came(_))) {
            self.give_back(node_class, 1);
        }
    }

    /// The limits leave nothing for this NodeClaim now.
    pub(crate) fn hold(&self, uid: &str) {
        self.lock().turns.entry(uid.to_owned()).or_insert(Turn::Waits);
    }

    /// The limits do not hold this NodeClaim back (any more).
    pub(crate) fn admit(&self, uid: &str) {
        let turn = Turn::Came(Instant::now());
        let mut state = self.lock();
        let known = state.turns.entry(uid.to_owned()).or_insert(turn);
        if *known == Turn::Waits {
            *known = turn;
        }
    }

    /// Whether the limits hold a NodeClaim back; `None` if it is not known, or there are none.
    pub(crate) fn turn(&self, uid: &str) -> Option<Turn> {
        self.lock().turns.get(uid).copied()
    }

    /// A NodeClaim waits for no turn any more.
    pub(crate) fn forget(&self, uid: &str) {
        self.lock().turns.remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn launches_beyond_the_rate_wait_for_their_minute() {
        let pace = Pace::default();
        assert_eq!(pace.take("any", None, 500), (500, None));
        assert_eq!(pace.take("slow", Some(10), 25), (10, Some(Duration::from_secs(6))));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(pace.take("slow", Some(10), 15).0, 5);
        pace.give_back("slow", 5);
        assert_eq!(pace.take("slow", Some(10), 5), (5, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_launch_takes_one_turn_however_often_it_is_tried() {
        let pace = Pace::default();
        let one = Some(LaunchLimits { per_minute: Some(1), per_resource: None });
        assert!(pace.begin("slow", one, 0, "a") && pace.begin("slow", one, 0, "a"));
        assert!(!pace.begin("slow", one, 1, "b"));
        assert_eq!(pace.turn("b"), Some(Turn::Waits));
        pace.give_back_turn("slow", "a");
        assert!(pace.begin("slow", one, 1, "b"));
        assert_eq!(pace.turn("b"), Some(Turn::Came(Instant::now())), "its time starts now");
        assert!(!pace.begin("slow", one, 2, "c"));
        assert!(pace.begin("slow", None, 2, "c"), "the limit was lifted");
        assert_eq!(pace.turn("c"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn launches_beyond_those_a_resource_may_have_at_once_wait_in_line() {
        let pace = Pace::default();
        let two = Some(LaunchLimits { per_minute: None, per_resource: Some(2) });
        assert!(pace.begin("slow", two, 0, "a") && pace.begin("slow", two, 1, "b"));
        assert!(!pace.begin("slow", two, 2, "c"));
        assert_eq!(pace.turn("c"), Some(Turn::Waits));
        assert!(pace.begin("slow", two, 1, "c"), "one before it has its instance");
    }
}
