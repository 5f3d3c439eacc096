//! Bugs made on purpose, so that tests can show that the simulator finds them.
//!
//! They exist only with the feature `planted-bugs`, which tests switch on and no program is built with: without it every
//! question here is answered "no" by the compiler.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A NodeClaim is let go as soon as its provider has been told to remove the instance.
    LetsGoEarly,
    /// An instance is asked for before the NodeClaim carries the finalizer.
    LaunchesUnheld,
    /// What the provider does not list is taken to be gone.
    TrustsLists,
    /// A node's instance is removed without waiting for its pods.
    DoesNotDrain,
    /// Pods are deleted instead of evicted.
    DeletesPods,
    /// All pods of a node are evicted at once.
    KeepsNoOrder,
    /// A node is labelled registered and keeps the taint.
    LeavesTheTaint,
}

#[cfg(feature = "planted-bugs")]
mod bed {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug, for what runs on this thread until the guard is dropped.
    #[must_use]
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.set(Some(bug));
        Planted
    }

    /// Keeps a bug planted.
    #[derive(Debug)]
    pub struct Planted;

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }

    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use bed::is_planted;
#[cfg(feature = "planted-bugs")]
pub use bed::{Planted, plant};

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
