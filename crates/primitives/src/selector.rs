//! Label selectors: what a set of labels must look like to be selected.
//!
//! One matcher serves both spellings Kubernetes has: the text of a query parameter (`a=b,c notin (d,e),!f`) and the
//! `matchLabels`/`matchExpressions` object inside specs. Labels are looked up through a closure, so that fields
//! or interned labels can be selected on as well.

mod parse;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names;
use crate::quote::quote;

/// Why a selector is refused, in apimachinery's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);

/// How a requirement relates a label to its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`; satisfied by labels without the key.
    NotIn,
    /// `key=a`
    Equals,
    /// `key==a`, the same as `=` but printed as written.
    DoubleEquals,
    /// `key!=a`; satisfied by labels without the key.
    NotEquals,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`, integers only.
    GreaterThan,
    /// `key<1`, integers only.
    LessThan,
}

/// One condition of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// A requirement whose key, values and their number have been checked.
    pub fn new(
        key: impl Into<String>,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<Self, SelectorError> {
        let key = key.into();
        let mut errors = Vec::new();
        let complaints = names::qualified_name_errors(&key);
        if !complaints.is_empty() {
            errors.push(invalid("key", &quote(&key), &complaints.join("; ")));
        }
        let wrong_number = match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                Some("for 'in', 'notin' operators, values set can't be empty")
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                Some("exact-match compatibility requires one single value")
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                Some("values set must be empty for exists and does not exist")
            }
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
                Some("for 'Gt', 'Lt' operators, exactly one value is required")
            }
            _ => None,
        };
        if let Some(detail) = wrong_number {
            let listed = values.iter().map(|v| quote(v)).collect::<Vec<_>>().join(",");
            let shown = if values.is_empty() { "null".to_owned() } else { format!("[{listed}]") };
            errors.push(invalid("values", &shown, detail));
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            for (i, value) in values.iter().enumerate().filter(|(_, v)| go_integer(v).is_none()) {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                errors.push(invalid(&format!("values[{i}]"), &quote(value), detail));
            }
        }
        for (i, value) in values.iter().enumerate() {
            let complaints = names::label_value_errors(value);
            if !complaints.is_empty() {
                errors.push(invalid(&format!("values[{i}][{key}]"), &quote(value), &complaints.join("; ")));
            }
        }
        match errors.len() {
            0 => Ok(Self { key, operator, values }),
            1 => Err(SelectorError(errors.remove(0))),
            _ => Err(SelectorError(format!("[{}]", errors.join(", ")))),
        }
    }

    /// The label it is about.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How the label relates to the values.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values, as given.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether a label with this value (or its absence) satisfies the requirement.
    pub fn admits(&self, value: Option<&str>) -> bool {
        let listed = |v: &str| self.values.iter().any(|mine| mine == v);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => self.compare(value).is_some_and(|(theirs, mine)| theirs > mine),
            Operator::LessThan => self.compare(value).is_some_and(|(theirs, mine)| theirs < mine),
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((go_integer(value?)?, go_integer(self.values.first()?)?))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let (key, values) = (&self.key, values.join(","));
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A conjunction of requirements, or the selector that selects nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Selector {
    /// Selects whatever there is.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects nothing: what an absent `LabelSelector` object means.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// All of `requirements` together.
    pub fn all_of(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let mut requirements: Vec<_> = requirements.into_iter().collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Reads the query parameter form. The empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(Self::all_of)
    }

    /// Whether it selects everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether it is the selector that selects nothing.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// The requirements, by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether a set of labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Whether labels known only through `lookup` are selected.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.admits(lookup(&r.key)))
    }

    /// The single value the selector pins `key` to, if it does.
    pub fn exact_match(&self, key: &str) -> Option<&str> {
        let first = self.requirements.iter().find(|r| r.key == key)?;
        match (first.operator, first.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [only]) => Some(only),
            _ => None,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// `metav1.LabelSelector`: the object form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Further conditions, all of which must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_expressions: Option<Vec<LabelSelectorRequirement>>,
}

/// One entry of `matchExpressions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelectorRequirement {
    /// The label it is about.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; kept as text because an object may carry anything.
    pub operator: String,
    /// The values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
}

impl LabelSelector {
    /// The selector this object means.
    pub fn to_selector(&self) -> Result<Selector, SelectorError> {
        let labels = self.match_labels.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()));
        let expressions = self
            .match_expressions
            .iter()
            .flatten()
            .map(|e| (e.key.as_str(), e.operator.as_str(), e.values.as_deref().unwrap_or_default()));
        Selector::from_parts(labels, expressions)
    }
}

impl Selector {
    /// The selector meant by `matchLabels` and `matchExpressions` of any other representation of the object form:
    /// pairs, and (key, operator, values).
    pub fn from_parts<'a>(
        match_labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        match_expressions: impl IntoIterator<Item = (&'a str, &'a str, &'a [String])>,
    ) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in match_labels {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.to_owned()])?);
        }
        for (key, operator, values) in match_expressions {
            let operator = match operator {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    let shown = quote(other);
                    return Err(SelectorError(format!("{shown} is not a valid label selector operator")));
                }
            };
            requirements.push(Requirement::new(key, operator, values.to_vec())?);
        }
        Ok(Self::all_of(requirements))
    }
}

fn invalid(field: &str, shown: &str, detail: &str) -> String {
    format!("{field}: Invalid value: {shown}: {detail}")
}

/// Go's `strconv.ParseInt(text, 10, 64)`, which (like Rust) takes one sign and digits only.
fn go_integer(text: &str) -> Option<i64> {
    text.parse().ok()
}
