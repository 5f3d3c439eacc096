//! The plan for people: what would be bought and what it costs, what fits where, what stays pending and why.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use karpenter_engine::labels::{CAPACITY_TYPE, ZONE};
use karpenter_engine::reasons::{SkipReason, amount_text};
use karpenter_engine::resources::{CPU, MEMORY};
use karpenter_engine::{Plan, PlannedClaim, Why};

use super::outcome::{listed_claims, pod_keys};
use super::rejected::Rejected;
use super::sentences;

/// Hours in an average month, for turning an hourly price into something to compare bills with.
const HOURS_PER_MONTH: f64 = 730.0;
/// Names listed before the rest is only counted.
const NAMES_SHOWN: usize = 4;
/// Pending pods of one reason listed before the rest is only counted.
const PENDING_SHOWN: usize = 8;

/// What is shown besides the plan.
pub(crate) struct Notes<'a> {
    pub(crate) now: jiff::Timestamp,
    /// Pods that need a place, whatever became of them.
    pub(crate) waiting: usize,
    pub(crate) unreadable_pods: &'a [(String, String)],
    pub(crate) rejected: &'a [Rejected],
    pub(crate) passed_over: &'a [(String, usize)],
    /// Which conditions keep NodePools from being ready, by name.
    pub(crate) unmet_conditions: &'a BTreeMap<String, String>,
}

pub(crate) fn render(plan: &Plan, notes: &Notes<'_>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut out, plan, notes);
    out
}

fn write_all(out: &mut String, plan: &Plan, notes: &Notes<'_>) -> fmt::Result {
    writeln!(out, "At {}:", notes.now)?;
    if let Some(error) = &plan.error {
        writeln!(out, "  nothing could be decided: {error}")?;
    }
    summary(out, plan, notes)?;
    new_nodes(out, plan)?;
    existing_nodes(out, plan)?;
    passed_over(out, plan)?;
    given_up(out, plan)?;
    pending(out, plan)?;
    ignored(out, plan, notes)?;
    if !plan.skipped_pools.is_empty() {
        writeln!(out, "\nNodePools that took no part")?;
        for pool in &plan.skipped_pools {
            write!(out, "  {}: {}", pool.node_pool, pool.reason)?;
            let unmet = notes.unmet_conditions.get(&*pool.node_pool).filter(|text| !text.is_empty());
            match unmet.filter(|_| pool.reason == SkipReason::NotReady) {
                Some(unmet) => writeln!(out, ", {unmet}")?,
                None => writeln!(out)?,
            }
        }
    }
    left_out(out, plan, notes)
}

fn summary(out: &mut String, plan: &Plan, notes: &Notes<'_>) -> fmt::Result {
    let new: usize = plan.new_claims.iter().map(|c| c.pods.len()).sum();
    let existing: usize = plan.existing_nodes.iter().map(|n| n.pods.len()).sum();
    let pending = plan.pod_errors.len();
    let ignored = plan.ignored_pods.len() + notes.unreadable_pods.len();
    let total = new + existing + pending + ignored;
    if total == 0 && notes.waiting > 0 {
        let waiting = plural(notes.waiting, "pod needs a place", "pods need a place");
        return writeln!(out, "  {waiting}, but no NodePool can take part: nothing is decided.");
    }
    if total == 0 {
        return writeln!(out, "  no pod needs a place; nothing would be bought.");
    }
    let mut parts = Vec::new();
    for (count, one, many) in [
        (existing, "fits on a node that exists", "fit on nodes that exist"),
        (new, "goes to a new node", "go to new nodes"),
        (pending, "stays pending", "stay pending"),
        (ignored, "is not considered", "are not considered"),
    ] {
        if count > 0 {
            parts.push(plural(count, one, many));
        }
    }
    writeln!(out, "  {}: {}.", plural(total, "pod needs a place", "pods need a place"), parts.join(", "))
}

fn new_nodes(out: &mut String, plan: &Plan) -> fmt::Result {
    if plan.new_claims.is_empty() {
        return Ok(());
    }
    let priced = plan.new_claims.iter().filter_map(|c| c.cheapest_price);
    // A fixed order of summation: the plan's own.
    let total: f64 = priced.fold(0.0, |sum, p| sum + p);
    writeln!(
        out,
        "\n{}, from {} per hour (about {:.2} per month, if each is of its cheapest type)",
        plural(plan.new_claims.len(), "new node", "new nodes"),
        price(total),
        total * HOURS_PER_MONTH
    )?;
    let mut rows = vec![row(["NODEPOOL", "TYPE", "PER HOUR", "CAPACITY", "ZONE", "PODS ASK FOR", "PODS"])];
    for (_, claim) in listed_claims(plan) {
        let more = claim.instance_types.len().saturating_sub(1);
        let cheapest = claim.instance_types.first().map_or("none", |t| t.as_ref());
        let types = match more {
            0 => cheapest.to_owned(),
            more => format!("{cheapest} or {}", plural(more, "other", "others")),
        };
        let amount = |name: &str| amount_text(name, claim.requests.amount(name));
        rows.push([
            claim.node_pool.to_string(),
            types,
            claim.cheapest_price.map_or("-".into(), price),
            values(claim, CAPACITY_TYPE),
            values(claim, ZONE),
            format!("{} cpu, {} memory", amount(CPU), amount(MEMORY)),
            names(&pod_keys(&claim.pods)),
        ]);
    }
    columns(out, &rows)
}

