//! How long pods wait shows on the metrics page.

use std::time::Duration;

use serde_json::json;

use crate::objects::{node_class, node_pool, pending_pod};
use crate::rig::Rig;

#[tokio::test(start_paused = true)]
async fn a_pod_shows_how_long_it_waits_and_once_it_runs_how_long_it_took() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "1")).await;
    rig.pass(Duration::from_secs(30)).await;
    let page = rig.context.environment.registry.encode();
    let series = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("karpenter_pods_{name}{{")));
        line.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<f64>().expect("a number"))
    };
    let about_half_a_minute =
        |seconds: Option<f64>| seconds.is_some_and(|seconds| (28.0..31.0).contains(&seconds));
    assert!(about_half_a_minute(series("unstarted_time_seconds")), "{page}");
    assert!(about_half_a_minute(series("unbound_time_seconds")));
    assert!(about_half_a_minute(series("provisioning_unbound_time_seconds")));
    assert_eq!(series("provisioning_scheduling_undecided_time_seconds"), None, "it has been tried");
    assert!(page.contains(r#"karpenter_pods_state{arch="",capacity_type="",instance_type="",managed="false",name="p",namespace="default",node="",nodepool="",owner="",phase="Pending",ready="false",scheduled="false",zone=""} 1"#), "{page}");

    let now = rig.context.now().to_string();
    let true_since = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now});
    let running =
        json!({"phase": "Running", "conditions": [true_since("PodScheduled"), true_since("Ready")]});
    rig.patch_status(&pending_pod("p", "1"), json!({"status": running})).await;
    rig.pass(Duration::from_secs(1)).await;
    let page = rig.context.environment.registry.encode();
    assert!(!page.contains("karpenter_pods_unstarted_time_seconds{"), "{page}");
    assert!(!page.contains("karpenter_pods_unbound_time_seconds{"));
    assert!(page.contains("karpenter_pods_startup_duration_seconds_count 1"));
    assert!(page.contains(r#"karpenter_pods_bound_duration_seconds_count{dynamic_resources="false"} 1"#));
    assert!(page.contains("karpenter_pods_provisioning_startup_duration_seconds_count 1"));
    assert!(page.contains(
        r#"karpenter_pods_provisioning_bound_duration_seconds_count{dynamic_resources="false"} 1"#
    ));
    let forgotten = rig.context.cluster.read(|cluster| cluster.timings().of("default", "p"));
    assert_eq!(forgotten, Default::default(), "a pod that runs need not be remembered");
}
