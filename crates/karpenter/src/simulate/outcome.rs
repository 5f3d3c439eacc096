//! The plan as JSON: the form Go Karpenter's decisions are recorded in, so that the two can be compared.
//!
//! Everything is sorted, quantities are plain numbers, and a label that may have any of several values says so.

use karpenter_engine::labels::Text;
use karpenter_engine::requirement::SelectorRequirement;
use karpenter_engine::resources::{Amount, CPU, Resources};
use karpenter_engine::taints::Taint;
use karpenter_engine::{PlacedPod, Plan, PlannedClaim};
use serde_json::{Map, Value, json};

/// Stands for a label value that is up to whoever creates the claim.
const ANY_VALUE: &str = "<any value the requirement allows>";

/// The plan, plus pods that could not even be read (their key and what is wrong with them).
pub(crate) fn to_json(plan: &Plan, unreadable: &[(String, String)]) -> Value {
    let mut out = Map::new();
    let claims = listed_claims(plan).into_iter().map(|(_, c)| claim(c, pod_keys(&c.pods)));
    out.insert("newNodeClaims".into(), claims.collect());
    out.insert(
        "existingNodes".into(),
        plan.existing_nodes
            .iter()
            .filter(|n| !n.pods.is_empty())
            .map(|n| (n.node.to_string(), json!(pod_keys(&n.pods))))
            .collect::<Map<_, _>>()
            .into(),
    );
    out.insert(
        "podErrors".into(),
        plan.pod_errors
            .iter()
            .map(|e| (e.pod.key(), e.reason.to_string().into()))
            .collect::<Map<_, _>>()
            .into(),
    );
    let mut ignored: Map<String, Value> = Map::new();
    for pod in &plan.ignored_pods {
        let mut reasons: Vec<String> = pod.reasons.iter().map(ToString::to_string).collect();
        reasons.sort();
        ignored.insert(pod.pod.key(), reasons.join("; ").into());
    }
    ignored.extend(unreadable.iter().map(|(pod, problem)| (pod.clone(), problem.as_str().into())));
    if !ignored.is_empty() {
        out.insert("ignoredPods".into(), ignored.into());
    }
    if let Some(error) = &plan.error {
        out.insert("error".into(), error.as_str().into());
    }
    out.into()
}

/// The plan's claims in the order they are listed: by NodePool and pods. Each with its index in the plan.
pub(crate) fn listed_claims(plan: &Plan) -> Vec<(usize, &PlannedClaim)> {
    let mut claims: Vec<(usize, &PlannedClaim)> = plan.new_claims.iter().enumerate().collect();
    claims.sort_by_cached_key(|(_, c)| (c.node_pool.clone(), pod_keys(&c.pods).join(",")));
    claims
}

/// A claim as Go Karpenter would create it, and the pods it is for.
pub(crate) fn claim(claim: &PlannedClaim, pods: Vec<String>) -> Value {
    let mut types: Vec<&Text> = claim.instance_types.iter().collect();
    types.sort();
    let mut out = Map::new();
    out.insert("nodePool".into(), text(&claim.node_pool));
    out.insert("pods".into(), json!(pods));
    out.insert("instanceTypes".into(), types.into_iter().map(text).collect());
    out.insert("requirements".into(), requirements(&claim.requirements));
    let mut labels: Map<String, Value> = claim.labels.iter().map(|(k, v)| (k.to_string(), text(v))).collect();
    labels.extend(claim.open_labels.iter().map(|k| (k.to_string(), ANY_VALUE.into())));
    out.insert("labels".into(), labels.into());
    for (field, list) in [("taints", &claim.taints), ("startupTaints", &claim.startup_taints)] {
        if !list.is_empty() {
            out.insert(field.into(), taints(list));
        }
    }
    out.insert("requests".into(), quantities(&claim.requests));
    for (field, set) in [
        ("minValuesRelaxed", claim.min_values_relaxed),
        ("priceOverlay", claim.price_overlay),
        ("capacityOverlay", claim.capacity_overlay),
    ] {
        if set {
            out.insert(field.into(), true.into());
        }
    }
    if let Some(price) = claim.cheapest_price {
        out.insert("cheapestPrice".into(), price.into());
    }
    out.into()
}

fn text(text: &Text) -> Value {
    text.as_ref().into()
}

pub(crate) fn pod_keys(pods: &[PlacedPod]) -> Vec<String> {
    let mut keys: Vec<String> = pods.iter().map(|p| p.pod.key()).collect();
    keys.sort();
    keys
}

fn requirements(list: &[SelectorRequirement]) -> Value {
    let mut sorted: Vec<&SelectorRequirement> = list.iter().collect();
    sorted.sort_by(|a, b| (&a.key, &a.operator).cmp(&(&b.key, &b.operator)));
    sorted
        .into_iter()
        .map(|r| {
            let mut values: Vec<&Text> = r.values.iter().collect();
            values.sort();
            let mut out = Map::new();
            out.insert("key".into(), text(&r.key));
            out.insert("operator".into(), text(&r.operator));
            if !values.is_empty() {
                out.insert("values".into(), values.into_iter().map(text).collect());
            }
            if let Some(minimum) = r.min_values {
                out.insert("minValues".into(), minimum.into());
            }
            Value::from(out)
        })
        .collect()
}

fn taints(list: &[Taint]) -> Value {
    let mut out: Vec<String> = list.iter().map(|t| format!("{}={}:{}", t.key, t.value, t.effect)).collect();
    out.sort();
    json!(out)
}

/// Cpu in thousandths, everything else in whole units where it is whole.
fn quantities(resources: &Resources) -> Value {
    resources
        .iter()
        .map(|(name, amount)| (name.to_string(), quantity(name, *amount).into()))
        .collect::<Map<_, _>>()
        .into()
}

fn quantity(name: &str, amount: Amount) -> String {
    let milli = amount.as_milli_ceil();
    // Beyond 64 bits Go cannot tell thousandths any more and prints whole units.
    let fine = milli <= i128::from(i64::MAX);
    if name == CPU || fine && milli % 1000 != 0 {
        format!("{}m", milli.min(i128::from(i64::MAX)))
    } else {
        amount.as_units_ceil().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_plain_numbers_in_the_unit_of_the_resource() {
        for (name, amount, want) in [
            ("cpu", Amount::units(2), "2000m"),
            ("cpu", Amount::nanos(1), "1m"),
            ("memory", Amount::units(1 << 30), "1073741824"),
            ("memory", Amount::milli(1500), "1500m"),
            ("memory", Amount::units(i64::MAX), "9223372036854775807"),
            ("pods", Amount::units(3), "3"),
        ] {
            assert_eq!(quantity(name, amount), want, "{name}");
        }
    }
}
