//! `resource.Quantity`: exact fixed-point amounts such as `100m`, `1.5Gi` or `12e6`.
//!
//! A quantity remembers which family of suffixes it was written in and comes out in that family's canonical form: no
//! fraction, the largest suffix that loses nothing. Equality and order compare amounts, not spellings.

mod amount;
mod parse;

use std::cmp::Ordering;
use std::fmt;
use std::ops::{AddAssign, SubAssign};
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use amount::Amount;
pub use parse::ParseQuantityError;

/// The family of suffixes a quantity is written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `n u m k M G T P E`, powers of ten.
    #[default]
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`, powers of 1024.
    BinarySi,
    /// `e3`, `E-2`.
    DecimalExponent,
}

/// An exact amount of a resource.
#[derive(Clone)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text it was read from, where Go would print that again although it is not canonical.
    spelling: Option<Box<str>>,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { amount: Amount::ZERO, format: Format::DecimalSi, spelling: None };

    const fn of(amount: Amount, format: Format) -> Self {
        Self { amount, format, spelling: None }
    }

    fn keeping_spelling(mut self, text: &str, wanted: bool) -> Self {
        if wanted && self.canonical() != text {
            self.spelling = Some(text.into());
        }
        self
    }

    /// A whole number of units.
    pub const fn new(value: i64, format: Format) -> Self {
        Self::of(Amount::Narrow { value, scale: 0 }, format)
    }

    /// A number of thousandths.
    pub const fn from_milli(value: i64, format: Format) -> Self {
        Self::of(Amount::Narrow { value, scale: -3 }, format)
    }

    /// Reads a quantity; surrounding white space is not forgiven here, but is in JSON.
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        parse::parse(text)
    }

    /// The family of suffixes it is written with.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The same amount, written with another family of suffixes.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self.spelling = None;
        self
    }

    /// Whether there is nothing of it.
    pub fn is_zero(&self) -> bool {
        self.amount.is_zero()
    }

    /// Whether it is less than nothing.
    pub fn is_negative(&self) -> bool {
        self.amount.is_negative()
    }

    /// The amount rounded up to a whole number.
    pub fn value(&self) -> i64 {
        self.amount.scaled_i64(0)
    }

    /// The amount in thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        self.amount.scaled_i64(-3)
    }

    /// The amount in units of `10^scale`, rounded up.
    pub fn scaled_value(&self, scale: i32) -> i64 {
        self.amount.scaled_i64(scale)
    }

    /// The amount if it is whole and cheap to tell (Go's `AsInt64`).
    pub fn as_i64(&self) -> Option<i64> {
        self.amount.as_i64()
    }

    /// The amount as a float, approximately.
    pub fn as_approximate_f64(&self) -> f64 {
        self.amount.as_f64()
    }

    /// The amount in plain decimal notation, without suffix: what Go prints of `AsDec()`.
    pub fn to_plain_decimal(&self) -> String {
        self.amount.plain()
    }

    /// The same amount below (or above) zero.
    #[must_use]
    pub fn negated(&self) -> Self {
        Self::of(self.amount.negated(), self.format)
    }

    /// The amount `factor` times.
    #[must_use]
    pub fn times(&self, factor: i64) -> Self {
        Self::of(self.amount.times(factor), self.format)
    }

    fn canonical(&self) -> String {
        if self.amount.is_zero() {
            return "0".to_owned();
        }
        if self.format == Format::BinarySi {
            let bound = Amount::Narrow { value: 1024, scale: 0 };
            // Small or fractional amounts have no exact binary spelling: they come out as decimals.
            let small = self.amount < bound && self.amount > bound.negated();
            let (whole, exact) = self.amount.rounded_up(0);
            if !small && exact {
                let (digits, exponent) = whole.canonical_base1024();
                let suffix = usize::try_from(exponent)
                    .ok()
                    .and_then(|e| ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(e))
                    .copied();
                return digits + suffix.unwrap_or_default();
            }
        }
        let (digits, exponent) = self.amount.canonical_decimal();
        if self.format == Format::DecimalExponent {
            return if exponent == 0 { digits } else { format!("{digits}e{exponent}") };
        }
        // Beyond the last suffix Go prints the bare digits, a known loss that clients rely on being the same everywhere.
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            18 => "E",
            _ => "",
        };
        digits + suffix
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.spelling {
            Some(text) => f.pad(text),
            None => f.pad(&self.canonical()),
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quantity({self})")
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.cmp(&other.amount)
    }
}

/// A sum is written like its first term, or like the second if the first was nothing.
impl AddAssign<&Quantity> for Quantity {
    fn add_assign(&mut self, other: &Quantity) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(other.amount);
        self.spelling = None;
    }
}

impl SubAssign<&Quantity> for Quantity {
    fn sub_assign(&mut self, other: &Quantity) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(other.amount.negated());
        self.spelling = None;
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as \"500m\", \"2Gi\" or 4")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text.trim()).map_err(|e| E::custom(format_args!("{e} (found {text:?})")))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Quantity, E> {
        Ok(Quantity::ZERO)
    }
}
