//! Whose replicas somebody else has set of late where Karpenter had set others: the status says so for a while after each time.
//!
//! A tool that does it again and again is not written against without end. From the third time on Karpenter pauses, twice as long each
//! time: where less was set, nothing is launched from the resource meanwhile; where more was set, what is surplus there stays. Machines
//! that are in use are defended all the same, for Cluster API takes them at once. Half an hour without such a change ends it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::holds::{Hold, HoldKind};
use crate::client::scalable::ScalableKey;

/// A tool that keeps doing it does it again within this time.
const TOLD_FOR: Duration = Duration::from_secs(10 * 60);
/// So many times it may be people who change their mind.
const PATIENCE: u32 = 3;
const FIRST: Duration = Duration::from_secs(3 * 60);
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// After so long without one the next is the first. Some tools come by every ten minutes.
const FORGOTTEN: Duration = Duration::from_secs(30 * 60);

/// What was set, by resource, and when.
#[derive(Debug, Default)]
pub(crate) struct Reverts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    noted: BTreeMap<ScalableKey, Noted>,
    version: u64,
}

#[derive(Clone, Debug)]
struct Noted {
    at: Instant,
    what: String,
    times: u32,
    pause: Option<Pause>,
}

/// A time in which Karpenter does not set replicas again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) until: Instant,
    /// Whether it is rising that pauses; else it is falling.
    pub(crate) rising: bool,
    length: Duration,
    what: String,
}

impl Pause {
    /// What holds launches meanwhile.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let hold =
            Hold { kind: HoldKind::NoLaunches, reason: "ReplicasChangedByAnother", message: self.message() };
        self.rising.then_some(hold)
    }

    fn message(&self) -> String {
        let minutes = self.length.as_secs() / 60;
        let what = if self.rising { "nothing is launched from it" } else { "surplus stays there" };
        format!("{}; it keeps happening, so {what} for {minutes} minutes", self.what)
    }
}

impl Noted {
    fn pausing(&self, now: Instant) -> Option<&Pause> {
        self.pause.as_ref().filter(|pause| pause.until > now)
    }

    /// When it began to be quiet.
    fn quiet_since(&self) -> Instant {
        self.pause.as_ref().map_or(self.at, |pause| pause.until.max(self.at))
    }
}

impl Reverts {
    /// Somebody did, and set fewer replicas than we had, or more.
    pub(crate) fn note(&self, id: &ScalableKey, what: &str, fewer: bool) {
        let now = Instant::now();
        let mut state = self.lock();
        let before = state.noted.remove(id).filter(|noted| now < noted.quiet_since() + FORGOTTEN);
        let (times, last) = before.map_or((0, None), |noted| (noted.times, noted.pause));
        let times = times.saturating_add(1);
        let pause = match last {
            // What was still under way when it began.
            Some(last) if last.until > now => Some(last),
            last if times >= PATIENCE => {
                let length = last.map_or(FIRST, |last| (last.length * 2).min(LONGEST));
                Some(Pause { until: now + length, rising: fewer, length, what: what.to_owned() })
            }
            _ => None,
        };
        state.noted.insert(id.clone(), Noted { at: now, what: what.to_owned(), times, pause });
        state.version += 1;
    }

    /// The pause of a resource, while there is one.
    pub(crate) fn pause(&self, id: &ScalableKey) -> Option<Pause> {
        self.lock().noted.get(id).and_then(|noted| noted.pausing(Instant::now())).cloned()
    }

    /// What was set lately of these.
    pub(crate) fn lately<'a>(&self, ids: impl Iterator<Item = &'a ScalableKey>) -> Vec<String> {
        let now = Instant::now();
        let mut state = self.lock();
        state.noted.retain(|_, noted| now < noted.quiet_since() + FORGOTTEN);
        let told = |noted: &Noted| match noted.pausing(now) {
            Some(pause) => Some(pause.message()),
            None => (now < noted.at + TOLD_FOR).then(|| noted.what.clone()),
        };
        ids.filter_map(|id| state.noted.get(id)).filter_map(told).collect()
    }

    /// Counts changes, those that time brings included.
    pub(crate) fn version(&self) -> (u64, usize) {
        let now = Instant::now();
        let state = self.lock();
        (state.version, state.noted.values().filter(|noted| noted.pausing(now).is_some()).count())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_begin_with_the_third_time_and_double_until_it_is_quiet() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let reverts = Reverts::default();
        for _ in 0..2 {
            reverts.note(&id, "argo set 2", true);
            assert_eq!(reverts.pause(&id), None, "people may change their mind");
            tokio::time::sleep(TOLD_FOR).await;
        }
        let mut pauses = Vec::new();
        for _ in 0..6 {
            reverts.note(&id, "argo set 2", true);
            let start = Instant::now();
            let before = reverts.version();
            let pause = reverts.pause(&id).expect("a pause");
            reverts.note(&id, "argo set 2", true);
            assert_eq!(reverts.pause(&id), Some(pause.clone()), "it is not prolonged");
            let told = format!(
                "argo set 2; it keeps happening, so nothing is launched from it for {} minutes",
                pause.length.as_secs() / 60
            );
            assert_eq!(reverts.lately([&id].into_iter()), [told.as_str()]);
            assert_eq!(pause.hold().expect("a hold").message, told);
            tokio::time::sleep_until(pause.until).await;
            assert_eq!(reverts.pause(&id), None);
            assert_ne!(reverts.version(), before, "its end is a change");
            pauses.push(start.elapsed().as_secs() / 60);
        }
        assert_eq!(pauses, [3, 6, 12, 24, 30, 30]);
        tokio::time::sleep(FORGOTTEN).await;
        reverts.note(&id, "somebody set 5", false);
        assert_eq!(reverts.pause(&id), None, "long quiet since");
        assert_eq!(reverts.lately([&id].into_iter()), ["somebody set 5"]);
        tokio::time::sleep(TOLD_FOR).await;
        assert!(reverts.lately([&id].into_iter()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_sets_more_does_not_keep_nodes_from_being_launched() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let reverts = Reverts::default();
        for _ in 0..3 {
            reverts.note(&id, "argo set 5", false);
        }
        let pause = reverts.pause(&id).expect("a pause");
        assert_eq!((pause.rising, pause.hold()), (false, None));
    }
}
