//! The faults of the Go provider, made on purpose, so that tests can show that the simulator finds them.
//!
//! They exist only with the feature `planted-bugs`, which tests switch on and no program is built with: without it every
//! question here is answered "no" by the compiler.

/// Which fault is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// W1: what was asked for, and is not there yet, is asked for once more at every look.
    AsksAgain,
    /// W2: every call that a Machine is to go lowers the level.
    LowersAtEachCall,
    /// W3: Machines that are somebody's serve others.
    ClaimsTheClaimed,
    /// W4: a NodeClaim without an id is let go, whatever was made for it.
    LetsGoWithoutId,
    /// W7: the level falls during a rollout as it does at any other time.
    LowersInRollouts,
}

#[cfg(feature = "planted-bugs")]
mod bed {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault, for what runs on this thread until the guard is dropped.
    #[must_use]
    pub fn plant(fault: Fault) -> Planted {
        PLANTED.set(Some(fault));
        Planted
    }

    /// Keeps a fault planted.
    #[derive(Debug)]
    pub struct Planted;

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use bed::is_planted;
#[cfg(feature = "planted-bugs")]
pub use bed::{Planted, plant};

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_: Fault) -> bool {
    false
}
