//! What cannot be had at the moment, remembered for a while so that it is not asked for again at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a first refusal is remembered; each further one doubles it.
const FIRST: Duration = Duration::from_secs(3 * 60);
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// How long one launch may take to show that what was refused can be had again, before another may try.
const TRIAL: Duration = Duration::from_secs(10 * 60);

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refused {
    /// An instance type in a zone.
    Type { zone: String, name: String },
    /// An instance type in one network: it could not be started there, for a reason that may be the network's.
    TypeIn { zone: String, name: String, network: String },
    /// Everything in a zone: it is disabled, or several types of it found no storage.
    Zone(String),
    /// A network: it has no addresses or no router, or nobody says what it has not.
    Network(String),
    /// A NodePool, with its kind of affinity: the hosts that leaves are full.
    Pool { name: String, affinity: String },
}

/// How far a machine came: what is refused is had again by one that comes further than those that were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Placed,
    Running,
}

#[derive(Debug)]
struct Refusal {
    until: Instant,
    time: Duration,
    /// What a machine must reach to show that it can be had again.
    proof: Stage,
    /// The NodeClaim that tries it out again, and since when.
    trial: Option<(String, Instant)>,
}

impl Refusal {
    fn holds(&self, now: Instant) -> bool {
        now < self.until
    }

    /// So long ago that nothing is known any more.
    fn is_old(&self, now: Instant) -> bool {
        now > self.until + LONGEST
    }

    fn on_trial(&self, now: Instant) -> Option<&str> {
        let (claim, since) = self.trial.as_ref()?;
        (now.duration_since(*since) < TRIAL).then_some(claim)
    }

    fn keeps_out(&self, claim: &str, now: Instant) -> bool {
        self.holds(now) || self.on_trial(now).is_some_and(|other| other != claim)
    }
}

/// What was refused, until when. When that time is over one launch tries it out, and the others wait for what comes of it: where
/// hundreds of pods wait for hours, what still cannot be had would else be asked for hundreds of times.
#[derive(Debug, Default)]
pub(crate) struct Unavailable {
    refused: Mutex<BTreeMap<Refused, Refusal>>,
    /// Instance types by zone that were placed and found no storage, perhaps, and when. The server says nothing but that capacity lacks.
    unstored: Mutex<BTreeMap<String, BTreeMap<String, Instant>>>,
}

/// A launch that may go on, and tries out what was refused before. Whatever becomes of the launch, others may try when this is dropped.
pub(crate) struct Trial<'a> {
    unavailable: &'a Unavailable,
    claim: &'a str,
}

impl Trial<'_> {
    /// There is a machine: how far it comes is still to be seen.
    pub(crate) fn goes_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.unavailable.end_trial(self.claim);
    }
}

/// How many types that are refused in one network raise doubts about the network.
const DOUBTFUL: usize = 3;

