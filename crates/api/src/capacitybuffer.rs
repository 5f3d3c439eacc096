//! CapacityBuffer: room kept free for pods to come.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::conditions::{self, Condition, ConditionStatus};
use crate::crd::{Column, Crd, Scope};
use crate::schema::Schema;
use crate::{ResourceList, api_resource};

/// The API group of buffers, shared with other autoscalers.
pub const GROUP: &str = "autoscaling.x-k8s.io";
/// The one strategy there is: nodes are launched for the buffer.
pub const ACTIVE_PROVISIONING_STRATEGY: &str = "buffer.x-k8s.io/active-capacity";
/// What the buffer is made of has been found out.
pub const READY_FOR_PROVISIONING: &str = "ReadyForProvisioning";
/// Whether there is room for the buffer already.
pub const PROVISIONING: &str = "Provisioning";
/// Declared by the API; Karpenter does not write it.
pub const LIMITED_BY_QUOTAS: &str = "LimitedByQuotas";
/// The kinds a `scalableRef` may name.
pub const SCALABLE_KINDS: [&str; 3] = ["Deployment", "StatefulSet", "ReplicaSet"];
/// The priority of the pods a buffer stands for: below all others.
pub const VIRTUAL_POD_PRIORITY: i32 = i32::MIN;

/// Room to be kept free.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct CapacityBuffer {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: CapacityBufferSpec,
    /// What is.
    #[serde(default)]
    pub status: Option<CapacityBufferStatus>,
}

api_resource!(CapacityBuffer, NamespaceResourceScope, GROUP, "v1beta1", "capacitybuffers");

/// How much room, in chunks the size of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityBufferSpec {
    /// How the room is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_strategy: Option<String>,
    /// The PodTemplate one chunk looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalObjectRef>,
    /// The workload whose pods one chunk looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_ref: Option<ScalableRef>,
    /// How many chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many chunks, in percent of the workload's replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentage: Option<i32>,
    /// The most the chunks may ask for together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}

/// An object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalObjectRef {
    /// Its name.
    pub name: String,
}

/// A workload of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalableRef {
    /// Its API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// What there is of a buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityBufferStatus {
    /// The PodTemplate in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalObjectRef>,
    /// How many chunks there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The generation of the PodTemplate in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_generation: Option<i64>,
    /// Whether it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// The strategy in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_strategy: Option<String>,
}

impl CapacityBuffer {
    /// Sets a condition as apimachinery's `SetStatusCondition` does (a buffer has no condition set): its time moves only
    /// when its status changes, a new one goes last. Returns whether anything changed.
    pub fn set_condition(
        &mut self,
        type_: &str,
        status: ConditionStatus,
        reason: &str,
        message: &str,
        now: jiff::Timestamp,
    ) -> bool {
        let observed_generation = self.metadata.generation.filter(|&g| g != 0);
        let conditions = self.status.get_or_insert_default().conditions.get_or_insert_default();
        let fresh = Condition {
            type_: type_.to_owned(),
            status,
            observed_generation,
            last_transition_time: Some(Time(now)),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
        };
        match conditions.iter_mut().find(|c| c.type_ == type_) {
            None => {
                conditions.push(fresh);
                true
            }
            Some(present) => {
                let since = if present.status == status {
                    present.last_transition_time.clone()
                } else {
                    Some(Time(now))
                };
                let wanted = Condition { last_transition_time: since, ..fresh };
                let changed = *present != wanted;
                *present = wanted;
                changed
            }
        }
    }

    /// The definition of the kind.
    pub fn crd() -> Crd {
        let template_ref = |description| {
            Schema::object()
                .describe(description)
                .required("name", Schema::string().describe("Name of the PodTemplate.").min_length(1))
        };
        let spec = Schema::object()
            .describe("How much room is kept free, in chunks the size of a pod.")
            .optional("limits", Schema::resource_list()
                .describe("The most the chunks may ask for together; without replicas and percentage as many as fit are kept."))
            .optional("percentage", Schema::int32()
                .describe("How many chunks, in percent of the replicas of scalableRef, rounded up and at least one.")
                .minimum(0))
            .optional("podTemplateRef", template_ref("The PodTemplate in the same namespace that a chunk looks like; this or scalableRef."))
            .optional("provisioningStrategy", Schema::string()
                .describe("How the room is kept; buffer.x-k8s.io/active-capacity launches nodes for it.")
                .default_value(ACTIVE_PROVISIONING_STRATEGY.into()))
            .optional("replicas", Schema::int32()
                .describe("How many chunks; with percentage as well, the smaller number counts.")
                .minimum(0))
            .optional("scalableRef", Schema::object()
                .describe("The workload in the same namespace whose pods a chunk looks like; this or podTemplateRef.")
                .optional("apiGroup", Schema::string().describe("API group of the workload; empty for the core group."))
                .required("kind", Schema::string().describe("Kind of the workload.").min_length(1))
                .required("name", Schema::string().describe("Name of the workload.").min_length(1)))
            .cel(
                "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
                "If podTemplateRef is set, replicas or limits must also be set",
            )
            .cel(
                "!(has(self.podTemplateRef) && has(self.scalableRef))",
                "You must define either PodTemplateRef or ScalableRef, but not both",
            );
        let status = Schema::object()
            .describe("What there is of the buffer.")
            .optional("conditions", conditions::keyed_schema())
            .optional(
                "podTemplateGeneration",
                Schema::int64().describe("The generation of the PodTemplate in use."),
            )
            .optional("podTemplateRef", template_ref("The PodTemplate in use."))
            .optional("provisioningStrategy", Schema::string().describe("The strategy in use."))
            .optional("replicas", Schema::int32().describe("How many chunks there are."));
        Crd {
            group: GROUP,
            version: "v1beta1",
            kind: "CapacityBuffer",
            plural: "capacitybuffers",
            short_names: &["cb"],
            categories: &["autoscaling"],
            scope: Scope::Namespaced,
            columns: vec![
                Column::text("Strategy", ".spec.provisioningStrategy").describe("How the room is kept."),
                Column::text("PodTemplate", ".status.podTemplateRef.name")
                    .describe("The PodTemplate in use."),
                Column::integer("Replicas", ".status.replicas").describe("How many chunks there are."),
                Column::text("ConditionsType", ".status.conditions[*].type")
                    .describe("Types of all conditions."),
                Column::text("ConditionsStatus", ".status.conditions[*].status")
                    .describe("Status of all conditions."),
                Column::text("ConditionsReason", ".status.conditions[*].reason")
                    .describe("Reasons of all conditions."),
                Column::age().describe("The age of the buffer."),
            ],
            scale: None,
            schema: Crd::root("Room kept free for pods to come.")
                .required("spec", spec)
                .optional("status", status),
        }
    }
}
