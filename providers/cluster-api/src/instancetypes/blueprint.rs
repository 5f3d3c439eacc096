//! What one scalable resource would give: name, labels, capacity, where, at what price; or which key keeps it from being offered.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use karpenter_api::ResourceList;
use karpenter_api::labels::{
    CAPACITY_TYPE, CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_RESERVED, CAPACITY_TYPE_SPOT, INSTANCE_TYPE,
    TOPOLOGY_ZONE,
};
use karpenter_engine::instance_type::Overhead;
use karpenter_engine::resources::Amount;

use super::annotated::Annotated;
use super::catalog::names_for;
use super::price::{Price, Sources, Told, price};
use super::{capacity, devices, node_labels, overhead, taints};
use crate::client::fields::Malformed;
use crate::client::scalable::{Scalable, ScalableKey};
use crate::client::sync_labels::SyncLabels;
use crate::client::template::Template;
use crate::names;
use crate::nodeclass::{ClusterAPINodeClassSpec, InstanceTypeOverride, LaunchMode};

/// What a scalable resource would give.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blueprint {
    pub(crate) id: ScalableKey,
    /// The instance type its owner named, if any.
    pub(crate) named: Option<String>,
    /// When the resource was made.
    pub(crate) created: Timestamp,
    /// The instance types that its nodes run as.
    pub(crate) carried: BTreeSet<String>,
    /// Labels of its nodes, but for instance type, zone and capacity type.
    pub(crate) labels: BTreeMap<String, String>,
    /// What its nodes are said to have.
    pub(crate) capacity: ResourceList,
    /// What pods may use of what nobody says they have, as a Node of it shows.
    pub(crate) besides: ResourceList,
    /// What of it pods cannot use, as far as that is said.
    pub(crate) overhead: Overhead,
    /// What of it pods can use, as a Node of it shows where nobody says.
    pub(crate) allocatable: Option<ResourceList>,
    /// How what kubelet keeps of a Node of it differs from what is said.
    pub(crate) kubelet_differs: Option<String>,
    /// Volumes per CSI driver.
    pub(crate) volume_limits: BTreeMap<String, i64>,
    /// Taints of its nodes.
    pub(crate) taints: Vec<Taint>,
    /// How it is paid for.
    pub(crate) capacity_type: String,
    /// Whether its owner says how, so that nothing else can.
    pub(crate) capacity_type_told: bool,
    /// How many nodes of it are paid for in advance.
    pub(crate) reservation: i64,
    /// Where its nodes can be.
    pub(crate) places: Vec<Place>,
    /// Whether its owner says in which zone, so that nothing else can.
    pub(crate) zone_told: bool,
    /// What is said of it and not reckoned with.
    pub(crate) ignored: Vec<Ignored>,
}

/// Something that is not reckoned with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ignored {
    /// The reason of the event that tells so.
    pub(crate) reason: &'static str,
    /// What, where, and why not.
    pub(crate) what: Malformed,
}

/// One place a node can be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// The zone label of the node, if there is one.
    pub(crate) zone: Option<String>,
    /// The failure domain to ask for, in Machine mode.
    pub(crate) failure_domain: Option<String>,
    /// What a node costs there.
    pub(crate) price: Price,
}

/// What a blueprint is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// The NodeClass's name, for messages.
    pub(crate) node_class: &'a str,
    pub(crate) spec: &'a ClusterAPINodeClassSpec,
    /// The Cluster's failure domains.
    pub(crate) failure_domains: &'a [String],
    /// Further labels that are copied to nodes.
    pub(crate) sync_labels: &'a SyncLabels,
    /// The architecture of nodes whose template does not say.
    pub(crate) default_arch: &'a str,
    /// The part of its memory that a machine never sees where nobody says, in millionths.
    pub(crate) vm_memory_overhead: u32,
    /// What Nodes of resources tell.
    pub(crate) learnt: &'a BTreeMap<ScalableKey, Learnt>,
    /// Resources whose nodes turned out to be spot.
    pub(crate) spot: &'a BTreeSet<ScalableKey>,
    /// Prices that are told outside the NodeClass.
    pub(crate) told: &'a Told,
}

