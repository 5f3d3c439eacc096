//! NodePools: what may be bought, for whom, and how much of it.

use std::sync::Arc;

use crate::instance_type::InstanceType;
use crate::labels::{Labels, Text};
use crate::requirement::SelectorRequirement;
use crate::resources::Resources;
use crate::taints::Taint;
use karpenter_api::nodepool::{Budget, ConsolidationPolicy};

/// A NodePool with the instance types its provider offers it.
#[derive(Clone, Debug)]
pub struct NodePool {
    /// Name.
    pub name: Text,
    /// UID.
    pub uid: Text,
    /// Larger is tried first; absent is 0.
    pub weight: i32,
    /// Template labels.
    pub labels: Labels,
    /// Template annotations.
    pub annotations: Labels,
    /// Template requirements.
    pub requirements: Vec<SelectorRequirement>,
    /// Template taints.
    pub taints: Vec<Taint>,
    /// Template startup taints: no obstacle to scheduling.
    pub startup_taints: Vec<Taint>,
    /// The node class it uses.
    pub node_class: NodeClassRef,
    /// Upper limits; empty means none.
    pub limits: Resources,
    /// Replicas of a static pool; such a pool takes no part in scheduling.
    pub replicas: Option<i64>,
    /// Whether its `Ready` condition is `True`.
    pub ready: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `disruption.consolidateAfter` in seconds; `None` for `Never` or absent.
    pub consolidate_after_seconds: Option<i64>,
    /// Which of its nodes may be consolidated.
    pub consolidation_policy: ConsolidationPolicy,
    /// How many of its nodes may be disrupted at once; no budget at all is no limit.
    pub budgets: Vec<Budget>,
    /// What its provider offers.
    pub instance_types: InstanceTypes,
    /// What it offers besides that comes with further taints.
    pub tainted: Vec<TaintedTypes>,
}

/// Instance types whose nodes have taints that their NodePool need not declare: claims of these are for pods that tolerate them. They stand in
/// the NodePool's own list, too, where these offerings cannot be bought.
#[derive(Clone, Debug, PartialEq)]
pub struct TaintedTypes {
    /// Besides the NodePool's own.
    pub taints: Vec<Taint>,
    /// What has exactly these, before overlays.
    pub instance_types: Arc<[InstanceType]>,
}

/// A reference to a provider's node class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeClassRef {
    /// API group.
    pub group: Text,
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
}

impl NodeClassRef {
    /// The label that names the node class on nodes: `<group>/<lowercase kind>`.
    pub fn label_key(&self) -> Text {
        format!("{}/{}", self.group, self.kind.to_lowercase()).into()
    }
}

/// The instance types of a pool, or why there are none.
#[derive(Clone, Debug)]
pub enum InstanceTypes {
    /// Resolved, before overlays. Pools that are offered the same list should share it: it is then compiled once.
    Resolved(Arc<[InstanceType]>),
    /// The provider could not say; the pool is skipped.
    Unresolved {
        /// What went wrong.
        reason: Text,
    },
}

impl InstanceTypes {
    /// The list, empty when unresolved.
    pub fn list(&self) -> &[InstanceType] {
        match self {
            InstanceTypes::Resolved(types) => types,
            InstanceTypes::Unresolved { .. } => &[],
        }
    }
}

/// A change to what instance types cost or have.
#[derive(Clone, Debug)]
pub struct NodeOverlay {
    /// Name.
    pub name: Text,
    /// Larger wins; absent is 0.
    pub weight: i32,
    /// Which instance types and offerings it changes.
    pub requirements: Vec<SelectorRequirement>,
    /// The new price, or a signed change to it, absolute or in percent, as the API writes it.
    pub price: Option<Text>,
    /// Resources it adds; `None` when absent.
    pub capacity: Option<Resources>,
}
