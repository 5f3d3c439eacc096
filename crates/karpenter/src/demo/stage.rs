//! What the demo starts from, by provider: definitions, a NodePool, and the cloud or the management cluster that machines come from.

use anyhow::bail;
use karpenter_cloudprovider::{Installation, Surroundings};
use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_kwok::KWOKNodeClass;
use karpenter_sim::World;
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::CloudStack;
use karpenter_sim::cloudstack::guests::{GuestOptions, Guests};
use karpenter_sim::cloudstack::road::Road;
use karpenter_sim::cluster_api::{self, ClusterApi};
use serde_json::{Value, json};

use crate::{cloudstack, providers};

const KWOK: &str = include_str!("../../../../examples/demo/nodepool.yaml");
const CLUSTER_API: &str = include_str!("../../../../examples/cluster-api/demo.yaml");
const CLOUDSTACK: &str = include_str!("../../../../examples/demo/cloudstack.yaml");

const NAMESPACE: &str = "fleet";
const CLUSTER: &str = "shop";

/// The stage, set.
pub(super) struct Stage {
    /// What is applied when Karpenter runs.
    pub(super) pool: &'static str,
    /// What that is, in a sentence.
    pub(super) told: &'static str,
    /// How many times faster than on the wall time runs, so that the demo stays short however slowly machines boot.
    pub(super) speed: u32,
    source: Source,
}

/// Where machines come from. What makes them runs for as long as this is kept.
enum Source {
    Kwok,
    ClusterApi { _controllers: ClusterApi },
    CloudStack { cloud: CloudStack, _guests: Guests },
}

/// Sets the stage for a provider.
pub(super) async fn set(world: &World, provider: &str) -> anyhow::Result<Stage> {
    match provider {
        "kwok" => {
            world.create(KWOKNodeClass::crd().to_json()).await?;
            Ok(Stage {
                pool: KWOK,
                told: "Applied NodePool default: amd64, spot or on-demand, consolidate after 10s.",
                speed: 16,
                source: Source::Kwok,
            })
        }
        "cluster-api" => {
            let controllers = ClusterApi::install(world).await?;
            for object in fleet() {
                world.create(object).await?;
            }
            Ok(Stage {
                pool: CLUSTER_API,
                told: "Applied NodePool default: MachineDeployments of three sizes in three zones, consolidate after 10s.",
                speed: 16,
                source: Source::ClusterApi { _controllers: controllers },
            })
        }
        "cloudstack" => {
            let guests = GuestOptions { boot: Span::secs(8, 20), ..GuestOptions::default() };
            let (cloud, guests) = cloudstack::stage::beside(world, guests).await?;
            cloudstack::stage::furnish(&cloud, 4);
            cloudstack::stage::apply_credentials(world).await?;
            Ok(Stage {
                pool: CLOUDSTACK,
                told: "Applied the keys, a CloudStackNodeClass of two zones, and a NodePool: consolidate after 10s.",
                speed: 24,
                source: Source::CloudStack { cloud, _guests: guests },
            })
        }
        other => bail!("the demo plays with provider kwok, cluster-api or cloudstack, not {other:?}"),
    }
}

impl Stage {
    /// The provider, at work on this stage.
    pub(super) async fn install(&self, world: &World, around: &Surroundings) -> anyhow::Result<Installation> {
        match &self.source {
            Source::Kwok => providers::install("kwok", around).await,
            Source::ClusterApi { .. } => providers::install("cluster-api", around).await,
            Source::CloudStack { cloud, .. } => {
                let road = Road::open(cloud, world.cluster(), "karpenter");
                Ok(cloudstack::stage::install(road, ProviderOptions::new("demo"), around))
            }
        }
    }
}

/// A Cluster with MachineDeployments of three sizes in three zones.
fn fleet() -> Vec<Value> {
    let mut objects = vec![
        ClusterAPINodeClass::crd().to_json(),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        cluster_api::cluster(NAMESPACE, CLUSTER),
    ];
    for zone in ["zone-a", "zone-b", "zone-c"] {
        for (size, cpu, memory, price) in
            [("small", "4", "16Gi", "0.17"), ("medium", "8", "32Gi", "0.33"), ("large", "16", "64Gi", "0.64")]
        {
            let name = format!("{size}-{zone}");
            let machine = json!({
                "provisionSeconds": 8, "joinSeconds": 4, "deleteSeconds": 3,
                "capacity": {"cpu": cpu, "memory": memory, "pods": "110"},
                "nodeLabels": {
                    "topology.kubernetes.io/zone": zone, "node.kubernetes.io/instance-type": size,
                    "karpenter.sh/capacity-type": "on-demand",
                },
            });
            objects.push(cluster_api::template(NAMESPACE, &name, machine));
            let labels =
                format!("topology.kubernetes.io/zone={zone},node.kubernetes.io/instance-type={size}");
            objects.push(cluster_api::machine_deployment(
                NAMESPACE,
                CLUSTER,
                &name,
                &name,
                &[
                    ("capacity.cluster-autoscaler.kubernetes.io/cpu", cpu),
                    ("capacity.cluster-autoscaler.kubernetes.io/memory", memory),
                    ("capacity.cluster-autoscaler.kubernetes.io/labels", &labels),
                    ("cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size", "20"),
                    ("karpenter.cluster.x-k8s.io/price", price),
                ],
            ));
        }
    }
    objects
}
