//! Taking over from the Go provider in the middle of what it was doing: NodeClaims that it bound to Machines and that end, or have no id
//! yet.

use karpenter_api::NodeClaim;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::Kind;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::core::UNDRAINED;
use crate::rig::{MAX, MINUTE, Rig, SECOND, claimed, initialized, launched, replicas, scenario};

const MEMBER: &str = "node.cluster.x-k8s.io/karpenter-member";

/// The Machines of a MachineDeployment that somebody scaled to so many, with their ids, when all of them have Nodes. The Go provider has
/// put its label on them.
async fn bound_machines(rig: &Rig, deployment: &str, count: usize) -> Vec<(String, String)> {
    rig.patch(Kind::MachineDeployment, deployment, json!({"spec": {"replicas": count}})).await;
    let up = |objects: &Objects| {
        let with_node =
            objects.machines.values().filter(|m| m.data.pointer("/status/nodeRef/name").is_some());
        with_node.count() == count
    };
    rig.until("all have nodes", 5 * MINUTE, up).await;
    let machines: Vec<(String, String)> = rig.read(|objects| {
        let id = |value: &Value| value["spec"]["providerID"].as_str().unwrap_or_default().to_owned();
        objects.machines.iter().map(|(key, machine)| (key.to_string(), id(&machine.data))).collect()
    });
    for (machine, _) in &machines {
        let name = machine.rsplit('/').next().unwrap_or_default();
        rig.patch(Kind::Machine, name, json!({"metadata": {"labels": {MEMBER: ""}}})).await;
    }
    machines
}

