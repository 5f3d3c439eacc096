//! The stage for CloudStack: a cluster in memory, a simulated cloud whose machines join it, and Karpenter between the two as
//! `karpenter run` starts it. The demo, the simulation and tests play on it; what they play is theirs.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use karpenter_cloudprovider::{Installation, Surroundings};
use karpenter_provider_cloudstack::client::throttle::Rate;
use karpenter_provider_cloudstack::client::transport::{Transport, TransportError};
use karpenter_provider_cloudstack::credentials::Roads;
use karpenter_provider_cloudstack::installation::install_from_secret;
use karpenter_provider_cloudstack::{CloudStackNodeClass, ProviderOptions};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::metrics::Registry as Metrics;
use karpenter_sim::cloudstack::guests::{GuestOptions, Guests};
use karpenter_sim::cloudstack::road::Road;
use karpenter_sim::cloudstack::{CloudStack, Lost};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::process::Life;
use karpenter_sim::{Process, Trouble, World, WorldOptions};
use serde_json::{Value, json};

use crate::sim::operator::{self, Leads};

/// The Secret Karpenter looks for by default: where the keys are, and what they are on this stage.
const SECRET: (&str, &str) = ("karpenter", "cloudstack-credentials");
const KEYS: (&str, &str) = ("your-api-key", "your-secret-key");

/// See the module.
pub struct Stage {
    /// The cluster and everything in it but Karpenter.
    pub world: World,
    /// The cloud.
    pub cloud: CloudStack,
    /// What boots in its machines.
    pub guests: Guests,
}

impl Stage {
    /// A cluster with the definitions Karpenter needs, and a cloud as it was measured.
    ///
    /// # Errors
    ///
    /// If the server refuses a definition.
    pub async fn new(options: WorldOptions, guests: GuestOptions) -> Result<Self, Trouble> {
        let world = World::new(options).await?;
        let (cloud, guests) = beside(&world, guests).await?;
        Ok(Self { world, cloud, guests })
    }

    /// Karpenter with the CloudStack provider, not started yet.
    pub fn karpenter(&self, plan: FaultPlan, options: ProviderOptions) -> Arc<Process> {
        self.karpenter_with(plan, options, &[])
    }

    /// The same with flags of `karpenter run`.
    pub fn karpenter_with(
        &self,
        plan: FaultPlan,
        options: ProviderOptions,
        flags: &'static [&'static str],
    ) -> Arc<Process> {
        let cloud = self.cloud.clone();
        self.world.process("karpenter", plan, move |life| live(life, &cloud, options.clone(), flags))
    }
}

/// A cloud beside a world, whose machines join its cluster.
///
/// # Errors
///
/// If the server refuses the definition of a NodeClass.
pub async fn beside(world: &World, guests: GuestOptions) -> Result<(CloudStack, Guests), Trouble> {
    world.create(CloudStackNodeClass::crd().to_json()).await?;
    let cluster = world.cluster();
    let cloud = CloudStack::new(&Environment {
        clock: Arc::new(cluster.clock().clone()),
        entropy: cluster.entropy().child("cloudstack"),
        registry: Metrics::new(),
    });
    let guests = Guests::of(&cloud, cluster, guests);
    Ok((cloud, guests))
}

