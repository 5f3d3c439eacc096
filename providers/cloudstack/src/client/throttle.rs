//! Holding back: so many calls a second, and none at all after the server said so.
//!
//! Refreshing caches has a lane of its own with half the rate, so that it can never starve launches, deletions and the
//! following of jobs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use karpenter_runtime::rate_limit::TokenBucket;
use tokio::time::Instant;

use super::error::LONGEST_PAUSE;

/// Longer than any turn takes to come; beyond it times cannot be added up.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);

/// How urgent a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Somebody waits for a machine to come or go.
    Action,
    /// A cache wants to be fresh.
    Refresh,
}

/// Calls per second, and at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// In the long run.
    pub per_second: f64,
    /// At once.
    pub burst: u32,
}

impl Default for Rate {
    fn default() -> Self {
        Self { per_second: 10.0, burst: 20 }
    }
}

impl Rate {
    /// What a server's limit of `max` calls in `interval` seconds leaves us: it counts every signed call twice, and others may
    /// use the account too.
    pub fn under_limit(max: i64, interval_secs: i64) -> Option<Self> {
        if max <= 0 || interval_secs <= 0 {
            return None;
        }
        let usable = max as f64 / 2.0 * 0.9;
        // The window is fixed, not sliding: what is saved up and what comes in within one must fit together.
        let burst = ((usable * 0.3) as u32).max(1);
        Some(Self { per_second: (usable * 0.7 / interval_secs as f64).max(0.1), burst })
    }
}

/// The gate every call passes.
#[derive(Debug)]
pub(crate) struct Throttle(Mutex<State>);

#[derive(Debug)]
struct State {
    /// What was given at the start: more is never taken, whatever a server allows.
    given: Rate,
    rate: Rate,
    all: TokenBucket,
    refresh: TokenBucket,
    paused_until: Option<Instant>,
    /// How many pauses there were.
    pauses: u64,
}

impl State {
    /// Lines in which nobody stands.
    fn refill(&mut self) {
        let rate = self.rate;
        self.all = TokenBucket::new(rate.per_second, rate.burst);
        self.refresh = TokenBucket::new(rate.per_second / 2.0, (rate.burst / 2).max(1));
    }
}

impl Throttle {
    pub(crate) fn new(rate: Rate) -> Self {
        Self(Mutex::new(State {
            given: rate,
            rate,
            all: TokenBucket::new(rate.per_second, rate.burst),
            refresh: TokenBucket::new(rate.per_second / 2.0, (rate.burst / 2).max(1)),
            paused_until: None,
            pauses: 0,
        }))
    }

    /// Waits for a turn. A refresh waits for that of its lane first and only then stands in line with the others: a hundred that
    /// come at once would else take the next hundred turns of all.
    pub(crate) async fn turn(&self, lane: Lane) {
        if lane == Lane::Refresh {
            self.turn_in(|state| &mut state.refresh).await;
        }
        self.turn_in(|state| &mut state.all).await;
    }

    async fn turn_in(&self, bucket: impl Fn(&mut State) -> &mut TokenBucket) {
        loop {
            let (until, stands) = {
                let mut state = self.lock();
                let now = Instant::now();
                match state.paused_until.filter(|paused| *paused > now) {
                    Some(paused) => (paused, None),
                    None => (now + bucket(&mut state).reserve(now).min(FAR), Some(state.pauses)),
                }
            };
            tokio::time::sleep_until(until).await;
            // Nobody keeps a place from before a pause: all of them come when it is over.
            if stands.is_some_and(|stands| stands == self.lock().pauses) {
                return;
            }
        }
    }

    /// Nobody's turn for this long, also of those who wait for theirs already.
    pub(crate) fn pause(&self, pause: Duration) {
        let mut state = self.lock();
        let now = Instant::now();
        let until = now + pause.min(LONGEST_PAUSE);
        state.paused_until = Some(state.paused_until.map_or(until, |before| before.max(until)));
        state.pauses += 1;
        state.refill();
        // Those who stood in line stand in line anew, and no more of them come at once than the pause makes up for.
        let State { all, refresh, .. } = &mut *state;
        for bucket in [all, refresh] {
            while bucket.try_take(now) {}
        }
    }

