//! What all parts of the provider share: the management cluster, NodeClaims and NodeClasses, what each NodeClass offers at the
//! moment, and how the core is woken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::{LaunchWaker, ProviderError};
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::error::NotYet;
use karpenter_runtime::events::Recorder;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use karpenter_runtime::work_queue::WorkQueue;
use tokio::time::Instant;

use super::backoff::{Backoff, Shape};
use super::census::Census;
use super::holds::{Hold, HoldKind};
use super::journeys::Journeys;
use super::learning::Lessons;
use super::ledger::ClaimFacts;
use super::node_claims::NodeClaims;
use super::offers::{self, Claims, Market, Offers, takes_part};
use super::pace::Pace;
use super::pauses::Pauses;
use super::reverts::Reverts;
use super::set_aside::SetAside;
use super::templates;
use crate::client::hub::{Hub, HubError};
use crate::client::machine::Machine;
use crate::client::mirror::Mirror;
use crate::client::prices::Fetch;
use crate::client::scalable::{Scalable, ScalableKey, ScalableKind};
use crate::client::settings::Settings;
use crate::metrics::Metrics;
use crate::names;
use crate::nodeclass::ClusterAPINodeClass;

pub(crate) struct Fleet {
    pub(crate) hub: Arc<Hub>,
    /// What it has, as last seen.
    pub(crate) mirror: Mirror,
    /// The workload cluster's NodeClaims.
    pub(crate) node_claims: NodeClaims,
    /// The workload cluster's NodeClasses.
    pub(crate) node_classes: Store<ClusterAPINodeClass>,
    pub(crate) settings: Settings,
    /// What failed of late.
    pub(crate) backoff: Backoff,
    /// Who sets replicas that are ours to set.
    pub(crate) reverts: Reverts,
    /// How fast nodes may be launched.
    pub(crate) pace: Pace,
    /// What has been learnt.
    pub(crate) lessons: Lessons,
    /// What was seen of each NodeClaim.
    pub(crate) journeys: Journeys,
    /// Machines that may not be written to.
    pub(crate) set_aside: SetAside,
    /// The workload cluster, by the uid of its namespace kube-system.
    pub(crate) owner: String,
    pub(crate) clock: SharedClock,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Metrics,
    /// Asks endpoints for prices.
    pub(crate) fetch: Fetch,
    /// All Machines, as the server has them.
    pub(crate) census: Census,
    /// Whether the Cluster was paused when the server last said so, and when that was.
    pauses: Pauses,
    pub(crate) queue: OnceLock<WorkQueue<ScalableKey>>,
    pub(crate) waker: OnceLock<LaunchWaker>,
    started: Instant,
    state: Mutex<State>,
}

/// How long after the start who asks is kept waiting for the first lists rather than turned away.
const STARTING: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    /// When launches arrived at a resource since its last look: first and last.
    arrivals: BTreeMap<ScalableKey, (Instant, Instant)>,
    /// What was refused of the last that was to be written to a resource or its Machines.
    forbidden: BTreeMap<ScalableKey, String>,
    /// When a Machine of a resource was last seen for the first time.
    births: BTreeMap<ScalableKey, Instant>,
    catalogs: BTreeMap<String, (CatalogVersion, Arc<Offers>)>,
}

/// What offers were worked out from: they hold for as long as all of it is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CatalogVersion {
    node_class: Option<String>,
    mirror: u64,
    failures: (u64, usize),
    reverts: (u64, usize),
    node_claims: u64,
    /// Before all NodeClaims are seen it is not known what runs.
    knows_node_claims: bool,
    lessons: u64,
    silent: bool,
    set_aside: Vec<String>,
}