/// Furnishes a cloud as the examples suppose it, twice: `zone-01` and `zone-02` with this many hosts each, a
/// network `k8s-network`, a template `ubuntu-22.04-k8s`, general-purpose offerings, and no limits.
pub fn furnish(cloud: &CloudStack, hosts: usize) {
    let (key, secret) = KEYS;
    cloud.rotate_keys(key, secret);
    for resource in ["user_vm", "cpu", "memory", "volume", "primary_storage"] {
        cloud.limit(resource, -1);
    }
    cloud.edit("zone", "sim-zone-1", |zone| zone["name"] = "zone-01".into());
    let first = cloud.id_of("zone", "zone-01").unwrap_or_default();
    let second = cloud.add("zone", json!({"name": "zone-02"}));
    for name in ["k8s.small", "k8s.medium", "k8s large (8 vCPU / 16 GiB)"] {
        cloud.edit("serviceoffering", name, |offering| {
            offering["serviceofferingdetails"] = json!({"compute-type": "general-purpose"});
        });
    }
    cloud.edit("network", "k8s-net", |network| {
        network["name"] = "k8s-network".into();
        network["zonename"] = "zone-01".into();
        network["cidr"] = "10.16.0.0/20".into();
    });
    cloud.add(
        "network",
        json!({
            "name": "k8s-network", "zoneid": second, "zonename": "zone-02",
            "cidr": "10.32.0.0/20", "state": "Allocated",
        }),
    );
    for (zone, zone_name) in [(&first, "zone-01"), (&second, "zone-02")] {
        cloud.add("template", json!({"name": "ubuntu-22.04-k8s", "zoneid": zone, "zonename": zone_name}));
        for number in 0..hosts {
            cloud.add(
                "host",
                json!({
                    "name": format!("{zone_name}-host-{number}"), "zoneid": zone, "zonename": zone_name,
                    "memorytotal": 256i64 << 30, "cpuwithoverprovisioning": "256000",
                    "memoryallocatedbytes": 0, "cpuallocatedvalue": 0,
                }),
            );
        }
    }
}

/// What a new user applies first: a namespace, and the Secret with the keys.
///
/// # Errors
///
/// If the server refuses them.
pub async fn apply_credentials(world: &World) -> Result<(), Trouble> {
    let (namespace, name) = SECRET;
    let (key, secret) = KEYS;
    world.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {
            "api-url": "https://cloudstack.example.com/client/api", "api-key": key, "secret-key": secret,
        },
    });
    world.create(secret).await.map(drop)
}

/// A NodeClass of the cloud [`furnish`] makes, in both zones.
pub fn node_class() -> Value {
    json!({
        "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass",
        "metadata": {"name": "default"},
        "spec": {
            "zone": "zone-01", "zones": ["zone-02"],
            "networkSelectorTerms": [{"name": "k8s-network"}],
            "serviceOfferingSelectorTerms": [{"tags": {"compute-type": "general-purpose"}}],
            "templateSelectorTerms": [{"name": "ubuntu-22.04-k8s"}],
            "userData": "#!/bin/bash\nkubelet --node-labels={{labels}} --register-with-taints={{taints}}\n",
        },
    })
}

/// What a NodePool says to be served by it.
pub fn node_class_ref() -> Value {
    json!({"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"})
}

/// The provider's road into the simulator.
struct Wire(Road);

impl Transport for Wire {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, TransportError>> {
        async move {
            self.0.send(request).await.map_err(|lost| match lost {
                Lost::Refused => TransportError::NotSent(lost.to_string()),
                Lost::NoAnswer => TransportError::NoAnswer(lost.to_string()),
            })
        }
        .boxed()
    }
}

/// The provider as it joins a program on this stage: keys from the Secret, every address leading to the simulated cloud.
pub fn install(road: Road, options: ProviderOptions, around: &Surroundings) -> Installation {
    let roads: Roads = Arc::new(move |_, _| Ok(Arc::new(Wire(road.clone())) as Arc<dyn Transport>));
    install_from_secret(SECRET, &roads, Rate::default(), options, around)
}

fn live(life: Life, cloud: &CloudStack, options: ProviderOptions, flags: &[&str]) -> BoxFuture<'static, ()> {
    let road = life.road_to(cloud);
    let install = move |around: Surroundings| {
        let installation = install(road.clone(), options.clone(), &around);
        async move { Some(installation) }.boxed()
    };
    let flags = [&["--provider", "cloudstack"], flags].concat();
    operator::live(life, operator::settings(&flags), Leads::IfElected, install).boxed()
}
