//! What the controllers of MachineDeployments and MachineSets go by: as real ones, a cache that each kind's own watch fills. Where
//! watches lag, news of one kind may overtake that of another, and never that of its own: a MachineSet may hear that it is to shrink
//! before it hears which Machine is marked.
//!
//! Without a lag it is what there is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_runtime::object_key::ObjectKey;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::kinds::Kind;
use crate::actor::Source;
use crate::chance::{Chance, Span};
use crate::cluster::Cluster;
use crate::objects::{Change, Edit, Machine, Objects};

/// The longest that a watch lags, as a seed may draw it.
const LONGEST: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(2)];
/// The kinds whose watches lag.
const LAGGING: [Kind; 3] = [Kind::MachineDeployment, Kind::MachineSet, Kind::Machine];
/// How often a controller that has yet to see what it wrote looks for it.
pub(super) const UNSEEN_AGAIN: Duration = Duration::from_millis(100);

/// How long each kind's watch lags at most.
#[derive(Clone, Debug, Default)]
pub struct Lag(BTreeMap<Kind, Duration>);

impl Lag {
    /// Not at all.
    pub fn none() -> Self {
        Self::default()
    }

    /// As the world's seed has it.
    pub fn drawn(cluster: &Cluster) -> Self {
        let mut chance = Chance::new(cluster.entropy(), "informer lag");
        Self(LAGGING.map(|kind| (kind, chance.pick(&LONGEST).copied().unwrap_or_default())).into())
    }

    /// With one kind's watch behind by up to so long; Machines, MachineSets and MachineDeployments have one.
    #[must_use]
    pub fn with(mut self, kind: Kind, most: Duration) -> Self {
        self.0.insert(kind, most);
        self
    }

    fn of(&self, kind: Kind) -> Duration {
        self.0.get(&kind).copied().unwrap_or_default()
    }

    fn is_none(&self) -> bool {
        self.0.values().all(Duration::is_zero)
    }
}

/// The cache. Clones are the same.
#[derive(Clone)]
pub(super) struct Informers {
    cluster: Cluster,
    /// What has come through, where watches lag.
    behind: Option<Arc<Mutex<Behind>>>,
}

#[derive(Default)]
struct Behind {
    objects: Objects,
    listeners: Vec<UnboundedSender<Arc<Change>>>,
}

impl Informers {
    /// The cache, and the task that fills it where watches lag.
    pub(super) fn begin(cluster: &Cluster, lag: &Lag) -> (Self, Option<JoinHandle<()>>) {
        if lag.is_none() {
            return (Self { cluster: cluster.clone(), behind: None }, None);
        }
        for kind in LAGGING.into_iter().filter(|kind| !lag.of(*kind).is_zero()) {
            let deed = format!("the watch of {}s lags by up to {:?}", kind.as_str(), lag.of(kind));
            cluster.record(&"informers".into(), deed, "drawn".to_owned(), &[]);
        }
        let behind = Arc::new(Mutex::new(Behind::default()));
        let news = cluster.subscribe();
        let task = tokio::spawn(fill(cluster.clone(), lag.clone(), Arc::clone(&behind), news));
        (Self { cluster: cluster.clone(), behind: Some(behind) }, Some(task))
    }

    /// What there is, whatever has come through.
    pub(super) fn truth(&self) -> &Cluster {
        &self.cluster
    }
}

impl Source for Informers {
    fn subscribe(&self) -> UnboundedReceiver<Arc<Change>> {
        let Some(behind) = &self.behind else { return self.cluster.subscribe() };
        let (listener, news) = unbounded_channel();
        let mut behind = lock(behind);
        for change in behind.objects.everything() {
            // The other end is in our hands.
            let _ = listener.send(Arc::new(change));
        }
        behind.listeners.push(listener);
        news
    }

    fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        match &self.behind {
            None => self.cluster.read(look),
            Some(behind) => look(&lock(behind).objects),
        }
    }
}

fn lock(behind: &Mutex<Behind>) -> MutexGuard<'_, Behind> {
    behind.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets news through, each kind's when its watch has it.