fn existing_nodes(out: &mut String, plan: &Plan) -> fmt::Result {
    let used: Vec<_> = plan.existing_nodes.iter().filter(|n| !n.pods.is_empty()).collect();
    if used.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nNodes that exist and take pods")?;
    let mut rows = vec![row(["NODE", "PODS"])];
    let mut placed: Vec<_> = used.iter().map(|n| [n.node.to_string(), names(&pod_keys(&n.pods))]).collect();
    placed.sort();
    rows.extend(placed);
    columns(out, &rows)
}

/// Why a NodePool that comes first was not the one to buy from.
fn passed_over(out: &mut String, plan: &Plan) -> fmt::Result {
    let pods = plan.new_claims.iter().flat_map(|c| &c.pods);
    let passed = pods.filter_map(|p| match &p.why {
        Why::NewClaim { passed_over } if !passed_over.is_empty() => {
            Some((passed_over.iter().map(sentences::pool).collect(), p.pod.key()))
        }
        _ => None,
    });
    told_together(out, "NodePools that come first but could not take a pod", passed)
}

/// Wishes that could not be met.
fn given_up(out: &mut String, plan: &Plan) -> fmt::Result {
    let of_claims = plan.new_claims.iter().flat_map(|c| &c.pods);
    let of_nodes = plan.existing_nodes.iter().flat_map(|n| &n.pods);
    let relaxed = of_claims.chain(of_nodes).filter(|p| !p.relaxed.is_empty());
    let lines = relaxed.map(|p| (p.relaxed.iter().map(ToString::to_string).collect(), p.pod.key()));
    told_together(out, "Given up to find a place", lines)
}

fn pending(out: &mut String, plan: &Plan) -> fmt::Result {
    let lines = plan.pod_errors.iter().map(|e| (sentences::lines(e), e.pod.key()));
    told_together(out, "Pods that stay pending", lines)
}

/// Pods of which the same is to be said are told together.
fn told_together(
    out: &mut String,
    title: &str,
    said: impl Iterator<Item = (Vec<String>, String)>,
) -> fmt::Result {
    let mut groups: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    let mut numbers: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for (lines, pod) in said {
        let number = *numbers.entry(lines).or_insert_with_key(|lines| {
            groups.push((lines.clone(), Vec::new()));
            groups.len() - 1
        });
        groups[number].1.push(pod);
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for (lines, pods) in groups {
        let shown = pods.iter().take(PENDING_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = pods.len().saturating_sub(PENDING_SHOWN);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(out, "  {shown}{rest}")?;
        for line in lines {
            writeln!(out, "    {line}")?;
        }
    }
    Ok(())
}

fn ignored(out: &mut String, plan: &Plan, notes: &Notes<'_>) -> fmt::Result {
    if plan.ignored_pods.is_empty() && notes.unreadable_pods.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nPods that are not considered")?;
    for pod in &plan.ignored_pods {
        let reasons: Vec<String> = pod.reasons.iter().map(ToString::to_string).collect();
        writeln!(out, "  {}: {}", pod.pod.key(), reasons.join("; "))?;
    }
    for (pod, problem) in notes.unreadable_pods {
        writeln!(out, "  {pod}: {problem}")?;
    }
    Ok(())
}

fn left_out(out: &mut String, plan: &Plan, notes: &Notes<'_>) -> fmt::Result {
    left_out_of_input(out, notes)?;
    if !plan.rejected.is_empty() {
        writeln!(out, "\nLeft out of the plan, because it makes no sense")?;
        for rejected in &plan.rejected {
            writeln!(out, "  {}: {}: {}", rejected.object, rejected.field, rejected.problem)?;
        }
    }
    Ok(())
}

/// What of the input was not understood, and what it was not about.
pub(crate) fn left_out_of_input(out: &mut String, notes: &Notes<'_>) -> fmt::Result {
    if !notes.rejected.is_empty() {
        writeln!(out, "\nLeft out of the input, because it makes no sense")?;
        for rejected in notes.rejected {
            writeln!(out, "  {rejected}")?;
        }
    }
    if !notes.passed_over.is_empty() {
        let kinds: Vec<String> = notes.passed_over.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        writeln!(out, "\nOf no concern to scheduling: {}", kinds.join(", "))?;
    }
    Ok(())
}

pub(crate) fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

pub(crate) fn price(price: f64) -> String {
    if price != 0.0 && price.abs() < 0.001 { format!("{price:.6}") } else { format!("{price:.4}") }
}

/// The values a claim lists for a label, or that any will do.
fn values(claim: &PlannedClaim, key: &str) -> String {
    let listed = claim.requirements.iter().find(|r| r.key.as_ref() == key && r.operator.as_ref() == "In");
    listed.map_or_else(|| "any".to_owned(), |r| r.values.join(","))
}

pub(crate) fn names(all: &[String]) -> String {
    let shown = all.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

pub(crate) fn row<const N: usize>(cells: [&str; N]) -> [String; N] {
    cells.map(str::to_owned)
}

/// Left-aligned columns, two spaces apart, the last one ragged.
pub(crate) fn columns<const N: usize>(out: &mut String, rows: &[[String; N]]) -> fmt::Result {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N).map(width).collect();
    for cells in rows {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "  {cell:<width$}");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
