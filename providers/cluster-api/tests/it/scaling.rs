//! Launching by scaling MachineDeployments: the acceptance scenarios of that mode.

use std::collections::BTreeMap;

use karpenter_sim::cluster_api::{self, Kind, Lag, UPGRADING};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::{Cluster, Objects};
use kube::api::DynamicObject;
use serde_json::json;

use crate::rig::{
    CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, launched, replicas, scenario,
};

#[test]
fn a1_scale_from_zero() {
    scenario(async {
        let rig = Rig::with_a_node(json!({})).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.writes("/scale")), (1, 1), "exactly one scale write");
        assert_eq!(rig.read(claimed), 1);
        let ids = rig.read(|objects| {
            let machine =
                objects.machines.values().next().map(|machine| machine.data["spec"]["providerID"].clone());
            let claim =
                objects.node_claims.values().next().and_then(|claim| claim.status.clone()?.provider_id);
            let node = objects.nodes.values().next().and_then(|node| node.spec.clone()?.provider_id);
            (machine.and_then(|id| id.as_str().map(str::to_owned)), claim, node)
        });
        assert!(ids.0.is_some() && ids.0 == ids.1 && ids.1 == ids.2, "{ids:?}");
        rig.at_rest();
    });
}

#[test]
fn a2_a_burst_is_one_write() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "100")]).await;
        rig.karpenter.start();
        rig.pass(20 * SECOND).await;
        rig.want(50);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 50).await;
        rig.pass(2 * MINUTE).await;
        assert!(rig.writes("/scale") <= 2, "{} scale writes", rig.writes("/scale"));
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (50, 50));
        let writes = rig.writes("/apis/cluster.x-k8s.io");
        assert!(writes <= 3 * 50, "{writes} writes to the management cluster for 50 nodes");
        rig.at_rest();
    });
}

#[test]
fn a3_a_greatest_size_holds_under_a_burst() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")]).await;
        rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
        rig.karpenter.start();
        rig.want(9);
        rig.until("nine nodes are ready", 15 * MINUTE, |objects| initialized(objects) == 9).await;
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (9, 0));
        rig.want(14);
        let took = rig.until("all nodes are ready", 15 * MINUTE, |objects| initialized(objects) == 14).await;
        assert!(took < MINUTE, "who finds no room goes elsewhere at once: {took:?}");
        rig.pass(2 * MINUTE).await;
        // That it never was more is a rule of every scenario.
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (10, 4));
        rig.at_rest();
    });
}

#[test]
fn replicas_that_their_owner_asked_for_leave_no_room_before_they_are_born() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let price = |text: &'static str| ("karpenter.cluster.x-k8s.io/price", text);
        let upgrading = json!({"metadata": {"annotations": {UPGRADING: "KubeadmControlPlane c"}}});
        rig.patch(Kind::Cluster, "c", upgrading).await;
        rig.deployment("m", &[(MAX, "3"), price("0.1")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 3}})).await;
        let unchecked = ("machineset.cluster.x-k8s.io/skip-preflight-checks", "All");
        rig.deployment("m2", &[(MAX, "10"), price("0.2"), unchecked]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the other serves", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        let name = rig.read(|objects| objects.node_claims.keys().next().map(|key| key.name.to_string()));
        assert_eq!(name.as_deref(), Some("n1"), "nobody was turned away");
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (3, 1));
        rig.at_rest();
    });
}

#[test]
fn a_deployment_that_turned_somebody_away_is_offered_as_soon_as_its_owner_makes_room() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "3")]).await;
        let upgrading = json!({"metadata": {"annotations": {UPGRADING: "KubeadmControlPlane c"}}});
        rig.patch(Kind::Cluster, "c", upgrading).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("three are asked for", 5 * MINUTE, |objects| replicas(objects, "m") == 3).await;
        rig.want(1);
        let at_most = |max: &str| json!({"metadata": {"annotations": {MAX: max}}});
        rig.patch(Kind::MachineDeployment, "m", at_most("1")).await;
        rig.until("two are turned away", 5 * MINUTE, |objects| objects.node_claims.len() == 1).await;
        rig.patch(Kind::MachineDeployment, "m", at_most("3")).await;
        rig.pass(20 * SECOND).await;
        assert_eq!(rig.resource("m").await.unavailable, None);
    });
}

#[test]
fn a_place_that_a_waiting_node_claim_leaves_is_offered_again() {
    scenario(async {
        let limits = json!({"launchLimits": {"perResource": 1}, "timeouts": {"launch": "60m"}});
        let rig = Rig::new(limits).await;
        let slow = json!({"provisionSeconds": 1200, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "2")])).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("the second waits for its turn", 5 * MINUTE, |objects| {
            launched(objects).iter().any(|(reason, _)| reason == "LaunchRate")
        })
        .await;
        rig.pass(3 * MINUTE).await;
        assert!(!rig.is_anything_offered().await, "both places are taken");
        rig.want(1);
        rig.delete_claim("n2").await;
        rig.pass(15 * SECOND).await;
        assert!(rig.is_anything_offered().await, "one is free again, though nothing happens there");
    });
}

