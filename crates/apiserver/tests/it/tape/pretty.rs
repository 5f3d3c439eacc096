//! JSON for people: a value stands on one line as long as it fits, and is broken member by member where it does not.

use serde_json::Value;

const WIDTH: usize = 150;

/// Renders `value` where the line already holds `indent + used` characters.
pub(crate) fn render(value: &Value, indent: usize, used: usize) -> String {
    let line = one_line(value);
    if indent + used + line.len() <= WIDTH {
        return line;
    }
    let deeper = indent + 2;
    let pad = " ".repeat(deeper);
    let close = " ".repeat(indent);
    match value {
        Value::Object(members) if !members.is_empty() => {
            let inner: Vec<String> = members
                .iter()
                .map(|(name, value)| {
                    let name = Value::String(name.clone()).to_string();
                    format!("{pad}{name}: {}", render(value, deeper, name.len() + 2))
                })
                .collect();
            format!("{{\n{}\n{close}}}", inner.join(",\n"))
        }
        Value::Array(items) if !items.is_empty() => {
            let inner: Vec<String> =
                items.iter().map(|item| format!("{pad}{}", render(item, deeper, 0))).collect();
            format!("[\n{}\n{close}]", inner.join(",\n"))
        }
        _ => line,
    }
}

/// The beginning of a value, for reports.
pub(crate) fn shortened(value: &Value) -> String {
    let text = one_line(value);
    match text.char_indices().nth(600) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let inner: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{}: {}", Value::String(name.clone()), one_line(value)))
                .collect();
            format!("{{{}}}", inner.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
