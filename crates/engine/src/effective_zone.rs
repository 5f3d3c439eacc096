//! The zone a waiting pod's own constraints and its volumes leave it: what the metric of pending pods by zone counts.
//!
//! Spread constraints are not looked at: they leave one zone only while a workload is out of balance.

use std::collections::BTreeSet;

use crate::eligibility::pod_requirements;
use crate::labels::{Text, ZONE};
use crate::pod::Pod;
use crate::requirement::{Operator, Requirement};
use crate::snapshot::Snapshot;
use crate::volumes;

/// The name of the one zone, `flexible` if there are several, `none` if there is no zone at all.
pub fn effective_zone(pod: &Pod, snapshot: &Snapshot) -> Text {
    let own = pod_requirements(&pod.spec, false).ok().and_then(|all| all.get(ZONE).cloned());
    let of_volumes = volume_zones(pod, snapshot);
    let own_zones = own.as_ref().filter(|own| own.operator() == Operator::In);
    let zones: BTreeSet<Text> = match (own_zones, &of_volumes) {
        (Some(own), _) => own.values.iter().cloned().collect(),
        (None, Some(zones)) => zones.clone(),
        (None, None) => return "flexible".into(),
    };
    let allowed = |zone: &&Text| {
        own.as_ref().is_none_or(|own: &Requirement| own.has(zone))
            && of_volumes.as_ref().is_none_or(|zones| zones.contains(*zone))
    };
    let mut left = zones.iter().filter(allowed);
    match (left.next(), left.next()) {
        (None, _) => "none".into(),
        (Some(zone), None) => zone.clone(),
        (Some(_), Some(_)) => "flexible".into(),
    }
}

/// The zones the pod's volumes can be reached from; nothing when they do not say, or say it otherwise than by name.
fn volume_zones(pod: &Pod, snapshot: &Snapshot) -> Option<BTreeSet<Text>> {
    if pod.spec.volumes.is_empty() {
        return None;
    }
    let alternatives = volumes::alternatives(pod, snapshot).ok().filter(|all| !all.is_empty())?;
    let mut zones = BTreeSet::new();
    for alternative in &alternatives {
        let zone = alternative.get(ZONE).filter(|zone| zone.operator() == Operator::In)?;
        zones.extend(zone.values.iter().cloned());
    }
    Some(zones)
}
