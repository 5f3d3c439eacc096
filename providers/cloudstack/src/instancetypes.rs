//! What could be bought: service offerings as instance types. Pure.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::{ResourceList, labels as well_known};
use karpenter_cloudprovider::conversion;
use karpenter_engine::instance_type::{InstanceType, Offering, Overhead};
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::Requirements;
use karpenter_engine::resources::{Amount, Resources};

use crate::client::model::{ServiceOffering, Zone};
use crate::described::{self, Described};
use crate::naming::{digest, label_value};
use crate::nodeclass::{CloudStackNodeClassSpec, CustomOffering, Reservation};
use crate::selection::{self, glob};
use crate::{labels, zones};

/// Pods per node where the NodeClass does not say.
const MAX_PODS: i64 = 110;
/// A machine's kernel and firmware keep about this share of the memory it is sold with.
const MEMORY_LOST_PERCENT: i64 = 5;
/// The largest such share a NodeClass may name.
pub(crate) const MAX_MEMORY_LOST_PERCENT: i64 = 50;
/// Kept free so that eviction can act.
const EVICTION_MIB: i64 = 100;
/// The file system, and what partitions are beside it, keep about this share of the root disk.
const DISK_LOST_PERCENT: i64 = 5;
/// Kept free of the disk by kubelet, so that eviction can act.
const DISK_EVICTION_PERCENT: i64 = 10;
/// How fast the cores of a customised offering are that leaves it open, where the NodeClass does not say.
const CPU_MHZ: &str = "1000";
/// The detail that says it.
pub(crate) const CPU_SPEED: &str = "cpuSpeed";
/// Sizes of customised offerings where the NodeClass does not say.
const LADDER_CPUS: [i64; 5] = [1, 2, 4, 8, 16];
const LADDER_GIB_PER_CPU: [i64; 3] = [2, 4, 8];

/// No machine is larger; what says so is a slip of its maker's, and would be bought before anything else.
pub(crate) const MAX_CPUS: i64 = 4096;
/// 64 TiB.
pub(crate) const MAX_MEMORY_MIB: i64 = 64 << 20;
/// 64 TiB.
pub(crate) const MAX_DISK_GB: i64 = 64 << 10;

/// Whether a machine can be of this size.
fn can_be(cpu: i64, memory_mib: i64) -> bool {
    (1..=MAX_CPUS).contains(&cpu) && (1..=MAX_MEMORY_MIB).contains(&memory_mib)
}

/// What is wrong with the size of an offering, if anything is.
pub(crate) fn odd_size(offering: &ServiceOffering) -> Option<String> {
    if offering.iscustomized {
        return None;
    }
    let said =
        |number: Option<i64>| number.map_or_else(|| "no number of".to_owned(), |number| number.to_string());
    let fits = offering.cpunumber.zip(offering.memory).is_some_and(|(cpu, memory)| can_be(cpu, memory));
    let odd = || {
        format!(
            "{:?} has {} cores and {} MiB",
            offering.name,
            said(offering.cpunumber),
            said(offering.memory)
        )
    };
    (!fits).then(odd)
}

/// Whether an offering comes with a root disk that the NodeClass wants another for: the server refuses its machines.
pub(crate) fn keeps_its_root_disk(spec: &CloudStackNodeClassSpec, offering: &ServiceOffering) -> bool {
    offering.diskofferingstrictness && spec.root_disk_offering.is_some()
}

/// An offering in one size: what is deployed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Size {
    /// Name of the instance type.
    pub(crate) name: String,
    pub(crate) offering: ServiceOffering,
    pub(crate) cpu: i64,
    pub(crate) memory_mib: i64,
    /// What a customised offering must be told.
    pub(crate) details: BTreeMap<String, String>,
}

impl Size {
    /// How fast each of its cores is, if anybody says.
    pub(crate) fn core_mhz(&self) -> Option<i64> {
        let said = self.details.get(CPU_SPEED).and_then(|speed| speed.parse().ok());
        self.offering.cpuspeed.or(said)
    }
}

/// What a NodeClass may buy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Market {
    /// Zones with their sizes.
    pub(crate) zones: Vec<(Zone, Vec<Size>)>,
    /// Ids of those that have not all a machine needs: nothing can be had there, but what runs there is still sold.
    pub(crate) lacking: BTreeSet<String>,
}

/// Names of instance types that machines run under, with the offerings they are of.
pub(crate) type Names = BTreeSet<(String, String)>;

