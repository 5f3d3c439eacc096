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
    /// Everything in a zone: it is disabled, or several types of it found no storage.
    Zone(String),
    /// A network: it has no addresses, or nobody says what it has not.
    Network(String),
    /// A NodePool, with its kind of affinity: the hosts that leaves are full.
    Pool { name: String, affinity: String },
}

/// What was refused, until when.
#[derive(Debug, Default)]
pub(crate) struct Unavailable {
    refused: Mutex<BTreeMap<Refused, (Instant, Duration)>>,
    /// Instance types by zone that were placed and found no storage, perhaps, and when. The server says nothing but that capacity lacks.
    unstored: Mutex<BTreeMap<String, BTreeMap<String, Instant>>>,
}

impl Unavailable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Refused, (Instant, Duration)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unstored(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, Instant>>> {
        self.unstored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        self.lock().clear();
        self.unstored().clear();
    }

    /// A type lacked capacity that may be the zone's storage. One type may ask for tags or hosts of its own; two are taken for the zone.
    pub(crate) fn refuse_unstored(&self, what: Refused, zone: &str, type_name: &str) {
        self.refuse(what);
        let now = Instant::now();
        let mut unstored = self.unstored();
        let types = unstored.entry(zone.to_owned()).or_default();
        types.retain(|_, at| now.duration_since(*at) < LONGEST);
        types.insert(type_name.to_owned(), now);
        if types.len() > 1 {
            self.refuse(Refused::Zone(zone.to_owned()));
        }
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
        if let Refused::Zone(zone) = what {
            self.unstored().remove(zone);
        }
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

    #[tokio::test(start_paused = true)]
    async fn a_zone_is_refused_only_when_two_types_of_it_found_no_storage() {
        let unavailable = Unavailable::default();
        let this = |name: &str| Refused::Type { zone: "z".into(), name: name.into() };
        let zone = Refused::Zone("z".into());
        for _ in 0..3 {
            unavailable.refuse_unstored(this("a"), "z", "a");
        }
        assert!(unavailable.is_refused(&this("a")) && !unavailable.is_refused(&zone));
        unavailable.allow(&zone);
        unavailable.refuse_unstored(this("b"), "z", "b");
        assert!(!unavailable.is_refused(&zone), "one was had in between");
        unavailable.refuse_unstored(this("a"), "z", "a");
        assert!(unavailable.is_refused(&zone));
    }
}
