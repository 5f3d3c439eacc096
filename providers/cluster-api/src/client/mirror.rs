//! What the management cluster has of our Cluster, as last seen: fed by watches, read by everyone, written by nobody else.
//!
//! It is for choosing, for telling and for waking up. What is destroyed or created is decided on a fresh read (see
//! [`crate::instances::actor`]), because a mirror may lag.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use karpenter_runtime::object_key::ObjectKey;
use kube::api::DynamicObject;
use tokio::sync::Notify;

use super::cluster::Cluster;
use super::control_plane::ControlPlane;
use super::fields::{Malformed, Reference};
use super::machine::Machine;
use super::scalable::{Scalable, ScalableKey, ScalableKind};
use super::template::Template;
use crate::names;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watched {
    Cluster,
    MachineDeployment,
    MachineSet,
    Machine,
}

impl Watched {
    pub(crate) const ALL: [Self; 4] =
        [Self::Cluster, Self::MachineDeployment, Self::MachineSet, Self::Machine];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineSet => "MachineSet",
            Self::Machine => "Machine",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum News {
    /// A Machine: as it was, as it is.
    Machine(Option<Arc<Machine>>, Option<Arc<Machine>>),
    /// A MachineDeployment or MachineSet.
    Scalable(ScalableKey),
    Cluster,
}

type Listener = Box<dyn Fn(&News) + Send + Sync>;

/// See the module. Clones are handles to the same mirror.
#[derive(Clone)]
pub(crate) struct Mirror {
    shared: Arc<Shared>,
}

struct Shared {
    kept: RwLock<Kept>,
    synced: AtomicBool,
    /// Wakes who waits for `synced`, in the order of their coming, which a watch channel would not keep.
    became_synced: Notify,
    listeners: Mutex<Vec<Listener>>,
    /// NodeClasses want something else.
    wanted_changed: Notify,
}

/// What NodeClasses want to be looked at besides what is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Infrastructure templates that they name.
    pub(crate) templates: BTreeSet<Reference>,
    /// Kinds of infrastructure templates that they select from, by group and kind.
    pub(crate) kinds: BTreeSet<(String, String)>,
    /// Our Cluster's control plane.
    pub(crate) control_plane: bool,
}

/// The labels of templates, by name.
pub(crate) type TemplateLabels = BTreeMap<String, BTreeMap<String, String>>;

/// All templates of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Which there were when they could last be listed; `None` if they never could.
    pub(crate) templates: Option<TemplateLabels>,
    /// Why they cannot be listed.
    pub(crate) trouble: Option<String>,
}

#[derive(Default)]
struct Kept {
    version: u64,
    cluster: Option<Arc<Cluster>>,
    /// Where our Cluster's API server was when that was last seen.
    endpoint: Option<String>,
    machines: BTreeMap<ObjectKey, Arc<Machine>>,
    /// Machines by the uid of the NodeClaim they were claimed for.
    claimed: BTreeMap<String, BTreeSet<ObjectKey>>,
    scalables: BTreeMap<ScalableKey, Arc<Scalable>>,
    broken: BTreeMap<(Watched, ObjectKey), Malformed>,
    templates: BTreeMap<Reference, Arc<Result<Template, String>>>,
    listings: BTreeMap<(String, String), Arc<Listing>>,
    control_plane: Option<Arc<Result<ControlPlane, String>>>,
    wanted: Wanted,
}