impl Market {
    /// Gives offerings that share a name without being the same thing names of their own: two in one zone, or of different
    /// sizes in different zones. The same size in several zones stays one instance type.
    ///
    /// What machines run under a name keeps it, whatever is added or removed beside it: renamed, all of them would be replaced.
    pub(crate) fn tell_apart(&mut self, carried: &Names) {
        let shape = |size: &Size| {
            let Size { offering, cpu, memory_mib, .. } = size;
            let gpus = (offering.gpucount, offering.gpucardname.clone());
            (
                *cpu,
                *memory_mib,
                gpus,
                offering.storagetype.clone(),
                offering.detail(well_known::CAPACITY_TYPE),
            )
        };
        let mut shapes = BTreeMap::new();
        let mut ambiguous = BTreeSet::new();
        for (_, sizes) in &self.zones {
            let mut here = BTreeSet::new();
            for size in sizes {
                let known = shapes.entry(size.name.clone()).or_insert_with(|| shape(size));
                if !here.insert(&size.name) || *known != shape(size) {
                    ambiguous.insert(size.name.clone());
                }
            }
        }
        let mut keepers = BTreeMap::new();
        for (_, sizes) in &mut self.zones {
            let mut here = BTreeSet::new();
            for size in sizes {
                let own = label_value(&format!("{}.{}", size.name, digest(&size.offering.id, 6)));
                let runs_as = |name: &String| carried.contains(&(name.clone(), size.offering.id.clone()));
                let keeps = if ambiguous.contains(&size.name) {
                    runs_as(&size.name)
                        && *keepers.entry(size.name.clone()).or_insert_with(|| shape(size)) == shape(size)
                        && here.insert(size.name.clone())
                } else {
                    runs_as(&size.name) || !runs_as(&own)
                };
                if !keeps {
                    size.name = own;
                }
            }
        }
    }

    /// The size an instance type stands for in a zone.
    pub(crate) fn size(&self, zone: &str, instance_type: &str) -> Option<&Size> {
        let (_, sizes) = self.zones.iter().find(|(there, _)| there.id == zone)?;
        sizes.iter().find(|size| size.name == instance_type)
    }
}

/// Whether the NodeClass selects this offering. CloudStack has no tags on offerings: details stand for them.
pub(crate) fn selects(spec: &CloudStackNodeClassSpec, offering: &ServiceOffering) -> bool {
    let lasts = !offering.isvolatile || spec.volatile_offerings == Some(true);
    let usable = !offering.issystem && lasts && matches!(offering.state.as_str(), "" | "Active");
    usable
        && spec
            .service_offering_selector_terms
            .iter()
            .any(|term| selection::matches_offering(term, offering, |key| tag(offering, key)))
}

