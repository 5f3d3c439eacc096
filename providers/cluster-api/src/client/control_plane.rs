//! What is read of a control plane, whoever provides it: which version it is to have, and which it has.

use kube::api::DynamicObject;
use serde_json::Value;

use super::fields::{Fields, Malformed};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlPlane {
    /// Kind, namespace and name, for messages.
    pub(crate) subject: String,
    /// The version it is to have; some kinds have none.
    pub(crate) version: Option<String>,
    /// The versions its machines have; none until the first one is there.
    pub(crate) current: Vec<String>,
}

impl ControlPlane {
    /// Reads one of this kind.
    pub(crate) fn read(kind: &str, object: &DynamicObject) -> Result<Self, Malformed> {
        let fields = Fields::of(kind, object);
        let versions = fields.list("status.versions")?.iter();
        let mut current: Vec<String> = versions
            .filter_map(|entry| entry.get("version").and_then(Value::as_str))
            .filter(|version| !version.is_empty())
            .map(str::to_owned)
            .collect();
        if current.is_empty() {
            // Older releases have one for all.
            current.extend(fields.text("status.version")?);
        }
        Ok(Self {
            subject: format!("{kind} {}", fields.key()),
            version: fields.text("spec.version")?,
            current,
        })
    }
}