/// What a Node told about its siblings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Learnt {
    pub(crate) capacity: ResourceList,
    /// What of it pods may use.
    pub(crate) allocatable: ResourceList,
}

impl Blueprint {
    /// What `scalable`, whose newest MachineSet is `set`, would give.
    pub(crate) fn of(
        scalable: &Scalable,
        set: Option<&Scalable>,
        template: Option<&Template>,
        around: Surroundings<'_>,
    ) -> Result<Self, Malformed> {
        let spec = around.spec;
        let mut labels =
            node_labels::node_labels(scalable, template, around.sync_labels, around.default_arch)?;
        let own = |key: &str| own(scalable, key).cloned();
        let mut ignored = Vec::new();
        let annotated_name = own(names::INSTANCE_TYPE);
        if let Some(name) = &annotated_name {
            node_labels::value_of(scalable, names::INSTANCE_TYPE, name)?;
        }
        let named = labels.remove(INSTANCE_TYPE).or(annotated_name);
        // What is said of the name that it gets where another one has the one it wants is said of it alone.
        let mut called = names_for(&scalable.id, named.as_deref());
        called.reverse();
        let entry = entry_of(scalable, &called, spec);
        let learnt = around.learnt.get(&scalable.id);
        let annotated = Annotated { scalable, set };
        let mut capacity =
            capacity_of(annotated, template, entry.and_then(|entry| entry.capacity.as_ref()), learnt, spec)?;
        let besides = learnt.map(|learnt| besides(learnt, &capacity)).unwrap_or_default();
        capacity.entry("pods".to_owned()).or_insert_with(capacity::default_pods);
        devices::driver(annotated)?;
        let kept = Kept::of(scalable, &capacity, learnt, around)?;
        let reservation = reservation(scalable)?;
        let told_type = labels.remove(CAPACITY_TYPE).or_else(|| own(names::CAPACITY_TYPE));
        // Who says how many nodes are paid for in advance says that they are.
        let told_type = told_type.or_else(|| reservation.map(|_| CAPACITY_TYPE_RESERVED.to_owned()));
        let capacity_type_told = told_type.is_some();
        let turned_out = around.spot.contains(&scalable.id);
        let capacity_type = capacity_type(scalable, template, told_type, turned_out)?;
        if reservation.is_some() && capacity_type != CAPACITY_TYPE_RESERVED {
            let problem = format!("is ignored: its nodes are said to be {capacity_type}");
            let what = scalable.malformed(names::RESERVATION, problem);
            ignored.push(Ignored { reason: "ReservationIgnored", what });
        }
        let sources = Sources {
            scalable,
            template,
            entry,
            pricing: spec.pricing.as_ref(),
            told: around.told,
            node_class: around.node_class,
        };
        let zone_label = labels.remove(TOPOLOGY_ZONE);
        let zone_told = zone_label.is_some();
        let mut places = Vec::new();
        for (zone, failure_domain) in places_of(scalable, zone_label, around) {
            if let Err(what) = check_zone(scalable, zone.as_deref(), failure_domain.as_deref(), around) {
                ignored.push(Ignored { reason: "FailureDomainIgnored", what });
                continue;
            }
            let price = price(sources, &called, zone.as_deref(), &capacity_type, &capacity)?;
            places.push(Place { zone, failure_domain, price });
        }
        if places.is_empty()
            && let Some(nowhere) = ignored.pop()
        {
            return Err(nowhere.what);
        }
        Ok(Self {
            id: scalable.id.clone(),
            created: scalable.created,
            carried: BTreeSet::new(),
            overhead: kept.overhead,
            allocatable: kept.allocatable,
            kubelet_differs: kept.differs,
            volume_limits: capacity::volume_limits(annotated)?,
            taints: taints::taints(scalable)?,
            named,
            labels,
            capacity,
            besides,
            capacity_type,
            capacity_type_told,
            reservation: reservation.unwrap_or(0),
            places,
            zone_told,
            ignored,
        })
    }
}

/// What the annotation of a resource says; an empty one says nothing.
fn own<'a>(scalable: &'a Scalable, key: &str) -> Option<&'a String> {
    scalable.annotations.get(key).filter(|text| !text.is_empty())
}

