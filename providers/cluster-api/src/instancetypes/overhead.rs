//! What of a node pods cannot use: as the resource's annotations or the NodeClass say, else what Nodes show, else what kubelet keeps
//! free by itself, which is 100Mi of memory and a tenth of the disk. Where users ask for it, the share of memory that a virtual machine
//! never sees and what clouds usually have kubelet reserve are taken off besides: kubeadm has it reserve nothing, so neither is a default.

use std::collections::BTreeMap;

use karpenter_api::ResourceList;
use karpenter_cloudprovider::conversion;
use karpenter_engine::instance_type::Overhead;
use karpenter_engine::resources::{Amount, Resources};
use karpenter_primitives::Quantity;

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::names;
use crate::nodeclass::{Kubelet, Reservations};

/// kubelet's own thresholds.
const DEFAULT_EVICTION: &[(&str, &str)] = &[("memory.available", "100Mi"), ("nodefs.available", "10%")];

/// Of what part of the cores how many thousandths are usually reserved: parts in cores.
const CPU_CURVE: &[(i128, i128)] = &[(1, 60), (1, 10), (2, 5)];
/// Of the cores beyond, in ten thousandths.
const CPU_BEYOND: i128 = 25;
/// Of what part of the memory how many hundredths are usually reserved: parts in GiB.
const MEMORY_CURVE: &[(i128, i128)] = &[(4, 25), (4, 20), (8, 10), (112, 6)];
/// Of the memory beyond, in hundredths.
const MEMORY_BEYOND: i128 = 2;
/// What is reserved of less than a GiB.
const LEAST_MEMORY_MIB: i128 = 255;

const NANO: i128 = 1_000_000_000;
const MIB: i128 = 1 << 20;
const GIB: i128 = 1 << 30;

/// So much, or what is missing to a whole unit more.
fn whole_units(nanos: i128, unit: i128) -> Amount {
    Amount::nanos((nanos + unit - 1) / unit * unit)
}

/// What clouds usually have kubelet reserve on a node with this capacity: a share that falls with size.
fn curve(capacity: &Resources) -> Resources {
    let mut reserved = Resources::new();
    if let Some(cores) = capacity.get("cpu") {
        let (mut left, mut kept) = (cores.as_nanos(), 0);
        for (part, thousandths) in CPU_CURVE {
            let part = left.min(part * NANO);
            kept += part * thousandths / 1000;
            left -= part;
        }
        reserved.set("cpu", whole_units(kept + left * CPU_BEYOND / 10_000, NANO / 1000));
    }
    if let Some(memory) = capacity.get("memory") {
        let (mut left, mut kept) = (memory.as_nanos(), 0);
        for (part, hundredths) in MEMORY_CURVE {
            let part = left.min(part * GIB * NANO);
            kept += part / 100 * hundredths;
            left -= part;
        }
        kept += left / 100 * MEMORY_BEYOND;
        if memory.as_nanos() < GIB * NANO {
            kept = memory.as_nanos().min(LEAST_MEMORY_MIB * MIB * NANO);
        }
        reserved.set("memory", whole_units(kept, MIB * NANO));
    }
    reserved
}

/// The overhead of nodes with this capacity; `node_class` is for messages, and `unsaid` is what to reckon with where nobody says what
/// kubelet reserves.
pub(crate) fn overhead(
    kubelet: Option<&Kubelet>,
    unsaid: Reservations,
    capacity: &ResourceList,
    node_class: &str,
) -> Result<Overhead, Malformed> {
    let capacity = conversion::resources(capacity);
    let mut thresholds: BTreeMap<&str, &str> = DEFAULT_EVICTION.iter().copied().collect();
    if let Some(hard) = kubelet.and_then(|kubelet| kubelet.eviction_hard.as_ref()) {
        // kubelet takes the whole map or its own, never both.
        thresholds = hard.iter().map(|(signal, value)| (signal.as_str(), value.as_str())).collect();
    }
    let mut eviction_threshold = Resources::new();
    for (signal, value) in thresholds {
        let resource = match signal {
            "memory.available" => "memory",
            "nodefs.available" => "ephemeral-storage",
            _ => continue,
        };
        let Some(whole) = capacity.get(resource) else { continue };
        let amount = threshold(value, whole).ok_or_else(|| Malformed {
            object: format!("ClusterAPINodeClass {node_class}"),
            key: format!("spec.kubelet.evictionHard[{signal}]"),
            problem: format!("{value:?} is neither a quantity nor a percentage"),
        })?;
        eviction_threshold.set(resource, amount);
    }
    let reserved = |list: Option<&ResourceList>| list.map(conversion::resources).unwrap_or_default();
    let kube_reserved = kubelet.and_then(|kubelet| kubelet.kube_reserved.as_ref());
    Ok(Overhead {
        kube_reserved: match (kube_reserved, unsaid) {
            (None, Reservations::Curve) => curve(&capacity),
            (told, _) => reserved(told),
        },
        system_reserved: reserved(kubelet.and_then(|kubelet| kubelet.system_reserved.as_ref())),
        eviction_threshold,
    })
}

