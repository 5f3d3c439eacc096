//! What is read of an infrastructure machine template: what its machines have, as far as the infrastructure provider says.

use std::collections::BTreeMap;

use karpenter_api::structure_hash;
use kube::api::DynamicObject;
use serde_json::Value;

use super::fields::{Fields, Malformed};

/// Fields of templates by which infrastructure providers ask for spare capacity.
const SPOT_FIELDS: &[&str] = &[
    "spec.template.spec.spotMarketOptions",
    "spec.template.spec.spotVMOptions",
    "spec.template.spec.preemptible",
    "spec.template.spec.instanceMarketOptions",
];

/// An infrastructure machine template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// What a machine has.
    pub capacity: BTreeMap<String, String>,
    /// Its architecture.
    pub architecture: Option<String>,
    /// Its operating system.
    pub operating_system: Option<String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether its machines may be taken away at any time.
    pub spot: bool,
    /// `spec.template`, from which clones are made.
    pub template: Value,
    /// The same in short, by which it is known to have changed.
    pub hash: u64,
}

impl Template {
    /// Reads one of this kind.
    pub fn read(kind: &str, object: &DynamicObject) -> Result<Self, Malformed> {
        let fields = Fields::of(kind, object);
        let template = fields.at("spec.template").cloned().unwrap_or_default();
        let spot = |path: &&str| fields.at(path).is_some_and(|value| *value != Value::Bool(false));
        Ok(Self {
            capacity: fields.texts("status.capacity")?,
            architecture: fields.text("status.nodeInfo.architecture")?,
            operating_system: fields.text("status.nodeInfo.operatingSystem")?,
            annotations: fields.annotations(),
            spot: SPOT_FIELDS.iter().any(spot),
            hash: structure_hash::text(&template.to_string()),
            template,
        })
    }
}
