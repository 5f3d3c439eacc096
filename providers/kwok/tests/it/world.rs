//! A small world with the provider in it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{Installation, Surroundings};
use karpenter_provider_kwok::{Catalogue, KWOKNodeClass, KwokProvider};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events;
use karpenter_runtime::metrics::Registry;
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::kubelet::Timing;
use karpenter_sim::{World, WorldOptions};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) provider: KwokProvider,
    pub(crate) claims: Api<NodeClaim>,
    pub(crate) nodes: Api<Node>,
}

impl Scene {
    /// A world whose NodeClass `default` has this delay.
    pub(crate) async fn new(delay: &str) -> Self {
        Self::seeded(1, delay).await
    }

    pub(crate) async fn seeded(seed: u64, delay: &str) -> Self {
        let options = WorldOptions { seed, timing: Timing::quick(), ..WorldOptions::default() };
        let world = World::new(options).await.expect("a world");
        world.create(KWOKNodeClass::crd().to_json()).await.expect("the NodeClass's definition");
        let node_class = json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"},
            "spec": {"nodeRegistrationDelay": delay},
        });
        world.create(node_class).await.expect("a NodeClass");
        let client = world.cluster().client("karpenter");
        let provider = provider(&world);
        Self { provider, claims: Api::all(client.clone()), nodes: Api::all(client), world }
    }

    /// What a restart leaves: a provider that knows nothing.
    pub(crate) fn another_provider(&self) -> KwokProvider {
        provider(&self.world)
    }

    /// The provider as the program has it.
    pub(crate) fn install(&self) -> Installation {
        let environment = environment(&self.world);
        let around = Surroundings {
            client: self.world.cluster().client("karpenter"),
            recorder: events::recorder("karpenter", &environment).0,
            options: Arc::new(Options::parse([], &Environ::new()).expect("no settings are valid")),
            environment,
        };
        karpenter_provider_kwok::install(&around).expect("the built-in catalogue")
    }

    pub(crate) async fn claim(&self, name: &str) -> NodeClaim {
        let claim = serde_json::from_value(claim(name)).expect("a NodeClaim");
        self.claims.create(&PostParams::default(), &claim).await.expect("created")
    }

    pub(crate) async fn node_names(&self) -> Vec<String> {
        let all = self.nodes.list(&Default::default()).await.expect("nodes");
        all.items.into_iter().filter_map(|node| node.metadata.name).collect()
    }
}

fn provider(world: &World) -> KwokProvider {
    let client = world.cluster().client("karpenter");
    let (provider, _) = KwokProvider::new(&client, Catalogue::built_in(), &environment(world));
    provider
}

fn environment(world: &World) -> Environment {
    Environment {
        clock: Arc::new(world.cluster().clock().clone()),
        entropy: world.cluster().entropy().child("kwok"),
        registry: Registry::new(),
    }
}

pub(crate) fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "pool"}, "finalizers": ["karpenter.sh/termination"]},
        "spec": {
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["c-4x-amd64-linux"]},
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
            ],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        },
    })
}

/// Writes down what a launch said, as the core does.
pub(crate) async fn write_down(scene: &Scene, claim: &NodeClaim, provider_id: &str) -> NodeClaim {
    let now: Timestamp = scene.world.cluster().now();
    let status = json!({"status": {"providerID": provider_id, "conditions": [{
        "type": "Launched", "status": "True", "reason": "Launched", "message": "", "lastTransitionTime": now.to_string(),
    }]}});
    let name = claim.metadata.name.as_deref().expect("a name");
    let patch = kube::api::Patch::Merge(status);
    scene.claims.patch_status(name, &Default::default(), &patch).await.expect("written")
}
