//! How the engine's lookup tables hash: always the same way, so that nothing depends on the run.
//!
//! Nothing may depend on the way either. Tables are looked things up in, never walked through; the tests of this crate
//! change the seed to prove that no decision notices.

#[cfg(not(test))]
pub(crate) use foldhash::fast::FixedState;

#[cfg(test)]
pub(crate) use seeded::{FixedState, with_seed};

#[cfg(test)]
mod seeded {
    use std::cell::Cell;
    use std::hash::BuildHasher;

    use foldhash::fast::{FixedState as Fold, FoldHasher};

    thread_local! {
        static SEED: Cell<u64> = const { Cell::new(0) };
    }

    /// Runs `work` with every table it makes seeded by `seed`.
    pub(crate) fn with_seed<R>(seed: u64, work: impl FnOnce() -> R) -> R {
        let before = SEED.replace(seed);
        let result = work();
        SEED.set(before);
        result
    }

    /// Stands in for the fixed state of the real program.
    #[derive(Clone)]
    pub(crate) struct FixedState(Fold);

    impl Default for FixedState {
        fn default() -> Self {
            FixedState(Fold::with_seed(SEED.get()))
        }
    }

    impl BuildHasher for FixedState {
        type Hasher = FoldHasher<'static>;

        fn build_hasher(&self) -> Self::Hasher {
            self.0.build_hasher()
        }
    }
}
