//! What a part of the program is given instead of reaching for it: time, randomness, and where to count.

use crate::clock::{SharedClock, TokioClock, WallClock};
use crate::entropy::Entropy;
use crate::metrics::Registry;

/// Clock, randomness and metrics of one program or one simulated replica.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Tells the time.
    pub clock: SharedClock,
    /// Source of ids and jitter.
    pub entropy: Entropy,
    /// Where metrics are kept.
    pub registry: Registry,
}

impl Environment {
    /// For the binary: the machine's time and randomness.
    pub fn real() -> Self {
        Self {
            clock: std::sync::Arc::new(WallClock::of_machine()),
            entropy: Entropy::from_os(),
            registry: Registry::new(),
        }
    }

    /// For a simulation or test: everything follows from the two arguments.
    pub fn seeded(epoch: jiff::Timestamp, seed: u64) -> Self {
        Self {
            clock: std::sync::Arc::new(TokioClock::starting_at(epoch)),
            entropy: Entropy::from_seed(seed),
            registry: Registry::new(),
        }
    }
}