async fn fill(
    cluster: Cluster,
    lag: Lag,
    behind: Arc<Mutex<Behind>>,
    mut news: UnboundedReceiver<Arc<Change>>,
) {
    let mut chance = Chance::new(cluster.entropy(), "informers");
    let mut held: BTreeMap<Kind, VecDeque<(Instant, Arc<Change>)>> = BTreeMap::new();
    loop {
        let due = held.values().filter_map(|queue| queue.front().map(|(at, _)| *at)).min();
        let change = match due {
            None => news.recv().await,
            Some(at) => tokio::select! {
                biased;
                change = news.recv() => change,
                () = tokio::time::sleep_until(at) => {
                    for queue in held.values_mut() {
                        while queue.front().is_some_and(|(at, _)| *at <= Instant::now()) {
                            if let Some((_, change)) = queue.pop_front() {
                                let_through(&behind, &change);
                            }
                        }
                    }
                    continue;
                }
            },
        };
        let Some(change) = change else { return };
        match kind_of(&change) {
            Some(kind) if !lag.of(kind).is_zero() => {
                let delay = chance.duration(&Span { least: Duration::ZERO, most: lag.of(kind) });
                let queue = held.entry(kind).or_default();
                // News of one kind stays in order.
                let last = queue.back().map(|(at, _)| *at);
                let at = last.into_iter().fold(Instant::now() + delay, Instant::max);
                queue.push_back((at, change));
            }
            _ => let_through(&behind, &change),
        }
    }
}

fn let_through(behind: &Mutex<Behind>, change: &Arc<Change>) {
    let mut behind = lock(behind);
    let objects = &mut behind.objects;
    match &**change {
        Change::CapiCluster(edit) => put(&mut objects.capi_clusters, edit),
        Change::MachineDeployment(edit) => put(&mut objects.machine_deployments, edit),
        Change::MachineSet(edit) => put(&mut objects.machine_sets, edit),
        Change::Machine(edit) => put(&mut objects.machines, edit),
        Change::SimMachineTemplate(edit) => put(&mut objects.sim_machine_templates, edit),
        Change::SimConfigTemplate(edit) => put(&mut objects.sim_config_templates, edit),
        Change::SimControlPlane(edit) => put(&mut objects.sim_control_planes, edit),
        _ => return,
    }
    behind.listeners.retain(|listener| listener.send(Arc::clone(change)).is_ok());
}

fn put<K>(objects: &mut BTreeMap<ObjectKey, Arc<K>>, edit: &Edit<K>) {
    match &edit.new {
        Some(new) => drop(objects.insert(edit.key.clone(), Arc::clone(new))),
        None => drop(objects.remove(&edit.key)),
    }
}

fn kind_of(change: &Change) -> Option<Kind> {
    match change {
        Change::MachineDeployment(_) => Some(Kind::MachineDeployment),
        Change::MachineSet(_) => Some(Kind::MachineSet),
        Change::Machine(_) => Some(Kind::Machine),
        _ => None,
    }
}

/// What a controller wrote and has yet to see. Real ones wait until their cache shows it before they look at the object again, so they
/// make nothing twice.
#[derive(Default)]
pub(super) struct Unseen(BTreeMap<ObjectKey, Vec<(Kind, ObjectKey, u64)>>);

impl Unseen {
    /// While `owner` was looked at, this was written.
    pub(super) fn expect(
        &mut self,
        informers: &Informers,
        owner: &ObjectKey,
        kind: Kind,
        written: ObjectKey,
    ) {
        let version = informers.truth().read(|objects| version(objects, kind, &written));
        // It may be gone already.
        if let (Some(version), true) = (version, informers.behind.is_some()) {
            self.0.entry(owner.clone()).or_default().push((kind, written, version));
        }
    }

    /// Whether there is yet something to come.
    pub(super) fn is_awaited(&mut self, informers: &Informers, owner: &ObjectKey) -> bool {
        let Some(expected) = self.0.get_mut(owner) else { return false };
        expected.retain(|(kind, key, written)| {
            let seen = informers.read(|objects| version(objects, *kind, key));
            let is_there = informers.truth().read(|objects| version(objects, *kind, key).is_some());
            is_there && seen.is_none_or(|seen| seen < *written)
        });
        let awaited = !expected.is_empty();
        if !awaited {
            self.0.remove(owner);
        }
        awaited
    }
}