impl Default for Mirror {
    fn default() -> Self {
        let shared = Shared {
            kept: RwLock::default(),
            synced: AtomicBool::new(false),
            became_synced: Notify::new(),
            listeners: Mutex::default(),
            wanted_changed: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl Mirror {
    /// Counts changes: what was worked out at one version holds until the next.
    pub(crate) fn version(&self) -> u64 {
        self.read().version
    }

    pub(crate) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.read().cluster.clone()
    }

    /// Where our Cluster's API server is, also if the Cluster is gone from here: it may have been moved to another management cluster.
    pub(crate) fn endpoint(&self) -> Option<String> {
        self.read().endpoint.clone()
    }

    /// All Machines, by namespace and name.
    pub(crate) fn machines(&self) -> Vec<Arc<Machine>> {
        self.read().machines.values().cloned().collect()
    }

    pub(crate) fn machine(&self, key: &ObjectKey) -> Option<Arc<Machine>> {
        self.read().machines.get(key).cloned()
    }

    /// The Machine that was claimed for a NodeClaim. Of two, which must not be, the older one.
    pub(crate) fn machine_of(&self, claim_uid: &str) -> Option<Arc<Machine>> {
        let kept = self.read();
        let keys = kept.claimed.get(claim_uid)?;
        let machines = keys.iter().filter_map(|key| kept.machines.get(key));
        machines.min_by_key(|machine| (machine.deleting, machine.created, machine.key.clone())).cloned()
    }

    /// The Machine with this id.
    pub(crate) fn machine_by_provider_id(&self, provider_id: &str) -> Option<Arc<Machine>> {
        let kept = self.read();
        kept.machines.values().find(|m| m.provider_id.as_deref() == Some(provider_id)).cloned()
    }

    /// A MachineDeployment or MachineSet.
    pub(crate) fn scalable(&self, id: &ScalableKey) -> Option<Arc<Scalable>> {
        self.read().scalables.get(id).cloned()
    }

    /// All MachineDeployments, and all MachineSets that no MachineDeployment controls.
    pub(crate) fn scalables(&self) -> Vec<Arc<Scalable>> {
        let kept = self.read();
        kept.scalables.values().filter(|scalable| scalable.controlled_by.is_none()).cloned().collect()
    }

    pub(crate) fn sets(&self) -> Vec<Arc<Scalable>> {
        let kept = self.read();
        kept.scalables.values().filter(|set| set.id.kind == ScalableKind::MachineSet).cloned().collect()
    }

    /// The MachineSets of a MachineDeployment.
    pub(crate) fn sets_of(&self, id: &ScalableKey) -> Vec<Arc<Scalable>> {
        let kept = self.read();
        let name = names::label_value(&id.key.name);
        let theirs = |set: &&Arc<Scalable>| {
            id.kind == ScalableKind::MachineDeployment
                && set.id.kind == ScalableKind::MachineSet
                && set.id.key.namespace == id.key.namespace
                && set.labels.get(names::DEPLOYMENT_NAME).map(String::as_str) == Some(&*name)
        };
        kept.scalables.values().filter(theirs).cloned().collect()
    }

    /// What a Machine belongs to.
    pub(crate) fn scalable_of(&self, machine: &Machine) -> Option<ScalableKey> {
        let id = |kind: ScalableKind| {
            let name = machine.labels.get(kind.machine_label()?)?;
            if names::is_hash(name) {
                let kept = self.read();
                let named = |id: &&ScalableKey| {
                    id.kind == kind
                        && id.key.namespace == machine.key.namespace
                        && *names::label_value(&id.key.name) == **name
                };
                return kept.scalables.keys().find(named).cloned();
            }
            let key = ObjectKey::namespaced(machine.key.namespace.clone(), name.as_str());
            Some(ScalableKey { kind, key })
        };
        id(ScalableKind::MachineDeployment).or_else(|| id(ScalableKind::MachineSet))
    }

    /// An infrastructure template, or why it cannot be read; `None` if nobody has looked yet.
    pub(crate) fn template(&self, reference: &Reference) -> Option<Arc<Result<Template, String>>> {
        self.read().templates.get(reference).cloned()
    }

    /// The infrastructure templates that are referred to, by resources and by NodeClasses.
    pub(crate) fn template_references(&self) -> BTreeSet<Reference> {
        let mut all: BTreeSet<Reference> =
            self.scalables().iter().filter_map(|scalable| scalable.infrastructure.clone()).collect();
        all.extend(self.read().wanted.templates.iter().cloned());
        all
    }

    /// All infrastructure templates of a kind; `None` if nobody has looked yet.
    pub(crate) fn listing(&self, group: &str, kind: &str) -> Option<Arc<Listing>> {
        self.read().listings.get(&(group.to_owned(), kind.to_owned())).cloned()
    }

    /// The kinds of infrastructure templates that NodeClasses select from, by group and kind.
    pub(crate) fn wanted_kinds(&self) -> BTreeSet<(String, String)> {
        self.read().wanted.kinds.clone()
    }

    /// Our Cluster's control plane, or why it cannot be read; `None` if there is none, or nobody has looked.
    pub(crate) fn control_plane(&self) -> Option<Arc<Result<ControlPlane, String>>> {
        self.read().control_plane.clone()
    }

    /// The control plane to look at, if anybody wants it.
    pub(crate) fn control_plane_reference(&self) -> Option<Reference> {
        let kept = self.read();
        kept.cluster.as_ref().filter(|_| kept.wanted.control_plane)?.control_plane.clone()
    }

    /// What NodeClasses want to be looked at, from now on.
    pub(crate) fn want(&self, wanted: Wanted) {
        let mut kept = self.write();
        if kept.wanted != wanted {
            kept.wanted = wanted;
            kept.version += 1;
            self.shared.wanted_changed.notify_one();
        }
    }

    /// Waits until NodeClasses want something else.
    pub(crate) async fn wanted_changed(&self) {
        self.shared.wanted_changed.notified().await;
    }

    /// Objects that cannot be read.
    pub(crate) fn broken(&self) -> Vec<Malformed> {
        self.read().broken.values().cloned().collect()
    }

    /// Whether everything has been seen once.
    pub(crate) fn is_synced(&self) -> bool {
        self.shared.synced.load(Ordering::Acquire)
    }

    /// Waits until [`is_synced`](Self::is_synced).
    pub(crate) async fn wait_synced(&self) {
        let became_synced = self.shared.became_synced.notified();
        if !self.is_synced() {
            became_synced.await;
        }
    }

    /// Has `listener` told of every change, in order. It must not wait.
    pub(crate) fn listen(&self, listener: impl Fn(&News) + Send + Sync + 'static) {
        let mut listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push(Box::new(listener));
    }

    /// Takes over an object as it is.
    pub(crate) fn apply(&self, watched: Watched, object: &DynamicObject) {
        let key = ObjectKey::of(object);
        let news = {
            let mut kept = self.write();
            kept.version += 1;
            match kept.take(watched, object) {
                Ok(news) => {
                    kept.broken.remove(&(watched, key));
                    Some(news)
                }
                Err(malformed) => {
                    // What was known of it stays: it may be in use.
                    tracing::warn!(%malformed, "object cannot be read");
                    kept.broken.insert((watched, key), malformed);
                    None
                }
            }
        };
        self.tell(news);
    }

    /// An object is gone.
    pub(crate) fn remove(&self, watched: Watched, key: &ObjectKey) {
        let news = {
            let mut kept = self.write();
            kept.version += 1;
            kept.broken.remove(&(watched, key.clone()));
            kept.forget(watched, key)
        };
        self.tell(news);
    }

    /// Drops everything of a kind but these.
    pub(crate) fn keep_only(&self, watched: Watched, keys: &BTreeSet<ObjectKey>) {
        // Not in the loop's head: what is read there stays locked while it runs, and it writes.
        let known = self.read().keys(watched);
        for key in known.iter().filter(|key| !keys.contains(*key)) {
            self.remove(watched, key);
        }
    }

    /// A template may not be read. What it said when it could be stays: rights come and go, and a node that is what it was bought as must
    /// not drift for that.
    pub(crate) fn refuse_template(&self, reference: Reference, trouble: String) {
        let known = self.template(&reference).is_some_and(|known| known.is_ok());
        if !known {
            self.set_template(reference, Err(trouble));
        }
    }

    /// Takes over a template, or why it cannot be read.
    pub(crate) fn set_template(&self, reference: Reference, template: Result<Template, String>) {
        let mut kept = self.write();
        if kept.templates.get(&reference).is_none_or(|known| **known != template) {
            kept.templates.insert(reference, Arc::new(template));
            kept.version += 1;
        }
    }

    /// Takes over which templates of a kind there are, or why they cannot be listed: then those stay that were there.
    pub(crate) fn set_listing(&self, kind: (String, String), templates: Result<TemplateLabels, String>) {
        let mut kept = self.write();
        let known = kept.listings.get(&kind).map(|known| Listing::clone(known));
        let now = match templates {
            Ok(templates) => Listing { templates: Some(templates), trouble: None },
            Err(trouble) => Listing { trouble: Some(trouble), ..known.clone().unwrap_or_default() },
        };
        if known.as_ref() != Some(&now) {
            kept.listings.insert(kind, Arc::new(now));
            kept.version += 1;
        }
    }

    /// Takes over the control plane, or why it cannot be read.
    pub(crate) fn set_control_plane(&self, found: Option<Result<ControlPlane, String>>) {
        let mut kept = self.write();
        if kept.control_plane.as_deref() != found.as_ref() {
            kept.control_plane = found.map(Arc::new);
            kept.version += 1;
        }
    }

    pub(crate) fn mark_synced(&self) {
        self.shared.synced.store(true, Ordering::Release);
        self.shared.became_synced.notify_waiters();
    }

    fn tell(&self, news: Option<News>) {
        let Some(news) = news else { return };
        let listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in &*listeners {
            listener(&news);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept> {
        self.shared.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Kept> {
        self.shared.kept.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn take(&mut self, watched: Watched, object: &DynamicObject) -> Result<News, Malformed> {
        let kind = match watched {
            Watched::Cluster => {
                let cluster = Cluster::read(object)?;
                if cluster.endpoint.is_some() {
                    self.endpoint.clone_from(&cluster.endpoint);
                }
                self.cluster = Some(Arc::new(cluster));
                return Ok(News::Cluster);
            }
            Watched::Machine => {
                let machine = Arc::new(Machine::read(object)?);
                let old = self.machines.insert(machine.key.clone(), Arc::clone(&machine));
                self.unindex(old.as_deref());
                if let Some(claim) = machine.claim() {
                    self.claimed.entry(claim.uid).or_default().insert(machine.key.clone());
                }
                return Ok(News::Machine(old, Some(machine)));
            }
            Watched::MachineDeployment => ScalableKind::MachineDeployment,
            Watched::MachineSet => ScalableKind::MachineSet,
        };
        let scalable = Scalable::read(kind, object)?;
        let id = scalable.id.clone();
        self.scalables.insert(id.clone(), Arc::new(scalable));
        Ok(News::Scalable(id))
    }

    fn forget(&mut self, watched: Watched, key: &ObjectKey) -> Option<News> {
        let kind = match watched {
            Watched::Cluster => return self.cluster.take().map(|_| News::Cluster),
            Watched::Machine => {
                let old = self.machines.remove(key)?;
                self.unindex(Some(&old));
                return Some(News::Machine(Some(old), None));
            }
            Watched::MachineDeployment => ScalableKind::MachineDeployment,
            Watched::MachineSet => ScalableKind::MachineSet,
        };
        let id = ScalableKey { kind, key: key.clone() };
        self.scalables.remove(&id).map(|_| News::Scalable(id))
    }

    fn unindex(&mut self, machine: Option<&Machine>) {
        let Some((machine, claim)) = machine.and_then(|machine| Some((machine, machine.claim()?))) else {
            return;
        };
        if let Some(keys) = self.claimed.get_mut(&claim.uid) {
            keys.remove(&machine.key);
            if keys.is_empty() {
                self.claimed.remove(&claim.uid);
            }
        }
    }

    fn keys(&self, watched: Watched) -> Vec<ObjectKey> {
        let scalables = |kind| {
            let of_kind = self.scalables.keys().filter(move |id| id.kind == kind);
            of_kind.map(|id| id.key.clone()).collect()
        };
        match watched {
            Watched::Cluster => self.cluster.iter().map(|cluster| cluster.key.clone()).collect(),
            Watched::Machine => self.machines.keys().cloned().collect(),
            Watched::MachineDeployment => scalables(ScalableKind::MachineDeployment),
            Watched::MachineSet => scalables(ScalableKind::MachineSet),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;

    #[test]
    fn what_a_template_said_stays_while_it_may_not_be_read() {
        let mirror = Mirror::default();
        let reference = Reference { kind: "T".to_owned(), name: "t".to_owned(), ..Reference::default() };
        let said = |mirror: &Mirror| mirror.template(&reference).map(|said| said.is_ok());
        mirror.refuse_template(reference.clone(), "you may not".to_owned());
        assert_eq!(said(&mirror), Some(false), "it has said nothing yet");
        let template = Template::read("T", &object(json!({"metadata": {"name": "t"}}))).expect("a template");
        mirror.set_template(reference.clone(), Ok(template));
        let version = mirror.version();
        mirror.refuse_template(reference.clone(), "you may not".to_owned());
        assert_eq!((said(&mirror), mirror.version()), (Some(true), version), "nothing has become of it");
        mirror.set_template(reference.clone(), Err("it is gone".to_owned()));
        assert_eq!(said(&mirror), Some(false));
    }

    #[test]
    fn machine_sets_are_found_by_a_name_too_long_for_a_label() {
        let mirror = Mirror::default();
        let long = "m".repeat(64);
        let set = object(json!({
            "metadata": {
                "name": "set", "namespace": "fleet",
                "labels": {names::DEPLOYMENT_NAME: &*names::label_value(&long)},
            },
            "spec": {"clusterName": "c"},
        }));
        mirror.apply(Watched::MachineSet, &set);
        let id = |name: &str| ScalableKey {
            kind: ScalableKind::MachineDeployment,
            key: ObjectKey::namespaced("fleet", name),
        };
        assert_eq!(mirror.sets_of(&id(&long)).len(), 1);
        assert!(mirror.sets_of(&id("another")).is_empty());
    }

    #[test]
    fn what_is_gone_when_the_version_changes_is_dropped() {
        let mirror = Mirror::default();
        let key = |name: &str| ObjectKey::namespaced("fleet", name);
        for name in ["stays", "gone"] {
            let machine = object(json!({"metadata": {"name": name, "namespace": "fleet"}, "spec": {}}));
            mirror.apply(Watched::Machine, &machine);
        }
        let told: Arc<Mutex<Vec<ObjectKey>>> = Arc::default();
        let telling = Arc::clone(&told);
        mirror.listen(move |news| {
            if let News::Machine(Some(old), None) = news {
                telling.lock().expect("a list").push(old.key.clone());
            }
        });
        mirror.keep_only(Watched::Machine, &BTreeSet::from([key("stays")]));
        let left: Vec<ObjectKey> = mirror.machines().iter().map(|machine| machine.key.clone()).collect();
        assert_eq!((left, told.lock().expect("a list").clone()), (vec![key("stays")], vec![key("gone")]));
    }
}
