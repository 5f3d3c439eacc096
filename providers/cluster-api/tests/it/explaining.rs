//! What `explain` reads of running clusters: whatever the operator would go by.

use karpenter_provider_cluster_api::client::hub::Hub;
use karpenter_provider_cluster_api::client::scope::Ours;
use karpenter_provider_cluster_api::gathering::gather;
use karpenter_provider_cluster_api::wiring::Clusters;
use karpenter_sim::cluster_api::{self, Kind};
use serde_json::json;

use crate::core;
use crate::rig::{CLUSTER, NAMESPACE, Rig, scenario};

/// What is said of a resource.
async fn explained(rig: &Rig, name: &str) -> String {
    let client = || rig.world.cluster().client("explain");
    let settings = core::settings();
    let management = Hub::new(client(), Ours::new(&settings));
    let evidence =
        gather(&Clusters { workload: client(), management, settings }).await.expect("what there is");
    evidence.explain(name).expect("an answer")
}

#[test]
fn a_machine_set_of_no_deployment_whose_capacity_and_price_its_template_tells_is_offered() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let mut template = cluster_api::template(NAMESPACE, "big", json!({"provisionSeconds": 3}));
        template["metadata"]["annotations"] = json!({"karpenter.cluster.x-k8s.io/price": "0.5"});
        rig.create(template).await;
        let told = json!({"status": {"capacity": {"cpu": "8", "memory": "32Gi"}}});
        rig.patch_status(Kind::SimMachineTemplate, "big", told).await;
        let mut set = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "s", "big", &[]);
        set["kind"] = "MachineSet".into();
        set["metadata"]["annotations"] = json!({});
        set["spec"]["selector"] = json!({"matchLabels": {"of": "s"}});
        set["spec"]["template"]["metadata"] = json!({"labels": {"of": "s"}});
        rig.create(set).await;
        let text = explained(&rig, "s").await;
        let offered = "ClusterAPINodeClass default: offered as s, 8 cpu, 32Gi memory, on-demand";
        assert!(text.contains(offered), "{text}");
    });
}

#[test]
fn in_machine_mode_what_waits_for_the_control_plane_is_said_to() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        rig.deployment("m", &[]).await;
        rig.create(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "SimControlPlane",
            "metadata": {"name": "cp", "namespace": NAMESPACE}, "spec": {"version": "v1.36.0"},
        }))
        .await;
        rig.patch_status(Kind::SimControlPlane, "cp", json!({"status": {"version": "v1.35.9"}})).await;
        let reference =
            json!({"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "SimControlPlane", "name": "cp"});
        rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"controlPlaneRef": reference}})).await;
        let text = explained(&rig, "m").await;
        assert!(text.contains("offered as m,"), "{text}");
        assert!(text.contains("; its Machines will have to wait: ControlPlaneUpgrading: "), "{text}");
        rig.patch_node_class(json!({"spec": {"launchMode": "MachineDeployment"}})).await;
        let text = explained(&rig, "m").await;
        assert!(!text.contains("will have to wait"), "Cluster API knows that by itself: {text}");
    });
}
