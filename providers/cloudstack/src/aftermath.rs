//! What orders of a while ago say about the next ones: a right that was refused, answers that never came, failures that nobody explained.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::request::Scope;

/// How long a refused right is believed to be missing.
const DENIAL_BELIEVED: Duration = Duration::from_secs(60 * 60);
/// How long a machine may take to come of which no answer came.
const MAY_COME: Duration = Duration::from_secs(10 * 60);
/// How long it is known which names of a NodeClaim are taken.
const NAMES_KEPT: Duration = Duration::from_secs(60 * 60);
/// Unexplained failures of one kind after which it is taken for a refusal.
const MAX_UNEXPLAINED: u32 = 3;
/// How long after another a failure counts together with it: one a day is nothing that lasts.
const TOGETHER: Duration = Duration::from_secs(30 * 60);

/// Whether and when the right to expunge was refused although the server promises it. Administrators change that while everything runs,
/// so it is believed for a while only.
#[derive(Debug, Default)]
pub(crate) struct ExpungeDenied(Mutex<Option<Instant>>);

impl ExpungeDenied {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self) {
        *self.lock() = Some(Instant::now());
    }

    pub(crate) fn holds(&self) -> bool {
        self.lock().is_some_and(|since| since.elapsed() < DENIAL_BELIEVED)
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }
}

/// Commands that the server refused to let these keys use: at all, in a project, or on one thing. What waits for them to be carried out
/// would wait for ever, and asking anew for each of a thousand machines tells nothing new. Administrators change that too.
#[derive(Debug, Default)]
pub(crate) struct Denied(Mutex<Denials>);

#[derive(Debug, Default)]
struct Denials {
    /// When a command was refused last and with which words, by its name and where.
    at: BTreeMap<(&'static str, Extent), (Instant, String)>,
    /// Who was told of which.
    told: BTreeSet<(&'static str, String)>,
}

/// Of what a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    Everything,
    Project(String),
    This(String),
}

impl Denied {
    fn lock(&self) -> MutexGuard<'_, Denials> {
        let mut denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        denials.at.retain(|_, (at, _)| at.elapsed() < DENIAL_BELIEVED);
        denials
    }

    /// Takes note of an answer to a command on this thing, if it is such a refusal; whether it is.
    pub(crate) fn note(&self, error: &ApiError, scope: &Scope, id: &str) -> bool {
        let extent = match (error.code, scope) {
            _ if error.kind != ErrorKind::Denied => return false,
            // Who is not in a project is told of every command that it is not for this account.
            (432, Scope::Project(project)) => Extent::Project(project.clone()),
            (432, _) => Extent::Everything,
            (531, _) => Extent::This(id.to_owned()),
            _ => return false,
        };
        self.write(error, extent);
        true
    }

    /// Takes note of a list that is refused for good.
    pub(crate) fn note_list(&self, error: &ApiError, scope: &Scope) {
        if error.is_a_verdict() {
            let extent = match scope {
                Scope::Project(project) => Extent::Project(project.clone()),
                _ => Extent::Everything,
            };
            self.write(error, extent);
        }
    }

    fn write(&self, error: &ApiError, extent: Extent) {
        let refusal = (Instant::now(), error.text.clone());
        self.lock().at.insert((error.command, extent), refusal);
    }

    /// With which words a command on this thing would be refused, if it would be.
    pub(crate) fn why(&self, command: &'static str, scope: &Scope, id: &str) -> Option<String> {
        let mut extents = vec![Extent::Everything, Extent::This(id.to_owned())];
        if let Scope::Project(project) = scope {
            extents.push(Extent::Project(project.clone()));
        }
        let denials = self.lock();
        let refusal = extents.into_iter().find_map(|extent| denials.at.get(&(command, extent)))?;
        Some(refusal.1.clone())
    }

    /// Whether a command on this thing would be refused.
    pub(crate) fn holds(&self, command: &'static str, scope: &Scope, id: &str) -> bool {
        self.why(command, scope, id).is_some()
    }

