//! Lines on a terminal, at the pace of the demo: what happened scrolls, and where things stand is the last line.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

/// Where the demo is shown.
pub(super) struct Screen {
    speed: u32,
    /// Whether the last line can be written over.
    live: bool,
}

impl Screen {
    /// Time runs this many times faster than on the wall.
    pub(super) fn new(speed: u32) -> Self {
        Self { speed, live: std::io::stdout().is_terminal() }
    }

    /// A line that stays. Whoever reads may stop reading at any time.
    pub(super) fn line(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let clear = if self.live { "\r\x1b[K" } else { "" };
        let _ = writeln!(out, "{clear}{text}");
    }

    /// Where things stand; replaced by whatever comes next.
    pub(super) fn status(&self, text: &str) {
        if self.live {
            let mut out = std::io::stdout().lock();
            let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
        }
    }

    /// Lets the wall clock catch up with so much of the demo's time.
    #[expect(clippy::disallowed_methods, reason = "virtual time is shown at the pace of the wall's")]
    pub(super) fn keep_pace(&self, passed: Duration) {
        std::thread::sleep(passed / self.speed);
    }
}