impl Fleet {
    #[expect(
        clippy::too_many_arguments,
        reason = "made in one place, from parts that have nothing in common"
    )]
    pub(crate) fn new(
        hub: Arc<Hub>,
        mirror: Mirror,
        node_claims: NodeClaims,
        node_classes: Store<ClusterAPINodeClass>,
        settings: Settings,
        owner: String,
        clock: SharedClock,
        recorder: Recorder,
        metrics: Metrics,
        fetch: Fetch,
    ) -> Self {
        Self {
            hub,
            mirror,
            node_claims,
            node_classes,
            settings,
            backoff: Backoff::default(),
            reverts: Reverts::default(),
            pace: Pace::default(),
            lessons: Lessons::default(),
            journeys: Journeys::default(),
            set_aside: SetAside::default(),
            owner,
            clock,
            recorder,
            metrics,
            fetch,
            census: Census::default(),
            pauses: Pauses::default(),
            queue: OnceLock::new(),
            waker: OnceLock::new(),
            started: Instant::now(),
            state: Mutex::default(),
        }
    }

    /// Whether everything has been seen once.
    pub(crate) fn is_synced(&self) -> bool {
        self.mirror.is_synced() && self.node_claims.store().is_synced() && self.node_classes.is_synced()
    }

    /// That everything has been seen once, or why nothing can be said yet. Right after the start that is worth waiting for.
    pub(crate) async fn ready(&self) -> Result<(), ProviderError> {
        let seen = async {
            self.mirror.wait_synced().await;
            self.node_claims.store().wait_synced().await;
            self.node_classes.wait_synced().await;
        };
        if self.is_synced() || tokio::time::timeout_at(self.started + STARTING, seen).await.is_ok() {
            return Ok(());
        }
        let why = self.hub.trouble().unwrap_or_else(|| "it has not been listed yet".to_owned());
        let why = format!("the management cluster is not known yet: {why}");
        Err(ProviderError::other(NotYet::new(why)))
    }

    /// Whether the Cluster is paused, which is to be asked before Machines are written to.
    pub(crate) async fn is_paused(&self) -> Result<bool, HubError> {
        match self.mirror.cluster() {
            Some(cluster) if cluster.paused => Ok(true),
            _ => self.pauses.of_cluster(&self.hub).await,
        }
    }

    /// What of a Machine and what it belongs to is paused, in a sentence: as it is seen, or else as the server has it.
    pub(crate) async fn paused_now(&self, machine: &Machine) -> Result<Option<String>, HubError> {
        if let Some(seen) = self.paused(machine) {
            return Ok(Some(seen));
        }
        if self.is_paused().await? {
            return Ok(Some("the Cluster is paused".to_owned()));
        }
        let Some(id) = self.mirror.scalable_of(machine) else { return Ok(None) };
        let paused = self.pauses.of_resource(&self.hub, &id).await?;
        Ok(paused.then(|| format!("{id} is paused")))
    }

    /// What of a Machine and what it belongs to is seen to be paused, in a sentence.
    pub(crate) fn paused(&self, machine: &Machine) -> Option<String> {
        if self.mirror.cluster().is_some_and(|cluster| cluster.paused) {
            return Some("the Cluster is paused".to_owned());
        }
        if machine.is_paused() {
            return Some(format!("Machine {} is paused", machine.key));
        }
        let scalable = self.mirror.scalable_of(machine).and_then(|id| self.mirror.scalable(&id))?;
        let hold = self.hold(&scalable).filter(|hold| hold.kind == HoldKind::NoWrites);
        hold.map(|hold| hold.message)
    }

    /// A NodeClass by name.
    pub(crate) fn node_class(&self, name: &str) -> Option<Arc<ClusterAPINodeClass>> {
        self.node_classes.get(&ObjectKey::cluster(name))
    }

    /// The NodeClass whose rules a resource follows: the first by name that it takes part in.
    pub(crate) fn node_class_of(&self, scalable: &Scalable) -> Option<Arc<ClusterAPINodeClass>> {
        self.node_classes.list().into_iter().find(|class| takes_part(class, scalable))
    }

    /// Whether launches of a resource wait for their turn.
    pub(crate) fn is_limited(&self, scalable: &Scalable) -> bool {
        self.node_class_of(scalable).is_some_and(|class| class.spec().launch_limits.is_some())
    }

    /// What holds a resource.
    pub(crate) fn hold(&self, scalable: &Scalable) -> Option<Hold> {
        let launches_paused = scalable.rollout_paused
            && self.node_class_of(scalable).is_some_and(|class| class.launches_while_rollout_paused());
        let hold = offers::hold(&self.mirror, scalable, launches_paused);
        let paused = || self.reverts.pause(&scalable.id).and_then(|pause| pause.hold());
        match hold {
            Some(hold) if hold.kind != HoldKind::Waiting => Some(hold),
            hold => paused().or(hold),
        }
    }

    /// What Machines of their own are made from: a resource, or what a NodeClass names.
    pub(crate) fn blueprint(&self, id: &ScalableKey) -> Option<Arc<Scalable>> {
        if id.kind != ScalableKind::MachineTemplate {
            return self.mirror.scalable(id);
        }
        let named = |class: Arc<ClusterAPINodeClass>| templates::blueprints(&class, &self.mirror);
        self.node_classes.list().into_iter().flat_map(named).find(|blueprint| blueprint.id == *id)
    }

    /// The Machines of a resource, as last seen.
    pub(crate) fn machines_of(&self, id: &ScalableKey) -> Vec<Machine> {
        offers::machines_of(&self.mirror, id)
    }

    /// The NodeClaims that concern a resource: those that target it, and those that are bound to its Machines.
    pub(crate) fn claims_on(&self, id: &ScalableKey, machines: &[Machine]) -> Vec<ClaimFacts> {
        let mut claims = self.node_claims.targeting(id);
        let known: BTreeSet<String> = claims.iter().map(|claim| claim.uid.clone()).collect();
        let bound = self.bound_to(machines, false);
        claims.extend(bound.filter(|claim| !known.contains(&claim.uid)));
        claims
    }

    /// The NodeClaims on their way out that are bound to these Machines.
    pub(crate) fn ending_on(&self, machines: &[Machine]) -> Vec<ClaimFacts> {
        self.bound_to(machines, true).collect()
    }

    fn bound_to(&self, machines: &[Machine], ends: bool) -> impl Iterator<Item = ClaimFacts> {
        let bound = machines.iter().flat_map(|machine| {
            let mut bound = self.node_claims.bound_to(&machine.key);
            // As the Go provider leaves one that it claimed.
            if machine.claim().is_none() && machine.labels.contains_key(names::MEMBER) {
                bound.extend(self.node_claims.launched_as(machine));
            }
            bound
        });
        bound.filter(move |claim| claim.ends == ends).map(|claim| claim.facts)
    }

    /// What a NodeClass offers at the moment.
    pub(crate) fn offers(&self, class: &ClusterAPINodeClass) -> Arc<Offers> {
        self.lessons.recall(class);
        let silent = self.hub.silent_for().is_none_or(|silent| silent > self.settings.max_age);
        let version = CatalogVersion {
            node_class: class.metadata.resource_version.clone(),
            mirror: self.mirror.version(),
            failures: self.backoff.version(),
            reverts: self.reverts.version(),
            node_claims: self.node_claims.version(),
            knows_node_claims: self.node_claims.store().is_synced(),
            lessons: self.lessons.version(),
            silent,
            set_aside: self.set_aside.version(),
        };
        if let Some((known, offers)) = self.state().catalogs.get(class.name())
            && *known == version
        {
            return Arc::clone(offers);
        }
        // Machines of their own are no replicas.
        let paused = |id: &ScalableKey| {
            let hold = self.reverts.pause(id).filter(|_| !class.makes_machines())?.hold()?;
            Some(format!("{}: {}", hold.reason, hold.message))
        };
        let members = offers::members(class, &self.mirror);
        let mut spot = self.node_claims.spot_resources();
        spot.extend(self.lessons.spot(&members, &self.mirror));
        let market = Market {
            mirror: &self.mirror,
            settings: &self.settings,
            learnt: self.lessons.learnt(&members, &self.mirror),
            spot,
            carried: self.node_claims.carried(class.name()),
            told: self.lessons.told(class),
            silent,
            room: &|scalable| self.room(scalable),
            running: &|id| self.node_claims.running(id),
            failed: &|id, failure_domain| paused(id).or_else(|| self.why_unavailable(id, failure_domain)),
        };
        let mut offers = market.offers(class);
        // A template that a NodeClass no longer names or selects is one whose nodes are to be replaced.
        let stays =
            |id: &ScalableKey| !class.has_templates() || offers.members.iter().any(|one| one.id == *id);
        // A list with nothing in it tells the core nothing, which is best for what cannot be told.
        if !offers.catalog.types.is_empty() || !self.node_claims.has_unnamed(class.name()) {
            offers.kept = self.node_claims.kept(class.name(), stays);
        }
        let offers = Arc::new(offers);
        self.state().catalogs.insert(class.name().to_owned(), (version, Arc::clone(&offers)));
        offers
    }

    /// A launch from a resource failed: others go elsewhere for a while.
    pub(crate) fn failed(&self, id: &ScalableKey, failure_domain: Option<&str>, why: &str) {
        self.backoff.failed(id, failure_domain, self.shape(id), why);
    }

    /// No Machine comes of a resource: others go elsewhere until one does, or for a while.
    pub(crate) fn nothing_came(&self, id: &ScalableKey, why: &str) {
        self.backoff.nothing_came(id, self.shape(id), why);
    }

    /// Why launches from a resource are not tried, if they failed of late.
    pub(crate) fn why_unavailable(&self, id: &ScalableKey, failure_domain: Option<&str>) -> Option<String> {
        self.backoff.why(id, failure_domain, || self.shape(id))
    }

    /// What a resource is at the moment, if it is in sight.
    fn shape(&self, id: &ScalableKey) -> Option<Shape> {
        let scalable = self.blueprint(id)?;
        let template = scalable.infrastructure.as_ref().and_then(|reference| self.mirror.template(reference));
        Some(Shape::of(&scalable, template.as_deref()))
    }

    /// How many more nodes a resource may give; `None` is any number.
    pub(crate) fn room(&self, scalable: &Scalable) -> Option<usize> {
        let machines = self.machines_of(&scalable.id);
        let mut live = self.claims_on(&scalable.id, &machines);
        live.extend(self.node_claims.reserved(&scalable.id));
        let claims = Claims { live, ending: self.ending_on(&machines) };
        let class = self.node_class_of(scalable);
        let set_aside = self.set_aside.of(&scalable.id);
        offers::room(&self.mirror, scalable, &machines, (&claims, &set_aside), &self.owner, class.as_deref())
    }

    /// Has a resource looked at soon.
    pub(crate) fn poke(&self, id: &ScalableKey) {
        if let Some(queue) = self.queue.get() {
            queue.add(id.clone());
        }
    }

    /// A launch has arrived at a resource: it is looked at when the window closes.
    pub(crate) fn arrive(&self, id: &ScalableKey) {
        let now = Instant::now();
        let mut state = self.state();
        state.arrivals.entry(id.clone()).and_modify(|(_, last)| *last = now).or_insert((now, now));
        drop(state);
        if let Some(queue) = self.queue.get() {
            queue.add_after(id.clone(), self.settings.window.0);
        }
    }

    /// How much longer the window of a resource stays open; closing it forgets the arrivals.
    pub(crate) fn window(&self, id: &ScalableKey) -> Option<Duration> {
        let (idle, longest) = self.settings.window;
        let mut state = self.state();
        let (first, last) = *state.arrivals.get(id)?;
        let now = Instant::now();
        let closes = (last + idle).min(first + longest);
        if closes > now {
            return Some(closes - now);
        }
        state.arrivals.remove(id);
        None
    }

    /// Has the core ask again for a NodeClaim.
    pub(crate) fn wake(&self, node_claim: &str) {
        if let Some(waker) = self.waker.get() {
            waker.wake(ObjectKey::cluster(node_claim));
        }
    }

    /// A NodeClaim gets nothing of this resource: the reason in one word, and in a sentence.
    pub(crate) fn refuse(&self, id: &ScalableKey, uid: &str, reason: &str, why: String) {
        if self.journeys.refuse(uid, why) {
            self.metrics.launch_failures.inc(&[&id.to_string(), reason]);
        }
    }

    /// What was to be written to a resource or its Machines was refused, or was not.
    pub(crate) fn note_written(&self, id: &ScalableKey, refused: Option<String>) {
        let mut state = self.state();
        match refused {
            Some(why) => state.forbidden.insert(id.clone(), why),
            None => state.forbidden.remove(id),
        };
    }

    /// What was refused of the last that was to be written to a resource or its Machines.
    pub(crate) fn forbidden(&self, id: &ScalableKey) -> Option<String> {
        self.state().forbidden.get(id).cloned()
    }

    /// A Machine of this resource has appeared.
    pub(crate) fn born(&self, id: ScalableKey) {
        self.backoff.came(&id);
        self.state().births.insert(id, Instant::now());
    }

    /// How long ago a Machine of this resource last appeared, if one has. While they do, who has none yet waits in a queue.
    pub(crate) fn since_birth(&self, id: &ScalableKey) -> Option<Duration> {
        self.state().births.get(id).map(Instant::elapsed)
    }

    /// How long ago we began.
    pub(crate) fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    /// A NodeClaim is over.
    pub(crate) fn forget(&self, claim: &NodeClaim) {
        if let Some(uid) = claim.metadata.uid.as_deref() {
            self.journeys.forget(uid);
            self.pace.forget(uid);
            self.node_claims.forget(uid);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
