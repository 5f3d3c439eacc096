//! One instance type as the file writes it, and what the provider makes of it.
//!
//! What kwok derives from an entry (the labels its nodes will have, the default overhead) is derived here in the same way. Beyond
//! kwok's own fields an entry may have `requirements`, `overhead`, `volumeAttachmentLimits`, `noKwokLabels`, and its offerings
//! `ReservationCapacity`, `CapacityOverride` and `OverheadOverride`, which recorded scenarios use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use karpenter_engine::ingest::Ingest;
use karpenter_engine::instance_type::{InstanceType, Offering, Overhead};
use karpenter_engine::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, Text, ZONE};
use karpenter_engine::requirement::{Operator, Requirement, SelectorRequirement};
use karpenter_engine::requirements::Requirements;
use karpenter_engine::resources::{Amount, CPU, MEMORY, PODS, Resources};
use karpenter_primitives::Quantity;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::labels::{INSTANCE_CPU, INSTANCE_FAMILY, INSTANCE_MEMORY, INSTANCE_SIZE};

/// What is wrong with one entry of an instance type file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// The entry's name or, if it has none, its place in the list: `#3` is the third.
    pub entry: String,
    /// The field; empty when it is the whole entry.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance type {}", self.entry)?;
        if !self.field.is_empty() {
            write!(f, ", {}", self.field)?;
        }
        write!(f, ": {}", self.problem)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) offerings: Vec<OfferingEntry>,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) operating_systems: Vec<String>,
    #[serde(default)]
    pub(super) resources: Amounts,
    #[serde(default)]
    pub(super) requirements: Vec<RequirementEntry>,
    pub(super) overhead: Option<OverheadEntry>,
    #[serde(default)]
    pub(super) volume_attachment_limits: BTreeMap<String, i64>,
    #[serde(default)]
    pub(super) no_kwok_labels: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct OfferingEntry {
    #[serde(alias = "price")]
    pub(super) price: f64,
    #[serde(alias = "available")]
    pub(super) available: Option<bool>,
    #[serde(alias = "reservationCapacity", default)]
    pub(super) reservation_capacity: i64,
    #[serde(alias = "requirements", default)]
    pub(super) requirements: Vec<RequirementEntry>,
    #[serde(alias = "capacityOverride", default)]
    pub(super) capacity_override: Option<Amounts>,
    #[serde(alias = "overheadOverride")]
    pub(super) overhead_override: Option<OverheadEntry>,
    /// Files of before 1.0 said these beside the price, where Go Karpenter overlooks them.
    #[serde(rename = "capacityType", default)]
    pub(super) old_capacity_type: Option<IgnoredAny>,
    #[serde(rename = "zone", default)]
    pub(super) old_zone: Option<IgnoredAny>,
}

impl OfferingEntry {
    fn outdated_field(&self) -> Option<(&'static str, &'static str)> {
        let old = [(&self.old_capacity_type, "capacityType", CAPACITY_TYPE), (&self.old_zone, "zone", ZONE)];
        old.into_iter().find(|(value, ..)| value.is_some()).map(|(_, field, key)| (field, key))
    }
}

