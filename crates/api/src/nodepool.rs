//! NodePool: what nodes may be launched, how many, and when they may be disrupted.

mod budget;
mod hash;
mod limits;
mod schema;
mod validation;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

pub use budget::{BudgetError, UNBOUNDED, allowed_disruptions};
pub use hash::HASH_VERSION;
pub use limits::LimitExceeded;
pub use validation::{RequirementProblems, validate_requirement};

use crate::conditions::{Condition, ConditionTypes, HasConditions};
use crate::nodeclaim::{NodeClaim, NodeClaimSpec};
use crate::{
    Duration, GROUP, NillableDuration, NodeClassReference, NodeSelectorRequirement, ResourceList,
    api_resource,
};

/// The rules the API server cannot check are kept.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
/// The NodeClass exists and is ready.
pub const NODE_CLASS_READY: &str = "NodeClassReady";
/// Nodes of this pool have been registering.
pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";

/// The conditions a NodePool's `Ready` depends on.
pub const CONDITIONS: ConditionTypes = ConditionTypes::ready(&[VALIDATION_SUCCEEDED, NODE_CLASS_READY]);

/// A kind of node to launch, and how many.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct NodePool {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: NodePoolSpec,
    /// What is.
    #[serde(default)]
    pub status: Option<NodePoolStatus>,
}

api_resource!(NodePool, ClusterResourceScope, GROUP, "v1", "nodepools");

/// What is wanted of a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolSpec {
    /// What its NodeClaims look like.
    pub template: NodeClaimTemplate,
    /// When its nodes may be disrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// How much it may grow; on static pools only `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
    /// Pools with more weight are tried first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Makes it a static pool of so many nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
}

/// What the NodeClaims of a pool look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeClaimTemplate {
    /// Labels and annotations of the claims and nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// The rest.
    pub spec: NodeClaimTemplateSpec,
}

/// The metadata a template may set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMeta {
    /// Labels of the claims and nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the claims and nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What a template says about the node: a NodeClaim's spec without resources, which come from pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Taints of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
    /// Taints the nodes start with and that others remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_taints: Option<Vec<Taint>>,
    /// What the nodes' labels must be.
    #[serde(default)]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// How the nodes are built.
    pub node_class_ref: NodeClassReference,
    /// How long a drain may take at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<Duration>,
    /// How long a node lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<NillableDuration>,
}

/// When nodes may be disrupted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// How long a node must have been quiet before it may be consolidated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consolidate_after: Option<NillableDuration>,
    /// Which nodes may be consolidated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consolidation_policy: Option<ConsolidationPolicy>,
    /// How many nodes may be disrupted at once, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budgets: Option<Vec<Budget>>,
}

/// Which nodes may be consolidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConsolidationPolicy {
    /// Empty ones.
    WhenEmpty,
    /// Any that can be replaced more cheaply.
    #[default]
    WhenEmptyOrUnderutilized,
    /// Any whose saving is worth the disruption.
    Balanced,
}

/// How the Balanced policy weighs: a move is made when its score is at least `1 / BALANCED_K`.
pub const BALANCED_K: i32 = 2;

/// Why nodes are disrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DisruptionReason {
    /// They could be replaced more cheaply.
    Underutilized,
    /// Nothing runs on them.
    Empty,
    /// They are no longer what was asked for.
    Drifted,
    /// They are being repaired.
    Unhealthy,
}

impl DisruptionReason {
    /// As it is written in budgets, conditions and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Underutilized => "Underutilized",
            Self::Empty => "Empty",
            Self::Drifted => "Drifted",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

/// How many nodes may be disrupted at once, and when that counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The reasons it is about; left out, all of them. An empty list is none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<DisruptionReason>>,
    /// A number of nodes or a percentage of the pool's nodes.
    #[serde(default)]
    pub nodes: String,
    /// When it starts to count, in cron notation and UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// How long it counts from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
}

/// What there is of a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// The resources its nodes have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceList>,
    /// How many nodes it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,
    /// The generation of the NodeClass that `NodeRegistrationHealthy` is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    /// Whether it is fit for use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

impl NodePool {
    /// Whether it keeps a fixed number of nodes rather than following the pods.
    pub fn is_static(&self) -> bool {
        self.spec.replicas.is_some()
    }

    /// The budgets, none if left out.
    pub fn budgets(&self) -> &[Budget] {
        self.spec.disruption.as_ref().and_then(|d| d.budgets.as_deref()).unwrap_or_default()
    }

    /// How long a node must have been quiet; `None` is never. Left out means never too: the default is the API server's
    /// to set.
    pub fn consolidate_after(&self) -> Option<&Duration> {
        let disruption = self.spec.disruption.as_ref()?;
        disruption.consolidate_after.as_ref().and_then(NillableDuration::as_duration)
    }

    /// Which nodes may be consolidated.
    pub fn consolidation_policy(&self) -> ConsolidationPolicy {
        self.spec.disruption.as_ref().and_then(|d| d.consolidation_policy).unwrap_or_default()
    }
}

impl NodeClaimTemplate {
    /// Labels of the claims and nodes.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.metadata.as_ref().and_then(|m| m.labels.as_ref());
        labels.into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Annotations of the claims and nodes.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        let annotations = self.metadata.as_ref().and_then(|m| m.annotations.as_ref());
        annotations.into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// The NodeClaim the template alone describes.
    pub fn to_node_claim(&self) -> NodeClaim {
        let meta = self.metadata.clone().unwrap_or_default();
        let spec = self.spec.clone();
        NodeClaim {
            metadata: ObjectMeta {
                labels: meta.labels,
                annotations: meta.annotations,
                ..ObjectMeta::default()
            },
            spec: NodeClaimSpec {
                taints: spec.taints,
                startup_taints: spec.startup_taints,
                requirements: spec.requirements,
                resources: None,
                node_class_ref: spec.node_class_ref,
                termination_grace_period: spec.termination_grace_period,
                expire_after: spec.expire_after,
            },
            status: None,
        }
    }
}

impl NodeClaimTemplateSpec {
    /// Taints of the nodes.
    pub fn taints(&self) -> &[Taint] {
        self.taints.as_deref().unwrap_or_default()
    }

    /// Taints the nodes start with and that others remove.
    pub fn startup_taints(&self) -> &[Taint] {
        self.startup_taints.as_deref().unwrap_or_default()
    }
}

impl HasConditions for NodePool {
    const TYPES: ConditionTypes = CONDITIONS;

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}
