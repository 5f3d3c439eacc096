//! Instance types and offerings of a NodeClass, and which scalable resource each offering leads to.
//!
//! Resources whose owner gave them the same instance type are one type with several offerings, provided that their nodes are
//! alike; otherwise the later ones get a name of their own. What nodes run under a name keeps it, whatever appears beside it: renamed,
//! all of them would be replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use karpenter_api::annotations::NODECLAIM_MIN_VALUES_RELAXED;
use karpenter_api::label_rules::LabelRules;
use karpenter_api::labels::{
    CAPACITY_TYPE, CAPACITY_TYPE_RESERVED, INSTANCE_TYPE, TOPOLOGY_REGION, TOPOLOGY_ZONE, WINDOWS_BUILD,
};
use karpenter_api::{NodeClaim, NodePool, Quantity};
use karpenter_cloudprovider::conversion;
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_engine::labels::{Labels, Text};
use karpenter_engine::requirement::{Operator, Requirement, RequirementError};
use karpenter_engine::requirements::Requirements;
use karpenter_engine::resources::Resources;

use super::blueprint::{Blueprint, Place};
use super::price::Price;
use super::{overhead, taints};
use crate::client::scalable::ScalableKey;
use crate::labels;

/// Labels of Kubernetes' own that nodes need not have, and that only an owner states.
const UNSTATED: [&str; 2] = [TOPOLOGY_REGION, WINDOWS_BUILD];

/// What a NodeClass offers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// As the core knows them.
    pub(crate) types: Arc<[InstanceType]>,
    /// Where each offering leads, in the order of types and offerings.
    pub(crate) entries: Vec<Entry>,
    /// Names that had to be changed because two resources of the same name differ.
    pub(crate) renamed: Vec<String>,
}

/// An offering and where it leads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) id: ScalableKey,
    /// Its type, as an index.
    pub(crate) instance_type: usize,
    /// Its offering within the type, as an index.
    pub(crate) offering: usize,
    /// The zone of its node.
    pub(crate) zone: Option<String>,
    /// The failure domain to ask for.
    pub(crate) failure_domain: Option<String>,
    pub(crate) price: Price,
    /// Why it cannot be had at the moment.
    pub(crate) unavailable: Option<String>,
    /// All labels of its node.
    pub(crate) labels: BTreeMap<String, String>,
    /// All taints of its node.
    pub(crate) taints: Vec<Taint>,
}

/// Why nothing in the catalog will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoOffer {
    /// A requirement of the NodeClaim means nothing.
    #[error(transparent)]
    Requirement(#[from] RequirementError),
    /// Nothing fits; what stood in the way of each.
    #[error("no scalable resource can serve this NodeClaim: {}", .0.join("; "))]
    Nothing(Vec<String>),
    /// What fits leaves less to choose from than the NodePool wants.
    #[error("minValues of {key} is {wanted}, and {reached} can be had")]
    TooFew {
        key: String,
        /// How many values of it are wanted.
        wanted: i64,
        /// How many there are.
        reached: usize,
    },
}

impl Catalog {
    /// The types and offerings of these resources; `unavailable` tells why one cannot be had at the moment.
    pub(crate) fn of(
        blueprints: &[Blueprint],
        unavailable: impl Fn(&ScalableKey, &Place) -> Option<String>,
    ) -> Self {
        let names = names(blueprints);
        let mut renamed = Vec::new();
        let mut groups: BTreeMap<String, Vec<&Blueprint>> = BTreeMap::new();
        for (blueprint, name) in blueprints.iter().zip(&names) {
            let wanted = &names_for(&blueprint.id, blueprint.named.as_deref())[0];
            let mut holders = blueprints.iter().zip(&names).filter(|(_, held)| *held == wanted);
            if let Some((holder, _)) = holders.next()
                && !are_alike(holder, blueprint)
            {
                renamed.push(format!(
                    "{} is offered as {name}: its nodes differ from those of {}, which is offered as {wanted}",
                    blueprint.id, holder.id
                ));
            }
            groups.entry(name.clone()).or_default().push(blueprint);
        }
        let mut catalog = Self { renamed, ..Self::default() };
        let mut types = Vec::new();
        for (index, (name, group)) in groups.into_iter().enumerate() {
            types.push(catalog.instance_type(index, &name, &group, &unavailable));
        }
        catalog.types = types.into();
        catalog
    }

