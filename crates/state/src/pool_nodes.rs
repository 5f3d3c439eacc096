//! How many NodeClaims each NodePool has, by where they stand: what static NodePools are kept at their size with.
//!
//! Whoever is about to create NodeClaims reserves room for them first, so that two who look at the same time do not both
//! fill it.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_engine::labels::Text;

/// NodeClaims by NodePool.
#[derive(Default)]
pub struct PoolNodes {
    pools: BTreeMap<Text, Pool>,
    pool_of: BTreeMap<Text, Text>,
}

#[derive(Default)]
struct Pool {
    active: BTreeSet<Text>,
    deleting: BTreeSet<Text>,
    pending_disruption: BTreeSet<Text>,
    reserved: i64,
}

/// How many NodeClaims a NodePool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// In use.
    pub active: i64,
    /// Going away.
    pub deleting: i64,
    /// To be replaced: still in use, a replacement is on its way.
    pub pending_disruption: i64,
}

impl PoolNodes {
    /// A watch told of a NodeClaim. One that is to be replaced stays so unless it goes away: the watch tells of the very mark
    /// it got for that, and may do so when its replacement is there already.
    pub(crate) fn see(&mut self, pool: &Text, claim: &Text, deleting: bool) {
        let waits = |pool: &Pool| pool.pending_disruption.contains(claim);
        if deleting || !self.pools.get(pool).is_some_and(waits) {
            self.update(pool, claim, deleting);
        }
    }

    /// A NodeClaim was marked: it is in use, or going away. One that was to be replaced counts as in use again.
    pub(crate) fn update(&mut self, pool: &Text, claim: &Text, deleting: bool) {
        self.pool_of.insert(claim.clone(), pool.clone());
        let pool = self.pools.entry(pool.clone()).or_default();
        pool.pending_disruption.remove(claim);
        let (to, from) = if deleting {
            (&mut pool.deleting, &mut pool.active)
        } else {
            (&mut pool.active, &mut pool.deleting)
        };
        from.remove(claim);
        to.insert(claim.clone());
    }

