//! Requirements on several label keys, and when two such sets can live together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::labels::{HOSTNAME, Labels, Text};
use crate::requirement::{Operator, Requirement, RequirementError, SelectorRequirement};

/// Requirements by label key. A key that is absent accepts anything (or nothing: see [`Requirements::compatible`]). Copies share
/// what they hold until one of them is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirements(Arc<BTreeMap<Text, Requirement>>);

/// Why one set of requirements cannot be met by another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Incompatibility {
    /// The receiver says nothing about a key that must be known.
    #[error("label {key:?} does not have known values{}", hint.as_ref().map(|h| format!(" (typo of {h:?}?)")).unwrap_or_default())]
    UndefinedLabel {
        /// The key.
        key: Text,
        /// A known key that looks like it.
        hint: Option<Text>,
    },
    /// Both know the key but accept no common value.
    #[error("key {}, {incoming} not in {existing}", incoming.key)]
    NoOverlap {
        /// What was asked.
        incoming: Box<Requirement>,
        /// What is possible.
        existing: Box<Requirement>,
    },
}

impl Requirements {
    /// No requirements.
    pub fn new() -> Self {
        Requirements::default()
    }

    /// What the API text means, intersected per key.
    pub fn from_selectors<'a>(
        selectors: impl IntoIterator<Item = &'a SelectorRequirement>,
    ) -> Result<Self, RequirementError> {
        let mut requirements = Requirements::new();
        for selector in selectors {
            requirements.add(Requirement::from_selector(selector)?);
        }
        Ok(requirements)
    }

    /// One `In` per label.
    pub fn from_labels(labels: &Labels) -> Self {
        let mut requirements = Requirements::new();
        for (key, value) in labels.iter() {
            requirements.add(Requirement::one_of(key.clone(), [value.clone()]));
        }
        requirements
    }

    /// Narrows the requirement on the key.
    pub fn add(&mut self, requirement: Requirement) {
        let narrowed = match self.0.get(&requirement.key) {
            Some(existing) => requirement.intersection(existing),
            None => requirement,
        };
        Arc::make_mut(&mut self.0).insert(narrowed.key.clone(), narrowed);
    }

    /// Narrows by every requirement of `other`.
    pub fn add_all(&mut self, other: &Requirements) {
        for requirement in other.iter() {
            self.add(requirement.clone());
        }
    }

    /// Replaces the requirement on the key.
    pub fn replace(&mut self, requirement: Requirement) {
        Arc::make_mut(&mut self.0).insert(requirement.key.clone(), requirement);
    }

    /// Forgets the requirement on `key`.
    pub fn remove(&mut self, key: &str) {
        Arc::make_mut(&mut self.0).remove(key);
    }

    /// The requirement on `key`.
    pub fn get(&self, key: &str) -> Option<&Requirement> {
        self.0.get(key)
    }

    /// All requirements in key order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Requirement> {
        self.0.values()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any key asks for a minimum number of values.
    pub fn has_min_values(&self) -> bool {
        self.0.values().any(|r| r.min_values.is_some())
    }

    /// Whether something meeting `self` can meet `incoming`: keys `incoming` asks a value of must be defined here unless
    /// `allow_undefined` says otherwise, and shared keys must overlap.
    pub fn compatible(
        &self,
        incoming: &Requirements,
        allow_undefined: impl Fn(&str) -> bool,
    ) -> Result<(), Incompatibility> {
        for requirement in incoming.iter() {
            if allow_undefined(&requirement.key)
                || self.0.contains_key(&requirement.key)
                || matches!(requirement.operator(), Operator::NotIn | Operator::DoesNotExist)
            {
                continue;
            }
            return Err(Incompatibility::UndefinedLabel { key: requirement.key.clone(), hint: None });
        }
        self.intersects(incoming)
    }

    /// Whether the keys both define overlap. Two requirements that are both content with absence always do.
    pub fn intersects(&self, incoming: &Requirements) -> Result<(), Incompatibility> {
        for requirement in incoming.iter() {
            let Some(existing) = self.0.get(&requirement.key) else { continue };
            if existing.has_intersection(requirement) {
                continue;
            }
            let absent_ok =
                |r: &Requirement| matches!(r.operator(), Operator::NotIn | Operator::DoesNotExist);
            if absent_ok(requirement) && absent_ok(existing) {
                continue;
            }
            return Err(Incompatibility::NoOverlap {
                incoming: Box::new(requirement.clone()),
                existing: Box::new(existing.clone()),
            });
        }
        Ok(())
    }
}

impl FromIterator<Requirement> for Requirements {
    fn from_iter<I: IntoIterator<Item = Requirement>>(iter: I) -> Self {
        let mut requirements = Requirements::new();
        for requirement in iter {
            requirements.add(requirement);
        }
        requirements
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> =
            self.iter().filter(|r| r.key.as_ref() != HOSTNAME).map(ToString::to_string).collect();
        texts.sort();
        f.write_str(&texts.join(", "))
    }
}