    fn instance_type(
        &mut self,
        index: usize,
        name: &str,
        group: &[&Blueprint],
        unavailable: impl Fn(&ScalableKey, &Place) -> Option<String>,
    ) -> InstanceType {
        let mut offerings = Vec::new();
        let (mut zones, mut capacity_types) = (BTreeSet::new(), BTreeSet::new());
        for blueprint in group {
            for place in &blueprint.places {
                let reserved = blueprint.capacity_type == CAPACITY_TYPE_RESERVED;
                let used_up = || {
                    (reserved && blueprint.reservation <= 0)
                        .then(|| "all nodes of it that are paid for in advance are in use".to_owned())
                };
                let unavailable = unavailable(&blueprint.id, place).or_else(used_up);
                let mut labels = blueprint.labels.clone();
                labels.insert(INSTANCE_TYPE.to_owned(), name.to_owned());
                labels.insert(CAPACITY_TYPE.to_owned(), blueprint.capacity_type.clone());
                capacity_types.insert(blueprint.capacity_type.clone());
                let mut requirements = Requirements::new();
                requirements.add(Requirement::one_of(CAPACITY_TYPE, [blueprint.capacity_type.as_str()]));
                if let Some(zone) = &place.zone {
                    labels.insert(TOPOLOGY_ZONE.to_owned(), zone.clone());
                    requirements.add(Requirement::one_of(TOPOLOGY_ZONE, [zone.as_str()]));
                    zones.insert(zone.clone());
                }
                if reserved {
                    let id = crate::names::label_value(&blueprint.id.key.name);
                    requirements.add(Requirement::one_of(labels::RESERVATION_ID, [&*id]));
                    labels.insert(labels::RESERVATION_ID.to_owned(), id.into_owned());
                }
                self.entries.push(Entry {
                    id: blueprint.id.clone(),
                    instance_type: index,
                    offering: offerings.len(),
                    zone: place.zone.clone(),
                    failure_domain: place.failure_domain.clone(),
                    price: place.price,
                    unavailable: unavailable.clone(),
                    labels,
                    taints: blueprint.taints.clone(),
                });
                offerings.push(Offering {
                    requirements,
                    price: place.price.per_hour,
                    available: unavailable.is_none(),
                    reservation_capacity: if reserved { blueprint.reservation } else { 0 },
                    ..Offering::default()
                });
            }
        }
        let first = group.first();
        let texts = |labels: &BTreeMap<String, String>| {
            Labels::new(
                labels.iter().map(|(key, value)| (Text::from(key.as_str()), Text::from(value.as_str()))),
            )
        };
        let mut requirements =
            first.map_or_else(Requirements::new, |b| Requirements::from_labels(&texts(&b.labels)));
        requirements.add(Requirement::one_of(INSTANCE_TYPE, [name]));
        requirements.add(Requirement::one_of(CAPACITY_TYPE, capacity_types));
        if zones.is_empty() {
            // Whoever asks for a zone would be refused: where these nodes are is not known.
            requirements.add(Requirement::does_not_exist(TOPOLOGY_ZONE));
        } else if group.iter().all(|b| b.places.iter().all(|place| place.zone.is_some())) {
            requirements.add(Requirement::one_of(TOPOLOGY_ZONE, zones));
        }
        // The core takes a well-known label that a type does not mention for one that it may have, and would plan what is refused, or drifts,
        // again and again.
        for key in UNSTATED.into_iter().chain(labels::WELL_KNOWN) {
            if key != labels::RESERVATION_ID && first.is_some_and(|b| !b.labels.contains_key(key)) {
                requirements.add(Requirement::does_not_exist(key));
            }
        }
        // What one of them shows holds for all: they are said to be alike.
        let shown = group.iter().filter_map(|blueprint| blueprint.allocatable.as_ref());
        InstanceType {
            name: name.into(),
            requirements,
            offerings,
            capacity: capacity(group),
            overhead: first.map(|b| overhead::shown(&b.capacity, &b.overhead, shown)).unwrap_or_default(),
            volume_limits: first
                .map(|b| b.volume_limits.iter().map(|(name, limit)| (name.as_str().into(), *limit)).collect())
                .unwrap_or_default(),
            capacity_overlaid: false,
        }
    }

    /// All instance types, with the offerings available that are of these resources, as far as they were.
    pub(crate) fn offering(&self, of: impl Fn(&ScalableKey) -> bool) -> Vec<InstanceType> {
        let mut types = self.types.to_vec();
        for entry in self.entries.iter().filter(|entry| !of(&entry.id)) {
            types[entry.instance_type].offerings[entry.offering].available = false;
        }
        types
    }