#[test]
fn machines_that_may_be_adopted_are_room_at_the_greatest_size() {
    scenario(async {
        let rig = Rig::new(json!({"adoption": "Unclaimed"})).await;
        rig.deployment("m", &[(MAX, "2")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
        rig.until("two nodes", 5 * MINUTE, |objects| objects.nodes.len() == 2).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("both are taken", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.want(3);
        rig.pass(5 * MINUTE).await;
        let told = rig.resource("m").await.unavailable;
        assert!(told.is_some_and(|told| told.contains("greatest size")));
        assert_eq!(
            rig.read(|objects| (objects.machines.len(), claimed(objects), replicas(objects, "m"))),
            (2, 2, 2)
        );
    });
}

#[test]
fn a4_a_held_creation_does_not_run_away() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(
            Kind::Cluster,
            "c",
            json!({"metadata": {"annotations": {UPGRADING: "KubeadmControlPlane c"}}}),
        )
        .await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the hold is told", 5 * MINUTE, |objects| {
            launched(objects).iter().any(|(reason, _)| reason == "ControlPlaneUpgrading")
        })
        .await;
        for _ in 0..30 {
            rig.pass(MINUTE).await;
            assert!(rig.replicas("m") <= 1, "{} replicas", rig.replicas("m"));
        }
        rig.patch(Kind::Cluster, "c", json!({"metadata": {"annotations": {UPGRADING: null}}})).await;
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (1, 1));
        rig.at_rest();
    });
}

#[test]
fn a6_two_windows_do_not_share_machines() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("four are asked for", 5 * MINUTE, |objects| replicas(objects, "m") == 4).await;
        rig.want(8);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 8).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.replicas("m"), 8);
        rig.at_rest();
    });
}

#[test]
fn a7_a_delete_that_is_repeated_lowers_the_level_once() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.capi.run_machine_sets(false);
        let claims = |objects: &Objects| -> BTreeMap<String, String> {
            let claim = |machine: &DynamicObject| {
                machine.metadata.annotations.as_ref()?.get("karpenter.cluster.x-k8s.io/nodeclaim").cloned()
            };
            let all = objects.machines.iter();
            all.filter_map(|(key, machine)| Some((key.name.to_string(), claim(machine)?))).collect()
        };
        let (before, scales) = (rig.read(claims), rig.writes("/scale"));
        rig.want(2);
        rig.delete_claim("n2").await;
        rig.until("the level is lowered", 5 * MINUTE, |objects| replicas(objects, "m") == 2).await;
        // Every five seconds the core asks again.
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.replicas("m"), 2, "though the MachineSet has done nothing for two minutes");
        rig.capi.run_machine_sets(true);
        rig.until("the NodeClaim is gone", 5 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.writes("/scale") - scales), (2, 1), "lowered once");
        let mut stay = before;
        stay.retain(|_, claim| claim != "n2");
        assert_eq!(
            (rig.read(|objects| objects.machines.len()), rig.read(claims)),
            (2, stay),
            "the marked one went"
        );
        rig.at_rest();
    });
}

#[test]
fn what_cluster_api_cannot_make_by_itself_is_left_for_the_next_dearest() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let cheap = [(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")];
        // Its template does not exist.
        rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "m", "nowhere", &cheap)).await;
        rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.pass(2 * MINUTE).await;
        rig.want(2);
        let took = rig.until("those that come later go elsewhere", 5 * MINUTE, |o| initialized(o) == 1).await;
        assert!(took < 2 * MINUTE, "{took:?}");
        rig.until("so does the first in the end", 20 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (0, 2));
        rig.at_rest();
    });
}

/// A MachineDeployment `m` whose template somebody has deleted.
async fn without_template(rig: &Rig, annotations: &[(&str, &str)]) {
    rig.create(cluster_api::template(NAMESPACE, "gone", json!({"provisionSeconds": 3}))).await;
    rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "gone", annotations)).await;
    rig.pass(10 * SECOND).await;
    let templates = rig.api(Kind::SimMachineTemplate);
    templates.delete("gone", &Default::default()).await.expect("a deletion");
}

#[test]
fn what_cluster_api_says_it_cannot_make_is_made_of_the_next_dearest_after_a_minute() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let cheap = [(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")];
        without_template(&rig, &cheap).await;
        rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.pass(45 * SECOND).await;
        assert_eq!((rig.replicas("m"), rig.claims()), (1, vec!["n1".to_owned()]), "somebody may be at it");
        let took = rig.until("another serves", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert!(took < MINUTE, "{took:?}");
        rig.want(2);
        let took = rig.until("so it does the next", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        assert!(took < MINUTE, "{took:?}");
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (0, 2));
        rig.at_rest();
    });
}

#[test]
fn where_nothing_else_would_do_what_cluster_api_cannot_make_is_asked_for_ever_less_often() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        without_template(&rig, &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(3);
        for _ in 0..180 {
            rig.pass(10 * SECOND).await;
            assert!(rig.replicas("m") <= 3, "never more than wait");
        }
        let writes = rig.writes("/scale");
        assert!((4..=10).contains(&writes), "{writes} scale writes in half an hour");
        rig.create(cluster_api::template(NAMESPACE, "gone", json!({"provisionSeconds": 3}))).await;
        rig.until("what was missing is there", 5 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (3, 3));
        rig.at_rest();
    });
}

