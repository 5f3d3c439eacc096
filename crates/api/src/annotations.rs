//! Annotation keys Karpenter writes or obeys.

/// Blocks voluntary disruption of a Node, a NodeClaim, or the node of a Pod (there also for a time: `5m`).
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Blocks node repair only.
pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// The hash of the NodePool's template, on the NodePool and on its NodeClaims; a difference is drift.
pub const NODEPOOL_HASH: &str = "karpenter.sh/nodepool-hash";
/// The version of the hash's algorithm; across versions hashes are rewritten, not compared.
pub const NODEPOOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
/// When a NodeClaim's drain must have finished (RFC 3339).
pub const NODECLAIM_TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
/// Whether `minValues` was relaxed to launch the NodeClaim.
pub const NODECLAIM_MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
/// The node's boot id before a reboot was issued.
pub const REBOOT_PRE_BOOT_ID: &str = "karpenter.sh/reboot-pre-boot-id";
/// How long the drain before a reboot may take.
pub const REBOOT_TERMINATION_GRACE_PERIOD: &str = "karpenter.sh/reboot-termination-grace-period";
/// The DRA drivers that must publish slices before the node counts as initialized, separated by commas.
pub const REQUESTED_DRA_DRIVERS: &str = "karpenter.sh/requested-dra-drivers";
/// What evicting a Pod costs, an `i32`.
pub const DISRUPTION_COST: &str = "karpenter.sh/disruption-cost";
/// Kubernetes' own eviction cost of a Pod.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// `true` on a NodeClaim whose price an overlay changed.
pub const PRICE_OVERLAY_APPLIED: &str = "karpenter.sh/price-overlay-applied";
/// `true` on a NodeClaim whose capacity an overlay extended.
pub const CAPACITY_OVERLAY_APPLIED: &str = "karpenter.sh/capacity-overlay-applied";
/// `true` on the in-memory pods a CapacityBuffer stands for.
pub const CAPACITY_BUFFER_FAKE_POD: &str = "karpenter.sh/capacity-buffer-fake-pod";
/// The CapacityBuffer such a pod stands for.
pub const CAPACITY_BUFFER_NAME: &str = "karpenter.sh/capacity-buffer-name";
/// The namespace of that CapacityBuffer.
pub const CAPACITY_BUFFER_NAMESPACE: &str = "karpenter.sh/capacity-buffer-namespace";
