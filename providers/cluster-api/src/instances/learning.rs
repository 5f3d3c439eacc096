//! What is learnt by looking: the Node of a Machine tells what its siblings will have, where nothing else does, and what kubelet keeps
//! for itself; a ConfigMap and an endpoint tell prices. Looked at now and then, and kept while its source is what it was: until
//! something newer is known, the source is known to be gone, or another one is named. What Nodes told outlives the process in the
//! NodeClass's status: a resource without Nodes would be left out for ever by the next one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
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
use crate::client::mirror::Mirror;
use crate::client::prices::{self, Prices};
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::instancetypes::blueprint::Learnt;
use crate::instancetypes::price::Told;
use crate::names;
use crate::nodeclass::{ClusterAPINodeClass, ConfigMapReference, LearnedStatus};

/// How long it is until a Node is looked at again.
const NODE_PERIOD: Duration = Duration::from_secs(60 * 60);
/// How many Nodes are looked at for one that is ready.
const MOST_NODES: usize = 3;
/// How long it is until a ConfigMap of prices is looked at again.
const CONFIG_MAP_PERIOD: Duration = Duration::from_secs(5 * 60);
/// How long it is until an endpoint is asked for prices again.
const ENDPOINT_PERIOD: Duration = Duration::from_secs(15 * 60);
/// How long it is until an endpoint that failed is asked again.
const ENDPOINT_RETRY: Duration = Duration::from_secs(60);

/// What has been learnt.
#[derive(Debug, Default)]
pub(crate) struct Lessons(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: u64,
    nodes: BTreeMap<ScalableKey, Lesson>,
    /// What resources are made from, and since when where that was seen to change under the same name: older Machines are of what was
    /// there before.
    made: BTreeMap<ScalableKey, (Made, Option<Timestamp>)>,
    /// Resources whose nodes turned out to be spot, and what those were made from.
    spot: BTreeMap<ScalableKey, Made>,
    /// The version of each NodeClass whose status was last read for what was learnt before.
    recalled: BTreeMap<String, Option<String>>,
    /// Why prices cannot be had, by NodeClass and by what they are from.
    unknown_prices: BTreeMap<(String, PricesFrom), Vec<String>>,
    /// ConfigMaps with prices, by NodeClass.
    config_maps: BTreeMap<String, Source<ConfigMapReference, String>>,
    /// Endpoints that tell prices, by NodeClass.
    endpoints: BTreeMap<String, Source<String, f64>>,
}

#[derive(Clone, Debug)]
struct Lesson {
    /// The template it is about.
    source: Made,
    /// When it was learnt; before us if that is not known.
    at: Option<Instant>,
    learnt: Learnt,
}

/// Where prices are from that are told outside the NodeClass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PricesFrom {
    ConfigMap,
    Endpoint,
}

/// What Machines of a resource are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    /// The template's name.
    template: Option<String>,
    /// What it says, in short; `None` if it cannot be read.
    hash: Option<u64>,
}

impl Made {
    fn of(scalable: &Scalable, mirror: &Mirror) -> Self {
        let reference = scalable.infrastructure.as_ref();
        let found = reference.and_then(|reference| mirror.template(reference));
        let found = found.as_ref().and_then(|found| found.as_ref().as_ref().ok());
        Self {
            template: reference.map(|reference| reference.name.clone()),
            hash: found.map(|found| found.hash),
        }
    }

    /// Whether nothing is known by which both differ: that a template cannot be read just now does not make it another.
    fn may_be(&self, other: &Self) -> bool {
        let differ = |(one, other): (u64, u64)| one != other;
        self.template == other.template && !self.hash.zip(other.hash).is_some_and(differ)
    }
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
    pub(crate) fn learnt(
        &self,
        scalables: &[Arc<Scalable>],
        mirror: &Mirror,
    ) -> BTreeMap<ScalableKey, Learnt> {
        let state = self.lock();
        let lesson = |scalable: &Arc<Scalable>| {
            let lesson = state.nodes.get(&scalable.id)?;
            let same = lesson.source.may_be(&Made::of(scalable, mirror));
            same.then(|| (scalable.id.clone(), lesson.learnt.clone()))
        };
        scalables.iter().filter_map(lesson).collect()
    }

