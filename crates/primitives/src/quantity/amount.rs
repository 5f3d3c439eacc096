//! The number inside a quantity: a mantissa and a power of ten, in the two widths Go's implementation has.
//!
//! Why two: which width a value sits in is visible from outside (an overflowing conversion gives 0 for the narrow one and
//! the low 64 bits for the wide one), so the distinction is kept. Go's wide form is unbounded; ours holds
//! 38 significant digits and rounds away from zero beyond them, far outside what nodes are made of.

use std::cmp::Ordering;

/// No mantissa reaches this, so that two of them can always be compared digit for digit.
const WIDE_LIMIT: u128 = 10u128.pow(38);

#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    /// `value × 10^scale`, Go's `int64Amount`.
    Narrow { value: i64, scale: i32 },
    /// `value × 10^scale`, Go's `inf.Dec`.
    Wide { value: i128, scale: i32 },
}

impl Amount {
    pub(super) const ZERO: Self = Self::Narrow { value: 0, scale: 0 };

    /// A wide amount from a magnitude that may exceed what is held exactly.
    pub(super) fn wide(magnitude: u128, scale: i32, negative: bool) -> Self {
        let (mut magnitude, mut scale) = (magnitude, scale);
        while magnitude >= WIDE_LIMIT {
            magnitude = magnitude.div_ceil(10);
            scale = scale.saturating_add(1);
        }
        // Below 10^38, hence within i128.
        let value = i128::try_from(magnitude).unwrap_or(i128::MAX);
        Self::Wide { value: if negative { -value } else { value }, scale }
    }

    fn parts(self) -> (i128, i32) {
        match self {
            Self::Narrow { value, scale } => (i128::from(value), scale),
            Self::Wide { value, scale } => (value, scale),
        }
    }

    pub(super) fn is_zero(self) -> bool {
        self.parts().0 == 0
    }

    pub(super) fn is_negative(self) -> bool {
        self.parts().0 < 0
    }

