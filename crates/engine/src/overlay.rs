//! NodeOverlays: changes to what instance types cost and have, before anything is decided with them.
//!
//! Overlays apply heaviest first, equals in reverse order of name. The first to set a price or a resource wins; an overlay that
//! would set one again at the same weight is rejected as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::instance_type::{InstanceType, Offering};
use crate::labels::{self, NODE_POOL, Text};
use crate::node_pool::{InstanceTypes, NodeOverlay, NodePool};
use crate::requirement::Requirement;
use crate::requirements::Requirements;
use crate::resources::Resources;
use crate::snapshot::Snapshot;
use crate::templates::overlay_requirement_problems;

/// What became of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayVerdict {
    /// It applies.
    Applied,
    /// It is not valid: the problems.
    Invalid(String),
    /// It clashes with another of the same weight.
    Conflict,
}

#[derive(Default)]
struct TypeUpdate {
    /// By offering: the change and the weight of the overlay that touched it last.
    prices: BTreeMap<String, (Text, i32)>,
    capacity: Resources,
    last_capacity: Option<(Resources, i32)>,
}

/// Instance types of every pool with overlays applied, and what became of each overlay.
#[derive(Default)]
pub struct Overlaid {
    updates: BTreeMap<(Text, Text), TypeUpdate>,
    /// By overlay name.
    pub verdicts: BTreeMap<Text, OverlayVerdict>,
}

/// Evaluates all overlays against all pools.
pub fn evaluate(snapshot: &Snapshot) -> Overlaid {
    let mut result = Overlaid::default();
    let mut overlays: Vec<&NodeOverlay> = snapshot.overlays.iter().collect();
    overlays.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| b.name.cmp(&a.name)));
    for overlay in overlays {
        let verdict = result.apply(overlay, snapshot);
        result.verdicts.insert(overlay.name.clone(), verdict);
    }
    result
}

fn problems(overlay: &NodeOverlay, snapshot: &Snapshot) -> Vec<String> {
    let mut problems = overlay_requirement_problems(&overlay.requirements, snapshot);
    for (name, _) in overlay.capacity.iter().flat_map(Resources::iter) {
        if matches!(name.as_ref(), "cpu" | "memory" | "ephemeral-storage" | "pods") {
            problems.push(format!("invalid capacity: {name} in resource, restricted"));
        }
    }
    if let Some(price) = &overlay.price
        && adjusted_price(0.0, price).is_none()
    {
        problems.push(format!("invalid price {price:?}"));
    }
    problems
}

impl Overlaid {
    fn apply(&mut self, overlay: &NodeOverlay, snapshot: &Snapshot) -> OverlayVerdict {
        let problems = problems(overlay, snapshot);
        if !problems.is_empty() {
            return OverlayVerdict::Invalid(problems.join("; "));
        }
        let wanted = match Requirements::from_selectors(&overlay.requirements) {
            Ok(wanted) => wanted,
            Err(error) => return OverlayVerdict::Invalid(error.to_string()),
        };
        let well_known = |key: &str| {
            labels::WELL_KNOWN.contains(&key) || snapshot.provider.well_known_labels.contains(key)
        };
        let mut affected: Vec<((Text, Text), Vec<String>)> = Vec::new();
        for pool in &snapshot.node_pools {
            for instance_type in pool.instance_types.list() {
                let offerings = selected_offerings(pool, instance_type, &wanted, &well_known);
                if !offerings.is_empty() {
                    affected.push(((pool.name.clone(), instance_type.name.clone()), offerings));
                }
            }
        }
        if affected.iter().any(|(at, offerings)| self.conflicts(at, offerings, overlay)) {
            return OverlayVerdict::Conflict;
        }
        for (at, offerings) in affected {
            self.store(at, offerings, overlay);
        }
        OverlayVerdict::Applied
    }

    fn conflicts(&self, at: &(Text, Text), offerings: &[String], overlay: &NodeOverlay) -> bool {
        let Some(update) = self.updates.get(at) else { return false };
        let price = overlay.price.is_some()
            && offerings
                .iter()
                .any(|o| update.prices.get(o).is_some_and(|(_, weight)| *weight == overlay.weight));
        // Only the overlay applied last is compared with, as upstream does.
        let capacity = overlay.capacity.as_ref().zip(update.last_capacity.as_ref()).is_some_and(
            |(wanted, (last, weight))| {
                *weight == overlay.weight && wanted.iter().any(|(name, _)| last.get(name).is_some())
            },
        );
        price || capacity
    }

