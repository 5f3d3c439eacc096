//! A server that takes no orders for a while: it is under maintenance, or about to stop, and says so. Reads go on as ever. Everybody
//! who waits for a machine or wants one gone would order again every few seconds and be told the same, so one of them asks now and
//! then, for all.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::ApiError;

/// How long after the first refusal nobody orders again. It doubles each time.
const FIRST: Duration = Duration::from_secs(5);
/// Machines should come and go soon after it is over.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Closure {
    endpoint: String,
    until: Instant,
    pause: Duration,
    error: ApiError,
    /// Whether somebody prepares the order by which it is asked again.
    is_prepared: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Maintenance(Mutex<Option<Closure>>);

impl Maintenance {
    fn lock(&self) -> MutexGuard<'_, Option<Closure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this server took no orders when it was last given one.
    pub(super) fn is_closed(&self, endpoint: &str) -> bool {
        self.lock().as_ref().is_some_and(|closure| closure.endpoint == endpoint)
    }

    /// Why this server takes no orders, as far as is known without asking it.
    pub(super) fn refuses(&self, endpoint: &str) -> Option<ApiError> {
        let closure = self.lock();
        let closure = closure.as_ref().filter(|closure| closure.endpoint == endpoint)?;
        (Instant::now() < closure.until).then(|| closure.error.clone())
    }

    /// As [`Self::refuses`], of somebody who is about to order: where it is time to ask again he does, and the others wait for what he
    /// is told. What somebody prepared to ask with may be ordered by anybody who comes first: it says the same for all.
    pub(super) fn refuses_order(&self, endpoint: &str) -> Option<ApiError> {
        self.takes_turn(endpoint, false)
    }

    /// The same of somebody who asks for more before he orders: while he prepares the order that finds out, nobody else need.
    pub(super) fn refuses_preparations(&self, endpoint: &str) -> Option<ApiError> {
        self.takes_turn(endpoint, true)
    }

    fn takes_turn(&self, endpoint: &str, prepares: bool) -> Option<ApiError> {
        let mut closure = self.lock();
        let closure = closure.as_mut().filter(|closure| closure.endpoint == endpoint)?;
        let is_prepared = closure.is_prepared && !prepares;
        if Instant::now() < closure.until && !is_prepared {
            return Some(closure.error.clone());
        }
        closure.until = Instant::now() + closure.pause;
        closure.is_prepared = prepares;
        None
    }

    /// It refused an order, or did what was ordered or refused it for a reason of its own.
    pub(super) fn note(&self, endpoint: &str, refusal: Option<&ApiError>) {
        let mut closure = self.lock();
        let pause =
            closure.as_ref().filter(|closure| closure.endpoint == endpoint).map(|last| last.pause * 2);
        *closure = refusal.map(|error| {
            let pause = pause.unwrap_or(FIRST).min(LONGEST);
            Closure {
                endpoint: endpoint.to_owned(),
                until: Instant::now() + pause,
                pause,
                error: error.clone(),
                is_prepared: false,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ErrorKind;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_asks_for_all_ever_more_rarely_until_orders_are_taken() {
        let maintenance = Maintenance::default();
        let error = ApiError::new("deployVirtualMachine", ErrorKind::Closed, "under maintenance");
        assert_eq!(maintenance.refuses_order("a"), None);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            maintenance.note("a", Some(&error));
            let since = Instant::now();
            while maintenance.refuses("a").is_some() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            pauses.push(since.elapsed().as_secs());
            assert_eq!(maintenance.refuses_order("b"), None, "another server is another matter");
            assert_eq!(maintenance.refuses_order("a"), None, "one asks");
            assert_eq!(maintenance.refuses_order("a"), Some(error.clone()), "and the others wait");
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        maintenance.note("a", None);
        assert_eq!(maintenance.refuses_order("a"), None);
        maintenance.note("a", Some(&error));
        tokio::time::sleep(FIRST).await;
        assert_eq!(maintenance.refuses_order("a"), None, "it begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn one_prepares_the_order_that_finds_out_and_whoever_orders_first_gives_it() {
        let maintenance = Maintenance::default();
        let error = ApiError::new("destroyVirtualMachine", ErrorKind::Closed, "under maintenance");
        assert_eq!(maintenance.refuses_preparations("a"), None, "nothing is known of it");
        maintenance.note("a", Some(&error));
        assert!(maintenance.is_closed("a") && !maintenance.is_closed("b"));
        tokio::time::sleep(FIRST).await;
        assert_eq!(maintenance.refuses_preparations("a"), None, "one prepares");
        assert_eq!(maintenance.refuses_preparations("a"), Some(error.clone()), "and the others do not");
        assert_eq!(maintenance.refuses("a"), Some(error.clone()));
        assert_eq!(maintenance.refuses_order("a"), None, "it is ordered");
        assert_eq!(maintenance.refuses_order("a"), Some(error.clone()), "once");
        tokio::time::sleep(FIRST).await;
        assert_eq!(maintenance.refuses_preparations("a"), None);
        tokio::time::sleep(FIRST).await;
        assert_eq!(maintenance.refuses_preparations("a"), None, "the order never came");
    }
}
