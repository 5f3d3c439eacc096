//! The part of JSONPath that printer columns, selectable fields and scale paths use.
//!
//! Fields (`.a.b`, `.a\.b`, `['a.b']`), indices, slices without a step, `[*]` and `.*`, `..field`, and filters that compare a path
//! of the element with a literal (`[?(@.type=="Ready")]`). Missing keys give nothing, never an error.

use std::cmp::Ordering;

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Descend(String),
    Every,
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    Filter(JsonPath, Option<(Comparison, Value)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Why a path cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonPathError {
    #[error("unterminated {0} in JSON path")]
    Unterminated(&'static str),
    #[error("unexpected {0:?} in JSON path")]
    Unexpected(String),
}

impl JsonPath {
    pub(crate) fn parse(text: &str) -> Result<Self, JsonPathError> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
        let mut rest = text.trim_start_matches(['$', '@']);
        let mut steps = Vec::new();
        while let Some(c) = rest.chars().next() {
            rest = match c {
                '.' => {
                    let after = &rest[1..];
                    let (deep, after) = after.strip_prefix('.').map_or((false, after), |after| (true, after));
                    let only_a_dot = after.is_empty() && steps.is_empty();
                    if only_a_dot || (after.starts_with('[') && !deep) {
                        after
                    } else {
                        let (name, after) = field(after)?;
                        steps.push(match name.as_str() {
                            "*" => Step::Every,
                            _ if deep => Step::Descend(name),
                            _ => Step::Field(name),
                        });
                        after
                    }
                }
                '[' => {
                    let (inside, after) = bracket(&rest[1..])?;
                    steps.push(subscript(inside.trim())?);
                    after
                }
                // `kubectl` lets the first dot be left out; so does the server.
                _ if steps.is_empty() => {
                    let (name, after) = field(rest)?;
                    steps.push(Step::Field(name));
                    after
                }
                _ => return Err(JsonPathError::Unexpected(rest.to_owned())),
            };
        }
        Ok(Self(steps))
    }

    /// Every value the path leads to, in document order.
    pub(crate) fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        }
        found
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Descend(name) => {
                let mut found = Vec::new();
                descend(value, name, &mut found);
                found
            }
            Self::Every => children(value).collect(),
            Self::Index(index) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                position(*index, items.len()).and_then(|i| items.get(i)).into_iter().collect()
            }
            Self::Slice(from, to) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                let bound = |at: Option<i64>, default| match at {
                    None => default,
                    Some(at) if at < 0 => position(at, items.len()).unwrap_or(0),
                    Some(at) => usize::try_from(at).unwrap_or(usize::MAX).min(items.len()),
                };
                let (from, to) = (bound(*from, 0), bound(*to, items.len()));
                items.get(from..to).unwrap_or_default().iter().collect()
            }
            Self::Filter(path, comparison) => children(value)
                .filter(|item| {
                    let found = path.find(item);
                    match comparison {
                        None => !found.is_empty(),
                        Some((comparison, literal)) => {
                            found.first().is_some_and(|v| comparison.holds(v, literal))
                        }
                    }
                })
                .collect(),
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) => (a == b).then_some(Ordering::Equal),
        };
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::NotEqual => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn descend<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    found.extend(value.get(name));
    for child in children(value) {
        descend(child, name, found);
    }
}

/// A position counted from the end if negative.
fn position(index: i64, length: usize) -> Option<usize> {
    if index >= 0 {
        return usize::try_from(index).ok();
    }
    length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
}

/// A field's name up to the next `.` or `[`, with `\` taking the sense from what follows.
fn field(text: &str) -> Result<(String, &str), JsonPathError> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '.' | '[' => return finish(name, &text[i..]),
            '\\' => match chars.next() {
                Some((_, escaped)) => name.push(escaped),
                None => return Err(JsonPathError::Unterminated("escape")),
            },
            c => name.push(c),
        }
    }
    finish(name, "")
}

fn finish(name: String, rest: &str) -> Result<(String, &str), JsonPathError> {
    if name.is_empty() { Err(JsonPathError::Unexpected(rest.to_owned())) } else { Ok((name, rest)) }
}

/// What stands inside a bracket and what follows it; quotes and nested brackets are respected.
fn bracket(text: &str) -> Result<(&str, &str), JsonPathError> {
    let mut depth = 0usize;
    let mut quote = None;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match (c, quote) {
            ('\\', _) => escaped = true,
            (c, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"', None) => quote = Some(c),
            ('[', None) => depth += 1,
            (']', None) if depth == 0 => return Ok((&text[..i], &text[i + 1..])),
            (']', None) => depth -= 1,
            _ => {}
        }
    }
    Err(JsonPathError::Unterminated("["))
}

fn subscript(text: &str) -> Result<Step, JsonPathError> {
    let unexpected = || JsonPathError::Unexpected(format!("[{text}]"));
    if text == "*" {
        return Ok(Step::Every);
    }
    if let Some(name) = quoted(text) {
        return Ok(Step::Field(name));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(filter.trim());
    }
    if let Some((from, to)) = text.split_once(':') {
        let bound = |text: &str| match text.trim() {
            "" => Ok(None),
            number => number.parse().map(Some).map_err(|_| unexpected()),
        };
        return Ok(Step::Slice(bound(from)?, bound(to)?));
    }
    text.parse().map(Step::Index).map_err(|_| unexpected())
}

fn parse_filter(text: &str) -> Result<Step, JsonPathError> {
    // Two-character operators first: `<` is the beginning of `<=`.
    let operators = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    for (sign, comparison) in operators {
        let Some((left, right)) = text.split_once(sign) else { continue };
        let right = right.trim();
        let literal = match quoted(right) {
            Some(text) => Value::String(text),
            None => serde_json::from_str(right).map_err(|_| JsonPathError::Unexpected(right.to_owned()))?,
        };
        return Ok(Step::Filter(JsonPath::parse(left)?, Some((comparison, literal))));
    }
    Ok(Step::Filter(JsonPath::parse(text)?, None))
}

fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inside = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut out = String::with_capacity(inside.len());
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn find(path: &str, value: &Value) -> Value {
        JsonPath::parse(path).unwrap().find(value).into_iter().cloned().collect()
    }

    #[test]
    fn a_path_leads_to_fields_elements_and_filtered_elements() {
        let object = json!({
            "metadata": {"labels": {"node.kubernetes.io/type": "m5"}},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "weight": 2},
                {"type": "Launched", "status": "False"},
            ]},
        });
        for (path, found) in [
            (".metadata.labels.node\\.kubernetes\\.io/type", json!(["m5"])),
            (".metadata.labels['node.kubernetes.io/type']", json!(["m5"])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type != 'Ready')].status", json!(["False"])),
            (".status.conditions[?(@.weight > 1)].type", json!(["Ready"])),
            (".status.conditions[?(@.weight)].type", json!(["Ready"])),
            (".status.conditions[-1].type", json!(["Launched"])),
            (".status.conditions[*].type", json!(["Ready", "Launched"])),
            (".status.conditions[0:1].type", json!(["Ready"])),
            ("..weight", json!([2])),
            (".status.missing.deeper", json!([])),
            ("{.status.conditions[7]}", json!([])),
        ] {
            assert_eq!(find(path, &object), found, "{path}");
        }
    }

    #[test]
    fn a_malformed_path_is_an_error() {
        for path in [".a[", ".a[?(@.b==)]", ".a[x]", ".a..", ".a\\"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
