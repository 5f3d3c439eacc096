//! Time as controllers see it: tokio's clock plus an epoch, so that pausing tokio pauses everything.
//!
//! Waiting is tokio's business (`sleep`, `timeout`); this is only for asking what time it is. The wall clock is read once,
//! in [`TokioClock::from_wall_clock`], which only the binary calls.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// How long ago `then` was; zero if it lies ahead.
    fn since(&self, then: Timestamp) -> std::time::Duration {
        std::time::Duration::try_from(self.now().duration_since(then)).unwrap_or_default()
    }
}

/// A clock that can be handed around.
pub type SharedClock = Arc<dyn Clock>;

/// An epoch plus the time that has passed on tokio's clock since.
///
/// Clones share their epoch: stepping one steps all.
#[derive(Clone, Debug)]
pub struct TokioClock {
    started: Instant,
    epoch_nanos: Arc<AtomicI64>,
}

impl TokioClock {
    /// A clock that reads `epoch` now.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self { started: Instant::now(), epoch_nanos: Arc::new(AtomicI64::new(nanos(epoch))) }
    }

    /// A clock that reads the machine's time now and counts on from there.
    #[expect(clippy::disallowed_methods, reason = "the one place where the wall clock enters the program")]
    pub fn from_wall_clock() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// Moves the clock without moving tokio's: a machine that slept, a corrected wall clock, a fault in a simulation.
    pub fn step(&self, by: SignedDuration) {
        let by = i64::try_from(by.as_nanos()).unwrap_or(if by.is_negative() { i64::MIN } else { i64::MAX });
        // The closure always answers, so the update cannot fail.
        let _ = self
            .epoch_nanos
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |epoch| Some(epoch.saturating_add(by)));
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let nanos = self.epoch_nanos.load(Ordering::Relaxed).saturating_add(elapsed);
        Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::MAX)
    }
}

/// Nanoseconds since 1970; far beyond any year a cluster sees, the nearest that fits.
fn nanos(time: Timestamp) -> i64 {
    let nanos = time.as_nanosecond();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn epoch() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().expect("a time")
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_tokio_and_not_the_machine() {
        let clock = TokioClock::starting_at(epoch());
        assert_eq!(clock.now(), epoch());
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(clock.now().to_string(), "2026-01-03T03:04:05Z");
        assert_eq!(clock.since(epoch()), Duration::from_secs(86_400));
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_reaches_every_clone_and_what_lies_ahead_is_no_time_ago() {
        let clock = TokioClock::starting_at(epoch());
        let other = clock.clone();
        clock.step(SignedDuration::from_secs(-60));
        assert_eq!(other.now().to_string(), "2026-01-02T03:03:05Z");
        assert_eq!(other.since(epoch()), Duration::ZERO);
        clock.step(SignedDuration::MAX);
        assert!(other.now() > epoch(), "an absurd step saturates instead of wrapping");
    }
}