    /// NodeClaims, each with its NodePool and whether it is going away, where there were none before.
    pub(crate) fn find_all<'a>(&mut self, claims: impl Iterator<Item = (&'a Text, &'a Text, bool)> + Clone) {
        self.pool_of = claims.clone().map(|(pool, claim, _)| (claim.clone(), pool.clone())).collect();
        let mut by_pool: BTreeMap<&Text, [Vec<Text>; 2]> = BTreeMap::new();
        for (pool, claim, deleting) in claims {
            by_pool.entry(pool).or_default()[usize::from(deleting)].push(claim.clone());
        }
        for (pool, [active, deleting]) in by_pool {
            let entry = self.pools.entry(pool.clone()).or_default();
            entry.active = active.into_iter().collect();
            entry.deleting = deleting.into_iter().collect();
        }
    }

    /// A NodeClaim is gone. With the last one that counts the NodePool's reservations go too.
    pub(crate) fn remove(&mut self, claim: &str) {
        let Some(name) = self.pool_of.remove(claim) else { return };
        let Some(pool) = self.pools.get_mut(&name) else { return };
        pool.active.remove(claim);
        pool.deleting.remove(claim);
        pool.pending_disruption.remove(claim);
        if pool.active.is_empty() && pool.deleting.is_empty() && pool.pending_disruption.is_empty() {
            self.pools.remove(&name);
        }
    }

    /// A NodeClaim is to be replaced. One that is gone meanwhile is not: nobody would ever take it off the books again.
    pub fn mark_pending_disruption(&mut self, pool: &str, claim: &str) {
        if !self.pool_of.contains_key(claim) {
            return;
        }
        let entry = self.pools.entry(pool.into()).or_default();
        entry.active.remove(claim);
        entry.deleting.remove(claim);
        entry.pending_disruption.insert(claim.into());
        self.pool_of.insert(claim.into(), pool.into());
    }

    /// A NodeClaim is not to be replaced after all, if it was.
    pub fn keep(&mut self, pool: &str, claim: &str) {
        if let Some(pool) = self.pools.get_mut(pool)
            && let Some(claim) = pool.pending_disruption.take(claim)
        {
            pool.active.insert(claim);
        }
    }

    /// A NodeClaim was deleted, which no watch has told yet. One that is gone meanwhile is not brought back.
    pub fn mark_deleting(&mut self, claim: &str) {
        let known = self.pool_of.get_key_value(claim);
        if let Some((claim, pool)) = known.map(|(claim, pool)| (claim.clone(), pool.clone())) {
            self.update(&pool, &claim, true);
        }
    }

    /// How many the NodePool has.
    pub fn counts(&self, pool: &str) -> PoolCounts {
        let count = |set: &BTreeSet<Text>| i64::try_from(set.len()).unwrap_or(i64::MAX);
        self.pools.get(pool).map_or_else(PoolCounts::default, |pool| PoolCounts {
            active: count(&pool.active),
            deleting: count(&pool.deleting),
            pending_disruption: count(&pool.pending_disruption),
        })
    }

    /// Reserves room for `wanted` further NodeClaims under `limit`; how many of them there is room for.
    pub fn reserve(&mut self, pool: &str, limit: i64, wanted: i64) -> i64 {
        let PoolCounts { active, deleting, pending_disruption } = self.counts(pool);
        let entry = self.pools.entry(pool.into()).or_default();
        let left =
            limit.saturating_sub(active + deleting + pending_disruption).saturating_sub(entry.reserved);
        let granted = wanted.min(left).max(0);
        entry.reserved += granted;
        granted
    }

    /// NodeClaims that are to be replaced, of all NodePools.
    pub fn pending_disruption(&self) -> BTreeSet<Text> {
        self.pools.values().flat_map(|pool| &pool.pending_disruption).cloned().collect()
    }

    /// What is reserved in each NodePool that has something reserved.
    pub fn reserved(&self) -> BTreeMap<Text, i64> {
        let reserved = self.pools.iter().filter(|(_, pool)| pool.reserved > 0);
        reserved.map(|(name, pool)| (name.clone(), pool.reserved)).collect()
    }

    /// Gives back what was reserved: the NodeClaims exist now, or could not be created.
    pub fn release(&mut self, pool: &str, count: i64) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.reserved = (pool.reserved - count).max(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_reserved_once_and_given_back() {
        let mut pools = PoolNodes::default();
        assert_eq!(pools.reserve("p", 3, 2), 2);
        assert_eq!(pools.reserve("p", 3, 2), 1, "two of three are spoken for");
        assert_eq!(pools.reserve("p", 3, 2), 0);
        pools.release("p", 2);
        assert_eq!(pools.reserve("p", 3, 5), 2);
        pools.release("p", 100);
        assert_eq!(pools.reserve("p", 3, 5), 3, "more cannot be given back than was taken");
        assert_eq!(pools.reserve("q", i64::MAX, 7), 7, "without a limit everything is granted");
    }

    #[test]
    fn going_away_and_waiting_to_be_replaced_count_against_the_limit() {
        let mut pools = PoolNodes::default();
        let (pool, [a, b, c]) = ("p".into(), ["a".into(), "b".into(), "c".into()]);
        for claim in [&a, &b, &c] {
            pools.see(&pool, claim, false);
        }
        pools.mark_deleting("b");
        pools.mark_pending_disruption("p", "c");
        assert_eq!(pools.counts("p"), PoolCounts { active: 1, deleting: 1, pending_disruption: 1 });
        assert_eq!(pools.reserve("p", 4, 9), 1);
        assert_eq!(pools.pending_disruption(), BTreeSet::from(["c".into()]));
        assert_eq!(pools.reserved(), BTreeMap::from([("p".into(), 1)]));
        pools.update(&pool, &c, false);
        assert_eq!(pools.counts("p"), PoolCounts { active: 2, deleting: 1, pending_disruption: 0 });
    }

    #[test]
    fn what_is_to_be_replaced_stays_so_when_a_watch_tells_of_it_and_until_it_goes_or_is_kept() {
        let mut pools = PoolNodes::default();
        let (pool, [a, b]) = ("p".into(), ["a".into(), "b".into()]);
        for claim in [&a, &b] {
            pools.see(&pool, claim, false);
            pools.mark_pending_disruption("p", claim);
            pools.see(&pool, claim, false);
        }
        assert_eq!(pools.counts("p"), PoolCounts { active: 0, deleting: 0, pending_disruption: 2 });
        pools.see(&pool, &a, true);
        pools.keep("p", "b");
        pools.keep("p", "a");
        pools.keep("q", "a");
        assert_eq!(pools.counts("p"), PoolCounts { active: 1, deleting: 1, pending_disruption: 0 });
    }

    #[test]
    fn with_the_last_claim_the_books_are_closed() {
        let mut pools = PoolNodes::default();
        pools.see(&"p".into(), &"a".into(), false);
        assert_eq!(pools.reserve("p", 10, 4), 4);
        pools.remove("a");
        pools.remove("never seen");
        assert_eq!(pools.counts("p"), PoolCounts::default());
        assert_eq!(pools.reserve("p", 10, 10), 10);
    }

    #[test]
    fn a_claim_that_is_gone_is_not_brought_back_by_who_deleted_or_wants_to_replace_it() {
        let mut pools = PoolNodes::default();
        pools.see(&"p".into(), &"a".into(), false);
        pools.remove("a");
        pools.mark_deleting("a");
        pools.mark_pending_disruption("p", "a");
        assert_eq!(pools.counts("p"), PoolCounts::default());
        assert_eq!(pools.reserve("p", 1, 1), 1, "it takes up no room under the limit");
    }
}
