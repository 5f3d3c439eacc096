//! The whole cloud at a moment, to come back to: a test tries one thing and then another from there, an administrator restores the
//! server's database from a backup.

use jiff::{SignedDuration, Timestamp};

use super::faults::{Fault, Weather};
use super::state::State;
use super::{CloudStack, lock};

/// What there was at a moment, what was under way, and what was to go wrong. Not the requests so far: those were made.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Timestamp,
    state: State,
    faults: Vec<Fault>,
    weather: Option<Weather>,
}

impl CloudStack {
    /// Everything as it is now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state().clone();
        let (faults, weather) = (lock(&self.0.faults).clone(), lock(&self.0.weather).clone());
        Snapshot { at: self.0.clock.now(), state, faults, weather }
    }

    /// Everything as it was then. Time goes on: what was under way takes as long from now as it would have from then, and the
    /// same requests get the same answers.
    pub fn restore(&self, snapshot: &Snapshot) {
        let Snapshot { at, mut state, faults, weather } = snapshot.clone();
        state.postpone(self.0.clock.now().duration_since(at));
        *lock(&self.0.state) = state;
        *lock(&self.0.faults) = faults;
        *lock(&self.0.weather) = weather;
    }

    /// Somebody sets the server's clock so far ahead of everybody's, or behind. What is under way takes no longer for it.
    pub fn set_clock_ahead(&self, ahead: SignedDuration) {
        let mut state = self.state();
        let leap = ahead - state.ahead;
        state.ahead = ahead;
        state.postpone(leap);
    }
}
