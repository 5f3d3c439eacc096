//! Instance types as files describe them: the kwok provider's shape, with the additions scenarios need.
//!
//! What kwok derives from an entry (the labels its nodes will have, the default overhead) is derived here in the same way.
//! An entry that makes no sense is left out with the reason; the others stay.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use karpenter_engine::ingest::Ingest;
use karpenter_engine::instance_type::{InstanceType, Offering, Overhead};
use karpenter_engine::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, Text, ZONE};
use karpenter_engine::requirement::{Operator, Requirement, SelectorRequirement};
use karpenter_engine::requirements::Requirements;
use karpenter_engine::resources::{Amount, CPU, MEMORY, PODS, Resources};
use karpenter_primitives::Quantity;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::rejected::Rejected;

const KWOK_SIZE: &str = "karpenter.kwok.sh/instance-size";
const KWOK_FAMILY: &str = "karpenter.kwok.sh/instance-family";
const KWOK_CPU: &str = "karpenter.kwok.sh/instance-cpu";
const KWOK_MEMORY: &str = "karpenter.kwok.sh/instance-memory";

/// The kwok provider's API group, whose labels users may not invent.
pub(crate) const KWOK_GROUP: &str = "karpenter.kwok.sh";
/// Labels the kwok provider's nodes always have.
pub(crate) const KWOK_LABELS: [&str; 4] = [KWOK_SIZE, KWOK_FAMILY, KWOK_CPU, KWOK_MEMORY];

/// What can be bought.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) types: Vec<InstanceType>,
    /// Label keys the types and offerings speak of, which a claim need not define to be compatible.
    pub(crate) labels: BTreeSet<Text>,
}

impl Catalogue {
    /// Understands each entry on its own.
    pub(crate) fn read(
        file: &str,
        entries: &[&RawValue],
        ingest: &mut Ingest,
        rejected: &mut Vec<Rejected>,
    ) -> Self {
        let mut out = Self::default();
        let mut names = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            match read_entry(entry, ingest) {
                Ok((kind, labels)) if names.insert(kind.name.clone()) => {
                    out.types.push(kind);
                    out.labels.extend(labels);
                }
                Ok((kind, _)) => rejected.push(Rejected::new(
                    file,
                    format!("InstanceType/{}", kind.name),
                    "name",
                    "another instance type has the same name; the first one counts",
                )),
                Err(problem) => rejected.push(problem.at(file, index)),
            }
        }
        out
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    offerings: Vec<OfferingEntry>,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    operating_systems: Vec<String>,
    #[serde(default)]
    resources: Amounts,
    #[serde(default)]
    requirements: Vec<RequirementEntry>,
    overhead: Option<OverheadEntry>,
    #[serde(default)]
    volume_attachment_limits: BTreeMap<String, i64>,
    #[serde(default)]
    no_kwok_labels: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfferingEntry {
    #[serde(alias = "price")]
    price: f64,
    #[serde(alias = "available")]
    available: Option<bool>,
    #[serde(alias = "reservationCapacity", default)]
    reservation_capacity: i64,
    #[serde(alias = "requirements", default)]
    requirements: Vec<RequirementEntry>,
    #[serde(alias = "capacityOverride", default)]
    capacity_override: Option<Amounts>,
    #[serde(alias = "overheadOverride")]
    overhead_override: Option<OverheadEntry>,
}

#[derive(Deserialize)]
struct RequirementEntry {
    key: String,
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OverheadEntry {
    kube_reserved: Option<Amounts>,
    system_reserved: Option<Amounts>,
    eviction_threshold: Option<Amounts>,
}

type Amounts = BTreeMap<String, ApiQuantity>;

/// What is wrong with an entry, before it is known where the entry stands.
#[derive(Debug)]
struct EntryProblem {
    name: String,
    field: String,
    problem: String,
}

impl EntryProblem {
    fn at(self, file: &str, index: usize) -> Rejected {
        let name = if self.name.is_empty() { format!("#{}", index + 1) } else { self.name };
        Rejected::new(file, format!("InstanceType/{name}"), self.field, self.problem)
    }
}

fn read_entry(text: &RawValue, ingest: &mut Ingest) -> Result<(InstanceType, BTreeSet<Text>), EntryProblem> {
    let entry: Entry = serde_json::from_str(text.get()).map_err(|e| EntryProblem {
        name: name_of(text).unwrap_or_default(),
        field: String::new(),
        problem: e.to_string(),
    })?;
    let fail = |field: String, problem: String| EntryProblem { name: entry.name.clone(), field, problem };
    if entry.name.is_empty() {
        return Err(fail("name".into(), "an instance type needs a name".into()));
    }
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
            requirements,
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
    let mut derived = derived_requirements(&entry);
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
        add(KWOK_SIZE, BTreeSet::from([size]));
        add(KWOK_FAMILY, BTreeSet::from([family(&entry.name)]));
        add(KWOK_CPU, BTreeSet::from([cpu.as_str()]));
        add(KWOK_MEMORY, BTreeSet::from([memory.as_str()]));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Catalogue, Vec<String>) {
        let entries: Vec<&RawValue> = serde_json::from_str(text).expect("a list");
        let mut rejected = Vec::new();
        let catalogue = Catalogue::read("types.json", &entries, &mut Ingest::new(), &mut rejected);
        (catalogue, rejected.iter().map(ToString::to_string).collect())
    }

