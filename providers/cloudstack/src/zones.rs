//! Which zones a NodeClass may use.

use crate::client::model::Zone;

/// The zones of these names or ids that can be used, and those that cannot be found. Tenants do not see disabled zones, so
/// missing and disabled are the same to us.
pub(crate) fn resolve(wanted: &[String], there: &[Zone]) -> (Vec<Zone>, Vec<String>) {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for name in wanted {
        let zone = there.iter().find(|zone| zone.name == *name || zone.id == *name);
        match zone.filter(|zone| zone.allocationstate != "Disabled") {
            Some(zone) => found.push(zone.clone()),
            None => missing.push(name.clone()),
        }
    }
    (found, missing)
}
