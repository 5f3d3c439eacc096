//! What an hour of a machine costs: from the most particular source that says something.
//!
//! 1. the overrides of the NodeClass, the longest pattern first,
//! 2. the ConfigMap it names,
//! 3. the offering's detail `karpenter.sh/price`,
//! 4. the tariffs of CloudStack's quota plug-in, where the NodeClass wants them,
//! 5. so much per core, gigabyte of memory, GPU and gigabyte of storage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::{ApiError, ErrorKind};
use crate::client::model::{ServiceOffering, Tariff};
use crate::instancetypes::Size;
use crate::naming::label_value;
use crate::nodeclass::{CloudStackNodeClassSpec, ConfigMapRef, Pricing};
use crate::resolved::Resolved;
use crate::selection::glob;
use crate::shared::Shared;
use crate::voice::NoValue;

/// Prices per hour where nobody says: per core, per gigabyte, per GPU.
const PRICES: (f64, f64, f64) = (0.04, 0.005, 1.0);
/// Detail of an offering: its price per hour.
const PRICE_DETAIL: &str = "karpenter.sh/price";
/// Hours of a month, as the quota plug-in counts them.
const HOURS_PER_MONTH: f64 = 720.0;
/// Usage types of tariffs: a running machine, a gigabyte of a volume.
const RUNNING_VM: i64 = 1;
const VOLUME: i64 = 6;
/// How long a ConfigMap is believed.
const REREAD: Duration = Duration::from_secs(60);

/// A price somebody wrote.
pub(crate) fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0)
}

/// What is known besides the NodeClass and the offering.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prices {
    /// By name of instance type or offering.
    pub(crate) book: Arc<BTreeMap<String, f64>>,
    /// Per month: a machine, a gigabyte.
    pub(crate) tariff: Option<(f64, f64)>,
}

impl Prices {
    /// What an hour of a machine of this size with so much storage costs.
    pub(crate) fn of(&self, size: &Size, storage_gb: i64, pricing: Option<&Pricing>) -> f64 {
        let nothing = Pricing::default();
        let pricing = pricing.unwrap_or(&nothing);
        let names = [&size.name, &size.offering.name, &label_value(&size.offering.name)];
        let of_pattern = |pattern: &&String| names.iter().any(|name| glob(pattern, name));
        // The longest pattern says most.
        let override_ = pricing.overrides.keys().filter(of_pattern).max_by_key(|pattern| pattern.len());
        if let Some(price) = override_.and_then(|pattern| number(&pricing.overrides[pattern])) {
            return price;
        }
        if let Some(price) = names.into_iter().find_map(|name| self.book.get(name)) {
            return *price;
        }
        if let Some(price) = size.offering.detail(PRICE_DETAIL).and_then(|text| number(&text)) {
            return price;
        }
        let tariff = self.tariff.filter(|(machine, gigabyte)| machine + gigabyte > 0.0);
        // What the tariffs do not know of is added only where somebody says how much.
        let usual = if tariff.is_some() { (0.0, 0.0, 0.0) } else { PRICES };
        let part =
            |given: &Option<String>, otherwise: f64| given.as_deref().and_then(number).unwrap_or(otherwise);
        let (machine, gigabyte) = tariff.unwrap_or_default();
        let gib = size.memory_mib as f64 / 1024.0;
        machine / HOURS_PER_MONTH
            + storage_gb as f64 * (part(&pricing.storage, 0.0) + gigabyte / HOURS_PER_MONTH)
            + size.cpu as f64 * part(&pricing.cpu, usual.0)
            + gib * part(&pricing.memory, usual.1)
            + size.offering.gpucount.unwrap_or(0) as f64 * part(&pricing.gpu, usual.2)
    }
}

/// The prices of a ConfigMap.
#[derive(Clone, Debug)]
struct Book {
    read: Instant,
    prices: Arc<BTreeMap<String, f64>>,
    problems: Vec<String>,
}

impl Book {
    fn of(place: &str, data: BTreeMap<String, String>) -> Self {
        let (mut prices, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, text) in data {
            match number(&text) {
                Some(price) => {
                    prices.insert(name, price);
                }
                None => problems.push(format!(
                    "spec.pricing.configMapRef: {name:?} of {place} is {text:?}, which is no price per hour; write a number such as 0.25"
                )),
            }
        }
        Self { read: Instant::now(), prices: Arc::new(prices), problems }
    }
}

/// What is wrong with the price an offering's maker wrote, if anything is.
fn odd_price(offering: &ServiceOffering) -> Option<String> {
    let text = offering.detail(PRICE_DETAIL).filter(|text| number(text).is_none())?;
    let name = &offering.name;
    Some(format!(
        "service offering {name:?}: its detail {PRICE_DETAIL} is {text:?}, which is no price per hour; write a number such as 0.25 (addResourceDetail)"
    ))
}

/// The ConfigMaps that were read.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<BTreeMap<ConfigMapRef, Book>>);

impl Shared {
    /// What is known of prices besides the NodeClass. Prices nobody can read now are as they were.
    ///
    /// # Errors
    ///
    /// If there is a ConfigMap of prices, or a plug-in with tariffs, that could not be read yet: by other prices the wrong machines would
    /// be bought and replaced.
    pub(crate) async fn prices(&self, spec: &CloudStackNodeClassSpec) -> Result<Prices, ApiError> {
        let Some(pricing) = &spec.pricing else { return Ok(Prices::default()) };
        let book = match &pricing.config_map_ref {
            Some(wanted) => self.book(wanted).await?.prices,
            None => Arc::default(),
        };
        let tariff = match pricing.quota_tariff.as_deref() {
            Some("Use") => self.tariff().await?,
            _ => None,
        };
        Ok(Prices { book, tariff })
    }