/// What the owner of a resource says that kubelet keeps for itself, if anybody does: its annotations, then the NodeClass.
pub(crate) fn told(scalable: &Scalable, node_class: Option<&Kubelet>) -> Result<Option<Kubelet>, Malformed> {
    let own = |key: &'static str| scalable.annotations.get(key).filter(|text| !text.is_empty());
    let list = |key: &'static str| own(key).map(|text| reserved(scalable, key, text)).transpose();
    let eviction = own(names::EVICTION_HARD).map(|text| {
        let pairs = pairs(scalable, names::EVICTION_HARD, text, "memory.available=500Mi")?;
        let known: BTreeMap<String, String> =
            pairs.into_iter().map(|(signal, value)| (signal.to_owned(), value.to_owned())).collect();
        match known.values().find(|value| threshold(value, Amount::nanos(10_000)).is_none()) {
            Some(value) => Err(scalable.malformed(
                names::EVICTION_HARD,
                format!("{value:?} is neither a quantity nor a percentage"),
            )),
            None => Ok(known),
        }
    });
    let (kube, system, eviction) =
        (list(names::KUBE_RESERVED)?, list(names::SYSTEM_RESERVED)?, eviction.transpose()?);
    if kube.is_none() && system.is_none() && eviction.is_none() {
        return Ok(node_class.cloned());
    }
    let class = node_class.cloned().unwrap_or_default();
    Ok(Some(Kubelet {
        kube_reserved: kube.or(class.kube_reserved),
        system_reserved: system.or(class.system_reserved),
        eviction_hard: eviction.or(class.eviction_hard),
        max_pods: class.max_pods,
    }))
}

/// Whether this says anything about what pods cannot use.
pub(crate) fn says(kubelet: &Kubelet) -> bool {
    kubelet.kube_reserved.is_some() || kubelet.system_reserved.is_some() || kubelet.eviction_hard.is_some()
}

/// This part of the memory, in millionths of it, as whole MiB.
pub(crate) fn part_of_memory(capacity: &ResourceList, millionths: u32) -> Amount {
    let whole = conversion::resources(capacity).amount("memory");
    whole_units(whole.as_nanos() / 1_000_000 * i128::from(millionths), MIB * NANO)
}

/// What its owner says of the memory that kubelet never sees; nothing if it says nothing.
pub(crate) fn unseen_memory(
    scalable: &Scalable,
    capacity: &ResourceList,
) -> Result<Option<Amount>, Malformed> {
    let Some(text) = scalable.annotations.get(names::MEMORY_OVERHEAD).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let whole = conversion::resources(capacity).amount("memory");
    let amount = threshold(&format!("{}%", text.trim().trim_end_matches('%')), whole);
    let problem =
        || scalable.malformed(names::MEMORY_OVERHEAD, format!("{text:?} is no percentage such as 7.5"));
    amount.map(Some).ok_or_else(problem)
}

fn reserved(scalable: &Scalable, key: &'static str, text: &str) -> Result<ResourceList, Malformed> {
    let mut list = ResourceList::new();
    for (resource, value) in pairs(scalable, key, text, "cpu=100m,memory=1Gi")? {
        let quantity = Quantity::parse(value).ok().filter(|quantity| !quantity.is_negative());
        let problem = || scalable.malformed(key, format!("{value:?} is not a quantity such as 100m or 1Gi"));
        list.insert(resource.to_owned(), quantity.ok_or_else(problem)?);
    }
    Ok(list)
}

fn pairs<'a>(
    scalable: &Scalable,
    key: &'static str,
    text: &'a str,
    example: &str,
) -> Result<Vec<(&'a str, &'a str)>, Malformed> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items
        .map(|item| {
            let pair = item.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
            pair.ok_or_else(|| scalable.malformed(key, format!("{item:?} is not as in {example}")))
        })
        .collect()
}

