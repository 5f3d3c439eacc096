//! CloudStackNodeClass: zone, networks, templates and offerings that virtual machines are made of. Its definition in the
//! cluster is in `nodeclass_schema`.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::conditions::{Condition, ConditionTypes, HasConditions};
use karpenter_api::{ResourceList, api_resource};
use serde::{Deserialize, Serialize};

use crate::GROUP;

/// The spec makes sense.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
/// CloudStack takes the keys it is to be called with. Readiness does not depend on it: while new ones are wrong, the old ones
/// work. Where none work, nothing can be looked up, and that is what readiness depends on.
pub const CREDENTIALS_READY: &str = "CredentialsReady";
/// At least one of the zones is there and enabled.
pub const ZONES_READY: &str = "ZonesReady";
/// Networks were found.
pub const NETWORKS_READY: &str = "NetworksReady";
/// The same under its older name, for who waits for that.
pub const NETWORK_READY: &str = "NetworkReady";
/// Templates were found.
pub const TEMPLATES_READY: &str = "TemplatesReady";
/// Service offerings were found.
pub const SERVICE_OFFERINGS_READY: &str = "ServiceOfferingsReady";
/// The affinity groups the NodeClass names were found.
pub const AFFINITY_READY: &str = "AffinityReady";
/// The account's limits leave room. Readiness does not depend on it: limits come and go.
pub const QUOTA_AVAILABLE: &str = "QuotaAvailable";
/// No machine of the NodeClass is protected from deletion. Readiness does not depend on it.
pub const MACHINES_DELETABLE: &str = "MachinesDeletable";

/// What virtual machines are made of.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct CloudStackNodeClass {
    /// Name, labels and the like.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Option<CloudStackNodeClassSpec>,
    /// What was found for it.
    #[serde(default)]
    pub status: Option<CloudStackNodeClassStatus>,
}

api_resource!(CloudStackNodeClass, ClusterResourceScope, GROUP, "v1", "cloudstacknodeclasses", optional);

/// What is wanted of the virtual machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudStackNodeClassSpec {
    /// The zone, by name, unless the others say which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Which networks.
    #[serde(default)]
    pub network_selector_terms: Vec<SelectorTerm>,
    /// Which service offerings.
    #[serde(default)]
    pub service_offering_selector_terms: Vec<OfferingSelectorTerm>,
    /// Which templates.
    #[serde(default)]
    pub template_selector_terms: Vec<TemplateSelectorTerm>,
    /// The offering of an additional disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_offering: Option<String>,
    /// The root disk in gigabytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_disk_size: Option<i64>,
    /// The key pair for logging in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_pair: Option<String>,
    /// What the machine is told at its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Tags of the virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
    /// More zones, by name or id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// More zones, by id, name or tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zone_selector_terms: Vec<SelectorTerm>,
    /// Networks of further interfaces, one per term, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_network_selector_terms: Vec<SelectorTerm>,
    /// Which of several networks: the `First` that has addresses (default), or `Spread` over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_selection: Option<String>,
    /// Security groups, by name or id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// Security groups besides, by id, name or tags: all that any of the terms selects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_group_selector_terms: Vec<SelectorTerm>,
    /// Key pairs besides `sshKeyPair`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_key_pairs: Vec<String>,
    /// The offering of the root disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_disk_offering: Option<String>,
    /// Additional disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_disks: Vec<DataDisk>,
    /// How machines of a NodePool keep apart or together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// The project everything belongs to.
    #[serde(default, rename = "projectID", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The account everything belongs to, for administrators; with `domainID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The domain of that account.
    #[serde(default, rename = "domainID", skip_serializing_if = "Option::is_none")]
    pub domain_id: Option<String>,
    /// The Secret with the keys its machines are made with, where they are not those Karpenter was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_ref: Option<CredentialsRef>,
    /// Sizes of customised offerings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_sizes: Option<CustomSizes>,
    /// Sizes of particular ones, instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub custom_offerings: Vec<CustomOffering>,
    /// What machines cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<Pricing>,
    /// `spot` or `on-demand`, by name of the offering; `*` stands for anything.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity_types: BTreeMap<String, String>,
    /// Room that is set aside for this account.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// Pods per node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pods: Option<i64>,
    /// Whether machines are expunged or only destroyed: `Expunge` (where allowed) or `Destroy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<String>,
    /// Architecture of templates that do not say theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Settings of the machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<BTreeMap<String, String>>,
    /// `Bios` or `UEFI`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_type: Option<String>,
    /// `Legacy` or `Secure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<String>,
    /// The hypervisor, where the template leaves it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Whether machines may be given more cores or memory while they run; they may not unless this is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_scaling: Option<bool>,
    /// The group of the user interface that machines are put into; named after the cluster where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How much of its memory a machine never sees, in percent, where no node of its size has shown it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_memory_overhead_percent: Option<i64>,
    /// Whether offerings are used whose root disk is made anew whenever the machine starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volatile_offerings: Option<bool>,
    /// Where the user data stands instead of `userData`: in a Secret or ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_ref: Option<ValueRef>,
    /// `Always` to compress user data however short it is; else where it is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_compression: Option<String>,
    /// What kubelet is told to keep for itself, per resource, where the usual is not it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_reserved: Option<ResourceList>,
    /// What kubelet is told to keep for the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_reserved: Option<ResourceList>,
    /// The resource GPUs are asked for by, where the name of the card does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_resource: Option<String>,
    /// How the machine joins the cluster, where its image brings kubeadm, k3s or RKE2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// User data registered with CloudStack, by id, instead of `userData`.
    #[serde(default, rename = "userDataID", skip_serializing_if = "Option::is_none")]
    pub user_data_id: Option<String>,
    /// Values of the variables that registered user data declares.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub user_data_details: BTreeMap<String, String>,
}

