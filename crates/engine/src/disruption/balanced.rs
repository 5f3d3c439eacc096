//! The Balanced policy: a pool is disturbed only if what it saves is worth it.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::nodepool::ConsolidationPolicy;

use super::candidate::{Candidate, Census};
use super::command::{Command, Score, source_price};
use super::cost;
use super::method::Class;
use crate::eligibility::is_terminal;
use crate::labels::{CAPACITY_TYPE, INSTANCE_TYPE, NODE_POOL, Text, ZONE};
use crate::node::NodeClaim;
use crate::roster::Roster;

/// What all of a pool costs, and what disturbing all of it would.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    cost: f64,
    disruption: f64,
}

/// Totals of the pools that weigh; empty when none does.
#[derive(Default)]
pub(crate) struct Scales {
    pools: BTreeMap<Text, Totals>,
}

impl Scales {
    pub(crate) fn new(
        census: &Census<'_>,
        roster: &Roster<'_>,
        own_cost: bool,
        known_costs: &BTreeMap<Text, f64>,
    ) -> Self {
        let balanced = |pool: &str| {
            let pool = census.offers.pool(pool);
            pool.is_some_and(|p| p.consolidation_policy == ConsolidationPolicy::Balanced)
        };
        let mut scales = Scales::default();
        if !census.snapshot.node_pools.iter().any(|p| balanced(&p.name)) {
            return scales;
        }
        let mut fallback: BTreeMap<Text, f64> = BTreeMap::new();
        let mut disruption: BTreeMap<&str, f64> = BTreeMap::new();
        for number in &census.in_order {
            let machine = &census.snapshot.nodes[*number];
            let Some(pool) = machine.labels().get(NODE_POOL).filter(|p| balanced(p)) else { continue };
            let of_pool = disruption.entry(pool.as_ref()).or_default();
            if let Ok(candidate) = census.candidate(*number, Class::Graceful) {
                *of_pool += candidate.reschedule_disruption_cost;
                *fallback.entry(pool.clone()).or_default() += candidate.price;
                continue;
            }
            // Nodes that are no candidates count with everything that runs on them but daemons.
            *of_pool += cost::BASE;
            if let Some(node) = &machine.node {
                let running = roster.on(&node.name).filter(|p| !is_terminal(p) && !p.owners.daemon_set);
                *of_pool += running.map(|p| cost::eviction(p, own_cost).max(0.0)).sum::<f64>();
            }
        }
        for (pool, of_candidates) in fallback {
            let known = known_costs.get(&pool).copied().unwrap_or_default();
            let of_claims = pool_cost(census, &pool).max(known);
            let totals = Totals {
                cost: if of_claims > 0.0 { of_claims } else { of_candidates },
                disruption: disruption.get(pool.as_ref()).copied().unwrap_or_default(),
            };
            scales.pools.insert(pool, totals);
        }
        scales
    }

    fn weighs(&self, census: &Census<'_>, pool: &str) -> bool {
        let pool = census.offers.pool(pool);
        pool.is_some_and(|p| p.consolidation_policy == ConsolidationPolicy::Balanced)
    }

    fn score(&self, pool: &str, savings: f64, disruption: f64) -> Score {
        let totals = self.pools.get(pool).copied().unwrap_or_default();
        if totals.cost <= 0.0 || totals.disruption <= 0.0 {
            return Score { savings_fraction: 0.0, disruption_fraction: 0.0 };
        }
        Score { savings_fraction: savings / totals.cost, disruption_fraction: disruption / totals.disruption }
    }

    /// The score of deleting the node without a replacement, if even that is not worth it.
    pub(crate) fn hopeless(&self, census: &Census<'_>, candidate: &Candidate) -> Option<Score> {
        if !self.weighs(census, &candidate.node_pool) {
            return None;
        }
        let totals = self.pools.get(&candidate.node_pool)?;
        if totals.cost <= 0.0 {
            return None;
        }
        let score = self.score(&candidate.node_pool, candidate.price, candidate.reschedule_disruption_cost);
        (!score.approved()).then_some(score)
    }

    /// How every Balanced pool among the candidates scores the command.
    pub(crate) fn scores(&self, census: &Census<'_>, command: &Command) -> Vec<(Text, Score)> {
        let mut by_pool: BTreeMap<&Text, Vec<Arc<Candidate>>> = BTreeMap::new();
        for candidate in &command.candidates {
            by_pool.entry(&candidate.node_pool).or_default().push(candidate.clone());
        }
        let total = source_price(&command.candidates);
        by_pool
            .iter()
            .filter(|(pool, _)| self.weighs(census, pool))
            .map(|(pool, candidates)| {
                // A command across pools is credited to each by its share of what goes.
                let savings = if total > 0.0 && by_pool.len() > 1 {
                    command.savings * (source_price(candidates) / total)
                } else {
                    command.savings
                };
                let disruption = candidates.iter().map(|c| c.reschedule_disruption_cost).sum();
                ((*pool).clone(), self.score(pool, savings, disruption))
            })
            .collect()
    }
}

/// What the pool's NodeClaims cost together today, as far as their labels say what they are and that is still offered.
fn pool_cost(census: &Census<'_>, pool: &str) -> f64 {
    let launched = census.snapshot.nodes.iter().filter_map(|m| m.claim.as_ref());
    let mut claims: Vec<&Arc<NodeClaim>> = launched
        .chain(&census.snapshot.unlaunched)
        .filter(|c| c.labels.get_or_empty(NODE_POOL) == pool)
        .collect();
    claims.sort_by(|a, b| a.name.cmp(&b.name));
    let known = |claim: &&Arc<NodeClaim>| {
        [INSTANCE_TYPE, CAPACITY_TYPE, ZONE].iter().all(|key| claim.labels.get(key).is_some())
    };
    claims
        .into_iter()
        .filter(known)
        .map(|claim| {
            let name = claim.labels.get_or_empty(INSTANCE_TYPE);
            cost::price(&claim.labels, census.offers.instance_type(pool, name))
        })
        .sum()
}
