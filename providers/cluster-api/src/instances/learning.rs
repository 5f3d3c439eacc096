//! What is learnt by looking: the Node of a Machine tells what its siblings will have, where nothing else does, and what kubelet keeps
//! for itself; a ConfigMap tells prices. Looked at now and then, kept until something newer is known.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use karpenter_api::{Quantity, ResourceList};
use kube::{Api, Client};
use tokio::time::Instant;

use super::fleet::Fleet;
use crate::client::machine::Machine;
use crate::client::scalable::{Scalable, ScalableKey};
use crate::instancetypes::blueprint::Learnt;

/// How long it is until a Node is looked at again.
const NODE_PERIOD: Duration = Duration::from_secs(60 * 60);
/// How long it is until prices are looked at again.
const PRICE_PERIOD: Duration = Duration::from_secs(5 * 60);

/// What has been learnt.
#[derive(Debug, Default)]
pub struct Lessons(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: u64,
    nodes: BTreeMap<ScalableKey, Lesson>,
    prices: BTreeMap<String, (Instant, BTreeMap<String, String>)>,
}

#[derive(Clone, Debug)]
struct Lesson {
    /// The template it is about.
    template: Option<String>,
    at: Instant,
    learnt: Learnt,
}

impl Lessons {
    /// What is known about the nodes of each resource.
    pub fn nodes(&self) -> BTreeMap<ScalableKey, Learnt> {
        self.lock().nodes.iter().map(|(id, lesson)| (id.clone(), lesson.learnt.clone())).collect()
    }

    /// The prices that a NodeClass's ConfigMap tells.
    pub fn prices(&self, node_class: &str) -> Option<BTreeMap<String, String>> {
        self.lock().prices.get(node_class).map(|(_, prices)| prices.clone())
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
        let changed = state.nodes.get(&scalable.id).is_none_or(|known| known.learnt != lesson.learnt);
        state.nodes.insert(scalable.id.clone(), lesson);
        state.version += u64::from(changed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            learn_from_node(fleet, &client, scalable).await;
        }
        let reference = class.spec().pricing.and_then(|pricing| pricing.config_map_ref);
        if let Some(reference) = reference {
            learn_prices(fleet, &client, class.name(), &reference.namespace, &reference.name).await;
        }
    }
}

async fn learn_from_node(fleet: &Fleet, client: &Client, scalable: &Arc<Scalable>) {
    let newest = fleet.mirror.sets_of(&scalable.id).into_iter().max_by_key(|set| set.revision());
    let newest = newest.map(|set| set.id.key.name.to_string());
    let machines = fleet.machines_of(&scalable.id);
    let of_newest = |machine: &&Machine| newest.is_none() || machine.set_name() == newest.as_deref();
    let with_node =
        machines.iter().filter(|m| !m.deleting).filter(of_newest).find_map(|m| m.node_name.clone());
    let Some(name) = with_node else { return };
    let Ok(Some(node)) = Api::<Node>::all(client.clone()).get_opt(&name).await else { return };
    let Some(status) = node.status else { return };
    let (capacity, allocatable) = (quantities(status.capacity), quantities(status.allocatable));
    if capacity.contains_key("cpu") && capacity.contains_key("memory") {
        fleet.lessons.learn(scalable, Learnt { capacity, allocatable });
    }
}

fn quantities(list: Option<BTreeMap<String, WireQuantity>>) -> ResourceList {
    let read = |(name, quantity): (String, WireQuantity)| Some((name, Quantity::parse(&quantity.0).ok()?));
    list.unwrap_or_default().into_iter().filter_map(read).collect()
}

async fn learn_prices(fleet: &Fleet, client: &Client, class: &str, namespace: &str, name: &str) {
    let known = fleet.lessons.lock().prices.get(class).is_some_and(|(at, _)| at.elapsed() < PRICE_PERIOD);
    if known {
        return;
    }
    let found = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(name).await;
    let prices = match found {
        Ok(Some(map)) => map.data.unwrap_or_default(),
        // The last good ones stay.
        Ok(None) => return tracing::warn!(class, namespace, name, "there is no such ConfigMap of prices"),
        Err(error) => return tracing::warn!(class, %error, "cannot read the ConfigMap of prices"),
    };
    let mut state = fleet.lessons.lock();
    let changed = state.prices.get(class).is_none_or(|(_, before)| *before != prices);
    state.prices.insert(class.to_owned(), (Instant::now(), prices));
    state.version += u64::from(changed);
}