    /// What of prices cannot be used, with its place and what to do. That prices cannot be told at all is for who asks for types.
    pub(crate) async fn price_problems(&self, resolved: &Resolved) -> Vec<String> {
        let wanted = resolved.spec.pricing.as_ref().and_then(|pricing| pricing.config_map_ref.as_ref());
        let of_book = match wanted {
            Some(wanted) => self.book(wanted).await.map(|book| book.problems).unwrap_or_default(),
            None => Vec::new(),
        };
        let offerings = resolved.in_zone.values().flat_map(|zone| &zone.offerings);
        let odd: BTreeSet<String> = offerings.filter_map(odd_price).collect();
        of_book.into_iter().chain(odd).collect()
    }

    async fn book(&self, wanted: &ConfigMapRef) -> Result<Book, ApiError> {
        let known = {
            let books = self.books.0.lock().unwrap_or_else(PoisonError::into_inner);
            books.get(wanted).cloned()
        };
        if let Some(book) = &known
            && book.read.elapsed() < REREAD
        {
            return Ok(book.clone());
        }
        let place = format!("ConfigMap {}/{}", wanted.namespace, wanted.name);
        let otherwise = |problem: String, prices: Arc<BTreeMap<String, f64>>| Book {
            read: Instant::now(),
            prices,
            problems: vec![problem],
        };
        let book = match self.voice.config_map(&wanted.namespace, &wanted.name).await {
            Ok(data) => Book::of(&place, data),
            // One that is gone tells nothing any more.
            Err(NoValue::Missing(problem)) => {
                let text = format!("spec.pricing.configMapRef: {problem}; create it, or name another");
                otherwise(text, Arc::default())
            }
            Err(NoValue::Unreadable(problem)) => {
                let text = format!("spec.pricing.configMapRef: {problem}");
                let Some(known) = known else {
                    return Err(ApiError::new("configMapRef", ErrorKind::Unavailable, text));
                };
                otherwise(format!("{text}; prices stay as they were"), known.prices)
            }
        };
        for problem in &book.problems {
            tracing::warn!("{problem}");
        }
        let mut books = self.books.0.lock().unwrap_or_else(PoisonError::into_inner);
        books.insert(wanted.clone(), book.clone());
        Ok(book)
    }

    /// What the quota plug-in takes per month for a machine and for a gigabyte; nothing without it.
    async fn tariff(&self) -> Result<Option<(f64, f64)>, ApiError> {
        let tariffs = self.catalogue.tariffs().await?;
        let of = |kind: i64| {
            let is_it = |tariff: &&Tariff| tariff.usage_type == Some(kind) && tariff.is_flat();
            let mine = tariffs.iter().filter(is_it);
            mine.filter_map(|tariff| tariff.value()).sum::<f64>()
        };
        Ok((!tariffs.is_empty()).then(|| (of(RUNNING_VM), of(VOLUME))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn size(details: serde_json::Value) -> Size {
        let offering = json!({"id": "1", "name": "k8s small", "cpunumber": 2, "memory": 4096, "serviceofferingdetails": details});
        let offering: ServiceOffering = serde_json::from_value(offering).expect("an offering");
        let name = label_value(&offering.name);
        Size { name, offering, cpu: 2, memory_mib: 4096, details: BTreeMap::new() }
    }

    #[tokio::test]
    async fn a_price_of_a_config_map_that_is_none_is_left_out_and_told_with_its_place() {
        let data = [("small", "0.5"), ("large", "dear"), ("vast", "inf")];
        let data = data.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let book = Book::of("ConfigMap karpenter/prices", data);
        assert_eq!(*book.prices, BTreeMap::from([("small".to_owned(), 0.5)]));
        assert_eq!(book.problems.len(), 2);
        for (problem, name) in book.problems.iter().zip(["large", "vast"]) {
            assert!(problem.contains(name) && problem.contains("ConfigMap karpenter/prices"), "{problem}");
        }
    }

    #[test]
    fn prices_come_from_the_most_particular_source() {
        let plain = size(json!({}));
        let nothing = Prices::default();
        assert_eq!(nothing.of(&plain, 20, None), 2.0 * 0.04 + 4.0 * 0.005);
        let storage = Pricing { storage: Some("0.001".into()), ..Pricing::default() };
        assert!((nothing.of(&plain, 20, Some(&storage)) - 0.12).abs() < 1e-9);
        let tariff = Prices { tariff: Some((72.0, 0.72)), ..Prices::default() };
        assert!((tariff.of(&plain, 20, None) - (0.1 + 0.02)).abs() < 1e-9, "{}", tariff.of(&plain, 20, None));
        assert_eq!(Prices { tariff: Some((0.0, 0.0)), ..Prices::default() }.of(&plain, 20, None), 0.1);
        let detailed = size(json!({"karpenter.sh/price": "0.5"}));
        assert_eq!(tariff.of(&detailed, 20, None), 0.5);
        let book = Prices { book: Arc::new([(detailed.name.clone(), 0.6)].into()), ..tariff };
        assert_eq!(book.of(&detailed, 20, None), 0.6, "by the name labels can hold");
        let overrides = [("k8s *".to_owned(), "0.7".to_owned()), ("*".to_owned(), "0.9".to_owned())].into();
        let pricing = Pricing { overrides, ..Pricing::default() };
        assert_eq!(book.of(&detailed, 20, Some(&pricing)), 0.7, "the longest pattern");
    }
}
