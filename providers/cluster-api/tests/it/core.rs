//! A small core: what Karpenter does with NodeClaims, as far as a provider sees it. One process; it may be killed at any write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use karpenter_api::NodeClaim;
use karpenter_api::conditions::{ConditionSet, HasConditions as _};
use karpenter_cloudprovider::{CloudProvider, Launch, LaunchFailure, LaunchWaker};
use karpenter_provider_cluster_api::ClusterApi;
use karpenter_provider_cluster_api::client::prices::Fetch;
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::wiring::{self, Parts};
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::events;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::writes::{Lock, patch, patch_status};
use karpenter_sim::faults::Faults;
use karpenter_sim::objects::node_ready;
use karpenter_sim::process::Life;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::rig::{CLUSTER, NAMESPACE};

/// How often NodeClaims without an instance are looked for, as the core does.
const COLLECTION: Duration = Duration::from_secs(2 * 60);
/// How often a pending launch or a deletion is asked about when nothing happens, as the core does.
const AGAIN: Duration = Duration::from_secs(5);
/// A launch that is pending is looked at again when the provider says so.
const UNTIL_WOKEN: Duration = Duration::from_secs(24 * 60 * 60);

/// On a NodeClaim: its drain does not come to an end.
pub(crate) const UNDRAINED: &str = "test.karpenter.sh/undrained";

/// Where a process leaves its provider for a scenario to ask.
pub(crate) type Handle = Arc<Mutex<Option<Arc<ClusterApi>>>>;

/// One life of the process.
pub(crate) async fn live(life: Life, hub: Faults) {
    live_with(life, hub, settings()).await;
}

/// One life of a process whose provider a scenario asks itself.
pub(crate) async fn live_known(life: Life, hub: Faults, handle: Handle) {
    let management = life.client_behind(&hub);
    live_as(life, management, settings(), &handle).await;
}

/// What a process is told unless a scenario says otherwise.
pub(crate) fn settings() -> Settings {
    Settings {
        cluster_name: Some(CLUSTER.to_owned()),
        cluster_namespace: Some(NAMESPACE.to_owned()),
        node_repair: true,
        ..Settings::default()
    }
}

/// One life of a process with these settings.
pub(crate) async fn live_with(life: Life, hub: Faults, settings: Settings) {
    let management = life.client_behind(&hub);
    live_through(life, management, settings).await;
}

/// One life of a process that reaches the management cluster by this client.
pub(crate) async fn live_through(life: Life, management: kube::Client, settings: Settings) {
    live_as(life, management, settings, &Handle::default()).await;
}

/// One life of a process that reaches the management cluster by this client, whose provider a scenario asks itself.
pub(crate) async fn live_as(life: Life, management: kube::Client, settings: Settings, handle: &Handle) {
    let environment = life.environment.clone();
    let (provider, parts, writer) = loop {
        let (recorder, writer) = events::recorder("karpenter", &environment);
        let parts = Parts {
            workload: life.client.clone(),
            management: management.clone(),
            settings: settings.clone(),
            environment: environment.clone(),
            recorder,
            fetch: endpoints(life.client.clone()),
        };
        match wiring::assemble(parts).await {
            Ok((provider, parts)) => break (provider, parts, writer),
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    };
    *handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&provider));
    for part in parts {
        tokio::spawn((part.run)(life.stop.clone()));
    }
    tokio::spawn(writer.run(life.client.clone(), life.stop.clone()));
    let woken = Arc::new(Woken::default());
    let waking = Arc::clone(&woken);
    provider.wake_with(LaunchWaker::new(move |key: ObjectKey| waking.wake(&key.name)));
    let core = Core {
        provider,
        claims: Api::all(life.client.clone()),
        nodes: Api::all(life.client.clone()),
        clock: Arc::clone(&environment.clock),
        woken,
        due: BTreeMap::new(),
        collected: Instant::now(),
    };
    core.run().await;
}

/// Endpoints of this world: what one says stands in a ConfigMap of its host's name in the namespace `default`.
fn endpoints(client: kube::Client) -> Fetch {
    Arc::new(move |url| {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        async move {
            let host = url.split('/').nth(2).unwrap_or_default().to_owned();
            let said = maps.get(&host).await.map_err(|_| "connection refused".to_owned())?;
            Ok(said.data.unwrap_or_default().remove("body").unwrap_or_default())
        }
        .boxed()
    })
}

