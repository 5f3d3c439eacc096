//! Machines: each Node with the NodeClaim it came from, paired by provider id.
//!
//! The two halves come and go on their own, in any order, and either may change its provider id (a Node gets one only when the
//! cloud controller has seen it). A machine exists while it has at least one half. Whatever happens to a machine happens in
//! [`Machines::change`], so that what is kept about all of them together (what a NodePool uses, whether consolidation should
//! look again) is always up to date and never recounted.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use karpenter_engine::StateNode;
use karpenter_engine::labels::{INITIALIZED, INSTANCE_TYPE, Labels, NODE_POOL, Text};
use karpenter_engine::node::{Node, NodeClaim};
use karpenter_engine::resources::Resources;
use tokio::time::Instant;

use crate::convert::CsiLimits;
use crate::pool_nodes::PoolNodes;

/// Stands for a provider id, with the NodeClaim's name, while the launch is under way.
const PENDING: &str = "pending:///";

/// Every machine by provider id, with what is only in memory.
#[derive(Default)]
pub(crate) struct Machines {
    by_provider: BTreeMap<Text, StateNode>,
    /// Provider id of each Node that has a machine.
    nodes: BTreeMap<Text, Text>,
    /// Nodes of ours that are no machine yet: without provider id, or without instance type before they are initialized.
    others: BTreeMap<Text, Node>,
    /// Provider id of each NodeClaim, empty while it is not launched.
    claims: BTreeMap<Text, Text>,
    /// NodeClaims that have not been launched, and of which nobody knows what they will bring.
    unlaunched: BTreeMap<Text, Arc<NodeClaim>>,
    /// What the launch of a NodeClaim will come to, until the claim itself says so.
    expected: BTreeMap<Text, Expected>,
    /// Until when a pass counts on the machine, by provider id.
    nominated_until: BTreeMap<Text, Instant>,
    csi: BTreeMap<Text, CsiLimits>,
    /// What the machines of each NodePool have, those going away left out.
    usage: BTreeMap<Text, Resources>,
    /// How many virtual pods of capacity buffers the last pass put on a machine, by provider id.
    buffer_pods: BTreeMap<Text, u32>,
    /// The NodeClaims of each NodePool, by where they stand.
    pub(crate) pool_nodes: PoolNodes,
    /// Counts what consolidation should look at again for.
    pub(crate) changes: u64,
}

/// What the launch of a NodeClaim will come to.
struct Expected {
    /// The claim as it was last told, without what is expected of it.
    told: NodeClaim,
    labels: Labels,
    capacity: Resources,
    allocatable: Resources,
}

impl Expected {
    /// Gives the claim what it does not say itself yet.
    fn complete(&self, claim: &mut NodeClaim) {
        let news = self.labels.iter().filter(|(key, _)| claim.labels.get(key).is_none());
        let labels = claim.labels.iter().chain(news).map(|(key, value)| (key.clone(), value.clone()));
        claim.labels = Labels::new(labels);
        claim.capacity = self.capacity.clone();
        claim.allocatable = self.allocatable.clone();
    }
}

/// What about a machine is kept account of.
#[derive(PartialEq)]
struct Account {
    node: bool,
    claim: bool,
    initialized: bool,
    deleting: bool,
    /// NodePool and capacity, while it counts.
    usage: Option<(Text, Resources)>,
}

impl Account {
    fn of(machine: &StateNode) -> Option<Self> {
        if machine.node.is_none() && machine.claim.is_none() {
            return None;
        }
        let deleting = machine.deleting();
        let pool = machine.labels().get(NODE_POOL).filter(|pool| !deleting && !pool.is_empty());
        Some(Self {
            node: machine.node.is_some(),
            claim: machine.claim.is_some(),
            initialized: machine.initialized(),
            deleting,
            usage: pool.map(|pool| (pool.clone(), machine.capacity())),
        })
    }

    /// Whether something may have become consolidatable.
    fn concerns_consolidation(before: Option<&Self>, after: Option<&Self>) -> bool {
        match (before, after) {
            (Some(before), Some(after)) => {
                (before.node && !after.node)
                    || (before.claim && !after.claim)
                    || before.initialized != after.initialized
                    || before.deleting != after.deleting
            }
            (None, None) => false,
            _ => true,
        }
    }
}

