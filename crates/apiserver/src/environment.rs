//! What the server takes from outside: the time, ids and randomness.
//!
//! Nothing in this crate reads a clock or draws a random number except through [`Environment`], so a simulation that
//! gives the same one gets the same bytes. The wall clock lives with whoever runs a real server.

use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use uuid::Uuid;

/// The letters kube-apiserver draws generated names from: no vowels, so no words; no look-alikes.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LEN: usize = 5;

/// Where the server's time, ids and random name suffixes come from.
pub trait Environment: Send + Sync + 'static {
    /// The time written into `creationTimestamp` and its like.
    fn now(&self) -> Timestamp;

    /// A fresh object uid.
    fn uid(&self) -> Uuid;

    /// The random end of a name made from `generateName`.
    fn name_suffix(&self) -> String;
}

/// An environment that a seed decides: time starts at a given instant and runs with tokio's clock (so it can be paused),
/// ids and suffixes come from a ChaCha stream.
pub struct Seeded {
    epoch: Timestamp,
    started: tokio::time::Instant,
    stream: Mutex<ChaCha8Rng>,
}

impl Seeded {
    /// An environment whose clock reads `epoch` now.
    pub fn new(seed: u64, epoch: Timestamp) -> Self {
        Self {
            epoch,
            started: tokio::time::Instant::now(),
            stream: Mutex::new(ChaCha8Rng::seed_from_u64(seed)),
        }
    }

    fn draw<T>(&self, f: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        f(&mut self.stream.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for Seeded {
    /// Seed 0 at 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::new(0, Timestamp::constant(1_767_225_600, 0))
    }
}

impl Environment for Seeded {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.started.elapsed()).unwrap_or(SignedDuration::MAX);
        self.epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    fn uid(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.draw(|stream| stream.fill_bytes(&mut bytes));
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    fn name_suffix(&self) -> String {
        self.draw(|stream| {
            (0..SUFFIX_LEN)
                .map(|_| {
                    let at = stream.next_u32() as usize % SUFFIX_ALPHABET.len();
                    char::from(SUFFIX_ALPHABET[at])
                })
                .collect()
        })
    }
}

/// A time as `metav1.Time` writes it: UTC, whole seconds.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second()).unwrap_or(time);
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_ids_and_suffixes() {
        let (a, b) = (Seeded::default(), Seeded::default());
        assert_eq!(a.uid(), b.uid());
        assert_eq!(a.name_suffix(), b.name_suffix());
        assert_ne!(a.uid(), a.uid());
    }

    #[tokio::test(start_paused = true)]
    async fn time_runs_with_the_paused_clock() {
        let env = Seeded::default();
        assert_eq!(rfc3339(env.now()), "2026-01-01T00:00:00Z");
        tokio::time::sleep(std::time::Duration::from_millis(90_500)).await;
        assert_eq!(rfc3339(env.now()), "2026-01-01T00:01:30Z");
    }
}
