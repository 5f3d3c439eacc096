//! Taints Karpenter puts on nodes, and those it expects to go away by themselves.

use k8s_openapi::api::core::v1::Taint;

/// What happens to pods that do not tolerate a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away if they can.
    PreferNoSchedule,
    /// New pods stay away and running ones are evicted.
    NoExecute,
}

impl Effect {
    /// As it is written in a taint.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// A taint without a value, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTaint {
    /// Its key.
    pub key: &'static str,
    /// Its effect.
    pub effect: Effect,
}

impl KnownTaint {
    /// Whether a node's taint is this one: key and effect decide, the value does not.
    pub fn matches(&self, taint: &Taint) -> bool {
        taint.key == self.key && taint.effect == self.effect.as_str()
    }

    /// As an API object.
    pub fn to_taint(self) -> Taint {
        Taint { key: self.key.to_owned(), effect: self.effect.as_str().to_owned(), ..Taint::default() }
    }
}

/// On nodes that are being disrupted or terminated.
pub const DISRUPTED: KnownTaint = KnownTaint { key: "karpenter.sh/disrupted", effect: Effect::NoSchedule };
/// On nodes from the moment they join until they are registered.
pub const UNREGISTERED: KnownTaint =
    KnownTaint { key: "karpenter.sh/unregistered", effect: Effect::NoExecute };
/// On nodes that are being rebooted.
pub const REBOOTING: KnownTaint = KnownTaint { key: "karpenter.sh/rebooting", effect: Effect::NoSchedule };

/// Taints every new node has for a while; they are overlooked until it is initialized.
pub const EPHEMERAL: [KnownTaint; 5] = [
    KnownTaint { key: "node.kubernetes.io/not-ready", effect: Effect::NoSchedule },
    KnownTaint { key: "node.kubernetes.io/not-ready", effect: Effect::NoExecute },
    KnownTaint { key: "node.kubernetes.io/unreachable", effect: Effect::NoSchedule },
    KnownTaint { key: "node.cloudprovider.kubernetes.io/uninitialized", effect: Effect::NoSchedule },
    KnownTaint { key: "node.cluster.x-k8s.io/uninitialized", effect: Effect::NoSchedule },
];

/// Any taint whose key starts like this is ephemeral too.
pub const EPHEMERAL_KEY_PREFIX: &str = "readiness.k8s.io/";
