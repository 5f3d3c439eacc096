//! Counters that several controllers add to: nodes and NodeClaims that came, went and were disrupted.

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, labels};
use karpenter_runtime::metrics::{CounterVec, Registry};

/// Why NodeClaims are disrupted when it is not for a reason of the NodePool's budgets.
pub(crate) mod reason {
    pub(crate) const EXPIRED: &str = "expired";
    pub(crate) const GARBAGE_COLLECTED: &str = "garbage_collected";
    pub(crate) const LAUNCH_TIMEOUT: &str = "launch_timeout";
    pub(crate) const REGISTRATION_TIMEOUT: &str = "registration_timeout";
    pub(crate) const UNHEALTHY: &str = "unhealthy";
}

const DISRUPTION_LABELS: &[&str] =
    &["reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode"];

/// The shared counters; made anew they are the same.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    claims_terminated: CounterVec,
    claims_disrupted: CounterVec,
    pods_disrupted: CounterVec,
    nodes_created: CounterVec,
    nodes_terminated: CounterVec,
}

impl Totals {
    /// In this registry.
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            claims_terminated: registry.counter(
                "karpenter_nodeclaims_terminated_total",
                "NodeClaims that have ended, by NodePool, capacity type and zone",
                &["nodepool", "capacity_type", "zone"],
            ),
            claims_disrupted: registry.counter(
                "karpenter_nodeclaims_disrupted_total",
                "NodeClaims disrupted, by reason, NodePool, capacity type, consolidation policy and termination mode",
                DISRUPTION_LABELS,
            ),
            pods_disrupted: registry.counter(
                "karpenter_pods_disruption_initiated_total",
                "Pods on disrupted nodes that need another place, by the same labels as their NodeClaims",
                DISRUPTION_LABELS,
            ),
            nodes_created: registry.counter(
                "karpenter_nodes_created_total",
                "Nodes registered, by NodePool and zone",
                &["nodepool", "zone"],
            ),
            nodes_terminated: registry.counter(
                "karpenter_nodes_terminated_total",
                "Nodes let go, by NodePool and zone",
                &["nodepool", "zone"],
            ),
        }
    }

    /// A NodeClaim has ended.
    pub(crate) fn claim_terminated(&self, claim: &NodeClaim) {
        self.claims_terminated.inc(&[
            label(claim, labels::NODEPOOL),
            label(claim, labels::CAPACITY_TYPE),
            label(claim, labels::TOPOLOGY_ZONE),
        ]);
    }

    /// A NodeClaim was disrupted. The policy is empty unless it was consolidated.
    pub(crate) fn claim_disrupted(&self, reason: &str, claim: &NodeClaim, consolidation_policy: &str) {
        self.claims_disrupted.inc(&disruption(reason, claim, consolidation_policy));
    }

    /// So many pods must move because a NodeClaim was disrupted.
    pub(crate) fn pods_disrupted(
        &self,
        reason: &str,
        claim: &NodeClaim,
        consolidation_policy: &str,
        pods: usize,
    ) {
        self.pods_disrupted.with(&disruption(reason, claim, consolidation_policy)).add(pods as f64);
    }

    /// A NodeClaim was disrupted because its Node is sick, and so many pods must move. The labels are the Node's, as in Go.
    pub(crate) fn repaired(&self, node: &Node, claim: &NodeClaim, pods: usize) {
        let (pool, capacity_type) = (label(node, labels::NODEPOOL), label(node, labels::CAPACITY_TYPE));
        let labels = [reason::UNHEALTHY, pool, capacity_type, "", termination_mode(claim)];
        self.claims_disrupted.inc(&labels);
        self.pods_disrupted.with(&labels).add(pods as f64);
    }

    /// A node has registered.
    pub(crate) fn node_created(&self, claim: &NodeClaim) {
        self.nodes_created.inc(&[label(claim, labels::NODEPOOL), label(claim, labels::TOPOLOGY_ZONE)]);
    }

    /// A node was let go.
    pub(crate) fn node_terminated(&self, node: &Node) {
        self.nodes_terminated.inc(&[label(node, labels::NODEPOOL), label(node, labels::TOPOLOGY_ZONE)]);
    }
}

fn disruption<'a>(reason: &'a str, claim: &'a NodeClaim, consolidation_policy: &'a str) -> [&'a str; 5] {
    let (pool, capacity_type) = (label(claim, labels::NODEPOOL), label(claim, labels::CAPACITY_TYPE));
    [reason, pool, capacity_type, consolidation_policy, termination_mode(claim)]
}

/// How a NodeClaim's drain ends (rule U3).
pub(crate) fn termination_mode(claim: &NodeClaim) -> &'static str {
    match claim.spec.termination_grace_period.as_ref().map(karpenter_api::Duration::as_nanos) {
        None => "graceful",
        Some(..=0) => "forceful",
        Some(_) => "eventual",
    }
}

/// A label of an object; empty if it has none of that name.
pub(crate) fn label<'a, K: kube::Resource>(object: &'a K, key: &str) -> &'a str {
    object.meta().labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str).unwrap_or_default()
}

/// `BadNode` as `bad_node`, as labels of metrics have it: a word starts at a capital that follows a small letter or digit, or is followed by a small letter.
pub(crate) fn snake_case(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len() + 4);
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| chars.get(at));
        let word_starts = before.is_some_and(|before| {
            let small_follows = chars.get(at + 1).is_some_and(char::is_ascii_lowercase);
            before.is_ascii_lowercase() || before.is_ascii_digit() || small_follows
        });
        if c.is_ascii_uppercase() && word_starts {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_types_are_labels_in_snake_case() {
        for (text, snake) in [
            ("BadNode", "bad_node"),
            ("Ready", "ready"),
            ("HTTPServerDown", "http_server_down"),
            ("Node2Bad", "node2_bad"),
            ("KWOKUnhealthy", "kwok_unhealthy"),
            ("WhenEmptyOrUnderutilized", "when_empty_or_underutilized"),
        ] {
            assert_eq!(snake_case(text), snake);
        }
    }
}
