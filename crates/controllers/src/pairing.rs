//! Which Node belongs to which NodeClaim: those that carry the same provider id (rule M3). An empty id belongs to nothing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;

use crate::context::Stores;

/// What carries a provider id.
#[derive(Clone, Debug)]
pub(crate) enum Paired<T> {
    /// Nothing.
    None,
    /// This one.
    One(Arc<T>),
    /// More than one: it cannot be told which is right.
    Several,
}

impl<T> Paired<T> {
    fn of(mut found: Vec<Arc<T>>) -> Self {
        match (found.pop(), found.is_empty()) {
            (None, _) => Self::None,
            (Some(one), true) => Self::One(one),
            (Some(_), false) => Self::Several,
        }
    }

    /// The one, if it is one.
    pub(crate) fn one(self) -> Option<Arc<T>> {
        match self {
            Self::One(one) => Some(one),
            Self::None | Self::Several => None,
        }
    }
}

/// The provider id of a NodeClaim; empty until it is launched.
pub(crate) fn provider_id(claim: &NodeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.provider_id.as_deref()).unwrap_or_default()
}

/// The provider id of a Node; empty until the cloud has seen it.
pub(crate) fn provider_id_of_node(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

impl Stores {
    /// The Node of a NodeClaim.
    pub(crate) fn node_of(&self, claim: &NodeClaim) -> Paired<Node> {
        Paired::of(self.nodes_of(provider_id(claim)))
    }

    /// The NodeClaim of a Node.
    pub(crate) fn claim_of(&self, node: &Node) -> Paired<NodeClaim> {
        Paired::of(self.claims_of(provider_id_of_node(node)))
    }
}