#[test]
fn the_machine_of_a_go_node_claim_that_is_drained_at_takeover_goes_for_good() {
    scenario(async {
        let rig = Rig::without_rules(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let machines = bound_machines(&rig, "m", 1).await;
        rig.bound_claim("old", &machines[0].0, &machines[0].1).await;
        rig.annotate_claim("old", UNDRAINED, "").await;
        rig.delete_claim("old").await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the new one is up", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.replicas("m"), 2, "the old one is being drained");
        let api: Api<NodeClaim> = Api::all(rig.world.cluster().client("user"));
        let drained = json!({"metadata": {"annotations": {UNDRAINED: null}}});
        api.patch("old", &PatchParams::default(), &Patch::Merge(drained)).await.expect("a NodeClaim");
        rig.until("the old one is gone", 5 * MINUTE, |objects| objects.node_claims.len() == 1).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!(
            rig.read(|objects| (objects.machines.len(), claimed(objects), replicas(objects, "m"))),
            (1, 1, 1)
        );
    });
}

/// Takes the id off a NodeClaim: the Go provider bound it before its Machine had one.
async fn without_id(rig: &Rig, name: &str) {
    let api: Api<NodeClaim> = Api::all(rig.world.cluster().client("user"));
    let nothing = json!({"status": {"providerID": null, "conditions": null}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(nothing)).await.expect("a NodeClaim");
}

#[test]
fn the_machine_of_a_go_node_claim_that_ends_before_it_has_an_id_goes_with_it() {
    scenario(async {
        let rig = Rig::without_rules(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let machines = bound_machines(&rig, "m", 2).await;
        rig.bound_claim("ends", &machines[0].0, "").await;
        without_id(&rig, "ends").await;
        rig.delete_claim("ends").await;
        rig.karpenter.start();
        rig.until("it is gone", 5 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        rig.pass(5 * MINUTE).await;
        let left: Vec<String> =
            rig.read(|objects| objects.machines.keys().map(ToString::to_string).collect());
        assert_eq!((left, rig.replicas("m")), (vec![machines[1].0.clone()], 1));
    });
}

#[test]
fn a_go_node_claim_that_ends_without_an_id_leaves_a_machine_that_another_has() {
    scenario(async {
        let rig = Rig::without_rules(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let machines = bound_machines(&rig, "m", 1).await;
        rig.bound_claim("ends", &machines[0].0, "").await;
        without_id(&rig, "ends").await;
        rig.pass(2 * SECOND).await;
        rig.bound_claim("stays", &machines[0].0, &machines[0].1).await;
        rig.delete_claim("ends").await;
        // Nothing is claimed meanwhile, so that bindings alone tell whose the Machine is, and what is to be deleted would wait.
        let paused = |how: Value| json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": how}}});
        rig.patch(Kind::MachineDeployment, "m", paused("".into())).await;
        rig.karpenter.start();
        rig.until("it is gone", 5 * MINUTE, |objects| objects.node_claims.len() == 1).await;
        rig.patch(Kind::MachineDeployment, "m", paused(Value::Null)).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(
            rig.read(|objects| (objects.machines.len(), claimed(objects), replicas(objects, "m"))),
            (1, 1, 1)
        );
    });
}

#[test]
fn a_go_node_claim_that_has_no_id_yet_keeps_its_machine() {
    scenario(async {
        let rig = Rig::without_rules(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        // Cheaper, and chosen if it came to that.
        rig.deployment("a", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.001")]).await;
        let machines = bound_machines(&rig, "m", 1).await;
        rig.bound_claim("waits", &machines[0].0, "").await;
        without_id(&rig, "waits").await;
        // As a Karpenter left it that did not look at bindings.
        rig.annotate_claim("waits", "karpenter.cluster.x-k8s.io/target", "fleet/a").await;
        let paused = |how: Value| json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": how}}});
        rig.patch(Kind::MachineDeployment, "m", paused("".into())).await;
        rig.karpenter.start();
        rig.pass(MINUTE).await;
        let told = rig.read(launched);
        assert_eq!(told[0].0, "Paused", "it waits for its Machine: {told:?}");
        rig.patch(Kind::MachineDeployment, "m", paused(Value::Null)).await;
        rig.until("it is up", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.replicas("a")), (1, 0));
        let (id, instance_type) = rig.read(|objects| {
            let claim = objects.node_claims.values().next().expect("a NodeClaim");
            let label =
                claim.metadata.labels.as_ref().and_then(|all| all.get("node.kubernetes.io/instance-type"));
            (claim.status.as_ref().and_then(|status| status.provider_id.clone()), label.cloned())
        });
        assert_eq!((id.as_ref(), instance_type.as_deref()), (Some(&machines[0].1), Some("m")));
    });
}

#[test]
fn a_go_node_claim_whose_machine_is_gone_gets_another() {
    scenario(async {
        let rig = Rig::without_rules(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.bound_claim("waits", "fleet/m-gone", "").await;
        without_id(&rig, "waits").await;
        rig.karpenter.start();
        rig.until("it is up", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        let binding = rig.read(|objects| {
            let claim = objects.node_claims.values().next().expect("a NodeClaim");
            (
                claim.metadata.name.clone(),
                claim
                    .metadata
                    .annotations
                    .as_ref()
                    .is_some_and(|all| all.contains_key("cluster.x-k8s.io/machine")),
            )
        });
        assert_eq!(binding, (Some("waits".to_owned()), false), "the very one, without the binding");
        assert_eq!(rig.read(|objects| (objects.machines.len(), replicas(objects, "m"))), (1, 1));
    });
}

const GO_MACHINE: &str = "cluster.x-k8s.io/machine";
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// Takes an annotation off a NodeClaim.
async fn without_annotation(rig: &Rig, name: &str, key: &str) {
    let api: Api<NodeClaim> = Api::all(rig.world.cluster().client("user"));
    let change = json!({"metadata": {"annotations": {key: null}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("a NodeClaim");
}

#[test]
fn a_launched_go_node_claim_that_lost_its_binding_or_has_a_bad_one_keeps_the_machine_of_its_id() {
    for binding in [None, Some("a/b/c")] {
        scenario(async {
            let rig = Rig::without_rules(json!({})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            let machines = bound_machines(&rig, "m", 2).await;
            rig.bound_claim("old", binding.unwrap_or_default(), &machines[0].1).await;
            if binding.is_none() {
                without_annotation(&rig, "old", GO_MACHINE).await;
            }
            rig.karpenter.start();
            rig.until("it is claimed", 5 * MINUTE, |objects| claimed(objects) == 1).await;
            rig.pass(2 * MINUTE).await;
            // What it is, it and its Node are told with that: the Go provider left both without.
            let (labels, annotations) = rig.read(|objects| {
                let meta = &objects.node_claims.values().next().expect("a NodeClaim").metadata;
                (meta.labels.clone().unwrap_or_default(), meta.annotations.clone().unwrap_or_default())
            });
            assert_eq!(labels.get(INSTANCE_TYPE).map(String::as_str), Some("m"), "{binding:?}");
            let ours = annotations.get("karpenter.cluster.x-k8s.io/machine");
            assert_eq!((ours, annotations.get(GO_MACHINE)), (Some(&machines[0].0), None), "{binding:?}");
            let on_nodes = rig.read(|objects| {
                let typed = |node: &&std::sync::Arc<k8s_openapi::api::core::v1::Node>| {
                    node.metadata.labels.as_ref().is_some_and(|all| all.contains_key(INSTANCE_TYPE))
                };
                objects.nodes.values().filter(typed).count()
            });
            assert_eq!(on_nodes, 1, "{binding:?}: the other is not ours");
            rig.delete_claim("old").await;
            rig.until("its Machine goes", 10 * MINUTE, |objects| objects.machines.len() == 1).await;
            rig.pass(10 * MINUTE).await;
            let left: Vec<String> =
                rig.read(|objects| objects.machines.keys().map(ToString::to_string).collect());
            assert_eq!((left, rig.replicas("m")), (vec![machines[1].0.clone()], 1), "{binding:?}");
        });
    }
}

#[test]
fn a_node_claim_restored_from_a_backup_of_the_go_providers_time_keeps_its_machine() {
    scenario(async {
        let rig = Rig::without_rules(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let machines = bound_machines(&rig, "m", 1).await;
        rig.bound_claim("old", &machines[0].0, &machines[0].1).await;
        rig.karpenter.start();
        rig.until("it is ours", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(2 * MINUTE).await;
        let api: Api<NodeClaim> = Api::all(rig.world.cluster().client("user"));
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch("old", &PatchParams::default(), &free).await.expect("a patch");
        api.delete("old", &DeleteParams::default()).await.expect("a deletion");
        rig.bound_claim("old", &machines[0].0, "").await;
        without_id(&rig, "old").await;
        rig.until("it is up again", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(20 * MINUTE).await;
        let left: Vec<String> =
            rig.read(|objects| objects.machines.keys().map(ToString::to_string).collect());
        assert_eq!((left, rig.replicas("m")), (vec![machines[0].0.clone()], 1));
        assert_eq!(rig.read(|objects| (claimed(objects), initialized(objects))), (1, 1));
    });
}

#[test]
fn a_go_node_claim_whose_machine_belongs_to_nothing_gets_another_in_the_time_of_a_launch() {
    scenario(async {
        let rig = Rig::without_rules(json!({"timeouts": {"launch": "5m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        let machines = bound_machines(&rig, "m", 1).await;
        rig.capi.run_controllers(false);
        let name = machines[0].0.rsplit('/').next().unwrap_or_default();
        let labels = json!({"cluster.x-k8s.io/deployment-name": null, "cluster.x-k8s.io/set-name": null});
        let free = json!({"metadata": {"labels": labels, "ownerReferences": null}});
        rig.patch(Kind::Machine, name, free).await;
        rig.bound_claim("waits", &machines[0].0, "").await;
        without_id(&rig, "waits").await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        let bound = |objects: &Objects| {
            let claim = objects.node_claims.values().next();
            claim.is_some_and(|c| c.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(GO_MACHINE)))
        };
        assert!(rig.read(bound), "what it belongs to may only not have been seen yet");
        rig.until("it is let go", 5 * MINUTE, |objects| !bound(objects)).await;
    });
}
