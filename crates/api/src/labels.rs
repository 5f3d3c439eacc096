//! Label keys Karpenter writes, reads or understands, and the values with a meaning.

/// The NodePool a NodeClaim and its Node belong to.
pub const NODEPOOL: &str = "karpenter.sh/nodepool";
/// `true` on a Node that has been initialized.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// `true` on a Node that has been matched with its NodeClaim.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// `true` on a Node whose taints are not to be copied from its NodeClaim.
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
/// How the instance is paid for.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";

/// The zone of a Node.
pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
/// The region of a Node.
pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";
/// The instance type of a Node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// The CPU architecture of a Node.
pub const ARCH: &str = "kubernetes.io/arch";
/// The operating system of a Node.
pub const OS: &str = "kubernetes.io/os";
/// The Windows build of a Node.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
/// The host name of a Node; the topology of "one per node", never accepted from users.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Keeps a terminating Node out of load balancers; set to [`EXCLUDE_FROM_LOAD_BALANCERS_VALUE`].
pub const EXCLUDE_FROM_LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// What Karpenter sets [`EXCLUDE_FROM_LOAD_BALANCERS`] to.
pub const EXCLUDE_FROM_LOAD_BALANCERS_VALUE: &str = "karpenter";

/// Old spelling of [`TOPOLOGY_ZONE`].
pub const FAILURE_DOMAIN_BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// Old spelling of [`TOPOLOGY_REGION`].
pub const FAILURE_DOMAIN_BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Old spelling of [`INSTANCE_TYPE`].
pub const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
/// Old spelling of [`ARCH`].
pub const BETA_ARCH: &str = "beta.kubernetes.io/arch";
/// Old spelling of [`OS`].
pub const BETA_OS: &str = "beta.kubernetes.io/os";

/// The value `true` of a label.
pub const TRUE: &str = "true";

/// Capacity paid by the hour.
pub const CAPACITY_TYPE_ON_DEMAND: &str = "on-demand";
/// Spare capacity that may be taken away.
pub const CAPACITY_TYPE_SPOT: &str = "spot";
/// Capacity paid for in advance.
pub const CAPACITY_TYPE_RESERVED: &str = "reserved";

/// 64-bit x86.
pub const ARCH_AMD64: &str = "amd64";
/// 64-bit ARM.
pub const ARCH_ARM64: &str = "arm64";

/// The label that carries a NodeClass's name: `<group>/<kind in lower case>`.
pub fn node_class(group: &str, kind: &str) -> String {
    format!("{group}/{}", kind.to_lowercase())
}

/// The domain of a label key: what stands before the first `/`, or nothing.
pub fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_class_label_is_its_group_and_lower_case_kind() {
        assert_eq!(node_class("karpenter.kwok.sh", "KWOKNodeClass"), "karpenter.kwok.sh/kwoknodeclass");
    }

    #[test]
    fn a_key_without_a_slash_has_no_domain() {
        assert_eq!(domain("team"), "");
        assert_eq!(domain("a.b/c/d"), "a.b");
    }
}
