//! What comes in the place of disrupted nodes: after they were marked, one for a consolidation, up before they go, and a
//! consolidation's cheaper than what it replaces.
//!
//! Nothing in the cluster says which NodeClaim replaces which. What Karpenter tells does: an event `DisruptionLaunching` on
//! the replacement names the reason, and nodes of that reason were marked just before it was created. Rules look only at what
//! can be told apart with certainty; NodeClaims of static NodePools, of which several are replaced at once, cannot.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodeClaim, labels, nodeclaim};
use karpenter_runtime::object_key::ObjectKey;
use serde_json::Value;

use super::commands::{entering, reason_of};
use super::identity::{has_condition, provider_id};
use super::{Invariant, Step};
use crate::objects::{Change, is_deleting};

/// Consolidations are at least their validation (15 s) apart: what was marked this long before a replacement is of its command.
pub(super) const ONE_COMMAND: SignedDuration = SignedDuration::from_secs(14);
/// What was marked longer ago than this is of another command, however slow the server was.
pub(super) const SLOW_COMMAND: SignedDuration = SignedDuration::from_secs(90);

/// A node that was chosen to go.
#[derive(Clone, Debug)]
struct Mark {
    claim: ObjectKey,
    uid: String,
    reason: DisruptionReason,
    at: Timestamp,
    price: Option<f64>,
    /// Deleted by Karpenter without any other reason than the command.
    taken: bool,
    /// Its command was taken back, or might have been unseen: a later deletion is of another one.
    withdrawn: bool,
}

/// A NodeClaim that Karpenter created.
#[derive(Clone, Debug)]
struct Newcomer {
    at: Timestamp,
    /// What was marked and still there when it was created.
    marks: Vec<Mark>,
    replaces: Option<DisruptionReason>,
    initialized: bool,
    vanished: bool,
    priced: bool,
    /// Why nodes were in commands when it was created, also those that had just left theirs.
    reasons: Vec<DisruptionReason>,
    /// Whether it was looked at since Karpenter told what it replaces.
    judged: bool,
}

impl Newcomer {
    /// The nodes it replaces, so far as that is certain.
    fn certain(&self) -> Vec<&Mark> {
        let Some(reason) = self.replaces else { return Vec::new() };
        let same = self.marks.iter().filter(|mark| mark.reason == reason);
        let mut certain: Vec<&Mark> = match reason {
            DisruptionReason::Underutilized => {
                same.filter(|mark| self.at.duration_since(mark.at) < ONE_COMMAND).collect()
            }
            // One node per command, marked last.
            _ => same.max_by_key(|mark| mark.at).into_iter().collect(),
        };
        certain.retain(|mark| !mark.withdrawn);
        certain
    }
}

/// Follows marks and replacements.
struct Commands {
    karpenter: String,
    marks: BTreeMap<ObjectKey, Mark>,
    /// Why nodes were in commands that are no longer in one or there, and until when.
    left: Vec<(DisruptionReason, Timestamp)>,
    newcomers: BTreeMap<ObjectKey, Newcomer>,
}

impl Commands {
    fn new(karpenter: &str) -> Self {
        Self {
            karpenter: karpenter.to_owned(),
            marks: BTreeMap::new(),
            left: Vec::new(),
            newcomers: BTreeMap::new(),
        }
    }

    fn unmark(&mut self, claim: &ObjectKey, now: Timestamp) {
        self.left.retain(|(_, until)| now.duration_since(*until) < SLOW_COMMAND);
        self.left.extend(self.marks.remove(claim).map(|mark| (mark.reason, now)));
    }

