//! Whose replicas somebody else has set of late where Karpenter had set others: the status says so for a while after each time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::scalable::ScalableKey;

/// A tool that keeps doing it does it again within this time.
const TOLD_FOR: Duration = Duration::from_secs(10 * 60);

/// What was set, by resource, and when.
#[derive(Debug, Default)]
pub struct Reverts(Mutex<BTreeMap<ScalableKey, (Instant, String)>>);

impl Reverts {
    /// Somebody did.
    pub fn note(&self, id: &ScalableKey, what: &str) {
        self.lock().insert(id.clone(), (Instant::now(), what.to_owned()));
    }

    /// What was set lately of these.
    pub fn lately<'a>(&self, ids: impl Iterator<Item = &'a ScalableKey>) -> Vec<String> {
        let mut noted = self.lock();
        noted.retain(|_, (when, _)| when.elapsed() < TOLD_FOR);
        ids.filter_map(|id| noted.get(id)).map(|(_, what)| what.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ScalableKey, (Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
