//! The built-in catalogue: every combination of size, memory per core, system and architecture, at a price that follows from
//! its resources. Names, order and prices are those of Go's kwok provider, so that a cluster it runs can be taken over.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use karpenter_api::labels::{
    ARCH_AMD64, ARCH_ARM64, CAPACITY_TYPE, CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_SPOT, TOPOLOGY_ZONE,
};

use super::entry::{Entry, OfferingEntry, RequirementEntry};

const CORES: [u32; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];
/// Gibibytes of memory per core, and the family's letter: compute, standard, memory.
const FAMILIES: [(u32, &str); 3] = [(2, "c"), (4, "s"), (8, "m")];
const SYSTEMS: [&str; 2] = ["linux", "windows"];
const ARCHITECTURES: [&str; 2] = [ARCH_AMD64, ARCH_ARM64];
const ZONES: [&str; 4] = ["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"];
const PODS_PER_CORE: u32 = 16;
const MOST_PODS: u32 = 1024;
const PRICE_PER_CORE: f64 = 0.025;
/// Of memory, where a gigabyte is 10^9 bytes.
const PRICE_PER_GIGABYTE: f64 = 0.001;
/// What of the price is paid for spot capacity.
const SPOT_SHARE: f64 = 0.7;

pub(super) fn entries() -> impl Iterator<Item = Entry> {
    CORES.into_iter().flat_map(|cores| {
        FAMILIES.into_iter().flat_map(move |(memory_per_core, family)| {
            SYSTEMS.into_iter().flat_map(move |system| {
                ARCHITECTURES
                    .into_iter()
                    .map(move |architecture| entry(cores, memory_per_core, family, system, architecture))
            })
        })
    })
}

fn entry(cores: u32, memory_per_core: u32, family: &str, system: &str, architecture: &str) -> Entry {
    let gibibytes = cores * memory_per_core;
    let name = format!("{family}-{cores}x-{architecture}-{system}");
    let price = price(&name, cores, gibibytes);
    let mut offerings = Vec::new();
    for zone in ZONES {
        for (capacity_type, price) in
            [(CAPACITY_TYPE_SPOT, price * SPOT_SHARE), (CAPACITY_TYPE_ON_DEMAND, price)]
        {
            let requirements = vec![
                RequirementEntry::is(CAPACITY_TYPE, capacity_type),
                RequirementEntry::is(TOPOLOGY_ZONE, zone),
            ];
            offerings.push(OfferingEntry { price, requirements, ..OfferingEntry::default() });
        }
    }
    let resources = [
        ("cpu", cores.to_string()),
        ("memory", format!("{gibibytes}Gi")),
        ("pods", (cores * PODS_PER_CORE).min(MOST_PODS).to_string()),
        ("ephemeral-storage", "20Gi".to_owned()),
    ];
    Entry {
        name,
        offerings,
        architecture: architecture.to_owned(),
        operating_systems: vec![system.to_owned()],
        resources: resources.into_iter().map(|(name, text)| (name.to_owned(), Quantity(text))).collect(),
        ..Entry::default()
    }
}

/// The last bit counts: it decides which of two types is the cheaper one.
///
/// Go's list was computed once, adding up cores and memory in random order on a machine that multiplies and adds with one
/// rounding. That shows in two of the types, which are cheaper than their siblings by one bit.
fn price(name: &str, cores: u32, gibibytes: u32) -> f64 {
    let bytes = f64::from(gibibytes) * f64::from(1u32 << 30);
    let (cores, memory) = (f64::from(cores), PRICE_PER_GIGABYTE * bytes / 1e9);
    match name {
        "c-48x-arm64-windows" | "c-192x-arm64-linux" => PRICE_PER_CORE.mul_add(cores, memory),
        _ => PRICE_PER_CORE * cores + memory,
    }
}
