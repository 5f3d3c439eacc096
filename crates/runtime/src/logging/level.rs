//! The least urgent level that is logged. It may be changed while the program runs: what goes wrong now is not there any more
//! after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::level_filters::LevelFilter;

/// What levels are called in settings.
pub const NAMED: [(&str, LevelFilter); 4] = [
    ("debug", LevelFilter::DEBUG),
    ("info", LevelFilter::INFO),
    ("warn", LevelFilter::WARN),
    ("error", LevelFilter::ERROR),
];

/// All there are; a [`Level`] keeps a place in it.
const ALL: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// The level of a log, shared by all who have a copy.
#[derive(Clone, Debug)]
pub struct Level(Arc<AtomicUsize>);

/// A name that is none of a level's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no log level; give debug, info, warn or error")]
pub struct UnknownLevel(String);

impl Level {
    /// Which it is now.
    pub fn get(&self) -> LevelFilter {
        ALL.get(self.0.load(Ordering::Relaxed)).copied().unwrap_or(LevelFilter::INFO)
    }

    /// From now on another.
    pub fn set(&self, level: LevelFilter) {
        self.0.store(place(level), Ordering::Relaxed);
    }
}

fn place(level: LevelFilter) -> usize {
    ALL.iter().position(|known| *known == level).unwrap_or_default()
}

impl From<LevelFilter> for Level {
    fn from(level: LevelFilter) -> Self {
        Self(Arc::new(AtomicUsize::new(place(level))))
    }
}

/// The level of a name in settings.
pub fn named(name: &str) -> Result<LevelFilter, UnknownLevel> {
    let found = NAMED.iter().find(|(known, _)| *known == name.trim()).map(|(_, level)| *level);
    found.ok_or_else(|| UnknownLevel(name.trim().to_owned()))
}
