//! A provider for the simulated cloud: launches what fits, cheapest first, and falls through to the next offering when one has
//! run dry. Faithful to what a good provider does, for worlds in which the cloud is anything but.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::{NodeClaim, NodePool, ResourceList, labels, taints};
use karpenter_cloudprovider::{
    CloudProvider, Launch, LaunchedInstance, NodeClassKind, ProviderError, ProviderFuture, RepairPolicy,
    fake, selection,
};
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_runtime::clock::SharedClock;
use karpenter_sim::cloud::{CloudError, CloudHandle};
use karpenter_sim::inventory::{self, Instance, InstanceId, InstanceState, NodeTemplate};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plants::Plant;

/// How long an offering that had run dry is not asked for again.
const DRY_FOR: Duration = Duration::from_secs(3 * 60);

/// The NodeClaim an instance was launched for, its NodePool, and what it booted from.
const CLAIM_TAG: &str = "nodeclaim";
const POOL_TAG: &str = "nodepool";
const IMAGE_TAG: &str = "image";

/// What the operators of the simulated cloud can change about it while Karpenter runs. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Platform {
    image: Arc<AtomicU64>,
    repair: Vec<RepairPolicy>,
    plant: Option<Plant>,
    /// Orders so far.
    orders: Arc<AtomicU64>,
}

impl Platform {
    /// One that wants broken nodes repaired.
    pub(super) fn repairing(repair: Vec<RepairPolicy>) -> Self {
        Self { repair, ..Self::default() }
    }

    /// Whose provider makes this mistake, if it is one of its own.
    pub(super) fn mistaken(self, plant: Option<Plant>) -> Self {
        Self { plant, ..self }
    }

    /// What it says it offers.
    fn instance_types(&self) -> Vec<InstanceType> {
        let mut types = instance_types();
        if self.plant == Some(Plant::PricesWrong) {
            for offering in types.iter_mut().flat_map(|it| &mut it.offerings) {
                offering.price = 1.0 / (1.0 + offering.price);
            }
        }
        types
    }

    /// Machines boot from a new image from now on; those that booted from another have drifted.
    pub(super) fn publish_image(&self) {
        self.image.fetch_add(1, Ordering::Relaxed);
    }

    fn image(&self) -> String {
        format!("image-{}", self.image.load(Ordering::Relaxed))
    }
}

/// The price of every offering, by instance type, zone and capacity type.
pub(super) fn prices() -> BTreeMap<(String, String, String), f64> {
    let mut prices = BTreeMap::new();
    for it in instance_types() {
        for offering in &it.offerings {
            let (zone, capacity_type) = place(offering);
            prices.insert((it.name.to_string(), zone, capacity_type), offering.price);
        }
    }
    prices
}

fn instance_types() -> Vec<InstanceType> {
    fake::instance_types(8)
}

/// The simulated cloud as a provider.
pub(super) struct SimulatedCloud {
    cloud: CloudHandle,
    platform: Platform,
    kinds: [NodeClassKind; 1],
    types: Arc<[InstanceType]>,
    dry: Mutex<BTreeMap<(String, String, String), Instant>>,
}

