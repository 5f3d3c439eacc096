//! Karpenter on an embedded cluster with a fake provider. [`Rig::quiet`] has no other components: what a test does not
//! write does not happen. [`Rig::lively`] has the simulated world around it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use karpenter_cloudprovider::fake::FakeProvider;
use karpenter_cloudprovider::{CloudProvider, Measured, Registry};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Context, Given, assemble};
use karpenter_runtime::clock::{Clock as _, TokioClock, WallClock};
use karpenter_runtime::compute::Compute;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events;
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::cluster::Cluster;
use karpenter_sim::{Objects, World, WorldOptions, invariants};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The code a request of Karpenter's is refused with, by method and path; none if it is not.
pub(crate) type Refusal = fn(&http::Method, &str) -> Option<u16>;

pub(crate) struct Rig {
    pub(crate) client: Client,
    pub(crate) provider: Arc<FakeProvider>,
    pub(crate) context: Context,
    /// While it is closed, nothing Karpenter asks reaches the server.
    gate: Arc<RwLock<()>>,
    /// While it says so, the server has an error instead of a DELETE by Karpenter.
    refuses_deletions: Arc<AtomicBool>,
    refusal: Arc<Mutex<Option<Refusal>>>,
    /// What is answered in place of what the server said.
    loss: Arc<Mutex<Option<Refusal>>>,
    /// The kind (in plural) that the server cannot list for Karpenter at the moment.
    unlisted: Arc<Mutex<Option<String>>>,
    cluster: Cluster,
    /// Karpenter's own.
    clock: TokioClock,
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
        Self::quiet_with(flags, |_| {}).await
    }

    /// The same; `prepare` tells the provider what it is before Karpenter asks.
    pub(crate) async fn quiet_with(flags: &[&str], prepare: impl FnOnce(&FakeProvider)) -> Self {
        Self::thinking(Compute::Inline, flags, prepare).await
    }

    /// The same, taking its time over every decision.
    pub(crate) async fn thinking(
        compute: Compute,
        flags: &[&str],
        prepare: impl FnOnce(&FakeProvider),
    ) -> Self {
        Self::start(bare_cluster().await, None, flags, compute, prepare).await
    }

    /// Karpenter alone with a server that cannot list a kind until it [answers all](Self::answer_all).
    pub(crate) async fn quiet_without(flags: &[&str], unlisted: &str) -> Self {
        Self::begin(bare_cluster().await, None, flags, Compute::Inline, |_| {}, Some(unlisted)).await
    }

    /// Karpenter alone with a server, taking so long over every decision.
    pub(crate) async fn slow_witted(time: Duration) -> Self {
        Self::thinking(Compute::Taking(time), &[], |_| {}).await
    }

    /// Karpenter in the simulated world, watched over by its invariants.
    pub(crate) async fn lively(flags: &[&str]) -> Self {
        let world = World::new(WorldOptions { seed: 1, ..WorldOptions::default() }).await.expect("a world");
        let cluster = world.cluster().clone();
        cluster.watch_over(invariants::all("karpenter"));
        Self::start(cluster, Some(world), flags, Compute::Inline, |_| {}).await
    }

    async fn start(
        cluster: Cluster,
        world: Option<World>,
        flags: &[&str],
        compute: Compute,
        prepare: impl FnOnce(&FakeProvider),
    ) -> Self {
        let rig = Self::begin(cluster, world, flags, compute, prepare, None).await;
        rig.eventually("everything is listed", |rig| rig.context.stores.are_synced()).await;
        rig
    }

    async fn begin(
        cluster: Cluster,
        world: Option<World>,
        flags: &[&str],
        compute: Compute,
        prepare: impl FnOnce(&FakeProvider),
        unlisted: Option<&str>,
    ) -> Self {
        let client = cluster.client("user");
        create(&client, fake_node_class_definition()).await;
        let provider = Arc::new(FakeProvider::new("fake"));
        prepare(&provider);
        let clock = TokioClock::starting_at(cluster.now());
        let options = Options::parse(flags.iter().copied(), &Environ::default()).expect("options");
        let environment = Environment {
            // As in the program: a clock others set.
            clock: Arc::new(WallClock::reading({
                let clock = clock.clone();
                move || clock.now()
            })),
            entropy: cluster.entropy().child("karpenter"),
            registry: karpenter_runtime::metrics::Registry::new(),
        };
        let gate = Arc::new(RwLock::new(()));
        let refuses_deletions = Arc::new(AtomicBool::new(false));
        let refusal: Arc<Mutex<Option<Refusal>>> = Arc::default();
        let loss: Arc<Mutex<Option<Refusal>>> = Arc::default();
        let unlisted = Arc::new(Mutex::new(unlisted.map(str::to_owned)));
        // As in the program: measured, and with an end to calls that never answer.
        let measured = Measured::new(Arc::clone(&provider) as Arc<dyn CloudProvider>, &environment.registry);
        let given = Given {
            client: refusing(
                &refusal,
                &loss,
                behind(&gate, &refuses_deletions, &unlisted, cluster.client("karpenter")),
            ),
            events: events::recorder(COMPONENT, &environment),
            environment,
            options: Arc::new(options),
            providers: Registry::of([Arc::new(measured) as Arc<dyn CloudProvider>]).expect("a registry"),
            compute,
        };
        let (program, context) = assemble(given);
        let stop = CancellationToken::new();
        let karpenter = tokio::spawn({
            let stop = stop.clone();
            async move { program.run(stop, None).await.expect("a clean end") }
        });
        Self {
            client,
            provider,
            context,
            gate,
            refuses_deletions,
            refusal,
            loss,
            unlisted,
            cluster,
            clock,
            _world: world,
            stop,
            karpenter,
        }
    }

    /// Creates an object as a user would. A status, which nobody can create, is written after; of a NodeClaim before
    /// Karpenter can launch it. The instance a NodeClaim says it has exists.
    pub(crate) async fn create(&self, object: Value) -> DynamicObject {
        let is_claim = object["kind"] == "NodeClaim";
        let _closed = if is_claim { Some(self.gate.write().await) } else { None };
        if is_claim && object.pointer("/status/providerID").is_some() {
            self.provider.plant(serde_json::from_value(object.clone()).expect("a NodeClaim"));
        }
        let status = object.get("status").cloned();
        let created = create(&self.client, object.clone()).await;
        match status {
            Some(status) => self.patch_status(&object, json!({"status": status})).await,
            None => created,
        }
    }

    /// Creates an object, unless the server refuses it and says why.
    pub(crate) async fn try_create(&self, object: Value) -> Result<(), String> {
        let (api, _) = api_of(&self.client, &object);
        let parsed = serde_json::from_value(object).map_err(|error| error.to_string())?;
        api.create(&PostParams::default(), &parsed).await.map(drop).map_err(|error| error.to_string())
    }

    /// Changes an object (of which kind and name are enough) as a user would: a merge patch.
    pub(crate) async fn patch(&self, object: &Value, patch: Value) -> DynamicObject {
        let (api, name) = api_of(&self.client, object);
        let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.unwrap_or_else(|error| panic!("{error}: {patch}"))
    }

    /// Changes the status of an object.
    pub(crate) async fn patch_status(&self, object: &Value, patch: Value) -> DynamicObject {
        let (api, name) = api_of(&self.client, object);
        let patched = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.unwrap_or_else(|error| panic!("{error}: {patch}"))
    }

    /// Deletes an object; what is not there needs no deletion.
    pub(crate) async fn delete(&self, object: &Value) {
        let (api, name) = api_of(&self.client, object);
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{error}: {object}"),
        }
    }

    /// The object as the server has it.
    pub(crate) async fn get(&self, object: &Value) -> Option<Value> {
        let (api, name) = api_of(&self.client, object);
        let found = api.get_opt(&name).await.unwrap_or_else(|error| panic!("{error}: {object}"));
        found.map(|found| serde_json::to_value(found).expect("JSON"))
    }

    /// What was told about an object, `reason: message`, in order.
    pub(crate) async fn events(&self, kind: &str, name: &str) -> Vec<String> {
        let events =
            Api::<Event>::all(self.client.clone()).list(&ListParams::default()).await.expect("events");
        let about = events.items.iter().filter(|event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some(kind) && object.name.as_deref() == Some(name)
        });
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let mut told: Vec<_> = about
            .map(|event| {
                (event.first_timestamp.clone(), format!("{}: {}", text(&event.reason), text(&event.message)))
            })
            .collect();
        told.sort();
        told.into_iter().map(|(_, said)| said).collect()
    }

    /// The value of the first series on the metrics page with this name and these labels.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let page = self.context.environment.registry.encode();
        let found = page.lines().find(|line| {
            line.split(['{', ' ']).next() == Some(name)
                && labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")))
        });
        found.and_then(|line| line.rsplit(' ').next()).map(|text| text.parse().expect("a number"))
    }

    /// Looks at what is in the server.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        self.cluster.read(look)
    }

    /// Nothing was done so far that must never be done.
    pub(crate) fn expect_no_violation(&self) {
        assert!(self.cluster.violation().is_none(), "{}", self.cluster.violation().expect("one"));
    }

    /// Waits, in virtual time, until something holds.
    pub(crate) async fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < Duration::from_secs(3600), "{what} did not happen within an hour");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sets Karpenter's wall clock ahead by so many seconds of what it is, or back; time goes on as before.
    pub(crate) fn jump(&self, seconds: i64) {
        self.clock.step(SignedDuration::from_secs(seconds));
    }

    /// Keeps what Karpenter asks from the server until it is dropped. Its watches go on.
    pub(crate) async fn hold_requests(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    /// Has the server fail to delete what Karpenter asks it to.
    pub(crate) fn refuse_deletions(&self, refuse: bool) {
        self.refuses_deletions.store(refuse, Ordering::Relaxed);
    }

    /// Has the server refuse some of what Karpenter asks it to, or nothing any more.
    pub(crate) fn refuse(&self, refusal: Option<Refusal>) {
        *self.refusal.lock().expect("no panic") = refusal;
    }

    /// Has the answers to some of what Karpenter asks get lost after the server has done it, or none any more.
    pub(crate) fn lose_answers(&self, loss: Option<Refusal>) {
        *self.loss.lock().expect("no panic") = loss;
    }

    /// The server can list everything again.
    pub(crate) fn answer_all(&self) {
        *self.unlisted.lock().expect("no panic") = None;
    }

    /// Asks Karpenter to stop, as SIGTERM does, and waits until it has; how long that took.
    pub(crate) async fn stop(&self) -> Duration {
        let started = Instant::now();
        self.stop.cancel();
        while !self.karpenter.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        started.elapsed()
    }

    /// Lets virtual time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// A cluster with Karpenter's definitions and nobody in it.
async fn bare_cluster() -> Cluster {
    let cluster = Cluster::new(1);
    let client = cluster.client("user");
    for definition in karpenter_api::crds() {
        create(&client, definition.to_json()).await;
    }
    cluster
}

/// A client whose requests wait while the gate is closed, whose deletions may fail, and which may be unable to list one kind.
fn behind(
    gate: &Arc<RwLock<()>>,
    refuses_deletions: &Arc<AtomicBool>,
    unlisted: &Arc<Mutex<Option<String>>>,
    client: Client,
) -> Client {
    let (gate, refuses_deletions, unlisted) =
        (Arc::clone(gate), Arc::clone(refuses_deletions), Arc::clone(unlisted));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (gate, client) = (Arc::clone(&gate), client.clone());
        let kind = request.uri().path().rsplit('/').next().unwrap_or_default();
        let deletes = request.method() == http::Method::DELETE && refuses_deletions.load(Ordering::Relaxed);
        let refused = deletes || unlisted.lock().expect("no panic").as_deref() == Some(kind);
        async move {
            drop(gate.read().await);
            if refused {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError", "message": "no"});
                let answer = Body::from(status.to_string().into_bytes());
                return Ok(Response::builder().status(500).body(answer).expect("a response"));
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// A client some of whose requests are refused, and some done without an answer that says so.
fn refusing(
    refusal: &Arc<Mutex<Option<Refusal>>>,
    loss: &Arc<Mutex<Option<Refusal>>>,
    client: Client,
) -> Client {
    let (refusal, loss) = (Arc::clone(refusal), Arc::clone(loss));
    let service = tower::service_fn(move |request: Request<Body>| {
        let code = |rule: &Arc<Mutex<Option<Refusal>>>| {
            let rule = *rule.lock().expect("no panic");
            rule.and_then(|rule| rule(request.method(), request.uri().path()))
        };
        let (refused, lost) = (code(&refusal), code(&loss));
        let client = client.clone();
        async move {
            let code = match (refused, lost) {
                (Some(code), _) => code,
                (None, Some(code)) => {
                    client.send(request).await?;
                    code
                }
                (None, None) => return client.send(request).await,
            };
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Refused", "message": "refused"});
            let answer = Body::from(status.to_string().into_bytes());
            Ok(Response::builder().status(code).body(answer).expect("a response"))
        }
    });
    Client::new(service, "default")
}

pub(crate) async fn create(client: &Client, object: Value) -> DynamicObject {
    let (api, _) = api_of(client, &object);
    let parsed = serde_json::from_value(object.clone()).expect("an object");
    api.create(&PostParams::default(), &parsed).await.unwrap_or_else(|error| panic!("{error}: {object}"))
}

/// Where an object lives, and its name there.
fn api_of(client: &Client, object: &Value) -> (Api<DynamicObject>, String) {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let api_version = text("/apiVersion").expect("an apiVersion");
    let kind = text("/kind").expect("a kind");
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    (api, text("/metadata/name").unwrap_or_default())
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
