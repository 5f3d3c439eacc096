//! Randomness that is given: one seed, from it independent streams by name.
//!
//! A new draw in one stream does not shift the others, so a simulation stays comparable across changes. Jitter, reconcile
//! ids and identities come from here; nothing security relevant does.

use std::hash::{BuildHasher, RandomState};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The source of all randomness of one program or one simulated replica.
#[derive(Clone, Debug)]
pub struct Entropy {
    seed: [u8; 32],
}

impl Entropy {
    /// Everything follows from `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        Self { seed }
    }

    /// A seed from the operating system, by way of the keys the standard library draws for its hashers. For the binary only.
    pub fn from_os() -> Self {
        let mut seed = [0; 32];
        for (i, part) in seed.chunks_mut(8).enumerate() {
            part.copy_from_slice(&RandomState::new().hash_one(i).to_le_bytes());
        }
        Self { seed }
    }

    /// The stream of this name: the same name gives the same stream.
    pub fn stream(&self, name: &str) -> Stream {
        Stream(ChaCha8Rng::from_seed(self.derive(name)))
    }

    /// Another source below this one, for a part of the program that has streams of its own.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self { seed: self.derive(name) }
    }

    /// The seed of `name`: this seed and the name's bytes absorbed in turn, each block through the generator.
    fn derive(&self, name: &str) -> [u8; 32] {
        let mut state = self.seed;
        let absorb = |state: &mut [u8; 32], block: &[u8]| {
            for (byte, with) in state.iter_mut().zip(block) {
                *byte ^= with;
            }
            ChaCha8Rng::from_seed(*state).fill_bytes(state);
        };
        absorb(&mut state, &(name.len() as u64).to_le_bytes());
        for block in name.as_bytes().chunks(32) {
            absorb(&mut state, block);
        }
        state
    }
}

/// A sequence of random values.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// Uniform in [0, 1).
    pub fn fraction(&mut self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `duration` lengthened by up to `factor` of itself, as client-go jitters its waits.
    pub fn jitter(&mut self, duration: std::time::Duration, factor: f64) -> std::time::Duration {
        duration.mul_f64(1.0 + self.fraction() * factor.max(0.0))
    }

    /// A random (version 4) UUID.
    pub fn uuid(&mut self) -> uuid::Uuid {
        let mut bytes = [0; 16];
        self.0.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stream_depends_on_seed_and_name_and_on_nothing_else() {
        let entropy = Entropy::from_seed(7);
        assert_eq!(entropy.stream("lease").uuid(), Entropy::from_seed(7).stream("lease").uuid());
        assert_ne!(entropy.stream("lease").uuid(), entropy.stream("events").uuid());
        assert_ne!(entropy.stream("lease").uuid(), Entropy::from_seed(8).stream("lease").uuid());
        assert_ne!(entropy.child("a").stream("lease").uuid(), entropy.stream("lease").uuid());
        assert_ne!(Entropy::from_os().stream("x").uuid(), Entropy::from_os().stream("x").uuid());
    }

    #[test]
    fn jitter_lengthens_by_at_most_the_factor() {
        let mut stream = Entropy::from_seed(1).stream("jitter");
        for _ in 0..1000 {
            let jittered = stream.jitter(Duration::from_secs(2), 1.2);
            assert!(
                jittered >= Duration::from_secs(2) && jittered < Duration::from_millis(4400),
                "{jittered:?}"
            );
        }
    }

    #[test]
    fn ids_are_version_4_uuids() {
        let id = Entropy::from_seed(3).stream("ids").uuid();
        assert_eq!((id.get_version_num(), id.to_string().len()), (4, 36));
    }
}
