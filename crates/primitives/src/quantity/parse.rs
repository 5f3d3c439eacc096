//! Reading a quantity, as permissively as Go does: `+`, `.` and `1.Gi` are quantities there, and so they are here.

use super::amount::Amount;
use super::{Format, Quantity};

/// Why a text is no quantity. The words are apimachinery's, since API clients see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// Empty, or characters where none may be.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number before the suffix is no number.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The suffix is none of the known ones.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The finest step a quantity has: 10^-9.
const NANO: i32 = -9;
/// Decimal digits an `i64` surely holds.
const NARROW_DIGITS: usize = 18;

struct Pieces<'a> {
    negative: bool,
    /// Integer digits without leading zeros, at least "0".
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// There is no digit at all, which only the common case forgives.
    blank: bool,
}

enum Unit {
    Decimal { exponent: i32, format: Format },
    Binary { bits: u32 },
}

pub(super) fn parse(text: &str) -> Result<Quantity, ParseQuantityError> {
    if text.is_empty() {
        return Err(ParseQuantityError::Format);
    }
    let pieces = split(text)?;
    let unit = unit(pieces.suffix).ok_or(ParseQuantityError::Suffix)?;
    match narrow(&pieces, &unit) {
        Some(quantity) => Ok(quantity.keeping_spelling(text, reuses_spelling(&pieces, &unit))),
        None => wide(&pieces, &unit),
    }
}

fn split(text: &str) -> Result<Pieces<'_>, ParseQuantityError> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let significant = unsigned.trim_start_matches('0');
    let (whole, rest) = take_digits(significant);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(after) => take_digits(after),
        None => ("", rest),
    };
    let exponent = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if !digits.bytes().all(|c| c.is_ascii_digit()) {
        return Err(ParseQuantityError::Format);
    }
    let blank = whole.is_empty() && fraction.is_empty() && significant.len() == unsigned.len();
    Ok(Pieces { negative, whole: if whole.is_empty() { "0" } else { whole }, fraction, suffix, blank })
}

fn take_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn unit(suffix: &str) -> Option<Unit> {
    let si = |exponent| Some(Unit::Decimal { exponent, format: Format::DecimalSi });
    match suffix {
        "n" => si(-9),
        "u" => si(-6),
        "m" => si(-3),
        "" => si(0),
        "k" => si(3),
        "M" => si(6),
        "G" => si(9),
        "T" => si(12),
        "P" => si(15),
        "E" => si(18),
        "Ki" => Some(Unit::Binary { bits: 10 }),
        "Mi" => Some(Unit::Binary { bits: 20 }),
        "Gi" => Some(Unit::Binary { bits: 30 }),
        "Ti" => Some(Unit::Binary { bits: 40 }),
        "Pi" => Some(Unit::Binary { bits: 50 }),
        "Ei" => Some(Unit::Binary { bits: 60 }),
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "Go narrows the exponent to 32 bits unchecked"
            )]
            let exponent = exponent as i32;
            Some(Unit::Decimal { exponent, format: Format::DecimalExponent })
        }
    }
}

/// The common case: everything fits 64 bits and nothing needs rounding.
fn narrow(pieces: &Pieces<'_>, unit: &Unit) -> Option<Quantity> {
    let digits = pieces.whole.len() + pieces.fraction.len();
    let (scale, factor, format) = match *unit {
        Unit::Decimal { exponent, format } if digits <= NARROW_DIGITS => (exponent, 1, format),
        Unit::Binary { bits } if pieces.fraction.is_empty() && digits + (bits as usize * 3 / 10) < 15 => {
            (0, 1i64 << bits, Format::BinarySi)
        }
        _ => return None,
    };
    let scale = scale.wrapping_sub(i32::try_from(pieces.fraction.len()).ok()?);
    if scale < NANO {
        return None;
    }
    let value = [pieces.whole, pieces.fraction].concat().parse::<i64>().ok()?.checked_mul(factor)?;
    Some(Quantity::of(Amount::Narrow { value: if pieces.negative { -value } else { value }, scale }, format))
}

/// Go re-emits the text it read when a cheap test says it looks canonical. The test looks only at the digits, so `+5`,
/// `1.500` and `010` come back as they were written.
fn reuses_spelling(pieces: &Pieces<'_>, unit: &Unit) -> bool {
    let digits = [pieces.whole, pieces.fraction].concat();
    match *unit {
        Unit::Binary { .. } => digits.parse::<i64>().is_ok_and(|value| value & 7 != 0),
        Unit::Decimal { exponent, .. } => {
            let places = i32::try_from(pieces.fraction.len()).unwrap_or(0);
            exponent.wrapping_sub(places) % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
        }
    }
}

/// The general case: any number of digits, rounded up to nano, binary quantities capped at the largest `i64`.
fn wide(pieces: &Pieces<'_>, unit: &Unit) -> Result<Quantity, ParseQuantityError> {
    if pieces.blank {
        return Err(ParseQuantityError::Number);
    }
    let digits = [pieces.whole, pieces.fraction].concat();
    let digits = digits.trim_start_matches('0');
    // 37 digits leave room for the carry of rounding up what is cut off.
    let (kept, cut) = digits.split_at(digits.len().min(37));
    let mut magnitude: u128 =
        if kept.is_empty() { 0 } else { kept.parse().map_err(|_| ParseQuantityError::Number)? };
    if cut.bytes().any(|c| c != b'0') {
        magnitude += 1;
    }
    let places = i64::try_from(pieces.fraction.len()).unwrap_or(i64::MAX);
    let mut scale = i64::try_from(cut.len()).unwrap_or(i64::MAX) - places;
    let mut format = match *unit {
        Unit::Decimal { exponent, format } => {
            scale = scale.saturating_add(i64::from(exponent));
            format
        }
        Unit::Binary { bits } => {
            while magnitude.leading_zeros() <= bits {
                magnitude = magnitude.div_ceil(10);
                scale += 1;
            }
            magnitude <<= bits;
            Format::BinarySi
        }
    };
    let scale = i32::try_from(scale).unwrap_or(if scale < 0 { i32::MIN } else { i32::MAX });
    let mut amount = Amount::wide(magnitude, scale, false).rounded_up(NANO).0.spelled_out_to(NANO);
    if format == Format::BinarySi {
        let largest = Amount::Wide { value: i128::from(i64::MAX), scale: 0 };
        let one = Amount::Wide { value: 1, scale: 0 };
        if amount > largest {
            amount = largest;
        }
        if amount < one && !amount.is_zero() {
            format = Format::DecimalSi;
        }
    }
    Ok(Quantity::of(if pieces.negative { amount.negated() } else { amount }, format))
}