    /// What could serve this NodeClaim, best first: the cheapest, then the one that leaves least over, then by name. `relaxed` lets go of
    /// `minValues`.
    pub(crate) fn choices(&self, claim: &NodeClaim, relaxed: bool) -> Result<Vec<&Entry>, NoOffer> {
        let requirements = conversion::requirements(claim)?;
        let requests = conversion::requests(claim);
        let own_labels = claim.metadata.labels.clone().unwrap_or_default();
        let mut against = Vec::new();
        let mut choices = Vec::new();
        for entry in &self.entries {
            let instance_type = &self.types[entry.instance_type];
            let allocatable = conversion::allocatable(instance_type);
            let refusal = refusal(entry, &requirements, &own_labels);
            let tainted = || {
                let undeclared = taints::undeclared(&entry.taints, taints::of_claim(claim));
                undeclared.first().map(|taint| format!("its nodes have the taint {}", taints::display(taint)))
            };
            let refusal = refusal.or_else(tainted).or_else(|| {
                (!requests.fits(&allocatable)).then(|| "the requested resources do not fit".to_owned())
            });
            match refusal.or_else(|| entry.unavailable.clone()) {
                Some(why) => against.push(format!("{}: {why}", entry.id)),
                None => {
                    let left = allocatable.minus(&requests);
                    choices.push((entry, left.amount("cpu"), left.amount("memory")));
                }
            }
        }
        if choices.is_empty() {
            if against.is_empty() {
                against.push("none takes part".to_owned());
            }
            return Err(NoOffer::Nothing(against));
        }
        let types = choices.iter().map(|(entry, _, _)| &self.types[entry.instance_type]);
        if let Some(too_few) = too_few(&requirements, types).filter(|_| !relaxed && !is_relaxed(claim)) {
            return Err(too_few);
        }
        choices.sort_by(|(a, a_cpu, a_memory), (b, b_cpu, b_memory)| {
            let by_price = a.price.per_hour.total_cmp(&b.price.per_hour);
            by_price.then_with(|| (a_cpu, a_memory, &a.id, &a.zone).cmp(&(b_cpu, b_memory, &b.id, &b.zone)))
        });
        Ok(choices.into_iter().map(|(entry, _, _)| entry).collect())
    }

    /// Why no node of a resource meets the requirements of a NodePool; nothing if one does.
    pub(crate) fn refusal(&self, id: &ScalableKey, pool: &NodePool) -> Option<String> {
        let template = &pool.spec.template;
        let selectors: Vec<_> = template.spec.requirements.iter().map(conversion::selector).collect();
        let requirements = match Requirements::from_selectors(&selectors) {
            Ok(requirements) => requirements,
            Err(error) => return Some(error.to_string()),
        };
        let mut own = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
        // Labels that only users know are given to nodes by the NodePool itself.
        let rules = labels::label_rules(LabelRules::core());
        let unknown = requirements.iter().filter(|requirement| !rules.is_well_known(&requirement.key));
        own.extend(unknown.map(|requirement| (requirement.key.to_string(), String::new())));
        let mut entries = self.entries.iter().filter(|entry| entry.id == *id);
        let first = refusal(entries.next()?, &requirements, &own)?;
        entries.all(|entry| refusal(entry, &requirements, &own).is_some()).then_some(first)
    }

    /// The entry of a resource, in this zone if it has several.
    pub(crate) fn entry(&self, id: &ScalableKey, failure_domain: Option<&str>) -> Option<&Entry> {
        let mut theirs = self.entries.iter().filter(|entry| entry.id == *id);
        let exact = theirs.clone().find(|entry| entry.failure_domain.as_deref() == failure_domain);
        exact.or_else(|| theirs.next())
    }
}

/// Whether the core has let go of `minValues` for a NodeClaim.
fn is_relaxed(claim: &NodeClaim) -> bool {
    let relaxed = claim.metadata.annotations.as_ref();
    relaxed.and_then(|all| all.get(NODECLAIM_MIN_VALUES_RELAXED)).is_some_and(|relaxed| relaxed == "true")
}

