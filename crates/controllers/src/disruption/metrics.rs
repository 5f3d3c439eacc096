//! What disruption counts and measures.

use karpenter_engine::disruption::{BudgetStanding, Command, Method, Score};
use karpenter_runtime::metrics::{CounterVec, DURATION_BUCKETS, GaugeVec, HistogramVec, Registry};

/// The families of disruption; clones are the same.
#[derive(Clone)]
pub(super) struct Metrics {
    pub(super) evaluation_seconds: HistogramVec,
    decisions: CounterVec,
    decisions_by_pool: CounterVec,
    terminate_first: CounterVec,
    eligible_nodes: GaugeVec,
    timeouts: CounterVec,
    failed_validations: CounterVec,
    allowed_disruptions: GaugeVec,
    consuming_budgets: GaugeVec,
    queue_failures: CounterVec,
    score: HistogramVec,
    moves: CounterVec,
    pub(super) unhealthy_disrupted: CounterVec,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            registry.counter(&format!("karpenter_voluntary_disruption_{name}"), help, labels)
        };
        let metrics = Self {
            evaluation_seconds: registry.histogram(
                "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
                "How long it took to look for something to disrupt, by reason and consolidation type.",
                &["reason", "consolidation_type"],
                DURATION_BUCKETS,
            ),
            decisions: counter(
                "decisions_total",
                "Disruptions decided on, by decision, reason and consolidation type.",
                &["decision", "reason", "consolidation_type"],
            ),
            decisions_by_pool: counter(
                "decisions_by_nodepool_total",
                "The same by NodePool.",
                &["nodepool", "decision", "reason", "consolidation_type"],
            ),
            terminate_first: counter(
                "terminate_first_decisions_total",
                "Nodes terminated before their replacement could be launched, and why.",
                &["nodepool", "reason", "terminate_first_reason"],
            ),
            eligible_nodes: registry.gauge(
                "karpenter_voluntary_disruption_eligible_nodes",
                "Nodes that may be disrupted, by reason.",
                &["reason"],
            ),
            timeouts: counter(
                "consolidation_timeouts_total",
                "Times the search for a consolidation ran out of time.",
                &["consolidation_type"],
            ),
            failed_validations: counter(
                "failed_validations_total",
                "Nodes chosen for a consolidation that was not good any more after the wait.",
                &["consolidation_type"],
            ),
            allowed_disruptions: registry.gauge(
                "karpenter_nodepools_allowed_disruptions",
                "Nodes of a NodePool that may be disrupted at the same time, by reason.",
                &["nodepool", "reason"],
            ),
            consuming_budgets: registry.gauge(
                "karpenter_nodepools_nodes_consuming_budgets",
                "Nodes of a NodePool that use up its budgets, by reason.",
                &["nodepool", "reason"],
            ),
            queue_failures: counter(
                "queue_failures_total",
                "Replacements of disruptions that did not come up.",
                &["decision", "reason", "consolidation_type"],
            ),
            score: registry.histogram(
                "karpenter_consolidation_score",
                "Scores of consolidations in Balanced NodePools.",
                &["decision", "nodepool", "policy"],
                &[0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0],
            ),
            moves: registry.counter(
                "karpenter_consolidation_moves_total",
                "Consolidations approved and rejected, by NodePool and policy.",
                &["decision", "nodepool", "policy"],
            ),
            unhealthy_disrupted: registry.counter(
                "karpenter_nodeclaims_unhealthy_disrupted_total",
                "NodeClaims repaired, by the condition that was wrong.",
                &["condition", "nodepool", "capacity_type", "image_id", "termination_mode"],
            ),
        };
        for kind in ["multi", "single"] {
            metrics.timeouts.with(&[kind]);
        }
        metrics
    }

    /// How many nodes a method may choose from.
    pub(super) fn eligible(&self, method: Method, count: usize) {
        self.eligible_nodes.set(&[&reason(method)], count as f64);
    }

    /// Where a NodePool stands with its budgets.
    pub(super) fn budget(&self, pool: &str, method: Method, standing: &BudgetStanding) {
        self.allowed_disruptions.set(&[pool, &reason(method)], standing.allowed as f64);
        self.consuming_budgets.set(&[pool, &reason(method)], standing.disrupting as f64);
    }

    /// A search ran out of time.
    pub(super) fn timed_out(&self, method: Method) {
        self.timeouts.inc(&[method.consolidation_type()]);
    }

    /// So many nodes were not good any more.
    pub(super) fn invalid(&self, method: Method, count: usize) {
        if count == 0 {
            return;
        }
        self.failed_validations.with(&[method.consolidation_type()]).add(count as f64);
    }

    /// A command is being carried out.
    pub(super) fn started(&self, command: &Command) {
        let (decision, reason) = (command.decision().as_str(), reason(command.method));
        let kind = command.method.consolidation_type();
        for pool in pools(command) {
            self.decisions_by_pool.inc(&[pool, decision, &reason, kind]);
            if let Some(why) = command.terminate_first {
                self.terminate_first.inc(&[pool, &reason, why.as_str()]);
            }
        }
        self.decisions.inc(&[decision, &reason, kind]);
    }

    /// A command failed with this many replacements not up.
    pub(super) fn failed(&self, command: &Command, missing: usize) {
        let labels =
            [command.decision().as_str(), &reason(command.method), command.method.consolidation_type()];
        self.queue_failures.with(&labels).add(missing as f64);
    }

    /// A consolidation was weighed by a NodePool's policy; Balanced ones give it a score.
    pub(super) fn weighed(&self, pool: &str, policy: &str, score: Option<Score>) {
        let decision = verdict(score);
        self.moves.inc(&[decision, pool, policy]);
        if let Some(score) = score {
            self.score.observe(&[decision, pool, policy], score.value());
        }
    }

    /// A consolidation of several nodes was not worth it to one of its NodePools, and so to none.
    pub(super) fn rejected(&self, pool: &str, policy: &str, score: Option<Score>) {
        self.moves.inc(&["rejected", pool, policy]);
        if let Some(score) = score {
            self.score.observe(&[verdict(Some(score)), pool, policy], score.value());
        }
    }
}

/// What a NodePool thinks of a consolidation; those that do not weigh approve.
fn verdict(score: Option<Score>) -> &'static str {
    if score.is_none_or(Score::approved) { "approved" } else { "rejected" }
}

/// A method's reason as metrics write it.
pub(super) fn reason(method: Method) -> String {
    method.reason().as_str().to_lowercase()
}

/// The NodePools of a command's nodes, each once.
pub(super) fn pools(command: &Command) -> Vec<&str> {
    let mut pools: Vec<&str> = Vec::new();
    for candidate in &command.candidates {
        if !pools.contains(&&*candidate.node_pool) {
            pools.push(&candidate.node_pool);
        }
    }
    pools
}
