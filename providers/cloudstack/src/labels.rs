//! Labels and annotations of the CloudStack provider's nodes and claims.

/// The zone's id.
pub const ZONE_ID: &str = "karpenter.k8s.cloudstack/zone-id";
/// The zone's name.
pub const ZONE_NAME: &str = "karpenter.k8s.cloudstack/zone-name";
/// The network's id.
pub const NETWORK_ID: &str = "karpenter.k8s.cloudstack/network-id";
/// The network's name.
pub const NETWORK_NAME: &str = "karpenter.k8s.cloudstack/network-name";
/// The service offering's id.
pub const SERVICE_OFFERING_ID: &str = "karpenter.k8s.cloudstack/service-offering-id";
/// The service offering's name.
pub const SERVICE_OFFERING_NAME: &str = "karpenter.k8s.cloudstack/service-offering-name";
/// The template's id.
pub const TEMPLATE_ID: &str = "karpenter.k8s.cloudstack/template-id";
/// The template's name.
pub const TEMPLATE_NAME: &str = "karpenter.k8s.cloudstack/template-name";

/// Annotation of a NodeClaim: the hash of its NodeClass's spec; a difference is drift.
pub const NODE_CLASS_HASH: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
/// Annotation of a NodeClaim: the version of that hash.
pub const NODE_CLASS_HASH_VERSION: &str = "karpenter.k8s.cloudstack/nodeclass-hash-version";

/// Annotation of a NodeClaim: the account or project its machine was made in, where it is looked for ever after.
pub const SCOPE: &str = "karpenter.k8s.cloudstack/scope";

/// Annotation of a NodeClaim: the Secret with the keys its machine was made with, where those are not Karpenter's own.
pub const CREDENTIALS: &str = "karpenter.k8s.cloudstack/credentials";

/// Annotation of a NodeClaim: the id of the account its machine was made in, where no project or account is named. Keys of another
/// do not see it, which says nothing about it.
pub const ACCOUNT_ID: &str = "karpenter.k8s.cloudstack/account-id";

/// Cores.
pub const INSTANCE_CPU: &str = "karpenter.k8s.cloudstack/instance-cpu";
/// Mebibytes of memory.
pub const INSTANCE_MEMORY: &str = "karpenter.k8s.cloudstack/instance-memory";
/// Megahertz per core.
pub const INSTANCE_CPU_MHZ: &str = "karpenter.k8s.cloudstack/instance-cpu-mhz";
/// Megabits per second.
pub const INSTANCE_NETWORK_BANDWIDTH: &str = "karpenter.k8s.cloudstack/instance-network-bandwidth";
/// The offering's name up to its first separator.
pub const OFFERING_FAMILY: &str = "karpenter.k8s.cloudstack/offering-family";
/// `shared` or `local`.
pub const STORAGE_TYPE: &str = "karpenter.k8s.cloudstack/storage-type";
/// Whether the machine is started elsewhere when its host fails.
pub const HIGH_AVAILABILITY: &str = "karpenter.k8s.cloudstack/ha";
/// Who makes the GPU.
pub const INSTANCE_GPU_MANUFACTURER: &str = "karpenter.k8s.cloudstack/instance-gpu-manufacturer";
/// Mebibytes of memory of the GPU.
pub const INSTANCE_GPU_MEMORY: &str = "karpenter.k8s.cloudstack/instance-gpu-memory";
/// Number of GPUs.
pub const INSTANCE_GPU_COUNT: &str = "karpenter.k8s.cloudstack/instance-gpu-count";
/// Which GPU.
pub const INSTANCE_GPU_NAME: &str = "karpenter.k8s.cloudstack/instance-gpu-name";

/// Tags of the hosts the offering needs.
pub const HOST_TAGS: &str = "karpenter.k8s.cloudstack/host-tags";
/// Which reservation of the NodeClass.
pub const RESERVATION_ID: &str = "karpenter.k8s.cloudstack/reservation-id";

/// Labels whose values the instance types describe.
pub const WELL_KNOWN: [&str; 17] = [
    HOST_TAGS,
    RESERVATION_ID,
    ZONE_ID,
    ZONE_NAME,
    SERVICE_OFFERING_ID,
    SERVICE_OFFERING_NAME,
    INSTANCE_CPU,
    INSTANCE_MEMORY,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_NAME,
    INSTANCE_CPU_MHZ,
    INSTANCE_NETWORK_BANDWIDTH,
    OFFERING_FAMILY,
    STORAGE_TYPE,
    HIGH_AVAILABILITY,
    INSTANCE_GPU_MANUFACTURER,
    INSTANCE_GPU_MEMORY,
];

/// Tag of a virtual machine: who manages it.
pub const TAG_MANAGED_BY: &str = "karpenter.sh/managed-by";
/// Tag of a virtual machine: its NodeClaim.
pub const TAG_NODE_CLAIM: &str = "karpenter.sh/nodeclaim";
/// Tag of a virtual machine: its NodePool.
pub const TAG_NODE_POOL: &str = "karpenter.sh/nodepool";
/// Tag of a virtual machine: its NodeClass.
pub const TAG_NODE_CLASS: &str = "karpenter.k8s.cloudstack/nodeclass";
/// Tag of a virtual machine: the UID of its NodeClaim, which no other ever has.
pub const TAG_NODE_CLAIM_UID: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";
/// Tag of a virtual machine: the version and hash of its NodeClass when it was made, with a slash between them.
pub const TAG_NODE_CLASS_HASH: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
/// Tag of a virtual machine: it was made with disks that go with it.
pub const TAG_DATA_DISKS: &str = "karpenter.k8s.cloudstack/data-disks";

/// Tag of a virtual machine: which of the disks it was made with stay when it goes, by device number, separated by commas.
pub const TAG_KEPT_DISKS: &str = "karpenter.k8s.cloudstack/kept-disks";
/// Tag of a volume: it stays when its machine goes.
pub const TAG_KEPT: &str = "karpenter.k8s.cloudstack/kept";

/// Tag of a virtual machine: the reservation it counts against.
pub const TAG_RESERVATION: &str = "karpenter.k8s.cloudstack/reservation";

/// What tags begin with that say which cluster something belongs to.
pub(crate) const CLUSTER_TAG: &str = "kubernetes.io/cluster/";

/// The tag that says which cluster a virtual machine belongs to; its value is `owned`.
pub fn cluster_tag(cluster: &str) -> String {
    format!("{CLUSTER_TAG}{cluster}")
}