    pub(super) fn negated(self) -> Self {
        match self {
            Self::Narrow { value, scale } => match value.checked_neg() {
                Some(value) => Self::Narrow { value, scale },
                None => Self::Wide { value: -i128::from(value), scale },
            },
            Self::Wide { value, scale } => Self::Wide { value: -value, scale },
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        if let (Self::Narrow { value: a, scale: a_scale }, Self::Narrow { value: b, scale: b_scale }) =
            (self, other)
            && let Some(sum) = add_narrow((a, a_scale), (b, b_scale))
        {
            return sum;
        }
        let (a, a_scale) = self.parts();
        let (b, b_scale) = other.parts();
        let scale = a_scale.min(b_scale);
        if let (Some(a), Some(b)) = (raise(a, a_scale, scale), raise(b, b_scale, scale)) {
            let sum = a + b;
            return Self::wide(sum.unsigned_abs(), scale, sum < 0);
        }
        // The two are so far apart that the sum needs more digits than are held: keep the coarser one's precision.
        let (coarse, fine) = if a_scale > b_scale { (self, other) } else { (other, self) };
        let (value, scale) = coarse.parts();
        let (rounded, _) = fine.rounded_up(scale);
        let sum = value.saturating_add(rounded.parts().0);
        Self::wide(sum.unsigned_abs(), scale, sum < 0)
    }

    /// Multiplied by a whole number.
    pub(super) fn times(self, factor: i64) -> Self {
        if let Self::Narrow { value, scale } = self
            && let Some(product) = value.checked_mul(factor)
            && (scale <= 0 || raise_narrow(product, scale).is_some())
        {
            return Self::Narrow { value: product, scale: if product == 0 { 0 } else { scale } };
        }
        let (mut value, mut scale) = self.parts();
        loop {
            if let Some(product) = value.checked_mul(i128::from(factor)) {
                return Self::wide(product.unsigned_abs(), scale, product < 0);
            }
            value = value / 10 + value.signum();
            scale = scale.saturating_add(1);
        }
    }

    /// The value at a coarser (or equal) scale, rounded away from zero, and whether nothing was lost. A finer scale than
    /// the present one leaves the amount as it is.
    pub(super) fn rounded_up(self, to: i32) -> (Self, bool) {
        let (value, scale) = self.parts();
        if scale >= to {
            return (self, true);
        }
        let (quotient, exact) = divide_away_from_zero(value, i64::from(to) - i64::from(scale));
        let rounded = match self {
            // A division only shrinks, so a narrow value stays narrow.
            Self::Narrow { .. } => {
                Self::Narrow { value: i64::try_from(quotient).unwrap_or(i64::MAX), scale: to }
            }
            Self::Wide { .. } => Self::Wide { value: quotient, scale: to },
        };
        (rounded, exact)
    }

    /// A wide amount written with the digits down to `to`, where they fit.
    pub(super) fn spelled_out_to(self, to: i32) -> Self {
        let (value, scale) = self.parts();
        match raise(value, scale, to) {
            Some(value) if scale > to => Self::Wide { value, scale: to },
            _ => self,
        }
    }

    /// As an integer counting units of `10^to`, rounded up, with Go's answers on overflow.
    pub(super) fn scaled_i64(self, to: i32) -> i64 {
        match self {
            Self::Narrow { value, scale } if scale < to => {
                let (quotient, _) =
                    divide_away_from_zero(i128::from(value), i64::from(to) - i64::from(scale));
                i64::try_from(quotient).unwrap_or(0)
            }
            Self::Narrow { value, scale } => {
                let by = scale.saturating_sub(to);
                raise_narrow(value, by).unwrap_or_else(|| overflowed(value, by))
            }
            Self::Wide { value, scale } => {
                let down = i64::from(to) - i64::from(scale);
                if down <= 0 {
                    let factor = (0..-down).take(64).fold(1i64, |f, _| f.wrapping_mul(10));
                    return low_bits(value).wrapping_mul(factor);
                }
                let Some(divisor) = power_of_ten(down) else {
                    return i64::from(value != 0 && value > 0);
                };
                let fits = value < i128::from(i64::MAX) && down < 19;
                let (quotient, remainder) = if fits {
                    let narrow = i128::from(low_bits(value));
                    (narrow / divisor, narrow % divisor)
                } else {
                    (value.div_euclid(divisor), value.rem_euclid(divisor))
                };
                low_bits(quotient).wrapping_add(i64::from(remainder != 0))
            }
        }
    }

    /// As an `i64` if it is a narrow whole number that fits.
    pub(super) fn as_i64(self) -> Option<i64> {
        match self {
            Self::Narrow { value, scale } if scale >= 0 => raise_narrow(value, scale),
            _ => None,
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        let (value, scale) = self.parts();
        #[expect(clippy::cast_precision_loss, reason = "the caller asked for an approximation")]
        let base = value as f64;
        if scale == 0 { base } else { base * 10f64.powi(scale) }
    }

    /// The digits and the exponent (a multiple of three, as large as possible) of the canonical decimal form.
    pub(super) fn canonical_decimal(self) -> (String, i32) {
        let (value, scale) = self.parts();
        let (mut value, removed) = without_factors(value, 10);
        let mut exponent = scale.saturating_add(removed);
        let mut zeros = 0;
        while exponent % 3 != 0 {
            zeros += 1;
            exponent -= 1;
        }
        for _ in 0..zeros {
            match value.checked_mul(10) {
                Some(wider) => value = wider,
                None => return (format!("{value}{}", "0".repeat(zeros)), exponent),
            }
        }
        (value.to_string(), exponent)
    }

    /// The digits and the power of 1024 of the canonical binary form of a whole amount.
    pub(super) fn canonical_base1024(self) -> (String, i32) {
        let (value, scale) = self.rounded_up(0).0.parts();
        match raise(value, scale, 0) {
            Some(whole) => {
                let (digits, exponent) = without_factors(whole, 1024);
                (digits.to_string(), exponent)
            }
            None => (format!("{value}{}", "0".repeat(usize::try_from(scale).unwrap_or(0).min(400))), 0),
        }
    }

    /// The plain decimal notation, as many places as the scale says.
    pub(super) fn plain(self) -> String {
        let (value, scale) = self.parts();
        let digits = value.unsigned_abs().to_string();
        let sign = if value < 0 { "-" } else { "" };
        match usize::try_from(-i64::from(scale)) {
            Ok(0) => format!("{sign}{digits}"),
            Ok(places) => {
                let padded = format!("{digits:0>width$}", width = places + 1);
                let (whole, fraction) = padded.split_at(padded.len() - places);
                format!("{sign}{whole}.{fraction}")
            }
            Err(_) if value == 0 => digits,
            Err(_) => format!("{sign}{digits}{}", "0".repeat(usize::try_from(scale).unwrap_or(0).min(400))),
        }
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, a_scale), (b, b_scale)) = (self.parts(), other.parts());
        if a_scale == b_scale {
            return a.cmp(&b);
        }
        match a.signum().cmp(&b.signum()) {
            Ordering::Equal if a == 0 => Ordering::Equal,
            Ordering::Equal => {
                let by_magnitude =
                    compare_magnitudes((a.unsigned_abs(), a_scale), (b.unsigned_abs(), b_scale));
                if a < 0 { by_magnitude.reverse() } else { by_magnitude }
            }
            decided => decided,
        }
    }
}