    fn store(&mut self, at: (Text, Text), offerings: Vec<String>, overlay: &NodeOverlay) {
        let update = self.updates.entry(at).or_default();
        if let Some(price) = &overlay.price {
            for offering in offerings {
                let entry = update.prices.entry(offering).or_insert_with(|| (price.clone(), overlay.weight));
                entry.1 = overlay.weight;
            }
        }
        if let Some(capacity) = &overlay.capacity {
            for (name, amount) in capacity.iter() {
                if update.capacity.get(name).is_none() {
                    update.capacity.set(name.clone(), *amount);
                }
            }
            update.last_capacity = Some((capacity.clone(), overlay.weight));
        }
    }

    /// The pool's instance types as overlays leave them; the same list when none touches it.
    pub fn types_of(&self, pool: &NodePool) -> Option<Arc<[InstanceType]>> {
        let InstanceTypes::Resolved(types) = &pool.instance_types else { return None };
        Some(self.of_pool(pool, types))
    }

    /// Instance types of a pool as overlays leave them; the same list when none touches it.
    pub(crate) fn of_pool(&self, pool: &NodePool, types: &Arc<[InstanceType]>) -> Arc<[InstanceType]> {
        let update = |t: &InstanceType| self.updates.get(&(pool.name.clone(), t.name.clone()));
        if !types.iter().any(|t| update(t).is_some()) {
            return types.clone();
        }
        types.iter().map(|t| update(t).map_or_else(|| t.clone(), |u| overlaid(t, u))).collect()
    }
}

fn overlaid(instance_type: &InstanceType, update: &TypeUpdate) -> InstanceType {
    let mut changed = instance_type.clone();
    if !update.capacity.is_empty() {
        changed.capacity = changed.capacity.overridden_by(&update.capacity);
        changed.capacity_overlaid = true;
    }
    for offering in &mut changed.offerings {
        let Some((change, _)) = update.prices.get(&offering.requirements.to_string()) else { continue };
        // Upstream's copy keeps only these; capacity and overhead overrides are lost.
        *offering = Offering {
            requirements: offering.requirements.clone(),
            price: adjusted_price(offering.price, change).unwrap_or(offering.price),
            available: offering.available,
            reservation_capacity: offering.reservation_capacity,
            price_overlaid: true,
            ..Offering::default()
        };
    }
    changed
}

/// Offerings the overlay changes, named by their requirements; all of them count, available or not.
fn selected_offerings(
    pool: &NodePool,
    instance_type: &InstanceType,
    wanted: &Requirements,
    well_known: &impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut own = Requirements::new();
    own.add(Requirement::one_of(NODE_POOL, [pool.name.clone()]));
    own.add_all(&Requirements::from_labels(&pool.labels));
    own.add_all(&instance_type.requirements);
    if own.compatible(wanted, |_| false).is_err() {
        return Vec::new();
    }
    let offerings = instance_type.offerings.iter();
    offerings
        .filter(|o| wanted.compatible(&o.requirements, well_known).is_ok())
        .map(|o| o.requirements.to_string())
        .collect()
}

/// A price after a change: empty leaves it, a number replaces it, a signed number or percentage moves it, never below zero.
pub fn adjusted_price(price: f64, change: &str) -> Option<f64> {
    if change.is_empty() {
        return Some(price);
    }
    if !change.starts_with(['+', '-']) {
        return number(change);
    }
    let moved = match change.strip_suffix('%') {
        Some(percent) => price * (1.0 + number(percent)? / 100.0),
        None => price + number(change)?,
    };
    Some(if moved >= 0.0 { moved } else { 0.0 })
}

/// A number that can be reckoned with: what is too large to be one is none.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_too_large_to_be_a_number_is_none() {
        let endless = "9".repeat(400);
        for change in [endless.clone(), format!("+{endless}"), format!("-{endless}"), format!("+{endless}%")]
        {
            assert_eq!(adjusted_price(1.0, &change), None, "{change}");
        }
        assert_eq!(adjusted_price(1.0, "2.5"), Some(2.5));
        assert_eq!(adjusted_price(1.0, "-3"), Some(0.0));
        assert_eq!(adjusted_price(2.0, "+50%"), Some(3.0));
    }
}
