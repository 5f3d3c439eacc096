//! Prometheus metrics: a registry per program, families of labelled series, the classic text format.
//!
//! No globals: a simulation runs several replicas in one process and each has a registry of its own. What is printed, and in
//! which order, is what Go's client library prints for the same values, so that dashboards and diffs go on working.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use tokio::time::Instant;

use crate::sync::lock;

mod label_values;
pub(crate) mod process;
pub mod queue;
mod series_store;
mod summary;
mod text;

use label_values::{LabelValues, Values};
pub use series_store::{GaugeStore, StoredGauge};
use summary::SlidingQuantiles;

/// Upper bounds of the buckets Karpenter measures durations with, in seconds.
pub const DURATION_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0, 120.0, 150.0, 300.0, 450.0, 600.0,
];

/// Upper bounds of Prometheus' default buckets.
pub const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The quantiles Karpenter's summaries show.
pub const SUMMARY_QUANTILES: &[f64] = &[0.0, 0.5, 0.9, 0.99, 1.0];

/// `count` bucket bounds from `start`, each `factor` times the one before, multiplied up one by one as Go does.
pub fn exponential_buckets(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}

/// All metrics of one program; clones are handles to the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<String, Arc<dyn Collect>>>>,
    before_encode: Arc<Mutex<Vec<Hook>>>,
    label_values: Arc<LabelValues>,
}

type Hook = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.families).keys()).finish()
    }
}

/// A family of series as the registry sees it.
trait Collect: Send + Sync {
    fn description(&self) -> &Description;
    fn collect(&self) -> Vec<(Values, Sample)>;
    /// Upper bounds of the buckets that a series of it has.
    fn buckets(&self) -> Vec<f64>;
    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync>;
}

/// What a family measures.
#[derive(Clone, Debug, PartialEq)]
struct Description {
    name: String,
    help: String,
    kind: Kind,
    labels: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// What a family is.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyInfo {
    /// Name.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `summary`.
    pub kind: &'static str,
    /// Label names, in the order values are given in.
    pub labels: Vec<String>,
    /// Upper bounds of a histogram's buckets; of others none.
    pub buckets: Vec<f64>,
}

/// The value of one series at one moment.
enum Sample {
    Value(f64),
    Histogram { buckets: Vec<(f64, u64)>, sum: f64, count: u64 },
    Summary { quantiles: Vec<(f64, f64)>, sum: f64, count: u64 },
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A family of counters.
    ///
    /// # Panics
    /// Here and in the siblings: if the name is taken by a family of another kind or with other labels, or (in debug builds) if a
    /// label is none that Prometheus takes or is there twice, which are mistakes in the program. The same family registered again
    /// is the same family.
    pub fn counter(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        CounterVec(self.family(name, help, Kind::Counter, labels, Number::default))
    }

    /// A family of gauges.
    pub fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        GaugeVec(self.family(name, help, Kind::Gauge, labels, Number::default))
    }

    /// A family of histograms with these bucket bounds, ascending.
    pub fn histogram(&self, name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> HistogramVec {
        let bounds: Arc<[f64]> = bounds.into();
        HistogramVec(
            self.family(name, help, Kind::Histogram, labels, move || Buckets::new(Arc::clone(&bounds))),
        )
    }

    /// A family of summaries with these quantiles over the last ten minutes.
    pub fn summary(&self, name: &str, help: &str, labels: &[&str], quantiles: &[f64]) -> SummaryVec {
        let quantiles: Arc<[f64]> = quantiles.into();
        SummaryVec(self.family(name, help, Kind::Summary, labels, move || {
            Quantiles(Mutex::new(SlidingQuantiles::new(Arc::clone(&quantiles))))
        }))
    }

    /// Calls `hook` before every scrape: for gauges that are only worth computing when someone looks.
    pub fn before_encode(&self, hook: impl Fn() + Send + Sync + 'static) {
        lock(&self.before_encode).push(Arc::new(hook));
    }

    /// Everything in the text format, families and series in order.
    pub fn encode(&self) -> String {
        let hooks = lock(&self.before_encode).clone();
        for hook in hooks {
            hook();
        }
        let families: Vec<_> = lock(&self.families).values().cloned().collect();
        let mut out = String::new();
        for family in families {
            text::write_family(&mut out, family.description(), family.collect());
        }
        out
    }

    /// All registered families, with or without series, by name.
    pub fn families(&self) -> Vec<FamilyInfo> {
        let info = |family: &Arc<dyn Collect>| {
            let description = family.description();
            FamilyInfo {
                name: description.name.clone(),
                kind: description.kind.as_str(),
                labels: description.labels.clone(),
                buckets: family.buckets(),
            }
        };
        lock(&self.families).values().map(info).collect()
    }

    fn family<C: Child>(
        &self,
        name: &str,
        help: &str,
        kind: Kind,
        labels: &[&str],
        new: impl Fn() -> C + Send + Sync + 'static,
    ) -> Arc<Family<C>> {
        let description = Description {
            name: name.to_owned(),
            help: help.to_owned(),
            kind,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        };
        debug_assert!(are_labels(labels), "labels of {name}: {labels:?}");
        let mut families = lock(&self.families);
        if let Some(known) = families.get(name) {
            let same = known.description().kind == kind && known.description().labels == description.labels;
            assert!(same, "metric {name} is registered twice: {:?} and {description:?}", known.description());
            if let Ok(family) = Arc::clone(known).as_any().downcast::<Family<C>>() {
                return family;
            }
        }
        let family = Arc::new(Family {
            description,
            values: Arc::clone(&self.label_values),
            children: Mutex::default(),
            new: Box::new(new),
        });
        families.insert(name.to_owned(), Arc::clone(&family) as Arc<dyn Collect>);
        family
    }
}

