//! Cron schedules as robfig/cron v3 reads them (its standard parser), in UTC.
//!
//! What differs from other crons: Sunday is 0 and never 7; `?` is `*`; a day matches if either day field does, unless one of
//! them is a star; a search that finds nothing within five years gives up; the error texts.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use crate::Duration;

/// Why a text is no schedule, in the library's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CronError(String);

/// When something happens again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Whenever the fields of the clock match.
    Fields(Fields),
    /// `@every`: after a fixed time.
    Every(SignedDuration),
}

/// The sets of minutes, hours, days and months, one bit per value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minute: u64,
    hour: u64,
    day_of_month: u64,
    month: u64,
    day_of_week: u64,
}

struct Bounds {
    min: u64,
    max: u64,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAYS_OF_MONTH: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const DAYS_OF_WEEK: Bounds =
    Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// Set beside the values where a field was a star: it then leaves the choice of days to the other day field.
const STAR: u64 = 1 << 63;

/// How many years ahead a match is looked for.
const YEARS_AHEAD: i16 = 5;

impl Schedule {
    /// Reads five fields or a macro such as `@daily`.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let text = text.trim();
        if text.starts_with('@') {
            return parse_macro(text);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day_of_month, month, day_of_week] = fields[..] else {
            let (count, shown) = (fields.len(), fields.join(" "));
            return Err(CronError(format!("expected exactly 5 fields, found {count}: [{shown}]")));
        };
        Ok(Self::Fields(Fields {
            minute: field(minute, &MINUTES)?,
            hour: field(hour, &HOURS)?,
            day_of_month: field(day_of_month, &DAYS_OF_MONTH)?,
            month: field(month, &MONTHS)?,
            day_of_week: field(day_of_week, &DAYS_OF_WEEK)?,
        }))
    }

    /// The first time after `time` (to the second) at which it hits, if there is one in the next five years.
    pub fn next(&self, time: Timestamp) -> Option<Timestamp> {
        let whole = time.checked_sub(SignedDuration::from_nanos(i64::from(subsecond(time)))).ok()?;
        match self {
            Self::Every(delay) => whole.checked_add(*delay).ok(),
            Self::Fields(fields) => {
                let from = whole.checked_add(SignedDuration::from_secs(1)).ok()?;
                let hit = fields.first_from(from.to_zoned(TimeZone::UTC).datetime())?;
                hit.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
            }
        }
    }
}

/// Nanoseconds since the whole second at or before `time`.
fn subsecond(time: Timestamp) -> i32 {
    time.subsec_nanosecond().rem_euclid(1_000_000_000)
}

impl Fields {
    /// The first match at or after `from`, which is a whole second; schedules hit at second 0.
    fn first_from(&self, from: DateTime) -> Option<DateTime> {
        // A field of commas only: there is no need to go through five years of minutes.
        if [self.minute, self.hour, self.month].contains(&0) {
            return None;
        }
        let last_year = from.year().checked_add(YEARS_AHEAD)?;
        let mut at = if from.second() == 0 { from } else { next_minute(from)? };
        while at.year() <= last_year {
            let midnight = at.date().to_datetime(jiff::civil::Time::midnight());
            if !has(self.month, at.month()) {
                at = midnight.first_of_month().checked_add(1.month()).ok()?;
            } else if !self.day_matches(at) {
                at = midnight.checked_add(1.day()).ok()?;
            } else if !has(self.hour, at.hour()) {
                at = midnight.with().hour(at.hour()).build().ok()?.checked_add(1.hour()).ok()?;
            } else if !has(self.minute, at.minute()) {
                at = next_minute(at)?;
            } else {
                return Some(at);
            }
        }
        None
    }

    fn day_matches(&self, at: DateTime) -> bool {
        let by_month = has(self.day_of_month, at.day());
        let by_week = has(self.day_of_week, at.weekday().to_sunday_zero_offset());
        if (self.day_of_month | self.day_of_week) & STAR != 0 {
            by_month && by_week
        } else {
            by_month || by_week
        }
    }
}

fn next_minute(at: DateTime) -> Option<DateTime> {
    at.with().second(0).subsec_nanosecond(0).build().ok()?.checked_add(1.minute()).ok()
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|v| set >> v & 1 == 1)
}

fn parse_macro(text: &str) -> Result<Schedule, CronError> {
    let five = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(delay) = text.strip_prefix("@every ") else {
                return Err(CronError(format!("unrecognized descriptor: {text}")));
            };
            let duration = Duration::parse(delay).map_err(|_| {
                let shown = karpenter_primitives::quote::quote(delay);
                CronError(format!("failed to parse duration {text}: time: invalid duration {shown}"))
            })?;
            // Whole seconds, at least one.
            let seconds = duration.to_signed().as_secs().max(1);
            return Ok(Schedule::Every(SignedDuration::from_secs(seconds)));
        }
    };
    Schedule::parse(five)
}

fn field(text: &str, bounds: &Bounds) -> Result<u64, CronError> {
    // Empty parts between commas are skipped; a field of commas only never matches.
    text.split(',').filter(|part| !part.is_empty()).try_fold(0, |bits, part| Ok(bits | range(part, bounds)?))
}

fn range(text: &str, bounds: &Bounds) -> Result<u64, CronError> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let mut star = 0;
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        star = STAR;
        (bounds.min, bounds.max)
    } else {
        let start = number_or_name(ends[0], bounds)?;
        match ends[..] {
            [_] => (start, start),
            [_, end] => (start, number_or_name(end, bounds)?),
            _ => return Err(CronError(format!("too many hyphens: {text}"))),
        }
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if ends.len() == 1 {
                end = bounds.max;
            }
            if step > 1 {
                star = 0;
            }
            step
        }
        _ => return Err(CronError(format!("too many slashes: {text}"))),
    };
    let Bounds { min, max, .. } = bounds;
    if start < *min {
        return Err(CronError(format!("beginning of range ({start}) below minimum ({min}): {text}")));
    }
    if end > *max {
        return Err(CronError(format!("end of range ({end}) above maximum ({max}): {text}")));
    }
    if start > end {
        return Err(CronError(format!("beginning of range ({start}) beyond end of range ({end}): {text}")));
    }
    if step == 0 {
        return Err(CronError(format!("step of range should be a positive number: {text}")));
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    Ok((start..=end).step_by(step).fold(star, |bits, value| bits | 1 << value))
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u64, CronError> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|name| *name == lower) {
        Some(place) => Ok(bounds.min + place as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, CronError> {
    let value: i64 = text
        .parse()
        .map_err(|_| CronError(format!("failed to parse int from {text}: {}", atoi_error(text))))?;
    u64::try_from(value).map_err(|_| CronError(format!("negative number ({value}) not allowed: {text}")))
}

/// What Go's `strconv.Atoi` says about a text that is no number.
pub(crate) fn atoi_error(text: &str) -> String {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all_digits = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    let why = if all_digits { "value out of range" } else { "invalid syntax" };
    format!("strconv.Atoi: parsing {}: {why}", karpenter_primitives::quote::quote(text))
}
