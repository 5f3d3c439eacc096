//! One requirement on one label key: which values of it are acceptable.
//!
//! A requirement is a set of values, or the complement of one, optionally bounded to a range of integers, optionally
//! asking for a minimum number of distinct values. This is the form in which requirements enter and leave the engine;
//! the solver itself works on an interned copy (`intern`).

use std::collections::BTreeSet;
use std::fmt;

use crate::labels::{self, Text};

/// How a requirement relates a key to its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The value is one of those given.
    In,
    /// The value is none of those given.
    NotIn,
    /// The label has some value.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The value is an integer above the one given.
    Gt,
    /// The value is an integer below the one given.
    Lt,
    /// The value is an integer at or above the one given.
    Gte,
    /// The value is an integer at or below the one given.
    Lte,
}

impl Operator {
    /// The operator's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::Gt => "Gt",
            Operator::Lt => "Lt",
            Operator::Gte => "Gte",
            Operator::Lte => "Lte",
        }
    }

    /// Reads the operator's name in the API.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            "Gte" => Operator::Gte,
            "Lte" => Operator::Lte,
            _ => return None,
        })
    }
}

/// A requirement as the API writes it: key, operator and values, not yet given a meaning.
///
/// The operator stays text because pods and pools may carry one we do not know, and the reason must be able to name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SelectorRequirement {
    /// Label key.
    pub key: Text,
    /// Operator by its API name.
    pub operator: Text,
    /// Values; their number depends on the operator.
    pub values: Vec<Text>,
    /// Least number of distinct values the result must stay flexible over.
    pub min_values: Option<i64>,
}

impl SelectorRequirement {
    /// A requirement without `minValues`.
    pub fn new(
        key: impl Into<Text>,
        operator: Operator,
        values: impl IntoIterator<Item = impl Into<Text>>,
    ) -> Self {
        SelectorRequirement {
            key: key.into(),
            operator: operator.as_str().into(),
            values: values.into_iter().map(Into::into).collect(),
            min_values: None,
        }
    }
}

/// Why an API requirement has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    /// The operator is none we know.
    #[error("key {key} has an unsupported operator {operator:?}")]
    UnknownOperator {
        /// The offending key.
        key: Text,
        /// What was written.
        operator: Text,
    },
    /// A comparison without a number to compare with.
    #[error("key {key} with operator {operator} must have a single positive integer value")]
    MissingBound {
        /// The offending key.
        key: Text,
        /// The comparison.
        operator: &'static str,
    },
}

/// The values of one label key that are acceptable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// Label key, with aliases resolved.
    pub key: Text,
    /// Whether `values` are excluded instead of included.
    pub complement: bool,
    /// The included (or excluded) values.
    pub values: BTreeSet<Text>,
    /// Inclusive lower bound on the value read as an integer.
    pub gte: Option<i64>,
    /// Inclusive upper bound on the value read as an integer.
    pub lte: Option<i64>,
    /// Least number of distinct values to stay flexible over.
    pub min_values: Option<i64>,
}

