//! What is unhealthy or about to be taken away, and who replaces it: health checks, node repair, notices.

use k8s_openapi::api::core::v1::Node;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::Kind;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::rig::{MAX, MINUTE, Rig, initialized, scenario};
use crate::rollouts::condemn;

const SKIP: &str = "cluster.x-k8s.io/skip-remediation";
const HEALTHY: &str = "ClusterAPINodeHealthy";

/// Sets a condition of a Node, from now on.
async fn say(rig: &Rig, node: &str, kind: &str, status: &str) {
    let api: Api<Node> = Api::all(rig.world.cluster().client("user"));
    let found = serde_json::to_value(api.get(node).await.expect("the Node")).expect("JSON");
    let mut conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != kind);
    let now = rig.world.cluster().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    conditions.push(json!({
        "type": kind, "status": status, "reason": "Said", "message": "in two minutes", "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }));
    let change = Patch::Merge(json!({"status": {"conditions": conditions}}));
    api.patch_status(node, &PatchParams::default(), &change).await.expect("a patch");
}

/// The status of a condition of a Node.
fn said(objects: &Objects, node: &str, kind: &str) -> Option<String> {
    let conditions = objects.node(node)?.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.clone())
}

fn first_node(rig: &Rig) -> String {
    let name = rig.read(|objects| objects.nodes.keys().next().map(|key| key.name.to_string()));
    name.expect("a Node")
}

/// What Machines say to health checks.
fn skips(objects: &Objects) -> Vec<Option<String>> {
    let told = |machine: &std::sync::Arc<kube::api::DynamicObject>| {
        machine.metadata.annotations.as_ref().and_then(|all| all.get(SKIP).cloned())
    };
    objects.machines.values().map(told).collect()
}

#[test]
fn a_machine_whose_node_says_that_it_is_taken_away_is_replaced_in_time() {
    scenario(async {
        let rig = Rig::new(json!({"interruptionConditions": ["SpotTermination"]})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let node = first_node(&rig);
        say(&rig, &node, "SpotTermination", "True").await;
        let took = rig
            .until("it is gone", 5 * MINUTE, |objects| objects.nodes.keys().all(|key| *key.name != *node))
            .await;
        assert!(took <= 2 * MINUTE, "{took:?}");
        rig.until("another is ready", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        let told = rig.events("Interruption").await;
        let sentence = format!("Node {node}: SpotTermination: in two minutes");
        assert_eq!(told, [sentence]);
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (2, 2));
        rig.at_rest();
    });
}

#[test]
fn health_checks_leave_machines_to_node_repair_where_the_node_class_says_so() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async {
            let rig = Rig::new(json!({"launchMode": mode, "remediation": "NodeRepair"})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(2);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            assert_eq!(
                rig.read(skips),
                [Some("karpenter".to_owned()), Some("karpenter".to_owned())],
                "{mode}"
            );
            let node = first_node(&rig);
            rig.capi.check_health(true);
            rig.world.cluster().set_kubelet(&node, false);
            let machines = |objects: &Objects| {
                objects.machines.keys().cloned().collect::<std::collections::BTreeSet<_>>()
            };
            let before = rig.read(machines);
            rig.pass(30 * MINUTE).await;
            assert_eq!(rig.read(machines), before, "{mode}: nobody else replaces it");
            rig.patch_node_class(json!({"spec": {"remediation": "ClusterAPI"}})).await;
            rig.until("health checks are heeded again", 30 * MINUTE, |objects| {
                let kept = machines(objects).intersection(&before).count();
                kept == 1 && objects.machines.len() == 2 && initialized(objects) == 2
            })
            .await;
            assert_eq!(rig.read(skips), [None, None], "{mode}");
        });
    }
}

