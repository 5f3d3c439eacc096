//! Quantities as whole billionths, read digit by digit.

/// Billionths of the unit; `None` for what is no quantity. Finer fractions round up, as Kubernetes rounds.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    let split = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (scale, divisor): (i128, i128) = match suffix {
        "" => (1_000_000_000, 1),
        "n" => (1, 1),
        "u" => (1_000, 1),
        "m" => (1_000_000, 1),
        "k" => (1_000_000_000_000, 1),
        "M" => (1_000_000_000_000_000, 1),
        "G" => (1_000_000_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000_000_000_000, 1),
        "Ki" => (1_000_000_000 << 10, 1),
        "Mi" => (1_000_000_000 << 20, 1),
        "Gi" => (1_000_000_000 << 30, 1),
        "Ti" => (1_000_000_000 << 40, 1),
        "Pi" => (1_000_000_000 << 50, 1),
        "Ei" => (1_000_000_000 << 60, 1),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let ten = 10_i128.checked_pow(power.unsigned_abs())?;
            if power < 0 { (1_000_000_000, ten) } else { (1_000_000_000_i128.checked_mul(ten)?, 1) }
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digit = |c: char| c.is_ascii_digit();
    if whole.is_empty() && fraction.is_empty() || !whole.chars().all(digit) || !fraction.chars().all(digit) {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = divisor.checked_mul(10_i128.checked_pow(fraction.len() as u32)?)?;
    let product = digits.checked_mul(scale)?;
    let value = product / divisor + i128::from(product % divisor != 0);
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::nanos;

    #[test]
    fn suffixes_fractions_and_exponents_are_read() {
        for (text, want) in [
            ("1", 1_000_000_000),
            ("100m", 100_000_000),
            ("1.5Ki", 1536 * 1_000_000_000),
            ("1e3", 1_000_000_000_000),
            ("5E-1", 500_000_000),
            ("-2", -2_000_000_000),
            (".5", 500_000_000),
        ] {
            assert_eq!(nanos(text), Some(want), "{text}");
        }
        for text in ["", "x", "1Q", "1e", "--1"] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
