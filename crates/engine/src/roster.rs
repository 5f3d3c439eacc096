//! Every pod in (namespace, name) order, and which node it is on. Built in one pass, since a large cluster is mostly pods.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::eligibility::is_provisionable;
use crate::hashing::FixedState;
use crate::labels::Text;
use crate::pod::Pod;
use crate::snapshot::Snapshot;

/// The cluster's pods.
pub(crate) struct Roster<'s> {
    /// In (namespace, name) order.
    pub(crate) listed: Vec<&'s Arc<Pod>>,
    /// Those kube-scheduler gave up on, in the same order.
    pub(crate) waiting: Vec<&'s Arc<Pod>>,
    /// Whether some placed pod keeps others away.
    pub(crate) keeps_away: bool,
    /// Whether some placed pod cares where others are.
    pub(crate) constrained: bool,
    nodes: HashMap<Text, u32, FixedState>,
    /// First entry of each node in `placed`, and one past the last.
    starts: Vec<u32>,
    /// Indices into `listed`, node by node, in order within each.
    placed: Vec<u32>,
}

impl<'s> Roster<'s> {
    pub(crate) fn new(snapshot: &'s Snapshot) -> Self {
        let pods = &snapshot.pods;
        let mut listed: Vec<&Arc<Pod>> = pods.iter().collect();
        let in_order = |a: &&Arc<Pod>, b: &&Arc<Pod>| {
            let same_namespace = Arc::ptr_eq(&a.namespace, &b.namespace);
            if same_namespace { a.name <= b.name } else { (&a.namespace, &a.name) <= (&b.namespace, &b.name) }
        };
        if !listed.is_sorted_by(in_order) {
            listed.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        let mut roster = Roster {
            waiting: Vec::new(),
            keeps_away: false,
            constrained: false,
            nodes: HashMap::with_capacity_and_hasher(snapshot.nodes.len(), FixedState::default()),
            starts: Vec::new(),
            placed: Vec::new(),
            listed,
        };
        roster.place();
        roster
    }

    fn place(&mut self) {
        // Pods of a node mostly share the string that names it, so its address is looked up before its text.
        let mut by_address: HashMap<usize, u32, FixedState> =
            HashMap::with_capacity_and_hasher(self.nodes.capacity(), FixedState::default());
        let mut node_of: Vec<u32> = Vec::with_capacity(self.listed.len());
        let mut counts: Vec<u32> = Vec::new();
        for pod in &self.listed {
            let Some(name) = &pod.node_name else {
                node_of.push(u32::MAX);
                if is_provisionable(pod) {
                    self.waiting.push(pod);
                }
                continue;
            };
            let number = *by_address.entry(name.as_ptr() as usize).or_insert_with(|| {
                let next = self.nodes.len() as u32;
                *self.nodes.entry(name.clone()).or_insert(next)
            });
            if number as usize >= counts.len() {
                counts.push(0);
            }
            counts[number as usize] += 1;
            self.keeps_away |= !pod.spec.pod_anti_affinity.required.is_empty();
            self.constrained |= pod.spec.looks_at_pods();
            node_of.push(number);
        }
        self.starts = vec![0; counts.len() + 1];
        for (number, count) in counts.iter().enumerate() {
            self.starts[number + 1] = self.starts[number] + count;
        }
        let mut next = self.starts.clone();
        self.placed = vec![0; *self.starts.last().unwrap_or(&0) as usize];
        for (pod, number) in node_of.into_iter().enumerate().filter(|(_, n)| *n != u32::MAX) {
            let slot = &mut next[number as usize];
            self.placed[*slot as usize] = pod as u32;
            *slot += 1;
        }
    }

    /// Pods on the node called `name`, in order.
    pub(crate) fn on(&self, name: &str) -> impl Iterator<Item = &'s Arc<Pod>> + '_ {
        let range = self.nodes.get(name).map_or(0..0, |number| {
            let number = *number as usize;
            self.starts[number] as usize..self.starts[number + 1] as usize
        });
        self.placed[range].iter().map(|pod| self.listed[*pod as usize])
    }
}
