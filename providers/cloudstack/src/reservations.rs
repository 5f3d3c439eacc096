//! Reserved capacity: hosts somebody has set aside for this account, with room for so many machines of an offering. CloudStack
//! knows such hosts (an affinity group of type ExplicitDedication leads to them) but no count, so the NodeClass says it.
//!
//! A machine that takes a slot carries the reservation's name as a tag. What is launched at the same time is counted by its
//! NodeClaim until its machine is listed with that tag.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
        let machines = self.inventory.fresh(scope).await?;
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
