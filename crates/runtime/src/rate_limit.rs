//! How soon a failed item may be tried again, and how many workers a controller gets: client-go's limiters and
//! Karpenter's scaling formulas.
//!
//! Limiters are plain state machines on tokio's clock; the queue asks them, nothing here waits.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Decides how long an item waits before its next turn.
pub trait RateLimiter<K>: Send {
    /// The wait before the next turn of `key`; asking counts as a failure.
    fn when(&mut self, key: &K, now: Instant) -> Duration;

    /// `key` went well: its next wait starts from the beginning.
    fn forget(&mut self, key: &K);

    /// How often `key` has failed since it was last forgotten.
    fn failures(&self, key: &K) -> u32;
}

impl<K> RateLimiter<K> for Box<dyn RateLimiter<K>> {
    fn when(&mut self, key: &K, now: Instant) -> Duration {
        (**self).when(key, now)
    }

    fn forget(&mut self, key: &K) {
        (**self).forget(key);
    }

    fn failures(&self, key: &K) -> u32 {
        (**self).failures(key)
    }
}

/// Doubles an item's wait with each of its failures, between two bounds.
#[derive(Debug)]
pub struct Exponential<K> {
    base: Duration,
    max: Duration,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> Exponential<K> {
    /// Waits from `base` to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, failures: BTreeMap::new() }
    }
}

impl<K: Ord + Clone + Send> RateLimiter<K> for Exponential<K> {
    fn when(&mut self, key: &K, _now: Instant) -> Duration {
        let failures = match self.failures.get_mut(key) {
            Some(failures) => failures,
            None => self.failures.entry(key.clone()).or_insert(0),
        };
        let wait = 2_u32.checked_pow(*failures).and_then(|factor| self.base.checked_mul(factor));
        *failures = failures.saturating_add(1);
        wait.unwrap_or(self.max).min(self.max)
    }

    fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }
}

/// Lets `burst` through at once and `per_second` in the long run, whatever the item.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    last: Option<Instant>,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(per_second: f64, burst: u32) -> Self {
        Self { per_second, burst: f64::from(burst), tokens: f64::from(burst), last: None }
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }

    /// Takes a token in any case and says how long to wait until it is there.
    pub fn reserve(&mut self, now: Instant) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or(Duration::MAX)
    }

    fn refill(&mut self, now: Instant) {
        if let Some(last) = self.last {
            let earned = now.saturating_duration_since(last).as_secs_f64() * self.per_second;
            self.tokens = (self.tokens + earned).min(self.burst);
        }
        self.last = Some(self.last.map_or(now, |last| last.max(now)));
    }
}

impl<K> RateLimiter<K> for TokenBucket {
    fn when(&mut self, _key: &K, now: Instant) -> Duration {
        self.reserve(now)
    }

    fn forget(&mut self, _key: &K) {}

    fn failures(&self, _key: &K) -> u32 {
        0
    }
}

/// The strictest of several limiters; all are asked every time.
pub struct MaxOf<K>(Vec<Box<dyn RateLimiter<K>>>);

impl<K> MaxOf<K> {
    /// Of these limiters.
    pub fn new(limiters: Vec<Box<dyn RateLimiter<K>>>) -> Self {
        Self(limiters)
    }
}

impl<K> RateLimiter<K> for MaxOf<K> {
    fn when(&mut self, key: &K, now: Instant) -> Duration {
        self.0.iter_mut().map(|limiter| limiter.when(key, now)).max().unwrap_or_default()
    }

    fn forget(&mut self, key: &K) {
        for limiter in &mut self.0 {
            limiter.forget(key);
        }
    }

    fn failures(&self, key: &K) -> u32 {
        self.0.iter().map(|limiter| limiter.failures(key)).max().unwrap_or(0)
    }
}

/// Waits of an item between `base` and `max`, and all items together through a bucket.
pub fn exponential_and_bucket<K: Ord + Clone + Send + 'static>(
    base: Duration,
    max: Duration,
    bucket: Bucket,
) -> Box<dyn RateLimiter<K>> {
    Box::new(MaxOf::new(vec![
        Box::new(Exponential::new(base, max)),
        Box::new(TokenBucket::new(f64::from(bucket.per_second), bucket.burst)),
    ]))
}

/// What a controller gets that names no limiter: 5 ms doubling up to 1000 s (rule Q3).
pub fn unspecified<K: Ord + Clone + Send + 'static>() -> Box<dyn RateLimiter<K>> {
    Box::new(Exponential::new(Duration::from_millis(5), Duration::from_secs(1000)))
}

/// What a loop of its own gets: 5 ms doubling up to 30 s. It is a loop for the whole cluster, which must not stand still for a
/// quarter of an hour because something failed for a while.
pub fn looped<K: Ord + Clone + Send + 'static>() -> Box<dyn RateLimiter<K>> {
    Box::new(Exponential::new(Duration::from_millis(5), Duration::from_secs(30)))
}

