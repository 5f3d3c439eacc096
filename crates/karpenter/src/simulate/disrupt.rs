//! Disruption: every method's outcome on one unchanged cluster, as JSON in the form Go Karpenter's decisions are recorded in.
//!
//! Nothing is carried out between the methods, so each shows what it would do if it came first. Commands that wait before they are
//! carried out are validated at once, against the same cluster.

use karpenter_engine::Snapshot;
use karpenter_engine::disruption::{
    Candidate, Command, DisruptionOptions, Memory, Method, Outcome, Pass, Verdict, Why, explain,
};
use serde_json::{Map, Value, json};

use super::outcome::{claim, pod_keys};
use super::rejected::Rejected;
use super::timing::Timings;

/// Asks every method, in order.
pub(crate) fn decide(
    snapshot: impl FnOnce() -> Snapshot,
    options: &DisruptionOptions,
    mut timings: Option<&mut Timings>,
) -> Vec<Outcome> {
    let memory = Memory::default();
    let start = timings.as_ref().map(|t| t.set_out());
    let snapshot = snapshot();
    let mut pass = Pass::new(&snapshot, options, &memory);
    // Whatever comes before the first method is part of it.
    let mut start = start;
    options
        .methods()
        .map(|method| {
            let outcome = validated(&mut pass, method);
            if let Some((timings, since)) = timings.as_deref_mut().zip(start.take()) {
                start = Some(timings.method(method.as_str(), &since));
            }
            outcome
        })
        .collect()
}

/// The method's outcome with only those commands that stand up to validation.
fn validated(pass: &mut Pass<'_>, method: Method) -> Outcome {
    let mut outcome = pass.run(method);
    outcome.commands =
        outcome.commands.iter().filter_map(|c| pass.validate(c).ok()).map(|valid| valid.command).collect();
    outcome
}

/// What `-o json` prints.
pub(crate) fn to_json(outcomes: &[Outcome]) -> Value {
    let first = outcomes.iter().find(|o| !o.commands.is_empty()).map_or("", |o| o.method.as_str());
    json!({"first": first, "methods": outcomes.iter().map(method).collect::<Vec<_>>()})
}

fn method(outcome: &Outcome) -> Value {
    let mut commands: Vec<(String, Value)> = outcome.commands.iter().map(command).collect();
    commands.sort_by(|a, b| a.0.cmp(&b.0));
    let mut out = Map::new();
    out.insert("name".into(), outcome.method.as_str().into());
    out.insert("reason".into(), outcome.method.reason().as_str().into());
    out.insert("candidates".into(), outcome.candidates.iter().map(|c| candidate(c)).collect());
    if !outcome.budgets.is_empty() {
        let left = outcome.budgets.iter().map(|(pool, s)| (pool.to_string(), s.remaining().into()));
        out.insert("budgets".into(), left.collect::<Map<_, _>>().into());
    }
    out.insert("commands".into(), commands.into_iter().map(|(_, c)| c).collect());
    if let Some(error) = &outcome.error {
        out.insert("error".into(), error.to_string().into());
    }
    out.into()
}

fn candidate(candidate: &Candidate) -> Value {
    json!({
        "node": candidate.node.as_ref(),
        "nodePool": candidate.node_pool.as_ref(),
        "price": candidate.price,
        "disruptionCost": rounded(candidate.disruption_cost),
        "rescheduleDisruptionCost": rounded(candidate.reschedule_disruption_cost),
    })
}

/// To a billionth, since the sum of costs depends on the order of adding in the last bits.
fn rounded(cost: f64) -> f64 {
    (cost * 1e9).round() / 1e9
}

/// The command, and the key it is sorted by.
fn command(command: &Command) -> (String, Value) {
    let mut nodes: Vec<&str> = command.candidates.iter().map(|c| c.node.as_ref()).collect();
    nodes.sort_unstable();
    let mut replacements: Vec<(String, Value)> = command
        .replacements
        .iter()
        .map(|r| {
            let pods = pod_keys(&r.pods);
            (pods.join(","), claim(r, pods))
        })
        .collect();
    replacements.sort_by(|a, b| a.0.cmp(&b.0));
    let existing: Map<String, Value> = command
        .existing_nodes
        .iter()
        .filter(|n| !n.pods.is_empty())
        .map(|n| (n.node.to_string(), json!(pod_keys(&n.pods))))
        .collect();
    let mut out = Map::new();
    out.insert("decision".into(), command.decision().as_str().into());
    out.insert("candidates".into(), json!(nodes));
    out.insert("replacements".into(), replacements.into_iter().map(|(_, r)| r).collect());
    if !existing.is_empty() {
        out.insert("existingNodes".into(), existing.into());
    }
    (nodes.join(","), out.into())
}

/// The value of the extra key `reasons`: per node what becomes of it, and per method why it stays.
pub(crate) fn reasons(outcomes: &[Outcome], rejected: &[Rejected]) -> Value {
    let mut nodes: Map<String, Value> = explain(outcomes)
        .into_iter()
        .map(|(node, verdict)| {
            let verdict = match verdict {
                Verdict::Goes { method, decision, together_with } => {
                    json!({"method": method.as_str(), "decision": decision.as_str(), "nodes": together_with})
                }
                Verdict::Stays { method, why } => why_json(&why, method),
            };
            (node.to_string(), json!({"verdict": verdict, "methods": {}}))
        })
        .collect();
    for outcome in outcomes {
        for stays in &outcome.stays {
            if let Some(node) = nodes.get_mut(stays.node.as_ref()) {
                node["methods"][outcome.method.as_str()] = why_json(&stays.why, outcome.method);
            }
        }
    }
    json!({
        "nodes": nodes,
        "rejected": rejected
            .iter()
            .map(|r| json!({"file": r.origin, "object": r.object, "field": r.field, "problem": r.problem}))
            .collect::<Vec<_>>(),
    })
}

fn why_json(why: &Why, method: Method) -> Value {
    let mut out = json!({"rule": why.rule(), "text": why.to_string()});
    if let Some((kind, text)) = why.event(method) {
        out["event"] = json!({"reason": kind.as_str(), "message": text});
    }
    out
}