    /// Those of these resources whose nodes turned out to be spot, as they are made now.
    pub(crate) fn spot(&self, scalables: &[Arc<Scalable>], mirror: &Mirror) -> BTreeSet<ScalableKey> {
        let state = self.lock();
        let is_spot = |scalable: &&Arc<Scalable>| {
            state.spot.get(&scalable.id).is_some_and(|made| made.may_be(&Made::of(scalable, mirror)))
        };
        scalables.iter().filter(is_spot).map(|scalable| scalable.id.clone()).collect()
    }

    /// The nodes of a resource, as it is made now, turned out to be spot.
    pub(super) fn turned_out_spot(&self, scalable: &Scalable, mirror: &Mirror) {
        let (made, mut state) = (Made::of(scalable, mirror), self.lock());
        let before = state.spot.insert(scalable.id.clone(), made.clone());
        state.version += u64::from(before != Some(made));
    }

    /// What is known of a resource, as the status of its NodeClass keeps it.
    pub(crate) fn noted(&self, scalable: &Scalable, mirror: &Mirror) -> Option<LearnedStatus> {
        let (made, state) = (Made::of(scalable, mirror), self.lock());
        let lesson = state.nodes.get(&scalable.id).filter(|lesson| lesson.source.may_be(&made));
        let spot = state.spot.get(&scalable.id).filter(|source| source.may_be(&made));
        let source = lesson.map(|lesson| &lesson.source).or(spot)?;
        Some(LearnedStatus {
            template: source.template.clone(),
            template_hash: source.hash.map(|hash| format!("{hash:016x}")),
            capacity: lesson.map(|lesson| lesson.learnt.capacity.clone()),
            allocatable: lesson.map(|lesson| lesson.learnt.allocatable.clone()),
            interruptible: spot.map(|_| true),
        })
    }

    /// Takes over what the status of a NodeClass says was learnt by who ran before, where nothing is known.
    pub(crate) fn recall(&self, class: &ClusterAPINodeClass) {
        let mut state = self.lock();
        let version = &class.metadata.resource_version;
        if version.is_some() && state.recalled.get(class.name()) == Some(version) {
            return;
        }
        state.recalled.insert(class.name().to_owned(), version.clone());
        let rows = class.status.iter().flat_map(|status| status.resources.iter().flatten());
        for row in rows {
            let Some((id, learned)) = ScalableKey::parse(&row.name).zip(row.learned.as_ref()) else {
                continue;
            };
            let hash = learned.template_hash.as_deref().and_then(|text| u64::from_str_radix(text, 16).ok());
            let source = Made { template: learned.template.clone(), hash };
            if let Some(capacity) = learned.capacity.clone().filter(|_| !state.nodes.contains_key(&id)) {
                let allocatable = learned.allocatable.clone().unwrap_or_default();
                let learnt = Learnt { capacity, allocatable };
                state.nodes.insert(id.clone(), Lesson { source: source.clone(), at: None, learnt });
                state.version += 1;
            }
            if learned.interruptible == Some(true) && !state.spot.contains_key(&id) {
                state.spot.insert(id.clone(), source.clone());
                state.version += 1;
            }
            // A template that changed while nobody looked is another: its older Machines teach nothing.
            state.made.entry(id).or_insert((source, None));
        }
    }

    /// Why prices cannot be had from where a NodeClass says now.
    pub(crate) fn unknown_prices(&self, class: &ClusterAPINodeClass) -> Vec<String> {
        let pricing = class.spec.as_ref().and_then(|spec| spec.pricing.as_ref());
        let named = [
            (PricesFrom::ConfigMap, pricing.is_some_and(|pricing| pricing.config_map_ref.is_some())),
            (PricesFrom::Endpoint, pricing.is_some_and(|pricing| pricing.endpoint.is_some())),
        ];
        let state = self.lock();
        let problems = |from| state.unknown_prices.get(&(class.name().to_owned(), from)).cloned();
        let named = named.into_iter().filter(|(_, named)| *named);
        named.filter_map(|(from, _)| problems(from)).flatten().collect()
    }

