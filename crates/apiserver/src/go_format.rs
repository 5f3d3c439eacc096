//! Values and texts as Go prints them, because they stand in error messages that clients show and tests compare.
//!
//! Only the forms kube-apiserver's field errors use: `%q`, `%v` of a float, and `json.Marshal`.

use std::fmt::Write as _;

use serde_json::Value;

pub(crate) use karpenter_primitives::quote::quote;

/// `%v` of a `float64`: shortest digits, an exponent from 1e+06 on and below 0.0001.
pub(crate) fn float(number: f64) -> String {
    float_with_exponent_outside(number, -4, 6)
}

fn float_with_exponent_outside(number: f64, lowest: i32, highest: i32) -> String {
    if !number.is_finite() || number == 0.0 {
        return if number == 0.0 { "0".into() } else { format!("{number:+}").replace("inf", "Inf") };
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (lowest..highest).contains(&exponent) {
        return format!("{number}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// `json.Marshal`: sorted keys, whole floats without a fraction, `<`, `>` and `&` escaped.
pub(crate) fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out);
    out
}

fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_string(key, out);
                out.push(':');
                write_json(item, out);
            }
            out.push('}');
        }
        Value::String(text) => write_json_string(text, out),
        Value::Number(number) if number.is_f64() => {
            let text = float_with_exponent_outside(number.as_f64().unwrap_or_default(), -6, 21);
            // Go drops the zero that pads a one-digit exponent here.
            out.push_str(&text.replace("e-0", "e-"));
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn write_json_string(text: &str, out: &mut String) {
    for c in Value::String(text.to_owned()).to_string().chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_print_like_go() {
        for (number, text) in [
            (1.0, "1"),
            (123456.5, "123456.5"),
            (1e6, "1e+06"),
            (12345678.5, "1.23456785e+07"),
            (-0.00001, "-1e-05"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn quotes_escape_like_go() {
        assert_eq!(quote("a\"b\\\n\u{1}é\u{200b}"), "\"a\\\"b\\\\\\n\\x01é\\u200b\"");
    }

    #[test]
    fn json_escapes_what_go_escapes_for_html() {
        assert_eq!(
            json(&json!({"b": "<&>", "a": [1.0, 1, 1e-7]})),
            r#"{"a":[1,1,1e-7],"b":"\u003c\u0026\u003e"}"#
        );
    }
}