/// The NodeClass's entry for a resource, by the names it may be called by, or by its own.
fn entry_of<'a>(
    scalable: &Scalable,
    called: &[String],
    spec: &'a ClusterAPINodeClassSpec,
) -> Option<&'a InstanceTypeOverride> {
    let entries = || spec.instance_types.iter().flatten();
    let entry = called.iter().find_map(|name| entries().find(|entry| entry.name == *name));
    entry.or_else(|| entries().find(|entry| entry.name == *scalable.id.key.name))
}

/// What nodes have: as annotations, template or the NodeClass (`told`) say, else as one of them shows.
fn capacity_of(
    annotated: Annotated<'_>,
    template: Option<&Template>,
    told: Option<&ResourceList>,
    learnt: Option<&Learnt>,
    spec: &ClusterAPINodeClassSpec,
) -> Result<ResourceList, Malformed> {
    // Kubelet is told so where Machines are cloned; elsewhere the resource's owner knows better.
    let makes_machines = spec.launch_mode == Some(LaunchMode::Machine);
    let owner_says = || annotated.get(&format!("{}maxPods", names::CAPACITY_DOMAIN)).is_some();
    let max_pods = spec.kubelet.as_ref().and_then(|kubelet| kubelet.max_pods);
    let max_pods = max_pods.filter(|_| makes_machines || !owner_says());
    capacity::capacity(annotated, template, told, max_pods).or_else(|missing| {
        // A Node tells only what nobody else does: resources that are described alike are of one type, whether or not one of
        // them has had a Node to look at.
        let learnt = learnt.ok_or(missing)?;
        let mut told = told.cloned().unwrap_or_default();
        for (resource, quantity) in &learnt.capacity {
            told.entry(resource.clone()).or_insert_with(|| quantity.clone());
        }
        capacity::capacity(annotated, template, Some(&told), max_pods)
    })
}

/// What pods cannot use of nodes.
struct Kept {
    overhead: Overhead,
    /// What they can use, as a Node shows; `None` where somebody says what is kept.
    allocatable: Option<ResourceList>,
    /// How that differs from what is said.
    differs: Option<String>,
}

impl Kept {
    fn of(
        scalable: &Scalable,
        capacity: &ResourceList,
        learnt: Option<&Learnt>,
        around: Surroundings<'_>,
    ) -> Result<Self, Malformed> {
        let kubelet = overhead::told(scalable, around.spec.kubelet.as_ref())?;
        let unseen_memory = overhead::unseen_memory(scalable, capacity)?;
        let unsaid = around.spec.default_reservations.unwrap_or_default();
        let mut overhead = overhead::overhead(kubelet.as_ref(), unsaid, capacity, around.node_class)?;
        // Before memory is added that the machine never sees: kubelet does not keep that.
        let differs = learnt.zip(kubelet.as_ref()).and_then(|(learnt, kubelet)| {
            overhead::difference(kubelet, unsaid, &overhead, &learnt.capacity, &learnt.allocatable)
        });
        let unseen =
            unseen_memory.unwrap_or_else(|| overhead::part_of_memory(capacity, around.vm_memory_overhead));
        if unseen > Amount::ZERO {
            let before = overhead.system_reserved.amount("memory");
            overhead.system_reserved.set("memory", before.plus(unseen));
        }
        let is_said = unseen_memory.is_some() || kubelet.as_ref().is_some_and(overhead::says);
        let shown = learnt.filter(|learnt| !is_said && !learnt.allocatable.is_empty());
        Ok(Self { overhead, allocatable: shown.map(|learnt| learnt.allocatable.clone()), differs })
    }
}

/// How many nodes are paid for in advance, if that is said.
fn reservation(scalable: &Scalable) -> Result<Option<i64>, Malformed> {
    let Some(text) = own(scalable, names::RESERVATION) else { return Ok(None) };
    let nodes = text.parse().ok().filter(|nodes| *nodes >= 0);
    let malformed = || scalable.malformed(names::RESERVATION, format!("{text:?} is not a number of nodes"));
    nodes.map(Some).ok_or_else(malformed)
}