/// Whether these can be the labels of one family: otherwise the whole page would be refused.
fn are_labels(labels: &[&str]) -> bool {
    let is_label = |label: &str| {
        !label.starts_with("__")
            && label.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    labels.iter().enumerate().all(|(at, label)| is_label(label) && !labels[..at].contains(label))
}

/// One series.
trait Child: Send + Sync + 'static {
    fn sample(&self) -> Sample;
}

struct Family<C> {
    description: Description,
    values: Arc<LabelValues>,
    /// In no order: that is for the text to make.
    children: Mutex<HashMap<Values, Arc<C>, FixedState>>,
    new: Box<dyn Fn() -> C + Send + Sync>,
}

impl<C: Child> Family<C> {
    /// These label values, in the order the labels were declared in.
    fn share(&self, values: &[&str]) -> Values {
        debug_assert_eq!(
            values.len(),
            self.description.labels.len(),
            "label values of {}",
            self.description.name
        );
        self.values.share(values)
    }

    fn child(&self, values: &[&str]) -> Arc<C> {
        self.child_of(self.share(values))
    }

    fn child_of(&self, values: Values) -> Arc<C> {
        Arc::clone(lock(&self.children).entry(values).or_insert_with(|| Arc::new((self.new)())))
    }

    fn existing(&self, values: &[&str]) -> Option<Arc<C>> {
        let values = self.values.find(values)?;
        lock(&self.children).get(&values).cloned()
    }

    fn delete(&self, values: &[&str]) -> bool {
        self.values.find(values).is_some_and(|values| self.remove(&values))
    }

    fn remove(&self, values: &Values) -> bool {
        lock(&self.children).remove(values).is_some()
    }

    fn delete_matching(&self, labels: &[(&str, &str)]) -> usize {
        let places: Option<Vec<(usize, &str)>> = labels
            .iter()
            .map(|(name, value)| {
                self.description.labels.iter().position(|label| label == name).map(|at| (at, *value))
            })
            .collect();
        // A label the family does not have matches nothing.
        let Some(places) = places else { return 0 };
        let mut children = lock(&self.children);
        let before = children.len();
        children.retain(|values, _| !places.iter().all(|(at, value)| values.at(*at) == *value));
        before - children.len()
    }

    fn reset(&self) {
        lock(&self.children).clear();
    }
}

impl<C: Child> Collect for Family<C> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn collect(&self) -> Vec<(Values, Sample)> {
        lock(&self.children).iter().map(|(values, child)| (values.clone(), child.sample())).collect()
    }

    fn buckets(&self) -> Vec<f64> {
        match (self.new)().sample() {
            Sample::Histogram { buckets, .. } => buckets.into_iter().map(|(bound, _)| bound).collect(),
            Sample::Value(_) | Sample::Summary { .. } => Vec::new(),
        }
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

/// What every family can do, whatever its kind.
macro_rules! family_methods {
    ($family:ident, $child:ident) => {
        impl $family {
            /// The series of these label values, in the order the labels were declared in; made if it is not there.
            pub fn with(&self, values: &[&str]) -> $child {
                $child(self.0.child(values))
            }

            /// Removes the series of these label values; whether there was one.
            pub fn delete(&self, values: &[&str]) -> bool {
                self.0.delete(values)
            }

            /// Removes every series that has all these labels; how many there were.
            pub fn delete_matching(&self, labels: &[(&str, &str)]) -> usize {
                self.0.delete_matching(labels)
            }

            /// Removes every series.
            pub fn reset(&self) {
                self.0.reset();
            }

            /// The name.
            pub fn name(&self) -> &str {
                &self.0.description.name
            }

            /// The label names in the order values are given in.
            pub fn labels(&self) -> &[String] {
                &self.0.description.labels
            }
        }

        impl fmt::Debug for $family {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.description.fmt(f)
            }
        }
    };
}

