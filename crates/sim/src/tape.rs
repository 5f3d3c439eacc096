//! The tape: every write, fault and deed of the cloud in the order they happened, and a digest of them all.
//!
//! Two runs of one seed must give the same tape. Where they do not, the first entry that differs says where to look.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// One line of the tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number, from 0.
    pub sequence: u64,
    /// When, since the world began.
    pub at: Duration,
    /// Who did it.
    pub actor: Arc<str>,
    /// What was done: a method and path, or a deed in words.
    pub deed: String,
    /// What came of it: a status code, or words.
    pub outcome: String,
    /// The server's revision afterwards.
    pub revision: u64,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, at, actor, deed, outcome, revision } = self;
        write!(f, "#{sequence} {:.3}s {actor}: {deed} -> {outcome} (revision {revision})", at.as_secs_f64())
    }
}

/// The record of a run.
#[derive(Clone, Default)]
pub struct Tape {
    entries: Vec<Entry>,
    digest: Sha256,
}

/// What is about to be recorded.
pub(crate) struct Line<'a> {
    pub(crate) at: Duration,
    pub(crate) actor: &'a Arc<str>,
    pub(crate) deed: String,
    pub(crate) outcome: String,
    pub(crate) revision: u64,
    /// What goes into the digest only: the request's body.
    pub(crate) body: &'a [u8],
}

impl Tape {
    pub(crate) fn record(&mut self, line: Line<'_>) -> &Entry {
        let Line { at, actor, deed, outcome, revision, body } = line;
        let sequence = self.entries.len() as u64;
        for text in [actor.as_bytes(), deed.as_bytes(), outcome.as_bytes(), body] {
            self.digest.update((text.len() as u64).to_le_bytes());
            self.digest.update(text);
        }
        self.digest.update(at.as_nanos().to_le_bytes());
        self.digest.update(revision.to_le_bytes());
        self.entries.push(Entry { sequence, at, actor: Arc::clone(actor), deed, outcome, revision });
        // Pushed a moment ago.
        &self.entries[self.entries.len() - 1]
    }

    /// All entries so far.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// SHA-256 of everything so far, in hexadecimal.
    pub fn digest(&self) -> String {
        use fmt::Write as _;
        self.digest.clone().finalize().iter().fold(String::new(), |mut text, byte| {
            // Writing into a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The first entries in which two tapes differ; `None` where one has ended.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<(Option<&'a Entry>, Option<&'a Entry>)> {
        let longest = self.entries.len().max(other.entries.len());
        (0..longest)
            .map(|at| (self.entries.get(at), other.entries.get(at)))
            .find(|(mine, theirs)| mine != theirs)
    }
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tape({} entries, {})", self.entries.len(), self.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(actor: &'a Arc<str>, deed: &str, body: &'a [u8]) -> Line<'a> {
        Line {
            at: Duration::from_millis(1500),
            actor,
            deed: deed.to_owned(),
            outcome: "201".to_owned(),
            revision: 7,
            body,
        }
    }

    #[test]
    fn the_digest_covers_bodies_and_the_difference_is_found() {
        let actor: Arc<str> = "kubelet".into();
        let (mut a, mut b) = (Tape::default(), Tape::default());
        a.record(line(&actor, "POST /x", b"1"));
        b.record(line(&actor, "POST /x", b"2"));
        assert_ne!(a.digest(), b.digest());
        assert_eq!(a.first_difference(&b), None, "bodies are only in the digest");
        a.record(line(&actor, "POST /y", b""));
        let (mine, theirs) = a.first_difference(&b).expect("one is longer");
        assert_eq!(
            mine.map(ToString::to_string).as_deref(),
            Some("#1 1.500s kubelet: POST /y -> 201 (revision 7)")
        );
        assert_eq!(theirs, None);
        assert_eq!(a.digest().len(), 64);
    }
}
