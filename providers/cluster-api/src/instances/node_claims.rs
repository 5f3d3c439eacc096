//! The NodeClaims of the workload cluster, as a watch shows them and with what we wrote a moment ago: a target that has just been
//! recorded counts before the watch has told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::{CAPACITY_TYPE, CAPACITY_TYPE_SPOT, INSTANCE_TYPE};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::adoption::EXISTING;
use super::ledger::ClaimFacts;
use crate::client::fields::parse_key;
use crate::client::machine::Machine;
use crate::client::scalable::ScalableKey;
use crate::instancetypes::kept::RunsAs;
use crate::names;
use crate::nodeclass::LaunchMode;

const BY_TARGET: &str = "cluster-api/target";
const BY_MACHINE: &str = "cluster-api/bound-to";
const BY_PROVIDER_ID: &str = "cluster-api/provider-id";

/// For how long what we wrote stands in for what the watch has not told yet.
const RECENT: Duration = Duration::from_secs(60);

/// What a NodeClaim waits for a Machine from, as its annotation says: `[Machine:]namespace/name[@failure-domain]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The scalable resource, or the blueprint of a Machine.
    pub(crate) id: ScalableKey,
    /// Whether a Machine of its own is made.
    pub(crate) standalone: bool,
    pub(crate) failure_domain: Option<String>,
}

impl Target {
    /// Of an offering in this mode.
    pub(crate) fn new(id: ScalableKey, mode: LaunchMode, failure_domain: Option<String>) -> Self {
        let standalone = mode == LaunchMode::Machine;
        // A scaled resource has one place; naming it would say nothing.
        Self { id, standalone, failure_domain: failure_domain.filter(|_| standalone) }
    }

    /// What the annotation of a NodeClaim says.
    pub(crate) fn of(claim: &NodeClaim) -> Option<Self> {
        Self::parse(claim.metadata.annotations.as_ref()?.get(names::TARGET)?)
    }

    /// What [`Display`](fmt::Display) wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (text, failure_domain) = match text.split_once('@') {
            Some((text, domain)) => (text, Some(domain.to_owned())),
            None => (text, None),
        };
        let (text, standalone) = text.strip_prefix("Machine:").map_or((text, false), |text| (text, true));
        Some(Self { id: ScalableKey::from_annotation(text)?, standalone, failure_domain })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.standalone { "Machine:" } else { "" };
        write!(f, "{mode}{}", self.id.to_annotation())?;
        self.failure_domain.as_ref().map_or(Ok(()), |domain| write!(f, "@{domain}"))
    }
}

pub(crate) struct NodeClaims {
    store: Store<NodeClaim>,
    api: Api<NodeClaim>,
    recent: Mutex<BTreeMap<String, Recent>>,
    version: AtomicU64,
}

/// A NodeClaim that is bound to a Machine.
#[derive(Clone, Debug)]
pub(crate) struct BoundClaim {
    pub(crate) facts: ClaimFacts,
    /// Whether it is on its way out: the Machine is its own until it is gone.
    pub(crate) ends: bool,
}

#[derive(Clone, Debug)]
struct Recent {
    target: Target,
    facts: ClaimFacts,
    at: Instant,
    /// Whether the NodeClaim itself says so. Until then nothing is made for it: it would not be known by its end.
    recorded: bool,
}

/// Why a target could not be recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssignError {
    /// The NodeClaim is gone or on its way out.
    #[error("NodeClaim {0} is being deleted or gone")]
    Gone(String),
    /// It could not be written.
    #[error("recording the target of NodeClaim {name}")]
    Write {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl fmt::Debug for NodeClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeClaims").field("store", &self.store).finish_non_exhaustive()
    }
}

impl NodeClaims {
    /// Read from `store`, written through `api`.
    pub(crate) fn new(store: Store<NodeClaim>, api: Api<NodeClaim>) -> Self {
        store.add_index(BY_TARGET, |claim| {
            Target::of(claim).map(|target| target.id.to_annotation()).into_iter().collect()
        });
        store.add_index(BY_MACHINE, |claim| {
            facts(claim).bound_to.map(|machine| machine.to_string()).into_iter().collect()
        });
        store.add_index(BY_PROVIDER_ID, |claim| {
            claim.status.as_ref().and_then(|status| status.provider_id.clone()).into_iter().collect()
        });
        Self { store, api, recent: Mutex::default(), version: AtomicU64::new(0) }
    }

