//! How fast nodes may be launched, so that a burst does not overwhelm the infrastructure: so many per minute over all resources of a
//! NodeClass. How many a single resource may have on their way at once is the ledger's affair.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const MINUTE: f64 = 60.0;

/// The launches of late, by NodeClass.
#[derive(Debug, Default)]
pub struct Pace(Mutex<BTreeMap<String, Bucket>>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Pace {
    /// Of `wanted` launches, how many may start now; the rest after the time that comes back with it.
    pub fn take(
        &self,
        node_class: &str,
        per_minute: Option<u32>,
        wanted: usize,
    ) -> (usize, Option<Duration>) {
        let Some(per_minute) = per_minute.map(|rate| f64::from(rate.max(1))) else { return (wanted, None) };
        let now = Instant::now();
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(node_class.to_owned()).or_insert(Bucket { left: per_minute, at: now });
        let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * per_minute / MINUTE;
        *bucket = Bucket { left: (bucket.left + gained).min(per_minute), at: now };
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
    pub fn give_back(&self, node_class: &str, count: usize) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get_mut(node_class) {
            bucket.left += count as f64;
        }
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
}
