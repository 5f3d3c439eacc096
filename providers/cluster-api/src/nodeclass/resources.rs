//! What a NodeClass's status says of each scalable resource that takes part: what it is offered as, where and at what price, or which
//! key keeps it from being offered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ClusterAPINodeClass, OfferingStatus, ResourceStatus};
use crate::client::machine::Machine;
use crate::client::mirror::Mirror;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::instances::fleet::Fleet;
use crate::instances::holds::HoldKind;
use crate::instances::ledger;
use crate::instances::offers::{self, Offers};
use crate::instancetypes::catalog::Entry;
use crate::names;

/// How many resources the status lists; more would not be read.
const MOST_RESOURCES: usize = 100;

/// What takes part, by name.
pub(super) fn resources(
    fleet: &Fleet,
    offers: &Offers,
    class: &ClusterAPINodeClass,
    unmanaged: &BTreeMap<ScalableKey, i32>,
) -> Vec<ResourceStatus> {
    let mode = class.spec().launch_mode.unwrap_or_default();
    let launches_paused = class.launches_while_rollout_paused();
    let row = |scalable: &Scalable| {
        let waits = offers::launch_hold(&fleet.mirror, scalable, mode, launches_paused)
            .filter(|hold| hold.kind == HoldKind::Waiting)
            .map(|hold| format!("{}: {}", hold.reason, hold.message));
        let unmanaged = unmanaged.get(&scalable.id).copied();
        let offered = offered(offers, scalable);
        let waiting = waits.filter(|_| offered.unavailable.is_none());
        let learned = fleet.lessons.noted(scalable, &fleet.mirror);
        ResourceStatus { unmanaged_machines: unmanaged, waiting, learned, ..offered }
    };
    offers.members.iter().take(MOST_RESOURCES).map(|scalable| row(scalable)).collect()
}

/// What a resource is offered as, or why it is not.
fn offered(offers: &Offers, scalable: &Scalable) -> ResourceStatus {
    let entries: Vec<&Entry> =
        offers.catalog.entries.iter().filter(|entry| entry.id == scalable.id).collect();
    let (first, only) = (entries.first(), entries.first().filter(|_| entries.len() == 1));
    let price = |entry: &Entry| format!("{:.6}", entry.price.per_hour);
    let offerings = entries.iter().map(|entry| OfferingStatus {
        zone: entry.zone.clone(),
        price: Some(price(entry)),
        price_source: Some(entry.price.source.to_string()),
        unavailable: entry.unavailable.clone(),
    });
    let bounds = scalable.bounds().ok();
    // What can be had in one place is offered.
    let nowhere = first.filter(|_| entries.iter().all(|entry| entry.unavailable.is_some()));
    let left_out = offers.left_out.get(&scalable.id).map(ToString::to_string);
    ResourceStatus {
        name: scalable.id.to_string(),
        instance_type: first.map(|entry| offers.catalog.types[entry.instance_type].name.to_string()),
        capacity_type: first
            .and_then(|entry| entry.labels.get(karpenter_api::labels::CAPACITY_TYPE).cloned()),
        zone: only.and_then(|entry| entry.zone.clone()),
        price: only.map(|entry| price(entry)),
        price_source: only.map(|entry| entry.price.source.to_string()),
        offerings: (entries.len() > 1).then(|| offerings.collect()),
        replicas: Some(scalable.replicas).filter(|_| scalable.id.kind != ScalableKind::MachineTemplate),
        min_replicas: bounds.map(|(min, _)| min).filter(|min| *min > 0),
        max_replicas: bounds.and_then(|(_, max)| max),
        unavailable: left_out.or_else(|| nowhere.and_then(|entry| entry.unavailable.clone())),
        ..ResourceStatus::default()
    }
}

/// How many Machines of each resource are not ours, where there are any: they were there before us, or are another cluster's. Of all
/// resources, however many the status lists.
pub(super) fn unmanaged(
    mirror: &Mirror,
    members: &[Arc<Scalable>],
    owner: &str,
) -> BTreeMap<ScalableKey, i32> {
    let machines = mirror.machines();
    let mut by_label: BTreeMap<(&str, &str, &str), Vec<&Machine>> = BTreeMap::new();
    for machine in &machines {
        for label in [names::DEPLOYMENT_NAME, names::SET_NAME] {
            let Some(value) = machine.labels.get(label) else { continue };
            by_label.entry((&machine.key.namespace, label, value)).or_default().push(machine);
        }
    }
    let count = |scalable: &Scalable| {
        let label = scalable.id.kind.machine_label()?;
        let name = names::label_value(&scalable.id.key.name);
        let machines = by_label.get(&(&*scalable.id.key.namespace, label, &*name))?;
        let epoch = ledger::epoch(scalable);
        let theirs = machines.iter().filter(|machine| match machine.claim() {
            Some(claim) => claim.owner != owner,
            None => epoch.is_none_or(|epoch| machine.created.as_second() < epoch.as_second()),
        });
        let count = i32::try_from(theirs.count()).unwrap_or(i32::MAX);
        (count > 0).then(|| (scalable.id.clone(), count))
    };
    members.iter().filter_map(|scalable| count(scalable)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::mirror::Watched;
    use crate::fixtures::{deployment, object};

    #[test]
    fn machines_that_are_not_karpenters_are_counted_of_more_resources_than_the_status_lists() {
        let mirror = Mirror::default();
        let machine = |name: &str, of: &str, annotations: serde_json::Value| {
            let labels = json!({names::DEPLOYMENT_NAME: of});
            object(json!({
                "metadata": {
                    "name": name, "namespace": "default", "uid": name, "labels": labels, "annotations": annotations,
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {"clusterName": "c"},
            }))
        };
        let ours = json!({names::NODECLAIM: "n", names::NODECLAIM_UID: "n-uid", names::OWNER: "us"});
        mirror.apply(Watched::Machine, &machine("a", "m-150", json!({})));
        mirror.apply(Watched::Machine, &machine("b", "m-150", ours.clone()));
        mirror.apply(Watched::Machine, &machine("c", "m-7", ours));
        let members: Vec<Arc<Scalable>> =
            (0..200).map(|n| Arc::new(deployment(&format!("m-{n}"), &[]))).collect();
        let counted = unmanaged(&mirror, &members, "us");
        let counted: Vec<String> = counted.iter().map(|(id, count)| format!("{count} of {id}")).collect();
        assert_eq!(counted, ["1 of MachineDeployment default/m-150"]);
    }
}
