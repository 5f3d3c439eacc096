//! Reserved capacity: hosts somebody has set aside for this account, with room for so many machines of an offering. CloudStack
//! knows such hosts (an affinity group of type ExplicitDedication leads to them) but no count, so the NodeClass says it.
//!
//! A machine that takes a slot carries the reservation's name as a tag. What is launched at the same time is counted by its
//! NodeClaim until its machine is listed with that tag.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::absence::Care;
use crate::client::error::ApiError;
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::instances::{Candidate, is_alive};
use crate::labels;
use crate::resolved::Resolved;
use crate::shared::Shared;

/// What is refused when this type cannot be had: from a reservation it may be full while elsewhere it is not.
pub(crate) fn refused_name(type_name: &str, reservation: Option<&str>) -> String {
    reservation.map_or_else(|| type_name.to_owned(), |reservation| format!("{type_name}/{reservation}"))
}

/// The reservation a machine was made from, where no tag says it: that of the candidates like it in offering, zone and affinity
/// groups, unless one without a reservation is as much like it.
pub(crate) fn of_untagged<'a>(machine: &VirtualMachine, candidates: &'a [Candidate]) -> Option<&'a str> {
    // What was tagged as ours was tagged with all it needs.
    if machine.tag(labels::TAG_NODE_CLAIM_UID).is_some() {
        return None;
    }
    let groups: BTreeSet<&str> = machine.affinitygroup.iter().map(|group| group.id.as_str()).collect();
    let is_like = |candidate: &&Candidate| {
        let deploy = &candidate.deploy;
        candidate.zone_id == machine.zoneid
            && deploy.service_offering_id == machine.serviceofferingid
            && deploy.affinity_group_ids.iter().map(String::as_str).collect::<BTreeSet<_>>() == groups
    };
    let mut alike = candidates.iter().filter(is_like).map(|candidate| candidate.reservation.as_ref());
    let first = alike.next()??;
    alike.all(|other| other == Some(first)).then_some(first.0.as_str())
}

/// How old a count may be that only says what could be had: whoever takes a slot counts anew.
const RECENT: Duration = Duration::from_secs(5);

/// NodeClaims that use a reservation, by its name.
type Used = BTreeMap<String, BTreeSet<String>>;

/// Slots that launches under way have taken.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<BTreeMap<Scope, Used>>);

impl Slots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Scope, Used>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot, held until dropped; or none, where none is needed.
pub(crate) struct Slot<'a> {
    of: Option<(&'a Slots, Scope, String, String)>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some((slots, scope, reservation, uid)) = &self.of
            && let Some(used) = slots.lock().get_mut(scope).and_then(|used| used.get_mut(reservation))
        {
            used.remove(uid);
        }
    }
}

impl Shared {
    /// The NodeClaims whose machines use the reservations of a NodeClass. Nothing is asked where it has none.
    pub(crate) async fn used_reservations(&self, resolved: &Resolved) -> Result<Used, ApiError> {
        if resolved.spec.reservations.is_empty() {
            return Ok(Used::new());
        }
        let machines = self.inventory.recent(&resolved.scope, RECENT).await?;
        Ok(self.used_by(&machines, &resolved.scope))
    }

    fn used_by(&self, machines: &[VirtualMachine], scope: &Scope) -> Used {
        let mut used = self.slots.lock().get(scope).cloned().unwrap_or_default();
        for machine in machines.iter().filter(|machine| is_alive(machine)) {
            if let Some(reservation) = machine.tag(labels::TAG_RESERVATION) {
                let uid = machine.tag(labels::TAG_NODE_CLAIM_UID).unwrap_or(&machine.id);
                used.entry(reservation.to_owned()).or_default().insert(uid.to_owned());
            }
        }
        used
    }

    /// A slot for this claim's machine; nothing if the reservation is used up.
    pub(crate) async fn reserve(
        &self,
        uid: &str,
        candidate: &Candidate,
    ) -> Result<Option<Slot<'_>>, ApiError> {
        let Some((reservation, count)) = &candidate.reservation else { return Ok(Some(Slot { of: None })) };
        let scope = &candidate.deploy.scope;
        let machines = self.inventory.fresh(scope, Care::Complete).await?;
        let mut used = self.used_by(&machines, scope).remove(reservation).unwrap_or_default();
        let mut slots = self.slots.lock();
        let taken = slots.entry(scope.clone()).or_default().entry(reservation.clone()).or_default();
        used.extend(taken.iter().cloned());
        used.remove(uid);
        if i64::try_from(used.len()).unwrap_or(i64::MAX) >= *count {
            return Ok(None);
        }
        taken.insert(uid.to_owned());
        Ok(Some(Slot { of: Some((&self.slots, scope.clone(), reservation.clone(), uid.to_owned())) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::model::{Named, Shown};
    use crate::client::requests::Deploy;
    use crate::quota::Need;

    fn candidate(reservation: Option<&str>, groups: &[&str]) -> Candidate {
        let deploy = Deploy {
            service_offering_id: "small".into(),
            affinity_group_ids: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Deploy::default()
        };
        Candidate {
            type_name: "small".into(),
            zone_id: "a".into(),
            zone_name: "a".into(),
            offering_name: "small".into(),
            network_name: "net".into(),
            need: Need { cpu: 1, memory_mib: 1024, gpus: 0, volumes: 1, storage_gb: 10 },
            reservation: reservation.map(|name| (name.to_owned(), 2)),
            group_refused_as: None,
            deploy,
        }
    }

    #[test]
    fn a_machine_whose_tags_were_lost_counts_against_the_reservation_only_it_can_be_of() {
        let machine = VirtualMachine {
            zoneid: "a".into(),
            serviceofferingid: "small".into(),
            affinitygroup: [Named { id: "rack".into(), ..Named::default() }].into_iter().collect(),
            ..VirtualMachine::default()
        };
        let reserved = candidate(Some("rack-7"), &["rack"]);
        let plain = candidate(None, &[]);
        assert_eq!(of_untagged(&machine, &[plain.clone(), reserved.clone()]), Some("rack-7"));
        let outside = VirtualMachine { affinitygroup: Shown::default(), ..machine.clone() };
        assert_eq!(of_untagged(&outside, &[reserved.clone(), plain]), None, "made outside of it");
        let alike = candidate(None, &["rack"]);
        assert_eq!(of_untagged(&machine, &[reserved, alike]), None, "nobody can tell");
    }
}
