//! What a scrape looks like.

use std::collections::BTreeMap;

use super::queue::QueueMetrics;
use super::*;
use crate::rate_limit::unspecified;
use crate::work_queue::{Add, LOW_PRIORITY, WorkQueue};

#[test]
fn the_text_is_what_gos_library_writes() {
    let registry = Registry::new();
    let terminated = registry.counter("b_total", "Counts \\ things\nand more", &["zone", "nodepool"]);
    terminated.inc(&["z-1", "b\"quoted\""]);
    terminated.with(&["z-2", "a"]).add(1_296_000.0);
    registry.gauge("a_limit", "", &[]).set(&[], 0.5);
    registry.counter("c_total", "Never counted", &["x"]);
    let latency = registry.histogram("d_seconds", "Time", &["le_not"], &[1e-8, 0.5, 1.0, 2_592_000.0]);
    latency.observe(&["v"], 0.5);
    latency.observe(&["v"], 1.5);
    latency.observe(&["v"], 1e9);
    assert_eq!(
        registry.encode(),
        "# HELP a_limit \n# TYPE a_limit gauge\na_limit 0.5\n\
         # HELP b_total Counts \\\\ things\\nand more\n# TYPE b_total counter\n\
         b_total{nodepool=\"a\",zone=\"z-2\"} 1.296e+06\n\
         b_total{nodepool=\"b\\\"quoted\\\"\",zone=\"z-1\"} 1\n\
         # HELP d_seconds Time\n# TYPE d_seconds histogram\n\
         d_seconds_bucket{le_not=\"v\",le=\"1e-08\"} 0\n\
         d_seconds_bucket{le_not=\"v\",le=\"0.5\"} 1\n\
         d_seconds_bucket{le_not=\"v\",le=\"1\"} 1\n\
         d_seconds_bucket{le_not=\"v\",le=\"2.592e+06\"} 2\n\
         d_seconds_bucket{le_not=\"v\",le=\"+Inf\"} 3\n\
         d_seconds_sum{le_not=\"v\"} 1.000000002e+09\n\
         d_seconds_count{le_not=\"v\"} 3\n"
    );
}

#[tokio::test(start_paused = true)]
async fn a_summary_shows_its_quantiles_and_nan_when_nothing_happened_lately() {
    let registry = Registry::new();
    let summary = registry.summary("s_seconds", "Time", &["nodepool"], &[0.0, 0.5, 1.0]);
    summary.observe(&["p"], 3.0);
    summary.observe(&["p"], 1.0);
    assert!(registry.encode().ends_with(
        "s_seconds{nodepool=\"p\",quantile=\"0\"} 1\ns_seconds{nodepool=\"p\",quantile=\"0.5\"} 1\n\
         s_seconds{nodepool=\"p\",quantile=\"1\"} 3\ns_seconds_sum{nodepool=\"p\"} 4\ns_seconds_count{nodepool=\"p\"} 2\n"
    ));
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert!(registry.encode().contains("quantile=\"0.5\"} NaN\n"));
}

#[test]
fn series_are_deleted_by_any_part_of_their_labels() {
    let registry = Registry::new();
    let gauge = registry.gauge("g", "", &["nodepool", "reason"]);
    for pool in ["a", "b"] {
        for reason in ["Empty", "Drifted"] {
            gauge.set(&[pool, reason], 1.0);
        }
    }
    assert_eq!(gauge.delete_matching(&[("no_such_label", "x")]), 0);
    assert_eq!(gauge.delete_matching(&[("nodepool", "a")]), 2);
    assert_eq!(gauge.delete_matching(&[("reason", "Empty"), ("nodepool", "b")]), 1);
    assert_eq!((gauge.get(&["b", "Drifted"]), gauge.get(&["b", "Empty"])), (Some(1.0), None));
    assert!(gauge.delete(&["b", "Drifted"]) && !gauge.delete(&["b", "Drifted"]));
    assert_eq!(registry.encode(), "", "a family without series is not shown");
}

#[test]
fn a_family_registered_again_is_the_same_and_a_different_one_of_its_name_is_refused() {
    let registry = Registry::new();
    registry.counter("c_total", "", &["x"]).inc(&["1"]);
    assert_eq!(registry.counter("c_total", "", &["x"]).get(&["1"]), 1.0);
    let other = registry.clone();
    assert!(std::panic::catch_unwind(move || other.gauge("c_total", "", &["x"])).is_err());
}

#[test]
fn a_negative_step_does_not_lower_a_counter() {
    let counter = Registry::new().counter("c_total", "", &[]).with(&[]);
    counter.add(2.0);
    counter.add(-1.0);
    assert_eq!(counter.get(), 2.0);
}

#[test]
fn the_gauges_of_an_object_are_replaced_together() {
    let registry = Registry::new();
    let family = registry.gauge("pods_state", "", &["name", "phase"]);
    let gauge = |name: &str, phase: &str| StoredGauge {
        family: family.clone(),
        labels: vec![name.to_owned(), phase.to_owned()],
        value: 1.0,
    };
    let store = GaugeStore::new();
    store.update("ns/a", vec![gauge("a", "Pending")]);
    store.update("ns/b", vec![gauge("b", "Pending")]);
    store.update("ns/a", vec![gauge("a", "Running")]);
    assert_eq!((family.get(&["a", "Pending"]), family.get(&["a", "Running"])), (None, Some(1.0)));
    store.replace_all(BTreeMap::from([("ns/c".to_owned(), vec![gauge("c", "Pending")])]));
    assert_eq!((family.get(&["a", "Running"]), family.get(&["c", "Pending"])), (None, Some(1.0)));
    store.delete("ns/c");
    assert_eq!(registry.encode(), "");
}

