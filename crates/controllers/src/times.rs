//! Times as they stand in annotations, events and messages.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// To the second, in UTC, as annotations and most messages have it.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// As Go prints a time that nobody formatted.
pub(crate) fn go_default(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string()
}

/// To the millisecond, as log lines have it.
pub(crate) fn iso8601(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// How long it is from `now` to `then`; nothing if it has been.
pub(crate) fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

/// `time` and this much more; the end of time if that is too far.
pub(crate) fn after(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}
