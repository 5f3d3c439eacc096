//! The differences between our answers and kube-apiserver's that are meant, each with its reason, read from
//! `conformance/tape/explained.json`.
//!
//! The goldens keep kube-apiserver's whole answer; an explanation only says which part of it is not compared, and one
//! that no longer explains anything is an error, so that the list stays as short as it can be.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::Deserialize;

use super::chapter::directory;
use super::compare::Difference;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explanation {
    /// Step ids; a trailing `*` stands for any ending.
    steps: Vec<String>,
    /// JSON pointers into the answer; `*` stands for one segment, `**` at the end for any.
    pointers: Vec<String>,
    reason: String,
}

/// The list, and which of its entries have been of use to the steps of the chapter at hand.
pub(crate) struct Explained {
    entries: Vec<Explanation>,
    used: RefCell<BTreeSet<(usize, String)>>,
}

impl Explained {
    pub(crate) fn read() -> Result<Self, String> {
        let path = directory().join("explained.json");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let entries = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { entries, used: RefCell::default() })
    }

    /// No explanation at all: for the real server, which must answer as it did.
    pub(crate) fn nothing() -> Self {
        Self { entries: Vec::new(), used: RefCell::default() }
    }

    pub(crate) fn covers(&self, step: &str, difference: &Difference) -> bool {
        for (at, entry) in self.entries.iter().enumerate() {
            let Some(pattern) = entry.steps.iter().find(|pattern| names(pattern, step)) else { continue };
            if entry.pointers.iter().any(|pointer| reaches(pointer, &difference.pointer)) {
                self.used.borrow_mut().insert((at, pattern.clone()));
                return true;
            }
        }
        false
    }

    /// Entries that name a step of this chapter yet explained nothing in it.
    pub(crate) fn idle(&self, steps: &[&str]) -> Vec<String> {
        let used = self.used.borrow();
        let mut idle = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            for pattern in &entry.steps {
                // An entry for several chapters is of use as soon as one of them needs it.
                let here = pattern != "*" && steps.iter().any(|step| names(pattern, step));
                if here && !used.contains(&(at, pattern.clone())) {
                    idle.push(format!("{pattern} ({})", entry.reason));
                }
            }
        }
        idle
    }
}

fn names(pattern: &str, step: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == step, |start| step.starts_with(start))
}

fn reaches(pattern: &str, pointer: &str) -> bool {
    let mut given = pointer.split('/');
    for wanted in pattern.split('/') {
        match (wanted, given.next()) {
            ("**", _) => return true,
            (_, None) => return false,
            ("*", Some(_)) => {}
            (wanted, Some(segment)) if wanted == segment => {}
            _ => return false,
        }
    }
    given.next().is_none()
}

#[test]
fn a_pointer_pattern_reaches_what_it_says_and_nothing_else() {
    assert!(reaches("/body/message", "/body/message"));
    assert!(!reaches("/body/message", "/body/message/0"));
    assert!(!reaches("/body/message", "/body"));
    assert!(reaches("/events/*/object/**", "/events/3/object/metadata/name"));
    assert!(!reaches("/events/*/type", "/events/3/object"));
}