#[test]
fn machines_that_are_claimed_already_are_left_to_node_repair_too_but_what_others_wrote_stays() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let first = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let first = first.expect("a Machine");
        rig.patch(Kind::Machine, &first, json!({"metadata": {"annotations": {SKIP: ""}}})).await;
        rig.patch_node_class(json!({"spec": {"remediation": "NodeRepair"}})).await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.read(skips), [Some(String::new()), Some("karpenter".to_owned())]);
        rig.patch_node_class(json!({"spec": {"remediation": "Karpenter"}})).await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.read(skips), [Some(String::new()), None]);
    });
}

#[test]
fn where_nobody_repairs_nodes_machines_stay_with_health_checks_and_that_is_told() {
    scenario(async {
        let rig = Rig::new(json!({"remediation": "NodeRepair"})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        // Without the feature gate.
        let karpenter = rig.process_without_names();
        karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read(skips), [None]);
        let told = rig.events("NodeRepairOff").await;
        assert!(told.iter().all(|message| message.contains("the feature gate NodeRepair")), "{told:?}");
        assert_eq!(told.len(), 1, "{told:?}");
    });
}

#[test]
fn a_condemned_machine_that_somebody_wants_left_alone_is() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"launchMode": "Machine", "remediation": "Karpenter"})).await;
        let name = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let name = name.expect("a Machine");
        let skip = |value: Value| json!({"metadata": {"annotations": {SKIP: value}}});
        rig.patch(Kind::Machine, &name, skip("".into())).await;
        condemn(&rig, &name).await;
        rig.pass(10 * MINUTE).await;
        assert!(rig.read(|objects| objects.machines.keys().any(|key| *key.name == *name)));
        rig.patch(Kind::Machine, &name, skip(Value::Null)).await;
        rig.until("another takes its place", 10 * MINUTE, |objects| {
            initialized(objects) == 1 && objects.machines.keys().all(|key| *key.name != *name)
        })
        .await;
    });
}

#[test]
fn the_owner_of_a_condemned_machine_says_what_it_does_about_it() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"launchMode": "Machine"})).await;
        let name = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let name = name.expect("a Machine");
        // It is still there when it has been said.
        rig.annotate_claim("n1", crate::core::UNDRAINED, "").await;
        condemn(&rig, &name).await;
        rig.until("it is told", 5 * MINUTE, |objects| {
            let machine = objects.machines.values().next();
            let conditions = machine.and_then(|machine| machine.data.pointer("/status/conditions"));
            conditions.and_then(Value::as_array).into_iter().flatten().any(|condition| {
                condition["type"] == "OwnerRemediated"
                    && condition["status"] == "False"
                    && condition["reason"] == "MachineDeleting"
            })
        })
        .await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.events("MachineUnhealthy").await, ["a health check condemned its Machine"]);
    });
}

#[test]
fn a_node_that_is_broken_by_what_its_node_class_names_says_so_to_node_repair() {
    scenario(async {
        let conditions = json!([{"type": "GPUHealthy", "status": "False", "after": "10m"}]);
        let rig = Rig::new(json!({"repairConditions": conditions})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let node = first_node(&rig);
        say(&rig, &node, "GPUHealthy", "False").await;
        rig.pass(9 * MINUTE).await;
        assert_eq!(rig.read(|objects| said(objects, &node, HEALTHY)), None, "it is borne for ten minutes");
        rig.until("it is broken", 3 * MINUTE, |objects| {
            said(objects, &node, HEALTHY).as_deref() == Some("False")
        })
        .await;
        let others = rig.read(|objects| {
            let names = objects.nodes.keys().map(|key| key.name.to_string());
            names.filter(|name| *name != node && said(objects, name, HEALTHY).is_some()).count()
        });
        assert_eq!(others, 0);
        // Nobody wants to know any more.
        rig.patch_node_class(json!({"spec": {"repairConditions": null}})).await;
        rig.until("it is not", 3 * MINUTE, |objects| {
            said(objects, &node, HEALTHY).as_deref() == Some("True")
        })
        .await;
    });
}