fn version(objects: &Objects, kind: Kind, key: &ObjectKey) -> Option<u64> {
    let of: &BTreeMap<ObjectKey, Arc<Machine>> = match kind {
        Kind::MachineDeployment => &objects.machine_deployments,
        Kind::MachineSet => &objects.machine_sets,
        _ => &objects.machines,
    };
    of.get(key)?.metadata.resource_version.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster_api::kinds::{patch, text};
    use crate::cluster_api::{self, ClusterApi};
    use crate::world::{World, WorldOptions, in_virtual_time};

    const SECOND: Duration = Duration::from_secs(1);

    /// What became of a MachineDeployment of three of which one is marked, and then two are wanted: the marked, and the deleted ones.
    async fn shrink(seed: u64, lag: &Lag) -> (String, Vec<String>) {
        let world = World::new(WorldOptions { seed, ..WorldOptions::default() }).await.expect("a world");
        let capi = ClusterApi::install_behind(&world, lag).await.expect("Cluster API");
        let mut deployment = cluster_api::machine_deployment("fleet", "c", "m", "t", &[]);
        deployment["spec"]["replicas"] = 3.into();
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}}),
            cluster_api::cluster("fleet", "c"),
            cluster_api::template("fleet", "t", json!({"provisionSeconds": 1, "joinSeconds": 1})),
            deployment,
        ] {
            world.create(object).await.expect("an object");
        }
        let all_run = |objects: &Objects| {
            let run = |machine: &&Arc<Machine>| !text(machine, "/status/nodeRef/name").is_empty();
            objects.machines.values().filter(run).count() == 3
        };
        world.wait_until("all run", 120 * SECOND, all_run).await.expect("three nodes");
        world.run_for(60 * SECOND).await.expect("no broken rule");
        assert_eq!(capi.cluster().read(|objects| objects.machines.len()), 3, "none was made twice");
        let names = || capi.cluster().read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
        // By default whichever a draw says goes: none that is not marked may.
        let before = names();
        let client = world.cluster().client("user");
        let marked = before[1].clone();
        let mark = json!({"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": ""}}});
        patch(&client, Kind::Machine, &marked, mark).await.expect("a mark");
        let deployment = ObjectKey::namespaced("fleet", "m");
        let fewer = json!({"spec": {"replicas": 2, "deletion": {"order": "Oldest"}}});
        patch(&client, Kind::MachineDeployment, &deployment, fewer).await.expect("fewer");
        world.run_for(60 * SECOND).await.expect("no broken rule");
        let left = names();
        let gone = before.iter().filter(|key| !left.contains(key)).map(|key| key.name.to_string());
        (marked.name.to_string(), gone.collect())
    }

    #[test]
    fn a_machine_set_that_has_not_heard_of_a_mark_may_delete_another_machine() {
        in_virtual_time(async {
            let (marked, gone) = shrink(0, &Lag::none()).await;
            assert_eq!(gone, [marked]);
            let (marked, gone) = shrink(0, &Lag::none().with(Kind::MachineSet, 2 * SECOND)).await;
            assert_eq!(gone, [marked], "it hears of the mark first");
            // Some marks come late, and a choice without them is right by luck one time in three.
            let mut wrong = 0;
            for seed in 0..12 {
                let (marked, gone) = shrink(seed, &Lag::none().with(Kind::Machine, 2 * SECOND)).await;
                assert_eq!(gone.len(), 1, "it deletes one, even where it sees that late");
                wrong += usize::from(gone != [marked]);
            }
            assert!(wrong > 0, "no mark came late");
        })
        .expect("a runtime");
    }

    #[test]
    fn news_of_one_kind_stays_in_order_and_comes_within_its_lag() {
        in_virtual_time(async {
            let world = World::new(WorldOptions::default()).await.expect("a world");
            for definition in cluster_api::definitions(&["v1beta2"]) {
                world.create(definition).await.expect("a definition");
            }
            let lag = Lag::none().with(Kind::Machine, 2 * SECOND);
            let (informers, task) = Informers::begin(world.cluster(), &lag);
            let mut news = informers.subscribe();
            for object in [
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}}),
                json!({
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                    "metadata": {"name": "m", "namespace": "fleet"}, "spec": {"clusterName": "c"},
                }),
            ] {
                world.create(object).await.expect("an object");
            }
            let key = ObjectKey::namespaced("fleet", "m");
            let client = world.cluster().client("user");
            for round in 0..20 {
                let change = json!({"metadata": {"annotations": {"round": round.to_string()}}});
                patch(&client, Kind::Machine, &key, change).await.expect("a patch");
            }
            assert!(informers.read(|objects| objects.machines.is_empty()), "it is yet to come through");
            world.run_for(2 * SECOND + Duration::from_millis(10)).await.expect("no broken rule");
            let mut versions = Vec::new();
            while let Ok(change) = news.try_recv() {
                if let Change::Machine(edit) = &*change {
                    let version = edit.new.as_ref().and_then(|new| new.metadata.resource_version.clone());
                    versions.push(version.and_then(|version| version.parse::<u64>().ok()));
                }
            }
            assert_eq!(versions.len(), 21);
            assert!(versions.is_sorted());
            if let Some(task) = task {
                task.abort();
            }
        })
        .expect("a runtime");
    }
}
