//! A move to another management cluster, step by step: paused, made there, gone here. Launches that are under way are not given up.

use karpenter_sim::Objects;
use karpenter_sim::cluster_api::{self, Kind};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::json;

use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, claimed, launched, scenario};

/// Takes an object away, whatever holds it: how it was, to be made again.
async fn take_away(rig: &Rig, kind: Kind, name: &str) -> DynamicObject {
    let api = rig.api(kind);
    let mut object = api.get(name).await.expect("an object");
    rig.patch(kind, name, json!({"metadata": {"finalizers": null}})).await;
    api.delete(name, &DeleteParams::default()).await.expect("a deletion");
    let meta = &mut object.metadata;
    (meta.uid, meta.resource_version, meta.creation_timestamp, meta.managed_fields) =
        (None, None, None, None);
    meta.owner_references = None;
    object
}

/// Why the one launch that is under way waits.
fn waits_for(rig: &Rig) -> String {
    let told = rig.read(launched);
    assert_eq!(told.len(), 1, "{told:?}");
    told[0].0.clone()
}

#[test]
fn a_launch_under_way_outlives_a_move() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async {
            let rig = Rig::without_rules(json!({"launchMode": mode, "timeouts": {"launch": "120m"}})).await;
            let slow = json!({"provisionSeconds": 900, "joinSeconds": 2});
            rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")]))
                .await;
            rig.karpenter.start();
            rig.pass(MINUTE).await;
            rig.capi.run_controllers(false);
            rig.want(1);
            rig.pass(MINUTE).await;
            rig.want(0);
            let paused = |paused: bool| json!({"spec": {"paused": paused}});
            rig.patch(Kind::Cluster, CLUSTER, paused(true)).await;
            rig.pass(MINUTE).await;
            let machines = |objects: &Objects| {
                objects.machines.keys().map(|key| key.name.to_string()).collect::<Vec<_>>()
            };
            for machine in rig.read(machines) {
                take_away(&rig, Kind::Machine, &machine).await;
            }
            let deployment = take_away(&rig, Kind::MachineDeployment, "m").await;
            rig.pass(3 * MINUTE).await;
            assert_eq!(waits_for(&rig), "Paused", "{mode}");
            let cluster = take_away(&rig, Kind::Cluster, CLUSTER).await;
            rig.pass(3 * MINUTE).await;
            assert_eq!(waits_for(&rig), "ManagementUnavailable", "{mode}");
            let post = PostParams::default();
            rig.api(Kind::Cluster).create(&post, &cluster).await.expect("a Cluster");
            rig.api(Kind::MachineDeployment).create(&post, &deployment).await.expect("a MachineDeployment");
            rig.pass(MINUTE).await;
            rig.capi.run_controllers(true);
            rig.patch(Kind::Cluster, CLUSTER, paused(false)).await;
            rig.until("its Machine is made again", 5 * MINUTE, |objects| claimed(objects) == 1).await;
            let names: Vec<String> =
                rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect());
            assert_eq!(names, ["n1"], "{mode}");
        });
    }
}

#[test]
fn who_waits_for_a_deployment_that_its_owner_deleted_is_turned_away() {
    scenario(async {
        let rig = Rig::without_rules(json!({"timeouts": {"launch": "60m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(MINUTE).await;
        rig.capi.run_controllers(false);
        rig.want(1);
        rig.pass(MINUTE).await;
        rig.want(0);
        take_away(&rig, Kind::MachineDeployment, "m").await;
        rig.until("it is given up", MINUTE, |objects| objects.node_claims.is_empty()).await;
    });
}

#[test]
fn a_launch_whose_time_is_over_is_given_up_though_its_cluster_is_paused_or_gone() {
    for (mode, gone) in [("MachineDeployment", false), ("Machine", false), ("Machine", true)] {
        scenario(async {
            let rig = Rig::without_rules(json!({"launchMode": mode, "timeouts": {"launch": "20m"}})).await;
            let slow = json!({"provisionSeconds": 3600, "joinSeconds": 2});
            rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")]))
                .await;
            rig.karpenter.start();
            rig.pass(MINUTE).await;
            rig.capi.run_controllers(false);
            rig.want(1);
            rig.pass(MINUTE).await;
            rig.want(0);
            rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"paused": true}})).await;
            rig.pass(MINUTE).await;
            let machines = |objects: &Objects| {
                objects.machines.keys().map(|key| key.name.to_string()).collect::<Vec<_>>()
            };
            for machine in rig.read(machines) {
                take_away(&rig, Kind::Machine, &machine).await;
            }
            if gone {
                take_away(&rig, Kind::MachineDeployment, "m").await;
                take_away(&rig, Kind::Cluster, CLUSTER).await;
            }
            rig.pass(15 * MINUTE).await;
            let live = |objects: &Objects| {
                let all = objects.node_claims.values();
                all.filter(|claim| claim.metadata.deletion_timestamp.is_none()).count()
            };
            assert_eq!(rig.read(live), 1, "{mode}: it has more time");
            rig.until("it is given up", 10 * MINUTE, |objects| live(objects) == 0).await;
        });
    }
}
