//! Times as `metav1.Time` and `metav1.MicroTime` read and print them: UTC, to the second or the microsecond.
//!
//! Reading follows Go's `time.Parse` step by step, because its errors name the part of the text where it stopped.

use jiff::Timestamp;
use jiff::civil::Date;

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// The canonical form of a `metav1.Time`, or nothing when `text` is canonical already.
pub(super) fn canonical_seconds(text: &str) -> Result<Option<String>, String> {
    let time = parse(text, SECONDS)?;
    if text.len() == 20 && text.ends_with('Z') {
        return Ok(None);
    }
    Ok(Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
}

/// The canonical form of a `metav1.MicroTime`, or nothing when `text` is canonical already.
pub(super) fn canonical_micros(text: &str) -> Result<Option<String>, String> {
    let time = parse(text, MICROS)?;
    if text.len() == 27 && text.ends_with('Z') {
        return Ok(None);
    }
    Ok(Some(time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()))
}

/// Takes a text apart, piece by piece.
struct Reader<'a> {
    whole: &'a str,
    rest: &'a str,
    layout: &'static str,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, element: &str) -> Result<T, String> {
        Err(format!(
            "parsing time {:?} as {:?}: cannot parse {:?} as {element:?}",
            self.whole, self.layout, self.rest
        ))
    }

    fn out_of_range<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("parsing time {:?}: {what} out of range", self.whole))
    }

    fn number(&mut self, digits: usize, element: &str) -> Result<i64, String> {
        match self.rest.get(..digits).filter(|d| d.bytes().all(|b| b.is_ascii_digit())) {
            Some(number) => {
                self.rest = &self.rest[digits..];
                Ok(number.parse().unwrap_or_default())
            }
            None => self.fail(element),
        }
    }

    fn literal(&mut self, literal: &str) -> Result<(), String> {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.fail(literal),
        }
    }

    /// `.5` and the like, as nanoseconds.
    fn fraction(&mut self) -> i64 {
        let Some(digits) = self.rest.strip_prefix(['.', ',']) else { return 0 };
        let length = digits.bytes().take_while(u8::is_ascii_digit).count();
        if length == 0 {
            return 0;
        }
        let nanos = format!("{:0<9}", &digits[..length.min(9)]).parse().unwrap_or_default();
        self.rest = &digits[length..];
        nanos
    }

    /// `Z`, `+01:00`: seconds east of Greenwich.
    fn offset(&mut self) -> Result<i64, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let bytes = self.rest.as_bytes();
        let digit = |i: usize| bytes.get(i).filter(|b| b.is_ascii_digit()).map(|b| i64::from(b - b'0'));
        let sign = match bytes.first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return self.fail("Z07:00"),
        };
        match (digit(1), digit(2), bytes.get(3), digit(4), digit(5)) {
            (Some(a), Some(b), Some(b':'), Some(c), Some(d)) => {
                let (hours, minutes) = (a * 10 + b, c * 10 + d);
                if hours > 24 {
                    return self.out_of_range("time zone offset hour");
                }
                if minutes > 60 {
                    return self.out_of_range("time zone offset minute");
                }
                self.rest = &self.rest[6..];
                Ok(sign * (hours * 3600 + minutes * 60))
            }
            _ => self.fail("Z07:00"),
        }
    }
}

fn parse(text: &str, layout: &'static str) -> Result<Timestamp, String> {
    let mut reader = Reader { whole: text, rest: text, layout };
    let year = reader.number(4, "2006")?;
    reader.literal("-")?;
    let month = reader.number(2, "01")?;
    if !(1..=12).contains(&month) {
        return reader.out_of_range("month");
    }
    reader.literal("-")?;
    let day = reader.number(2, "02")?;
    reader.literal("T")?;
    let hour = reader.number(2, "15")?;
    if hour > 23 {
        return reader.out_of_range("hour");
    }
    reader.literal(":")?;
    let minute = reader.number(2, "04")?;
    if minute > 59 {
        return reader.out_of_range("minute");
    }
    reader.literal(":")?;
    let second = reader.number(2, "05")?;
    if second > 59 {
        return reader.out_of_range("second");
    }
    let nanos = if layout == MICROS {
        let six = reader.rest.as_bytes().get(1..7).is_some_and(|d| d.iter().all(u8::is_ascii_digit));
        if !reader.rest.starts_with('.') || !six {
            return reader.fail(".000000");
        }
        reader.rest = &reader.rest[1..];
        reader.number(6, ".000000")? * 1000
    } else {
        reader.fraction()
    };
    let offset = reader.offset()?;
    if !reader.rest.is_empty() {
        return Err(format!("parsing time {text:?}: extra text: {:?}", reader.rest));
    }
    // Every part fits its type: the ranges were checked above.
    let date = i16::try_from(year)
        .ok()
        .zip(i8::try_from(month).ok())
        .zip(i8::try_from(day).ok())
        .and_then(|((year, month), day)| Date::new(year, month, day).ok());
    let Some(date) = date else { return reader.out_of_range("day") };
    let days = date.since(Date::constant(1970, 1, 1)).map_or(0, |span| i64::from(span.get_days()));
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    match Timestamp::new(seconds, i32::try_from(nanos).unwrap_or_default()) {
        Ok(time) => Ok(time),
        Err(_) => reader.out_of_range("year"),
    }
}