#[tokio::test(start_paused = true)]
async fn a_queue_counts_adds_depth_waits_and_work() {
    let registry = Registry::new();
    let queue = WorkQueue::new(unspecified(), QueueMetrics::new(&registry, "nodepool.hash"));
    queue.add_with("a", Add { priority: LOW_PRIORITY, ..Add::default() });
    queue.add_with("b", Add { priority: LOW_PRIORITY, ..Add::default() });
    queue.add("a");
    queue.add_rate_limited("c");
    let (key, _) = queue.get().await.expect("an item");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    queue.observe_unfinished();
    let text = registry.encode();
    for line in [
        "workqueue_adds_total{controller=\"nodepool.hash\",name=\"nodepool.hash\"} 2",
        "workqueue_depth{controller=\"nodepool.hash\",name=\"nodepool.hash\",priority=\"-100\"} 1",
        "workqueue_depth{controller=\"nodepool.hash\",name=\"nodepool.hash\",priority=\"0\"} 0",
        "workqueue_retries_total{controller=\"nodepool.hash\",name=\"nodepool.hash\"} 1",
        "workqueue_unfinished_work_seconds{controller=\"nodepool.hash\",name=\"nodepool.hash\"} 2",
        "workqueue_longest_running_processor_seconds{controller=\"nodepool.hash\",name=\"nodepool.hash\"} 2",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
    queue.done(&key);
    assert!(registry.encode().contains(
        "workqueue_work_duration_seconds_bucket{controller=\"nodepool.hash\",name=\"nodepool.hash\",le=\"10\"} 1"
    ));
}

#[test]
fn the_process_shows_its_memory() {
    let registry = Registry::new();
    registry.observe_process();
    let memory =
        registry.gauge("process_resident_memory_bytes", "Resident memory of this process", &[]).get(&[]);
    assert!(memory.is_none_or(|bytes| bytes > 1e6), "{memory:?}");
}

/// The bucket bounds of a histogram that has a series.
fn bounds(text: &str, name: &str) -> Vec<f64> {
    let mut bounds: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket")))
        .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse().ok())
        .filter(|bound: &f64| bound.is_finite())
        .collect();
    bounds.dedup();
    bounds
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_counts_is_named_labelled_and_bucketed_as_recorded() {
    let registry = Registry::new();
    let queue = WorkQueue::new(unspecified(), QueueMetrics::new(&registry, "c"));
    queue.add("a");
    queue.done(&queue.get().await.expect("an item").0);
    queue::ReconcileMetrics::new(&registry, "c", 1);
    crate::client::MeasureLayer::new(&registry);
    let environment = crate::environment::Environment { registry: registry.clone(), ..seeded() };
    let (recorder, _) = crate::events::recorder("c", &environment);
    let client = kube::Client::new(
        tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::ready(Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("none")))
        }),
        "default",
    );
    let lease = crate::lease::LeaseConfig::new("n", "karpenter-leader-election", "i");
    crate::lease::Elector::new(client, lease, &environment, &recorder);

    let recorded: serde_json::Value =
        serde_json::from_str(include_str!("../../../conformance/metrics/metrics.json")).expect("JSON");
    let rows = recorded["metrics"].as_array().expect("rows");
    let text = registry.encode();
    let ours = registry.families();
    assert!(ours.len() > 17, "{ours:?}");
    for family in ours {
        let row = rows
            .iter()
            .find(|row| row["name"] == family.name.as_str())
            .unwrap_or_else(|| panic!("{} is not a metric of Go Karpenter", family.name));
        assert_eq!(row["type"], family.kind, "{}", family.name);
        let mut labels: Vec<_> =
            row["labels"].as_array().expect("labels").iter().filter_map(|l| l.as_str()).collect();
        let mut named: Vec<_> = family.labels.iter().map(String::as_str).collect();
        labels.sort_unstable();
        named.sort_unstable();
        assert_eq!(named, labels, "{}", family.name);
        let shown = bounds(&text, &family.name);
        if let Some(buckets) = row["buckets"].as_array().filter(|_| !shown.is_empty()) {
            let buckets: Vec<f64> = buckets.iter().filter_map(serde_json::Value::as_f64).collect();
            assert_eq!(shown.len(), buckets.len(), "{}", family.name);
            for (ours, theirs) in shown.iter().zip(&buckets) {
                assert!((ours - theirs).abs() <= theirs * 1e-9, "{}: {ours} and {theirs}", family.name);
            }
        }
    }
    let families = registry.families();
    for row in rows.iter().filter(|row| row["provider"] == "controller-runtime") {
        let name = row["name"].as_str().expect("a name");
        // Of parts that Karpenter does not have: webhooks and certificates.
        let absent = name.contains("webhook") || name.contains("certwatcher");
        assert!(absent || families.iter().any(|family| family.name == name), "{name} is missing");
    }
}

fn seeded() -> crate::environment::Environment {
    crate::environment::Environment::seeded(jiff::Timestamp::UNIX_EPOCH, 1)
}