impl SimulatedCloud {
    pub(super) fn new(cloud: CloudHandle, platform: Platform) -> Self {
        Self {
            types: platform.instance_types().into(),
            cloud,
            platform,
            kinds: [node_class()],
            dry: Mutex::new(BTreeMap::new()),
        }
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<Launch, ProviderError> {
        let types = self.offered();
        let choices = selection::by_price(&types, claim, &[]).map_err(ProviderError::other)?;
        let mut dry = None;
        for (instance_type, offering) in choices {
            let launched = selection::describe("", instance_type, offering);
            let mut order = order(claim, &launched, &self.platform.image());
            if self.platform.plant == Some(Plant::LaunchesNotRepeatable) {
                let number = self.platform.orders.fetch_add(1, Ordering::Relaxed);
                order.token = format!("{}-{number}", order.token);
            }
            let key = (order.instance_type.clone(), order.zone.clone(), order.capacity_type.clone());
            match self.cloud.launch(order).await {
                Ok(instance) => {
                    // With one token an earlier order may be what came of it.
                    let described = self.describe(&instance).unwrap_or(launched);
                    return Ok(Launch::Launched(Box::new(LaunchedInstance {
                        provider_id: instance.provider_id,
                        ..described
                    })));
                }
                Err(error @ CloudError::NoCapacity { .. }) => {
                    self.dry().insert(key, Instant::now() + DRY_FOR);
                    dry = Some(error);
                }
                Err(error) => return Err(ProviderError::other(error)),
            }
        }
        let cause = dry.map_or_else(|| "nothing on offer fits".to_owned(), |error| error.to_string());
        Err(ProviderError::insufficient_capacity(cause))
    }

    /// What is on offer, without what has run dry.
    fn offered(&self) -> Arc<[InstanceType]> {
        let now = Instant::now();
        let mut dry = self.dry();
        dry.retain(|_, until| *until > now);
        if dry.is_empty() {
            return Arc::clone(&self.types);
        }
        let mut types = self.types.to_vec();
        for it in &mut types {
            let name = it.name.to_string();
            for offering in &mut it.offerings {
                let (zone, capacity_type) = place(offering);
                offering.available = !dry.contains_key(&(name.clone(), zone, capacity_type));
            }
        }
        types.into()
    }

    fn dry(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String, String), Instant>> {
        self.dry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, instance: &Instance) -> Option<LaunchedInstance> {
        let launch = &instance.launch;
        let it = self.types.iter().find(|it| *it.name == *launch.instance_type)?;
        let place_of = (launch.zone.clone(), launch.capacity_type.clone());
        let offering = it.offerings.iter().find(|offering| place(offering) == place_of)?;
        Some(selection::describe(&instance.provider_id, it, offering))
    }

    fn claim_of(&self, instance: &Instance) -> NodeClaim {
        let mut claim = NodeClaim::default();
        if let Some(described) = self.describe(instance) {
            described.write_into(&mut claim);
        }
        claim.metadata.name = instance.launch.tags.get(CLAIM_TAG).cloned();
        claim.metadata.creation_timestamp = Some(Time(instance.launched_at));
        claim.metadata.deletion_timestamp =
            (instance.state == InstanceState::ShuttingDown).then_some(Time(instance.launched_at));
        if let Some(pool) = instance.launch.tags.get(POOL_TAG) {
            let labels = claim.metadata.labels.get_or_insert_default();
            labels.insert(labels::NODEPOOL.to_owned(), pool.clone());
        }
        claim.status.get_or_insert_default().provider_id = Some(instance.provider_id.clone());
        claim
    }
}

/// How often machines without a NodeClaim are looked for, and how long new ones are spared.
const COLLECT_EVERY: Duration = Duration::from_secs(2 * 60);
const SPARED: SignedDuration = SignedDuration::from_mins(5);

/// What every provider owes the core: a machine whose NodeClaim went before its id was written down is found and removed.
/// Only a complete list of NodeClaims, asked for after the machines were listed, says that one is gone.
pub(super) async fn collect_orphans(
    client: kube::Client,
    cloud: CloudHandle,
    clock: SharedClock,
    stop: CancellationToken,
) {
    let claims: Api<NodeClaim> = Api::all(client);
    while stop.run_until_cancelled(tokio::time::sleep(COLLECT_EVERY)).await.is_some() {
        let Ok(instances) = cloud.list().await else { continue };
        let Ok(list) = claims.list(&ListParams::default()).await else { continue };
        let uids: BTreeSet<&str> =
            list.items.iter().filter_map(|claim| claim.metadata.uid.as_deref()).collect();
        for instance in &instances {
            let young = clock.now().duration_since(instance.launched_at) < SPARED;
            if !young && instance.state.is_live() && !uids.contains(instance.launch.claim_uid.as_str()) {
                // What fails is tried again in the next round.
                let _ = cloud.terminate(&instance.id).await;
            }
        }
    }
}

impl CloudProvider for SimulatedCloud {
    fn name(&self) -> &str {
        "simulated"
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        &self.kinds
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        self.launch(claim).boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        async move {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            let id = instance_id(id.unwrap_or_default())?;
            let instance = self.cloud.get(&id).await.map_err(provider_error)?;
            if instance.state == InstanceState::ShuttingDown {
                return Ok(());
            }
            self.cloud.terminate(&id).await.map_err(provider_error)
        }
        .boxed()
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        async move {
            let instance = self.cloud.get(&instance_id(provider_id)?).await.map_err(provider_error)?;
            Ok(self.claim_of(&instance))
        }
        .boxed()
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        async move {
            let instances = self.cloud.list().await.map_err(provider_error)?;
            let live = instances.iter().filter(|instance| instance.state.is_live());
            Ok(live.map(|instance| self.claim_of(instance)).collect())
        }
        .boxed()
    }