    /// At most this from now on, or as much as was given at the start where the server has no limit; more is never taken.
    pub(crate) fn limit_to(&self, limit: Option<Rate>) {
        let mut state = self.lock();
        let given = state.given;
        let rate = limit.map_or(given, |limit| Rate {
            per_second: limit.per_second.min(given.per_second),
            burst: limit.burst.min(given.burst),
        });
        if rate != state.rate {
            state.rate = rate;
            state.refill();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refreshing_does_not_starve_actions() {
        let throttle = Throttle::new(Rate { per_second: 10.0, burst: 2 });
        let start = Instant::now();
        for _ in 0..20 {
            throttle.turn(Lane::Refresh).await;
        }
        assert!(start.elapsed() >= Duration::from_millis(3500), "half the rate: {:?}", start.elapsed());
        let start = Instant::now();
        throttle.turn(Lane::Action).await;
        assert!(start.elapsed() <= Duration::from_millis(100), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_refreshes_at_once_delay_no_action() {
        let throttle = std::sync::Arc::new(Throttle::new(Rate { per_second: 10.0, burst: 2 }));
        let refreshes: Vec<_> = (0..100)
            .map(|_| {
                let throttle = std::sync::Arc::clone(&throttle);
                tokio::spawn(async move { throttle.turn(Lane::Refresh).await })
            })
            .collect();
        tokio::task::yield_now().await;
        for _ in 0..10 {
            let start = Instant::now();
            throttle.turn(Lane::Action).await;
            assert!(start.elapsed() <= Duration::from_millis(400), "{:?}", start.elapsed());
        }
        for refresh in refreshes {
            refresh.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_is_raised_is_made_use_of() {
        let throttle = Throttle::new(Rate { per_second: 10.0, burst: 1 });
        let took = async || {
            let start = Instant::now();
            for _ in 0..10 {
                throttle.turn(Lane::Action).await;
            }
            start.elapsed()
        };
        throttle.limit_to(Some(Rate { per_second: 1.0, burst: 1 }));
        assert!(took().await >= Duration::from_secs(9));
        throttle.limit_to(Some(Rate { per_second: 5.0, burst: 1 }));
        assert!(took().await < Duration::from_secs(3));
        throttle.limit_to(None);
        assert!(took().await < Duration::from_millis(1200));
        throttle.limit_to(Some(Rate { per_second: 1000.0, burst: 1000 }));
        assert!(took().await > Duration::from_millis(800), "no more than was given");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_everybody() {
        let throttle = Throttle::new(Rate::default());
        throttle.pause(Duration::from_secs(9));
        let start = Instant::now();
        throttle.turn(Lane::Action).await;
        assert!(start.elapsed() >= Duration::from_secs(9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_those_too_who_waited_before_it_and_they_do_not_come_all_at_once() {
        let throttle = std::sync::Arc::new(Throttle::new(Rate { per_second: 10.0, burst: 2 }));
        let start = Instant::now();
        let turns: Vec<_> = (0..60)
            .map(|number| {
                let throttle = std::sync::Arc::clone(&throttle);
                let lane = if number % 2 == 0 { Lane::Action } else { Lane::Refresh };
                tokio::spawn(async move {
                    throttle.turn(lane).await;
                    start.elapsed()
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(1050)).await;
        throttle.pause(Duration::from_millis(1000));
        let pause = Duration::from_millis(1050)..Duration::from_millis(2050);
        let mut took = Vec::new();
        for turn in turns {
            took.push(turn.await.expect("a turn"));
        }
        took.sort();
        assert!(!took.iter().any(|at| pause.contains(at)), "{took:?}");
        let within = |start: Duration, length: Duration| {
            took.iter().filter(|at| (start..start + length).contains(at)).count()
        };
        for at in took.iter().filter(|at| **at >= pause.end) {
            assert!(within(*at, Duration::from_secs(1)) <= 13, "{took:?}");
        }
        assert!(took.last().is_some_and(|last| *last < Duration::from_secs(10)), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_next_to_nothing_is_slow_and_no_more() {
        let throttle = Throttle::new(Rate { per_second: 1e-20, burst: 1 });
        throttle.turn(Lane::Action).await;
        let start = Instant::now();
        throttle.turn(Lane::Action).await;
        assert!(start.elapsed() >= FAR, "{:?}", start.elapsed());
    }

    #[test]
    fn the_servers_double_counting_is_allowed_for() {
        let rate = Rate::under_limit(25, 1).expect("a limit");
        assert!(rate.per_second + f64::from(rate.burst) <= 12.5, "{rate:?}");
        assert_eq!(Rate::under_limit(0, 1), None);
    }
}
