//! What orders of a while ago say about the next ones: a right that was refused, answers that never came, failures that nobody explained.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::request::Scope;

/// How long a refused right to expunge is not asked for again.
const DENIAL_BELIEVED: Duration = Duration::from_secs(60 * 60);
/// How long a machine may take to come of which no answer came.
const MAY_COME: Duration = Duration::from_secs(10 * 60);
/// Unexplained failures of one kind after which it is taken for a refusal.
const MAX_UNEXPLAINED: u32 = 3;
/// How long after another a failure counts together with it: one a day is nothing that lasts.
const TOGETHER: Duration = Duration::from_secs(30 * 60);

/// Whether and when the right to expunge was refused although the server promises it. Administrators change that while everything runs,
/// so it is believed for a while only.
#[derive(Debug, Default)]
pub(crate) struct ExpungeDenied(Mutex<Option<Instant>>);

impl ExpungeDenied {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self) {
        *self.lock() = Some(Instant::now());
    }

    pub(crate) fn holds(&self) -> bool {
        self.lock().is_some_and(|since| since.elapsed() < DENIAL_BELIEVED)
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }
}

/// Where machines were ordered of which no answer came, and when last.
#[derive(Debug, Default)]
pub(crate) struct Lost(Mutex<BTreeMap<Scope, Instant>>);

impl Lost {
    pub(crate) fn note(&self, scope: &Scope) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(scope.clone(), Instant::now());
    }

    /// Whether one may still come.
    pub(crate) fn may_come(&self, scope: &Scope) -> bool {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get(scope).is_some_and(|since| since.elapsed() < MAY_COME)
    }

    /// Whether one may still come anywhere.
    pub(crate) fn may_come_anywhere(&self) -> bool {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.values().any(|since| since.elapsed() < MAY_COME)
    }
}

/// Unexplained failures, by what was tried: how many, and when the last was.
#[derive(Debug, Default)]
pub(crate) struct Unexplained(Mutex<BTreeMap<String, (u32, Instant)>>);

impl Unexplained {
    /// Counts one; whether it is one too many.
    pub(crate) fn too_many(&self, what: &str) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|_, (_, last)| last.elapsed() < TOGETHER);
        let (count, last) = counts.entry(what.to_owned()).or_insert((0, Instant::now()));
        *count += 1;
        *last = Instant::now();
        let over = *count >= MAX_UNEXPLAINED;
        if over {
            counts.remove(what);
        }
        over
    }

    pub(crate) fn forget(&self, what: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unexplained_failures_that_are_far_apart_are_not_counted_together() {
        let unexplained = Unexplained::default();
        for _ in 0..5 {
            assert!(!unexplained.too_many("small/zone/net"));
            assert!(!unexplained.too_many("small/zone/net"));
            tokio::time::sleep(TOGETHER).await;
        }
        assert_eq!([1, 2, 3].map(|_| unexplained.too_many("small/zone/net")), [false, false, true]);
        assert!(!unexplained.too_many("small/zone/net"), "and then from the beginning");
    }
}
