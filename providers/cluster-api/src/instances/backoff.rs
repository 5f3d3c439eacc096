//! Which offerings have failed of late: unavailable for three minutes, then twice as long each time, up to half an hour; forgotten
//! when one works again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::scalable::ScalableKey;

const FIRST: Duration = Duration::from_secs(3 * 60);
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// What failed where, by resource and failure domain.
#[derive(Debug, Default)]
pub struct Backoff(Mutex<State>);

type Place = (ScalableKey, Option<String>);

#[derive(Debug, Default)]
struct State {
    failed: BTreeMap<Place, Failed>,
    version: u64,
}

#[derive(Clone, Debug)]
struct Failed {
    until: Instant,
    pause: Duration,
    why: String,
}

impl Backoff {
    /// A launch failed. Failures while it is unavailable anyway are of the same kind and do not prolong it.
    pub fn failed(&self, id: &ScalableKey, failure_domain: Option<&str>, why: &str) {
        let now = Instant::now();
        let mut state = self.lock();
        let place = (id.clone(), failure_domain.map(str::to_owned));
        let pause = match state.failed.get(&place) {
            Some(failed) if failed.until > now => return,
            // Long quiet since: start over.
            Some(failed) if now.saturating_duration_since(failed.until) > LONGEST => FIRST,
            Some(failed) => (failed.pause * 2).min(LONGEST),
            None => FIRST,
        };
        state.failed.insert(place, Failed { until: now + pause, pause, why: why.to_owned() });
        state.version += 1;
    }

    /// A launch worked.
    pub fn succeeded(&self, id: &ScalableKey, failure_domain: Option<&str>) {
        let mut state = self.lock();
        if state.failed.remove(&(id.clone(), failure_domain.map(str::to_owned))).is_some() {
            state.version += 1;
        }
    }

    /// Why an offering is unavailable, if it failed of late: there, or wherever its resource puts Machines.
    pub fn why(&self, id: &ScalableKey, failure_domain: Option<&str>) -> Option<String> {
        let (state, now) = (self.lock(), Instant::now());
        let failed = |domain: Option<&str>| {
            let failed = state.failed.get(&(id.clone(), domain.map(str::to_owned)))?;
            (failed.until > now).then(|| format!("failed of late: {}", failed.why))
        };
        failed(failure_domain).or_else(|| failed(None))
    }

    /// Counts changes, those that time brings included.
    pub fn version(&self) -> (u64, usize) {
        let now = Instant::now();
        let state = self.lock();
        (state.version, state.failed.values().filter(|failed| failed.until > now).count())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_keep_an_offering_away_for_longer_each_time_until_one_works() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            backoff.failed(&id, None, "no host");
            backoff.failed(&id, None, "no host either");
            let start = Instant::now();
            assert_eq!(backoff.why(&id, None).as_deref(), Some("failed of late: no host"));
            while backoff.why(&id, None).is_some() {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            pauses.push(start.elapsed().as_secs() / 60);
        }
        assert_eq!(pauses, [3, 6, 12, 24, 30, 30]);
        backoff.succeeded(&id, None);
        backoff.failed(&id, None, "again");
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!(backoff.why(&id, None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_domain_does_not_stand_for_another() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        backoff.failed(&id, Some("a"), "no host");
        assert!(backoff.why(&id, Some("a")).is_some() && backoff.why(&id, Some("b")).is_none());
        backoff.failed(&id, None, "no Machine appears");
        assert!(backoff.why(&id, Some("b")).is_some(), "where its Machines come is not for us to say");
    }
}
