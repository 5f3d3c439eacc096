//! Machines that are being destroyed, and those that would not go: an order that failed is given again ever more rarely, because a
//! host that does not answer does not answer sooner for being asked, and every order takes calls from others.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::ApiError;

/// How long a first failure is left alone; each further one doubles it.
const FIRST: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// What came of an order to destroy a machine.
pub(crate) enum LastOrder {
    /// There was none, or it came to nothing and may be given again.
    None,
    UnderWay,
    Protected,
    /// It failed, and it is too early for another.
    Failed(ApiError),
}

#[derive(Clone, Debug, Default)]
struct Order {
    /// The job that carries it out; none after it failed.
    job: Option<String>,
    pause: Duration,
    failure: Option<(ApiError, Instant)>,
}

/// Orders to destroy machines, by the machine's id.
#[derive(Debug, Default)]
pub(crate) struct Deletions(Mutex<BTreeMap<String, Order>>);

impl Deletions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Order>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its end was ordered: what is there all the same is hard to get rid of.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    /// How many machines are being destroyed.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().filter(|order| order.job.is_some()).count()
    }

    /// The job that destroys a machine.
    pub(crate) fn job(&self, id: &str) -> Option<String> {
        self.lock().get(id).and_then(|order| order.job.clone())
    }

    /// The machines whose end was ordered.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// This job destroys a machine.
    pub(crate) fn ordered(&self, id: &str, job: &str) {
        self.lock().entry(id.to_owned()).or_default().job = Some(job.to_owned());
    }

    /// The job failed.
    pub(crate) fn failed(&self, id: &str, error: &ApiError) {
        let mut orders = self.lock();
        let order = orders.entry(id.to_owned()).or_default();
        order.job = None;
        order.pause = (order.pause * 2).clamp(FIRST, LONGEST);
        order.failure = Some((error.clone(), Instant::now() + order.pause));
    }

    /// Why the last order failed, while it is too early for another.
    pub(crate) fn rests(&self, id: &str) -> Option<ApiError> {
        let orders = self.lock();
        let (error, until) = orders.get(id)?.failure.as_ref()?;
        (Instant::now() < *until).then(|| error.clone())
    }

    /// A machine is gone, or its order came to nothing: whether a job of ours was at work on it.
    pub(crate) fn ended(&self, id: &str) -> bool {
        self.lock().remove(id).is_some_and(|order| order.job.is_some())
    }
}
