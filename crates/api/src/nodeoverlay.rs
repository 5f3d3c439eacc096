//! NodeOverlay: other prices or additional resources for some instance types, in scheduling only.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::conditions::{self, Condition, ConditionTypes, HasConditions};
use crate::crd::{Column, Crd, Scope};
use crate::label_rules::LabelRules;
use crate::nodepool::validate_requirement;
use crate::requirement::{Operator, Use, requirements_schema};
use crate::resources::WELL_KNOWN;
use crate::schema::Schema;
use crate::{GROUP, NodeSelectorRequirement, ResourceList, api_resource};

/// The overlay is sound and in conflict with no other.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";

/// The conditions a NodeOverlay's `Ready` depends on.
pub const CONDITIONS: ConditionTypes = ConditionTypes::ready(&[VALIDATION_SUCCEEDED]);

/// A change to what is known of instance types.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct NodeOverlay {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is changed.
    pub spec: NodeOverlaySpec,
    /// Whether it is applied.
    #[serde(default)]
    pub status: Option<NodeOverlayStatus>,
}

api_resource!(NodeOverlay, ClusterResourceScope, GROUP, "v1alpha1", "nodeoverlays");

/// What is changed, and for which instance types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverlaySpec {
    /// Which instance types.
    #[serde(default)]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// Added to the price (`+0.5`, `-0.5`) or scaling it (`+10%`, `-15%`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_adjustment: Option<String>,
    /// Instead of the price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Extended resources in addition to what the instance type has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceList>,
    /// Overlays with more weight win.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

/// Whether an overlay is applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeOverlayStatus {
    /// Whether it is fit for use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

impl HasConditions for NodeOverlay {
    const TYPES: ConditionTypes = CONDITIONS;

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

impl NodeOverlay {
    /// What the API server cannot check; empty if all is well.
    pub fn runtime_validate(&self, rules: &LabelRules) -> Vec<String> {
        let mut problems = Vec::new();
        for requirement in &self.spec.requirements {
            // An overlay has no minValues; one that slipped in is not judged.
            let requirement = NodeSelectorRequirement { min_values: None, ..requirement.clone() };
            if let Some(found) = validate_requirement(&requirement, rules) {
                problems.push(format!("invalid value: {found} in requirements, restricted"));
            }
            if requirement.operator == Operator::NotIn && requirement.values().is_empty() {
                let (key, operator) = (&requirement.key, &requirement.operator);
                problems.push(format!("key {key} with operator {operator} must have a value defined"));
            }
        }
        for name in self.spec.capacity.iter().flat_map(ResourceList::keys) {
            if WELL_KNOWN.contains(&name.as_str()) {
                problems.push(format!("invalid capacity: {name} in resource, restricted"));
            }
        }
        problems
    }

    /// Puts overlays in the order they are applied: the heaviest first, among equals the one later in the alphabet.
    pub fn sort_by_weight(overlays: &mut [Self]) {
        let weight = |o: &Self| o.spec.weight.unwrap_or(0);
        overlays
            .sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| b.metadata.name.cmp(&a.metadata.name)));
    }

    /// The definition of the kind.
    pub fn crd() -> Crd {
        let spec = Schema::object()
            .describe("Which instance types are seen differently in scheduling, and how.")
            .optional("capacity", Schema::resource_list()
                .describe("Extended resources the instance types have in addition; not cpu, memory, ephemeral-storage or pods.")
                .cel(
                    "self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))",
                    "invalid resource restricted",
                ))
            .optional("price", Schema::string()
                .describe("The price to use instead.")
                .pattern(r"^\d+(\.\d+)?$"))
            .optional("priceAdjustment", Schema::string()
                .describe("A signed amount added to the price, or a signed percentage of it.")
                .pattern(r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$"))
            .required("requirements", requirements_schema(Use::Overlay))
            .optional("weight", Schema::int32()
                .describe("Of overlays that change the same thing the heaviest wins; without one the weight is 0.")
                .minimum(1)
                .maximum(10000))
            .cel("!has(self.price) || !has(self.priceAdjustment)", "cannot set both 'price' and 'priceAdjustment'");
        let status = Schema::object()
            .describe("Whether the overlay is applied.")
            .optional("conditions", conditions::keyed_schema());
        Crd {
            group: GROUP,
            version: "v1alpha1",
            kind: "NodeOverlay",
            plural: "nodeoverlays",
            short_names: &["overlays"],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: vec![
                Column::text("Ready", r#".status.conditions[?(@.type=="Ready")].status"#),
                Column::age(),
                Column::integer("Weight", ".spec.weight").wide(),
            ],
            scale: None,
            schema: Crd::root("Other prices or additional resources for some instance types.")
                .required("spec", spec)
                .optional("status", status),
        }
    }
}