#[derive(Deserialize)]
pub(super) struct RequirementEntry {
    key: String,
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

impl RequirementEntry {
    /// `key In [value]`.
    pub(super) fn is(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), operator: "In".to_owned(), values: Some(vec![value.to_owned()]) }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct OverheadEntry {
    kube_reserved: Option<Amounts>,
    system_reserved: Option<Amounts>,
    eviction_threshold: Option<Amounts>,
}

pub(super) type Amounts = BTreeMap<String, ApiQuantity>;

/// Reads one entry; `index` is its place in the list, from 0.
pub(super) fn read(text: &RawValue, index: usize) -> Result<Entry, EntryError> {
    let place = || format!("#{}", index + 1);
    let json = &mut serde_json::Deserializer::from_str(text.get());
    let entry: Entry = serde_path_to_error::deserialize(json).map_err(|error| {
        let path = error.path().to_string();
        EntryError {
            entry: name_of(text).filter(|name| !name.is_empty()).unwrap_or_else(place),
            field: if path == "." { String::new() } else { path },
            problem: error.into_inner().to_string(),
        }
    })?;
    if entry.name.is_empty() {
        let problem = "an instance type needs a name".to_owned();
        return Err(EntryError { entry: place(), field: "name".to_owned(), problem });
    }
    Ok(entry)
}

/// Whether an entry of a provider's file says all that a node needs. Without offerings or a platform nothing of the type could ever be
/// bought, without cpu or memory no pod would fit, and nobody would be told why.
pub(super) fn check_complete(entry: &Entry) -> Result<(), EntryError> {
    let is_required = |key: &str| entry.requirements.iter().any(|requirement| requirement.key == key);
    let has_amount = |name: &str| entry.resources.contains_key(name);
    let needs = [
        (!entry.offerings.is_empty(), "offerings", "list at least one"),
        (
            !entry.architecture.is_empty() || is_required(ARCH),
            "architecture",
            "say which, such as amd64 or arm64",
        ),
        (
            entry.operating_systems.iter().any(|os| !os.is_empty()) || is_required(OS),
            "operatingSystems",
            "list at least one, such as linux",
        ),
        (has_amount(CPU), "resources[cpu]", "say how much"),
        (has_amount(MEMORY), "resources[memory]", "say how much"),
    ];
    match needs.iter().find(|(is_there, ..)| !is_there) {
        None => Ok(()),
        Some((_, field, remedy)) => Err(EntryError {
            entry: entry.name.clone(),
            field: (*field).to_owned(),
            problem: format!("is missing; {remedy}"),
        }),
    }
}

/// The instance type an entry describes, with the label keys it and its offerings speak of.
pub(super) fn resolve(
    entry: &Entry,
    ingest: &mut Ingest,
) -> Result<(InstanceType, BTreeSet<Text>), EntryError> {
    let fail = |field: String, problem: String| EntryError { entry: entry.name.clone(), field, problem };
    let mut labels = BTreeSet::new();
    let mut capacity = Resources::from_iter([(PODS, Amount::units(110))]);
    capacity =
        capacity.overridden_by(&amounts(ingest, &entry.resources, "resources").map_err(|(f, p)| fail(f, p))?);
    if let Some((name, _)) = capacity.iter().find(|(_, a)| a.is_negative()) {
        return Err(fail(format!("resources[{name}]"), "must not be negative".into()));
    }
    let mut offerings = Vec::new();
    for (i, offering) in entry.offerings.iter().enumerate() {
        let at = |field: &str| format!("offerings[{i}].{field}");
        if !offering.price.is_finite() || offering.price < 0.0 {
            return Err(fail(at("Price"), format!("{} is no price", offering.price)));
        }
        if let Some((field, key)) = offering.outdated_field() {
            let problem =
                format!("is of an old format; write a requirement {key} In [...] under Requirements");
            return Err(fail(at(field), problem));
        }
        let requirements =
            requirements(&offering.requirements, &mut labels).map_err(|p| fail(at("Requirements"), p))?;
        let capacity_override = match &offering.capacity_override {
            Some(list) => amounts(ingest, list, &at("CapacityOverride")).map_err(|(f, p)| fail(f, p))?,
            None => Resources::new(),
        };
        let overhead_override = match &offering.overhead_override {
            Some(entry) => {
                Some(overhead(ingest, entry, &at("OverheadOverride")).map_err(|(f, p)| fail(f, p))?)
            }
            None => None,
        };
        offerings.push(Offering {
            requirements: ingest.requirements(requirements),
            price: offering.price,
            available: offering.available.unwrap_or(true),
            reservation_capacity: offering.reservation_capacity,
            capacity_override,
            overhead_override,
            price_overlaid: false,
        });
    }
    let overhead = match &entry.overhead {
        Some(entry) => overhead(ingest, entry, "overhead").map_err(|(f, p)| fail(f, p))?,
        None => default_overhead(),
    };
    let mut derived = derived_requirements(entry);
    for requirement in
        requirements(&entry.requirements, &mut labels).map_err(|p| fail("requirements".into(), p))?.iter()
    {
        derived.replace(requirement.clone());
    }
    let volume_limits = entry.volume_attachment_limits.iter().map(|(k, v)| (k.as_str().into(), *v)).collect();
    let kind = InstanceType {
        name: entry.name.as_str().into(),
        requirements: derived,
        offerings,
        capacity,
        overhead,
        volume_limits,
        capacity_overlaid: false,
    };
    Ok((kind, labels))
}

fn name_of(text: &RawValue) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text.get()).ok()?;
    Some(value.get("name")?.as_str()?.to_owned())
}