impl Unavailable {
    /// Whether so many types are refused in this network that others had better be tried first.
    pub(crate) fn is_doubtful(&self, network: &str) -> bool {
        let now = Instant::now();
        let there = |what: &Refused| matches!(what, Refused::TypeIn { network: n, .. } if n == network);
        let refused = self.lock();
        let count = refused.iter().filter(|(what, refusal)| there(what) && refusal.holds(now)).count();
        count >= DOUBTFUL
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Refused, Refusal>> {
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
        self.refuse(what, Stage::Running);
        let now = Instant::now();
        let mut unstored = self.unstored();
        let types = unstored.entry(zone.to_owned()).or_default();
        types.retain(|_, at| now.duration_since(*at) < LONGEST);
        types.insert(type_name.to_owned(), now);
        if types.len() > 1 {
            self.refuse(Refused::Zone(zone.to_owned()), Stage::Running);
        }
    }

    /// It was refused, perhaps again, to a machine that came short of this stage.
    pub(crate) fn refuse(&self, what: Refused, proof: Stage) {
        let mut refused = self.lock();
        let now = Instant::now();
        let time = match refused.get_mut(&what) {
            // One of many that were under way together.
            Some(refusal) if refusal.holds(now) => {
                refusal.proof = refusal.proof.max(proof);
                return;
            }
            // Soon after the last time ran out: no better yet.
            Some(refusal) if !refusal.is_old(now) => (refusal.time * 2).min(LONGEST),
            _ => FIRST,
        };
        refused.insert(what, Refusal { until: now + time, time, proof, trial: None });
    }

    /// It was had after all, by a machine that came so far.
    pub(crate) fn allow(&self, what: &Refused, reached: Stage) {
        let mut refused = self.lock();
        if refused.get(what).is_some_and(|refusal| refusal.proof <= reached) {
            refused.remove(what);
        }
        drop(refused);
        if let Refused::Zone(zone) = what {
            self.unstored().remove(zone);
        }
    }

    /// Everything this claim tries out was had.
    pub(crate) fn allow_tried(&self, claim: &str) {
        let now = Instant::now();
        self.lock().retain(|_, refusal| refusal.on_trial(now) != Some(claim));
    }

    /// Whether it is not worth asking for.
    pub(crate) fn is_refused(&self, what: &Refused) -> bool {
        let now = Instant::now();
        self.lock().get(what).is_some_and(|refusal| refusal.holds(now) || refusal.on_trial(now).is_some())
    }

    /// Lets a claim's launch ask for all of this, if none of it is refused, nor being tried out by another.
    pub(crate) fn try_out<'a>(
        &'a self,
        all: impl IntoIterator<Item = Refused>,
        claim: &'a str,
    ) -> Option<Trial<'a>> {
        let now = Instant::now();
        let mut refused = self.lock();
        refused.retain(|_, refusal| !refusal.is_old(now) || refusal.on_trial(now).is_some());
        let again: Vec<Refused> = all.into_iter().filter(|what| refused.contains_key(what)).collect();
        if again.iter().any(|what| refused.get(what).is_some_and(|refusal| refusal.keeps_out(claim, now))) {
            return None;
        }
        for what in again {
            if let Some(refusal) = refused.get_mut(&what) {
                refusal.trial = Some((claim.to_owned(), now));
            }
        }
        Some(Trial { unavailable: self, claim })
    }

    /// Whether any of it is refused to this claim by now.
    pub(crate) fn are_refused(&self, all: impl IntoIterator<Item = Refused>, claim: &str) -> bool {
        let now = Instant::now();
        let refused = self.lock();
        all.into_iter().any(|what| refused.get(&what).is_some_and(|refusal| refusal.keeps_out(claim, now)))
    }

    /// Nothing comes of what this claim tries out.
    pub(crate) fn end_trial(&self, claim: &str) {
        for refusal in self.lock().values_mut() {
            if refusal.trial.as_ref().is_some_and(|(whose, _)| whose == claim) {
                refusal.trial = None;
            }
        }
    }

    /// How much is refused at the moment.
    pub(crate) fn count(&self) -> usize {
        let now = Instant::now();
        self.lock().values().filter(|refusal| refusal.holds(now)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_again_is_left_alone_for_longer() {
        let unavailable = Unavailable::default();
        let what = Refused::Network("n".into());
        unavailable.refuse(what.clone(), Stage::Placed);
        assert!(unavailable.is_refused(&what));
        unavailable.refuse(what.clone(), Stage::Placed);
        tokio::time::sleep(Duration::from_secs(181)).await;
        assert!(!unavailable.is_refused(&what), "refused once, to several at the same time");
        unavailable.refuse(what.clone(), Stage::Placed);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(unavailable.is_refused(&what), "six minutes now");
        assert_eq!(unavailable.count(), 1);
        unavailable.allow(&what, Stage::Placed);
        assert!(!unavailable.is_refused(&what));
    }

    #[tokio::test(start_paused = true)]
    async fn one_launch_tries_out_what_was_refused_and_the_others_wait_for_what_comes_of_it() {
        let unavailable = Unavailable::default();
        let what = Refused::Network("n".into());
        let tries = |claim: &'static str| unavailable.try_out([what.clone()], claim);
        assert!(tries("a").is_some() && tries("b").is_some(), "nothing was refused yet");
        unavailable.refuse(what.clone(), Stage::Placed);
        assert!(tries("a").is_none());
        tokio::time::sleep(Duration::from_secs(181)).await;
        let trial = tries("a");
        assert!(trial.is_some() && tries("b").is_none() && unavailable.is_refused(&what));
        drop(trial);
        assert!(!unavailable.is_refused(&what), "nobody knows, so the next may try");
        if let Some(trial) = tries("b") {
            trial.goes_on();
        }
        assert!(tries("a").is_none());
        unavailable.allow_tried("b");
        assert!(tries("a").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_nobody_hears_of_again_gives_way_to_the_next() {
        let unavailable = Unavailable::default();
        let what = Refused::Zone("z".into());
        unavailable.refuse(what.clone(), Stage::Running);
        tokio::time::sleep(Duration::from_secs(181)).await;
        if let Some(trial) = unavailable.try_out([what.clone()], "a") {
            trial.goes_on();
        }
        unavailable.allow(&what, Stage::Placed);
        assert!(unavailable.is_refused(&what), "those that failed were placed too");
        tokio::time::sleep(TRIAL).await;
        assert!(unavailable.try_out([what.clone()], "b").is_some());
        unavailable.refuse(what.clone(), Stage::Placed);
        unavailable.refuse(what.clone(), Stage::Running);
        unavailable.allow(&what, Stage::Placed);
        assert!(unavailable.is_refused(&what), "of two that failed the one that came further counts");
        tokio::time::sleep(2 * LONGEST).await;
        let both = [unavailable.try_out([what.clone()], "a"), unavailable.try_out([what.clone()], "b")];
        assert!(both.iter().all(Option::is_some), "long ago");
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
        unavailable.allow(&zone, Stage::Running);
        unavailable.refuse_unstored(this("b"), "z", "b");
        assert!(!unavailable.is_refused(&zone), "one was had in between");
        unavailable.refuse_unstored(this("a"), "z", "a");
        assert!(unavailable.is_refused(&zone));
    }
}
