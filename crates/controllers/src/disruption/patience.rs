//! Patience: a consolidation that got better while it waited for validation is decided again.
//!
//! While a workload shrinks, each look at the cluster shows nodes that can go with fewer pods moved. Upstream's search takes long
//! enough for that to be over; ours is done at once, and would evict pods that are about to be deleted anyway.

use karpenter_engine::disruption::Command;

/// How often in a row a decision may be put off: one and a half minutes in all.
const ROUNDS: u32 = 6;

/// How often a decision has been put off.
#[derive(Default)]
pub(super) struct Patience(u32);

impl Patience {
    /// Whether to put off what was `decided` before the wait, given what would be decided now.
    pub(super) fn puts_off(&mut self, decided: &Command, now: Option<&Command>) -> bool {
        let better = now.is_some_and(|now| is_clearly_less(pods_per_node(now), pods_per_node(decided)));
        self.count(better)
    }

    fn count(&mut self, better: bool) -> bool {
        self.0 = if better && self.0 < ROUNDS { self.0 + 1 } else { 0 };
        self.0 > 0
    }
}

/// Pods that must move, and nodes that go.
fn pods_per_node(command: &Command) -> (usize, usize) {
    let pods = command.candidates.iter().map(|candidate| candidate.pods.len()).sum();
    (pods, command.candidates.len().max(1))
}

/// By more than a tenth: what comes and goes in a steady cluster is no reason to wait.
fn is_clearly_less((pods, nodes): (usize, usize), (pods_before, nodes_before): (usize, usize)) -> bool {
    pods * nodes_before * 10 < pods_before * nodes * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_pods_for_each_node_is_better_and_a_tenth_is_not_enough() {
        assert!(is_clearly_less((24, 8), (40, 4)), "more nodes, fewer pods each");
        assert!(!is_clearly_less((80, 8), (40, 4)), "more of the same can follow");
        assert!(!is_clearly_less((37, 4), (40, 4)));
        assert!(!is_clearly_less((0, 4), (0, 2)));
    }

    #[test]
    fn patience_ends_and_begins_anew() {
        let mut patience = Patience::default();
        assert!((0..ROUNDS).all(|_| patience.count(true)));
        assert!(!patience.count(true), "enough");
        assert!(patience.count(true), "the next decision");
        assert!(!patience.count(false));
    }
}
