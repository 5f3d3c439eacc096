//! What is learnt by looking: the Node of a Machine tells what its siblings will have, where nothing else does, and what kubelet keeps
//! for itself; a ConfigMap and an endpoint tell prices. Looked at now and then, and kept while its source is what it was: until
//! something newer is known, the source is known to be gone, or another one is named.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use karpenter_api::{NodeClaim, Quantity, ResourceList};
use karpenter_runtime::events::{Event, EventType, reference};
use kube::{Api, Client};
use tokio::time::Instant;

use super::customization::blueprint_hash;
use super::fleet::Fleet;
use super::node_claims::Target;
use crate::client::machine::Machine;
use crate::client::prices::{self, Prices};
use crate::client::scalable::{Scalable, ScalableKey};
use crate::instancetypes::blueprint::Learnt;
use crate::instancetypes::price::Told;
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, ConfigMapReference};

/// How long it is until a Node is looked at again.
const NODE_PERIOD: Duration = Duration::from_secs(60 * 60);
/// How long it is until a ConfigMap of prices is looked at again.
const CONFIG_MAP_PERIOD: Duration = Duration::from_secs(5 * 60);
/// How long it is until an endpoint is asked for prices again.
const ENDPOINT_PERIOD: Duration = Duration::from_secs(15 * 60);
/// How long it is until an endpoint that failed is asked again.
const ENDPOINT_RETRY: Duration = Duration::from_secs(60);

/// What has been learnt.
#[derive(Debug, Default)]
pub struct Lessons(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: u64,
    nodes: BTreeMap<ScalableKey, Lesson>,
    /// By NodeClass.
    config_maps: BTreeMap<String, Source<ConfigMapReference, String>>,
    /// By NodeClass.
    endpoints: BTreeMap<String, Source<String, f64>>,
}

#[derive(Clone, Debug)]
struct Lesson {
    /// The template it is about.
    template: Option<String>,
    at: Instant,
    learnt: Learnt,
}

/// Prices, and who told them.
#[derive(Clone, Debug)]
struct Source<N, P> {
    /// As the NodeClass names it.
    name: N,
    /// When it is to be asked again.
    due: Instant,
    prices: BTreeMap<String, P>,
}

impl Lessons {
    /// What is known about the nodes of these resources as they are: what was learnt of another template is another node's.
    pub fn learnt(&self, scalables: &[Arc<Scalable>]) -> BTreeMap<ScalableKey, Learnt> {
        let state = self.lock();
        let lesson = |scalable: &Arc<Scalable>| {
            let lesson = state.nodes.get(&scalable.id)?;
            let same = lesson.template == template_of(scalable);
            same.then(|| (scalable.id.clone(), lesson.learnt.clone()))
        };
        scalables.iter().filter_map(lesson).collect()
    }

    /// The prices that the ConfigMap and the endpoint tell which the NodeClass names now.
    pub fn told(&self, class: &ClusterAPINodeClass) -> Told {
        let state = self.lock();
        let pricing = class.spec.as_ref().and_then(|spec| spec.pricing.as_ref());
        let config_map = pricing.and_then(|pricing| pricing.config_map_ref.as_ref());
        let endpoint = pricing.and_then(|pricing| pricing.endpoint.as_ref());
        Told {
            config_map: prices_of(&state.config_maps, class.name(), config_map),
            endpoint: prices_of(&state.endpoints, class.name(), endpoint),
        }
    }