/// What stands for a tag of an offering.
pub(crate) fn tag(offering: &ServiceOffering, key: &str) -> Vec<String> {
    let words = |text: &str| {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    match key {
        "hosttag" => words(&offering.hosttags),
        "storagetag" => words(&offering.storagetags),
        other => offering.detail(other).into_iter().collect(),
    }
}

/// The sizes of an offering: one, or several if it is customised.
pub(crate) fn sizes(spec: &CloudStackNodeClassSpec, offering: &ServiceOffering) -> Vec<Size> {
    if keeps_its_root_disk(spec, offering) {
        return Vec::new();
    }
    let name = label_value(&offering.name);
    if !offering.iscustomized {
        // An offering without a size is nothing a node could be made of.
        let size = offering.cpunumber.zip(offering.memory);
        let Some((cpu, memory_mib)) = size.filter(|(cpu, memory)| can_be(*cpu, *memory)) else {
            return Vec::new();
        };
        let details = BTreeMap::new();
        return vec![Size { name, offering: offering.clone(), cpu, memory_mib, details }];
    }
    let bound = |key: &str, otherwise: i64| {
        offering.detail(key).and_then(|value| value.parse().ok()).unwrap_or(otherwise)
    };
    let terms = &spec.service_offering_selector_terms;
    let wanted = |cpu: i64, memory_mib: i64| {
        terms.iter().any(|term| {
            selection::matches_offering(term, offering, |key| tag(offering, key))
                && selection::is_size(term, cpu, memory_mib)
        })
    };
    let is_it =
        |wanted: &&CustomOffering| glob(&wanted.offering, &offering.name) || wanted.offering == offering.id;
    let particular = spec.custom_offerings.iter().find(is_it).map(|wanted| wanted.sizes.clone());
    let custom = particular.or_else(|| spec.custom_sizes.clone()).unwrap_or_default();
    let or_ladder = |given: Option<Vec<i64>>, ladder: &[i64]| {
        given.filter(|sizes| !sizes.is_empty()).unwrap_or_else(|| ladder.to_vec())
    };
    let cpus = or_ladder(custom.cpus, &LADDER_CPUS);
    let per_cpu = or_ladder(custom.memory_per_cpu, &LADDER_GIB_PER_CPU);
    let mut sizes = Vec::new();
    for cpu in cpus {
        for gib in &per_cpu {
            let memory_mib = cpu.saturating_mul(*gib).saturating_mul(1024);
            let fits = can_be(cpu, memory_mib)
                && (bound("mincpunumber", 1)..=bound("maxcpunumber", i64::MAX)).contains(&cpu)
                && (bound("minmemory", 1)..=bound("maxmemory", i64::MAX)).contains(&memory_mib);
            if !fits || !wanted(cpu, memory_mib) {
                continue;
            }
            let mut details: BTreeMap<String, String> =
                [("cpuNumber".to_owned(), cpu.to_string()), ("memory".to_owned(), memory_mib.to_string())]
                    .into();
            // A fixed speed must not be sent.
            if offering.cpuspeed.is_none() {
                let said = spec.details.as_ref().and_then(|details| details.get(CPU_SPEED)).cloned();
                details.insert(CPU_SPEED.to_owned(), said.unwrap_or_else(|| CPU_MHZ.to_owned()));
            }
            let name = label_value(&format!("{}.{cpu}c-{}g", offering.name, cpu.saturating_mul(*gib)));
            sizes.push(Size { name, offering: offering.clone(), cpu, memory_mib, details });
        }
    }
    sizes
}

/// What kubelet and runtime keep: less of each further core, and a share of the memory.
fn overhead(spec: &CloudStackNodeClassSpec, cpu: i64, memory_mib: i64, disk: i64) -> Overhead {
    let of_cores = |cores: i64, millis: i64| cores.max(0) * millis;
    let cpu_millis = of_cores(cpu.min(1), 60)
        + of_cores((cpu - 1).min(1), 10)
        + of_cores((cpu - 2).min(2), 5)
        + of_cores(cpu - 4, 3);
    let mut kube_reserved = Resources::new();
    kube_reserved.set("cpu", Amount::milli(cpu_millis));
    kube_reserved.set("memory", Amount::units((256 + memory_mib * 3 / 100) << 20));
    let given = |list: &Option<ResourceList>| list.as_ref().map(conversion::resources).unwrap_or_default();
    for (name, amount) in given(&spec.kube_reserved).iter() {
        kube_reserved.set(name.clone(), *amount);
    }
    let mut eviction_threshold = Resources::new();
    eviction_threshold.set("memory", Amount::units(EVICTION_MIB << 20));
    eviction_threshold.set("ephemeral-storage", Amount::units(disk * DISK_EVICTION_PERCENT / 100));
    Overhead { kube_reserved, system_reserved: given(&spec.system_reserved), eviction_threshold }
}

/// What is known of the sizes of a market in its zones.
pub(crate) struct Quotation<P, A, S, M, R> {
    /// What an hour costs.
    pub(crate) price: P,
    /// Whether it can be had, by itself or from a reservation.
    pub(crate) available: A,
    /// How much a reservation has left.
    pub(crate) slots: S,
    /// Bytes of memory its nodes were seen to have, if any was.
    pub(crate) memory: M,
    /// How many gigabytes its root disk has.
    pub(crate) root_gb: R,
    /// The region of all zones; without it each zone is its own.
    pub(crate) region: Option<String>,
}

/// The architectures machines of each zone can have, by its id.
pub(crate) type Architectures<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// What is reserved is paid for already: it is taken before anything else, the cheaper ones first all the same.
const RESERVED_PRICE_FACTOR: f64 = 1e-7;

/// The instance types of a market.
pub(crate) fn build<P, A, S, M, R>(
    spec: &CloudStackNodeClassSpec,
    market: &Market,
    architectures: &Architectures<'_>,
    quotation: Quotation<P, A, S, M, R>,
) -> Vec<InstanceType>
where
    P: Fn(&Zone, &Size) -> f64,
    A: Fn(&Zone, &Size, Option<&Reservation>) -> bool,
    S: Fn(&Reservation) -> i64,
    M: Fn(&Size) -> Option<i64>,
    R: Fn(&Zone, &Size) -> i64,
{
    let mut types: BTreeMap<&str, Vec<(&Zone, &Size)>> = BTreeMap::new();
    for (zone, sizes) in &market.zones {
        for size in sizes {
            types.entry(&size.name).or_default().push((zone, size));
        }
    }
    types
        .into_values()
        .filter_map(|zones| zones.first().map(|(_, size)| (*size, zones.clone())))
        .map(|(size, zones)| {
            let lacks = |zone: &Zone| market.lacking.contains(&zone.id);
            // Pods are not spread over a zone that has nothing for them, unless there is no other.
            let nowhere = zones.iter().all(|(zone, _)| lacks(zone));
            let sold_in: Vec<&Zone> =
                zones.iter().map(|(zone, _)| *zone).filter(|zone| nowhere || !lacks(zone)).collect();
            let region = |zone: &Zone| zones::region(&zone.name, quotation.region.as_deref());
            let names = |of: &dyn Fn(&Zone) -> String| sold_in.iter().map(|zone| of(zone)).collect();
            let ids: BTreeSet<String> = zones.iter().map(|(_, size)| size.offering.id.clone()).collect();
            let capacity_type = capacity_type(spec, &size.offering);
            let is_of =
                |r: &&Reservation| glob(&r.offering, &size.offering.name) || r.offering == size.offering.id;
            let reservations: Vec<&Reservation> = spec.reservations.iter().filter(is_of).collect();
            let mut requirements = Requirements::new();
            let mut put = |key: &str, values: Vec<String>| requirements.add(Requirement::one_of(key, values));
            put(well_known::INSTANCE_TYPE, vec![size.name.clone()]);
            // A zone without any template is as good as one with all: nothing is had there, and what runs there stays.
            let archs = |zone: &Zone| architectures.get(zone.id.as_str()).filter(|archs| !archs.is_empty());
            let all_archs: BTreeSet<&str> =
                zones.iter().filter_map(|(zone, _)| archs(zone)).flatten().copied().collect();
            put(well_known::ARCH, all_archs.iter().map(|arch| (*arch).to_owned()).collect());
            put(well_known::OS, vec!["linux".to_owned()]);
            put(well_known::TOPOLOGY_ZONE, names(&|zone| label_value(&zone.name)));
            put(well_known::TOPOLOGY_REGION, names(&region));
            put(labels::ZONE_ID, names(&|zone| zone.id.clone()));
            put(labels::ZONE_NAME, names(&|zone| label_value(&zone.name)));
            let reserved = reservations.first().map(|_| well_known::CAPACITY_TYPE_RESERVED.to_owned());
            put(well_known::CAPACITY_TYPE, [capacity_type.to_owned()].into_iter().chain(reserved).collect());
            put(labels::SERVICE_OFFERING_ID, ids.into_iter().collect());
            put(labels::SERVICE_OFFERING_NAME, vec![label_value(&size.offering.name)]);
            put(labels::INSTANCE_CPU, vec![size.cpu.to_string()]);
            put(labels::INSTANCE_MEMORY, vec![size.memory_mib.to_string()]);
            put(labels::OFFERING_FAMILY, vec![label_value(family(&size.offering.name))]);
            // What differs from zone to zone is for each offering to say.
            let each: Vec<Described> = zones.iter().map(|(_, size)| described::of(size, spec)).collect();
            let differs = |key: &str| each.iter().any(|other| other.get(key) != each[0].get(key));
            for (key, value) in &each[0] {
                if !differs(key) {
                    requirements.add(described::requirement(key, value.as_deref()));
                }
            }
            if reservations.is_empty() {
                requirements.add(Requirement::does_not_exist(labels::RESERVATION_ID));
            }
            let mut capacity = Resources::new();
            capacity.set("cpu", Amount::units(size.cpu));
            let lost = spec.vm_memory_overhead_percent.unwrap_or(MEMORY_LOST_PERCENT);
            let guessed = (size.memory_mib * (100 - lost.clamp(0, MAX_MEMORY_LOST_PERCENT)) / 100) << 20;
            capacity.set("memory", Amount::units((quotation.memory)(size).unwrap_or(guessed)));
            capacity.set("pods", Amount::units(spec.max_pods.unwrap_or(MAX_PODS)));
            // The least that a node of it has anywhere.
            let disk_gb = zones.iter().map(|(zone, size)| (quotation.root_gb)(zone, size)).min().unwrap_or(0);
            let disk = (disk_gb.clamp(0, MAX_DISK_GB) << 30) / 100 * (100 - DISK_LOST_PERCENT);
            capacity.set("ephemeral-storage", Amount::units(disk));
            if let Some(count) = size.offering.gpucount.filter(|count| *count > 0) {
                capacity.set(described::gpu_resource(size, spec), Amount::units(count));
            }
            let sold_as = |zone: &Zone, size: &Size, capacity_type: &str, reservation: Option<&str>| {
                let mut requirements = Requirements::new();
                let mut put = |key: &str, value: &str| requirements.add(Requirement::one_of(key, [value]));
                put(well_known::TOPOLOGY_ZONE, &label_value(&zone.name));
                put(well_known::TOPOLOGY_REGION, &region(zone));
                put(well_known::CAPACITY_TYPE, capacity_type);
                put(labels::ZONE_ID, &zone.id);
                put(labels::ZONE_NAME, &label_value(&zone.name));
                put(labels::SERVICE_OFFERING_ID, &size.offering.id);
                requirements.add(described::requirement(labels::RESERVATION_ID, reservation));
                if let Some(archs) = archs(zone).filter(|archs| **archs != all_archs) {
                    requirements.add(Requirement::one_of(well_known::ARCH, archs.iter().copied()));
                }
                for (key, value) in described::of(size, spec).iter().filter(|(key, _)| differs(key)) {
                    requirements.add(described::requirement(key, value.as_deref()));
                }
                requirements
            };
            let mut offerings = Vec::new();
            for (zone, size) in &zones {
                let price = (quotation.price)(zone, size);
                offerings.push(Offering {
                    requirements: sold_as(zone, size, capacity_type, None),
                    price,
                    available: !lacks(zone) && (quotation.available)(zone, size, None),
                    ..Offering::default()
                });
                for reservation in &reservations {
                    let name = Some(reservation.name.as_str());
                    offerings.push(Offering {
                        requirements: sold_as(zone, size, well_known::CAPACITY_TYPE_RESERVED, name),
                        price: price * RESERVED_PRICE_FACTOR,
                        available: !lacks(zone) && (quotation.available)(zone, size, Some(*reservation)),
                        reservation_capacity: (quotation.slots)(reservation),
                        ..Offering::default()
                    });
                }
            }
            InstanceType {
                name: size.name.as_str().into(),
                requirements,
                offerings,
                capacity,
                overhead: overhead(spec, size.cpu, size.memory_mib, disk),
                ..InstanceType::default()
            }
        })
        .collect()
}

/// The offering's name up to its first separator: `k8s` of `k8s.small`.
fn family(name: &str) -> &str {
    name.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty()).unwrap_or(name)
}

