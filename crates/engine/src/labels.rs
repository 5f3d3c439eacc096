//! Label keys the decisions depend on, and the small immutable map that holds an object's labels.
//!
//! Strings are shared (`Arc<str>`) because a cluster repeats the same few label values tens of thousands of times.

use std::sync::Arc;

/// A shared, immutable string.
pub type Text = Arc<str>;

/// `topology.kubernetes.io/zone`.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// `topology.kubernetes.io/region`.
pub const REGION: &str = "topology.kubernetes.io/region";
/// `kubernetes.io/hostname`.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// `kubernetes.io/arch`.
pub const ARCH: &str = "kubernetes.io/arch";
/// `kubernetes.io/os`.
pub const OS: &str = "kubernetes.io/os";
/// `node.kubernetes.io/instance-type`.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// `node.kubernetes.io/windows-build`.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
/// `karpenter.sh/nodepool`.
pub const NODE_POOL: &str = "karpenter.sh/nodepool";
/// `karpenter.sh/capacity-type`.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// `karpenter.sh/registered`.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// `karpenter.sh/initialized`.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// `karpenter.sh/do-not-disrupt`.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// `karpenter.sh/do-not-repair`.
pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// `karpenter.sh/disruption-cost`, on pods.
pub const DISRUPTION_COST: &str = "karpenter.sh/disruption-cost";
/// `controller.kubernetes.io/pod-deletion-cost`, on pods.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Value of [`CAPACITY_TYPE`] for pre-paid capacity.
pub const RESERVED: &str = "reserved";
/// Value of [`CAPACITY_TYPE`] for interruptible capacity.
pub const SPOT: &str = "spot";
/// Value of [`CAPACITY_TYPE`] for ordinary capacity.
pub const ON_DEMAND: &str = "on-demand";

/// Labels every provider's instance types are expected to describe, so a claim need not define them to be compatible.
pub const WELL_KNOWN: [&str; 8] =
    [NODE_POOL, ZONE, REGION, INSTANCE_TYPE, ARCH, OS, CAPACITY_TYPE, WINDOWS_BUILD];

/// The key an alias stands for: requirements on the deprecated beta labels speak of their stable successors.
pub fn normalized(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" => ZONE,
        "failure-domain.beta.kubernetes.io/region" => REGION,
        "beta.kubernetes.io/arch" => ARCH,
        "beta.kubernetes.io/os" => OS,
        "beta.kubernetes.io/instance-type" => INSTANCE_TYPE,
        other => other,
    }
}

/// An object's labels, sorted by key; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<[(Text, Text)]>);

impl Labels {
    /// Takes the pairs; a repeated key keeps its last value, as a JSON object does.
    pub fn new(pairs: impl IntoIterator<Item = (Text, Text)>) -> Self {
        let sorted: std::collections::BTreeMap<Text, Text> = pairs.into_iter().collect();
        Labels(sorted.into_iter().collect())
    }

    /// Whether anybody else has these.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Text> {
        // One after the other: the length, which is at hand, rules nearly all out, where halving reads a string each time.
        self.0.iter().find(|(k, _)| k.as_ref() == key).map(|(_, value)| value)
    }

    /// The value of `key`, with absent read as empty.
    pub fn get_or_empty(&self, key: &str) -> &str {
        self.get(key).map_or("", |v| v.as_ref())
    }

    /// All pairs in key order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Text)> {
        self.0.iter().map(|(k, v)| (k, v))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Address of the shared storage: equal addresses mean equal labels (the reverse need not hold). All empty labels have one.
    pub(crate) fn address(&self) -> usize {
        if self.0.is_empty() { 0 } else { self.0.as_ptr() as usize }
    }
}

impl<K: Into<Text>, V: Into<Text>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Labels::new(iter.into_iter().map(|(k, v)| (k.into(), v.into())))
    }
}
