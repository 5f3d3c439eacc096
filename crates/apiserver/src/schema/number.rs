//! The two kinds of number a JSON document holds in Kubernetes: 64-bit integers, and floats for everything else.

use serde_json::{Number, Value};

use crate::go_format;

/// A JSON number, told apart as kube-apiserver's decoder tells them apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Num {
    Int(i64),
    Float(f64),
}

impl Num {
    pub(super) fn of(number: &Number) -> Self {
        number.as_i64().map_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::NAN)), Self::Int)
    }

    #[expect(clippy::cast_precision_loss, reason = "bounds are floats; kube-apiserver loses the same digits")]
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    /// As `%v` shows it.
    pub(super) fn show(self) -> String {
        match self {
            Self::Int(i) => i.to_string(),
            Self::Float(f) => go_format::float(f),
        }
    }

    /// All digits, never an exponent: the form range checks parse.
    fn digits(self) -> String {
        match self {
            Self::Int(i) => i.to_string(),
            Self::Float(f) => format!("{f}"),
        }
    }

    /// Whether the value survives conversion to what `range` names.
    pub(super) fn fits(self, range: Range) -> bool {
        match range {
            Range::Int32 => self.digits().parse::<i32>().is_ok(),
            Range::Int64 => self.digits().parse::<i64>().is_ok(),
            Range::Float32 => self.as_f64().abs() <= f64::from(f32::MAX),
            Range::Any => true,
        }
    }
}

/// The capacity a schema's `type` and `format` promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    Int32,
    Int64,
    Float32,
    Any,
}

/// Whether a float stands for an integer that JSON readers agree on, within kube-apiserver's tolerance.
pub(super) fn is_json_integer(number: f64) -> bool {
    const SAFE: f64 = 9_007_199_254_740_991.0;
    const TOLERANCE: f64 = 1e-9;
    if !number.is_finite() || number.abs() > SAFE {
        return false;
    }
    let whole = number.trunc();
    if number == whole {
        return true;
    }
    if whole == 0.0 {
        return false;
    }
    (number - whole).abs() / (number.abs() + whole.abs()) < TOLERANCE
}

/// Equality of an enumerated value with one of the document: numbers by value, everything else exactly.
pub(super) fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Num::of(a).as_f64() == Num::of(b).as_f64(),
        _ => a == b,
    }
}
