//! What cannot be had at the moment, remembered for a while so that it is not asked for again at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a first refusal is remembered; each further one doubles it.
const FIRST: Duration = Duration::from_secs(3 * 60);
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refused {
    /// An instance type in a zone.
    Type { zone: String, name: String },
    /// Everything in a zone: it has no storage.
    Zone(String),
    /// A network: it has no addresses, or nobody says what it has not.
    Network(String),
    /// A NodePool, with its kind of affinity: the hosts that leaves are full.
    Pool { name: String, affinity: String },
}

/// What was refused, until when.
#[derive(Debug, Default)]
pub(crate) struct Unavailable(Mutex<BTreeMap<Refused, (Instant, Duration)>>);

impl Unavailable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Refused, (Instant, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was refused, again.
    pub(crate) fn refuse(&self, what: Refused) {
        let mut refused = self.lock();
        let now = Instant::now();
        let time = match refused.get(&what) {
            // Soon after the last time ran out: no better yet.
            Some((until, time)) if now <= *until + LONGEST => (*time * 2).min(LONGEST),
            _ => FIRST,
        };
        refused.insert(what, (now + time, time));
    }

    /// It was had after all.
    pub(crate) fn allow(&self, what: &Refused) {
        self.lock().remove(what);
    }

    /// Whether it is not worth asking for.
    pub(crate) fn is_refused(&self, what: &Refused) -> bool {
        self.lock().get(what).is_some_and(|(until, _)| Instant::now() < *until)
    }

    /// How much is refused at the moment.
    pub(crate) fn count(&self) -> usize {
        let now = Instant::now();
        self.lock().values().filter(|(until, _)| now < *until).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_again_is_left_alone_for_longer() {
        let unavailable = Unavailable::default();
        let what = Refused::Network("n".into());
        unavailable.refuse(what.clone());
        assert!(unavailable.is_refused(&what));
        tokio::time::sleep(Duration::from_secs(181)).await;
        assert!(!unavailable.is_refused(&what));
        unavailable.refuse(what.clone());
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(unavailable.is_refused(&what), "six minutes now");
        assert_eq!(unavailable.count(), 1);
        unavailable.allow(&what);
        assert!(!unavailable.is_refused(&what));
    }
}
