//! What no object of the cluster says and only this process remembers: which machines are about to be deleted or were promised
//! to pods, what was thought about pods, whether everything has been seen once, whether consolidation need look again.
//!
//! Times here are by a clock that nobody sets: a wall clock that is corrected neither ends a promise nor makes it last.
//!
//! A new leader starts without any of it and comes to the same ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use karpenter_engine::StateNode;
use karpenter_engine::eligibility::is_provisionable;
use karpenter_engine::labels::Text;
use karpenter_engine::resources::Resources;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::pod_timings::PodTimings;
use crate::pool_nodes::PoolNodes;

/// After so long without a change consolidation looks again all the same: prices and availability change unseen.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5 * 60);

#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) timings: PodTimings,
    pub(crate) pool_generations: BTreeMap<Text, i64>,
    /// Objects that exist but make no sense: seen, yet without a machine.
    pub(crate) unreadable_nodes: BTreeSet<Text>,
    pub(crate) unreadable_claims: BTreeSet<Text>,
    has_synced: bool,
    changes: u64,
    /// The state consolidation was last told of, and since when it holds.
    consolidation: Option<(ConsolidationState, Instant)>,
}

/// The cluster as consolidation sees it: as long as it is the same, there is nothing to look for that was not looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsolidationState(u64);

impl Cluster {
    /// Notes that the machine of this provider id will be deleted. False when there is none.
    pub fn mark_for_deletion(&mut self, provider_id: &str) -> bool {
        self.machines.mark(provider_id, true)
    }

    /// Takes [`Self::mark_for_deletion`] back.
    pub fn unmark_for_deletion(&mut self, provider_id: &str) -> bool {
        self.machines.mark(provider_id, false)
    }

    /// Notes that pods were promised the machine of this name for so long. A later promise extends an earlier one. False when
    /// there is no such machine.
    pub fn nominate(&mut self, name: &str, lasts: Duration) -> bool {
        self.machines.nominate(name, lasts)
    }

    /// Whether pods were promised the machine of this provider id.
    pub fn is_nominated(&self, provider_id: &str) -> bool {
        self.machines.is_nominated(provider_id)
    }

    /// How many virtual pods of capacity buffers the last pass put on each machine, by provider id.
    pub fn set_buffer_pods(&mut self, counts: BTreeMap<Text, u32>) {
        self.machines.set_buffer_pods(counts);
    }

    /// How many virtual pods of capacity buffers the last pass put on this machine.
    pub fn buffer_pods(&self, provider_id: &str) -> u32 {
        self.machines.buffer_pods(provider_id)
    }

    /// The machine of this provider id. Whether it is nominated [`Self::is_nominated`] says, or a snapshot.
    pub fn machine(&self, provider_id: &str) -> Option<&StateNode> {
        self.machines.get(provider_id)
    }

    /// The machine of this name: its Node's, or its NodeClaim's until it has registered.
    pub fn machine_named(&self, name: &str) -> Option<&StateNode> {
        self.machines.by_name(name)
    }

    /// How many machines there are; those that are still to be launched are none yet.
    pub fn machine_count(&self) -> usize {
        self.machines.launched_count()
    }

    /// What the machines of a NodePool have, those being deleted left out; `nodes` counts them. What is expected of a launch is
    /// among it: limits have to leave room for that.
    pub fn node_pool_usage(&self, pool: &str) -> Resources {
        self.machines.usage_of(pool)
    }

    /// As [`Self::node_pool_usage`], without what is still to be launched.
    pub fn launched_node_pool_usage(&self, pool: &str) -> Resources {
        self.machines.launched_usage_of(pool)
    }

    /// NodeClaims by NodePool and where they stand.
    pub fn pool_nodes(&self) -> &PoolNodes {
        &self.machines.pool_nodes
    }

    /// As [`Self::pool_nodes`], to reserve room or move a NodeClaim.
    pub fn pool_nodes_mut(&mut self) -> &mut PoolNodes {
        &mut self.machines.pool_nodes
    }

    /// What was thought about pods, and when.
    pub fn timings(&self) -> &PodTimings {
        &self.memory.timings
    }

    /// As [`Self::timings`], to add a thought.
    pub fn timings_mut(&mut self) -> &mut PodTimings {
        &mut self.memory.timings
    }

    /// Whether there is anything to find a place for: a pod that waits, a machine whose pods will have to move, room to keep.
    pub fn has_scheduling_work(&self) -> bool {
        self.pods.iter().any(|pod| is_provisionable(pod))
            || self.machines.iter().any(StateNode::deleting)
            || self.buffers.wants_pods()
    }

    /// Whether some NodeClaim has not been launched and what it will bring is unknown, so that decisions wait for it.
    pub fn has_unlaunched_claims(&self) -> bool {
        self.machines.has_unlaunched_claims()
    }

    /// Whether this NodeClaim is known and not launched.
    pub fn is_unlaunched(&self, claim: &str) -> bool {
        self.machines.is_unlaunched(claim)
    }

    /// Whether everything there is has been seen once.
    pub fn has_synced(&self) -> bool {
        self.memory.has_synced
    }

    /// Whether decisions can be made: of every NodeClaim it is known what its launch has come or will come to and, the first
    /// time, every NodeClaim and Node of the cluster is known here. From then on what the watches say is believed.
    pub fn synced<'a>(
        &mut self,
        claims: impl IntoIterator<Item = &'a str>,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> bool {
        if self.has_unlaunched_claims() {
            return false;
        }
        if !self.memory.has_synced {
            let knows_claim =
                |name: &str| self.machines.knows_claim(name) || self.memory.unreadable_claims.contains(name);
            let knows_node =
                |name: &str| self.machines.knows_node(name) || self.memory.unreadable_nodes.contains(name);
            self.memory.has_synced = claims.into_iter().all(knows_claim) && nodes.into_iter().all(knows_node);
        }
        self.memory.has_synced
    }

    /// Something changed that may make a node consolidatable.
    pub fn mark_unconsolidated(&mut self) {
        self.memory.changes += 1;
    }

    /// The cluster as consolidation sees it. It changes when something did, and after five minutes in any case.
    pub fn consolidation_state(&mut self) -> ConsolidationState {
        let state = |cluster: &Self| ConsolidationState(cluster.memory.changes + cluster.machines.changes);
        if let Some((told, since)) = self.memory.consolidation
            && told == state(self)
        {
            if since.elapsed() < LOOK_AGAIN_AFTER {
                return told;
            }
            self.mark_unconsolidated();
        }
        let state = state(self);
        self.memory.consolidation = Some((state, Instant::now()));
        state
    }
}
