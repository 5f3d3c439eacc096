//! Quantities as `resource.Quantity` reads and prints them: `1000m` is `1`, `1024Mi` is `1Gi`, `0.5` is `500m`.

use std::cmp::Ordering;

/// What Go says about a text that is no quantity.
pub(super) const FORMAT_ERROR: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The family of suffixes a quantity was written with; it is printed with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// An exact amount in billionths, the finest step a quantity knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quantity {
    nanos: i128,
    format: Format,
}

const NANO: i128 = 1_000_000_000;
/// The largest amount: amounts beyond it are cut to it.
const MAX: i128 = i64::MAX as i128;

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.nanos.partial_cmp(&other.nanos)
    }
}

impl Quantity {
    /// Reads a quantity; the error is Go's.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let bytes = text.as_bytes();
        let (negative, mut at) = match bytes.first() {
            Some(b'-') => (true, 1),
            Some(b'+') => (false, 1),
            Some(_) => (false, 0),
            None => {
                return Err(
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                );
            }
        };
        let (mut digits, mut scale, mut any, mut fraction) = (0i128, 0i32, false, false);
        let mut lost = false;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'0'..=b'9' => {
                    any = true;
                    if digits < i128::MAX / 1000 {
                        digits = digits * 10 + i128::from(byte - b'0');
                        scale -= i32::from(fraction);
                    } else {
                        // More digits than can matter: beyond the largest amount or below the finest step.
                        lost |= byte != b'0';
                        scale += i32::from(!fraction);
                    }
                }
                b'.' if !fraction => fraction = true,
                _ => break,
            }
            at += 1;
        }
        if !any {
            return Err(FORMAT_ERROR);
        }
        let (format, base, exponent) = suffix(&text[at..])?;
        let mut nanos = digits;
        let mut round_up = lost;
        let ten = scale + 9 + if base == 10 { exponent } else { 0 };
        if base == 2 {
            nanos =
                nanos.checked_shl(exponent as u32).filter(|n| n >> exponent == digits).unwrap_or(i128::MAX);
        }
        for _ in 0..ten {
            nanos = nanos.saturating_mul(10);
        }
        for _ in ten..0 {
            round_up |= nanos % 10 != 0;
            nanos /= 10;
        }
        nanos = nanos.saturating_add(i128::from(round_up)).min(MAX.saturating_mul(NANO));
        // A binary amount below one whole is printed as a decimal one.
        let format = if format == Format::Binary && nanos < 1024 * NANO && nanos % NANO != 0 {
            Format::Decimal
        } else {
            format
        };
        Ok(Self { nanos: if negative { -nanos } else { nanos }, format })
    }

    pub(super) fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The amount alone, without the suffix it was written with.
    pub(super) fn amount(self) -> i128 {
        self.nanos
    }

    pub(super) fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is a whole number.
    pub(super) fn is_integer(self) -> bool {
        self.nanos % NANO == 0
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let (mut number, mut power) = (self.nanos, 0);
        if self.format == Format::Binary && number % NANO == 0 {
            number /= NANO;
            while number % 1024 == 0 {
                number /= 1024;
                power += 1;
            }
            return write!(
                f,
                "{number}{}",
                ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power).unwrap_or(&"Ei")
            );
        }
        while number % 1000 == 0 && power < 9 {
            number /= 1000;
            power += 1;
        }
        match self.format {
            Format::Exponent if power == 3 => write!(f, "{number}"),
            Format::Exponent => write!(f, "{number}e{}", (power as i32 - 3) * 3),
            _ => write!(f, "{number}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][power]),
        }
    }
}

fn suffix(text: &str) -> Result<(Format, i32, i32), &'static str> {
    const UNKNOWN: &str = "unable to parse quantity's suffix";
    Ok(match text {
        "" => (Format::Decimal, 10, 0),
        "n" => (Format::Decimal, 10, -9),
        "u" => (Format::Decimal, 10, -6),
        "m" => (Format::Decimal, 10, -3),
        "k" => (Format::Decimal, 10, 3),
        "M" => (Format::Decimal, 10, 6),
        "G" => (Format::Decimal, 10, 9),
        "T" => (Format::Decimal, 10, 12),
        "P" => (Format::Decimal, 10, 15),
        "E" => (Format::Decimal, 10, 18),
        "Ki" => (Format::Binary, 2, 10),
        "Mi" => (Format::Binary, 2, 20),
        "Gi" => (Format::Binary, 2, 30),
        "Ti" => (Format::Binary, 2, 40),
        "Pi" => (Format::Binary, 2, 50),
        "Ei" => (Format::Binary, 2, 60),
        _ => {
            let (head, tail) = text.split_at(text.len().min(1));
            let well_formed = text.bytes().all(|b| b"eEinumkKMGTP+-0123456789".contains(&b));
            if !well_formed {
                return Err(FORMAT_ERROR);
            }
            match (head, tail.parse::<i32>()) {
                ("e" | "E", Ok(exponent)) if exponent.abs() < 100 => (Format::Exponent, 10, exponent),
                _ => return Err(UNKNOWN),
            }
        }
    })
}

/// The canonical form, or nothing when `text` is canonical already.
pub(super) fn canonical(text: &str) -> Result<Option<String>, String> {
    // One to three digits without a leading zero, with or without a plain suffix: cannot be shortened.
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if (1..=3).contains(&digits)
        && !text.starts_with('0')
        && matches!(&text[digits..], "" | "m" | "k" | "M" | "G" | "T" | "Ki" | "Mi" | "Gi" | "Ti")
    {
        return Ok(None);
    }
    let printed = Quantity::parse(text)?.to_string();
    Ok(if printed == text { None } else { Some(printed) })
}

/// The text of a quantity finer than a thousandth, rounded up to thousandths; nothing for all others.
pub(super) fn rounded_to_milli(text: &str) -> Option<String> {
    const MILLI: i128 = NANO / 1000;
    if !text.ends_with(['n', 'u']) && !text.contains('e') {
        return None;
    }
    let quantity = Quantity::parse(text).ok().filter(|q| q.nanos % MILLI != 0)?;
    let nanos = quantity.nanos.div_euclid(MILLI) * MILLI + if quantity.nanos > 0 { MILLI } else { 0 };
    Some(Quantity { nanos, ..quantity }.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> String {
        canonical(text).unwrap().unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn quantities_are_printed_in_their_shortest_exact_form() {
        for (given, expected) in [
            ("1000m", "1"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1e3"),
            ("1500e0", "1500"),
            ("0", "0"),
            ("0m", "0"),
            ("00100m", "100m"),
            ("+5", "5"),
            ("-1500m", "-1500m"),
            ("0.0001", "100u"),
            ("0.1n", "1n"),
            ("12345", "12345"),
            ("0.5Ki", "512"),
            ("100000Ki", "100000Ki"),
            ("9223372036854775808", "9223372036854775807"),
            (".5", "500m"),
            ("5.", "5"),
        ] {
            assert_eq!(printed(given), expected, "{given}");
        }
    }

    #[test]
    fn a_text_that_is_no_quantity_is_refused_in_go_s_words() {
        assert_eq!(canonical("abc").unwrap_err(), FORMAT_ERROR);
        assert_eq!(canonical("").unwrap_err(), FORMAT_ERROR);
        assert_eq!(canonical("1Kim").unwrap_err(), "unable to parse quantity's suffix");
    }
}
