//! Keys that the server refused. Several controllers ask on their own, each as often as it sees fit; with wrong keys that would be a call
//! a second for as long as nobody writes other ones, and servers lock users out who knock like that.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Session;
use super::error::ApiError;
use super::signature::Credentials;

/// How long refused keys are not sent again. They may be let in later all the same, when somebody enables the user.
const PACE: Duration = Duration::from_secs(20);
/// Longer ago than this nobody used them.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);

/// What is known of keys.
#[derive(Debug)]
pub(super) enum Word {
    /// They were not refused.
    None,
    /// They were a while ago; whoever hears this asks again, for all.
    AskAgain,
    /// They were a moment ago.
    Refused(ApiError),
}

#[derive(Debug)]
struct Refusal {
    endpoint: String,
    credentials: Credentials,
    last: Instant,
    error: ApiError,
}

/// See the module. Others than those refused are asked with at once.
#[derive(Debug, Default)]
pub(super) struct RefusedKeys(Mutex<Vec<Refusal>>);

impl RefusedKeys {
    fn lock(&self) -> MutexGuard<'_, Vec<Refusal>> {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.retain(|refusal| refusal.last.elapsed() < FORGOTTEN);
        refusals
    }

    pub(super) fn word_on(&self, session: &Session) -> Word {
        match self.lock().iter_mut().find(|refusal| refusal.is_of(session)) {
            None => Word::None,
            Some(refusal) if refusal.last.elapsed() < PACE => Word::Refused(refusal.error.clone()),
            Some(refusal) => {
                // Nobody else does until it is known what came of it.
                refusal.last = Instant::now();
                Word::AskAgain
            }
        }
    }

    pub(super) fn note(&self, session: &Session, error: &ApiError) {
        self.forget(session);
        let (endpoint, credentials) = (session.endpoint.clone(), session.credentials.clone());
        self.lock().push(Refusal { endpoint, credentials, last: Instant::now(), error: error.clone() });
    }

    pub(super) fn forget(&self, session: &Session) {
        self.lock().retain(|refusal| !refusal.is_of(session));
    }
}

impl Refusal {
    fn is_of(&self, session: &Session) -> bool {
        self.endpoint == session.endpoint && self.credentials == session.credentials
    }
}
