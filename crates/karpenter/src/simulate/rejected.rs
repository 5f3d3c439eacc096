//! Things of the input that were left out, and why.

use std::fmt;

/// One object, or entry of a file, that makes no sense and was left out while the rest went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// The file, or empty when it was the engine that objected.
    pub(crate) origin: String,
    /// `Kind/name` or `Kind/namespace/name`.
    pub(crate) object: String,
    /// Path of the field; empty when it is the whole object.
    pub(crate) field: String,
    pub(crate) problem: String,
}

impl Rejected {
    pub(crate) fn new(
        origin: impl fmt::Display,
        object: impl Into<String>,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self {
            origin: origin.to_string(),
            object: object.into(),
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// As it is told on stderr.
    pub(crate) fn remark(&self) -> String {
        format!("left out: {self}")
    }

    /// As it is told on stderr where it was not left out.
    pub(crate) fn doubt(&self) -> String {
        format!("an API server would refuse this: {self}")
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.origin, &self.object, &self.field] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.problem)
    }
}