    fn get_instance_types<'a>(&'a self, _pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        std::future::ready(Ok(self.offered())).boxed()
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        async move {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            let instance =
                self.cloud.get(&instance_id(id.unwrap_or_default())?).await.map_err(provider_error)?;
            let old = instance.launch.tags.get(IMAGE_TAG) != Some(&self.platform.image());
            Ok(old.then(|| "ImageDrift".to_owned()))
        }
        .boxed()
    }

    fn reboot<'a>(&'a self, claim: &'a NodeClaim, operation_id: &'a str) -> ProviderFuture<'a, ()> {
        async move {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            let id = instance_id(id.unwrap_or_default())?;
            self.cloud.reboot(&id, operation_id).await.map_err(provider_error)
        }
        .boxed()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.platform.repair.clone()
    }
}

/// The kind of NodeClass the simulated cloud serves.
fn node_class() -> NodeClassKind {
    NodeClassKind::new("simulated.cloud", "v1", "SimulatedNodeClass", "simulatednodeclasses")
}

/// Its definition, and one object of it named `default`.
pub(super) fn node_class_objects() -> [Value; 2] {
    let NodeClassKind { group, version, kind, plural } = node_class();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "plural": plural,
                "singular": kind.to_lowercase(),
                "listKind": format!("{kind}List"),
            },
            "scope": "Cluster",
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    let object = json!({
        "apiVersion": format!("{group}/{version}"),
        "kind": kind,
        "metadata": {"name": "default"},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    [definition, object]
}

/// What a NodePool says to be served by the simulated cloud.
pub(super) fn node_class_ref() -> Value {
    let kind = node_class();
    json!({"group": kind.group, "kind": kind.kind, "name": "default"})
}

fn place(offering: &Offering) -> (String, String) {
    let value = |key: &str| {
        let requirement = offering.requirements.get(key);
        requirement.and_then(|requirement| requirement.values.first()).map(ToString::to_string)
    };
    let zone = value(labels::TOPOLOGY_ZONE).unwrap_or_default();
    (zone, value(labels::CAPACITY_TYPE).unwrap_or_default())
}

fn order(claim: &NodeClaim, launched: &LaunchedInstance, image: &str) -> inventory::Launch {
    let label = |key: &str| launched.labels.get(key).cloned().unwrap_or_default();
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    let quantities =
        |list: &ResourceList| list.iter().map(|(name, q)| (name.clone(), q.to_string())).collect();
    let mut node_labels = claim.metadata.labels.clone().unwrap_or_default();
    node_labels.extend(launched.labels.clone());
    let pool = node_labels.get(labels::NODEPOOL).cloned().unwrap_or_default();
    let taint = |taint: &Taint| taint.clone();
    let mut node_taints: Vec<Taint> = claim.spec.taints.iter().flatten().map(taint).collect();
    node_taints.extend(claim.spec.startup_taints.iter().flatten().map(taint));
    node_taints.push(taints::UNREGISTERED.to_taint());
    inventory::Launch {
        token: uid.clone(),
        claim_uid: uid,
        instance_type: label(labels::INSTANCE_TYPE),
        zone: label(labels::TOPOLOGY_ZONE),
        capacity_type: label(labels::CAPACITY_TYPE),
        tags: BTreeMap::from([
            (CLAIM_TAG.to_owned(), claim.metadata.name.clone().unwrap_or_default()),
            (POOL_TAG.to_owned(), pool),
            (IMAGE_TAG.to_owned(), image.to_owned()),
        ]),
        node: NodeTemplate {
            labels: node_labels,
            annotations: BTreeMap::new(),
            taints: node_taints,
            capacity: quantities(&launched.capacity),
            allocatable: quantities(&launched.allocatable),
        },
    }
}

/// The machine behind `sim:///zone/id`.
fn instance_id(provider_id: &str) -> Result<InstanceId, ProviderError> {
    let id = provider_id.strip_prefix("sim:///").and_then(|rest| rest.split_once('/'));
    id.map(|(_, id)| InstanceId::new(id)).ok_or_else(|| {
        ProviderError::other(format!("{provider_id:?} is no provider id of the simulated cloud"))
    })
}

fn provider_error(error: CloudError) -> ProviderError {
    match error {
        CloudError::NotFound(_) => ProviderError::not_found(error),
        CloudError::NoCapacity { .. } => ProviderError::insufficient_capacity(error),
        CloudError::Throttled | CloudError::Unavailable | CloudError::TimedOut => ProviderError::other(error),
    }
}
