//! What an offering costs per hour. The first source that knows wins; the last one always does, so that a larger node costs more
//! than a smaller one and consolidation has a way down.

use std::collections::BTreeMap;
use std::fmt;

use karpenter_api::ResourceList;

use crate::client::fields::Malformed;
use crate::client::scalable::Scalable;
use crate::client::template::Template;
use crate::names;
use crate::nodeclass::{InstanceTypeOverride, PriceModel, Pricing};

/// A price, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    pub(crate) per_hour: f64,
    pub(crate) source: Source,
}

/// Who tells a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An annotation of the scalable resource or its infrastructure template.
    Annotation,
    /// The NodeClass's instance type or table, or its ConfigMap.
    Table,
    /// The NodeClass's endpoint.
    Endpoint,
    /// Worked out from resources.
    Model,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Annotation => "annotation",
            Self::Table => "table",
            Self::Endpoint => "endpoint",
            Self::Model => "model",
        })
    }
}

/// Annotations that hold a price, best first.
const ANNOTATIONS: &[&str] =
    &[names::PRICE, names::CURRENT_PRICE, "capacity.cluster-autoscaler.kubernetes.io/price"];

/// Prices of the resource model when the NodeClass names none: the ratios at which clouds sell.
const DEFAULT_MODEL: (f64, f64, f64) = (0.03, 0.004, 1.0);

/// Prices that are told outside the NodeClass, by the keys its table has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) config_map: BTreeMap<String, String>,
    pub(crate) endpoint: BTreeMap<String, f64>,
}

/// What there is to ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) scalable: &'a Scalable,
    pub(crate) template: Option<&'a Template>,
    /// The NodeClass's entry for it.
    pub(crate) entry: Option<&'a InstanceTypeOverride>,
    /// The NodeClass's prices.
    pub(crate) pricing: Option<&'a Pricing>,
    pub(crate) told: &'a Told,
    /// The NodeClass, for messages.
    pub(crate) node_class: &'a str,
}

/// The price of an offering whose type may be called so, by the name that says most.
pub(crate) fn price(
    sources: Sources<'_>,
    called: &[String],
    zone: Option<&str>,
    capacity_type: &str,
    capacity: &ResourceList,
) -> Result<Price, Malformed> {
    let annotations = [Some(&sources.scalable.annotations), sources.template.map(|t| &t.annotations)];
    for annotations in annotations.into_iter().flatten() {
        for key in ANNOTATIONS {
            if let Some(text) = annotations.get(*key) {
                let per_hour = parse(text).ok_or_else(|| {
                    sources.scalable.malformed(*key, format!("{text:?} is not a price per hour such as 0.25"))
                })?;
                return Ok(Price { per_hour, source: Source::Annotation });
            }
        }
    }
    let tabled = sources.entry.and_then(|entry| Some((&entry.name, entry.price.as_ref()?)));
    let tabled = tabled.map(|(name, text)| (format!("spec.instanceTypes[{name}].price"), text));
    let keys: Vec<String> = called.iter().flat_map(|name| keys(name, zone, capacity_type)).collect();
    let tabled = tabled.or_else(|| {
        let table = sources.pricing.and_then(|pricing| pricing.table.as_ref());
        keys.iter().find_map(|key| {
            // What stands in the NodeClass goes before what stands elsewhere.
            let own = table.and_then(|table| table.get(key));
            let own = own.map(|text| (format!("spec.pricing.table[{key}]"), text));
            let mapped = || sources.told.config_map.get(key);
            own.or_else(|| Some((format!("spec.pricing.configMapRef, its data[{key}]"), mapped()?)))
        })
    });
    if let Some((key, text)) = tabled {
        let per_hour = parse(text).ok_or_else(|| Malformed {
            object: format!("ClusterAPINodeClass {}", sources.node_class),
            key,
            problem: format!("{text:?} is not a price per hour such as 0.25"),
        })?;
        return Ok(Price { per_hour, source: Source::Table });
    }
    if let Some(per_hour) = keys.iter().find_map(|key| sources.told.endpoint.get(key)) {
        return Ok(Price { per_hour: *per_hour, source: Source::Endpoint });
    }
    let model = sources.pricing.and_then(|pricing| pricing.model.as_ref());
    Ok(Price { per_hour: modelled(model, capacity), source: Source::Model })
}

/// The keys of an offering in a table of prices, the most particular one first.
fn keys(instance_type: &str, zone: Option<&str>, capacity_type: &str) -> [String; 3] {
    let zone = zone.unwrap_or_default();
    [
        key(instance_type, Some(zone), capacity_type),
        format!("{instance_type}/{zone}"),
        instance_type.to_owned(),
    ]
}

/// The key of an offering that is no other's.
pub(crate) fn key(instance_type: &str, zone: Option<&str>, capacity_type: &str) -> String {
    format!("{instance_type}/{}/{capacity_type}", zone.unwrap_or_default())
}

fn modelled(model: Option<&PriceModel>, capacity: &ResourceList) -> f64 {
    let weight = |text: fn(&PriceModel) -> Option<&String>, default: f64| {
        // The definition lets only prices through.
        model.and_then(text).and_then(|text| parse(text)).unwrap_or(default)
    };
    let cpu = weight(|model| model.cpu.as_ref(), DEFAULT_MODEL.0);
    let memory = weight(|model| model.memory_gib.as_ref(), DEFAULT_MODEL.1);
    let gpu = weight(|model| model.gpu.as_ref(), DEFAULT_MODEL.2);
    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
    capacity
        .iter()
        .map(|(name, quantity)| {
            let amount = quantity.as_approximate_f64();
            match name.as_str() {
                "cpu" => cpu * amount,
                "memory" => memory * amount / GIB,
                "pods" | "ephemeral-storage" | "storage" => 0.0,
                name if name.starts_with("hugepages-") => 0.0,
                _ => gpu * amount,
            }
        })
        .sum()
}

/// A price per hour, if that is what it is.
pub(crate) fn parse(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0)
}
