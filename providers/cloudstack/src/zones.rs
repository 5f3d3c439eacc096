//! Which zones a NodeClass may use.

use crate::client::model::Zone;
use crate::naming::label_value;
use crate::nodeclass::SelectorTerm;
use crate::selection;

/// The region of a zone, as a label has it: the one of all, or else its own.
pub(crate) fn region(zone_name: &str, of_all: Option<&str>) -> String {
    label_value(of_all.unwrap_or(zone_name))
}

/// The zones of these names or ids, and those the terms select, that can be used, and those that cannot be found. Tenants do not see disabled zones, so
/// missing and disabled are the same to us.
pub(crate) fn resolve(wanted: &[String], terms: &[SelectorTerm], there: &[Zone]) -> (Vec<Zone>, Vec<String>) {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for name in wanted {
        let zone = there.iter().find(|zone| zone.name == *name || zone.id == *name);
        match zone.filter(|zone| zone.allocationstate != "Disabled") {
            Some(zone) => found.push(zone.clone()),
            None => missing.push(name.clone()),
        }
    }
    let usable = there.iter().filter(|zone| zone.allocationstate != "Disabled");
    for zone in usable {
        let tag = |key: &str| selection::tag_values(&zone.tags, key);
        let selected = terms.iter().any(|term| selection::matches(term, &zone.id, &zone.name, tag));
        if selected && !found.iter().any(|other: &Zone| other.id == zone.id) {
            found.push(zone.clone());
        }
    }
    (found, missing)
}