#[derive(Default)]
struct Woken {
    names: Mutex<Vec<String>>,
    bell: Notify,
}

impl Woken {
    fn wake(&self, name: &str) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        self.bell.notify_one();
    }
}

struct Core {
    provider: Arc<ClusterApi>,
    claims: Api<NodeClaim>,
    nodes: Api<Node>,
    clock: SharedClock,
    woken: Arc<Woken>,
    /// When a NodeClaim is looked at again, by name and whether it is on its way out: its deletion is looked at when it comes.
    due: BTreeMap<(String, bool), Instant>,
    /// When NodeClaims without an instance were last looked for.
    collected: Instant,
}

impl Core {
    async fn run(mut self) {
        loop {
            let (Ok(claims), Ok(nodes)) = (
                self.claims.list(&ListParams::default()).await,
                self.nodes.list(&ListParams::default()).await,
            ) else {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            };
            for name in self.woken.names.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                self.due.retain(|(of, _), _| *of != name);
            }
            for claim in &claims.items {
                let ends = claim.metadata.deletion_timestamp.is_some();
                let which = (claim.metadata.name.clone().unwrap_or_default(), ends);
                if self.due.get(&which).is_some_and(|due| *due > Instant::now()) {
                    continue;
                }
                // What fails is tried again.
                let again = self.look_at(claim, &nodes.items).await.unwrap_or(Duration::from_secs(1));
                self.due.insert(which, Instant::now() + again);
            }
            if self.collected.elapsed() >= COLLECTION {
                self.collected = Instant::now();
                // What fails is tried again.
                let _ = self.collect(&claims.items, &nodes.items).await;
            }
            // News gather for a moment, as watches and batches make them.
            let _ = tokio::time::timeout(Duration::from_secs(2), self.woken.bell.notified()).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn look_at(&self, claim: &NodeClaim, nodes: &[Node]) -> Result<Duration, kube::Error> {
        if claim.metadata.deletion_timestamp.is_some() {
            return self.finalize(claim, nodes).await;
        }
        let provider_id = claim.status.as_ref().and_then(|status| status.provider_id.clone());
        let Some(provider_id) = provider_id else { return self.launch(claim).await };
        let node = nodes.iter().find(|node| {
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(&provider_id)
        });
        let initialized = claim.condition("Initialized").is_some_and(|c| c.status.as_str() == "True");
        match node {
            Some(node) if !initialized && node_ready(node) == Some("True") => {
                self.register(claim, node).await?
            }
            // Liveness: launched, and not registered in time.
            None if !initialized && self.is_overdue(claim) => self.delete(claim).await?,
            Some(_) if initialized => self.tell_drift(claim).await?,
            _ => {}
        }
        Ok(AGAIN)
    }

    /// Says that a NodeClaim is not what it should be; nobody replaces it for that here.
    async fn tell_drift(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        let Ok(Some(reason)) = self.provider.is_drifted(claim).await else { return Ok(()) };
        if claim.condition("Drifted").is_some() {
            return Ok(());
        }
        let mut after = claim.clone();
        ConditionSet::of(&mut after, self.clock.now()).set_true_with_reason("Drifted", &reason, "");
        patch_status(&self.claims, claim, &after, Lock::None).await.map(drop)
    }

    fn is_overdue(&self, claim: &NodeClaim) -> bool {
        let launched = claim.condition("Launched").map(|launched| self.clock.since(launched.since()));
        launched.zip(self.provider.registration_timeout(claim)).is_some_and(|(since, limit)| since >= limit)
    }

    /// The garbage collector: registered, not listed, without a Node that is ready, and not there when asked for. A provider that
    /// cannot list has none collected.
    async fn collect(&self, claims: &[NodeClaim], nodes: &[Node]) -> Result<(), kube::Error> {
        let Ok(listed) = self.provider.list().await else { return Ok(()) };
        let id = |claim: &NodeClaim| claim.status.as_ref().and_then(|status| status.provider_id.clone());
        let running = listed.iter().filter(|instance| instance.metadata.deletion_timestamp.is_none());
        let running: BTreeSet<String> = running.filter_map(id).collect();
        for claim in claims {
            let registered = claim.condition("Registered").is_some_and(|c| c.status.as_str() == "True");
            let Some(id) = id(claim).filter(|id| registered && !running.contains(id)) else { continue };
            let is_theirs =
                |node: &&Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(&id);
            let is_ready = nodes.iter().filter(is_theirs).any(|node| node_ready(node) == Some("True"));
            if claim.metadata.deletion_timestamp.is_none() && !is_ready && self.is_gone(&id).await {
                self.delete(claim).await?;
            }
        }
        Ok(())
    }

    async fn is_gone(&self, provider_id: &str) -> bool {
        match self.provider.get(provider_id).await {
            Ok(instance) => instance.metadata.deletion_timestamp.is_some(),
            Err(error) => error.is_not_found(),
        }
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<Duration, kube::Error> {
        let age =
            self.clock.since(claim.metadata.creation_timestamp.as_ref().map_or(self.clock.now(), |t| t.0));
        let mut after = claim.clone();
        match self.provider.create(claim).await {
            Ok(Launch::Launched(instance)) => {
                instance.write_into(&mut after);
                ConditionSet::of(&mut after, self.clock.now()).set_true("Launched");
                patch(&self.claims, claim, &after, Lock::None).await?;
            }
            Ok(Launch::Pending { reason, message, .. }) => {
                let mut conditions = ConditionSet::of(&mut after, self.clock.now());
                conditions.set_unknown_with_reason("Launched", &reason, &message);
                if age >= self.provider.launch_timeout() {
                    self.delete(claim).await?;
                }
                patch_status(&self.claims, claim, &after, Lock::None).await?;
                return Ok(UNTIL_WOKEN);
            }
            Err(error) => match error.launch_failure() {
                LaunchFailure::GiveUp { counted_as, .. } => {
                    // As the core tells by an event.
                    ConditionSet::of(&mut after, self.clock.now()).set_unknown_with_reason(
                        "Launched",
                        counted_as,
                        &error.to_string(),
                    );
                    patch_status(&self.claims, claim, &after, Lock::None).await?;
                    self.delete(claim).await?;
                    return Ok(AGAIN);
                }
                LaunchFailure::Retry { reason, message } => {
                    let mut conditions = ConditionSet::of(&mut after, self.clock.now());
                    conditions.set_unknown_with_reason("Launched", &reason, &message);
                }
            },
        }
        patch_status(&self.claims, claim, &after, Lock::None).await?;
        Ok(AGAIN)
    }

    async fn register(&self, claim: &NodeClaim, node: &Node) -> Result<(), kube::Error> {
        let name = node.metadata.name.clone().unwrap_or_default();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let left: Vec<_> =
            taints.into_iter().filter(|taint| taint.key != "karpenter.sh/unregistered").collect();
        let change =
            json!({"spec": {"taints": left}, "metadata": {"labels": {"karpenter.sh/registered": "true"}}});
        self.nodes.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await?;
        let mut after = claim.clone();
        after.status.get_or_insert_default().node_name = Some(name);
        let mut conditions = ConditionSet::of(&mut after, self.clock.now());
        conditions.set_true("Registered");
        conditions.set_true("Initialized");
        patch_status(&self.claims, claim, &after, Lock::None).await.map(drop)
    }

    async fn finalize(&self, claim: &NodeClaim, nodes: &[Node]) -> Result<Duration, kube::Error> {
        // Pods that nobody may evict, in a test.
        if claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(UNDRAINED)) {
            return Ok(AGAIN);
        }
        let id = claim.status.as_ref().and_then(|status| status.provider_id.clone());
        if id.is_some() || self.provider.launch_handle(claim).is_some() {
            match self.provider.delete(claim).await {
                Err(error) if error.is_not_found() => {}
                Ok(()) | Err(_) => return Ok(AGAIN),
            }
        }
        let node = nodes
            .iter()
            .find(|node| id.is_some() && node.spec.as_ref().and_then(|spec| spec.provider_id.clone()) == id);
        if let Some(name) = node.and_then(|node| node.metadata.name.as_deref()) {
            let _ = self.nodes.delete(name, &DeleteParams::default()).await;
        }
        let name = claim.metadata.name.clone().unwrap_or_default();
        let change = json!({"metadata": {"finalizers": null}});
        match self.claims.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(AGAIN),
            other => other.map(|_| AGAIN),
        }
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        let preconditions = Preconditions { uid: claim.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.claims.delete(claim.metadata.name.as_deref().unwrap_or_default(), &params).await.map(drop)
    }
}
