//! Machines that may not be written to, because a policy protects them, say: they are left out for a while, and nobody gets them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::scalable::ScalableKey;

/// How long a Machine is left out.
const FOR: Duration = Duration::from_secs(30 * 60);
/// How many of a resource that may not be claimed are left out at most: where all of them are refused, making others would not help.
const MOST: usize = 3;

/// What was to be written to a Machine and was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The claim of a NodeClaim: another Machine is made for that.
    Claim,
    /// The mark of one that is to go: it stays, and nothing is made in its place.
    Mark,
}

/// When it was found out that a Machine may not be written to, and what.
#[derive(Clone, Copy, Debug)]
struct Left {
    at: Instant,
    what: Refused,
}

impl Left {
    fn is_out(&self) -> bool {
        self.at.elapsed() < FOR
    }
}

/// See the module. By resource, and by the Machine's uid.
#[derive(Debug, Default)]
pub(crate) struct SetAside(Mutex<BTreeMap<ScalableKey, BTreeMap<String, Left>>>);

impl SetAside {
    /// The Machines of a resource that are left out, by uid.
    pub(crate) fn of(&self, id: &ScalableKey) -> BTreeSet<String> {
        let state = self.lock();
        let of_it = state.get(id).into_iter().flatten();
        of_it.filter(|(_, left)| left.is_out()).map(|(uid, _)| uid.clone()).collect()
    }

    /// How long it is until the next Machine of a resource is tried again.
    pub(crate) fn rest(&self, id: &ScalableKey) -> Option<Duration> {
        let state = self.lock();
        let rests = state.get(id)?.values().filter_map(|left| FOR.checked_sub(left.at.elapsed()));
        rests.filter(|rest| !rest.is_zero()).min()
    }

    /// Leaves these Machines out, by uid, to which this may not be written.
    pub(crate) fn add(&self, id: &ScalableKey, what: Refused, machines: &[String]) {
        let mut state = self.lock();
        state.retain(|_, of_it| {
            of_it.retain(|_, left| left.is_out());
            !of_it.is_empty()
        });
        for uid in machines {
            let of_it = state.entry(id.clone()).or_default();
            let unclaimed = of_it.values().filter(|left| left.what == Refused::Claim).count();
            if what == Refused::Mark || unclaimed < MOST {
                of_it.entry(uid.clone()).or_insert_with(|| Left { at: Instant::now(), what });
            }
        }
    }

    /// All of them, so that who reckons with them knows when they change.
    pub(crate) fn version(&self) -> Vec<String> {
        let state = self.lock();
        let all = state.values().flatten();
        all.filter(|(_, left)| left.is_out()).map(|(uid, _)| uid.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ScalableKey, BTreeMap<String, Left>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ScalableKey {
        ScalableKey::from_annotation(&format!("ns/{name}")).expect("a key")
    }

    fn uids(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|number| format!("uid-{number}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_is_left_out_for_half_an_hour_from_its_first_refusal_on() {
        let set_aside = SetAside::default();
        set_aside.add(&id("m"), Refused::Claim, &uids(0..1));
        tokio::time::sleep(FOR / 2).await;
        set_aside.add(&id("m"), Refused::Claim, &uids(0..2));
        assert_eq!(set_aside.of(&id("m")).into_iter().collect::<Vec<_>>(), uids(0..2));
        assert!(set_aside.of(&id("n")).is_empty(), "those of another resource are not meant");
        assert_eq!((set_aside.rest(&id("m")), set_aside.rest(&id("n"))), (Some(FOR / 2), None));
        tokio::time::sleep(FOR / 2).await;
        assert_eq!(set_aside.of(&id("m")).into_iter().collect::<Vec<_>>(), uids(1..2));
        set_aside.add(&id("m"), Refused::Claim, &uids(0..1));
        assert_eq!(set_aside.of(&id("m")).len(), 2, "it may be refused again");
    }

    #[tokio::test(start_paused = true)]
    async fn few_that_may_not_be_claimed_are_left_out_and_all_that_may_not_be_marked() {
        let set_aside = SetAside::default();
        set_aside.add(&id("m"), Refused::Mark, &uids(0..10));
        set_aside.add(&id("m"), Refused::Claim, &uids(10..20));
        assert_eq!(set_aside.of(&id("m")).len(), 10 + MOST, "the one does not count as the other");
        set_aside.add(&id("n"), Refused::Claim, &uids(20..30));
        assert_eq!(set_aside.of(&id("n")).len(), MOST, "each resource has its own");
        tokio::time::sleep(FOR).await;
        set_aside.add(&id("m"), Refused::Claim, &uids(13..20));
        assert_eq!(set_aside.of(&id("m")).into_iter().collect::<Vec<_>>(), uids(13..13 + MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn the_version_changes_when_a_machine_is_left_out_and_when_it_is_not_any_more() {
        let set_aside = SetAside::default();
        let none = set_aside.version();
        set_aside.add(&id("m"), Refused::Mark, &uids(0..1));
        let one = set_aside.version();
        assert_ne!(none, one);
        set_aside.add(&id("m"), Refused::Mark, &uids(0..1));
        assert_eq!(set_aside.version(), one, "that was known");
        tokio::time::sleep(FOR).await;
        assert_eq!(set_aside.version(), none, "though nobody has looked");
    }
}