/// operatorpkg's "reasonable" limiter (rule Q3): 100 ms to 1 min, all items at most 10 per second with bursts of 100.
pub fn reasonable<K: Ord + Clone + Send + 'static>() -> Box<dyn RateLimiter<K>> {
    exponential_and_bucket(
        Duration::from_millis(100),
        Duration::from_secs(60),
        Bucket { per_second: 10, burst: 100 },
    )
}

/// The measures of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Tokens per second.
    pub per_second: u32,
    /// Tokens in a full bucket.
    pub burst: u32,
}

/// Workers of a controller at this CPU request: `min` at one core, `max` at 60, linear between (rule Q1).
pub fn scale(cpu_millicores: i64, min: u32, max: u32) -> u32 {
    let cores = (cpu_millicores as f64 / 1000.0).ceil();
    let slope = f64::from(max.saturating_sub(min)) / 59.0;
    let more = (slope * (cores - 1.0)).trunc().clamp(-f64::from(max), f64::from(max));
    (f64::from(min) + more).clamp(f64::from(min), f64::from(max.max(min))) as u32
}

/// The bucket of a controller that scales: `min_per_second` at `min_workers`, in proportion above (rule Q2).
pub fn bucket(min_per_second: u32, min_workers: u32, workers: u32) -> Bucket {
    let factor = f64::from(min_per_second) / f64::from(min_workers.max(1));
    let per_second = (f64::from(workers) * factor).ceil() as u32;
    Bucket { per_second, burst: per_second.saturating_mul(10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(origin: Instant, ms: u64) -> Instant {
        origin + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn an_items_wait_doubles_up_to_the_bound_and_starts_over_when_forgotten() {
        let now = Instant::now();
        let mut limiter = Exponential::new(Duration::from_millis(5), Duration::from_secs(1000));
        let waits: Vec<_> = (0..4).map(|_| limiter.when(&"a", now).as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40]);
        assert_eq!(limiter.when(&"b", now), Duration::from_millis(5), "another item has a count of its own");
        assert_eq!(limiter.failures(&"a"), 4);
        let last = (0..100).map(|_| limiter.when(&"a", now)).last();
        assert_eq!(last, Some(Duration::from_secs(1000)));
        limiter.forget(&"a");
        assert_eq!((limiter.failures(&"a"), limiter.when(&"a", now)), (0, Duration::from_millis(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_its_burst_and_then_one_token_per_interval() {
        let origin = Instant::now();
        let mut bucket = TokenBucket::new(10.0, 2);
        let mut reserve = |ms| bucket.reserve(at(origin, ms)).as_millis();
        assert_eq!([reserve(0), reserve(0), reserve(0), reserve(0)], [0, 0, 100, 200]);
        assert_eq!(reserve(400), 0, "200 ms of debt were paid off and one token earned");
        assert_eq!(reserve(10_000), 0);
        let mut bucket = TokenBucket::new(5.0, 1);
        assert!(bucket.try_take(origin));
        assert!(!bucket.try_take(at(origin, 199)), "a refusal costs nothing");
        assert!(bucket.try_take(at(origin, 200)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_strictest_limiter_decides_and_all_are_charged() {
        let now = Instant::now();
        let mut limiter = exponential_and_bucket::<&str>(
            Duration::from_millis(5),
            Duration::from_secs(10),
            Bucket { per_second: 1, burst: 1 },
        );
        assert_eq!(limiter.when(&"a", now), Duration::from_millis(5));
        assert_eq!(
            limiter.when(&"b", now),
            Duration::from_secs(1),
            "the bucket was emptied by the other item"
        );
        assert_eq!(limiter.failures(&"a"), 1);
    }

    #[test]
    fn workers_grow_with_the_cpu_request_as_upstreams_do() {
        let table = [
            (1000, 1000, 5000, 1000),
            (0, 10, 1000, 10),
            (1001, 10, 1000, 26),
            (2000, 1000, 5000, 1067),
            (30_000, 100, 5000, 2508),
            (60_000, 10, 1000, 1000),
            (1_000_000, 10, 1000, 1000),
            (-5, 10, 1000, 10),
        ];
        for (cpu, min, max, expected) in table {
            assert_eq!(scale(cpu, min, max), expected, "{cpu} millicores between {min} and {max}");
        }
    }

    #[test]
    fn buckets_grow_with_the_workers() {
        assert_eq!(bucket(10, 1000, 1000), Bucket { per_second: 10, burst: 100 });
        assert_eq!(bucket(10, 1000, 1067), Bucket { per_second: 11, burst: 110 });
        assert_eq!(bucket(100, 100, 5000), Bucket { per_second: 5000, burst: 50_000 });
    }
}
