//! What was seen of each NodeClaim on its way from launch to end, by its uid. It is forgotten when the NodeClaim is over, and when the
//! process ends: nothing that must be known hangs on it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::client::fields::Reference;

/// How long it is until the infrastructure of a launch is asked for an id again.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct Journeys(Mutex<BTreeMap<String, Journey>>);

#[derive(Default)]
struct Journey {
    /// Why it found no room.
    refused: Option<String>,
    stages: Stages,
    /// Whether a Machine of its own has been made.
    made: bool,
    /// When the infrastructure was last asked for an id.
    asked_infrastructure: Option<Instant>,
    /// When the Machine in whose place it gets another was last seen to be there.
    preceded: Option<Instant>,
    /// Whether its Machine is known to have failed to become a node.
    never_joined: bool,
    /// Since when its Machine's deletion has been asked for without that going.
    unheeded: Option<Instant>,
    /// When its Machine, which is to go, was last read from the server.
    read: Option<Instant>,
    /// What its Machine, which is to go, runs on: to be asked for when that is gone.
    infrastructure: Option<Reference>,
}

/// When a launch came how far, as far as that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stages {
    /// Replicas were asked for.
    pub(crate) asked: Option<Timestamp>,
    /// Its Machine waited for nothing but its infrastructure.
    pub(crate) bootstrapped: Option<Timestamp>,
}

impl Journeys {
    /// It gets nothing of a resource, for this reason; whether that is news.
    pub(crate) fn refuse(&self, uid: &str, why: String) -> bool {
        self.with(uid, |journey| journey.refused.replace(why).is_none())
    }

    /// Why it found no room, if so.
    pub(crate) fn refusal(&self, uid: &str) -> Option<String> {
        self.seen(uid, |journey| journey.refused.clone())
    }

    /// Replicas have been asked for, for these among others.
    pub(crate) fn asked<'a>(&self, uids: impl Iterator<Item = &'a String>, now: Timestamp) {
        for uid in uids {
            self.with(uid, |journey| journey.stages.asked.get_or_insert(now).to_owned());
        }
    }

    /// Its Machine waits for its infrastructure.
    pub(crate) fn bootstrapped(&self, uid: &str, now: Timestamp) {
        self.with(uid, |journey| journey.stages.bootstrapped.get_or_insert(now).to_owned());
    }

    /// How far its launch was seen to come.
    pub(crate) fn stages(&self, uid: &str) -> Stages {
        self.seen(uid, |journey| Some(journey.stages)).unwrap_or_default()
    }

    /// A Machine of its own has been made for it.
    pub(crate) fn made(&self, uid: &str) {
        self.with(uid, |journey| journey.made = true);
    }

    /// Whether a Machine of its own has been made for it by this process.
    pub(crate) fn has_made(&self, uid: &str) -> bool {
        self.seen(uid, |journey| Some(journey.made)).unwrap_or_default()
    }

    /// Whether it is time to ask the infrastructure of its launch, which this counts as.
    pub(crate) fn may_ask_infrastructure(&self, uid: &str) -> bool {
        let now = Instant::now();
        self.with(uid, |journey| {
            let last = journey.asked_infrastructure;
            if last.is_some_and(|last| now.saturating_duration_since(last) < BETWEEN_QUESTIONS) {
                return false;
            }
            journey.asked_infrastructure = Some(now);
            true
        })
    }

    /// The Machine in whose place it waits for another is still there.
    pub(crate) fn precedes(&self, uid: &str) {
        self.with(uid, |journey| journey.preceded = Some(Instant::now()));
    }

    /// How long ago the Machine in whose place it waits for another was last seen to be there.
    pub(crate) fn since_predecessor(&self, uid: &str) -> Option<Duration> {
        self.seen(uid, |journey| journey.preceded).map(|at| at.elapsed())
    }

    /// Whether this is the first word of its Machine not having become a node.
    pub(crate) fn never_joined(&self, uid: &str) -> bool {
        self.with(uid, |journey| !std::mem::replace(&mut journey.never_joined, true))
    }

    /// For how long Delete has been asked for without its Machine going.
    pub(crate) fn unheeded_for(&self, uid: &str) -> Duration {
        let now = Instant::now();
        now.saturating_duration_since(self.with(uid, |journey| *journey.unheeded.get_or_insert(now)))
    }

    /// Its Machine is going at last.
    pub(crate) fn is_heeded(&self, uid: &str) {
        if let Some(journey) = self.lock().get_mut(uid) {
            journey.unheeded = None;
        }
    }

    /// Its Machine has just been read from the server.
    pub(crate) fn was_read(&self, uid: &str) {
        self.with(uid, |journey| journey.read = Some(Instant::now()));
    }

    /// How long ago its Machine was read from the server, if it was.
    pub(crate) fn since_read(&self, uid: &str) -> Option<Duration> {
        self.seen(uid, |journey| journey.read).map(|at| at.elapsed())
    }

    /// What its Machine that is to go runs on.
    pub(crate) fn runs_on(&self, uid: &str, infrastructure: Reference) {
        self.with(uid, |journey| journey.infrastructure = Some(infrastructure));
    }

    /// What its Machine ran on, if that was seen.
    pub(crate) fn ran_on(&self, uid: &str) -> Option<Reference> {
        self.seen(uid, |journey| journey.infrastructure.clone())
    }

    /// It is over.
    pub(crate) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut Journey) -> T) -> T {
        change(self.lock().entry(uid.to_owned()).or_default())
    }

    fn seen<T>(&self, uid: &str, what: impl FnOnce(&Journey) -> Option<T>) -> Option<T> {
        self.lock().get(uid).and_then(what)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Journey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