impl CloudStackNodeClassSpec {
    /// Whether machines are given user data, wherever it comes from.
    pub(crate) fn has_user_data(&self) -> bool {
        self.user_data.is_some()
            || self.user_data_ref.is_some()
            || self.user_data_id.is_some()
            || self.bootstrap.is_some()
    }

    /// Whether machines are to be in security groups, however those are named.
    pub(crate) fn wants_security_groups(&self) -> bool {
        !self.security_groups.is_empty() || !self.security_group_selector_terms.is_empty()
    }
}

/// A Secret with keys: `api-url`, `api-key` and `secret-key`, or a `cloud-config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CredentialsRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl CredentialsRef {
    /// As it is written down: `NAMESPACE/NAME`.
    pub fn read(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let whole = !namespace.is_empty() && !name.is_empty();
        whole.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for CredentialsRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A value of a Secret or ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueRef {
    /// `Secret` or `ConfigMap`; a Secret if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of its values.
    pub key: String,
}

/// How a machine joins the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// `Kubeadm`, `K3s` or `RKE2`; `Talos`, whose machine configuration is the user data; `Custom`, where the user data joins by
    /// itself with what is told here.
    pub mode: String,
    /// Host and port of the API server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_server: String,
    /// Where the token is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<ValueRef>,
    /// Instead of that: a token for each NodeClaim, made by Karpenter, that expires after so long.
    #[serde(default, rename = "tokenTTL", skip_serializing_if = "Option::is_none")]
    pub token_ttl: Option<String>,
    /// Hash of the cluster's authority; kubeadm needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert_hash: Option<String>,
    /// `Skip` to join without the hash: whoever answers as the API server is believed. `Required` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_verification: Option<String>,
    /// Further arguments of kubelet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kubelet_extra_args: BTreeMap<String, String>,
}

impl Bootstrap {
    /// Whether kubeadm would join without knowing whom, and nobody said that it may.
    pub(crate) fn trusts_anybody(&self) -> bool {
        self.mode == "Kubeadm"
            && self.ca_cert_hash.is_none()
            && self.ca_verification.as_deref() != Some("Skip")
    }
}

/// An additional disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDisk {
    /// Its disk offering, by name or id.
    pub offering: String,
    /// Its size in gigabytes, where the offering leaves it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// Operations per second at least and at most, where the offering leaves them open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<Iops>,
    /// Whether it goes with its machine; it does unless this is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
}

/// Operations per second of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iops {
    /// At least.
    pub min: i64,
    /// At most.
    pub max: i64,
}

/// How machines of a NodePool keep apart or together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// Of a group of Karpenter's own: `hostAntiAffinity`, `hostAffinity`, `softHostAntiAffinity` or `softHostAffinity`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Whose machines that group holds: those of a `NodePool` (default), or all of the `NodeClass`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Groups that are there already, by id, besides: such as one that dedicates hosts.
    #[serde(default, rename = "groupIDs", skip_serializing_if = "Vec::is_empty")]
    pub group_ids: Vec<String>,
    /// The same by name.
    #[serde(default, rename = "groupNames", skip_serializing_if = "Vec::is_empty")]
    pub group_names: Vec<String>,
}

/// Sizes of customised offerings: every number of cores with every amount of memory per core, within the offering's bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomSizes {
    /// Cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Vec<i64>>,
    /// Gigabytes per core.
    #[serde(default, rename = "memoryPerCPU", skip_serializing_if = "Option::is_none")]
    pub memory_per_cpu: Option<Vec<i64>>,
}

/// Sizes of a customised offering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomOffering {
    /// Which, by name or id; `*` stands for anything.
    pub offering: String,
    /// Its sizes.
    #[serde(flatten)]
    pub sizes: CustomSizes,
}

/// Room for some machines of an offering that is set aside for this account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its name: the value of the label `karpenter.k8s.cloudstack/reservation-id`.
    pub name: String,
    /// The service offering, by name or id; `*` stands for anything.
    pub offering: String,
    /// For how many machines.
    pub count: i64,
    /// The affinity group that leads to its hosts.
    #[serde(default, rename = "groupID", skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConfigMapRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What machines cost per hour, in decimal numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pricing {
    /// Per core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Per gigabyte of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Per GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Per gigabyte of the disks a machine is made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Of offerings by name; `*` stands for anything.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, String>,
    /// Prices by name of offering or instance type.
    #[serde(default, rename = "configMapRef", skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,
    /// What they are in, for metrics: such as `EUR`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// `Use` to take what CloudStack's quota plug-in says of machines and volumes.
    #[serde(default, rename = "quotaTariff", skip_serializing_if = "Option::is_none")]
    pub quota_tariff: Option<String>,
}

