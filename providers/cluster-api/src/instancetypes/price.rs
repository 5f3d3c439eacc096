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
pub struct Price {
    /// Per hour.
    pub per_hour: f64,
    /// Who says so.
    pub source: Source,
}

/// Who tells a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An annotation of the scalable resource or its infrastructure template.
    Annotation,
    /// The NodeClass's instance type or table.
    Table,
    /// Worked out from resources.
    Model,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Annotation => "annotation",
            Self::Table => "table",
            Self::Model => "model",
        })
    }
}

/// Annotations that hold a price, best first.
const ANNOTATIONS: &[&str] =
    &[names::PRICE, names::CURRENT_PRICE, "capacity.cluster-autoscaler.kubernetes.io/price"];

/// Prices of the resource model when the NodeClass names none: the ratios at which clouds sell.
const DEFAULT_MODEL: (f64, f64, f64) = (0.03, 0.004, 1.0);

/// What there is to ask.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The scalable resource.
    pub scalable: &'a Scalable,
    /// Its infrastructure template.
    pub template: Option<&'a Template>,
    /// The NodeClass's entry for it.
    pub entry: Option<&'a InstanceTypeOverride>,
    /// The NodeClass's prices.
    pub pricing: Option<&'a Pricing>,
    /// The NodeClass, for messages.
    pub node_class: &'a str,
}

/// The price of an offering.
pub fn price(
    sources: Sources<'_>,
    instance_type: &str,
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
    let tabled = sources.entry.and_then(|entry| entry.price.as_ref());
    let tabled = tabled.map(|text| (format!("spec.instanceTypes[{instance_type}].price"), text));
    let tabled = tabled.or_else(|| {
        let table = sources.pricing?.table.as_ref()?;
        let (key, text) = lookup(table, instance_type, zone, capacity_type)?;
        Some((format!("spec.pricing.table[{key}]"), text))
    });
    if let Some((key, text)) = tabled {
        let per_hour = parse(text).ok_or_else(|| Malformed {
            object: format!("ClusterAPINodeClass {}", sources.node_class),
            key,
            problem: format!("{text:?} is not a price per hour such as 0.25"),
        })?;
        return Ok(Price { per_hour, source: Source::Table });
    }
    let model = sources.pricing.and_then(|pricing| pricing.model.as_ref());
    Ok(Price { per_hour: modelled(model, capacity), source: Source::Model })
}

/// The most particular entry of the table.
fn lookup<'a>(
    table: &'a BTreeMap<String, String>,
    instance_type: &str,
    zone: Option<&str>,
    capacity_type: &str,
) -> Option<(String, &'a String)> {
    let zone = zone.unwrap_or_default();
    let keys = [
        format!("{instance_type}/{zone}/{capacity_type}"),
        format!("{instance_type}/{zone}"),
        instance_type.to_owned(),
    ];
    keys.into_iter().find_map(|key| table.get(&key).map(|text| (key, text)))
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

fn parse(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0)
}
