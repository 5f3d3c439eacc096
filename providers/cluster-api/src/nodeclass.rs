//! ClusterAPINodeClass: which MachineDeployments Karpenter may scale, and how it lives with Cluster API. `spec: {}` is what the
//! Go provider knows; every other field is optional. The schema is in `schema`, the status is written by `status`,
//! and what its conditions say is decided in `conditions`.

mod conditions;
pub(crate) mod permissions;
mod resources;
pub(crate) mod schema;
pub(crate) mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::api_resource;
use karpenter_api::conditions::{Condition, ConditionTypes, HasConditions};
use karpenter_api::{Duration as ApiDuration, ResourceList};
use karpenter_primitives::LabelSelector;
use serde::{Deserialize, Serialize};

use crate::GROUP;

/// The management cluster answers.
pub(crate) const MANAGEMENT_CLUSTER_READY: &str = "ManagementClusterReady";
/// At least one scalable resource takes part.
pub(crate) const SCALABLE_RESOURCES_RESOLVED: &str = "ScalableResourcesResolved";
/// All that take part can be offered.
pub(crate) const INSTANCE_TYPES_RESOLVED: &str = "InstanceTypesResolved";

/// We may do in the management cluster what we have to.
pub(crate) const PERMISSIONS_READY: &str = "PermissionsReady";
/// The NodePools declare the taints of the nodes they could get. Nothing depends on it.
pub(crate) const TAINTS_DECLARED: &str = "TaintsDeclared";
/// kubelet keeps of Nodes what is said that it keeps. Nothing depends on it.
pub(crate) const KUBELET_AS_DECLARED: &str = "KubeletAsDeclared";
/// Prices can be had from where the NodeClass says. Nothing depends on it.
pub(crate) const PRICES_KNOWN: &str = "PricesKnown";
/// What takes part has Machines that are not Karpenter's. Nothing depends on it.
pub(crate) const UNMANAGED_MACHINES: &str = "UnmanagedMachines";

/// Which MachineDeployments may be scaled, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ClusterAPINodeClass {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: Option<ClusterAPINodeClassSpec>,
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

/// Which MachineDeployments may be scaled, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterAPINodeClassSpec {
    /// The Cluster that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_ref: Option<ClusterReference>,
    /// The namespaces that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespaces: Option<Vec<String>>,
    /// Their labels, besides the member label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scalable_resource_selector: Option<LabelSelector>,
    /// Whether the selector stands beside the member label or in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) selector_mode: Option<SelectorMode>,
    /// What is made for a NodeClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launch_mode: Option<LaunchMode>,
    /// Which Machines that Karpenter did not ask for become its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) adoption: Option<Adoption>,
    /// Whether NodePools need not declare the taints of nodes they could get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inherit_taints: Option<bool>,
    /// Who replaces nodes whose template has changed; see `drift_of_own_machines` for where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) drift: Option<Drift>,
    /// Who replaces Machines that a health check condemns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remediation: Option<Remediation>,
    /// Conditions of Nodes that node repair goes by, besides `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repair_conditions: Option<Vec<RepairCondition>>,
    /// Conditions of Machines and Nodes that say, when they are true, that the machine is about to be taken away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interruption_conditions: Option<Vec<String>>,
    /// Whether MachineDeployments are launched from whose rollouts stand still because somebody wants it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launch_while_rollout_paused: Option<bool>,
    /// The zone label of each failure domain, where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure_domain_zones: Option<BTreeMap<String, String>>,
    /// Capacity of instance types that nothing else tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance_types: Option<Vec<InstanceTypeOverride>>,
    /// What kubelet keeps for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kubelet: Option<Kubelet>,
    /// What kubelet is taken to reserve where nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default_reservations: Option<Reservations>,
    /// Where prices come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pricing: Option<Pricing>,
    /// How long things may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeouts: Option<Timeouts>,
    /// How many nodes may be launched at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launch_limits: Option<LaunchLimits>,
    /// What is changed in the clone of a bootstrap template, in Machine mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap_patches: Option<Vec<ClonePatch>>,
    /// What is changed in the clone of an infrastructure template, in Machine mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) infrastructure_patches: Option<Vec<ClonePatch>>,
    /// What Machines are made from in Machine mode, in place of MachineDeployments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine_templates: Option<Vec<MachineTemplate>>,
    /// Which templates Machines are made from besides, in Machine mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine_template_selector: Option<MachineTemplateSelector>,
}

