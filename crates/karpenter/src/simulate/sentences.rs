//! Reasons in plain words, shorter than the texts Go Karpenter's events have.

use karpenter_engine::labels::HOSTNAME;
use karpenter_engine::reasons::{
    InstanceTypeRejection, PoolRejection, Rejection, ReservedRejection, Shortage, TopologyKind,
    TopologyRejection, Unplaceable, amount_text,
};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::{Incompatibility, Requirements};

/// Requirements every claim has for reasons of its own; naming them explains nothing.
const UNREMARKABLE: [&str; 4] =
    ["karpenter.sh/initialized", "karpenter.sh/registered", "karpenter.sh/nodepool", HOSTNAME];

/// One line for the pod, or one per NodePool that was asked.
pub(crate) fn lines(reason: &Unplaceable) -> Vec<String> {
    match reason {
        Unplaceable::AllPools(pools) => pools.iter().map(pool).collect(),
        Unplaceable::NoPools => vec!["no NodePool can buy anything (see below)".into()],
        Unplaceable::ResourceClaims => vec!["it uses dynamic resource claims, which are switched off".into()],
        other => vec![other.to_string()],
    }
}

fn pool(rejection: &PoolRejection) -> String {
    format!("{}: {}", rejection.node_pool, sentence(&rejection.reason))
}

fn sentence(rejection: &Rejection) -> String {
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
        Rejection::NodeResources(short) => format!("not enough room: {}", missing(short)),
        Rejection::Requirements(why) => incompatible(why),
        Rejection::VolumeRequirements(why) => {
            format!("the pod's volumes are elsewhere: {}", incompatible(why))
        }
        Rejection::Topology(why) => topology(why),
        Rejection::TopologyConflict(why) => {
            format!("its spread and affinity leave no common place: {}", incompatible(why))
        }
        Rejection::InstanceTypes(why) => instance_types(why),
        Rejection::Reserved(why) => reserved(*why).into(),
    }
}

fn missing(short: &Shortage) -> String {
    let text = |amount| amount_text(&short.resource, amount);
    format!("needs {} {}, {} is the most there is", text(short.need), short.resource, text(short.left))
}

fn incompatible(why: &Incompatibility) -> String {
    match why {
        Incompatibility::UndefinedLabel { key, hint: Some(hint) } => {
            format!("its nodes have no label {key} (is {hint} meant?)")
        }
        Incompatibility::UndefinedLabel { key, hint: None } => format!("its nodes have no label {key}"),
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

fn instance_types(why: &InstanceTypeRejection) -> String {
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
        out += &format!(": {}", missing(short));
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