/// A number that goes up, per label values.
#[derive(Clone)]
pub struct CounterVec(Arc<Family<Number>>);
/// A number, per label values.
#[derive(Clone)]
pub struct GaugeVec(Arc<Family<Number>>);
/// A distribution over buckets, per label values.
#[derive(Clone)]
pub struct HistogramVec(Arc<Family<Buckets>>);
/// Quantiles of the recent past, per label values.
#[derive(Clone)]
pub struct SummaryVec(Arc<Family<Quantiles>>);

/// One counter.
#[derive(Clone)]
pub struct Counter(Arc<Number>);
/// One gauge.
#[derive(Clone)]
pub struct Gauge(Arc<Number>);
/// One histogram.
#[derive(Clone)]
pub struct Histogram(Arc<Buckets>);
/// One summary.
#[derive(Clone)]
pub struct Summary(Arc<Quantiles>);

family_methods!(CounterVec, Counter);
family_methods!(GaugeVec, Gauge);
family_methods!(HistogramVec, Histogram);
family_methods!(SummaryVec, Summary);

impl CounterVec {
    /// Adds one to the series of these label values.
    pub fn inc(&self, values: &[&str]) {
        self.0.child(values).add(1.0);
    }

    /// The value of the series of these label values; 0 if there is none.
    pub fn get(&self, values: &[&str]) -> f64 {
        self.0.existing(values).map_or(0.0, |child| child.get())
    }
}

impl GaugeVec {
    /// Sets the series of these label values.
    pub fn set(&self, values: &[&str], value: f64) {
        self.0.child(values).set(value);
    }

    /// The value of the series of these label values, if there is one.
    pub fn get(&self, values: &[&str]) -> Option<f64> {
        self.0.existing(values).map(|child| child.get())
    }
}

impl HistogramVec {
    /// Adds an observation to the series of these label values.
    pub fn observe(&self, values: &[&str], value: f64) {
        self.0.child(values).observe(value);
    }
}

impl SummaryVec {
    /// Adds an observation to the series of these label values.
    pub fn observe(&self, values: &[&str], value: f64) {
        self.with(values).observe(value);
    }
}

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.0.add(1.0);
    }

    /// Adds `by`, which must not be negative; a negative number is ignored.
    pub fn add(&self, by: f64) {
        if by >= 0.0 {
            self.0.add(by);
        }
    }

    /// The value.
    pub fn get(&self) -> f64 {
        self.0.get()
    }
}

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.set(value);
    }

    /// Adds `by`.
    pub fn add(&self, by: f64) {
        self.0.add(by);
    }

    /// The value.
    pub fn get(&self) -> f64 {
        self.0.get()
    }
}

impl Histogram {
    /// Adds an observation.
    pub fn observe(&self, value: f64) {
        self.0.observe(value);
    }

    /// Adds a duration in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.0.observe(duration.as_secs_f64());
    }

    /// How many observations there were.
    pub fn count(&self) -> u64 {
        lock(&self.0.state).count
    }
}

impl Summary {
    /// Adds an observation.
    pub fn observe(&self, value: f64) {
        lock(&self.0.0).observe(value, Instant::now());
    }
}

/// An `f64` behind an atomic.
#[derive(Debug, Default)]
struct Number(AtomicU64);

impl Number {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn add(&self, by: f64) {
        // The closure always answers, so the update cannot fail.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
            Some((f64::from_bits(bits) + by).to_bits())
        });
    }
}

impl Child for Number {
    fn sample(&self) -> Sample {
        Sample::Value(self.get())
    }
}

struct Buckets {
    bounds: Arc<[f64]>,
    state: Mutex<BucketState>,
}

struct BucketState {
    /// Per bound, not cumulative.
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Buckets {
    fn new(bounds: Arc<[f64]>) -> Self {
        let counts = vec![0; bounds.len()];
        Self { bounds, state: Mutex::new(BucketState { counts, sum: 0.0, count: 0 }) }
    }

    fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        let mut state = lock(&self.state);
        if let Some(count) = state.counts.get_mut(at) {
            *count += 1;
        }
        state.sum += value;
        state.count += 1;
    }
}

impl Child for Buckets {
    fn sample(&self) -> Sample {
        let state = lock(&self.state);
        let mut below = 0;
        let buckets = self
            .bounds
            .iter()
            .zip(&state.counts)
            .map(|(bound, count)| {
                below += count;
                (*bound, below)
            })
            .collect();
        Sample::Histogram { buckets, sum: state.sum, count: state.count }
    }
}

struct Quantiles(Mutex<SlidingQuantiles>);

impl Child for Quantiles {
    fn sample(&self) -> Sample {
        let (quantiles, sum, count) = lock(&self.0).read(Instant::now());
        Sample::Summary { quantiles, sum, count }
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
