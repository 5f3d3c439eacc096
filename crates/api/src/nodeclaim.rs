//! NodeClaim: a request for one node, and what became of it.

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::conditions::{self, Condition, ConditionTypes};
use crate::crd::{Column, Crd, Scope};
use crate::requirement::{Use, requirements_schema, taints_schema};
use crate::schema::{DURATION_PATTERN, NILLABLE_DURATION_PATTERN, Schema};
use crate::{
    Duration, GROUP, NillableDuration, NodeClassReference, NodeSelectorRequirement, ResourceList,
    api_resource,
};

/// The instance exists at the provider.
pub const LAUNCHED: &str = "Launched";
/// The node has joined and carries what the claim says.
pub const REGISTERED: &str = "Registered";
/// The node is ready for pods.
pub const INITIALIZED: &str = "Initialized";
/// `consolidateAfter` has passed since the last pod event.
pub const CONSOLIDATABLE: &str = "Consolidatable";
/// The node no longer is what its NodePool or NodeClass says.
pub const DRIFTED: &str = "Drifted";
/// All pods that should leave have left.
pub const DRAINED: &str = "Drained";
/// All volumes are detached.
pub const VOLUMES_DETACHED: &str = "VolumesDetached";
/// The provider has been asked to remove the instance.
pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
/// Node and claim agree.
pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
/// Why the node is being disrupted.
pub const DISRUPTION_REASON: &str = "DisruptionReason";
/// A reboot is under way; its reason is the phase.
pub const REBOOTING: &str = "Rebooting";

/// Phases of a reboot: reasons of [`REBOOTING`].
pub mod reboot {
    /// Asked for.
    pub const REQUESTED: &str = "RebootRequested";
    /// The provider has been told.
    pub const ISSUED: &str = "RebootIssued";
    /// The node is back.
    pub const SUCCEEDED: &str = "RebootSucceeded";
    /// It did not come back, or could not be told.
    pub const FAILED: &str = "RebootFailed";
    /// Reason of [`super::INITIALIZED`] while the node is away.
    pub const REBOOTING: &str = "Rebooting";
}

/// The conditions a NodeClaim's `Ready` depends on.
pub const CONDITIONS: ConditionTypes = ConditionTypes::ready(&[LAUNCHED, REGISTERED, INITIALIZED]);

/// A request for one node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct NodeClaim {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: NodeClaimSpec,
    /// What is.
    #[serde(default)]
    pub status: Option<NodeClaimStatus>,
}

api_resource!(NodeClaim, ClusterResourceScope, GROUP, "v1", "nodeclaims");

/// What is wanted of a node. It cannot be changed once written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimSpec {
    /// Taints of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
    /// Taints the node starts with and that others remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_taints: Option<Vec<Taint>>,
    /// What the node's labels must be.
    #[serde(default)]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// What must fit on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// How the node is built.
    pub node_class_ref: NodeClassReference,
    /// How long its drain may take at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<Duration>,
    /// How long the node lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<NillableDuration>,
}

impl NodeClaimSpec {
    /// Taints of the node.
    pub fn taints(&self) -> &[Taint] {
        self.taints.as_deref().unwrap_or_default()
    }

    /// Taints the node starts with and that others remove.
    pub fn startup_taints(&self) -> &[Taint] {
        self.startup_taints.as_deref().unwrap_or_default()
    }

    /// How long the node lives; `None` is for ever. Left out means for ever too: the default is the API server's to set.
    pub fn expire_after(&self) -> Option<&Duration> {
        self.expire_after.as_ref().and_then(NillableDuration::as_duration)
    }
}

/// Resources the node must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceRequirements {
    /// At least these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
}

/// What became of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// The Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The instance, in the provider's words.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The image the instance was started from.
    #[serde(default, rename = "imageID", skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// What the node has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceList>,
    /// What of it pods may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<ResourceList>,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// When a pod was last scheduled to the node or left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pod_event_time: Option<Time>,
}

impl conditions::HasConditions for NodeClaim {
    const TYPES: ConditionTypes = CONDITIONS;

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

pub(crate) fn expire_after_schema() -> Schema {
    Schema::string()
        .describe("How long a node lives, counted from its creation; Never keeps it for ever.")
        .pattern(NILLABLE_DURATION_PATTERN)
        .default_value("720h".into())
}

pub(crate) fn termination_grace_period_schema() -> Schema {
    Schema::string()
        .describe("How long the drain of a deleted node may take. When the time is over, remaining pods are deleted whatever disruption budgets or do-not-disrupt say. Without it a drain may wait for ever.")
        .pattern(DURATION_PATTERN)
}

impl NodeClaim {
    /// The definition of the kind.
    pub fn crd() -> Crd {
        let spec = Schema::object()
            .describe("What is wanted of the node; it cannot be changed.")
            .optional("taints", taints_schema("Taints the node gets."))
            .optional("startupTaints", taints_schema("Taints the node starts with and that some other program removes soon; pods need not tolerate them for a node to be launched."))
            .required("requirements", requirements_schema(Use::Claim))
            .optional("resources", Schema::object()
                .describe("The resources the node must offer.")
                .optional("requests", Schema::resource_list().describe("The least amount of each resource.")))
            .required("nodeClassRef", NodeClassReference::schema())
            .optional("terminationGracePeriod", termination_grace_period_schema())
            .optional("expireAfter", expire_after_schema())
            .cel("self == oldSelf", "spec is immutable");
        let status = Schema::object()
            .describe("What became of the claim.")
            .optional("nodeName", Schema::string().describe("Name of the Node."))
            .optional("providerID", Schema::string().describe("The instance's id at the provider."))
            .optional("imageID", Schema::string().describe("The image the instance runs."))
            .optional("capacity", Schema::resource_list().describe("What the node has, as far as is known."))
            .optional(
                "allocatable",
                Schema::resource_list().describe("What of the capacity pods may use, as far as is known."),
            )
            .optional("conditions", conditions::lenient_schema())
            .optional(
                "lastPodEventTime",
                Schema::date_time().describe("When a pod last came to the node or left it."),
            );
        Crd {
            group: GROUP,
            version: "v1",
            kind: "NodeClaim",
            plural: "nodeclaims",
            short_names: &[],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: vec![
                Column::text("Type", r".metadata.labels.node\.kubernetes\.io/instance-type"),
                Column::text("Capacity", r".metadata.labels.karpenter\.sh/capacity-type"),
                Column::text("Zone", r".metadata.labels.topology\.kubernetes\.io/zone"),
                Column::text("Node", ".status.nodeName"),
                Column::text("Ready", r#".status.conditions[?(@.type=="Ready")].status"#),
                Column::age(),
                Column::text("ImageID", ".status.imageID").wide(),
                Column::text("ID", ".status.providerID").wide(),
                Column::text("NodePool", r".metadata.labels.karpenter\.sh/nodepool").wide(),
                Column::text("NodeClass", ".spec.nodeClassRef.name").wide(),
                Column::text("Drifted", r#".status.conditions[?(@.type=="Drifted")].status"#).wide(),
            ],
            scale: None,
            schema: Crd::root("A request for one node, and what became of it.")
                .required("spec", spec)
                .optional("status", status),
        }
    }
}