/// On demand, unless the NodeClass or the offering's maker says otherwise: CloudStack itself has nothing that can be taken away
/// again.
fn capacity_type(spec: &CloudStackNodeClassSpec, offering: &ServiceOffering) -> &'static str {
    let of_pattern = |pattern: &&String| glob(pattern, &offering.name);
    // The longest pattern says most.
    let pattern = spec.capacity_types.keys().filter(of_pattern).max_by_key(|pattern| pattern.len());
    let said = pattern.map(|pattern| spec.capacity_types[pattern].clone());
    match said.or_else(|| offering.detail(well_known::CAPACITY_TYPE)).as_deref() {
        Some(well_known::CAPACITY_TYPE_SPOT) => well_known::CAPACITY_TYPE_SPOT,
        _ => well_known::CAPACITY_TYPE_ON_DEMAND,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::nodeclass::OfferingSelectorTerm;

    fn offering(value: serde_json::Value) -> ServiceOffering {
        serde_json::from_value(value).expect("an offering")
    }

    fn spec() -> CloudStackNodeClassSpec {
        CloudStackNodeClassSpec {
            service_offering_selector_terms: vec![OfferingSelectorTerm {
                name: Some("*".into()),
                ..OfferingSelectorTerm::default()
            }],
            ..CloudStackNodeClassSpec::default()
        }
    }

    fn types_of(spec: &CloudStackNodeClassSpec, market: &Market) -> Vec<InstanceType> {
        let quotation = Quotation {
            price: |_: &Zone, size: &Size| size.cpu as f64,
            available: |_: &Zone, _: &Size, _: Option<&Reservation>| true,
            slots: |reservation: &Reservation| reservation.count,
            memory: |_: &Size| None,
            root_gb: |_: &Zone, size: &Size| size.offering.rootdisksize.unwrap_or(20),
            region: None,
        };
        build(spec, market, &Architectures::new(), quotation)
    }

    #[test]
    fn a_customised_offering_has_the_sizes_that_are_said_of_it_or_of_all() {
        let custom = |name: &str| offering(json!({"id": name, "name": name, "iscustomized": true}));
        let mut spec = spec();
        spec.custom_sizes = serde_json::from_value(json!({"cpus": [2], "memoryPerCPU": [2]})).expect("sizes");
        spec.custom_offerings =
            serde_json::from_value(json!([{"offering": "gpu-*", "cpus": [8, 16], "memoryPerCPU": [4]}]))
                .expect("offerings");
        let names = |spec: &CloudStackNodeClassSpec, name: &str| -> Vec<String> {
            sizes(spec, &custom(name)).into_iter().map(|size| size.name).collect()
        };
        assert_eq!(names(&spec, "gpu-a"), ["gpu-a.8c-32g", "gpu-a.16c-64g"]);
        assert_eq!(names(&spec, "plain"), ["plain.2c-4g"]);
        spec.custom_offerings[0].offering = "plain".into();
        assert_eq!(names(&spec, "plain").len(), 2, "by its name or id");
    }

    #[test]
    fn the_node_class_says_what_is_spot_and_what_is_reserved() {
        let zone = Zone { id: "a".into(), name: "a".into(), ..Zone::default() };
        let one = offering(json!({"id": "1", "name": "small", "cpunumber": 2, "memory": 4096}));
        let mut spec = spec();
        spec.capacity_types = [("*".into(), "on-demand".into()), ("sm*".into(), "spot".into())].into();
        let market = Market { zones: vec![(zone, sizes(&spec, &one))], ..Market::default() };
        let capacity_types = |types: &[InstanceType]| -> Vec<String> {
            let of = |o: &Offering| {
                o.requirements
                    .get(well_known::CAPACITY_TYPE)
                    .and_then(|r| r.values.first())
                    .map(ToString::to_string)
            };
            types[0].offerings.iter().filter_map(of).collect()
        };
        assert_eq!(capacity_types(&types_of(&spec, &market)), ["spot"]);
        spec.capacity_types.clear();
        let reservation =
            Reservation { name: "r".into(), offering: "small".into(), count: 3, ..Reservation::default() };
        spec.reservations = vec![reservation];
        let types = types_of(&spec, &market);
        assert_eq!(capacity_types(&types), ["on-demand", "reserved"]);
        let reserved = &types[0].offerings[1];
        assert_eq!(reserved.reservation_capacity, 3);
        assert!(reserved.price < types[0].offerings[0].price, "taken first");
    }

    #[test]
    fn what_kubelet_keeps_and_how_gpus_are_called_can_be_said() {
        let zone = Zone { id: "a".into(), name: "a".into(), ..Zone::default() };
        let one = offering(json!({"id": "1", "name": "gpu", "cpunumber": 2, "memory": 4096, "gpucount": 1,
            "gpucardname": "MI300", "hosttags": "ssd"}));
        let mut spec: CloudStackNodeClassSpec = serde_json::from_value(json!({"zone": "a",
            "kubeReserved": {"cpu": "500m"}, "systemReserved": {"memory": "1Gi"}, "gpuResource": "amd.com/gpu"}))
        .expect("a spec");
        spec.service_offering_selector_terms = super::tests::spec().service_offering_selector_terms;
        let market = Market { zones: vec![(zone, sizes(&spec, &one))], ..Market::default() };
        let it = &types_of(&spec, &market)[0];
        assert_eq!(it.overhead.kube_reserved.get("cpu"), Some(Amount::milli(500)));
        assert!(it.overhead.kube_reserved.get("memory").is_some(), "the rest is as usual");
        assert_eq!(it.overhead.system_reserved.get("memory"), Some(Amount::units(1 << 30)));
        assert_eq!(it.capacity.get("amd.com/gpu"), Some(Amount::units(1)));
        assert!(it.requirements.get(labels::HOST_TAGS).is_some_and(|tags| tags.has("ssd")));
    }

    #[test]
    fn what_is_left_of_the_root_disk_for_pods_is_no_more_than_kubelet_gives() {
        let zone = Zone { id: "a".into(), name: "a".into(), ..Zone::default() };
        let one =
            offering(json!({"id": "1", "name": "one", "cpunumber": 2, "memory": 4096, "rootdisksize": 100}));
        let spec = spec();
        let market = Market { zones: vec![(zone, sizes(&spec, &one))], ..Market::default() };
        let it = &types_of(&spec, &market)[0];
        let of = |resources: &Resources| resources.amount("ephemeral-storage").as_units_ceil();
        let left = of(&it.capacity) - of(&it.overhead.eviction_threshold);
        // A file system of 96 % of its disk, of which kubelet keeps a tenth.
        assert!(left <= (100_i128 << 30) * 96 / 100 * 9 / 10, "{left}");
        assert!(left >= (100_i128 << 30) * 8 / 10, "not much is given away: {left}");
    }

    #[test]
    fn the_speed_of_a_customised_offering_can_be_said() {
        let mut spec = spec();
        let open = offering(json!({"id": "1", "name": "open", "iscustomized": true}));
        let size =
            |spec: &CloudStackNodeClassSpec, offering: &ServiceOffering| sizes(spec, offering).remove(0);
        assert_eq!(size(&spec, &open).details["cpuSpeed"], "1000");
        spec.details = Some([("cpuSpeed".to_owned(), "2400".to_owned())].into());
        let fast = size(&spec, &open);
        assert_eq!((fast.details["cpuSpeed"].as_str(), fast.core_mhz()), ("2400", Some(2400)));
        let fixed = offering(json!({"id": "2", "name": "fixed", "iscustomized": true, "cpuspeed": 2000}));
        let fixed = size(&spec, &fixed);
        assert!(!fixed.details.contains_key("cpuSpeed"), "a fixed speed must not be sent");
        assert_eq!(fixed.core_mhz(), Some(2000));
    }

    #[test]
    fn details_stand_for_the_tags_offerings_do_not_have() {
        let general = offering(
            json!({"id": "1", "name": "a", "serviceofferingdetails": {"compute-type": "general-purpose"}}),
        );
        let tags = Some([("compute-type".to_owned(), "general-purpose".to_owned())].into());
        let spec = CloudStackNodeClassSpec {
            service_offering_selector_terms: vec![OfferingSelectorTerm {
                tags,
                ..OfferingSelectorTerm::default()
            }],
            ..CloudStackNodeClassSpec::default()
        };
        assert!(selects(&spec, &general));
        assert!(!selects(&spec, &offering(json!({"id": "2", "name": "b"}))));
        let inactive = offering(
            json!({"id": "1", "name": "a", "state": "Inactive", "serviceofferingdetails": {"compute-type": "general-purpose"}}),
        );
        assert!(!selects(&spec, &inactive));
        for key in ["hosttag", "storagetag"] {
            let mut any = spec.clone();
            any.service_offering_selector_terms[0].tags = Some([(key.to_owned(), "*".to_owned())].into());
            let tagged =
                |tags: &str| offering(json!({"id": "1", "name": "a", "hosttags": tags, "storagetags": tags}));
            assert!(selects(&any, &tagged("ssd, ")), "{key}");
            assert!(!selects(&any, &tagged("")) && !selects(&any, &tagged(" , ")), "{key}: it has none");
        }
    }

    #[test]
    fn a_customised_offering_comes_in_sizes_within_its_bounds_and_no_speed_is_sent_that_is_fixed() {
        let custom = offering(
            json!({"id": "1", "name": "k8s.custom", "iscustomized": true, "cpuspeed": 1000,
            "serviceofferingdetails": {"mincpunumber": "1", "maxcpunumber": "4", "minmemory": "4096", "maxmemory": "16384"}}),
        );
        let sizes = sizes(&spec(), &custom);
        let names: Vec<&str> = sizes.iter().map(|size| size.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "k8s.custom.1c-4g",
                "k8s.custom.1c-8g",
                "k8s.custom.2c-4g",
                "k8s.custom.2c-8g",
                "k8s.custom.2c-16g",
                "k8s.custom.4c-8g",
                "k8s.custom.4c-16g"
            ]
        );
        assert!(sizes.iter().all(|size| !size.details.contains_key("cpuSpeed")));
        let no_size = offering(json!({"id": "2", "name": "odd"}));
        assert!(super::sizes(&spec(), &no_size).is_empty(), "no type of size zero");
    }

    #[test]
    fn what_no_machine_has_is_no_size() {
        for (cpu, memory) in
            [(0, 1024), (-1, 1024), (2, 0), (2, -5), (4097, 1024), (2, i64::MAX), (i64::MIN, 1)]
        {
            let odd = offering(json!({"id": "1", "name": "odd", "cpunumber": cpu, "memory": memory}));
            assert!(sizes(&spec(), &odd).is_empty() && odd_size(&odd).is_some(), "{cpu} {memory}");
        }
        let mut spec = spec();
        spec.custom_sizes =
            serde_json::from_value(json!({"cpus": [2, i64::MAX], "memoryPerCPU": [4, i64::MAX, -1]}))
                .expect("sizes");
        let custom = offering(json!({"id": "1", "name": "c", "iscustomized": true}));
        let names: Vec<String> = sizes(&spec, &custom).into_iter().map(|size| size.name).collect();
        assert_eq!(names, ["c.2c-8g"]);
        let vast = offering(
            json!({"id": "1", "name": "vast", "cpunumber": 4096, "memory": MAX_MEMORY_MIB, "rootdisksize": i64::MAX}),
        );
        let zone = Zone { id: "a".into(), name: "a".into(), ..Zone::default() };
        let market = Market { zones: vec![(zone, sizes(&spec, &vast))], ..Market::default() };
        let types = types_of(&spec, &market);
        let disk = types[0].capacity.get("ephemeral-storage").expect("a disk");
        assert!(disk <= Amount::units(MAX_DISK_GB << 30), "{disk:?}");
    }

    #[test]
    fn offerings_of_one_name_that_differ_are_told_apart_and_the_same_in_two_zones_are_one_type() {
        let zone = |id: &str| Zone { id: id.into(), name: id.into(), ..Zone::default() };
        let of = |id: &str, cpu: i64| {
            let one = offering(json!({"id": id, "name": "small", "cpunumber": cpu, "memory": 4096}));
            sizes(&spec(), &one)
        };
        let mut market =
            Market { zones: vec![(zone("a"), of("1", 2)), (zone("b"), of("2", 2))], ..Market::default() };
        market.tell_apart(&Names::new());
        let types = types_of(&spec(), &market);
        assert_eq!(types.iter().map(|it| it.name.to_string()).collect::<Vec<_>>(), ["small"]);
        let ids: Vec<String> = types[0]
            .offerings
            .iter()
            .filter_map(|o| {
                o.requirements.get(labels::SERVICE_OFFERING_ID)?.values.first().map(ToString::to_string)
            })
            .collect();
        assert_eq!(ids, ["1", "2"], "each zone has its own");
        let mut market = Market {
            zones: vec![(zone("a"), [of("1", 2), of("3", 2)].concat()), (zone("b"), of("2", 4))],
            ..Market::default()
        };
        market.tell_apart(&Names::new());
        let types = types_of(&spec(), &market);
        assert_eq!(types.len(), 3, "{types:?}");
    }

    #[test]
    fn a_name_machines_run_under_stays_whatever_is_added_or_removed_beside_it() {
        let zone = Zone { id: "a".into(), name: "a".into(), ..Zone::default() };
        let of = |id: &str, cpu: i64| {
            let one = offering(json!({"id": id, "name": "small", "cpunumber": cpu, "memory": 4096}));
            sizes(&spec(), &one)
        };
        let names = |sizes: Vec<Size>, carried: &[(&str, &str)]| -> Vec<String> {
            let carried = carried.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect();
            let mut market = Market { zones: vec![(zone.clone(), sizes)], ..Market::default() };
            market.tell_apart(&carried);
            market.zones[0].1.iter().map(|size| size.name.clone()).collect()
        };
        let apart = names([of("1", 2), of("0", 4)].concat(), &[]);
        assert!(apart.iter().all(|name| name.starts_with("small.")), "{apart:?}");
        let kept = names([of("0", 4), of("1", 2)].concat(), &[("small", "1")]);
        assert_eq!(kept, [apart[1].as_str(), "small"], "only what came later is renamed");
        assert_eq!(names(of("1", 2), &[(&apart[0], "1")]), [apart[0].as_str()], "nor is it renamed back");
        assert_eq!(names(of("1", 2), &[]), ["small"]);
        let both = names([of("0", 4), of("1", 2)].concat(), &[("small", "1"), ("small", "0")]);
        assert_eq!(both, ["small", apart[0].as_str()], "two are never one");
    }

    #[test]
    fn a_zone_that_lacks_something_is_still_sold_but_nothing_can_be_had_there() {
        let zone = |id: &str| Zone { id: id.into(), name: id.into(), ..Zone::default() };
        let one = offering(json!({"id": "1", "name": "small", "cpunumber": 2, "memory": 4096}));
        let zones = vec![(zone("a"), sizes(&spec(), &one)), (zone("b"), sizes(&spec(), &one))];
        let types = types_of(&spec(), &Market { zones, lacking: ["a".to_owned()].into() });
        let available: Vec<bool> = types[0].offerings.iter().map(|offering| offering.available).collect();
        assert_eq!(available, [false, true]);
        let spread_over = types[0].requirements.get(well_known::TOPOLOGY_ZONE).expect("zones");
        assert!(spread_over.has("b") && !spread_over.has("a"));
    }

    #[test]
    fn sizes_of_a_customised_offering_keep_to_the_bounds_of_the_term() {
        let custom = offering(json!({"id": "1", "name": "c", "iscustomized": true, "cpuspeed": 1000}));
        let mut spec = spec();
        spec.service_offering_selector_terms[0].min_cpu = Some(4);
        spec.service_offering_selector_terms[0].max_memory = Some(16384);
        let names: Vec<String> = sizes(&spec, &custom).into_iter().map(|size| size.name).collect();
        assert_eq!(names, ["c.4c-8g", "c.4c-16g", "c.8c-16g"]);
    }
}
