//! ClusterAPINodeClass: which MachineDeployments Karpenter may scale.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::api_resource;
use karpenter_api::conditions::{self, Condition, ConditionTypes, HasConditions};
use karpenter_api::crd::{Crd, Scope};
use karpenter_api::schema::Schema;
use karpenter_primitives::LabelSelector;
use serde::{Deserialize, Serialize};

use crate::GROUP;

/// Which MachineDeployments may be scaled.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ClusterAPINodeClass {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Option<ClusterAPINodeClassSpec>,
    /// Whether it can be used.
    #[serde(default)]
    pub status: Option<ClusterAPINodeClassStatus>,
}

api_resource!(
    ClusterAPINodeClass,
    ClusterResourceScope,
    GROUP,
    "v1alpha1",
    "clusterapinodeclasses",
    optional
);

/// Which MachineDeployments may be scaled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAPINodeClassSpec {
    /// Their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_resource_selector: Option<LabelSelector>,
}

/// Whether the NodeClass can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterAPINodeClassStatus {
    /// Only `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

impl HasConditions for ClusterAPINodeClass {
    const TYPES: ConditionTypes = ConditionTypes::ready(&[]);

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

impl ClusterAPINodeClass {
    /// The definition of the kind.
    pub fn crd() -> Crd {
        let values = Schema::list_of(Schema::string())
            .describe("The values: at least one for In and NotIn, none otherwise.")
            .atomic_list();
        let expression = Schema::object()
            .describe("A condition on one label.")
            .required("key", Schema::string().describe("The label."))
            .required(
                "operator",
                Schema::string()
                    .describe("How the label relates to the values: In, NotIn, Exists or DoesNotExist."),
            )
            .optional("values", values);
        let selector = Schema::object()
            .describe("The labels of the MachineDeployments that may be scaled.")
            .map_type("atomic")
            .optional(
                "matchExpressions",
                Schema::list_of(expression).describe("Conditions that must all hold.").atomic_list(),
            )
            .optional(
                "matchLabels",
                Schema::map_of(Schema::string()).describe("Labels and the values they must have."),
            );
        let spec = Schema::object()
            .describe("Which MachineDeployments may be scaled.")
            .optional("scalableResourceSelector", selector);
        let status = Schema::object()
            .describe("Whether the NodeClass can be used.")
            .optional("conditions", conditions::schema());
        Crd {
            group: GROUP,
            version: "v1alpha1",
            kind: "ClusterAPINodeClass",
            plural: "clusterapinodeclasses",
            short_names: &["capinc", "capincs"],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: Vec::new(),
            scale: None,
            schema: Crd::root("Which MachineDeployments of Cluster API may be scaled.")
                .optional("spec", spec)
                .optional("status", status),
        }
    }
}
