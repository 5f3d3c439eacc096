//! How many nodes of each pool may be disrupted now, and for what reason.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::nodepool::{BudgetError, DisruptionReason, UNBOUNDED, allowed_disruptions};

use crate::labels::{NODE_POOL, Text};
use crate::node_pool::NodePool;
use crate::snapshot::Snapshot;

/// Where a pool stands with its budgets for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetStanding {
    /// Nodes that count: up, or rebooting.
    pub nodes: i64,
    /// Of these, how many are being disrupted or are not ready.
    pub disrupting: i64,
    /// How many may be disrupted at the same time.
    pub allowed: i64,
    /// Budgets that cannot be understood; they allow nothing.
    pub errors: Vec<BudgetError>,
}

impl BudgetStanding {
    /// How many more may be disrupted.
    pub fn remaining(&self) -> i64 {
        (self.allowed - self.disrupting).max(0)
    }

    /// Whether no budget limits the pool at the moment.
    pub fn unbounded(&self) -> bool {
        self.allowed >= UNBOUNDED
    }

    /// Whether upstream tells the pool so in an event: there are nodes, and none of them may be disrupted.
    pub fn blocks_all(&self) -> bool {
        self.nodes != 0 && self.allowed <= 0
    }
}

/// Where every pool stands. `leaving` are nodes, by provider id, that somebody else takes away or that may be disrupted although nothing
/// says so yet.
pub(crate) fn standings(
    snapshot: &Snapshot,
    leaving: &BTreeSet<Text>,
    reason: DisruptionReason,
) -> BTreeMap<Text, BudgetStanding> {
    let mut counts: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for machine in &snapshot.nodes {
        let Some(claim) = &machine.claim else { continue };
        let rebooting = claim.conditions.rebooting;
        let taken = leaving.contains(machine.provider_id());
        if (!machine.initialized() && !rebooting && !taken) || claim.conditions.instance_terminating {
            continue;
        }
        let (nodes, disrupting) = counts.entry(machine.labels().get_or_empty(NODE_POOL)).or_default();
        *nodes += 1;
        let unready = !machine.node.as_ref().is_some_and(|n| n.ready);
        // Being unready is what repair is for, so it does not use up repair's own budget.
        if machine.deleting() || taken || rebooting || (unready && reason != DisruptionReason::Unhealthy) {
            *disrupting += 1;
        }
    }
    let standing = |pool: &NodePool| {
        let (nodes, disrupting) = counts.get(pool.name.as_ref()).copied().unwrap_or_default();
        let (allowed, errors) = match allowed_disruptions(&pool.budgets, snapshot.now, nodes, reason) {
            Ok(allowed) => (allowed, Vec::new()),
            Err(errors) => (0, errors),
        };
        BudgetStanding { nodes, disrupting, allowed, errors }
    };
    snapshot.node_pools.iter().map(|pool| (pool.name.clone(), standing(pool))).collect()
}

/// Budgets being used up by one method.
pub(crate) struct Purse(BTreeMap<Text, i64>);

impl Purse {
    pub(crate) fn new(standings: &BTreeMap<Text, BudgetStanding>) -> Self {
        Purse(standings.iter().map(|(pool, s)| (pool.clone(), s.remaining())).collect())
    }

    pub(crate) fn left(&self, pool: &str) -> i64 {
        self.0.get(pool).copied().unwrap_or(0)
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&mut self, pool: &str) -> bool {
        match self.0.get_mut(pool) {
            Some(left) if *left != 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}