/// What kwok says of nodes of the type: identity, platform, where it is sold, and its own size labels.
fn derived_requirements(entry: &Entry) -> Requirements {
    let mut out = Requirements::new();
    let mut add = |key: &str, values: BTreeSet<&str>| out.add(Requirement::one_of(key, values));
    add(INSTANCE_TYPE, BTreeSet::from([entry.name.as_str()]));
    add(ARCH, BTreeSet::from([entry.architecture.as_str()]));
    add(OS, entry.operating_systems.iter().map(String::as_str).collect());
    for key in [ZONE, CAPACITY_TYPE] {
        let offered = entry.offerings.iter().flat_map(|o| &o.requirements).filter(|r| r.key == key);
        add(key, offered.flat_map(|r| r.values.iter().flatten()).map(String::as_str).collect());
    }
    if !entry.no_kwok_labels {
        let written = |name: &str| {
            let text = entry.resources.get(name).map_or("0", |q| q.0.as_str());
            Quantity::parse(text.trim()).map_or_else(|_| text.to_owned(), |q| q.to_string())
        };
        let (cpu, memory) = (written(CPU), written(MEMORY));
        let size = size_in_name(&entry.name).unwrap_or(&cpu);
        add(INSTANCE_SIZE, BTreeSet::from([size]));
        add(INSTANCE_FAMILY, BTreeSet::from([family(&entry.name)]));
        add(INSTANCE_CPU, BTreeSet::from([cpu.as_str()]));
        add(INSTANCE_MEMORY, BTreeSet::from([memory.as_str()]));
    }
    out
}

/// `large` in `m5.large`: word characters, a dot, then one of the sizes cloud providers use.
fn size_in_name(name: &str) -> Option<&str> {
    let (family, size) = name.split_once('.')?;
    let words = !family.is_empty() && family.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let known = matches!(size, "nano" | "micro" | "small" | "medium" | "large" | "metal")
        || size.strip_suffix("xlarge").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    (words && known).then_some(size)
}

/// Up to the first dot or dash; without either, the first character.
fn family(name: &str) -> &str {
    match name.find(['.', '-']) {
        Some(end) => &name[..end],
        None => name.char_indices().nth(1).map_or(name, |(end, _)| &name[..end]),
    }
}

/// kwok keeps 100m of cpu and 10Mi of memory for kubelet.
fn default_overhead() -> Overhead {
    let kube_reserved =
        Resources::from_iter([(CPU, Amount::milli(100)), (MEMORY, Amount::units(10 * 1024 * 1024))]);
    Overhead { kube_reserved, ..Overhead::default() }
}

fn overhead(ingest: &mut Ingest, entry: &OverheadEntry, field: &str) -> Result<Overhead, (String, String)> {
    let mut part = |list: &Option<Amounts>, name: &str| match list {
        Some(list) => amounts(ingest, list, &format!("{field}.{name}")),
        None => Ok(Resources::new()),
    };
    Ok(Overhead {
        kube_reserved: part(&entry.kube_reserved, "kubeReserved")?,
        system_reserved: part(&entry.system_reserved, "systemReserved")?,
        eviction_threshold: part(&entry.eviction_threshold, "evictionThreshold")?,
    })
}

/// The amounts of a resource list, or the field that holds none and why.
fn amounts(ingest: &mut Ingest, list: &Amounts, field: &str) -> Result<Resources, (String, String)> {
    ingest.resources(Some(list), field).map_err(|e| (e.field, e.problem))
}

fn requirements(entries: &[RequirementEntry], labels: &mut BTreeSet<Text>) -> Result<Requirements, String> {
    let mut out = Requirements::new();
    for entry in entries {
        let written = SelectorRequirement {
            key: entry.key.as_str().into(),
            operator: entry.operator.as_str().into(),
            values: entry.values.iter().flatten().map(|v| v.as_str().into()).collect(),
            min_values: None,
        };
        if matches!(Operator::parse(&entry.operator), Some(Operator::In)) && written.values.is_empty() {
            return Err(format!("{} In needs at least one value", entry.key));
        }
        labels.insert(written.key.clone());
        out.add(Requirement::from_selector(&written).map_err(|e| e.to_string())?);
    }
    Ok(out)
}
