//! The end of Nodes: drained in order, volumes detached, instance gone.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{
    With, claim, joining_node, node, node_class, node_name, node_pool, pod_on, provider_id, state_of,
};
use crate::rig::{Refusal, Rig};

const SECOND: Duration = Duration::from_secs(1);

fn held_node() -> Value {
    node("c", "default", 1).with(json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}}))
}

fn the_claim() -> Value {
    claim("c", "default", 1)
}

/// A claim `c` with its node and these pods on it; then the node is deleted.
async fn ending(the_claim: Value, node: Value, pods: Vec<Value>) -> Rig {
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim).await;
    rig.create(node.clone()).await;
    for pod in pods {
        rig.create(pod).await;
    }
    rig.pass(2 * SECOND).await;
    rig.delete(&node).await;
    rig
}

/// The pod has ended, as its kubelet says.
async fn kill(rig: &Rig, name: &str) {
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), "default");
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let _ = pods.delete(name, &at_once).await.expect("a pod to kill");
}

/// Names of pods that were asked to leave.
fn leaving(rig: &Rig) -> Vec<String> {
    rig.see(|objects| {
        let leaving = objects.pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        leaving.filter_map(|pod| pod.metadata.name.clone()).collect()
    })
}

fn is_gone(rig: &Rig) -> bool {
    rig.see(|objects| objects.nodes.is_empty())
}