    /// Whether this object is yet to be told of it, once.
    pub(crate) fn is_news(&self, command: &'static str, object: &str) -> bool {
        self.lock().told.insert((command, object.to_owned()))
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        *self.lock() = Denials::default();
    }
}

/// Where machines were ordered of which no answer came, and when last.
#[derive(Debug, Default)]
pub(crate) struct Lost(Mutex<BTreeMap<Scope, Instant>>);

impl Lost {
    pub(crate) fn note(&self, scope: &Scope) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(scope.clone(), Instant::now());
    }

    /// Whether one may still come.
    pub(crate) fn may_come(&self, scope: &Scope) -> bool {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get(scope).is_some_and(|since| since.elapsed() < MAY_COME)
    }

    /// Whether one may still come anywhere.
    pub(crate) fn may_come_anywhere(&self) -> bool {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.values().any(|since| since.elapsed() < MAY_COME)
    }
}

/// Names that machines of a NodeClaim have, or had: destroyed ones keep theirs, and most users do not see them. By its uid the first
/// attempt whose name may be free. Where no answer came to an order its name is not among them: a second order is to run into it.
#[derive(Debug, Default)]
pub(crate) struct NamesTaken(Mutex<BTreeMap<String, (u32, Instant)>>);

impl NamesTaken {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (u32, Instant)>> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|_, (_, at)| at.elapsed() < NAMES_KEPT);
        taken
    }

    /// The names of all attempts before this one are taken.
    pub(crate) fn note(&self, uid: &str, next: u32) {
        self.lock().insert(uid.to_owned(), (next, Instant::now()));
    }

    pub(crate) fn next(&self, uid: &str) -> u32 {
        self.lock().get(uid).map_or(0, |(next, _)| *next)
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }
}

/// Unexplained failures, by what was tried: how many, and when the last was.
#[derive(Debug, Default)]
pub(crate) struct Unexplained(Mutex<BTreeMap<String, (u32, Instant)>>);

impl Unexplained {
    /// Counts one; whether it is one too many.
    pub(crate) fn too_many(&self, what: &str) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|_, (_, last)| last.elapsed() < TOGETHER);
        let (count, last) = counts.entry(what.to_owned()).or_insert((0, Instant::now()));
        *count += 1;
        *last = Instant::now();
        let over = *count >= MAX_UNEXPLAINED;
        if over {
            counts.remove(what);
        }
        over
    }

    pub(crate) fn forget(&self, what: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_is_refused_as_far_as_the_server_said_and_for_an_hour() {
        let denied = Denied::default();
        let (own, team) = (Scope::Own, Scope::Project("team".to_owned()));
        let note = |code: u16, scope: &Scope| {
            let error = ApiError::answered("deleteVolume", code, &json!({"errortext": "no"}));
            denied.note(&error, scope, "1")
        };
        let held = || {
            [(&own, "1"), (&own, "2"), (&team, "3")]
                .map(|(scope, id)| denied.holds("deleteVolume", scope, id))
        };
        assert!(!note(530, &own) && !note(431, &own), "that may pass, or is about something else");
        assert_eq!(held(), [false; 3]);
        assert!(note(531, &own));
        assert_eq!(held(), [true, false, false]);
        assert!(note(432, &team));
        assert_eq!(held(), [true, false, true]);
        assert!(note(432, &own));
        assert_eq!(held(), [true; 3]);
        assert!(!denied.holds("deleteTags", &own, "1"));
        tokio::time::sleep(DENIAL_BELIEVED).await;
        assert_eq!(held(), [false; 3], "administrators change that");
    }

    #[tokio::test(start_paused = true)]
    async fn unexplained_failures_that_are_far_apart_are_not_counted_together() {
        let unexplained = Unexplained::default();
        for _ in 0..5 {
            assert!(!unexplained.too_many("small/zone/net"));
            assert!(!unexplained.too_many("small/zone/net"));
            tokio::time::sleep(TOGETHER).await;
        }
        assert_eq!([1, 2, 3].map(|_| unexplained.too_many("small/zone/net")), [false, false, true]);
        assert!(!unexplained.too_many("small/zone/net"), "and then from the beginning");
    }
}
