//! Bad starts: what is wrong is told, the process lives, and putting it right needs no restart.

use karpenter_sim::cluster_api::{self, Kind};
use kube::api::DeleteParams;
use serde_json::json;

use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, initialized, scenario};

/// Providers share groups: one may serve its kinds in a version that the server does not prefer.
#[test]
fn a_template_is_read_in_the_version_that_its_own_definition_names() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = |name: &str, stored: bool| {
            json!({
                "name": name, "served": true, "storage": stored,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
            })
        };
        for (kind, labels) in [
            ("ToldMachineTemplate", json!({"cluster.x-k8s.io/v1beta1": "v1alpha3_v1alpha4"})),
            ("UntoldMachineTemplate", json!({})),
        ] {
            let plural = format!("{}s", kind.to_lowercase());
            rig.create(json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.infrastructure.cluster.x-k8s.io"), "labels": labels},
                "spec": {
                    "group": "infrastructure.cluster.x-k8s.io", "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
                    "versions": [version("v1alpha3", false), version("v1alpha4", true)],
                },
            }))
            .await;
            rig.create(json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha4", "kind": kind,
                "metadata": {"name": "t", "namespace": NAMESPACE}, "spec": {"template": {"spec": {}}},
                "status": {"capacity": {"cpu": "4", "memory": "16Gi"}},
            }))
            .await;
            let name = kind.to_lowercase();
            let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, &name, "t", &[]);
            deployment["metadata"]["annotations"] = json!({});
            deployment["spec"]["template"]["spec"]["infrastructureRef"]["kind"] = kind.into();
            rig.create(deployment).await;
        }
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        for name in ["toldmachinetemplate", "untoldmachinetemplate"] {
            let told = rig.resource(name).await;
            assert_eq!(told.instance_type.as_deref(), Some(name), "{told:?}");
        }
    });
}

#[test]
fn which_cluster_is_ours_may_become_clear_later() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.create(cluster_api::cluster(NAMESPACE, "d")).await;
        let karpenter = rig.process_without_names();
        karpenter.start();
        rig.want(1);
        rig.pass(3 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("ManagementClusterReady").await.as_deref(), Some("False"));
        let told = rig.node_class_message("ManagementClusterReady").await;
        assert!(told.contains("several Clusters (fleet/c, fleet/d); set CLUSTER_NAME"), "{told}");
        rig.api(Kind::Cluster).delete("d", &DeleteParams::default()).await.expect("a deletion");
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("ManagementClusterReady").await.as_deref(), Some("True"));
    });
}

#[test]
fn which_of_several_clusters_is_ours_is_known_by_the_nodes() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("a node by hand", 5 * MINUTE, |objects| objects.nodes.len() == 1).await;
        rig.pass(MINUTE).await;
        rig.create(cluster_api::cluster(NAMESPACE, "d")).await;
        let karpenter = rig.process_without_names();
        karpenter.start();
        rig.want(1);
        rig.until("a second one is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.replicas("m"), 2);
    });
}

#[test]
fn which_of_several_clusters_is_ours_is_known_by_the_node_class_where_no_node_says() {
    scenario(async {
        let rig = Rig::new(json!({"clusterRef": {"name": CLUSTER, "namespace": NAMESPACE}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.create(cluster_api::cluster(NAMESPACE, "d")).await;
        let karpenter = rig.process_without_names();
        karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.replicas("m"), 1);
    });
}

#[test]
fn a_cluster_that_is_not_there_is_named_and_waited_for() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.api(Kind::Cluster).delete(CLUSTER, &DeleteParams::default()).await.expect("a deletion");
        rig.karpenter.start();
        rig.want(1);
        rig.pass(3 * MINUTE).await;
        let told = rig.node_class_message("ScalableResourcesResolved").await;
        assert!(told.starts_with("there is no Cluster fleet/c in the management cluster"), "{told}");
        assert_eq!(rig.read(|objects| objects.machines.len()), 0);
        rig.create(cluster_api::cluster(NAMESPACE, CLUSTER)).await;
        rig.until("the node is ready", 15 * MINUTE, |objects| initialized(objects) == 1).await;
    });
}

#[test]
fn a_management_cluster_that_is_away_at_the_start_is_waited_for() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.hub.cut_off(5 * MINUTE);
        rig.karpenter.start();
        rig.want(2);
        rig.pass(3 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("ManagementClusterReady").await.as_deref(), Some("False"));
        let told = rig.node_class_message("ManagementClusterReady").await;
        assert!(!told.is_empty(), "what went wrong is told");
        assert_eq!(rig.read(|objects| objects.machines.len()), 0);
        rig.until("the nodes are ready", 15 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.read_node_class_condition("ManagementClusterReady").await.as_deref(), Some("True"));
        rig.at_rest();
    });
}

#[test]
fn cluster_api_may_be_installed_after_karpenter() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.capi.serve(&[]).await.expect("nothing");
        rig.karpenter.start();
        rig.want(1);
        rig.pass(2 * MINUTE).await;
        let told = rig.node_class_message("ManagementClusterReady").await;
        assert!(told.starts_with("the management cluster serves no API group cluster.x-k8s.io"), "{told}");
        rig.capi.serve(&["v1beta2"]).await.expect("a version");
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(30 * SECOND).await;
    });
}

#[test]
fn a_management_cluster_that_changes_all_the_time_is_asked_all_the_same() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let mut silent = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "10")]);
        silent["metadata"]["annotations"] = json!({});
        rig.create(silent).await;
        rig.deployment("other", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(MINUTE).await;
        assert!(rig.resource("m").await.unavailable.is_some(), "nobody says what its nodes have");
        for turn in 0..60 {
            let change = json!({"metadata": {"annotations": {"turn": turn.to_string()}}});
            rig.patch(Kind::MachineDeployment, "other", change).await;
            rig.pass(10 * SECOND).await;
            let ready = rig.read_node_class_condition("ManagementClusterReady").await;
            assert_eq!(ready.as_deref(), Some("True"), "turn {turn}");
            if turn == 30 {
                let capacity = json!({"status": {"capacity": {"cpu": "4", "memory": "16Gi"}}});
                rig.patch_status(Kind::SimMachineTemplate, "t", capacity).await;
            }
            if turn == 37 {
                assert_eq!(rig.resource("m").await.unavailable, None, "its template says so by now");
            }
        }
    });
}