impl Machines {
    fn change(&mut self, id: &Text, change: impl FnOnce(&mut StateNode)) {
        let machine = self.by_provider.entry(id.clone()).or_default();
        let before = Account::of(machine);
        change(machine);
        let after = Account::of(machine);
        if after.is_none() {
            self.by_provider.remove(id);
            self.nominated_until.remove(id);
        }
        if Account::concerns_consolidation(before.as_ref(), after.as_ref()) {
            self.changes += 1;
        }
        let (before, after) = (before.and_then(|a| a.usage), after.and_then(|a| a.usage));
        if before != after {
            if let Some((pool, capacity)) = before
                && let Some(usage) = self.usage.get_mut(&pool)
            {
                *usage = usage.minus(&capacity);
                if usage.iter().all(|(_, amount)| amount.is_zero()) {
                    self.usage.remove(&pool);
                }
            }
            if let Some((pool, capacity)) = after {
                self.usage.entry(pool).or_default().add(&capacity);
            }
        }
    }

    /// Claims and Nodes of a cluster nobody has looked at before, in the same state as if applied one by one. The usual ones
    /// (launched, each with an id and a name of its own) are put in order once instead of finding each its place.
    pub(crate) fn find_all(&mut self, claims: Vec<Arc<NodeClaim>>, nodes: Vec<Arc<Node>>) {
        let (claims, odd_claims): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|c| !c.provider_id.is_empty());
        let (nodes, odd_nodes): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|n| !n.provider_id.is_empty() && !is_unfinished(n));
        let new = self.by_provider.is_empty() && self.claims.is_empty() && self.nodes.is_empty();
        let distinct = all_distinct(claims.iter().map(|c| &c.name))
            && all_distinct(claims.iter().map(|c| &c.provider_id))
            && all_distinct(nodes.iter().map(|n| &n.name))
            && all_distinct(nodes.iter().map(|n| &n.provider_id));
        if new && distinct {
            self.claims = claims.iter().map(|c| (c.name.clone(), c.provider_id.clone())).collect();
            self.nodes = nodes.iter().map(|n| (n.name.clone(), n.provider_id.clone())).collect();
            let machine = |claim: Arc<NodeClaim>| {
                let id = claim.provider_id.clone();
                (id, StateNode { claim: Some(claim), ..StateNode::default() })
            };
            self.by_provider = claims.into_iter().map(machine).collect();
            for mut node in nodes {
                if let Some(limits) = self.csi.get(&node.name) {
                    Arc::make_mut(&mut node).csi_limits = limits.clone();
                }
                self.others.remove(&node.name);
                let id = node.provider_id.clone();
                self.by_provider.entry(id).or_default().node = Some(node);
            }
            self.open_books();
        } else {
            claims.into_iter().for_each(|claim| self.apply_claim(Arc::unwrap_or_clone(claim)));
            nodes.into_iter().for_each(|node| self.apply_node(Arc::unwrap_or_clone(node)));
        }
        odd_claims.into_iter().for_each(|claim| self.apply_claim(Arc::unwrap_or_clone(claim)));
        odd_nodes.into_iter().for_each(|node| self.apply_node(Arc::unwrap_or_clone(node)));
    }

    /// Takes account of all machines there are.
    fn open_books(&mut self) {
        for account in self.by_provider.values().filter_map(Account::of) {
            self.changes += 1;
            if let Some((pool, capacity)) = account.usage {
                self.usage.entry(pool).or_default().add(&capacity);
            }
        }
        let claims = self.by_provider.values().filter_map(|machine| {
            let claim = machine.claim.as_ref()?;
            let pool = claim.labels.get(NODE_POOL).filter(|pool| !pool.is_empty())?;
            Some((pool, &claim.name, machine.deleting()))
        });
        self.pool_nodes.find_all(claims);
    }

    pub(crate) fn apply_node(&mut self, mut node: Node) {
        let managed = !node.labels.get_or_empty(NODE_POOL).is_empty();
        if node.provider_id.is_empty() {
            // One of ours gets its provider id soon; another's never may, so its name stands in.
            if managed {
                return self.set_aside(node);
            }
            node.provider_id = node.name.clone();
        }
        if is_unfinished(&node) {
            return self.set_aside(node);
        }
        self.others.remove(&node.name);
        if self.nodes.get(&node.name).is_some_and(|id| *id != node.provider_id) {
            self.delete_node(&node.name);
        }
        if let Some(limits) = self.csi.get(&node.name) {
            node.csi_limits = limits.clone();
        }
        let id = node.provider_id.clone();
        self.nodes.insert(node.name.clone(), id.clone());
        self.change(&id, |machine| machine.node = Some(Arc::new(node)));
    }

    /// A Node that is no machine yet. Pods on it still count for topology.
    fn set_aside(&mut self, node: Node) {
        self.delete_node(&node.name);
        self.others.insert(node.name.clone(), node);
    }

    pub(crate) fn delete_node(&mut self, name: &str) {
        self.others.remove(name);
        let Some(id) = self.nodes.remove(name) else { return };
        self.change(&id, |machine| {
            if machine.node.as_ref().is_some_and(|n| n.name.as_ref() == name) {
                machine.node = None;
            }
        });
    }

    /// Counts on what the launch of a NodeClaim will come to, until the claim says so itself, is gone, or nothing is expected
    /// any more. Of `claim` only that is taken: whoever expects something may hold an old copy, and a claim that ends must not
    /// come back to life by it.
    pub(crate) fn expect(&mut self, claim: NodeClaim) {
        // What pods cannot use is nothing to count on.
        if claim.allocatable.is_empty() {
            return self.expect_nothing(&claim.name, &claim.uid);
        }
        if !self.is_unlaunched(&claim.name) {
            return;
        }
        let waiting = self.unlaunched.get(&claim.name).map(|told| (**told).clone());
        let told = waiting.or_else(|| self.expected.get(&claim.name).map(|expected| expected.told.clone()));
        let Some(told) = told.filter(|told| told.uid == claim.uid) else { return };
        let NodeClaim { name, labels, capacity, allocatable, .. } = claim;
        self.expected.insert(name, Expected { told: told.clone(), labels, capacity, allocatable });
        self.apply_claim(told);
    }

    /// What the launch of this NodeClaim will come to is no longer known: decisions wait for it again.
    pub(crate) fn expect_nothing(&mut self, name: &str, uid: &str) {
        if !self.is_unlaunched(name) || self.expected.get(name).is_none_or(|known| *known.told.uid != *uid) {
            return;
        }
        if let Some(expected) = self.expected.remove(name) {
            self.apply_claim(expected.told);
        }
    }

    pub(crate) fn apply_claim(&mut self, mut claim: NodeClaim) {
        let launched = !claim.provider_id.is_empty();
        if self.expected.get(&claim.name).is_some_and(|expected| expected.told.uid != claim.uid)
            || (launched && !claim.capacity.is_empty())
        {
            self.expected.remove(&claim.name);
        }
        // A provider may know the machine's id before it knows what the machine has.
        if let Some(expected) = self.expected.get_mut(&claim.name) {
            expected.told = claim.clone();
            expected.complete(&mut claim);
            if !launched {
                claim.provider_id = format!("{PENDING}{}", claim.name).into();
            }
        }
        let (name, id) = (claim.name.clone(), claim.provider_id.clone());
        if self.claims.get(&name).is_some_and(|known| *known != id) {
            self.leave_machine(&name);
        }
        self.claims.insert(name.clone(), id.clone());
        let pool = claim.labels.get(NODE_POOL).cloned();
        let going = claim.deleting;
        // Without a provider id nothing has been launched: there is no machine to place pods on.
        if id.is_empty() {
            self.unlaunched.insert(name.clone(), Arc::new(claim));
        } else {
            self.change(&id, |machine| machine.claim = Some(Arc::new(claim)));
        }
        if let Some(pool) = pool.filter(|pool| !pool.is_empty()) {
            let deleting = going || self.by_provider.get(&id).is_some_and(StateNode::deleting);
            self.pool_nodes.see(&pool, &name, deleting);
        }
    }

    pub(crate) fn delete_claim(&mut self, name: &str) {
        self.expected.remove(name);
        self.pool_nodes.remove(name);
        self.leave_machine(name);
    }

    /// A NodeClaim stands for the machine of its old provider id no longer. Its NodePool has it all the same, with what is reserved
    /// for others that are being created.
    fn leave_machine(&mut self, name: &str) {
        self.unlaunched.remove(name);
        let Some(id) = self.claims.remove(name) else { return };
        if id.is_empty() {
            return;
        }
        self.change(&id, |machine| {
            if machine.claim.as_ref().is_some_and(|c| c.name.as_ref() == name) {
                machine.claim = None;
            }
        });
    }

    pub(crate) fn set_csi_limits(&mut self, node: Text, limits: Option<CsiLimits>) {
        let id = self.nodes.get(&node);
        if let Some(node) = id.and_then(|id| self.by_provider.get_mut(id)).and_then(|m| m.node.as_mut()) {
            Arc::make_mut(node).csi_limits = limits.clone().unwrap_or_default();
        }
        match limits {
            Some(limits) => drop(self.csi.insert(node, limits)),
            None => drop(self.csi.remove(&node)),
        }
    }

    /// The provider id of the machine of this name: its Node's, or its NodeClaim's until it has registered.
    fn id_of(&self, name: &str) -> Option<Text> {
        let ids = [self.nodes.get(name), self.claims.get(name)];
        let named = |id: &&Text| self.by_provider.get(*id).is_some_and(|m| m.name().as_ref() == name);
        ids.into_iter().flatten().find(named).cloned()
    }

    pub(crate) fn get(&self, provider_id: &str) -> Option<&StateNode> {
        self.by_provider.get(provider_id)
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&StateNode> {
        self.by_provider.get(&self.id_of(name)?)
    }

    /// Marks, or takes the mark away. The NodeClaim moves with it in its NodePool's books.
    pub(crate) fn mark(&mut self, provider_id: &str, marked: bool) -> bool {
        if !self.by_provider.contains_key(provider_id) {
            return false;
        }
        self.change(&provider_id.into(), |machine| machine.marked_for_deletion = marked);
        if let Some(claim) = self.by_provider.get(provider_id).and_then(|m| m.claim.clone())
            && let Some(pool) = claim.labels.get(NODE_POOL)
        {
            if marked {
                self.pool_nodes.update(pool, &claim.name, true);
            } else if !claim.deleting {
                self.pool_nodes.update(pool, &claim.name, false);
            }
        }
        true
    }

    pub(crate) fn nominate(&mut self, name: &str, lasts: Duration) -> bool {
        let Some(id) = self.id_of(name) else { return false };
        let until = Instant::now() + lasts;
        let slot = self.nominated_until.entry(id).or_insert(until);
        *slot = until.max(*slot);
        true
    }

    pub(crate) fn is_nominated(&self, provider_id: &str) -> bool {
        self.nominated_until.get(provider_id).is_some_and(|until| *until > Instant::now())
    }

    pub(crate) fn set_buffer_pods(&mut self, counts: BTreeMap<Text, u32>) {
        self.buffer_pods = counts;
    }

    pub(crate) fn buffer_pods(&self, provider_id: &str) -> u32 {
        self.buffer_pods.get(provider_id).copied().unwrap_or_default()
    }

    /// One that is going brings nothing, however long its end takes.
    pub(crate) fn has_unlaunched_claims(&self) -> bool {
        self.unlaunched.values().any(|claim| !claim.deleting)
    }

    pub(crate) fn unlaunched(&self) -> Vec<Arc<NodeClaim>> {
        self.unlaunched.values().cloned().collect()
    }

    pub(crate) fn knows_claim(&self, name: &str) -> bool {
        self.claims.contains_key(name)
    }

    pub(crate) fn is_unlaunched(&self, claim: &str) -> bool {
        self.claims.get(claim).is_some_and(|id| id.is_empty() || id.starts_with(PENDING))
    }

    /// Whether this Node was seen, be it a machine or not yet. One of ours that never gets a provider id may stay for good:
    /// its NodeClaim, where there still is one, stands for the machine.
    pub(crate) fn knows_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name) || self.others.contains_key(name)
    }

    pub(crate) fn usage_of(&self, pool: &str) -> Resources {
        self.usage.get(pool).cloned().unwrap_or_default()
    }

    /// The same, without those that are still to be launched.
    pub(crate) fn launched_usage_of(&self, pool: &str) -> Resources {
        let expected = self.pending().filter_map(Account::of).filter_map(|account| account.usage);
        let expected = expected.filter(|(of, _)| **of == *pool);
        expected.fold(self.usage_of(pool), |usage, (_, capacity)| usage.minus(&capacity))
    }

    /// Machines that are counted on and still to be launched.
    fn pending(&self) -> impl Iterator<Item = &StateNode> {
        let from = self.by_provider.range::<str, _>((Bound::Included(PENDING), Bound::Unbounded));
        from.take_while(|(id, _)| id.starts_with(PENDING)).map(|(_, machine)| machine)
    }

    pub(crate) fn launched_count(&self) -> usize {
        self.by_provider.len() - self.pending().count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StateNode> {
        self.by_provider.values()
    }

    pub(crate) fn others(&self) -> Vec<Node> {
        self.others.values().cloned().collect()
    }

    pub(crate) fn snapshot(&self) -> Vec<StateNode> {
        self.by_provider
            .iter()
            .map(|(id, machine)| StateNode { nominated: self.is_nominated(id), ..machine.clone() })
            .collect()
    }
}

/// Whether it is one of ours that does not say its instance type yet.
fn is_unfinished(node: &Node) -> bool {
    let lacks = |label| node.labels.get_or_empty(label).is_empty();
    !lacks(NODE_POOL) && lacks(INITIALIZED) && lacks(INSTANCE_TYPE)
}

fn all_distinct<'a>(names: impl Iterator<Item = &'a Text>) -> bool {
    let mut sorted: Vec<&Text> = names.collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}
