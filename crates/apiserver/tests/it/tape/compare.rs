//! Where an answer differs from the recorded one, as JSON pointers with both values.

use std::fmt;

use serde_json::Value;

use super::chapter::{Answer, View};
use super::pretty;

/// One place in an answer where the two sides disagree.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub(crate) pointer: String,
    pub(crate) recorded: Option<Value>,
    pub(crate) got: Option<Value>,
}

/// Every difference between a recorded answer and one just received, both normalised.
pub(crate) fn differences(view: Option<View>, recorded: &Answer, got: &Answer) -> Vec<Difference> {
    let mut found = Vec::new();
    if let (Some(View::Discovery | View::OpenapiIndex), Value::Array(known), Value::Array(offered)) =
        (view, &recorded.body, &got.body)
    {
        // Offering less than kube-apiserver is allowed in a digest, offering anything else is not.
        let unknown = offered.iter().enumerate().filter(|(_, line)| !known.contains(line));
        found.extend(unknown.map(|(at, line)| Difference {
            pointer: format!("/body/{at}"),
            recorded: closest(line, known).cloned(),
            got: Some(line.clone()),
        }));
        if !offered.is_empty() {
            return found;
        }
    }
    walk(String::new(), Some(&recorded.document()), Some(&got.document()), &mut found);
    found
}

/// The recorded line that shares the longest beginning with a line that was not recorded.
fn closest<'a>(line: &Value, known: &'a [Value]) -> Option<&'a Value> {
    let line = line.to_string();
    known.iter().max_by_key(|other| {
        other.to_string().bytes().zip(line.bytes()).take_while(|(left, right)| left == right).count()
    })
}

fn walk(pointer: String, recorded: Option<&Value>, got: Option<&Value>, found: &mut Vec<Difference>) {
    match (recorded, got) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let only_right = right.keys().filter(|name| !left.contains_key(*name));
            for name in left.keys().chain(only_right) {
                let segment = name.replace('~', "~0").replace('/', "~1");
                walk(format!("{pointer}/{segment}"), left.get(name), right.get(name), found);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            for at in 0..left.len().max(right.len()) {
                walk(format!("{pointer}/{at}"), left.get(at), right.get(at), found);
            }
        }
        (left, right) if left == right => {}
        (left, right) => found.push(Difference { pointer, recorded: left.cloned(), got: right.cloned() }),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: &Option<Value>| value.as_ref().map_or("(absent)".to_owned(), pretty::shortened);
        write!(
            f,
            "{}\n      recorded {}\n      got      {}",
            self.pointer,
            show(&self.recorded),
            show(&self.got)
        )
    }
}
