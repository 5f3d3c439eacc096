//! What a NodeClass's status says of each scalable resource that takes part: what it is offered as, where and at what price, or which
//! key keeps it from being offered.

use super::{ClusterAPINodeClass, OfferingStatus, ResourceStatus};
use crate::client::scalable::{Scalable, ScalableKind};
use crate::instances::fleet::Fleet;
use crate::instances::holds::HoldKind;
use crate::instances::ledger;
use crate::instances::offers::{self, Offers};
use crate::instancetypes::catalog::Entry;

/// How many resources the status lists; more would not be read.
const MOST_RESOURCES: usize = 100;

/// What takes part, by name.
pub(super) fn resources(fleet: &Fleet, offers: &Offers, class: &ClusterAPINodeClass) -> Vec<ResourceStatus> {
    let mode = class.spec().launch_mode.unwrap_or_default();
    let launches_paused = class.launches_while_rollout_paused();
    let row = |scalable: &Scalable| {
        let waits = offers::launch_hold(&fleet.mirror, scalable, mode, launches_paused)
            .filter(|hold| hold.kind == HoldKind::Waiting)
            .map(|hold| format!("{}: {}", hold.reason, hold.message));
        let unmanaged = Some(unmanaged(fleet, scalable)).filter(|count| *count > 0);
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

/// Resources with Machines that are not ours, and how many.
pub(super) fn unmanaged_in(resources: &[ResourceStatus]) -> Vec<String> {
    let counted =
        |resource: &ResourceStatus| Some(format!("{} of {}", resource.unmanaged_machines?, resource.name));
    resources.iter().filter_map(counted).collect()
}

/// How many Machines of a resource are not ours: they were there before us, or are another cluster's.
fn unmanaged(fleet: &Fleet, scalable: &Scalable) -> i32 {
    let epoch = ledger::epoch(scalable);
    let machines = fleet.machines_of(&scalable.id);
    let theirs = machines.iter().filter(|machine| match machine.claim() {
        Some(claim) => claim.owner != fleet.owner,
        None => epoch.is_none_or(|epoch| machine.created.as_second() < epoch.as_second()),
    });
    i32::try_from(theirs.count()).unwrap_or(i32::MAX)
}
