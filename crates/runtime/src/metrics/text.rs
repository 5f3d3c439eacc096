//! The classic text format (version 0.0.4), as Go's client library writes it: labels by name, series by label values,
//! numbers as Go prints them.

use std::fmt::Write;

use super::label_values::Values;
use super::{Description, Sample};

/// Writes a family; one without series writes nothing, as in Go.
pub(super) fn write_family(out: &mut String, description: &Description, series: Vec<(Values, Sample)>) {
    if series.is_empty() {
        return;
    }
    let name = &description.name;
    let kind = description.kind.as_str();
    push(out, format_args!("# HELP {name} {}\n# TYPE {name} {kind}\n", escaped(&description.help, false)));

    let mut order: Vec<usize> = (0..description.labels.len()).collect();
    order.sort_by(|a, b| description.labels[*a].cmp(&description.labels[*b]));
    let mut series: Vec<(Vec<(&str, &str)>, &Sample)> = series
        .iter()
        .map(|(values, sample)| {
            let labels = order.iter().map(|at| (description.labels[*at].as_str(), values.at(*at))).collect();
            (labels, sample)
        })
        .collect();
    series.sort_by(|(a, _), (b, _)| a.cmp(b));

    for (labels, sample) in &series {
        match sample {
            Sample::Value(value) => write_line(out, name, "", labels, None, *value),
            Sample::Histogram { buckets, sum, count } => {
                for (bound, below) in buckets {
                    write_line(out, name, "_bucket", labels, Some(("le", *bound)), *below as f64);
                }
                write_line(out, name, "_bucket", labels, Some(("le", f64::INFINITY)), *count as f64);
                write_line(out, name, "_sum", labels, None, *sum);
                write_line(out, name, "_count", labels, None, *count as f64);
            }
            Sample::Summary { quantiles, sum, count } => {
                for (quantile, value) in quantiles {
                    write_line(out, name, "", labels, Some(("quantile", *quantile)), *value);
                }
                write_line(out, name, "_sum", labels, None, *sum);
                write_line(out, name, "_count", labels, None, *count as f64);
            }
        }
    }
}

fn write_line(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(&str, &str)],
    extra: Option<(&str, f64)>,
    value: f64,
) {
    out.push_str(name);
    out.push_str(suffix);
    let mut separator = '{';
    for (label, value) in labels {
        push(out, format_args!("{separator}{label}=\"{}\"", escaped(value, true)));
        separator = ',';
    }
    if let Some((label, bound)) = extra {
        push(out, format_args!("{separator}{label}=\"{}\"", Float(bound)));
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
    push(out, format_args!(" {}\n", Float(value)));
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
    out
}

/// A number as Go's library prints it: the shortest that reads back, with an exponent below 1e-4 and from 1e6 on.
struct Float(f64);

impl std::fmt::Display for Float {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.0;
        if value.is_nan() {
            return f.write_str("NaN");
        }
        if value.is_infinite() {
            return f.write_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        }
        let scientific = format!("{value:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if !(-4..6).contains(&exponent) {
            let sign = if exponent < 0 { '-' } else { '+' };
            return write!(f, "{digits}e{sign}{:02}", exponent.unsigned_abs());
        }
        write!(f, "{value}")
    }
}
