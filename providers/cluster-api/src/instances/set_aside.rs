//! Machines that may not be written to, because a policy protects them, say: they are left out for a while, and nobody gets them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::scalable::ScalableKey;

/// How long a Machine is left out.
const FOR: Duration = Duration::from_secs(30 * 60);
/// How many of a resource are left out at most: where all of them are refused, making others would not help.
const MOST: usize = 3;

/// See the module. When it was found out that a Machine may not be written to, by its resource and its uid.
#[derive(Debug, Default)]
pub struct SetAside(Mutex<BTreeMap<ScalableKey, BTreeMap<String, Instant>>>);

impl SetAside {
    /// The Machines of a resource that are left out, by uid.
    pub fn of(&self, id: &ScalableKey) -> BTreeSet<String> {
        let state = self.lock();
        let of_it = state.get(id).into_iter().flatten();
        of_it.filter(|(_, at)| at.elapsed() < FOR).map(|(uid, _)| uid.clone()).collect()
    }

    /// Leaves these Machines out, by uid.
    pub fn add(&self, id: &ScalableKey, machines: &[String]) {
        let mut state = self.lock();
        state.retain(|_, of_it| {
            of_it.retain(|_, at| at.elapsed() < FOR);
            !of_it.is_empty()
        });
        for uid in machines {
            let of_it = state.entry(id.clone()).or_default();
            if of_it.len() < MOST {
                of_it.entry(uid.clone()).or_insert_with(Instant::now);
            }
        }
    }

    /// All of them, so that who reckons with them knows when they change.
    pub fn version(&self) -> Vec<String> {
        let state = self.lock();
        let all = state.values().flatten();
        all.filter(|(_, at)| at.elapsed() < FOR).map(|(uid, _)| uid.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ScalableKey, BTreeMap<String, Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