/// A Cluster of the management cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterReference {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// A condition of Nodes that node repair goes by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RepairCondition {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    /// Its status when the Node is broken.
    pub(crate) status: RepairStatus,
    /// How long that is borne; [`DEFAULT_REPAIR_AFTER`] where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<ApiDuration>,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RepairStatus {
    True,
    False,
    Unknown,
}

impl RepairStatus {
    /// As conditions have it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl RepairCondition {
    /// How long it is borne.
    pub(crate) fn toleration(&self) -> Duration {
        self.after.as_ref().map_or(DEFAULT_REPAIR_AFTER, ApiDuration::to_std)
    }
}

/// Infrastructure templates that Machines are made from, each an instance type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MachineTemplateSelector {
    pub(crate) api_group: String,
    pub(crate) kind: String,
    pub(crate) selector: LabelSelector,
    /// What the bootstrap configuration is cloned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap_ref: Option<TemplateReference>,
    /// The Secret that takes the place of a bootstrap configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap_data_secret_name: Option<String>,
    /// The Kubernetes version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Where Machines may be; anywhere if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure_domains: Option<Vec<String>>,
    /// Labels of the Machines, which Cluster API copies to Nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

impl MachineTemplateSelector {
    /// One of the templates, as if it had been named.
    pub(crate) fn naming(&self, template: &str) -> MachineTemplate {
        MachineTemplate {
            name: template.to_owned(),
            infrastructure_ref: TemplateReference {
                api_group: self.api_group.clone(),
                kind: self.kind.clone(),
                name: template.to_owned(),
            },
            bootstrap_ref: self.bootstrap_ref.clone(),
            bootstrap_data_secret_name: self.bootstrap_data_secret_name.clone(),
            version: self.version.clone(),
            failure_domains: self.failure_domains.clone(),
            labels: self.labels.clone(),
        }
    }
}

/// Templates that Machines of one instance type are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MachineTemplate {
    /// The instance type, unless the infrastructure template says otherwise.
    pub(crate) name: String,
    /// What the infrastructure is cloned from; its annotations are read as a MachineDeployment's.
    pub(crate) infrastructure_ref: TemplateReference,
    /// What the bootstrap configuration is cloned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap_ref: Option<TemplateReference>,
    /// The Secret that takes the place of a bootstrap configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap_data_secret_name: Option<String>,
    /// The Kubernetes version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Where Machines may be; anywhere if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure_domains: Option<Vec<String>>,
    /// Labels of the Machines, which Cluster API copies to Nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

/// A template in the namespace of the Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateReference {
    pub(crate) api_group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// A change to the `spec` of a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClonePatch {
    /// What is done; [`PatchOperation::Add`] where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) op: Option<PatchOperation>,
    /// Where, as a JSON pointer.
    pub(crate) path: String,
    /// With what, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// With what of the NodeClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value_from: Option<PatchValue>,
}

/// What a patch does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PatchOperation {
    /// Sets a field, or adds to a list.
    #[default]
    Add,
    /// Sets a field that is there.
    Replace,
    Remove,
}

/// What of the NodeClaim a patch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PatchValue {
    /// Its labels.
    Labels,
    /// Its taints, its start-up taints and the one that nodes register with.
    Taints,
    Name,
    /// The arguments that kubelet is to be started with, as the NodeClass says.
    Kubelet,
}

/// How the selector and the member label go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SelectorMode {
    /// Both must match.
    #[default]
    And,
    /// The selector alone decides, as in the Go provider.
    Replace,
}

/// What is made for a NodeClaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum LaunchMode {
    /// One more replica of a MachineDeployment or MachineSet.
    #[default]
    MachineDeployment,
    /// A Machine of its own, cloned from a MachineDeployment's templates or from those that the NodeClass names.
    Machine,
}

/// Which Machines that Karpenter did not ask for become its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Adoption {
    /// None: what was there before is left alone.
    #[default]
    Never,
    /// Those that nobody has claimed may serve NodeClaims.
    Unclaimed,
    /// Every Machine that has a Node gets a NodeClaim: the way from cluster-autoscaler to Karpenter.
    Existing,
}

/// Who replaces nodes whose template has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Drift {
    /// Karpenter, under its budgets; wants `OnDelete` MachineDeployments.
    Karpenter,
    /// Cluster API, by its rollouts; Karpenter adopts the new Machines.
    #[default]
    ClusterAPI,
    Off,
}

