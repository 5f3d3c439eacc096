//! Durations as users write them (`720h`, `1h30m`, `Never`), kept in their spelling.
//!
//! Go reads them with `time.ParseDuration`, and so do we: the same units, fractions and signs. A duration beyond what Go can
//! hold (292 years) makes Go refuse the whole object, and with it every list that contains it; here it
//! means "as long as can be".

use std::fmt;
use std::str::FromStr;

use karpenter_primitives::GoDuration;
use karpenter_primitives::go_duration::ParseDurationError::TooLong;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {text:?}: write a number and a unit, such as \"30s\", \"15m\" or \"720h\"")]
pub struct ParseDurationError {
    text: String,
}

/// A length of time that remembers how it was written. Equality and order look at the length alone.
#[derive(Clone)]
pub struct Duration {
    text: String,
    nanos: i64,
}

impl Duration {
    /// Reads a duration in Go's notation.
    pub fn parse(text: &str) -> Result<Self, ParseDurationError> {
        let nanos = match text.parse::<GoDuration>() {
            Ok(duration) => duration.as_nanos(),
            Err(TooLong { negative: false, .. }) => i64::MAX,
            Err(TooLong { negative: true, .. }) => -i64::MAX,
            Err(_) => return Err(ParseDurationError { text: text.to_owned() }),
        };
        Ok(Self { text: text.to_owned(), nanos })
    }

    /// A duration in Go's canonical spelling (`1h30m0s`).
    pub fn from_nanos(nanos: i64) -> Self {
        Self { text: GoDuration::from_nanos(nanos).to_string(), nanos }
    }

    /// A number of seconds.
    pub fn from_secs(seconds: i64) -> Self {
        Self::from_nanos(seconds.saturating_mul(1_000_000_000))
    }

    /// Its length in nanoseconds, which is how Go holds it.
    pub fn as_nanos(&self) -> i64 {
        self.nanos
    }

    /// Its length.
    pub fn to_signed(&self) -> jiff::SignedDuration {
        jiff::SignedDuration::from_nanos(self.nanos)
    }

    /// Its length, nothing if it is negative.
    pub fn to_std(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.nanos).unwrap_or(0))
    }

    /// As the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Duration {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Duration {}

impl PartialOrd for Duration {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Duration {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Duration({})", self.text)
    }
}

impl FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// A duration that may be switched off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NillableDuration {
    /// `Never`.
    #[default]
    Never,
    /// After this time.
    After(Duration),
}

impl NillableDuration {
    /// Reads `Never` or a duration.
    pub fn parse(text: &str) -> Result<Self, ParseDurationError> {
        if text == "Never" { Ok(Self::Never) } else { Duration::parse(text).map(Self::After) }
    }

    /// The duration, unless switched off.
    pub fn as_duration(&self) -> Option<&Duration> {
        match self {
            Self::Never => None,
            Self::After(duration) => Some(duration),
        }
    }
}

impl From<Duration> for NillableDuration {
    fn from(duration: Duration) -> Self {
        Self::After(duration)
    }
}

impl fmt::Display for NillableDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.pad("Never"),
            Self::After(duration) => duration.fmt(f),
        }
    }
}

impl FromStr for NillableDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Serialize for NillableDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NillableDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_survives_and_the_length_is_compared() {
        let a: Duration = serde_json::from_str("\"1h30m\"").unwrap();
        assert_eq!(serde_json::to_string(&a).unwrap(), "\"1h30m\"");
        assert_eq!(a, Duration::parse("90m").unwrap());
        assert_eq!(a, Duration::from_secs(5400));
        assert_eq!(Duration::from_secs(5400).as_str(), "1h30m0s");
    }

    #[test]
    fn never_is_no_duration_and_stays_never() {
        let never: NillableDuration = serde_json::from_str("\"Never\"").unwrap();
        assert_eq!(never.as_duration(), None);
        assert_eq!(serde_json::to_string(&never).unwrap(), "\"Never\"");
        assert!(NillableDuration::parse("never").is_err());
    }

    #[test]
    fn what_go_cannot_hold_is_as_long_as_can_be() {
        assert_eq!(Duration::parse("99999999999999999999h").unwrap().as_nanos(), i64::MAX);
        let endless = format!("{}h0.5s", "9".repeat(38)).repeat(3);
        assert_eq!(Duration::parse(&endless).unwrap().as_nanos(), i64::MAX);
    }

    #[test]
    fn go_notation_is_read_and_written() {
        for (text, nanos, canonical) in [
            ("0", 0, "0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            (".5s", 500_000_000, "500ms"),
            ("-1m30s", -90_000_000_000, "-1m30s"),
            ("100us", 100_000, "100µs"),
            ("1ns", 1, "1ns"),
            ("1h0m0.000000001s", 3_600_000_000_001, "1h0m0.000000001s"),
        ] {
            let duration = Duration::parse(text).unwrap();
            assert_eq!(duration.as_nanos(), nanos, "{text}");
            assert_eq!(Duration::from_nanos(nanos).as_str(), canonical);
        }
        for wrong in ["", "5", "h", "1d", "1h ", "1 h", ".h", "+", "1hm"] {
            assert!(Duration::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
