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

/// Fields that say by their value what is paid for.
const PAID_AS_FIELDS: &[&str] = &["spec.template.spec.marketType", "spec.template.spec.provisioningModel"];

/// An infrastructure machine template.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Template {
    /// What a machine has.
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) architecture: Option<String>,
    pub(crate) operating_system: Option<String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Whether its machines may be taken away at any time.
    pub(crate) spot: bool,
    /// `spec.template`, from which clones are made.
    pub(crate) template: Value,
    /// The same in short, by which it is known to have changed.
    pub(crate) hash: u64,
}

impl Template {
    /// Reads one of this kind.
    pub(crate) fn read(kind: &str, object: &DynamicObject) -> Result<Self, Malformed> {
        let fields = Fields::of(kind, object);
        let template = fields.at("spec.template").cloned().unwrap_or_default();
        let spot = |path: &&str| fields.at(path).is_some_and(|value| *value != Value::Bool(false));
        let paid_as_spot = |path: &&str| {
            let said = fields.at(path).and_then(Value::as_str);
            said.is_some_and(|said| said.eq_ignore_ascii_case("spot"))
        };
        Ok(Self {
            capacity: fields.texts("status.capacity")?,
            architecture: fields.text("status.nodeInfo.architecture")?,
            operating_system: fields.text("status.nodeInfo.operatingSystem")?,
            annotations: fields.annotations(),
            spot: SPOT_FIELDS.iter().any(spot) || PAID_AS_FIELDS.iter().any(paid_as_spot),
            hash: structure_hash::text(&template.to_string()),
            template,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;

    #[test]
    fn spot_is_told_by_fields_that_are_there_or_by_what_they_say() {
        let is_spot = |spec: Value| {
            let template = object(json!({"metadata": {"name": "t"}, "spec": {"template": {"spec": spec}}}));
            Template::read("T", &template).expect("a template").spot
        };
        assert!(is_spot(json!({"spotMarketOptions": {}})) && is_spot(json!({"preemptible": true})));
        assert!(is_spot(json!({"marketType": "Spot"})) && is_spot(json!({"provisioningModel": "Spot"})));
        assert!(!is_spot(json!({"marketType": "CapacityBlock"})) && !is_spot(json!({"preemptible": false})));
        assert!(!is_spot(json!({"provisioningModel": "Standard"})));
    }
}