/// Who replaces Machines that a health check condemns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Remediation {
    /// Karpenter: the NodeClaim is deleted, and pods get what suits them now.
    Karpenter,
    /// Karpenter's node repair, within budgets: health checks are told to leave its Machines alone.
    NodeRepair,
    /// Cluster API: it makes a new Machine in the same place.
    #[default]
    ClusterAPI,
}

/// Capacity of an instance type that nothing else tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct InstanceTypeOverride {
    /// The instance type, or the name of a scalable resource.
    pub(crate) name: String,
    /// What its nodes have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) capacity: Option<ResourceList>,
    /// Its price per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<String>,
}

/// What kubelet keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kubelet {
    /// For kubelet and runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kube_reserved: Option<ResourceList>,
    /// For the operating system's own services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) system_reserved: Option<ResourceList>,
    /// Kept free so that eviction can act: a quantity or a percentage, by signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) eviction_hard: Option<BTreeMap<String, String>>,
    /// How many pods a node may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_pods: Option<i32>,
}

/// What kubelet is taken to reserve where nobody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reservations {
    /// Nothing, as kubeadm sets it up, and as the Go provider has it.
    #[default]
    None,
    /// A share of cores and memory that falls with size, as clouds usually set it up.
    Curve,
}

/// Where prices come from, if annotations do not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pricing {
    /// Prices by `instance-type`, `instance-type/zone` or `instance-type/zone/capacity-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<BTreeMap<String, String>>,
    /// A ConfigMap of the workload cluster with further entries of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config_map_ref: Option<ConfigMapReference>,
    /// The URL of an endpoint that tells prices which neither table tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// Prices worked out from resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<PriceModel>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigMapReference {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Prices per hour of single resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PriceModel {
    /// Of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<String>,
    /// Of a GiB of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_gib: Option<String>,
    /// Of one of any other resource but pods and storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gpu: Option<String>,
}

/// How many nodes may be launched at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LaunchLimits {
    /// On their way at once, per scalable resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) per_resource: Option<u32>,
    /// Per minute, over all resources of the NodeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) per_minute: Option<u32>,
}

/// How long things may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timeouts {
    /// From NodeClaim to instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launch: Option<ApiDuration>,
    /// From instance to registered node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) registration: Option<ApiDuration>,
    /// For how long a Machine nobody waits for is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) surplus: Option<ApiDuration>,
    /// For how long Cluster API waits for Karpenter to drain a Node whose Machine somebody else deletes; it does not where this is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hook: Option<ApiDuration>,
}

/// Whether the NodeClass can be used, and what it offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterAPINodeClassStatus {
    /// `Ready`, and what it depends on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// What takes part, and why it is or is not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<ResourceStatus>>,
}

/// A scalable resource as the NodeClass sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Kind, namespace and name.
    pub name: String,
    /// The instance type it is offered as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// How its nodes are paid for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<String>,
    /// Its zone, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its price per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Where the price comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_source: Option<String>,
    /// Its zones and prices, where it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offerings: Option<Vec<OfferingStatus>>,
    /// How many replicas it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many it has at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// How many of its Machines are not Karpenter's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmanaged_machines: Option<i32>,
    /// How many it may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// Why it is not offered at the moment; empty if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// What its Machines will have to wait for: it is offered all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// What its Nodes told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<LearnedStatus>,
}

/// What Nodes of a scalable resource told. It is kept for who runs next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearnedStatus {
    /// The template that they were made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// What that said, in short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// What a Node has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceList>,
    /// What of it pods may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<ResourceList>,
    /// Whether machines turned out to be such that may be taken away at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruptible: Option<bool>,
}

/// One of several places where a scalable resource gives nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferingStatus {
    /// The zone, as the label of its nodes has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The price per hour there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Where the price comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_source: Option<String>,
    /// Why it is not offered there at the moment; empty if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl HasConditions for ClusterAPINodeClass {
    const TYPES: ConditionTypes = ConditionTypes::ready(&[
        MANAGEMENT_CLUSTER_READY,
        SCALABLE_RESOURCES_RESOLVED,
        INSTANCE_TYPES_RESOLVED,
        PERMISSIONS_READY,
    ]);

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

impl ClusterAPINodeClass {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// What is wanted, with what was left out.
    pub(crate) fn spec(&self) -> ClusterAPINodeClassSpec {
        self.spec.clone().unwrap_or_default()
    }