/// Of which label these types have fewer values than required. Counted as the core does when it plans, or what it plans would be refused.
fn too_few<'a>(
    requirements: &Requirements,
    types: impl Iterator<Item = &'a InstanceType> + Clone,
) -> Option<NoOffer> {
    requirements.iter().find_map(|requirement| {
        let wanted = requirement.min_values?;
        let values = types.clone().filter_map(|t| t.requirements.get(&requirement.key));
        let values = values.flat_map(|own| &own.values).filter(|value| requirement.has(value));
        let reached = values.collect::<BTreeSet<_>>().len();
        let is_enough = i64::try_from(reached).is_ok_and(|reached| reached >= wanted);
        (!is_enough).then(|| NoOffer::TooFew { key: requirement.key.to_string(), wanted, reached })
    })
}

/// What nodes of a group have: what they are said to have, and of what nobody says the least that any of their Nodes shows.
fn capacity(group: &[&Blueprint]) -> Resources {
    let Some(first) = group.first() else { return Resources::default() };
    let mut besides: BTreeMap<&str, &Quantity> = BTreeMap::new();
    for (resource, usable) in group.iter().flat_map(|blueprint| &blueprint.besides) {
        let least = besides.entry(resource.as_str()).or_insert(usable);
        *least = (*least).min(usable);
    }
    let mut capacity = first.capacity.clone();
    capacity.extend(besides.into_iter().map(|(resource, usable)| (resource.to_owned(), usable.clone())));
    conversion::resources(&capacity)
}

/// Why the labels of an offering's node do not meet the requirements. Labels the requirements do not mention are no obstacle;
/// labels they ask for and the node lacks are, unless the NodeClaim itself sets them.
fn refusal(
    entry: &Entry,
    requirements: &Requirements,
    own_labels: &BTreeMap<String, String>,
) -> Option<String> {
    for requirement in requirements.iter() {
        let key = &*requirement.key;
        match entry.labels.get(key) {
            Some(value) if requirement.has(value) => {}
            Some(value) => return Some(format!("its {key} is {value:?}")),
            None if own_labels.contains_key(key) && key != TOPOLOGY_ZONE => {}
            None if matches!(requirement.operator(), Operator::NotIn | Operator::DoesNotExist) => {}
            None if key.starts_with("karpenter.sh/") => {}
            None => return Some(format!("its nodes have no {key}")),
        }
    }
    None
}

/// Whether nodes of both are the same to whoever asks for them.
fn are_alike(one: &Blueprint, other: &Blueprint) -> bool {
    (&one.capacity, &one.overhead, &one.labels, &one.volume_limits)
        == (&other.capacity, &other.overhead, &other.labels, &other.volume_limits)
}

/// The names a blueprint's type can have, best first: the one its owner gave it, else the resource's own; and others where that is
/// taken, the last of which nobody else has.
pub(super) fn names_for(id: &ScalableKey, named: Option<&str>) -> Vec<String> {
    let key = &id.key;
    let (mut names, own) = match named {
        Some(name) => (vec![name.to_owned()], format!("{name}-{}", key.name)),
        None => (vec![key.name.to_string()], format!("{}.{}", key.namespace, key.name)),
    };
    names.push(own.clone());
    if named.is_none() {
        names.push(format!("{own}-{}", key.name));
    }
    names.push(format!("{own}-{}", id.kind.as_str().to_lowercase()));
    // Nodes are labelled with it.
    names.into_iter().map(|name| crate::names::label_value(&name).into_owned()).collect()
}

/// The name of each blueprint's type. Of those that want the same and are not alike, the one whose nodes run under it gets it, else
/// the older one.
fn names(blueprints: &[Blueprint]) -> Vec<String> {
    let names_of = |blueprint: &Blueprint| names_for(&blueprint.id, blueprint.named.as_deref());
    let mut order: Vec<(usize, Vec<String>)> = blueprints.iter().map(names_of).enumerate().collect();
    order.sort_by_key(|(index, names)| {
        let blueprint = &blueprints[*index];
        let runs = names.iter().any(|name| blueprint.carried.contains(name));
        (!runs, blueprint.created, *index)
    });
    let mut holders: BTreeMap<String, &Blueprint> = BTreeMap::new();
    let mut names = vec![String::new(); blueprints.len()];
    for (index, mut wanted) in order {
        let blueprint = &blueprints[index];
        let last_resort = wanted[wanted.len() - 1].clone();
        wanted.sort_by_key(|name| !blueprint.carried.contains(name));
        let is_free = |name: &String| holders.get(name).is_none_or(|holder| are_alike(holder, blueprint));
        let name = wanted.into_iter().find(is_free).unwrap_or(last_resort);
        holders.entry(name.clone()).or_insert(blueprint);
        names[index] = name;
    }
    names
}
