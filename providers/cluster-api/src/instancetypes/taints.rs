//! Which taints the nodes of a scalable resource have: what its owner says in cluster-autoscaler's annotation, and what
//! Cluster API sets from the template.

use k8s_openapi::api::core::v1::Taint;
use karpenter_api::taints::UNREGISTERED;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_primitives::names::{label_value_errors, qualified_name_errors};
use serde_json::Value;

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::names::CAPACITY_DOMAIN;

/// Cluster API takes it off when it has labelled the node.
const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The taints of its nodes.
pub(crate) fn taints(scalable: &Scalable) -> Result<Vec<Taint>, Malformed> {
    let annotation = format!("{CAPACITY_DOMAIN}taints");
    let mut taints = Vec::new();
    let text = scalable.annotations.get(&annotation).map(String::as_str).unwrap_or_default();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let taint = parse(item);
        let problem = || format!("{item:?} is not key=value:Effect with one of {}", EFFECTS.join(", "));
        taints.push(taint.ok_or_else(|| scalable.malformed(annotation.clone(), problem()))?);
    }
    taints.extend(scalable.taints.iter().filter_map(templated));
    Ok(taints)
}

/// The taints that a NodePool declares.
pub(crate) fn of_pool(pool: &NodePool) -> impl Iterator<Item = &Taint> + Clone {
    let spec = &pool.spec.template.spec;
    spec.taints.iter().flatten().chain(spec.startup_taints.iter().flatten())
}

/// Those of a node's taints that a NodePool neither declares nor inherits.
pub(crate) fn lacking<'a>(taints: &'a [Taint], pool: &NodePool, inherited: &[Taint]) -> Vec<&'a Taint> {
    undeclared(taints, of_pool(pool).chain(inherited))
}

/// Those of a node's taints that a NodePool declares with another value: a node has one value of a key and an effect, so no NodeClaim of
/// the NodePool can have them.
pub(crate) fn contradicting<'a>(taints: &'a [Taint], pool: &NodePool) -> Vec<&'a Taint> {
    let mut lacking = lacking(taints, pool, &[]);
    lacking.retain(|taint| of_pool(pool).any(|own| own.key == taint.key && own.effect == taint.effect));
    lacking
}

/// The taints that a NodeClaim declares.
pub(crate) fn of_claim(claim: &NodeClaim) -> impl Iterator<Item = &Taint> + Clone {
    claim.spec.taints.iter().flatten().chain(claim.spec.startup_taints.iter().flatten())
}

/// Key, value and effect. Who tolerates one value does not tolerate another; none is the empty one.
pub(crate) fn identity(taint: &Taint) -> (&str, &str, &str) {
    (&taint.key, taint.value.as_deref().unwrap_or_default(), &taint.effect)
}

/// Those of a node's taints that nobody declared: its pods are planned without them. What only puts pods off, and what Cluster API
/// takes off itself, need not be declared.
pub(crate) fn undeclared<'a, 'b>(
    taints: &'a [Taint],
    declared: impl Iterator<Item = &'b Taint> + Clone,
) -> Vec<&'a Taint> {
    let is_declared = |taint: &Taint| declared.clone().any(|known| identity(known) == identity(taint));
    let matters = |taint: &&Taint| {
        taint.effect != "PreferNoSchedule" && taint.key != UNREGISTERED.key && taint.key != UNINITIALIZED
    };
    taints.iter().filter(matters).filter(|taint| !is_declared(taint)).collect()
}

/// As the annotation has it.
pub(crate) fn display(taint: &Taint) -> String {
    match &taint.value {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}

/// `key[=value]:Effect`.
fn parse(item: &str) -> Option<Taint> {
    let (rest, effect) = item.rsplit_once(':')?;
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    // Others are refused by the server, on a NodePool as on a NodeClaim.
    let known = EFFECTS.contains(&effect)
        && qualified_name_errors(key).is_empty()
        && label_value_errors(value.unwrap_or_default()).is_empty();
    known.then(|| Taint {
        key: key.to_owned(),
        value: value.filter(|value| !value.is_empty()).map(str::to_owned),
        effect: effect.to_owned(),
        time_added: None,
    })
}

/// Those that stay: Cluster API takes the others off once the node is initialized.
fn templated(value: &Value) -> Option<Taint> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    if text("propagation").as_deref() == Some("OnInitialization") {
        return None;
    }
    Some(Taint { key: text("key")?, value: text("value"), effect: text("effect")?, time_added: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_taint_contradicts_one_of_its_key_and_effect_that_has_another_value() {
        let pool: NodePool = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"template": {"spec": {
                "requirements": [],
                "taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "starting", "effect": "NoExecute"}],
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
            }}},
        }))
        .expect("a NodePool");
        let told = |text: &str| {
            let taints: Vec<Taint> = text.split(',').map(|item| parse(item).expect("a taint")).collect();
            let contradicting = contradicting(&taints, &pool);
            contradicting.into_iter().map(display).collect::<Vec<_>>().join(",")
        };
        assert_eq!(told("team=y:NoSchedule"), "team=y:NoSchedule");
        assert_eq!(told("team:NoSchedule"), "team:NoSchedule", "no value is another one");
        assert_eq!(told("starting=1:NoExecute"), "starting=1:NoExecute", "startup taints count");
        assert_eq!(told("team=x:NoSchedule,starting:NoExecute"), "", "these are the ones it declares");
        assert_eq!(told("team=y:NoExecute,gpu:NoSchedule"), "", "it says nothing of these");
        assert_eq!(told("team=y:NoSchedule,gpu:NoSchedule"), "team=y:NoSchedule");
    }
}
