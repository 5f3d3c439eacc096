//! Holds the primitives to what Go's apimachinery answers: the rows recorded under `conformance/api`.

mod names;
mod properties;
mod quantity;
mod selector;

use serde_json::Value;

/// The rows of one recorded subject.
fn rows(recorded: &str) -> Vec<Value> {
    serde_json::from_str(recorded).expect("a recorded file is a JSON list")
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_default()
}