    /// The prices that the ConfigMap and the endpoint tell which the NodeClass names now.
    pub(crate) fn told(&self, class: &ClusterAPINodeClass) -> Told {
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
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    fn is_fresh(&self, scalable: &Scalable, source: &Made) -> bool {
        let state = self.lock();
        let is_young = |at: Instant| at.elapsed() < NODE_PERIOD;
        let fresh = |lesson: &Lesson| lesson.source == *source && lesson.at.is_some_and(is_young);
        state.nodes.get(&scalable.id).is_some_and(fresh)
    }

    fn learn(&self, scalable: &Scalable, source: Made, learnt: Learnt) {
        let mut state = self.lock();
        let lesson = Lesson { source, at: Some(Instant::now()), learnt };
        let changed = state
            .nodes
            .get(&scalable.id)
            .is_none_or(|known| (&known.learnt, &known.source) != (&lesson.learnt, &lesson.source));
        state.nodes.insert(scalable.id.clone(), lesson);
        state.version += u64::from(changed);
    }

    /// What Machines of a resource are made from, as far as that was ever read, and from when on, as far as it was seen to change.
    fn made(&self, scalable: &Scalable, seen: Made, now: Timestamp) -> (Made, Option<Timestamp>) {
        let is_set = scalable.id.kind == ScalableKind::MachineSet;
        let mut state = self.lock();
        let made = match state.made.remove(&scalable.id) {
            Some((known, since)) if known.may_be(&seen) => {
                (Made { hash: seen.hash.or(known.hash), ..known }, since)
            }
            // Machines of another template are told by their MachineSet, but for those of a MachineSet that was given another.
            Some((known, _)) if known.template == seen.template || is_set => (seen, Some(now)),
            _ => (seen, None),
        };
        state.made.insert(scalable.id.clone(), made.clone());
        made
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

/// Looks at what is not known yet, or has not been looked at for long. What fails is looked at the next time.
pub(crate) async fn learn(fleet: &Fleet) {
    let client = fleet.node_claims.client();
    for class in fleet.node_classes.list() {
        let offers = fleet.offers(&class);
        for scalable in &offers.members {
            let seen = Made::of(scalable, &fleet.mirror);
            let (source, since) = fleet.lessons.made(scalable, seen, fleet.clock.undoubted_now());
            if !fleet.lessons.is_fresh(scalable, &source) {
                learn_from_nodes(fleet, &client, &class, scalable, source, since).await;
            }
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

/// Learns from the youngest Node that is ready, of those that were made from what siblings would be made from.
async fn learn_from_nodes(
    fleet: &Fleet,
    client: &Client,
    class: &ClusterAPINodeClass,
    scalable: &Arc<Scalable>,
    source: Made,
    since: Option<Timestamp>,
) {
    let mut machines = machines_of_today(fleet, scalable);
    machines.extend(machines_of_their_own(fleet, class, scalable));
    // Times have whole seconds.
    let is_of_before = |m: &Machine| since.is_some_and(|since| m.created.as_second() < since.as_second());
    machines.retain(|machine| !machine.deleting && machine.node_name.is_some() && !is_of_before(machine));
    machines.sort_by_key(|machine| Reverse(machine.created));
    let nodes: Api<Node> = Api::all(client.clone());
    for name in machines.iter().filter_map(|machine| machine.node_name.as_ref()).take(MOST_NODES) {
        let Ok(node) = nodes.get_opt(name).await else { return };
        // One that is not ready may not have found out yet what it has.
        let Some(status) = node.filter(is_ready).and_then(|node| node.status) else { continue };
        let (capacity, allocatable) = (quantities(status.capacity), quantities(status.allocatable));
        if capacity.contains_key("cpu") && capacity.contains_key("memory") {
            return fleet.lessons.learn(scalable, source, Learnt { capacity, allocatable });
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The Machines of a resource that were made from the template that it names now: those of the newest MachineSet that names it, too.
/// Cluster API takes a moment to make that.
pub(super) fn machines_of_today(fleet: &Fleet, scalable: &Scalable) -> Vec<Machine> {
    let mut machines = fleet.machines_of(&scalable.id);
    let sets = fleet.mirror.sets_of(&scalable.id);
    if !sets.is_empty() {
        let template = |resource: &Scalable| {
            resource.infrastructure.as_ref().map(|r| (r.group.clone(), r.kind.clone(), r.name.clone()))
        };
        let of_today = sets.iter().filter(|set| template(set) == template(scalable));
        let newest = of_today.max_by_key(|set| set.revision());
        let newest = newest.map(|set| names::label_value(&set.id.key.name).into_owned());
        machines.retain(|machine| newest.is_some() && machine.set_name() == newest.as_deref());
    }
    machines
}

/// The Machines of their own that were made from a blueprint as it is now.
pub(super) fn machines_of_their_own(
    fleet: &Fleet,
    class: &ClusterAPINodeClass,
    blueprint: &Scalable,
) -> Vec<Machine> {
    if !class.makes_machines() {
        return Vec::new();
    }
    let hash = blueprint_hash(blueprint, &class.spec());
    let made_from = |claim: &Arc<NodeClaim>| {
        let uid = claim.metadata.uid.as_deref()?;
        Target::of(claim).filter(|target| target.standalone && target.id == blueprint.id)?;
        let machine = fleet.mirror.machine_of(uid)?;
        let same = machine.annotations.get(names::BLUEPRINT_HASH) == Some(&hash);
        same.then(|| Machine::clone(&machine))
    };
    fleet.node_claims.store().list().iter().filter_map(made_from).collect()
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
        Ok(map) => {
            tell(fleet, class, PricesFrom::ConfigMap, Vec::new());
            map.data.unwrap_or_default()
        }
        // Whoever deletes it takes its prices back.
        Err(kube::Error::Api(status))
            if status.code == 404 && status.details.as_ref().is_some_and(|d| d.name == name.name) =>
        {
            let problem = format!("{what}, which spec.pricing.configMapRef names, does not exist");
            tell(fleet, class, PricesFrom::ConfigMap, vec![problem]);
            BTreeMap::new()
        }
        // The last good ones stay.
        Err(error) => {
            return tell(fleet, class, PricesFrom::ConfigMap, vec![format!("cannot read {what}: {error}")]);
        }
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
    let problems = match &told {
        Ok(Prices { unclear, .. }) => {
            let unclear = unclear.iter();
            unclear.map(|key| format!("spec.pricing.endpoint: its {key:?} is no price per hour")).collect()
        }
        Err(problem) => vec![format!("spec.pricing.endpoint: {problem}")],
    };
    tell(fleet, class, PricesFrom::Endpoint, problems);
    let now = Instant::now();
    let mut state = fleet.lessons.lock();
    let before = prices_of(&state.endpoints, class.name(), Some(&url));
    let (prices, due) = match told {
        Ok(Prices { mut told, unclear }) => {
            for key in &unclear {
                // The last good one stays. Where there was none, that of its other nodes is the best there is.
                told.extend(before.get_key_value(key).map(|(key, price)| (key.clone(), *price)));
            }
            (told, now + ENDPOINT_PERIOD)
        }
        // The last good ones stay.
        Err(_) => (before.clone(), now + ENDPOINT_RETRY),
    };
    state.version += u64::from(before != prices);
    state.endpoints.insert(class.name().to_owned(), Source { name: url, due, prices });
}

/// Why prices cannot be had from where the NodeClass says, if so: its owner is told, and launches go on.
fn tell(fleet: &Fleet, class: &ClusterAPINodeClass, from: PricesFrom, problems: Vec<String>) {
    for problem in &problems {
        let event = Event::new(reference(class), EventType::Warning, "PricesUnknown", problem.clone());
        fleet.recorder.publish(event.dedupe_by([problem.clone()]));
    }
    fleet.lessons.lock().unknown_prices.insert((class.name().to_owned(), from), problems);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::mirror::Watched;
    use crate::fixtures::{deployment_json, object};

    fn made(template: &str, hash: Option<u64>) -> Made {
        Made { template: Some(template.to_owned()), hash }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn machines_teach_that_were_made_after_their_template_changed() {
        let mirror = Mirror::default();
        for (watched, name) in [(Watched::MachineDeployment, "m"), (Watched::MachineSet, "s")] {
            mirror.apply(watched, &object(deployment_json(name, &[])));
        }
        let (lessons, scalables) = (Lessons::default(), mirror.scalables());
        let [deployment, set] = scalables.as_slice() else { panic!("two resources") };
        let since = |scalable: &Scalable, seen: Made, at: i64| lessons.made(scalable, seen, second(at));
        assert_eq!(since(deployment, made("t", None), 1), (made("t", None), None), "it cannot be read yet");
        assert_eq!(since(deployment, made("t", Some(1)), 2), (made("t", Some(1)), None));
        assert_eq!(since(deployment, made("t", None), 3), (made("t", Some(1)), None), "it is what it was");
        let changed = (made("t", Some(2)), Some(second(4)));
        assert_eq!(since(deployment, made("t", Some(2)), 4), changed);
        assert_eq!(since(deployment, made("t", Some(2)), 5), changed);
        assert_eq!(since(deployment, made("other", Some(3)), 6).1, None, "that shows in MachineSets");
        assert_eq!(since(set, made("t", Some(1)), 7).1, None);
        assert_eq!(
            since(set, made("other", Some(3)), 8).1,
            Some(second(8)),
            "a MachineSet keeps its Machines"
        );
    }

    #[test]
    fn a_template_that_cannot_be_read_just_now_is_not_another() {
        assert!(made("t", None).may_be(&made("t", Some(1))) && made("t", Some(1)).may_be(&made("t", None)));
        assert!(!made("t", Some(1)).may_be(&made("t", Some(2))));
        assert!(!made("t", None).may_be(&made("other", None)));
    }

    #[test]
    fn what_was_learnt_outlives_the_process_in_the_status_until_the_template_is_another() {
        let mirror = Mirror::default();
        mirror.apply(Watched::MachineDeployment, &object(deployment_json("m", &[])));
        let template = |hash: u64| crate::client::template::Template { hash, ..Default::default() };
        let scalables = mirror.scalables();
        let to_template = scalables[0].infrastructure.clone().expect("a template");
        mirror.set_template(to_template.clone(), Ok(template(7)));
        let before = Lessons::default();
        let list = |memory: &str| -> ResourceList {
            serde_json::from_value(serde_json::json!({"cpu": "4", "memory": memory})).expect("resources")
        };
        let learnt = Learnt { capacity: list("16Gi"), allocatable: list("15Gi") };
        assert_eq!(before.noted(&scalables[0], &mirror), None, "nothing is known");
        before.learn(&scalables[0], Made::of(&scalables[0], &mirror), learnt.clone());
        before.turned_out_spot(&scalables[0], &mirror);
        let learned = before.noted(&scalables[0], &mirror).expect("a note");
        let class: ClusterAPINodeClass = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "default", "resourceVersion": "1"},
            "status": {"resources": [{"name": scalables[0].id.to_string(), "learned": learned}]},
        }))
        .expect("a NodeClass");
        let after = Lessons::default();
        after.recall(&class);
        assert_eq!(after.learnt(&scalables, &mirror).get(&scalables[0].id), Some(&learnt));
        assert!(after.spot(&scalables, &mirror).contains(&scalables[0].id));
        let source = Made::of(&scalables[0], &mirror);
        assert!(!after.is_fresh(&scalables[0], &source), "a Node that is there is looked at all the same");
        mirror.set_template(to_template, Ok(template(8)));
        assert!(after.learnt(&scalables, &mirror).is_empty() && after.spot(&scalables, &mirror).is_empty());
        let seen = Made::of(&scalables[0], &mirror);
        assert_eq!(
            after.made(&scalables[0], seen, second(9)).1,
            Some(second(9)),
            "older Machines are of another"
        );
        assert_eq!(after.noted(&scalables[0], &mirror), None);
    }
}
