//! Durations in Go's syntax: what users write in flags, fields and annotations, and what log lines and messages show
//! (`1h30m0s`, `250ms`). The one place that reads and writes them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A Go `time.Duration`: signed nanoseconds, about 292 years either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(i64);

/// Why a text is not a duration; the wording is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// No number, or a stray character.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// More than a duration holds, though spelled right.
    #[error("time: invalid duration {text:?}")]
    TooLong {
        /// The whole text.
        text: String,
        /// Whether it is less than nothing.
        negative: bool,
    },
    /// A number without a unit.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit Go does not know, such as days.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// What stands where a unit should.
        unit: String,
    },
}

impl GoDuration {
    /// From nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// In nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The same length as a standard duration; `None` if negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        // Read to the end even when it cannot fit: whether it is spelled right is another question.
        let mut total: Option<u64> = Some(0);
        while !rest.is_empty() {
            if !rest.starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
                return Err(invalid());
            }
            let (whole, after) = split_digits(rest);
            rest = after;
            let mut fraction = "";
            if let Some(after) = rest.strip_prefix('.') {
                (fraction, rest) = split_digits(after);
            }
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
            let (unit, after) = rest.split_at(unit_end);
            rest = after;
            if unit.is_empty() {
                return Err(ParseDurationError::MissingUnit(text.to_owned()));
            }
            let scale = unit_nanos(unit).ok_or_else(|| ParseDurationError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
            })?;
            let part = whole_nanos(whole, scale)
                .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, scale)));
            total = total.zip(part).and_then(|(total, part)| total.checked_add(part));
        }
        let signed = total.and_then(|nanos| {
            if negative { 0i64.checked_sub_unsigned(nanos) } else { i64::try_from(nanos).ok() }
        });
        signed.map(Self).ok_or_else(|| ParseDurationError::TooLong { text: text.to_owned(), negative })
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // Micro sign and Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn whole_nanos(digits: &str, scale: u64) -> Option<u64> {
    if digits.is_empty() { Some(0) } else { digits.parse::<u64>().ok()?.checked_mul(scale) }
}

/// Go cuts off digits that no longer fit and rounds towards zero by way of a float.
fn fraction_nanos(digits: &str, scale: u64) -> u64 {
    let mut value: u64 = 0;
    let mut unit = 1.0_f64;
    for digit in digits.bytes() {
        if value > (i64::MAX.unsigned_abs()) / 10 {
            break;
        }
        value = value * 10 + u64::from(digit - b'0');
        unit *= 10.0;
    }
    (value as f64 * (scale as f64 / unit)) as u64
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", Decimal { value: nanos, digits: 3 }),
            1_000_000..1_000_000_000 => write!(f, "{}ms", Decimal { value: nanos, digits: 6 }),
            _ => {
                let seconds = Decimal { value: nanos % 60_000_000_000, digits: 9 };
                let minutes = nanos / 60_000_000_000;
                match (minutes / 60, minutes % 60) {
                    (0, 0) => write!(f, "{seconds}s"),
                    (0, minutes) => write!(f, "{minutes}m{seconds}s"),
                    (hours, minutes) => write!(f, "{hours}h{minutes}m{seconds}s"),
                }
            }
        }
    }
}

/// A number with `digits` decimals, trailing zeros left out.
struct Decimal {
    value: u64,
    digits: u32,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u64.pow(self.digits);
        write!(f, "{}", self.value / unit)?;
        let fraction = self.value % unit;
        if fraction == 0 {
            return Ok(());
        }
        let digits = format!("{fraction:0width$}", width = self.digits as usize);
        write!(f, ".{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_read_and_print_as_in_go() {
        for (text, nanos, printed) in [
            ("0", 0, "0s"),
            ("5s", 5_000_000_000, "5s"),
            ("+5.5s", 5_500_000_000, "5.5s"),
            ("-1m", -60_000_000_000, "-1m0s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("100us", 100_000, "100µs"),
            ("12µs", 12_000, "12µs"),
            ("1ns", 1, "1ns"),
            ("720h", 2_592_000_000_000_000, "720h0m0s"),
            ("0.000000001s", 1, "1ns"),
            ("1.0000000000000000000000001s", 1_000_000_000, "1s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let parsed: GoDuration = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((parsed.as_nanos(), parsed.to_string().as_str()), (nanos, printed), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_in_its_words() {
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("3", "time: missing unit in duration \"3\""),
            ("-", "time: invalid duration \"-\""),
            ("s", "time: invalid duration \"s\""),
            (".", "time: invalid duration \".\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1 s", "time: unknown unit \" s\" in duration \"1 s\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("99999999999999999999999s", "time: invalid duration \"99999999999999999999999s\""),
        ] {
            assert_eq!(text.parse::<GoDuration>().expect_err(text).to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn every_printed_duration_reads_back(nanos: i64) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.hmsuµn ]{0,24}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