    /// Counts changes.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    fn is_fresh(&self, scalable: &Scalable) -> bool {
        let state = self.lock();
        let template = template_of(scalable);
        let fresh = |lesson: &Lesson| lesson.template == template && lesson.at.elapsed() < NODE_PERIOD;
        state.nodes.get(&scalable.id).is_some_and(fresh)
    }

    fn learn(&self, scalable: &Scalable, learnt: Learnt) {
        let mut state = self.lock();
        let lesson = Lesson { template: template_of(scalable), at: Instant::now(), learnt };
        let changed = state
            .nodes
            .get(&scalable.id)
            .is_none_or(|known| (&known.learnt, &known.template) != (&lesson.learnt, &lesson.template));
        state.nodes.insert(scalable.id.clone(), lesson);
        state.version += u64::from(changed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn prices_of<N: PartialEq, P: Clone>(
    sources: &BTreeMap<String, Source<N, P>>,
    class: &str,
    name: Option<&N>,
) -> BTreeMap<String, P> {
    let source = sources.get(class).filter(|source| Some(&source.name) == name);
    source.map(|source| source.prices.clone()).unwrap_or_default()
}

/// Whether a source that was asked before need not be asked yet.
fn is_known<N: PartialEq, P>(sources: &BTreeMap<String, Source<N, P>>, class: &str, name: &N) -> bool {
    sources.get(class).is_some_and(|source| source.name == *name && source.due > Instant::now())
}

fn template_of(scalable: &Scalable) -> Option<String> {
    scalable.infrastructure.as_ref().map(|reference| reference.name.clone())
}

/// Looks at what is not known yet, or has not been looked at for long. What fails is looked at the next time.
pub(crate) async fn learn(fleet: &Fleet) {
    let client = fleet.node_claims.client();
    for class in fleet.node_classes.list() {
        let offers = fleet.offers(&class);
        for scalable in offers.members.iter().filter(|scalable| !fleet.lessons.is_fresh(scalable)) {
            learn_from_node(fleet, &client, &class, scalable).await;
        }
        let Some(pricing) = class.spec().pricing else { continue };
        if let Some(reference) = pricing.config_map_ref {
            read_config_map(fleet, &client, &class, reference).await;
        }
        if let Some(url) = pricing.endpoint {
            ask_endpoint(fleet, &class, url).await;
        }
    }
}

async fn learn_from_node(
    fleet: &Fleet,
    client: &Client,
    class: &ClusterAPINodeClass,
    scalable: &Arc<Scalable>,
) {
    let newest = fleet.mirror.sets_of(&scalable.id).into_iter().max_by_key(|set| set.revision());
    let newest = newest.map(|set| names::label_value(&set.id.key.name).into_owned());
    let machines = fleet.machines_of(&scalable.id);
    let of_newest = |machine: &&Machine| newest.is_none() || machine.set_name() == newest.as_deref();
    let with_node =
        machines.iter().filter(|m| !m.deleting).filter(of_newest).find_map(|m| m.node_name.clone());
    let Some(name) = with_node.or_else(|| node_of_its_own(fleet, class, scalable)) else { return };
    let Ok(Some(node)) = Api::<Node>::all(client.clone()).get_opt(&name).await else { return };
    // One that is not ready may not have found out yet what it has.
    let is_ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    let Some(status) = Some(node).filter(is_ready).and_then(|node| node.status) else { return };
    let (capacity, allocatable) = (quantities(status.capacity), quantities(status.allocatable));
    if capacity.contains_key("cpu") && capacity.contains_key("memory") {
        fleet.lessons.learn(scalable, Learnt { capacity, allocatable });
    }
}

/// The Node of a Machine of its own that was made from a blueprint as it is now.
fn node_of_its_own(fleet: &Fleet, class: &ClusterAPINodeClass, blueprint: &Scalable) -> Option<String> {
    let hash = class.makes_machines().then(|| blueprint_hash(blueprint, &class.spec()))?;
    let made_from = |claim: &Arc<NodeClaim>| {
        let uid = claim.metadata.uid.as_deref()?;
        let target = Target::of(claim).filter(|target| target.standalone && target.id == blueprint.id);
        let machine = fleet.mirror.machine_of(uid).filter(|machine| target.is_some() && !machine.deleting)?;
        let same = machine.annotations.get(names::BLUEPRINT_HASH) == Some(&hash);
        machine.node_name.clone().filter(|_| same)
    };
    fleet.node_claims.store().list().iter().find_map(made_from)
}

fn quantities(list: Option<BTreeMap<String, WireQuantity>>) -> ResourceList {
    let read = |(name, quantity): (String, WireQuantity)| Some((name, Quantity::parse(&quantity.0).ok()?));
    list.unwrap_or_default().into_iter().filter_map(read).collect()
}

async fn read_config_map(
    fleet: &Fleet,
    client: &Client,
    class: &ClusterAPINodeClass,
    name: ConfigMapReference,
) {
    if is_known(&fleet.lessons.lock().config_maps, class.name(), &name) {
        return;
    }
    let what = format!("ConfigMap {}/{}", name.namespace, name.name);
    let prices = match Api::<ConfigMap>::namespaced(client.clone(), &name.namespace).get(&name.name).await {
        Ok(map) => map.data.unwrap_or_default(),
        // Whoever deletes it takes its prices back.
        Err(kube::Error::Api(status))
            if status.code == 404 && status.details.as_ref().is_some_and(|d| d.name == name.name) =>
        {
            tell(fleet, class, &format!("{what}, which spec.pricing.configMapRef names, does not exist"));
            BTreeMap::new()
        }
        // The last good ones stay.
        Err(error) => return tell(fleet, class, &format!("cannot read {what}: {error}")),
    };
    let due = Instant::now() + CONFIG_MAP_PERIOD;
    let mut state = fleet.lessons.lock();
    let before = prices_of(&state.config_maps, class.name(), Some(&name));
    state.version += u64::from(before != prices);
    state.config_maps.insert(class.name().to_owned(), Source { name, due, prices });
}

async fn ask_endpoint(fleet: &Fleet, class: &ClusterAPINodeClass, url: String) {
    if is_known(&fleet.lessons.lock().endpoints, class.name(), &url) {
        return;
    }
    let told = (fleet.fetch)(url.clone()).await.and_then(|text| prices::read(&text));
    let now = Instant::now();
    let mut state = fleet.lessons.lock();
    let before = prices_of(&state.endpoints, class.name(), Some(&url));
    let (prices, due) = match told {
        Ok(Prices { mut told, unclear }) => {
            for key in &unclear {
                tell(fleet, class, &format!("spec.pricing.endpoint: its {key:?} is no price per hour"));
                // The last good one stays. Where there was none, that of its other nodes is the best there is.
                told.extend(before.get_key_value(key).map(|(key, price)| (key.clone(), *price)));
            }
            (told, now + ENDPOINT_PERIOD)
        }
        Err(problem) => {
            tell(fleet, class, &format!("spec.pricing.endpoint: {problem}"));
            // The last good ones stay.
            (before.clone(), now + ENDPOINT_RETRY)
        }
    };
    state.version += u64::from(before != prices);
    state.endpoints.insert(class.name().to_owned(), Source { name: url, due, prices });
}

/// Prices cannot be had from where the NodeClass says: its owner is told, and launches go on.
fn tell(fleet: &Fleet, class: &ClusterAPINodeClass, problem: &str) {
    let event = Event::new(reference(class), EventType::Warning, "PricesUnknown", problem.to_owned());
    fleet.recorder.publish(event.dedupe_by([problem.to_owned()]));
}