#[test]
fn a14_machines_that_were_there_before_are_left_alone() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 3}})).await;
        rig.until("three nodes by hand", 5 * MINUTE, |objects| objects.nodes.len() == 3).await;
        let before = rig.read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
        rig.pass(10 * SECOND).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("two nodes by Karpenter", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        assert_eq!(rig.replicas("m"), 5);
        rig.want(0);
        for name in
            rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect::<Vec<_>>())
        {
            rig.delete_claim(&name).await;
        }
        rig.until("they go", 10 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!(rig.replicas("m"), 3);
        assert_eq!(rig.read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>()), before);
        rig.at_rest();
    });
}

#[test]
fn a_burst_that_cluster_api_makes_one_by_one_is_waited_for() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"launch": "1m"}})).await;
        rig.deployment("m", &[(MAX, "100")]).await;
        rig.capi.make_a_machine_every(3 * SECOND);
        rig.karpenter.start();
        rig.want(40);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 40).await;
        let made = rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).max());
        assert_eq!(rig.read(|objects| objects.node_claims.len()), 40);
        assert!(
            rig.read(|objects| objects.node_claims.keys().all(|key| *key.name != *"n41")),
            "{made:?}: none was given up"
        );
        assert!(rig.writes("/scale") <= 2, "{} scale writes", rig.writes("/scale"));
        assert_eq!(rig.resource("m").await.unavailable, None, "and nobody stays away from it");
        rig.pass(MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn a_deployment_whose_machines_do_not_become_nodes_is_left_alone_for_a_while() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"registration": "1m"}})).await;
        rig.create(karpenter_sim::cluster_api::template(
            "fleet",
            "dud",
            json!({"provisionSeconds": 3, "neverJoins": true}),
        ))
        .await;
        let price = |text: &'static str| ("karpenter.cluster.x-k8s.io/price", text);
        let cheap = karpenter_sim::cluster_api::machine_deployment(
            "fleet",
            "c",
            "m",
            "dud",
            &[(MAX, "10"), price("0.1")],
        );
        rig.create(cheap).await;
        rig.deployment("m2", &[(MAX, "10"), price("0.9")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the dearer one serves", 6 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.replicas("m2"), 1);
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (0, 1));
        rig.at_rest();
    });
}

#[test]
fn a_machine_that_fails_after_its_node_claim_has_an_id_is_given_up_at_once() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"registration": "60m"}})).await;
        let slow = json!({"idSeconds": 5, "provisionSeconds": 900, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "full", slow)).await;
        let cheap = [(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")];
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "full", &cheap)).await;
        rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
        rig.karpenter.start();
        rig.want(1);
        let has_id = |objects: &karpenter_sim::Objects| {
            objects.node_claims.values().any(|c| c.status.as_ref().is_some_and(|s| s.provider_id.is_some()))
        };
        rig.until("its id is known", MINUTE, has_id).await;
        assert_eq!(rig.replicas("m"), 1);
        let machine = rig.read(|objects| objects.sim_machines.keys().next().map(|key| key.name.to_string()));
        let failure = json!({"failureReason": "InsufficientResources", "failureMessage": "no host has room"});
        let failure = json!({"status": failure});
        rig.patch_status(Kind::SimMachine, machine.as_deref().unwrap_or_default(), failure).await;
        let took = rig.until("the dearer one serves", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        assert!(took < 3 * MINUTE, "{took:?}");
        let told = rig.events("MachineFailed").await;
        assert!(told.iter().any(|message| message.contains("no host has room")), "{told:?}");
        let why = rig.resource("m").await.unavailable.unwrap_or_default();
        assert!(why.contains("no host has room"), "{why}");
        rig.pass(2 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.replicas("m2"), rig.read(claimed)), (0, 1, 1));
        rig.at_rest();
    });
}

#[test]
fn a_machine_set_that_hears_of_marks_late_still_deletes_what_is_marked() {
    for seed in 0..8 {
        scenario(async {
            let lag = |_: &Cluster| Lag::none().with(Kind::Machine, 2 * SECOND);
            let none = FaultPlan::none;
            let rig = Rig::lagging(seed, json!({}), none(), none(), lag).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(6);
            rig.until("all are ready", 5 * MINUTE, |objects| initialized(objects) == 6).await;
            rig.pass(MINUTE).await;
            rig.want(3);
            // Of each the mark and the level are news of two kinds. The rules watch what is deleted.
            for name in ["n2", "n4", "n5"] {
                rig.delete_claim(name).await;
                rig.until("its Machine is gone", 5 * MINUTE, |objects| {
                    !objects.node_claims.keys().any(|key| &*key.name == name)
                })
                .await;
            }
            rig.pass(2 * MINUTE).await;
            assert_eq!((rig.replicas("m"), rig.read(claimed), rig.read(initialized)), (3, 3, 3));
            rig.at_rest();
        });
    }
}
