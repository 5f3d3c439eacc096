//! What was read but not taken in yet: for whoever reads a whole cluster at once.
//!
//! Pods, Nodes and NodeClaims are what a large cluster consists of. Read together they go in faster than one by one, and
//! what reading takes can be told from what taking in takes. The outcome is the same.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use karpenter_engine::ingest::FieldError;
use karpenter_engine::node::{Node, NodeClaim};
use karpenter_engine::pod::Pod;

use crate::cluster::Cluster;
use crate::convert;

/// Objects in the engine's form.
#[derive(Default)]
pub struct Facts {
    pods: Vec<Arc<Pod>>,
    nodes: Vec<Arc<Node>>,
    claims: Vec<Arc<NodeClaim>>,
}

impl Facts {
    /// How many pods were read.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }
}

impl Cluster {
    /// Reads a Pod into `facts`.
    pub fn read_pod(&mut self, pod: &core::Pod, facts: &mut Facts) -> Result<(), FieldError> {
        facts.pods.push(self.ingest.pod(pod)?);
        Ok(())
    }

    /// Reads a Node into `facts`.
    pub fn read_node(&mut self, node: &core::Node, facts: &mut Facts) -> Result<(), FieldError> {
        facts.nodes.push(Arc::new(convert::node(&mut self.ingest, node)?));
        Ok(())
    }

    /// Reads a NodeClaim into `facts`.
    pub fn read_node_claim(
        &mut self,
        claim: &karpenter_api::NodeClaim,
        facts: &mut Facts,
    ) -> Result<(), FieldError> {
        facts.claims.push(Arc::new(crate::karpenter::node_claim(&mut self.ingest, claim)?));
        Ok(())
    }

    /// Takes in what was read, as if each object had been applied.
    pub fn take_in(&mut self, facts: Facts) {
        for claim in &facts.claims {
            self.memory.unreadable_claims.remove(&claim.name);
        }
        for node in &facts.nodes {
            self.memory.unreadable_nodes.remove(&node.name);
        }
        self.machines.find_all(facts.claims, facts.nodes);
        if self.pods.is_empty() {
            if facts.pods.iter().any(|pod| pod.node_name.is_some()) {
                self.mark_unconsolidated();
            }
            self.pods = facts.pods.into_iter().collect();
        } else {
            facts.pods.into_iter().for_each(|pod| self.put_pod(pod));
        }
    }
}
