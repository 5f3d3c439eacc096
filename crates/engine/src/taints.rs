//! Taints and the tolerations that answer them.

use std::fmt;

use crate::labels::Text;

/// What a taint does to pods that do not tolerate it, by its API name (`NoSchedule`, `PreferNoSchedule`, `NoExecute`).
pub type Effect = Text;

/// Effect of a taint that is only a preference.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// A mark on a node that keeps pods away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint {
    /// Key.
    pub key: Text,
    /// Value, empty when absent.
    pub value: Text,
    /// Effect.
    pub effect: Effect,
}

impl Taint {
    /// Whether both have the same key and effect, which is what makes taints the same taint.
    pub fn matches(&self, key: &str, effect: &str) -> bool {
        self.key.as_ref() == key && self.effect.as_ref() == effect
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        write!(f, ":{}", self.effect)
    }
}

/// A pod's permission to ignore taints.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Toleration {
    /// Key; empty matches every key.
    pub key: Text,
    /// Operator by its API name; empty means `Equal`.
    pub operator: Text,
    /// Value to compare with.
    pub value: Text,
    /// Effect; empty matches every effect.
    pub effect: Effect,
    /// How long it holds, which says nothing about placement but keeps otherwise equal spread constraints apart.
    pub seconds: Option<i64>,
}

impl Toleration {
    /// Whether this toleration answers `taint`.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if !self.effect.is_empty() && self.effect != taint.effect {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        match self.operator.as_ref() {
            "" | "Equal" => self.value == taint.value,
            "Exists" => true,
            "Gt" => compare(taint, self).is_some_and(|(taint, own)| taint > own),
            "Lt" => compare(taint, self).is_some_and(|(taint, own)| taint < own),
            _ => false,
        }
    }
}

fn compare(taint: &Taint, toleration: &Toleration) -> Option<(i64, i64)> {
    Some((canonical_integer(&taint.value)?, canonical_integer(&toleration.value)?))
}

/// Only the one canonical spelling of an integer counts: no plus sign, no leading zeros.
fn canonical_integer(text: &str) -> Option<i64> {
    let value: i64 = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// The first taint no toleration answers. Preferences count like any other taint.
pub fn first_untolerated<'t>(taints: &'t [Taint], tolerations: &[Toleration]) -> Option<&'t Taint> {
    taints.iter().find(|taint| !tolerations.iter().any(|t| t.tolerates(taint)))
}

/// Taints a node wears only while it comes up, which the scheduler must look past.
pub fn is_ephemeral(taint: &Taint) -> bool {
    const EPHEMERAL: [(&str, &str); 6] = [
        ("node.kubernetes.io/not-ready", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
        // Cluster API's, until it knows the Node.
        ("node.cluster.x-k8s.io/uninitialized", "NoSchedule"),
        ("karpenter.sh/unregistered", "NoExecute"),
    ];
    EPHEMERAL.iter().any(|(key, effect)| taint.matches(key, effect))
        || taint.key.starts_with("readiness.k8s.io/")
}

/// Advice to the pod scheduler that says nothing about whether a pod can run on a node, and must not make anyone buy another: Cluster
/// API's on nodes that a rollout has yet to replace, which may take hours.
pub fn is_advice(taint: &Taint) -> bool {
    taint.matches("node.cluster.x-k8s.io/outdated-revision", PREFER_NO_SCHEDULE)
}