/// The overhead that Nodes of a type show: the greatest difference between what it is said to have and what pods may use. Where
/// they show nothing it is as said.
pub(crate) fn shown<'a>(
    capacity: &ResourceList,
    said: &Overhead,
    allocatable: impl Iterator<Item = &'a ResourceList>,
) -> Overhead {
    let capacity = conversion::resources(capacity);
    let nodes: Vec<Resources> = allocatable.map(conversion::resources).collect();
    let mut overhead = said.clone();
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        let Some(whole) = capacity.get(resource) else { continue };
        let kept = nodes.iter().filter_map(|node| Some(whole.minus(node.get(resource)?))).max();
        let Some(kept) = kept else { continue };
        overhead.kube_reserved.set(resource, kept.max(Amount::ZERO));
        overhead.system_reserved.set(resource, Amount::ZERO);
        overhead.eviction_threshold.set(resource, Amount::ZERO);
    }
    overhead
}

/// How what kubelet does with a Node differs from what is said, in words. A hundredth of the whole is no difference: percentages are of
/// what kubelet sees. What is usual stands in for what nobody says: that kubelet keeps something else besides what is said is no
/// difference then.
pub(crate) fn difference(
    kubelet: &Kubelet,
    unsaid: Reservations,
    said: &Overhead,
    capacity: &ResourceList,
    allocatable: &ResourceList,
) -> Option<String> {
    let pods = kubelet.max_pods.zip(capacity.get("pods")).and_then(|(declared, found)| {
        let quantity = Quantity::new(declared.into(), karpenter_primitives::Format::DecimalSi);
        (*found != quantity).then(|| format!("kubelet allows {found} pods where {declared} are declared"))
    });
    let kept = says(kubelet).then(|| kept_otherwise(kubelet, unsaid, said, capacity, allocatable)).flatten();
    let found: Vec<String> = [kept, pods].into_iter().flatten().collect();
    (!found.is_empty()).then(|| found.join("; "))
}

fn kept_otherwise(
    kubelet: &Kubelet,
    unsaid: Reservations,
    said: &Overhead,
    capacity: &ResourceList,
    allocatable: &ResourceList,
) -> Option<String> {
    let is_guess = kubelet.kube_reserved.is_none() && unsaid == Reservations::Curve;
    let (capacity, allocatable) = (conversion::resources(capacity), conversion::resources(allocatable));
    let text = |resource: &str, amount: Amount| {
        let list: Resources = [(resource, amount)].into_iter().collect();
        conversion::resource_list(&list)[resource].to_string()
    };
    let differs = |resource: &str| {
        let (whole, left) = (capacity.get(resource)?, allocatable.get(resource)?);
        let mut kept = whole.minus(left);
        if resource == "memory" {
            // Huge pages are memory that is counted apart.
            let pages = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
            kept = pages.fold(kept, |kept, (_, amount)| kept.minus(*amount));
        }
        let kube_reserved = Some(&said.kube_reserved).filter(|_| !is_guess);
        let declared = kube_reserved.into_iter().chain([&said.system_reserved, &said.eviction_threshold]);
        let declared = declared.fold(Amount::ZERO, |sum, part| sum.plus(part.amount(resource)));
        let apart = kept.minus(declared).as_nanos();
        let is_little =
            apart.unsigned_abs() <= whole.as_nanos().unsigned_abs() / 100 || (is_guess && apart > 0);
        (!is_little).then(|| {
            format!("{} of {resource} where {} is declared", text(resource, kept), text(resource, declared))
        })
    };
    let found: Vec<String> = ["cpu", "memory"].into_iter().filter_map(differs).collect();
    (!found.is_empty()).then(|| format!("kubelet keeps {}", found.join(", ")))
}

fn threshold(text: &str, whole: Amount) -> Option<Amount> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
        // Hundredths of a percent are as fine as anyone writes.
        #[expect(clippy::cast_possible_truncation, reason = "at most 10 000")]
        let hundredths = (percent * 100.0).round() as i128;
        return Some(Amount::nanos(whole.as_nanos() / 10_000 * hundredths));
    }
    let quantity = Quantity::parse(text.trim()).ok().filter(|quantity| !quantity.is_negative())?;
    let list: ResourceList = [("x".to_owned(), quantity)].into();
    conversion::resources(&list).get("x")
}