    /// What the watch shows.
    pub(crate) fn store(&self) -> &Store<NodeClaim> {
        &self.store
    }

    /// What a NodeClaim waits for, whichever of what we were given, what we wrote and what the watch shows knows it.
    pub(crate) fn target(&self, claim: &NodeClaim) -> Option<Target> {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let written =
            || self.lock().get(uid).filter(|recent| recent.recorded).map(|recent| recent.target.clone());
        Target::of(claim).or_else(written).or_else(|| {
            let seen = self.store.get(&ObjectKey::of(claim))?;
            if seen.metadata.uid == claim.metadata.uid { Target::of(&seen) } else { None }
        })
    }

    /// Resources of which live NodeClaims are spot: they were bought as that, or turned out to be.
    pub(crate) fn spot_resources(&self) -> BTreeSet<ScalableKey> {
        let is_spot = |claim: &NodeClaim| {
            let labels = claim.metadata.labels.as_ref();
            claim.metadata.deletion_timestamp.is_none()
                && labels
                    .and_then(|labels| labels.get(CAPACITY_TYPE))
                    .is_some_and(|is| is == CAPACITY_TYPE_SPOT)
        };
        let claims = self.store.list().into_iter().filter(|claim| is_spot(claim));
        claims.filter_map(|claim| Target::of(&claim).map(|target| target.id)).collect()
    }

    /// The instance types that live NodeClaims of a NodeClass run as, by the resources they came from.
    pub(crate) fn carried(&self, class: &str) -> BTreeMap<ScalableKey, BTreeSet<String>> {
        carried(class, self.store.list().iter().map(|claim| &**claim))
    }