    fn follow(&mut self, step: &Step<'_>, price: impl Fn(&NodeClaim) -> Option<f64>) {
        let by_karpenter = step.entry.actor.starts_with(self.karpenter.as_str());
        for (key, claim, reason) in entering(step) {
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            let mark = Mark {
                claim: key.clone(),
                uid,
                reason,
                at: step.now,
                price: price(claim),
                taken: false,
                // One that is repaired before it came up keeps its reason when its command ends, and may go by another.
                withdrawn: reason == DisruptionReason::Unhealthy
                    && !has_condition(claim, nodeclaim::INITIALIZED),
            };
            self.marks.insert(key.clone(), mark);
        }
        for change in step.changes {
            let Change::NodeClaim(edit) = &**change else { continue };
            let (old, Some(new)) = (edit.old.as_deref(), edit.new.as_deref()) else {
                self.unmark(&edit.key, step.now);
                // One that never came up leaves its command without an end: the nodes must stay.
                self.newcomers.retain(|key, newcomer| {
                    newcomer.vanished |= *key == edit.key;
                    !newcomer.vanished || !(newcomer.initialized || newcomer.marks.is_empty())
                });
                continue;
            };
            if old.is_none() && by_karpenter && !is_of_static_pool(step, new) {
                let marks = self.marks.values().filter(|mark| {
                    let claim = step.objects.node_claims.get(&mark.claim);
                    claim.is_some_and(|claim| !is_deleting(&**claim))
                        && step.now.duration_since(mark.at) < SLOW_COMMAND
                });
                let left =
                    self.left.iter().filter(|(_, until)| step.now.duration_since(*until) < SLOW_COMMAND);
                let reasons =
                    self.marks.values().map(|mark| mark.reason).chain(left.map(|(reason, _)| *reason));
                let newcomer = Newcomer {
                    at: step.now,
                    reasons: reasons.collect(),
                    judged: false,
                    marks: marks.cloned().collect(),
                    replaces: None,
                    initialized: false,
                    vanished: false,
                    priced: false,
                };
                self.newcomers.insert(edit.key.clone(), newcomer);
            }
            if let Some(newcomer) = self.newcomers.get_mut(&edit.key) {
                newcomer.initialized |= has_condition(new, nodeclaim::INITIALIZED);
            }
            if !is_deleting(new) && reason_of(new).is_none() {
                // Taken back, or never in a command: later deletions are of another one.
                self.unmark(&edit.key, step.now);
                let marks = self.newcomers.values_mut().flat_map(|newcomer| &mut newcomer.marks);
                for mark in marks.filter(|mark| mark.claim == edit.key) {
                    mark.withdrawn = true;
                }
            }
            let deleted_now = is_deleting(new) && old.is_some_and(|old| !is_deleting(old));
            if deleted_now && by_karpenter && !is_excused(step, new) {
                for newcomer in self.newcomers.values_mut().filter(|newcomer| !newcomer.initialized) {
                    for mark in newcomer.marks.iter_mut().filter(|mark| mark.claim == edit.key) {
                        mark.taken = true;
                    }
                }
            }
        }
        for (name, reason) in launching(step) {
            if let Some(newcomer) = self.newcomers.get_mut(&ObjectKey::cluster(name)) {
                newcomer.replaces = Some(reason);
            }
        }
    }
}

/// Whether a NodeClaim is deleted for more than a command's sake: it has expired, or its machine or Node is gone.
pub(super) fn is_excused(step: &Step<'_>, claim: &NodeClaim) -> bool {
    let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let lifetime = claim.spec.expire_after();
    let expired = created
        .zip(lifetime)
        .is_some_and(|(created, lifetime)| step.now.duration_since(created) >= lifetime.to_signed());
    let machine = provider_id(claim).and_then(|id| step.inventory.by_provider_id(id));
    let machine_gone = machine.is_none_or(|machine| !machine.state.is_live());
    let node = step.objects.nodes.values().find(|node| {
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        id.is_some() && id == provider_id(claim)
    });
    let rebooting = has_condition(claim, nodeclaim::REBOOTING);
    expired || machine_gone || rebooting || node.is_none_or(|node| is_deleting(&**node))
}

pub(super) fn is_of_static_pool(step: &Step<'_>, claim: &NodeClaim) -> bool {
    let pool = claim.metadata.labels.as_ref().and_then(|labels| labels.get(labels::NODEPOOL));
    let pool = pool.and_then(|pool| step.objects.node_pools.get(&ObjectKey::cluster(pool.as_str())));
    pool.is_some_and(|pool| pool.is_static())
}

/// Replacements that Karpenter says it launches with this write, and why.
fn launching(step: &Step<'_>) -> Vec<(String, DisruptionReason)> {
    let mut told = Vec::new();
    for change in step.raw.iter().filter(|change| change.plural() == "events") {
        let Some(bytes) = change.after() else { continue };
        let event: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if event["reason"] != "DisruptionLaunching" {
            continue;
        }
        let message = event["message"].as_str().unwrap_or_default();
        let reason = match message.strip_prefix("Launching NodeClaim: ") {
            Some("Underutilized") => DisruptionReason::Underutilized,
            Some("Drifted") => DisruptionReason::Drifted,
            Some("Unhealthy") => DisruptionReason::Unhealthy,
            _ => continue,
        };
        let name = event.pointer("/involvedObject/name").and_then(Value::as_str).unwrap_or_default();
        told.push((name.to_owned(), reason));
    }
    told
}

/// Nothing is launched in the place of nodes before they were marked, and one node at most by a consolidation.
pub struct CommandsAreWhole(Commands);

impl CommandsAreWhole {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self(Commands::new(karpenter))
    }
}