#[tokio::test(start_paused = true)]
async fn a_node_without_pods_goes_after_the_least_time_of_a_drain() {
    let rig = ending(the_claim(), held_node(), vec![]).await;
    rig.pass(4 * SECOND).await;
    let ending = rig.get(&held_node()).await.expect("the node is watched for late pods");
    let taints = ending["spec"]["taints"].as_array().expect("taints");
    assert!(
        taints.iter().any(|t| t["key"] == "karpenter.sh/disrupted" && t["effect"] == "NoSchedule"),
        "{taints:?}"
    );
    assert_eq!(
        ending["metadata"]["labels"]["node.kubernetes.io/exclude-from-external-load-balancers"],
        "karpenter"
    );
    let claim = rig.get(&the_claim()).await.expect("the claim");
    assert!(claim["metadata"]["deletionTimestamp"].is_string(), "whoever deletes a node deletes its claim");
    assert_eq!(state_of(&claim, "Drained"), Some(("Unknown".into(), "Draining".into(), "Draining".into())));
    assert_eq!(rig.provider.instances().len(), 1);
    rig.pass(15 * SECOND).await;
    assert!(is_gone(&rig) && rig.provider.instances().is_empty());
    assert_eq!(rig.get(&the_claim()).await, None);
    for (name, value) in [
        ("karpenter_nodes_drained_total", 1.0),
        ("karpenter_nodes_terminated_total", 1.0),
        ("karpenter_nodes_termination_duration_seconds_count", 1.0),
        ("karpenter_nodes_lifetime_duration_seconds_count", 1.0),
    ] {
        assert_eq!(rig.metric(name, &[("nodepool", "default")]), Some(value), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_leave_tier_by_tier_and_the_next_only_when_the_last_is_gone() {
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim()).await;
    rig.create(held_node()).await;
    let daemon_set = rig
        .create(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "ds"}},
                "template": {
                    "metadata": {"labels": {"app": "ds"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"key": "x"}]},
                },
            },
        }))
        .await;
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": daemon_set.metadata.uid}]);
    let daemon = json!({"metadata": {"ownerReferences": owner}});
    let critical = json!({"spec": {"priorityClassName": "system-node-critical"}});
    rig.create(pod_on("c", "app", "1m")).await;
    rig.create(pod_on("c", "daemon", "1m").with(daemon.clone())).await;
    rig.create(pod_on("c", "critical", "1m").with(critical.clone())).await;
    rig.create(pod_on("c", "critical-daemon", "1m").with(critical).with(daemon)).await;
    rig.pass(SECOND).await;
    rig.delete(&held_node()).await;
    for next in ["app", "daemon", "critical", "critical-daemon"] {
        rig.pass(5 * SECOND).await;
        assert_eq!(leaving(&rig), [next]);
        kill(&rig, next).await;
    }
    rig.pass(15 * SECOND).await;
    assert!(is_gone(&rig));
    assert_eq!(rig.metric("karpenter_pods_drained_total", &[("reason", "Forceful Termination")]), Some(4.0));
    assert_eq!(rig.metric("karpenter_pods_eviction_requests_total", &[("code", "200")]), Some(4.0));
    let told = rig.events("Pod", "app").await;
    assert!(told.contains(&"Evicted: Evicted pod: Forceful Termination".to_owned()), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_must_not_be_disrupted_is_waited_for() {
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let rig = ending(the_claim(), held_node(), vec![pod_on("c", "p", "1m").with(protected)]).await;
    rig.pass(1200 * SECOND).await;
    assert_eq!(leaving(&rig), Vec::<String>::new());
    let told = rig.events("Node", &node_name("c")).await;
    assert!(
        told.contains(&"FailedDraining: Failed to drain node, 1 pods are waiting to be evicted".to_owned()),
        "{told:?}"
    );
    assert_eq!(rig.provider.instances().len(), 1);
    rig.patch(
        &pod_on("c", "p", "1m"),
        json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": null}}}),
    )
    .await;
    rig.pass(12 * SECOND).await;
    assert_eq!(leaving(&rig), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_protected_for_a_time_is_evicted_after_it_and_told_so() {
    let protected = |value: &str| {
        json!({
            "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": value}},
            "status": {"startTime": "2026-01-01T00:00:00Z"},
        })
    };
    let timed = pod_on("c", "timed", "1m").with(protected("5m"));
    let nonsense = pod_on("c", "nonsense", "1m").with(protected("soon"));
    let rig = ending(the_claim(), held_node(), vec![timed, nonsense]).await;
    rig.pass(120 * SECOND).await;
    assert_eq!(leaving(&rig), ["nonsense"]);
    let told = rig.events("Pod", "nonsense").await;
    let wrong = "InvalidDoNotDisruptAnnotation: Invalid karpenter.sh/do-not-disrupt annotation: ";
    assert!(told.iter().any(|said| said.starts_with(wrong)), "{told:?}");
    let told = rig.events("Pod", "timed").await;
    let until =
        "DoNotDisruptUntil: The karpenter.sh/do-not-disrupt grace period will elapse at 2026-01-01T00:05:00Z";
    assert!(told.iter().any(|said| said == until), "{told:?}");
    kill(&rig, "nonsense").await;
    rig.pass(240 * SECOND).await;
    assert_eq!(leaving(&rig), ["timed"]);
    let told = rig.events("Pod", "timed").await;
    assert!(told.iter().any(|said| said.starts_with("DoNotDisruptGracePeriodElapsed: ")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_is_respected_told_and_tried_again() {
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim()).await;
    rig.create(held_node()).await;
    rig.create(pod_on("c", "p", "1m")).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "p"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "observedGeneration": 1},
    });
    rig.create(budget.clone()).await;
    rig.pass(SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(60 * SECOND).await;
    assert_eq!(leaving(&rig), Vec::<String>::new());
    assert!(
        rig.metric("karpenter_pods_eviction_requests_total", &[("code", "429")])
            .is_some_and(|count| count >= 8.0)
    );
    let told = rig.events("Node", &node_name("c")).await;
    assert!(told.iter().any(|said| said.starts_with("FailedDraining: Failed to drain node, ")), "{told:?}");
    let told = rig.events("NodeClaim", "c").await;
    let waits = "FailedDraining: Failed to drain node, 1 pods are waiting to be evicted";
    assert!(told.iter().any(|said| said == waits), "{told:?}");
    let held = told.iter().find(|said| said.contains("violates a PDB"));
    assert!(held.is_some_and(|said| said.contains("disruption budget b ")), "it says which: {told:?}");
    rig.delete(&budget).await;
    rig.pass(11 * SECOND).await;
    assert_eq!(leaving(&rig), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_too_much_to_do_is_asked_again_and_no_budget_is_blamed() {
    let rig = Rig::quiet(&[]).await;
    let busy: Refusal = |_, path| path.ends_with("/pods/p/eviction").then_some(429);
    rig.refuse(Some(busy));
    rig.create(the_claim()).await;
    rig.create(held_node()).await;
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(60 * SECOND).await;
    assert_eq!(leaving(&rig), Vec::<String>::new());
    let told = rig.events("Node", &node_name("c")).await;
    assert!(!told.iter().any(|said| said.contains("PDB")), "{told:?}");
    rig.refuse(None);
    rig.pass(11 * SECOND).await;
    assert_eq!(leaving(&rig), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_stay_on_drained_nodes_hold_up_nothing() {
    let tolerating =
        json!({"spec": {"tolerations": [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]}});
    let finished = json!({"status": {"phase": "Succeeded"}});
    let pods =
        vec![pod_on("c", "tolerating", "1m").with(tolerating), pod_on("c", "finished", "1m").with(finished)];
    let rig = ending(the_claim(), held_node(), pods).await;
    rig.pass(20 * SECOND).await;
    assert!(is_gone(&rig));
    assert_eq!(leaving(&rig), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_pods_are_deleted_with_what_time_is_left_whatever_they_say() {
    let protected = json!({
        "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}},
        "spec": {"terminationGracePeriodSeconds": 30},
    });
    let bounded = the_claim().with(json!({"spec": {"terminationGracePeriod": "120s"}}));
    let rig = ending(bounded, held_node(), vec![pod_on("c", "p", "1m").with(protected)]).await;
    rig.pass(85 * SECOND).await;
    assert_eq!(leaving(&rig), Vec::<String>::new());
    rig.pass(17 * SECOND).await;
    assert_eq!(leaving(&rig), ["p"]);
    let told = rig.events("Pod", "p").await;
    let said = told.iter().find(|said| {
        said.starts_with("Disrupted: Deleting the pod to accommodate the terminationTime 2026-01-01 00:02:")
    });
    let said = said.unwrap_or_else(|| panic!("{told:?}"));
    assert!(
        said.contains(" +0000 UTC of the node. The pod was granted ")
            && said.contains(" seconds of grace-period of its 30 terminationGracePeriodSeconds."),
        "{said}"
    );
    let told = rig.events("Node", &node_name("c")).await;
    assert!(
        told.iter().any(|said| said
            .starts_with("TerminationGracePeriodExpiring: All pods will be deleted by 2026-01-01T00:02:")),
        "{told:?}"
    );
    kill(&rig, "p").await;
    rig.pass(15 * SECOND).await;
    assert!(is_gone(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_makes_no_sense_is_told_on_the_node() {
    let lines = Lines::capture();
    let soon = json!({"metadata": {"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": "soon"}}});
    let rig = ending(the_claim().with(soon), held_node(), vec![]).await;
    rig.pass(30 * SECOND).await;
    assert!(!is_gone(&rig), "it may have been meant to be long");
    let told = rig.events("Node", &node_name("c")).await;
    let said = "TerminationGracePeriodExpiring: All pods will be deleted by soon";
    assert!(told.contains(&said.to_owned()), "{told:?}");
    let mut errors = lines.saying("Reconciler error").into_iter();
    let error = errors.find(|line| line["controller"] == "node.termination").expect("an error");
    assert_eq!(error["annotation"], "karpenter.sh/nodeclaim-termination-timestamp");
    assert!(error["error"].as_str().is_some_and(|text| text.starts_with("parsing annotation, ")), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_leap_of_the_clock_ends_no_drain_before_it_is_believed() {
    let wish = |wish: &str| json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": wish}}});
    let bounded = the_claim().with(json!({"spec": {"terminationGracePeriod": "1h"}}));
    let pods = vec![
        pod_on("c", "protected", "1m").with(wish("true")),
        pod_on("c", "protected-a-while", "1m").with(wish("30m")),
        pod_on("c", "slow", "1m"),
    ];
    let rig = ending(bounded, held_node(), pods).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(leaving(&rig), ["slow"]);
    rig.jump(2 * 3600);
    rig.pass(50 * SECOND).await;
    assert_eq!(leaving(&rig), ["slow"], "the deadline and half an hour have passed by the leap alone");
    rig.jump(-2 * 3600);
    rig.pass(60 * SECOND).await;
    assert_eq!(leaving(&rig), ["slow"], "the clock was wrong");
    rig.jump(2 * 3600);
    rig.pass(75 * SECOND).await;
    assert_eq!(leaving(&rig), ["protected", "protected-a-while", "slow"], "the clock is believed");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_due_keeps_its_time_when_the_clock_leaps() {
    let patient = json!({
        "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}},
        "spec": {"terminationGracePeriodSeconds": 600},
    });
    let bounded = the_claim().with(json!({"spec": {"terminationGracePeriod": "11m"}}));
    let rig = ending(bounded, held_node(), vec![pod_on("c", "p", "1m").with(patient)]).await;
    rig.pass(50 * SECOND).await;
    assert_eq!(leaving(&rig), Vec::<String>::new());
    rig.jump(2 * 3600);
    rig.pass(20 * SECOND).await;
    assert_eq!(leaving(&rig), ["p"], "due by the time nobody doubts");
    let granted = rig.see(|objects| {
        objects.pods.values().find_map(|pod| pod.metadata.deletion_grace_period_seconds).unwrap_or_default()
    });
    assert!((500..=600).contains(&granted), "{granted} s are left of its time, whatever the clock shows");
}

#[tokio::test(start_paused = true)]
async fn a_pod_stuck_on_its_way_out_is_not_waited_for_for_ever() {
    let rig = ending(the_claim(), held_node(), vec![pod_on("c", "p", "1m")]).await;
    rig.pass(60 * SECOND).await;
    assert!(!is_gone(&rig), "it has half a minute of grace and a minute of patience");
    rig.pass(60 * SECOND).await;
    assert!(is_gone(&rig));
}

#[tokio::test(start_paused = true)]
async fn volumes_are_waited_for_but_not_those_of_pods_that_stay_nor_past_the_deadline() {
    let attachment = |name: &str, volume: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": "csi", "nodeName": node_name("c"), "source": {"persistentVolumeName": volume}},
        })
    };
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim()).await;
    rig.create(held_node()).await;
    rig.create(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "kept-pv", "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .await;
    let staying = json!({"spec": {
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "kept"}}],
    }});
    rig.create(pod_on("c", "staying", "1m").with(staying)).await;
    rig.create(attachment("kept", "kept-pv")).await;
    rig.create(attachment("moving", "moving-pv")).await;
    rig.pass(SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(60 * SECOND).await;
    assert!(!is_gone(&rig));
    let claim = rig.get(&the_claim()).await.expect("the claim");
    let why = "AwaitingVolumeDetachment";
    assert_eq!(state_of(&claim, "VolumesDetached"), Some(("Unknown".into(), why.into(), why.into())));
    let told = rig.events("Node", &node_name("c")).await;
    assert!(
        told.contains(&format!("{why}: Awaiting deletion of bound volumeattachments (moving)")),
        "{told:?}"
    );
    rig.delete(&attachment("moving", "moving-pv")).await;
    rig.pass(10 * SECOND).await;
    assert!(is_gone(&rig));

    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim().with(json!({"spec": {"terminationGracePeriod": "30s"}}))).await;
    rig.create(held_node()).await;
    rig.create(attachment("moving", "moving-pv")).await;
    rig.pass(SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(25 * SECOND).await;
    assert!(!is_gone(&rig));
    rig.pass(25 * SECOND).await;
    assert!(is_gone(&rig), "past the deadline volumes are left to their fate");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_instance_is_known_to_be_gone_goes_at_once() {
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim()).await;
    rig.create(held_node().with(unready)).await;
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    rig.provider.vanish(&provider_id("c"));
    rig.delete(&held_node()).await;
    rig.pass(SECOND).await;
    assert!(is_gone(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_cannot_say_whether_an_instance_is_there_lets_no_node_go() {
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::Get, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.create(the_claim()).await;
    rig.create(held_node().with(unready)).await;
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(60 * SECOND).await;
    assert!(!is_gone(&rig));
    assert_eq!(rig.provider.count(Method::Delete), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_reports_is_drained_even_if_its_instance_is_said_to_be_gone() {
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim()).await;
    rig.create(held_node()).await;
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    rig.provider.vanish(&provider_id("c"));
    rig.delete(&held_node()).await;
    rig.pass(10 * SECOND).await;
    assert!(!is_gone(&rig));
    assert_eq!(leaving(&rig), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_took_the_name_of_another_is_not_evicted_for_it() {
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let rig = ending(the_claim(), held_node(), vec![pod_on("c", "p", "1m").with(protected)]).await;
    rig.pass(5 * SECOND).await;
    kill(&rig, "p").await;
    rig.create(pod_on("elsewhere", "p", "1m")).await;
    rig.pass(30 * SECOND).await;
    assert_eq!(leaving(&rig), Vec::<String>::new());
    assert!(is_gone(&rig));
}

#[tokio::test(start_paused = true)]
async fn nodes_of_others_are_left_alone() {
    let foreign = held_node().with(json!({"metadata": {"labels": {crate::objects::NODE_CLASS_LABEL: null}}}));
    let rig = Rig::quiet(&[]).await;
    rig.create(foreign.clone()).await;
    rig.create(pod_on("c", "p", "1m")).await;
    rig.pass(SECOND).await;
    rig.delete(&foreign).await;
    rig.pass(60 * SECOND).await;
    let node = rig.get(&foreign).await.expect("the node");
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    assert!(taints.into_iter().all(|taint| taint["key"] != "karpenter.sh/disrupted"), "{node}");
    assert_eq!(leaving(&rig), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn in_a_cluster_that_works_pods_move_before_their_node_and_its_instance_go() {
    let rig = Rig::lively(&[]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default").with(json!({
        "status": null, "spec": {"disruption": {"consolidateAfter": "Never"}},
    })))
    .await;
    rig.create(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "200m"}}}]},
            },
        },
    }))
    .await;
    let running = |rig: &Rig, node: &str| {
        rig.see(|objects| objects.pods_on(node).filter(|pod| karpenter_sim::objects::is_ready(pod)).count())
    };
    rig.eventually("an instance is launched", |rig| rig.provider.launches() == 1).await;
    rig.create(joining_node("first", "fake:///1")).await;
    rig.eventually("the pods run", |rig| running(rig, "first") == 3).await;
    let claim = rig.see(|objects| objects.node_claims.keys().next().expect("a claim").name.to_string());
    let claim = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": claim}});
    let initialized =
        state_of(&rig.get(&claim).await.expect("the claim"), "Initialized").expect("a condition");
    assert_eq!(initialized.0, "True");
    rig.delete(&claim).await;
    rig.eventually("another instance is launched", |rig| rig.provider.launches() == 2).await;
    rig.create(joining_node("second", "fake:///2")).await;
    rig.eventually("the pods have moved", |rig| running(rig, "second") == 3).await;
    rig.eventually("the first node is gone", |rig| rig.see(|objects| objects.node("first").is_none())).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(rig.get(&claim).await, None);
    assert_eq!(rig.provider.instances().len(), 1);
    rig.expect_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_several_claims_name_is_the_end_of_all_of_them_and_of_the_machine() {
    let rig = Rig::quiet(&[]).await;
    rig.create(the_claim()).await;
    rig.create(twin()).await;
    rig.create(held_node()).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&held_node()).await;
    rig.eventually("everything is gone", |rig| {
        is_gone(rig) && rig.see(|objects| objects.node_claims.is_empty())
    })
    .await;
    assert_eq!(rig.provider.instances().len(), 0, "nobody would remove it any more");
}

/// Another claim that names the machine of `c`.
fn twin() -> Value {
    claim("twin", "default", 1)
        .with(json!({"status": {"providerID": provider_id("c"), "nodeName": node_name("c")}}))
}

/// Whether the claim lives and nobody wants it gone.
async fn is_untouched(rig: &Rig, claim: &Value) -> bool {
    rig.get(claim).await.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_null())
}

#[tokio::test(start_paused = true)]
async fn of_several_claims_the_earliest_deadline_holds() {
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let patient = the_claim().with(json!({"spec": {"terminationGracePeriod": "1h"}}));
    let hurried = twin().with(json!({"spec": {"terminationGracePeriod": "60s"}}));
    let rig = Rig::quiet(&[]).await;
    rig.create(patient).await;
    rig.create(hurried).await;
    rig.create(held_node()).await;
    rig.create(pod_on("c", "p", "1m").with(protected)).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(70 * SECOND).await;
    assert_eq!(leaving(&rig), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_karpenter_is_left_alone_whatever_machine_it_names() {
    let foreign = twin().with(json!({"spec": {"nodeClassRef": {"kind": "OtherNodeClass"}}}));
    let rig = Rig::quiet(&[]).await;
    rig.create(foreign.clone()).await;
    rig.create(the_claim()).await;
    rig.create(held_node()).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&held_node()).await;
    rig.pass(30 * SECOND).await;
    assert!(is_gone(&rig));
    assert_eq!(rig.get(&the_claim()).await, None, "ours has ended");
    assert!(is_untouched(&rig, &foreign).await);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_came_to_another_node_is_left_alone() {
    let elsewhere = twin().with(json!({"status": {"nodeName": "elsewhere"}}));
    let rig = ending(elsewhere.clone(), held_node(), vec![]).await;
    rig.pass(30 * SECOND).await;
    assert!(is_gone(&rig));
    assert!(is_untouched(&rig, &elsewhere).await);
}

#[tokio::test(start_paused = true)]
async fn a_claim_made_after_the_nodes_deletion_has_only_got_the_id_of_a_machine_that_went() {
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let rig = ending(the_claim(), held_node(), vec![pod_on("c", "p", "1m").with(protected)]).await;
    rig.pass(5 * SECOND).await;
    let recycled = twin().with(json!({"status": {"nodeName": null}}));
    rig.create(recycled.clone()).await;
    rig.pass(5 * SECOND).await;
    kill(&rig, "p").await;
    rig.eventually("the node is gone", is_gone).await;
    assert!(is_untouched(&rig, &recycled).await);
}

#[tokio::test(start_paused = true)]
async fn an_empty_provider_id_belongs_to_nothing() {
    let unlaunched = the_claim().with(json!({"status": {"providerID": "", "nodeName": null}}));
    let unseen = held_node().with(json!({"spec": {"providerID": ""}}));
    let rig = ending(unlaunched.clone(), unseen, vec![]).await;
    rig.pass(30 * SECOND).await;
    assert!(is_gone(&rig));
    assert!(is_untouched(&rig, &unlaunched).await);
}
