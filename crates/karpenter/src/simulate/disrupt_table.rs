//! Disruption for people: what would be taken away, what it saves, and why every other node stays.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use karpenter_engine::disruption::{Command, Outcome, Verdict, explain};

use super::table::{Notes, columns, left_out_of_input, names, plural, price, row};

/// Hours in an average month, for turning an hourly price into something to compare bills with.
const HOURS_PER_MONTH: f64 = 730.0;

pub(crate) fn render(outcomes: &[Outcome], notes: &Notes<'_>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut out, outcomes, notes);
    out
}

fn write_all(out: &mut String, outcomes: &[Outcome], notes: &Notes<'_>) -> fmt::Result {
    writeln!(out, "At {}:", notes.now)?;
    match outcomes.iter().find(|o| !o.commands.is_empty()) {
        None => writeln!(out, "  no node would be disrupted.")?,
        Some(first) => {
            let nodes: usize = first.commands.iter().map(|c| c.candidates.len()).sum();
            let saved = first.commands.iter().fold(0.0, |sum, c| sum + c.savings);
            write!(
                out,
                "  {} would be disrupted first, as {}",
                plural(nodes, "node", "nodes"),
                first.method.reason().as_str().to_lowercase()
            )?;
            if saved > 0.0 {
                write!(
                    out,
                    ", which saves {} per hour (about {:.2} per month)",
                    price(saved),
                    saved * HOURS_PER_MONTH
                )?;
            }
            writeln!(out, ".")?;
        }
    }
    for outcome in outcomes {
        method(out, outcome)?;
    }
    staying(out, outcomes)?;
    left_out_of_input(out, notes)
}

fn method(out: &mut String, outcome: &Outcome) -> fmt::Result {
    if let Some(error) = &outcome.error {
        writeln!(out, "\n{}: nothing could be simulated: {error}", outcome.method.as_str())?;
    }
    if outcome.commands.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", outcome.method.as_str())?;
    let mut rows = vec![row(["DECISION", "NODES", "REPLACED BY", "SAVES PER HOUR", "PODS MOVE TO"])];
    for command in &outcome.commands {
        let nodes: Vec<String> = command.candidates.iter().map(|c| c.node.to_string()).collect();
        let mut to: Vec<String> = command.existing_nodes.iter().map(|n| n.node.to_string()).collect();
        to.sort();
        rows.push([
            command.decision().as_str().to_owned(),
            names(&nodes),
            replaced_by(command),
            price(command.savings),
            if to.is_empty() { "-".into() } else { names(&to) },
        ]);
    }
    columns(out, &rows)
}

fn replaced_by(command: &Command) -> String {
    let types: Vec<String> = command
        .replacements
        .iter()
        .map(|r| {
            let more = r.instance_types.len().saturating_sub(1);
            let cheapest = r
                .instance_types
                .first()
                .map_or_else(|| format!("a node of {}", r.node_pool), |t| t.to_string());
            if more > 0 { format!("{cheapest} (+{more})") } else { cheapest }
        })
        .collect();
    if types.is_empty() { "nothing".into() } else { names(&types) }
}

/// Nodes that stay for the same reason are told together.
fn staying(out: &mut String, outcomes: &[Outcome]) -> fmt::Result {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let mut position: BTreeMap<String, usize> = BTreeMap::new();
    for (node, verdict) in explain(outcomes) {
        let Verdict::Stays { why, .. } = verdict else { continue };
        let why = why.to_string();
        let at = *position.entry(why.clone()).or_insert_with(|| {
            groups.push((why, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(node.to_string());
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nNodes that stay, and why")?;
    for (why, nodes) in groups {
        writeln!(out, "  {}\n    {why}", names(&nodes))?;
    }
    Ok(())
}
