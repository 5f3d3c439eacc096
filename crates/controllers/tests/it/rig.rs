//! Karpenter on an embedded cluster with a fake provider. [`Rig::quiet`] has no other components: what a test does not
//! write does not happen. [`Rig::lively`] has the simulated world around it.

use std::sync::Arc;
use std::time::Duration;

use karpenter_cloudprovider::fake::FakeProvider;
use karpenter_cloudprovider::{CloudProvider, Registry};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Context, Given, assemble};
use karpenter_runtime::compute::Compute;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events;
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::cluster::Cluster;
use karpenter_sim::{Objects, World, WorldOptions};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) struct Rig {
    pub(crate) client: Client,
    pub(crate) provider: Arc<FakeProvider>,
    pub(crate) context: Context,
    cluster: Cluster,
    _world: Option<World>,
    stop: CancellationToken,
    karpenter: JoinHandle<()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
        self.karpenter.abort();
    }
}

impl Rig {
    /// Karpenter alone with a server.
    pub(crate) async fn quiet(flags: &[&str]) -> Self {
        let cluster = Cluster::new(1);
        let client = cluster.client("user");
        for definition in karpenter_api::crds() {
            create(&client, definition.to_json()).await;
        }
        Self::start(cluster, None, flags).await
    }

    /// Karpenter in the simulated world.
    pub(crate) async fn lively(flags: &[&str]) -> Self {
        let world = World::new(WorldOptions { seed: 1, ..WorldOptions::default() }).await.expect("a world");
        let cluster = world.cluster().clone();
        Self::start(cluster, Some(world), flags).await
    }

    async fn start(cluster: Cluster, world: Option<World>, flags: &[&str]) -> Self {
        let client = cluster.client("user");
        create(&client, fake_node_class_definition()).await;
        let provider = Arc::new(FakeProvider::new("fake"));
        let options = Options::parse(flags.iter().copied(), &Environ::default()).expect("options");
        let environment = Environment {
            clock: Arc::new(cluster.clock().clone()),
            entropy: cluster.entropy().child("karpenter"),
            registry: karpenter_runtime::metrics::Registry::new(),
        };
        let given = Given {
            client: cluster.client("karpenter"),
            events: events::recorder(COMPONENT, &environment),
            environment,
            options: Arc::new(options),
            providers: Registry::of([Arc::clone(&provider) as Arc<dyn CloudProvider>]).expect("a registry"),
            compute: Compute::Inline,
        };
        let (program, context) = assemble(given);
        let stop = CancellationToken::new();
        let karpenter = tokio::spawn({
            let stop = stop.clone();
            async move { program.run(stop, None).await.expect("a clean end") }
        });
        let rig = Self { client, provider, context, cluster, _world: world, stop, karpenter };
        rig.eventually("everything is listed", |rig| rig.context.stores.are_synced()).await;
        rig
    }

    /// Creates an object as a user would.
    pub(crate) async fn create(&self, object: Value) -> DynamicObject {
        create(&self.client, object).await
    }

    /// Looks at what is in the server.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        self.cluster.read(look)
    }

    /// Waits, in virtual time, until something holds.
    pub(crate) async fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < Duration::from_secs(3600), "{what} did not happen within an hour");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lets virtual time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

pub(crate) async fn create(client: &Client, object: Value) -> DynamicObject {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let api_version = text("/apiVersion").expect("an apiVersion");
    let kind = text("/kind").expect("a kind");
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let parsed = serde_json::from_value(object.clone()).expect("an object");
    api.create(&PostParams::default(), &parsed).await.unwrap_or_else(|error| panic!("{error}: {object}"))
}

/// A NodeClass without rules, for the fake provider.
fn fake_node_class_definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "fakenodeclasses.karpenter.test.sh"},
        "spec": {
            "group": "karpenter.test.sh",
            "names": {"kind": "FakeNodeClass", "plural": "fakenodeclasses", "singular": "fakenodeclass", "listKind": "FakeNodeClassList"},
            "scope": "Cluster",
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}