/// What a Node has of which its siblings are not said to have any, or not how much. What kubelet keeps of that nobody says either. Huge
/// pages are not learnt: they would be taken off the memory, of which a Node shows what is left without them.
fn besides(learnt: &Learnt, said: &ResourceList) -> ResourceList {
    let is_unsaid = |name: &String| !said.contains_key(name) && !name.starts_with("hugepages-");
    let unsaid = learnt.capacity.iter().filter(|(name, _)| is_unsaid(name));
    let usable = unsaid.map(|(name, whole)| (name, learnt.allocatable.get(name).unwrap_or(whole)));
    usable
        .filter(|(_, usable)| !usable.is_zero())
        .map(|(name, usable)| (name.clone(), usable.clone()))
        .collect()
}

fn capacity_type(
    scalable: &Scalable,
    template: Option<&Template>,
    told: Option<String>,
    turned_out_spot: bool,
) -> Result<String, Malformed> {
    let is_spot = turned_out_spot || template.is_some_and(|template| template.spot);
    let otherwise = if is_spot { CAPACITY_TYPE_SPOT } else { CAPACITY_TYPE_ON_DEMAND };
    let found = told.unwrap_or_else(|| otherwise.to_owned());
    let known = [CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_SPOT, CAPACITY_TYPE_RESERVED];
    if known.contains(&found.as_str()) {
        Ok(found)
    } else {
        Err(scalable.malformed(CAPACITY_TYPE, format!("{found:?} is none of {}", known.join(", "))))
    }
}

/// That nodes can be labelled with the zone of a failure domain.
fn check_zone(
    scalable: &Scalable,
    zone: Option<&str>,
    failure_domain: Option<&str>,
    around: Surroundings<'_>,
) -> Result<(), Malformed> {
    let Some((zone, domain)) = zone.zip(failure_domain) else { return Ok(()) };
    let mapped = around.spec.failure_domain_zones.as_ref().is_some_and(|zones| zones.contains_key(domain));
    let key = format!("spec.failureDomainZones[{domain}]");
    let checked = match zone {
        "" => Err(scalable.malformed(&key, "is empty")),
        zone if mapped => node_labels::value_of(scalable, &key, zone),
        zone => node_labels::value_of(scalable, &format!("failure domain {domain}"), zone),
    };
    checked.map(drop).map_err(|malformed| match mapped {
        true => Malformed { object: format!("ClusterAPINodeClass {}", around.node_class), ..malformed },
        false => {
            let problem = format!("{}; say by {key} of the NodeClass which zone it is", malformed.problem);
            Malformed { problem, ..malformed }
        }
    })
}

/// Zone and failure domain. A scaled resource has one place, and a zone only if someone says which; a Machine of its own can be
/// put anywhere unless its template is pinned.
fn places_of(
    scalable: &Scalable,
    zone_label: Option<String>,
    around: Surroundings<'_>,
) -> Vec<(Option<String>, Option<String>)> {
    let zone_of = |domain: &String| {
        let mapped = around.spec.failure_domain_zones.as_ref().and_then(|zones| zones.get(domain));
        mapped.unwrap_or(domain).clone()
    };
    let allowed = match scalable.failure_domains.as_slice() {
        [] => around.failure_domains,
        some => some,
    };
    let pinned = scalable.failure_domain.as_ref();
    let free = around.spec.launch_mode == Some(LaunchMode::Machine) && !allowed.is_empty();
    if let Some(zone) = zone_label {
        let of_zone = allowed.iter().filter(|domain| free && pinned.is_none() && zone_of(domain) == zone);
        let places: Vec<_> = of_zone.map(|domain| (Some(zone.clone()), Some(domain.clone()))).collect();
        let only = match scalable.failure_domains.as_slice() {
            [one] if free => Some(one),
            _ => None,
        };
        return match places.is_empty() {
            true => vec![(Some(zone), pinned.or(only).cloned())],
            false => places,
        };
    }
    if let Some(domain) = pinned {
        return vec![(Some(zone_of(domain)), Some(domain.clone()))];
    }
    if free {
        allowed.iter().map(|domain| (Some(zone_of(domain)), Some(domain.clone()))).collect()
    } else {
        vec![(None, None)]
    }
}
