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
/// The disk offering's id.
pub const DISK_OFFERING_ID: &str = "karpenter.k8s.cloudstack/disk-offering-id";

/// Annotation of a NodeClaim: the hash of its NodeClass's spec; a difference is drift.
pub const NODE_CLASS_HASH: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
/// Annotation of a NodeClaim: the version of that hash.
pub const NODE_CLASS_HASH_VERSION: &str = "karpenter.k8s.cloudstack/nodeclass-hash-version";
