//! Reasons in plain words, shorter than the texts Go Karpenter's events have.

use karpenter_engine::PodError;
use karpenter_engine::labels::HOSTNAME;
use karpenter_engine::misses::{MissedPlace, RefusedBy};
use karpenter_engine::reasons::{
    InstanceTypeRejection, PoolRejection, Rejection, ReservedRejection, Rule, Shortage, TopologyKind,
    TopologyRejection, Unplaceable, amount_text,
};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::{Incompatibility, Requirements};

/// Requirements every claim has for reasons of its own; naming them explains nothing.
const UNREMARKABLE: [&str; 4] =
    ["karpenter.sh/initialized", "karpenter.sh/registered", "karpenter.sh/nodepool", HOSTNAME];

/// Lines for a pod without a place: the nodes there are, the new ones of this plan, then each NodePool that was asked.
pub(crate) fn lines(error: &PodError) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(misses) = &error.misses {
        lines.extend(refused("node that exists", "nodes that exist", &misses.nodes));
        lines.extend(refused("new node", "new nodes", &misses.claims));
    }
    lines.extend(of_pools(&error.reason));
    lines
}

/// `3 nodes that exist: 2 without room (nearest node-1: needs 12 cpu, 3900m is left); 1 with taints (…)`
fn refused(one: &str, many: &str, by: &[RefusedBy]) -> Option<String> {
    let total: usize = by.iter().map(|b| b.count).sum();
    let noun = if total == 1 { one } else { many };
    match by {
        [] => None,
        [only] => Some(format!("{total} {noun}, {}{}", obstacle(only.rule), nearest(only))),
        several => {
            let parts: Vec<String> =
                several.iter().map(|b| format!("{} {}{}", b.count, obstacle(b.rule), nearest(b))).collect();
            Some(format!("{total} {noun}: {}", parts.join("; ")))
        }
    }
}

fn nearest(by: &RefusedBy) -> String {
    let Some(miss) = by.nearest.first() else { return String::new() };
    let nearest = if by.count > 1 { "nearest " } else { "" };
    let which = match &miss.place {
        MissedPlace::Node(name) => name.to_string(),
        // New nodes have no names yet.
        MissedPlace::Claim { node_pool, .. } => format!("one of {node_pool}"),
    };
    format!(" ({nearest}{which}: {})", sentence(&miss.reason, Whose::Node))
}

/// What a rule objects to, in two or three words after a number of nodes.
fn obstacle(rule: Rule) -> &'static str {
    match rule {
        Rule::NodeLimit | Rule::Limits => "at the NodePool's limits",
        Rule::Taints => "with taints",
        Rule::VolumeLimit => "with too many volumes",
        Rule::HostPort => "with the port taken",
        Rule::Resources | Rule::InstanceTypes => "without room",
        Rule::Requirements => "of another kind",
        Rule::VolumeTopology => "out of reach of its volumes",
        Rule::Topology | Rule::TopologyConflict => "in the wrong place",
        Rule::ReservedCapacity => "with reserved capacity at stake",
    }
}

/// Whose refusal is put into words.
#[derive(Clone, Copy)]
enum Whose {
    /// A NodePool's, about nodes it could buy.
    Pool,
    /// A single node's.
    Node,
}

/// One line for the pod, or one per NodePool that was asked.
fn of_pools(reason: &Unplaceable) -> Vec<String> {
    match reason {
        Unplaceable::AllPools(pools) => pools.iter().map(pool).collect(),
        Unplaceable::NoPools => vec!["no NodePool can buy anything (see below)".into()],
        Unplaceable::ResourceClaims => vec!["it uses dynamic resource claims, which are switched off".into()],
        other => vec![other.to_string()],
    }
}

/// `general: nothing large enough …`
pub(crate) fn pool(rejection: &PoolRejection) -> String {
    format!("{}: {}", rejection.node_pool, sentence(&rejection.reason, Whose::Pool))
}