impl Invariant for CommandsAreWhole {
    fn name(&self) -> &'static str {
        "nodes are marked before they are replaced, and consolidated into one at most"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I19", "I26"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.0.follow(step, |_| None);
        let told = |newcomer: &Newcomer| newcomer.replaces.filter(|_| !newcomer.judged);
        let new: Vec<(ObjectKey, DisruptionReason)> =
            self.0.newcomers.iter().filter_map(|(key, new)| Some((key.clone(), told(new)?))).collect();
        for (key, reason) in new {
            let Some(newcomer) = self.0.newcomers.get_mut(&key) else { continue };
            newcomer.judged = true;
            if !newcomer.reasons.contains(&reason) {
                return Err(format!(
                    "NodeClaim {key} replaces nodes ({}), and none was marked when it was created",
                    reason.as_str()
                ));
            }
            if reason != DisruptionReason::Underutilized {
                continue;
            }
            let newcomer = newcomer.clone();
            let others = self.0.newcomers.iter().filter(|(other, new)| **other != key && new.judged);
            for (other, twin) in others.filter(|(_, new)| new.replaces == Some(reason)) {
                let theirs = twin.certain();
                let both = newcomer
                    .certain()
                    .into_iter()
                    .find(|mark| theirs.iter().any(|their| their.claim == mark.claim && their.at == mark.at));
                if let Some(mark) = both {
                    return Err(format!(
                        "NodeClaim {} is consolidated into both {other} and {key}",
                        mark.claim
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A node goes only after its replacement is up.
pub struct ReplacementsComeFirst(Commands);

impl ReplacementsComeFirst {
    /// For writes under names that start with `karpenter`.
    pub fn new(karpenter: &str) -> Self {
        Self(Commands::new(karpenter))
    }
}

impl Invariant for ReplacementsComeFirst {
    fn name(&self) -> &'static str {
        "a node is not deleted before its replacement is up"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I20", "I21"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.0.follow(step, |_| None);
        for (key, newcomer) in self.0.newcomers.iter().filter(|(_, newcomer)| !newcomer.initialized) {
            if let Some(mark) = newcomer.certain().into_iter().find(|mark| mark.taken) {
                let missing = if newcomer.vanished { "which is gone, was ever up" } else { "was up" };
                return Err(format!(
                    "NodeClaim {} (uid {}) was deleted ({}) before its replacement {key} {missing}",
                    mark.claim,
                    mark.uid,
                    mark.reason.as_str()
                ));
            }
        }
        Ok(())
    }
}

/// What an hour of each offering costs, by instance type, zone and capacity type.
pub type Prices = BTreeMap<(String, String, String), f64>;

/// A consolidation never makes the cluster dearer.
pub struct ReplacementsAreCheaper {
    commands: Commands,
    prices: Prices,
}

impl ReplacementsAreCheaper {
    /// For writes under names that start with `karpenter`, at these prices.
    pub fn new(karpenter: &str, prices: Prices) -> Self {
        Self { commands: Commands::new(karpenter), prices }
    }
}

fn price_of(prices: &Prices, step: &Step<'_>, claim: &NodeClaim) -> Option<f64> {
    let launch = &step.inventory.by_provider_id(provider_id(claim)?)?.launch;
    let offering = (launch.instance_type.clone(), launch.zone.clone(), launch.capacity_type.clone());
    prices.get(&offering).copied()
}

impl Invariant for ReplacementsAreCheaper {
    fn name(&self) -> &'static str {
        "what a consolidation launches is cheaper than what it replaces"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["I25"]
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let Self { commands, prices } = self;
        commands.follow(step, |claim| price_of(prices, step, claim));
        for (key, newcomer) in &mut commands.newcomers {
            if newcomer.priced || newcomer.replaces != Some(DisruptionReason::Underutilized) {
                continue;
            }
            let claim = step.objects.node_claims.get(key);
            let Some(price) = claim.and_then(|claim| price_of(prices, step, claim)) else { continue };
            newcomer.priced = true;
            // All that can be of the command: too many rather than too few.
            let replaced = newcomer
                .marks
                .iter()
                .filter(|mark| mark.reason == DisruptionReason::Underutilized && !mark.withdrawn);
            let replaced: Vec<&Mark> = replaced.collect();
            let before: Option<f64> = replaced.iter().map(|mark| mark.price).sum();
            // Sums of prices that are equal on paper differ by their last digit; one price is what it is.
            let slack = if replaced.len() > 1 { 1e-9 } else { -1e-9 };
            if let Some(before) = before.filter(|before| !replaced.is_empty() && price > *before + slack) {
                let names: Vec<String> = replaced.iter().map(|mark| mark.claim.to_string()).collect();
                return Err(format!(
                    "NodeClaim {key} costs {price} an hour and replaces {}, which cost {before}",
                    names.join(", ")
                ));
            }
        }
        Ok(())
    }
}