fn compare_magnitudes((a, a_scale): (u128, i32), (b, b_scale): (u128, i32)) -> Ordering {
    // First by where the leading digit stands; only equals there need the digits aligned, and then they fit.
    let top = |value: u128, scale: i32| i64::from(value.ilog10()) + i64::from(scale);
    top(a, a_scale).cmp(&top(b, b_scale)).then_with(|| {
        let apart = a_scale.abs_diff(b_scale);
        let shift = 10u128.checked_pow(apart).unwrap_or(1);
        if a_scale > b_scale { a.saturating_mul(shift).cmp(&b) } else { a.cmp(&b.saturating_mul(shift)) }
    })
}

fn add_narrow((a, a_scale): (i64, i32), (b, b_scale): (i64, i32)) -> Option<Amount> {
    if b == 0 {
        return Some(Amount::Narrow { value: a, scale: a_scale });
    }
    if a == 0 {
        return Some(Amount::Narrow { value: b, scale: b_scale });
    }
    let scale = a_scale.min(b_scale);
    let a = raise_narrow(a, a_scale.saturating_sub(scale))?;
    let b = raise_narrow(b, b_scale.saturating_sub(scale))?;
    a.checked_add(b).map(|value| Amount::Narrow { value, scale })
}

fn raise_narrow(value: i64, by: i32) -> Option<i64> {
    if value == 0 {
        return Some(0);
    }
    let factor = u32::try_from(by).ok().and_then(|by| 10i64.checked_pow(by))?;
    value.checked_mul(factor)
}

/// What Go answers where `value × 10^by` overflows: the low 64 bits where it has a shortcut for the factor, else 0.
fn overflowed(value: i64, by: i32) -> i64 {
    match by {
        1 | 2 | 3 | 6 | 9 if value != i64::MIN => value.wrapping_mul(10i64.pow(by.unsigned_abs())),
        _ => 0,
    }
}

/// `value × 10^from` as a mantissa at the finer scale `to`, if it stays below the limit.
fn raise(value: i128, from: i32, to: i32) -> Option<i128> {
    if value == 0 || from <= to {
        return Some(value);
    }
    let factor = power_of_ten(i64::from(from) - i64::from(to))?;
    value.checked_mul(factor).filter(|v| v.unsigned_abs() < WIDE_LIMIT)
}

fn power_of_ten(exponent: i64) -> Option<i128> {
    u32::try_from(exponent).ok().and_then(|e| 10i128.checked_pow(e))
}

fn divide_away_from_zero(value: i128, places: i64) -> (i128, bool) {
    match power_of_ten(places) {
        Some(divisor) => {
            let exact = value % divisor == 0;
            (value / divisor + if exact { 0 } else { value.signum() }, exact)
        }
        None => (value.signum(), value == 0),
    }
}

fn without_factors(value: i128, factor: i128) -> (i128, i32) {
    let (mut value, mut times) = (value, 0);
    while value != 0 && value % factor == 0 {
        value /= factor;
        times += 1;
    }
    (value, times)
}

fn low_bits(value: i128) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "Go's big.Int.Int64 keeps the low 64 bits")]
    let low = value as i64;
    low
}