    /// Whether it is for this Cluster.
    pub(crate) fn is_for(&self, namespace: &str, cluster: &str) -> bool {
        let Some(spec) = &self.spec else { return true };
        let named = |named: &ClusterReference| named.name == cluster && named.namespace == namespace;
        let within =
            |namespaces: &Vec<String>| namespaces.is_empty() || namespaces.iter().any(|n| n == namespace);
        spec.cluster_ref.as_ref().is_none_or(named) && spec.namespaces.as_ref().is_none_or(within)
    }

    /// Whether MachineDeployments are launched from while `spec.paused` stops their rollouts.
    pub(crate) fn launches_while_rollout_paused(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.launch_while_rollout_paused == Some(true))
    }

    /// Whether health checks are to leave Machines to node repair.
    pub(crate) fn leaves_remediation_to_node_repair(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.remediation == Some(Remediation::NodeRepair))
    }

    /// Whether it makes Machines of their own.
    pub(crate) fn makes_machines(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.launch_mode == Some(LaunchMode::Machine))
    }

    /// Who replaces Machines of their own whose template has changed: no rollout of Cluster API would, so Karpenter does unless the
    /// NodeClass says otherwise.
    pub(crate) fn drift_of_own_machines(&self) -> Drift {
        self.spec.as_ref().and_then(|spec| spec.drift).unwrap_or(Drift::Karpenter)
    }

    /// What Machines are made from in place of MachineDeployments; nothing but in Machine mode.
    pub(crate) fn machine_templates(&self) -> &[MachineTemplate] {
        let templates = self.spec.as_ref().and_then(|spec| spec.machine_templates.as_deref());
        templates.filter(|_| self.makes_machines()).unwrap_or_default()
    }

    /// Which templates Machines are made from besides; nothing but in Machine mode.
    pub(crate) fn machine_template_selector(&self) -> Option<&MachineTemplateSelector> {
        let selector = self.spec.as_ref().and_then(|spec| spec.machine_template_selector.as_ref());
        selector.filter(|_| self.makes_machines())
    }

    /// Whether it says itself what Machines are made from, so that it has no MachineDeployments.
    pub(crate) fn has_templates(&self) -> bool {
        !self.machine_templates().is_empty() || self.machine_template_selector().is_some()
    }

    /// The zone of nodes in a failure domain.
    pub(crate) fn zone_of(&self, failure_domain: &str) -> String {
        let zones = self.spec.as_ref().and_then(|spec| spec.failure_domain_zones.as_ref());
        zones
            .and_then(|zones| zones.get(failure_domain))
            .cloned()
            .unwrap_or_else(|| failure_domain.to_owned())
    }

    /// How long a launch may take.
    pub(crate) fn launch_timeout(&self) -> Duration {
        let timeouts = self.spec.as_ref().and_then(|spec| spec.timeouts.as_ref());
        let launch = timeouts.and_then(|timeouts| timeouts.launch.as_ref());
        launch.map_or(karpenter_cloudprovider::provider::DEFAULT_LAUNCH_TIMEOUT, ApiDuration::to_std)
    }

    /// How long a launched node may take to register.
    pub(crate) fn registration_timeout(&self) -> Duration {
        let timeouts = self.spec.as_ref().and_then(|spec| spec.timeouts.as_ref());
        let registration = timeouts.and_then(|timeouts| timeouts.registration.as_ref());
        registration.map_or(DEFAULT_REGISTRATION_TIMEOUT, ApiDuration::to_std)
    }

    /// For how long Cluster API waits for Karpenter's drain, if it does.
    pub(crate) fn hook_timeout(&self) -> Option<Duration> {
        let timeouts = self.spec.as_ref()?.timeouts.as_ref()?;
        timeouts.hook.as_ref().map(ApiDuration::to_std)
    }

    /// For how long a Machine nobody waits for is kept.
    pub(crate) fn surplus_timeout(&self) -> Duration {
        let timeouts = self.spec.as_ref().and_then(|spec| spec.timeouts.as_ref());
        let surplus = timeouts.and_then(|timeouts| timeouts.surplus.as_ref());
        surplus.map_or(DEFAULT_SURPLUS_TIMEOUT, ApiDuration::to_std)
    }
}

/// How long a broken node is borne when the NodeClass does not say.
pub(crate) const DEFAULT_REPAIR_AFTER: Duration = Duration::from_secs(30 * 60);
/// How long a launched node may take to register when the NodeClass does not say.
pub(crate) const DEFAULT_REGISTRATION_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// For how long a Machine nobody waits for is kept when the NodeClass does not say.
pub(crate) const DEFAULT_SURPLUS_TIMEOUT: Duration = Duration::from_secs(5 * 60);
