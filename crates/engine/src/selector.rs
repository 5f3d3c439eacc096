//! Label selectors as topology constraints, affinity terms and budgets write them.

use crate::labels::{Labels, Text};

/// A label selector as the API writes it. Absent and empty differ: see [`Selector`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    pub match_labels: Labels,
    /// Further expressions that must all hold.
    pub expressions: Vec<Expression>,
}

/// One expression of a [`LabelSelector`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Expression {
    /// Label key.
    pub key: Text,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; kept as text so that nonsense can be told from nothing.
    pub operator: Text,
    /// Values, for the first two.
    pub values: Vec<Text>,
}

/// What a label selector means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Selects nothing: the selector is absent or does not parse.
    Nothing,
    /// Selects what meets every condition; with none, everything.
    All(Vec<Condition>),
}

/// One condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The label has one of these values.
    In(Text, Vec<Text>),
    /// The label is absent or has none of these values.
    NotIn(Text, Vec<Text>),
    /// The label is present.
    Exists(Text),
    /// The label is absent.
    DoesNotExist(Text),
}

impl Selector {
    /// The meaning of an API selector; absent selects nothing, empty everything, nonsense nothing.
    pub fn parse(selector: Option<&LabelSelector>) -> Selector {
        let Some(selector) = selector else { return Selector::Nothing };
        let mut conditions =
            Vec::with_capacity(selector.match_labels.iter().len() + selector.expressions.len());
        for (key, value) in selector.match_labels.iter() {
            if !is_label_key(key) || !is_label_value(value) {
                return Selector::Nothing;
            }
            conditions.push(Condition::In(key.clone(), vec![value.clone()]));
        }
        for expression in &selector.expressions {
            match expression.condition() {
                Some(condition) => conditions.push(condition),
                None => return Selector::Nothing,
            }
        }
        Selector::All(conditions)
    }

    /// Whether `labels` are selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Selector::Nothing => false,
            Selector::All(conditions) => conditions.iter().all(|c| c.holds(labels)),
        }
    }
}

impl Expression {
    fn condition(&self) -> Option<Condition> {
        if !is_label_key(&self.key) || !self.values.iter().all(|v| is_label_value(v)) {
            return None;
        }
        match (self.operator.as_ref(), self.values.is_empty()) {
            ("In", false) => Some(Condition::In(self.key.clone(), self.values.clone())),
            ("NotIn", false) => Some(Condition::NotIn(self.key.clone(), self.values.clone())),
            ("Exists", true) => Some(Condition::Exists(self.key.clone())),
            ("DoesNotExist", true) => Some(Condition::DoesNotExist(self.key.clone())),
            _ => None,
        }
    }
}

impl Condition {
    fn holds(&self, labels: &Labels) -> bool {
        match self {
            Condition::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Condition::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Condition::Exists(key) => labels.get(key).is_some(),
            Condition::DoesNotExist(key) => labels.get(key).is_none(),
        }
    }
}

/// Whether `key` is a qualified name: an optional DNS prefix and a name of at most 63 characters.
pub(crate) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let dns = |p: &str| {
        p.len() <= 253
            && p.split('.').all(|label| {
                !label.is_empty()
                    && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                    && !label.starts_with('-')
                    && !label.ends_with('-')
            })
    };
    prefix.is_none_or(dns) && !name.is_empty() && is_label_value(name)
}

/// Whether `value` may be a label value: at most 63 characters, alphanumeric at both ends.
pub(crate) fn is_label_value(value: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
