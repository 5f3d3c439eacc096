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
