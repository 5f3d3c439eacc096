//! What a simulation changes, kept as it was, so that the next simulation starts from the same cluster.

use crate::columns::Cell;
use crate::existing::ExistingNode;
use crate::topology::{Counts, Group, Hosts};

/// Everything as it was before it was first changed.
#[derive(Default)]
pub(crate) struct Journal {
    pub(crate) nodes: Vec<(usize, ExistingNode)>,
    pub(crate) inverse: Vec<(u32, Counts)>,
    /// Pods not counted while they move: where they were counted, and on which node.
    pub(crate) uncounted: Vec<(usize, u32)>,
    /// What was left of the pools' limits.
    pub(crate) limits: Vec<Vec<(u32, Cell)>>,
    /// Free slots of reservations.
    pub(crate) free: Vec<i64>,
    /// Which pods' constraints took part from the start.
    pub(crate) registered: Vec<bool>,
}

impl Journal {
    /// The node is about to change.
    pub(crate) fn before_node(&mut self, number: usize, node: &ExistingNode) {
        if !self.nodes.iter().any(|(n, _)| *n == number) {
            self.nodes.push((number, node.clone()));
        }
    }

    /// The inverse group is about to change.
    pub(crate) fn before_inverse(&mut self, number: u32, group: &mut Group) {
        if !self.inverse.iter().any(|(n, _)| *n == number) {
            self.inverse.push((number, group.counts.clone()));
            // Worked out anew from the counts when next asked for.
            group.hosts = Hosts::default();
        }
    }
}
