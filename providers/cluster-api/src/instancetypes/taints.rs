//! Which taints the nodes of a scalable resource have: what its owner says in cluster-autoscaler's annotation, and what
//! Cluster API sets from the template.

use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::names::CAPACITY_DOMAIN;

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The taints of its nodes.
pub fn taints(scalable: &Scalable) -> Result<Vec<Taint>, Malformed> {
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

/// `key[=value]:Effect`.
fn parse(item: &str) -> Option<Taint> {
    let (rest, effect) = item.rsplit_once(':')?;
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    let known = EFFECTS.contains(&effect) && !key.is_empty();
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
