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

/// Whether a value is the enumerated one. kube-apiserver converts the value to the type of the enumerated one first, so
/// 1.5 passes for 1, and 65 for "A".
#[expect(clippy::cast_possible_truncation, reason = "that is how Go converts a float to an integer")]
pub(super) fn is_enumerated(value: &Value, enumerated: &Value) -> bool {
    match (value, enumerated) {
        (Value::Number(value), Value::Number(enumerated)) => match (Num::of(value), Num::of(enumerated)) {
            (Num::Float(value), Num::Int(enumerated)) => value as i64 == enumerated,
            (value, enumerated) => value.as_f64() == enumerated.as_f64(),
        },
        (Value::Number(value), Value::String(enumerated)) => value.as_i64().is_some_and(|code| {
            let character =
                u32::try_from(code).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            enumerated.chars().eq([character])
        }),
        _ => value == enumerated,
    }
}