    /// Whether something runs for a NodeClass of which it is not known what it is: it was launched while its resource could not be read.
    pub(crate) fn has_unnamed(&self, class: &str) -> bool {
        let is_unnamed = |claim: &NodeClaim| {
            claim.metadata.deletion_timestamp.is_none()
                && claim.spec.node_class_ref.name == class
                && claim.status.as_ref().is_some_and(|status| status.provider_id.is_some())
                && !claim.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(INSTANCE_TYPE))
        };
        self.store.list().iter().any(|claim| is_unnamed(claim))
    }

    /// What the nodes of a NodeClass run as whose resource stays.
    pub(crate) fn kept(&self, class: &str, stays: impl Fn(&ScalableKey) -> bool) -> Vec<RunsAs> {
        let claims = self.store.list();
        let is_it = |claim: &&NodeClaim| {
            claim.metadata.deletion_timestamp.is_none()
                && claim.spec.node_class_ref.name == class
                && Target::of(claim).is_none_or(|target| stays(&target.id))
        };
        RunsAs::all(claims.iter().map(|claim| &**claim).filter(is_it))
    }

    /// Live NodeClaims that wait for a resource to be scaled.
    pub(crate) fn targeting(&self, id: &ScalableKey) -> Vec<ClaimFacts> {
        let mut found: BTreeMap<String, ClaimFacts> = BTreeMap::new();
        for claim in self.store.by_index(BY_TARGET, &id.to_annotation()) {
            let scaled = Target::of(&claim).is_some_and(|target| !target.standalone);
            if scaled && claim.metadata.deletion_timestamp.is_none() {
                let facts = facts(&claim);
                found.insert(facts.uid.clone(), facts);
            }
        }
        for facts in self.unseen(id, true) {
            found.entry(facts.uid.clone()).or_insert(facts);
        }
        found.into_values().collect()
    }

    /// NodeClaims whose wait for a resource to be scaled is about to be recorded: their places are taken.
    pub(crate) fn reserved(&self, id: &ScalableKey) -> Vec<ClaimFacts> {
        self.unseen(id, false)
    }

    /// NodeClaims that wait for a resource to be scaled, of which the watch does not know that yet.
    fn unseen(&self, id: &ScalableKey, recorded: bool) -> Vec<ClaimFacts> {
        let recent = self.recent();
        let waits = |recent: &&Recent| {
            let is_of = recent.target.id == *id && !recent.target.standalone && recent.recorded == recorded;
            // The watch knows better, once it knows anything.
            let seen = is_of.then(|| self.store.get(&ObjectKey::cluster(recent.facts.name.as_str())));
            seen.is_some_and(|seen| {
                seen.is_none_or(|seen| {
                    seen.metadata.uid.as_deref() == Some(&recent.facts.uid)
                        && seen.metadata.deletion_timestamp.is_none()
                        && Target::of(&seen).is_none()
                })
            })
        };
        recent.values().filter(waits).map(|recent| recent.facts.clone()).collect()
    }

    /// How many live NodeClaims come from a resource or wait for it, in either mode.
    pub(crate) fn running(&self, id: &ScalableKey) -> usize {
        let seen = self.store.by_index(BY_TARGET, &id.to_annotation());
        let live = seen.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none());
        let live: BTreeSet<String> = live.filter_map(|claim| claim.metadata.uid.clone()).collect();
        // The watch knows better, once it knows anything.
        let unseen = |recent: &Recent| {
            let seen = self.store.get(&ObjectKey::cluster(recent.facts.name.as_str()));
            seen.is_none_or(|seen| Target::of(&seen).is_none())
        };
        let recent = self.lock();
        let recent = recent.values().filter(|r| r.target.id == *id && r.at.elapsed() < RECENT && unseen(r));
        live.len() + recent.count()
    }

    /// The NodeClaims that are bound to a Machine by more than a target: by the Go provider, because they were made for it, or by what they were launched as.
    pub(crate) fn bound_to(&self, machine: &ObjectKey) -> Vec<BoundClaim> {
        let bound = self.store.by_index(BY_MACHINE, &machine.to_string());
        let bound = bound.iter().map(|claim| BoundClaim {
            facts: facts(claim),
            ends: claim.metadata.deletion_timestamp.is_some(),
        });
        bound.collect()
    }

    /// The NodeClaims that have the id of a Machine and do not say which that is: the Go provider's annotation was lost, or cannot be read.
    pub(crate) fn launched_as(&self, machine: &Machine) -> Vec<BoundClaim> {
        let Some(id) = &machine.provider_id else { return Vec::new() };
        let has_it = self.store.by_index(BY_PROVIDER_ID, id).into_iter();
        let unbound = has_it.filter(|claim| !is_taken_over(claim) && facts(claim).bound_to.is_none());
        let bound = unbound.map(|claim| BoundClaim {
            facts: ClaimFacts { bound_to: Some(machine.key.clone()), ..facts(&claim) },
            ends: claim.metadata.deletion_timestamp.is_some(),
        });
        bound.collect()
    }

    /// Records what a NodeClaim waits for, unless something is recorded already; that is what comes back then.
    pub(crate) async fn assign(&self, claim: &NodeClaim, target: &Target) -> Result<Target, AssignError> {
        self.record(claim, target, |_| true).await
    }

    /// Records what a NodeClaim waits for in place of what is recorded.
    pub(crate) async fn reassign(&self, claim: &NodeClaim, target: &Target) -> Result<(), AssignError> {
        if self.target(claim).as_ref() == Some(target) {
            return Ok(());
        }
        self.record(claim, target, |known| known == target).await.map(drop)
    }

    /// Records what a NodeClaim waits for; what is found to be recorded by others stays if it may.
    async fn record(
        &self,
        claim: &NodeClaim,
        target: &Target,
        may_stay: impl Fn(&Target) -> bool,
    ) -> Result<Target, AssignError> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let failed = |source| AssignError::Write { name: name.clone(), source: Box::new(source) };
        let mut version = claim.metadata.resource_version.clone();
        // A conflict means that what we were given is old: look, and try once more.
        for _ in 0..3 {
            let patch = json!({"metadata": {
                "resourceVersion": version,
                "annotations": {names::TARGET: target.to_string()},
            }});
            match self.api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(written) => {
                    self.remember(&written, target);
                    return Ok(target.clone());
                }
                Err(error) if is_missing(&error, &name) => return Err(AssignError::Gone(name)),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(error)),
            }
            let now = self.get(&name).await.map_err(failed)?;
            let now = now.filter(|now| {
                now.metadata.uid == claim.metadata.uid && now.metadata.deletion_timestamp.is_none()
            });
            let Some(now) = now else { return Err(AssignError::Gone(name)) };
            if let Some(known) = Target::of(&now).filter(&may_stay) {
                self.remember(&now, &known);
                return Ok(known);
            }
            version = now.metadata.resource_version;
        }
        Err(failed(kube::Error::Service("it is changed all the time".into())))
    }

    /// Makes a NodeClaim that takes a Machine over, unless it was made before. Where its name belongs to a NodeClaim that was made
    /// for something else, it is made under one of its own, which is the same every time.
    pub(crate) async fn adopt(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let another = format!("{name}-{}", fingerprint(&origin(claim)));
        for name in [name, another] {
            let mut named = claim.clone();
            named.metadata.name = Some(name.clone());
            match self.api.create(&PostParams::default(), &named).await {
                Ok(made) => {
                    if let Some(target) = Target::of(&made) {
                        self.remember(&made, &target);
                    }
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
            if self.get(&name).await?.is_some_and(|there| origin(&there) == origin(claim)) {
                return Ok(());
            }
        }
        Err(kube::Error::Service("both names it could have are taken by NodeClaims of other origin".into()))
    }

    /// Records that a NodeClaim has had its successor: it gets no other, whatever becomes of that one.
    pub(crate) async fn mark_succeeded(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        self.annotate(claim, json!({names::SUCCEEDED: "true"})).await.map(drop)
    }

    /// Records the Machine of a NodeClaim that the Go provider bound, in place of what that wrote, and labels that it lacks.
    pub(crate) async fn take_over(
        &self,
        claim: &NodeClaim,
        machine: &ObjectKey,
        target: &Target,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {
            "resourceVersion": claim.metadata.resource_version,
            "labels": labels,
            "annotations": {
                names::GO_MACHINE: null, names::MACHINE: machine.to_string(), names::TARGET: target.to_string(),
            },
        }});
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        match self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            // Changed in between: the next look knows more.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Takes the Go provider's binding off a NodeClaim: how that is then, if it still exists.
    pub(crate) async fn release(&self, claim: &NodeClaim) -> Result<Option<NodeClaim>, kube::Error> {
        self.annotate(claim, json!({names::GO_MACHINE: null})).await
    }

    /// Sets annotations of a NodeClaim: how that is then, if it still exists.
    async fn annotate(
        &self,
        claim: &NodeClaim,
        annotations: Value,
    ) -> Result<Option<NodeClaim>, kube::Error> {
        let patch = json!({"metadata": {"uid": claim.metadata.uid, "annotations": annotations}});
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        match self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(now) => Ok(Some(now)),
            Err(error) if is_missing(&error, name) => Ok(None),
            // Another one of its name.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a NodeClaim that must not take the instance along whose id it has.
    pub(crate) async fn part(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        let patch = json!({
            "metadata": {"resourceVersion": claim.metadata.resource_version},
            "status": {"providerID": null, "nodeName": null},
        });
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        match self.api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => self.delete(claim).await,
        }
    }

    /// The NodeClaim of this name, if the server has one.
    async fn get(&self, name: &str) -> Result<Option<NodeClaim>, kube::Error> {
        match self.api.get(name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_missing(&error, name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All other NodeClaims, as they are now.
    pub(crate) async fn others(&self, claim: &NodeClaim) -> Result<Vec<NodeClaim>, kube::Error> {
        let mut all = self.api.list(&ListParams::default()).await?.items;
        all.retain(|other| other.metadata.uid != claim.metadata.uid);
        Ok(all)
    }

    /// A client of the workload cluster.
    pub(crate) fn client(&self) -> Client {
        self.api.clone().into_client()
    }

    /// The NodePools, as they are now.
    pub(crate) async fn node_pools(&self) -> Result<Vec<NodePool>, kube::Error> {
        let pools: Api<NodePool> = Api::all(self.client());
        Ok(pools.list(&ListParams::default()).await?.items)
    }

    /// The labels of all Nodes, as they are now, by name.
    pub(crate) async fn node_labels(
        &self,
    ) -> Result<BTreeMap<String, BTreeMap<String, String>>, kube::Error> {
        let nodes = Api::<Node>::all(self.client()).list_metadata(&ListParams::default()).await?;
        let labelled = nodes.items.into_iter().map(|node| node.metadata);
        Ok(labelled.filter_map(|meta| Some((meta.name?, meta.labels.unwrap_or_default()))).collect())
    }

    /// Starts deleting this NodeClaim and no later one of its name.
    pub(crate) async fn delete(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        let preconditions = Preconditions { uid: claim.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api.delete(claim.metadata.name.as_deref().unwrap_or_default(), &params).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The names of NodeClaims that wait for an instance.
    pub(crate) fn pending(&self) -> Vec<String> {
        let pending = |claim: &&Arc<NodeClaim>| {
            claim.metadata.deletion_timestamp.is_none()
                && claim.status.as_ref().is_none_or(|status| status.provider_id.is_none())
                && (Target::of(claim).is_some() || bound_by_go(claim).is_some())
        };
        let claims = self.store.list();
        claims.iter().filter(pending).filter_map(|claim| claim.metadata.name.clone()).collect()
    }

    /// Whether the NodeClaim of this name and uid is known not to exist: the server said so just now.
    pub(crate) async fn is_gone(&self, name: &str, uid: &str) -> Result<bool, kube::Error> {
        Ok(self.get(name).await?.is_none_or(|now| now.metadata.uid.as_deref() != Some(uid)))
    }

    /// Whether the NodeClaim that a Machine was claimed for is known not to exist, neither under its uid nor, restored, under another.
    pub(crate) async fn has_left(&self, machine: &Machine) -> Result<bool, kube::Error> {
        let Some(claim) = machine.claim() else { return Ok(false) };
        let now = self.get(&claim.node_claim).await?;
        Ok(now.is_none_or(|now| {
            now.metadata.uid.as_deref() != Some(&*claim.uid) && !is_restored(&now, machine)
        }))
    }

    /// Whether the watch shows the NodeClaim of a Machine under another uid than it was claimed for.
    pub(crate) fn seems_restored(&self, machine: &Machine) -> bool {
        let Some(claim) = machine.claim() else { return false };
        let seen = self.store.get(&ObjectKey::cluster(claim.node_claim.as_str()));
        seen.is_some_and(|seen| is_restored(&seen, machine))
    }

    /// The NodeClaim of a Machine under another uid than it was claimed for, if the server has it.
    pub(crate) async fn restored(&self, machine: &Machine) -> Result<Option<ClaimFacts>, kube::Error> {
        let Some(claim) = machine.claim() else { return Ok(None) };
        let now = self.get(&claim.node_claim).await?;
        Ok(now.filter(|now| is_restored(now, machine)).map(|now| facts(&now)))
    }

    /// NodeClaims before this one in the line for Machines of their own from a blueprint: older ones that have no instance yet.
    pub(crate) fn ahead(&self, claim: &NodeClaim, id: &ScalableKey) -> usize {
        let place = |claim: &NodeClaim| {
            let facts = facts(claim);
            (facts.created, facts.name)
        };
        let ours = place(claim);
        let before = |other: &&Arc<NodeClaim>| {
            other.metadata.deletion_timestamp.is_none()
                && other.status.as_ref().is_none_or(|status| status.provider_id.is_none())
                && Target::of(other).is_some_and(|target| target.standalone)
                && place(other) < ours
        };
        self.store.by_index(BY_TARGET, &id.to_annotation()).iter().filter(before).count()
    }

    /// The NodeClaim of this name and uid, if the watch shows it.
    pub(crate) fn seen(&self, name: &str, uid: &str) -> Option<Arc<NodeClaim>> {
        self.store.get(&ObjectKey::cluster(name)).filter(|claim| claim.metadata.uid.as_deref() == Some(uid))
    }

    /// Whether the watch shows a NodeClaim of this uid.
    pub(crate) fn is_seen(&self, name: &str, uid: &str) -> bool {
        let seen = self.store.get(&ObjectKey::cluster(name));
        let recent = || self.lock().get(uid).is_some_and(|recent| recent.at.elapsed() < RECENT);
        seen.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid)) || recent()
    }

    /// The id of the NodeClaim of this name and uid, as the watch shows it.
    pub(crate) fn provider_id(&self, name: &str, uid: &str) -> Option<String> {
        let seen = self.store.get(&ObjectKey::cluster(name))?;
        let same = seen.metadata.uid.as_deref() == Some(uid);
        seen.status.as_ref().filter(|_| same)?.provider_id.clone()
    }

    /// Counts changes of what we wrote, those that time brings included, and of who waits no more.
    pub(crate) fn version(&self) -> u64 {
        drop(self.recent());
        self.version.load(Ordering::Relaxed)
    }

    /// The watch shows that a NodeClaim which waited for a resource, or came from one, is on its way out or gone: it has left its place.
    pub(crate) fn note_left(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// A NodeClaim is on its way out: it waits for nothing any more.
    pub(crate) fn forget(&self, uid: &str) {
        if self.lock().remove(uid).is_some() {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a NodeClaim at its target before that is recorded, so that others see the place taken. See [`forget`](Self::forget).
    pub(crate) fn reserve(&self, claim: &NodeClaim, target: &Target) {
        self.note(claim, target, false);
    }

    fn remember(&self, claim: &NodeClaim, target: &Target) {
        self.note(claim, target, true);
    }

    fn note(&self, claim: &NodeClaim, target: &Target, recorded: bool) {
        let facts = facts(claim);
        let recent = Recent { target: target.clone(), facts: facts.clone(), at: Instant::now(), recorded };
        self.lock().insert(facts.uid, recent);
        // Afterwards: what somebody works out meanwhile from what was there before is not taken for what is there now.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// What still stands in for what the watch has not told.
    fn recent(&self) -> MutexGuard<'_, BTreeMap<String, Recent>> {
        let mut recent = self.lock();
        let before = recent.len();
        recent.retain(|_, recent| recent.at.elapsed() < RECENT);
        if recent.len() < before {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        recent
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Recent>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a NodeClaim names its Machine as ours do, and nothing else does.
pub(crate) fn is_taken_over(claim: &NodeClaim) -> bool {
    let has = |key| claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
    has(names::MACHINE) && !has(names::GO_MACHINE)
}

/// The Machine that the Go provider bound a NodeClaim to.
pub(crate) fn bound_by_go(claim: &NodeClaim) -> Option<ObjectKey> {
    parse_key(claim.metadata.annotations.as_ref()?.get(names::GO_MACHINE)?)
}

/// Whether the server says that an object of this name does not exist. One that does not serve its kind, or a proxy before it,
/// answers 404 as well, and names none.
fn is_missing(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
}

/// What an adopting NodeClaim was made for: the NodeClaim it succeeds, or the Machine that was there before.
fn origin(claim: &NodeClaim) -> Option<(String, String)> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let adopted = annotations.get(names::ADOPTED)?;
    let machine = annotations.get(names::MACHINE).filter(|_| adopted == EXISTING);
    Some((adopted.clone(), machine.cloned().unwrap_or_default()))
}

/// Five letters that tell origins apart.
fn fingerprint(origin: &Option<(String, String)>) -> String {
    // The same on every machine and in every version.
    let hash = karpenter_api::structure_hash::text(&format!("{origin:?}"));
    format!("{:05x}", hash & 0xf_ffff)
}

/// The instance types that those of these NodeClaims run as that are of a NodeClass, by the resources they came from; those on their way
/// out need no name any more. Another NodeClass may offer the same resource under another name.
pub(crate) fn carried<'a>(
    class: &str,
    claims: impl Iterator<Item = &'a NodeClaim>,
) -> BTreeMap<ScalableKey, BTreeSet<String>> {
    let mut carried: BTreeMap<ScalableKey, BTreeSet<String>> = BTreeMap::new();
    let is_live = |claim: &&NodeClaim| {
        claim.metadata.deletion_timestamp.is_none() && claim.spec.node_class_ref.name == class
    };
    for claim in claims.filter(is_live) {
        let name = claim.metadata.labels.as_ref().and_then(|labels| labels.get(INSTANCE_TYPE));
        if let (Some(target), Some(name)) = (Target::of(claim), name) {
            carried.entry(target.id).or_default().insert(name.clone());
        }
    }
    carried
}

/// Whether a NodeClaim is the one that a Machine was claimed for, restored from a backup: of its name, alive, with another uid, and the
/// Machine's id or name.
fn is_restored(claim: &NodeClaim, machine: &Machine) -> bool {
    let Some(held) = machine.claim() else { return false };
    let meta = &claim.metadata;
    let id = claim.status.as_ref().and_then(|status| status.provider_id.as_ref());
    let is_its = match id {
        Some(id) => machine.provider_id.as_ref() == Some(id),
        None => [names::MACHINE, names::GO_MACHINE].iter().any(|key| {
            let named = meta.annotations.as_ref().and_then(|all| all.get(*key));
            named.and_then(|text| parse_key(text)).as_ref() == Some(&machine.key)
        }),
    };
    meta.name.as_deref() == Some(&*held.node_claim)
        && meta.uid.as_deref().is_some_and(|uid| uid != held.uid)
        && meta.deletion_timestamp.is_none()
        && is_its
}

/// A NodeClaim, as far as the ledger cares.
pub(crate) fn facts(claim: &NodeClaim) -> ClaimFacts {
    let meta = &claim.metadata;
    let annotation = |key: &str| meta.annotations.as_ref().and_then(|annotations| annotations.get(key));
    ClaimFacts {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
        provider_id: claim.status.as_ref().and_then(|status| status.provider_id.clone()),
        bound_to: annotation(names::GO_MACHINE)
            .or_else(|| {
                let adopted = annotation(names::ADOPTED).is_some_and(|how| how == EXISTING);
                // One that has its instance is told by that, whatever becomes of the claim on its Machine.
                let launched = || claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
                annotation(names::MACHINE).filter(|_| adopted || launched())
            })
            .and_then(|text| parse_key(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_live_node_claims_of_a_node_class_run_as_is_known_by_resource() {
        let claim = |target: &str, instance_type: &str, deleted: bool| -> NodeClaim {
            let mut claim = NodeClaim::default();
            claim.spec.node_class_ref.name = "one".to_owned();
            claim.metadata.annotations = Some([(names::TARGET.to_owned(), target.to_owned())].into());
            claim.metadata.labels = Some([(INSTANCE_TYPE.to_owned(), instance_type.to_owned())].into());
            let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
            claim.metadata.deletion_timestamp = deleted.then_some(now);
            claim
        };
        let mut of_another = claim("ns/m", "another's", false);
        of_another.spec.node_class_ref.name = "other".to_owned();
        let claims = [
            claim("ns/m", "large", false),
            claim("Machine:ns/m@a", "old", false),
            claim("ns/m", "gone", true),
            claim("MachineSet:ns/m", "small", false),
            of_another,
            NodeClaim::default(),
        ];
        let id = |text: &str| ScalableKey::from_annotation(text).expect("a key");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let expected = BTreeMap::from([
            (id("ns/m"), names(&["large", "old"])),
            (id("MachineSet:ns/m"), names(&["small"])),
        ]);
        assert_eq!(carried("one", claims.iter()), expected);
        let expected = BTreeMap::from([(id("ns/m"), names(&["another's"]))]);
        assert_eq!(carried("other", claims.iter()), expected);
    }

    #[test]
    fn a_target_is_read_as_it_was_written() {
        for text in ["ns/m", "MachineSet:ns/m", "Machine:ns/m", "Machine:ns/m@zone-a"] {
            assert_eq!(Target::parse(text).expect("a target").to_string(), text);
        }
        assert_eq!(Target::parse("m"), None);
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let scaled = Target::new(id, LaunchMode::MachineDeployment, Some("a".into()));
        assert_eq!(scaled.to_string(), "ns/m");
    }
}