/// An optional sign and decimal digits.
fn is_integer(value: &str) -> bool {
    let digits = value.strip_prefix(['+', '-']).unwrap_or(value);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Parses as Go's `Atoi` does. A number beyond 64 bits is none.
pub(crate) fn parse_integer(value: &str) -> Option<i64> {
    if is_integer(value) { value.parse().ok() } else { None }
}

/// What upstream compares with: it takes what Go's `Atoi` returns and does not ask whether that failed, so a number beyond 64 bits
/// is the last one within, and what is no number is zero.
fn parse_bound(value: &str) -> i64 {
    let last = if value.starts_with('-') { i64::MIN } else { i64::MAX };
    if is_integer(value) { value.parse().unwrap_or(last) } else { 0 }
}

pub(crate) fn within_bounds(value: &str, gte: Option<i64>, lte: Option<i64>) -> bool {
    if gte.is_none() && lte.is_none() {
        return true;
    }
    parse_integer(value).is_some_and(|v| gte.is_none_or(|g| v >= g) && lte.is_none_or(|l| v <= l))
}

impl Requirement {
    /// Builds the requirement the API text means. A comparison's number that is none counts as zero, and one beyond 64 bits as the
    /// last within, as upstream's do.
    pub fn from_selector(selector: &SelectorRequirement) -> Result<Self, RequirementError> {
        let operator =
            Operator::parse(&selector.operator).ok_or_else(|| RequirementError::UnknownOperator {
                key: selector.key.clone(),
                operator: selector.operator.clone(),
            })?;
        let key: Text = match labels::normalized(&selector.key) {
            same if same == selector.key.as_ref() => selector.key.clone(),
            other => other.into(),
        };
        let bound = || -> Result<i64, RequirementError> {
            selector.values.first().map(|v| parse_bound(v)).ok_or_else(|| RequirementError::MissingBound {
                key: selector.key.clone(),
                operator: operator.as_str(),
            })
        };
        let mut requirement = Requirement {
            key,
            complement: !matches!(operator, Operator::In | Operator::DoesNotExist),
            values: BTreeSet::new(),
            gte: None,
            lte: None,
            min_values: selector.min_values,
        };
        match operator {
            Operator::In | Operator::NotIn => requirement.values = selector.values.iter().cloned().collect(),
            Operator::Exists | Operator::DoesNotExist => {}
            Operator::Gt => match bound()?.checked_add(1) {
                Some(gte) => requirement.gte = Some(gte),
                // Nothing is greater than the greatest integer.
                None => return Ok(Requirement::does_not_exist(requirement.key)),
            },
            Operator::Lt => requirement.lte = Some(bound()?.wrapping_sub(1)),
            Operator::Gte => requirement.gte = Some(bound()?),
            Operator::Lte => requirement.lte = Some(bound()?),
        }
        Ok(requirement)
    }

    /// `key In values`.
    pub fn one_of(key: impl Into<Text>, values: impl IntoIterator<Item = impl Into<Text>>) -> Self {
        let key: Text = key.into();
        let key = match labels::normalized(&key) {
            same if same == key.as_ref() => key,
            other => other.into(),
        };
        Requirement {
            key,
            complement: false,
            values: values.into_iter().map(Into::into).collect(),
            gte: None,
            lte: None,
            min_values: None,
        }
    }

    /// `key Exists`.
    pub fn exists(key: impl Into<Text>) -> Self {
        Requirement { complement: true, ..Requirement::one_of(key, [] as [Text; 0]) }
    }

    /// `key DoesNotExist`.
    pub fn does_not_exist(key: impl Into<Text>) -> Self {
        Requirement::one_of(key, [] as [Text; 0])
    }

    /// The operator this reads as; bounds alone read as `Exists`.
    pub fn operator(&self) -> Operator {
        match (self.complement, self.values.is_empty()) {
            (true, false) => Operator::NotIn,
            (true, true) => Operator::Exists,
            (false, false) => Operator::In,
            (false, true) => Operator::DoesNotExist,
        }
    }

    /// Whether `value` is acceptable.
    pub fn has(&self, value: &str) -> bool {
        self.values.contains(value) != self.complement && within_bounds(value, self.gte, self.lte)
    }

    /// What both requirements accept.
    #[must_use]
    pub fn intersection(&self, other: &Requirement) -> Requirement {
        let gte = self.gte.max(other.gte);
        let lte = min_bound(self.lte, other.lte);
        let min_values = self.min_values.max(other.min_values);
        if let (Some(g), Some(l)) = (gte, lte)
            && g > l
        {
            return Requirement { min_values, ..Requirement::does_not_exist(self.key.clone()) };
        }
        let complement = self.complement && other.complement;
        let mut values: BTreeSet<Text> = match (self.complement, other.complement) {
            (true, true) => self.values.union(&other.values).cloned().collect(),
            (true, false) => other.values.difference(&self.values).cloned().collect(),
            (false, true) => self.values.difference(&other.values).cloned().collect(),
            (false, false) => self.values.intersection(&other.values).cloned().collect(),
        };
        values.retain(|v| within_bounds(v, gte, lte));
        let (gte, lte) = if complement { (gte, lte) } else { (None, None) };
        Requirement { key: self.key.clone(), complement, values, gte, lte, min_values }
    }

    /// Whether both accept some value; two complements always do.
    pub fn has_intersection(&self, other: &Requirement) -> bool {
        let gte = self.gte.max(other.gte);
        let lte = min_bound(self.lte, other.lte);
        if let (Some(g), Some(l)) = (gte, lte)
            && g > l
        {
            return false;
        }
        match (self.complement, other.complement) {
            (true, true) => true,
            (true, false) => {
                other.values.iter().any(|v| !self.values.contains(v) && within_bounds(v, gte, lte))
            }
            (false, _) => self
                .values
                .iter()
                .any(|v| (other.values.contains(v) != other.complement) && within_bounds(v, gte, lte)),
        }
    }

    /// As entries of a NodeClaim's `spec.requirements`. A bound hides exclusions, which the API cannot say beside it.
    pub fn to_selectors(&self) -> Vec<SelectorRequirement> {
        let entry = |operator: Operator, values: Vec<Text>| SelectorRequirement {
            key: self.key.clone(),
            operator: operator.as_str().into(),
            values,
            min_values: self.min_values,
        };
        let bounds = [(Operator::Gte, self.gte), (Operator::Lte, self.lte)];
        let bounded: Vec<SelectorRequirement> = bounds
            .into_iter()
            .filter_map(|(op, bound)| bound.map(|b| entry(op, vec![b.to_string().into()])))
            .collect();
        if !bounded.is_empty() {
            return bounded;
        }
        vec![entry(self.operator(), self.values.iter().cloned().collect())]
    }
}

/// The smaller of the bounds that are set.
pub(crate) fn min_bound(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        write!(f, "{} {}", self.key, self.operator().as_str())?;
        if !self.values.is_empty() {
            let shown: Vec<&str> = self.values.iter().take(SHOWN).map(|v| v.as_ref()).collect();
            write!(f, " [{}", shown.join(" "))?;
            if self.values.len() > SHOWN {
                write!(f, " and {} others", self.values.len() - SHOWN)?;
            }
            write!(f, "]")?;
        }
        if let Some(gte) = self.gte {
            write!(f, " >={gte}")?;
        }
        if let Some(lte) = self.lte {
            write!(f, " <={lte}")?;
        }
        if let Some(min) = self.min_values {
            write!(f, " minValues {min}")?;
        }
        Ok(())
    }
}