fn sentence(rejection: &Rejection, whose: Whose) -> String {
    match rejection {
        Rejection::NodeLimitExhausted => "it has as many nodes as its limits allow".into(),
        Rejection::LimitsExceeded => "every type it could buy exceeds what its limits leave".into(),
        Rejection::Taints(taints) => {
            let names: Vec<String> = taints.iter().map(ToString::to_string).collect();
            format!("the pod does not tolerate {}", names.join(", "))
        }
        Rejection::VolumeLimit(Some(limit)) => {
            format!("{} volumes of {}, nodes attach {} at most", limit.count, limit.driver, limit.limit)
        }
        Rejection::VolumeLimit(None) => "more volumes than any of its types attaches".into(),
        Rejection::HostPort { port, protocol } => format!("host port {port}/{protocol} is taken"),
        Rejection::NodeResources(short) => missing(short, whose),
        Rejection::Requirements(why) => incompatible(why, whose),
        Rejection::VolumeRequirements(why) => {
            format!("the pod's volumes are elsewhere: {}", incompatible(why, whose))
        }
        Rejection::Topology(why) => topology(why),
        Rejection::TopologyConflict(why) => {
            format!("its spread and affinity leave no common place: {}", incompatible(why, whose))
        }
        Rejection::InstanceTypes(why) => instance_types(why, whose),
        Rejection::Reserved(why) => reserved(*why).into(),
    }
}

fn missing(short: &Shortage, whose: Whose) -> String {
    let text = |amount| amount_text(&short.resource, amount);
    let left = match whose {
        Whose::Pool => "is the most there is",
        Whose::Node => "is left",
    };
    format!("needs {} {}, {} {left}", text(short.need), short.resource, text(short.left))
}

fn incompatible(why: &Incompatibility, whose: Whose) -> String {
    match why {
        Incompatibility::UndefinedLabel { key, hint } => {
            let meant = hint.as_ref().map_or_else(String::new, |hint| format!(" (is {hint} meant?)"));
            match whose {
                Whose::Pool => format!("its nodes have no label {key}{meant}"),
                Whose::Node => format!("it has no label {key}{meant}"),
            }
        }
        Incompatibility::NoOverlap { incoming, existing } => {
            format!("the pod wants {incoming}, there is {existing}")
        }
    }
}

fn topology(why: &TopologyRejection) -> String {
    let counts: Vec<String> = why.counts.iter().map(|(domain, n)| format!("{domain} {n}")).collect();
    let counted = if counts.is_empty() {
        "no domain is known".into()
    } else {
        format!("pods by domain: {}", counts.join(", "))
    };
    let what = match why.kind {
        TopologyKind::Spread => "spreading",
        TopologyKind::Affinity => "affinity",
        TopologyKind::AntiAffinity => "anti-affinity",
    };
    format!("{what} over {} leaves no place ({counted})", why.key)
}

fn instance_types(why: &InstanceTypeRejection, whose: Whose) -> String {
    if !why.min_values.is_empty() {
        return format!("too few types left for the minValues of {}", why.min_values.join(", "));
    }
    let text = match (why.requirements_met, why.fits, why.has_offering) {
        (_, false, true) | (true, false, false) if why.nearest.is_some() => "nothing large enough",
        (false, _, true) => "no type meets the requirements",
        (true, true, false) | (true, false, false) => "no type is sold that way now",
        (false, _, false) => "no type meets the requirements and is sold that way",
        (true, false, true) => "nothing large enough",
        (true, true, true) => "no single type meets the requirements, is large enough and is sold that way",
    };
    let mut out = text.to_owned();
    if let Some(short) = &why.nearest {
        match whose {
            Whose::Pool => out += &format!(": {}", missing(short, whose)),
            Whose::Node => return missing(short, whose),
        }
    }
    if !why.requirements_met || !why.has_offering {
        let wanted = remarkable(&why.requirements);
        if !wanted.is_empty() {
            out += &format!(" (wanted: {wanted})");
        }
    }
    out
}

fn remarkable(requirements: &Requirements) -> String {
    let shown = |r: &&Requirement| !UNREMARKABLE.contains(&r.key.as_ref()) && !r.key.ends_with("nodeclass");
    requirements.iter().filter(shown).map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn reserved(why: ReservedRejection) -> &'static str {
    match why {
        ReservedRejection::Held => {
            "reserved capacity it could use is held by other pods of this plan; it waits for the next pass"
        }
        ReservedRejection::Full => {
            "all reserved capacity it could use is full, and nothing else fits; it waits"
        }
        ReservedRejection::FullFallThrough => "all reserved capacity it could use is full",
        ReservedRejection::WouldLose => {
            "joining would cost a node its reserved capacity; it waits for the next pass"
        }
    }
}