    fn values(kind: &InstanceType, key: &str) -> Vec<String> {
        kind.requirements
            .get(key)
            .map(|r| r.values.iter().map(ToString::to_string).collect())
            .unwrap_or_default()
    }

    const OFFERS: &str = r#""offerings":[
        {"Price":1.5,"Requirements":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},
                                     {"key":"topology.kubernetes.io/zone","operator":"In","values":["b"]}]},
        {"Price":2,"Available":false,"Requirements":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]},
                                     {"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}]}]"#;

    #[test]
    fn labels_are_derived_as_kwok_derives_them() {
        let text = format!(
            r#"[{{"name":"m5.2xlarge","architecture":"amd64","operatingSystems":["linux"],"resources":{{"cpu":"8000m","memory":"32768Mi"}},{OFFERS}}},
                {{"name":"c-4x-arm","architecture":"arm64","operatingSystems":["linux","windows"],"resources":{{"cpu":4}},{OFFERS}}}]"#
        );
        let (catalogue, rejected) = read(&text);
        assert_eq!(rejected, [] as [&str; 0]);
        let [m5, c4] = &catalogue.types[..] else { panic!("two types") };
        assert_eq!(values(m5, KWOK_SIZE), ["2xlarge"]);
        assert_eq!(values(m5, KWOK_FAMILY), ["m5"]);
        assert_eq!(values(m5, KWOK_CPU), ["8"]);
        assert_eq!(values(m5, KWOK_MEMORY), ["32Gi"]);
        assert_eq!(values(m5, ZONE), ["a", "b"]);
        assert_eq!(values(m5, CAPACITY_TYPE), ["on-demand", "spot"]);
        assert!(m5.offerings[0].available && !m5.offerings[1].available);
        assert_eq!(m5.capacity.amount(PODS), Amount::units(110));
        assert_eq!(m5.overhead.total().amount(CPU), Amount::milli(100));
        assert_eq!(values(c4, KWOK_SIZE), ["4"]);
        assert_eq!(values(c4, KWOK_FAMILY), ["c"]);
        assert_eq!(values(c4, KWOK_MEMORY), ["0"]);
    }

    #[test]
    fn requirements_of_the_file_replace_derived_ones_and_become_well_known() {
        let (catalogue, _) = read(
            r#"[{"name":"a","architecture":"amd64","operatingSystems":["linux"],"noKwokLabels":true,
                 "requirements":[{"key":"kubernetes.io/arch","operator":"In","values":["riscv"]},{"key":"gpu","operator":"DoesNotExist"}]}]"#,
        );
        assert_eq!(values(&catalogue.types[0], ARCH), ["riscv"]);
        assert!(catalogue.labels.contains("gpu"));
        assert!(catalogue.types[0].requirements.get(KWOK_CPU).is_none());
    }

    #[test]
    fn a_bad_entry_is_left_out_with_its_field_and_the_others_stay() {
        let (catalogue, rejected) = read(
            r#"[{"name":"good"},{"name":"bad","resources":{"cpu":"many"}},{"name":"good"},{"offerings":[]},
                {"name":"worse","offerings":[{"Price":-1}]},{"name":"odd","offerings":"none"}]"#,
        );
        assert_eq!(catalogue.types.len(), 1);
        assert_eq!(rejected.len(), 5, "{rejected:?}");
        assert!(rejected[0].starts_with("types.json: InstanceType/bad: resources[cpu]: "), "{}", rejected[0]);
        assert!(rejected[1].contains("InstanceType/good: name: another"), "{}", rejected[1]);
        assert!(rejected[2].contains("InstanceType/#4: name: "), "{}", rejected[2]);
        assert!(rejected[3].contains("offerings[0].Price"), "{}", rejected[3]);
        assert!(rejected[4].contains("InstanceType/odd"), "{}", rejected[4]);
    }
}
