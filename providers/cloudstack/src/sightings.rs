//! Since when machines are seen in the state they are in.
//!
//! It is not written down: whoever comes after us counts anew from when they first look, and so acts later, never earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::model::VirtualMachine;

/// What a machine did while nobody could look at it for so long, nobody knows.
const OUT_OF_SIGHT: Duration = Duration::from_secs(10 * 60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sightings(Mutex<BTreeMap<String, Sighting>>);

#[derive(Debug)]
struct Sighting {
    /// Nothing while something is at work on it: what comes of that is another state, whatever it is called.
    state: Option<String>,
    /// Since when it is seen at all.
    there: Instant,
    first: Instant,
    last: Instant,
}

impl Sightings {
    /// A machine is seen: for how long it has been seen as it is now.
    pub(crate) fn see(&self, machine: &VirtualMachine) -> Duration {
        let now = Instant::now();
        let state = (!machine.has_pending_job()).then(|| machine.state.clone());
        let mut sightings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match sightings.get_mut(&machine.id) {
            Some(known) if known.state == state && now.duration_since(known.last) < OUT_OF_SIGHT => {
                known.last = now;
                now.duration_since(known.first)
            }
            known => {
                let there = known.map_or(now, |known| known.there);
                sightings.insert(machine.id.clone(), Sighting { state, there, first: now, last: now });
                Duration::ZERO
            }
        }
    }

    /// How long ago a machine was first seen: it is no younger, whatever the server's clock says.
    pub(crate) fn least_age(&self, id: &str) -> Duration {
        let sightings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sightings.get(id).map_or(Duration::ZERO, |known| known.there.elapsed())
    }

    /// Whether since then a machine has been seen standing still for so long: it is time to do something about it.
    pub(crate) fn has_come_to_rest(&self, rest: Duration, since: Instant) -> bool {
        let now = Instant::now();
        let sightings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sightings.values().any(|known| {
            let stands_still = matches!(known.state.as_deref(), Some("Stopped" | "Unknown"));
            let due = known.first + rest;
            stands_still && since < due && due <= now
        })
    }

    /// The state a machine was last seen in with nothing at work on it, unless that is long ago.
    pub(crate) fn state(&self, id: &str) -> Option<String> {
        let sightings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sightings.get(id).filter(|known| known.last.elapsed() < OUT_OF_SIGHT)?.state.clone()
    }

    /// Forgets all machines but these.
    pub(crate) fn keep(&self, seen: &BTreeSet<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| seen.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(state: &str, job: Option<&str>) -> VirtualMachine {
        let jobid = job.map(str::to_owned);
        VirtualMachine { id: "1".into(), state: state.into(), jobid, ..VirtualMachine::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_stands_still_is_due_once_and_one_that_runs_never() {
        let sightings = Sightings::default();
        let minute = Duration::from_secs(60);
        sightings.see(&machine("Stopped", None));
        let begun = Instant::now();
        tokio::time::advance(minute).await;
        assert!(!sightings.has_come_to_rest(2 * minute, begun));
        tokio::time::advance(minute).await;
        assert!(sightings.has_come_to_rest(2 * minute, begun));
        let looked = Instant::now();
        tokio::time::advance(minute).await;
        assert!(!sightings.has_come_to_rest(2 * minute, looked), "that was looked at");
        sightings.see(&machine("Running", None));
        tokio::time::advance(2 * minute).await;
        assert!(!sightings.has_come_to_rest(2 * minute, looked));
    }

    #[tokio::test(start_paused = true)]
    async fn time_counts_from_the_first_sight_of_a_state_and_anew_after_any_other_or_a_long_absence() {
        let sightings = Sightings::default();
        let minute = Duration::from_secs(60);
        let after = async |minutes: u32, state: &str, job: Option<&str>| {
            tokio::time::advance(minute * minutes).await;
            sightings.see(&machine(state, job))
        };
        assert_eq!(after(0, "Stopped", None).await, Duration::ZERO);
        assert_eq!(after(2, "Stopped", None).await, 2 * minute);
        assert_eq!(after(2, "Stopped", None).await, 4 * minute);
        assert_eq!(sightings.state("1").as_deref(), Some("Stopped"));
        assert_eq!(after(2, "Stopped", Some("job")).await, Duration::ZERO, "something is at work on it");
        assert_eq!(after(2, "Stopped", None).await, Duration::ZERO, "and came to nothing");
        assert_eq!(after(2, "Running", None).await, Duration::ZERO);
        assert_eq!(after(2, "Stopped", None).await, Duration::ZERO);
        assert_eq!(after(30, "Stopped", None).await, Duration::ZERO, "it may have run meanwhile");
        tokio::time::advance(30 * minute).await;
        assert_eq!(sightings.state("1"), None, "who knows");
        assert_eq!(sightings.least_age("1"), 72 * minute, "it was there all the time");
        sightings.keep(&BTreeSet::new());
        assert_eq!(sightings.least_age("1"), Duration::ZERO);
        assert_eq!(after(2, "Stopped", None).await, Duration::ZERO);
    }
}
