//! Time as controllers see it: tokio's clock plus an epoch, so that pausing tokio pauses everything.
//!
//! Waiting is tokio's business (`sleep`, `timeout`); this is only for asking what time it is. The machine's own clock is read
//! by [`WallClock::of_machine`], which only the binary calls. It may be wrong when the program starts, be set right later, or
//! go on while the machine sleeps: [`WallClock`] follows it and says when it is to be doubted.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::sync::lock;

/// A step of the clock worth a word.
const STEP: SignedDuration = SignedDuration::from_secs(2);
/// A step ahead so large that deadlines pass by it alone.
const LEAP: SignedDuration = SignedDuration::from_mins(1);
/// How long a clock that leapt ahead is doubted: time synchronisation sets it back within that if it was wrong, and after a
/// machine's sleep the watches have caught up.
pub const DOUBT: Duration = Duration::from_secs(60);

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// How long ago `then` was; zero if it lies ahead.
    fn since(&self, then: Timestamp) -> Duration {
        Duration::try_from(self.now().duration_since(then)).unwrap_or_default()
    }

    /// For how long nobody who asks should take anything away for being too old or too late: the clock leapt ahead a moment ago.
    /// Zero when there is no doubt.
    fn doubted_for(&self) -> Duration {
        Duration::ZERO
    }

    /// The time without the leap that is doubted. A deadline that passes by the leap alone has not passed.
    fn undoubted_now(&self) -> Timestamp {
        self.now()
    }

    /// How long ago `then` was without the leap that is doubted; zero if it lies ahead. For whoever takes something away or gives
    /// it up for its age.
    fn undoubted_since(&self, then: Timestamp) -> Duration {
        Duration::try_from(self.undoubted_now().duration_since(then)).unwrap_or_default()
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

/// A clock that others set: followed wherever it goes, and doubted for a while after a leap ahead.
///
/// Clones share what they have seen.
#[derive(Clone)]
pub struct WallClock {
    read: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    seen: Arc<Mutex<Seen>>,
}

/// The clock when it was last read, and tokio's, which nobody sets, at that moment.
struct Seen {
    wall: Timestamp,
    at: Instant,
    leap: Option<Leap>,
}

/// The clock was set ahead.
#[derive(Clone, Copy)]
struct Leap {
    /// When it was last set.
    at: Instant,
    /// By how much in all since it came into doubt.
    by: SignedDuration,
}

impl Leap {
    /// For how long it is still doubted.
    fn doubted_for(&self) -> Duration {
        DOUBT.saturating_sub(self.at.elapsed())
    }
}

impl WallClock {
    /// Of the machine.
    #[expect(clippy::disallowed_methods, reason = "the one place where the wall clock enters the program")]
    pub fn of_machine() -> Self {
        Self::reading(Timestamp::now)
    }

    /// That shows what `read` says.
    pub fn reading(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let seen = Seen { wall: read(), at: Instant::now(), leap: None };
        Self { read: Arc::new(read), seen: Arc::new(Mutex::new(seen)) }
    }

    /// Reads the clock; by how much it was set since it was last read.
    fn look(&self) -> (Timestamp, SignedDuration) {
        let (wall, at) = ((self.read)(), Instant::now());
        let mut seen = lock(&self.seen);
        let passed = SignedDuration::try_from(at.saturating_duration_since(seen.at)).unwrap_or_default();
        let step = wall.duration_since(seen.wall).saturating_sub(passed);
        let doubted = seen.leap.filter(|leap| !leap.doubted_for().is_zero());
        let leap = match doubted {
            _ if step >= LEAP => {
                Some(Leap { at, by: doubted.map_or(step, |leap| leap.by.saturating_add(step)) })
            }
            // Set right again, perhaps.
            Some(leap) if step.abs() >= STEP => Some(Leap { by: leap.by.saturating_add(step), ..leap }),
            doubted => doubted,
        };
        *seen = Seen { wall, at, leap };
        (wall, step)
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let (wall, step) = self.look();
        // Outside of the lock: a log line asks for the time too.
        if step.abs() >= STEP {
            let seconds = step.as_secs_f64();
            tracing::warn!(seconds, "the clock was set, or the machine slept; ages and deadlines follow it");
        }
        wall
    }

    fn doubted_for(&self) -> Duration {
        self.now();
        lock(&self.seen).leap.map_or(Duration::ZERO, |leap| leap.doubted_for())
    }

    fn undoubted_now(&self) -> Timestamp {
        let now = self.now();
        let leap = lock(&self.seen).leap;
        leap.and_then(|leap| now.checked_sub(leap.by.max(SignedDuration::ZERO)).ok()).unwrap_or(now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallClock").finish_non_exhaustive()
    }
}

/// Nanoseconds since 1970; far beyond any year a cluster sees, the nearest that fits.
fn nanos(time: Timestamp) -> i64 {
    let nanos = time.as_nanosecond();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
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

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_follows_whoever_sets_it_and_is_doubted_after_a_leap_ahead() {
        let machine = TokioClock::starting_at(epoch());
        let clock = WallClock::reading({
            let machine = machine.clone();
            move || machine.now()
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!((clock.now(), clock.doubted_for()), (machine.now(), Duration::ZERO), "an hour passed");
        machine.step(SignedDuration::from_mins(-30));
        assert_eq!((clock.now(), clock.doubted_for()), (machine.now(), Duration::ZERO), "things come late");
        machine.step(SignedDuration::from_secs(30));
        assert_eq!((clock.now(), clock.doubted_for()), (machine.now(), Duration::ZERO), "a little ahead");
        machine.step(SignedDuration::from_hours(8));
        assert_eq!((clock.now(), clock.doubted_for()), (machine.now(), DOUBT), "the machine slept");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(clock.clone().doubted_for(), DOUBT - Duration::from_secs(20));
        tokio::time::sleep(DOUBT).await;
        assert_eq!(clock.doubted_for(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubted_leap_is_left_out_until_it_is_believed_or_taken_back() {
        let machine = TokioClock::starting_at(epoch());
        let read = machine.clone();
        let clock = WallClock::reading(move || read.now());
        machine.step(SignedDuration::from_hours(1));
        assert_eq!(clock.undoubted_now(), epoch());
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(clock.undoubted_now().to_string(), "2026-01-02T03:04:15Z");
        assert_eq!(clock.undoubted_since(epoch()), Duration::from_secs(10));
        machine.step(SignedDuration::from_hours(-1));
        assert_eq!(clock.undoubted_now(), machine.now(), "set right again");
        machine.step(SignedDuration::from_hours(2));
        assert_eq!(clock.undoubted_now().to_string(), "2026-01-02T03:04:15Z");
        tokio::time::sleep(DOUBT).await;
        assert_eq!(clock.undoubted_now(), machine.now(), "it has stayed there");
    }
}
