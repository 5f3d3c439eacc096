//! `status.conditions` and the rules by which they change.
//!
//! A kind has a root condition (`Ready`) that sums up its dependents; other conditions stand alone. Looking at an object
//! through a [`ConditionSet`] brings root and dependents into being, every change recomputes the root, and
//! times move only when a status does. The order of the list is part of what users see and is kept too.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use serde::{Deserialize, Serialize};

use crate::schema::Schema;

/// The condition that sums up the others.
pub const READY: &str = "Ready";

const AWAITING_RECONCILIATION: &str = "AwaitingReconciliation";
const CONDITION_TYPE_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It does not.
    False,
    /// Not known, or not yet.
    #[default]
    Unknown,
}

impl ConditionStatus {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One aspect of an object's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect.
    #[serde(rename = "type")]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The generation of the object it was judged by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, for programs. NodeClaims may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people. NodeClaims may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Condition {
    /// Why, for programs.
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }

    /// Why, for people.
    pub fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }

    /// When the status last changed; long ago if that was not recorded.
    pub fn since(&self) -> Timestamp {
        self.last_transition_time.as_ref().map_or(Timestamp::MIN, |t| t.0)
    }

    fn generation(&self) -> i64 {
        self.observed_generation.unwrap_or(0)
    }
}

/// The conditions of a kind that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionTypes {
    root: &'static str,
    dependents: &'static [&'static str],
}

impl ConditionTypes {
    /// `Ready` and what it depends on, in order.
    pub const fn ready(dependents: &'static [&'static str]) -> Self {
        Self { root: READY, dependents }
    }

    fn includes(self, type_: &str) -> bool {
        type_ == self.root || self.dependents.contains(&type_)
    }
}

/// A kind whose conditions follow the rules of a [`ConditionSet`].
pub trait HasConditions: Resource {
    /// Its root and dependents.
    const TYPES: ConditionTypes;

    /// The conditions there are.
    fn conditions(&self) -> &[Condition];

    /// The conditions there are, to be changed.
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;

    /// The condition of a type, as it is, without bringing any into being.
    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions().iter().find(|c| c.type_ == type_)
    }

    /// The status of a condition; one that is not there is unknown.
    fn condition_status(&self, type_: &str) -> ConditionStatus {
        self.condition(type_).map_or(ConditionStatus::Unknown, |c| c.status)
    }
}

/// A dependent condition cannot be taken away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("condition {type_} is part of the object's readiness and cannot be cleared")]
pub struct ClearError {
    type_: String,
}

/// The conditions of one object at one time.
#[derive(Debug)]
pub struct ConditionSet<'a, T> {
    object: &'a mut T,
    now: Timestamp,
}

impl<'a, T: HasConditions> ConditionSet<'a, T> {
    /// Looks at an object's conditions. Root and dependents that are missing become `Unknown` since the object's creation,
    /// so that a look alone can make a status patch necessary.
    pub fn of(object: &'a mut T, now: Timestamp) -> Self {
        let mut set = Self { object, now };
        for type_ in std::iter::once(T::TYPES.root).chain(T::TYPES.dependents.iter().copied()) {
            if set.get(type_).is_none() {
                set.set_unknown(type_);
            }
        }
        set
    }

    /// The condition of a type.
    pub fn get(&self, type_: &str) -> Option<&Condition> {
        self.object.condition(type_)
    }

    /// The root condition.
    pub fn root(&self) -> Option<&Condition> {
        self.get(T::TYPES.root)
    }

    /// Whether all of these hold.
    pub fn is_true(&self, types: &[&str]) -> bool {
        types.iter().all(|t| self.object.condition_status(t) == ConditionStatus::True)
    }

    /// It holds, for no other reason than itself. Returns whether anything changed, as all setters do.
    pub fn set_true(&mut self, type_: &str) -> bool {
        self.set_true_with_reason(type_, type_, "")
    }

    /// It holds.
    pub fn set_true_with_reason(&mut self, type_: &str, reason: &str, message: &str) -> bool {
        self.set(type_, ConditionStatus::True, reason, message)
    }

    /// It does not hold.
    pub fn set_false(&mut self, type_: &str, reason: &str, message: &str) -> bool {
        self.set(type_, ConditionStatus::False, reason, message)
    }

    /// Nothing is known of it yet.
    pub fn set_unknown(&mut self, type_: &str) -> bool {
        self.set_unknown_with_reason(type_, AWAITING_RECONCILIATION, "object is awaiting reconciliation")
    }

    /// It is not known whether it holds.
    pub fn set_unknown_with_reason(&mut self, type_: &str, reason: &str, message: &str) -> bool {
        self.set(type_, ConditionStatus::Unknown, reason, message)
    }

    /// Sets a condition.
    pub fn set(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str) -> bool {
        let changed = self.place(type_, status, reason, message);
        if changed && type_ != T::TYPES.root {
            self.recompute_root();
        }
        changed
    }