/// Selects things by id, name or tags; terms of a list are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectorTerm {
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// Selects service offerings: by id, name or tags, and by size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferingSelectorTerm {
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Details that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
    /// Cores at least.
    #[serde(default, rename = "minCPU", skip_serializing_if = "Option::is_none")]
    pub min_cpu: Option<i64>,
    /// Cores at most.
    #[serde(default, rename = "maxCPU", skip_serializing_if = "Option::is_none")]
    pub max_cpu: Option<i64>,
    /// Mebibytes at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory: Option<i64>,
    /// Mebibytes at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<i64>,
    /// `Required` or `Excluded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

/// Selects templates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSelectorTerm {
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_type: Option<String>,
    /// The family, as a tag or detail of the template says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The version of that family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Tags that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// What was found for a NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudStackNodeClassStatus {
    /// Names of the zones, for kubectl: of a list it shows the first only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_names: Option<String>,
    /// How many of the service offerings can be had, for kubectl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offerings_available: Option<String>,
    /// The zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<Zone>>,
    /// The networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Network>>,
    /// The service offerings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_offerings: Option<Vec<ServiceOffering>>,
    /// The templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub templates: Option<Vec<Template>>,
    /// Whether it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

/// A zone that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// A network that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Its zone.
    pub zone: String,
}

/// A service offering that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceOffering {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Cores.
    pub cpu_number: i64,
    /// Megahertz per core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_speed: Option<i64>,
    /// Memory in megabytes.
    pub memory: i64,
    /// Megabits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_rate: Option<i64>,
    /// What an hour of it costs; of customised ones, the cheapest size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Whether it can be had at the moment, in any zone: `True` or `False`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<String>,
}

/// A template that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_type: Option<String>,
    /// Its zone.
    pub zone: String,
}

/// The conditions that come from looking things up: what makes it ready.
pub(crate) const LOOKED_UP: [&str; 6] = [
    VALIDATION_SUCCEEDED,
    ZONES_READY,
    NETWORKS_READY,
    TEMPLATES_READY,
    SERVICE_OFFERINGS_READY,
    AFFINITY_READY,
];

impl HasConditions for CloudStackNodeClass {
    const TYPES: ConditionTypes = ConditionTypes::ready(&LOOKED_UP);

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        self.status.get_or_insert_default().conditions.get_or_insert_default()
    }
}

/// Version of [`CloudStackNodeClass::hash`]; claims of another version are not compared.
pub const HASH_VERSION: &str = "v2";

impl CloudStackNodeClass {
    /// A hash of what machines are made of, without what is looked up anew each time (selectors, zones) or can be changed on
    /// running machines (tags, prices).
    pub fn hash(&self) -> String {
        let mut spec = self.spec.clone().unwrap_or_default();
        // Written, however empty: without it the hash would be another, and machines that run would drift.
        spec.zone = Some(String::new());
        spec.zones.clear();
        spec.zone_selector_terms.clear();
        spec.user_data_compression = None;
        // Said to the scheduler, and to machines only where Karpenter tells them how to join.
        if spec.bootstrap.is_none() {
            spec.kube_reserved = None;
            spec.system_reserved = None;
        }
        spec.gpu_resource = None;
        spec.vm_memory_overhead_percent = None;
        spec.network_selector_terms.clear();
        spec.network_selection = None;
        spec.additional_network_selector_terms.clear();
        spec.security_group_selector_terms.clear();
        spec.service_offering_selector_terms.clear();
        spec.volatile_offerings = None;
        spec.template_selector_terms.clear();
        spec.tags = None;
        spec.group = None;
        spec.pricing = None;
        spec.capacity_types.clear();
        spec.reservations.clear();
        spec.custom_sizes = None;
        spec.custom_offerings.clear();
        spec.deletion_policy = None;
        // Heeded when a machine goes, however it was made.
        for disk in &mut spec.data_disks {
            disk.delete_on_termination = None;
        }
        let text = serde_json::to_string(&spec).unwrap_or_default();
        karpenter_api::structure_hash::text(&text).to_string()
    }

    /// The Secret with the keys its machines are made with, if it names one.
    pub fn credentials(&self) -> Option<&CredentialsRef> {
        self.spec.as_ref()?.credentials_ref.as_ref()
    }

    /// The zones it may use, by name or id, each once.
    pub fn zones(&self) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let mut zones = Vec::from_iter(spec.zone);
        for zone in spec.zones {
            if !zones.contains(&zone) {
                zones.push(zone);
            }
        }
        zones.retain(|zone| !zone.is_empty());
        zones
    }
}