    /// Takes away a condition that stands alone; the rest is then in alphabetical order.
    pub fn clear(&mut self, type_: &str) -> Result<(), ClearError> {
        if T::TYPES.includes(type_) {
            return Err(ClearError { type_: type_.to_owned() });
        }
        if self.get(type_).is_some() {
            let conditions = self.object.conditions_mut();
            conditions.retain(|c| c.type_ != type_);
            conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        }
        Ok(())
    }

    fn generation(&self) -> i64 {
        self.object.meta().generation.unwrap_or(0)
    }

    fn place(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str) -> bool {
        let generation = self.generation();
        let meta = self.object.meta();
        let deleting = meta.deletion_timestamp.is_some();
        let since = match self.get(type_) {
            Some(present) if present.status == status => present.last_transition_time.clone(),
            Some(_) => Some(Time(self.now)),
            // A dependent that is only now written down has been so since the object exists.
            None if T::TYPES.includes(type_) => meta.creation_timestamp.clone(),
            None => Some(Time(self.now)),
        };
        let unchanged = self.get(type_).is_some_and(|present| {
            present.status == status
                && present.generation() == generation
                && present.reason() == reason
                && present.message() == message
        });
        if unchanged {
            return false;
        }
        let observed_generation = (generation != 0).then_some(generation);
        let wanted = Condition {
            type_: type_.to_owned(),
            status,
            observed_generation,
            last_transition_time: since,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
        };
        let conditions = self.object.conditions_mut();
        conditions.retain(|c| c.type_ != type_);
        if deleting {
            for other in conditions.iter_mut() {
                other.observed_generation = observed_generation;
            }
        }
        conditions.push(wanted);
        conditions.sort_by_key(|c| (c.type_ == T::TYPES.root, c.since()));
        true
    }

    fn recompute_root(&mut self) {
        let generation = self.generation();
        let mut unhealthy: Vec<&Condition> = (self.object.conditions().iter())
            .filter(|c| T::TYPES.dependents.contains(&c.type_.as_str()))
            .filter(|c| c.status != ConditionStatus::True || c.generation() != generation)
            .collect();
        if unhealthy.is_empty() {
            self.set_true(T::TYPES.root);
            return;
        }
        unhealthy.sort_by_key(|c| std::cmp::Reverse(c.since()));
        let failed =
            unhealthy.iter().any(|c| c.status == ConditionStatus::False && c.generation() == generation);
        let message = unhealthy
            .iter()
            .map(|c| format!("{}={}", c.type_, c.status.as_str()))
            .collect::<Vec<_>>()
            .join(", ");
        if failed {
            self.place(T::TYPES.root, ConditionStatus::False, "UnhealthyDependents", &message);
        } else {
            self.place(T::TYPES.root, ConditionStatus::Unknown, "ReconcilingDependents", &message);
        }
    }
}

/// The schema of a list of conditions, as NodeClasses have it.
pub fn schema() -> Schema {
    let reason = reason_schema().min_length(1).pattern("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$");
    list(
        item()
            .required("lastTransitionTime", last_transition_time_schema())
            .required("message", message_schema())
            .required("reason", reason)
            .required("status", status_schema())
            .required("type", type_schema()),
    )
}

/// The same with `type` as the key of the list.
pub(crate) fn keyed_schema() -> Schema {
    schema().map_list("type")
}

/// The same for NodeClaims, whose conditions may lack reason and message: upstream loosened them after generation so that
/// claims written by earlier versions stay valid.
pub(crate) fn lenient_schema() -> Schema {
    let reason = reason_schema().pattern("^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$");
    list(
        item()
            .required("lastTransitionTime", last_transition_time_schema())
            .optional("message", message_schema())
            .optional("reason", reason)
            .required("status", status_schema())
            .required("type", type_schema()),
    )
    .map_list("type")
}

fn list(item: Schema) -> Schema {
    Schema::list_of(item).describe("What is known of the object's state.")
}

fn item() -> Schema {
    Schema::object().describe("One aspect of the object's state.").optional(
        "observedGeneration",
        Schema::int64().describe("The generation of the object the condition was judged by.").minimum(0),
    )
}

fn last_transition_time_schema() -> Schema {
    Schema::date_time().describe("When the status last changed.")
}

fn message_schema() -> Schema {
    Schema::string().describe("Why the condition is as it is, for people; may be empty.").max_length(32768)
}

fn reason_schema() -> Schema {
    Schema::string().describe("Why the condition is as it is, one word for programs.").max_length(1024)
}

fn status_schema() -> Schema {
    Schema::string()
        .describe("Whether it holds: True, False or Unknown.")
        .one_of(&["True", "False", "Unknown"])
}

fn type_schema() -> Schema {
    Schema::string().describe("Which aspect it is about.").max_length(316).pattern(CONDITION_TYPE_PATTERN)
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
