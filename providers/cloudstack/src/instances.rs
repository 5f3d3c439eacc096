//! What was bought: virtual machines, each launched once, deleted truthfully, listed completely or not at all.
//!
//! # Once
//!
//! A machine's name follows from its NodeClaim. Before anything is deployed the machines of that name are looked for; what is
//! alive is taken, whoever made it. A deployment whose answer is lost is looked for by its job and by its name, and never
//! sent again blindly. Two leaders may still both get through, because the server checks names and writes them down
//! separately: see [`crate::twins`].
//!
//! # Soon
//!
//! The id is known before anything runs, and refusals for want of room come within three seconds. So a launch waits until the
//! machine is on a host, tries the next size when it was refused, and does not wait for it to boot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::absence::Care;
use crate::client::error::{ApiError, CapacityKind, ErrorKind};
use crate::client::job::JobState;
use crate::client::model::{Named, Nic, Tag, VirtualMachine};
use crate::client::request::Scope;
use crate::client::requests::{self, Deploy};
use crate::made_by::Tags;
use crate::naming::Naming;
use crate::quota::Need;
use crate::shared::Shared;
use crate::twins::Standing;
use crate::unavailable::{Refused, Stage};
use crate::{labels, reservations};

/// How many sizes a launch asks the server for.
const MAX_CANDIDATES: usize = 60;
/// The first look at a new machine, and the pause between further ones.
const FIRST_LOOK: Duration = Duration::from_millis(1000);
const NEXT_LOOK: Duration = Duration::from_millis(1500);
/// How old a list may be from which machines are deleted: what is gone meanwhile is found out by deleting it.
pub(crate) const RECENT: Duration = Duration::from_secs(3);
/// Names a claim's machines may take, as many as fit: what bounds a launch is how many sizes it asks for.
const MAX_ATTEMPTS: u32 = 100;
/// How many names in a row may turn out to be taken, each further from the one before than that was.
const MAX_NAMES_TAKEN: u32 = 5;
/// Machines that one launch makes in a network although they fail for reasons in words nobody reads: another size may not help at
/// all.
const MAX_UNCLEAR: usize = 3;
/// Why a launch failed that was told to make a machine of something that is gone.
pub(crate) const RESOURCE_NOT_FOUND: &str = "ResourceNotFound";

/// One way to make the machine.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) type_name: String,
    pub(crate) zone_id: String,
    pub(crate) zone_name: String,
    pub(crate) offering_name: String,
    pub(crate) network_name: String,
    pub(crate) need: Need,
    /// The reservation it would count against, and how many that is for.
    pub(crate) reservation: Option<(String, i64)>,
    /// What is refused when no host is left for its affinity groups.
    pub(crate) group_refused_as: Option<Refused>,
    /// All but what the machine is told, which is put together for those alone that are asked for.
    pub(crate) deploy: Deploy,
}

/// What the machine of a candidate is told.
pub(crate) type Tell<'a> = dyn Fn(&Candidate) -> Result<Option<String>, ProviderError> + Sync + 'a;

/// Whether a machine is there and stays.
pub(crate) fn is_alive(machine: &VirtualMachine) -> bool {
    !matches!(machine.state.as_str(), "Destroyed" | "Expunging" | "Error" | "RestoreError")
}

/// Whether a machine is on a host, or was: one that waits for its place, or lost it when the server went down, stands still.
pub(crate) fn is_placed(machine: &VirtualMachine) -> bool {
    !matches!(machine.state.as_str(), "" | "Stopped")
}

/// Tags that are ordered, but that the list may not show yet.
fn add_ordered(machine: &mut VirtualMachine, tags: &BTreeMap<String, String>) {
    let missing: Vec<Tag> = tags
        .iter()
        .filter(|(key, _)| !machine.has_tag(key))
        .map(|(key, value)| Tag { key: key.clone(), value: value.clone() })
        .collect();
    machine.tags.extend(missing);
}

/// Why a launch came to nothing.
fn why_none(attempt: u32, base: &str, mut refusals: Vec<String>) -> String {
    if attempt >= MAX_ATTEMPTS {
        refusals.push(format!(
            "all {MAX_ATTEMPTS} names for its machine, {base} and those after it, are used up; destroyed machines keep theirs until they are expunged"
        ));
    }
    if refusals.is_empty() { "no instance type is available".to_owned() } else { refusals.join("; ") }
}

/// What is said of a machine that got no address: in its only network, or in one of several of which this is the first.
pub(crate) fn no_address(network: &str, is_only: bool, error: &ApiError) -> String {
    let which = if is_only { "network" } else { "one of the networks beginning with" };
    format!(
        "{which} {network:?} has no address left, so machines go to others for a while: {error}; make it larger, or add another"
    )
}

pub(crate) fn failed(error: &ApiError) -> ProviderError {
    ProviderError::other(error.clone())
}

impl Shared {
    /// The machine of this claim: found, or made from the first candidate that can be had.
    pub(crate) async fn launch(
        &self,
        claim: &NodeClaim,
        scope: &Scope,
        mut candidates: Vec<Candidate>,
        tell: &Tell<'_>,
        tags: &Tags,
    ) -> Result<VirtualMachine, ProviderError> {
        let uid = claim.uid().unwrap_or_default();
        let turn = self.turn(&uid);
        let _turn = turn.lock().await;
        if let Some(error) = self.client.takes_no_orders() {
            return Err(failed(&error));
        }
        let base = self.naming.of_claim(claim);
        let mut attempt = match self.survey(claim, scope).await.map_err(|error| failed(&error))? {
            Survey::Found(machine) => return Ok(self.adopt(*machine, scope, &candidates, &tags.found).await),
            Survey::Free(attempt) => attempt.max(self.names_taken.next(&uid)),
        };
        // A try before this one wrote down what the NodeClass said then, and made nothing of it.
        if let Some(annotations) = tags.news() {
            self.write_down(claim, annotations).await?;
        }
        let tags = &tags.made;
        let mut refusals = Vec::new();
        let mut unclear: BTreeMap<String, usize> = BTreeMap::new();
        let mut used_up: BTreeSet<String> = BTreeSet::new();
        let mut asked = 0;
        candidates.sort_by_key(|candidate| self.unavailable.is_doubtful(&candidate.network()));
        for mut candidate in candidates {
            if attempt >= MAX_ATTEMPTS || asked >= MAX_CANDIDATES {
                break;
            }
            if candidate.reservation.as_ref().is_some_and(|(name, _)| used_up.contains(name)) {
                continue;
            }
            // Why it fails there nobody knows; another network may do.
            if unclear.get(&candidate.network()).is_some_and(|count| *count >= MAX_UNCLEAR) {
                continue;
            }
            if self.quota_hits.refuse(&candidate.deploy.scope, &candidate.need) {
                let told = self.quota_hits.believed(&candidate.deploy.scope).unwrap_or_default();
                let refusal = format!("{}: {told}", candidate.type_name);
                // Perhaps a moment ago, in another network.
                if !refusals.contains(&refusal) {
                    refusals.push(refusal);
                }
                continue;
            }
            let Some(trial) = self.unavailable.try_out(candidate.takes(), &uid) else {
                let this = format!("{}: ", candidate.type_name);
                // Perhaps a moment ago, in another network.
                if !refusals.iter().any(|refusal: &String| refusal.starts_with(&this)) {
                    refusals.push(format!("{this}refused lately"));
                }
                continue;
            };
            let Some(_slot) = self.reserve(&uid, &candidate).await.map_err(|error| failed(&error))? else {
                refusals.push(format!("{}: the reservation is used up", candidate.type_name));
                used_up.extend(candidate.reservation.map(|(name, _)| name));
                continue;
            };
            candidate.deploy.user_data = tell(&candidate)?;
            asked += 1;
            match self.attempt(claim, &candidate, &base, &mut attempt, tags).await? {
                Attempt::Launched(machine) => {
                    trial.goes_on();
                    let reason = if refusals.is_empty() { "launched" } else { "others-refused" };
                    self.metrics.created.inc(&[&machine.zonename, &machine.serviceofferingname, reason]);
                    return Ok(*machine);
                }
                Attempt::Refused(why) => refusals.push(format!("{}: {why}", candidate.type_name)),
                Attempt::Unclear(why) => {
                    refusals.push(format!("{}: {why}", candidate.type_name));
                    let count = unclear.entry(candidate.network()).or_default();
                    *count += 1;
                    if *count == MAX_UNCLEAR {
                        refusals.push(format!(
                            "{count} machines failed like that in network {:?}, so no other size is tried there now",
                            candidate.network_name
                        ));
                    }
                }
            }
        }
        Err(ProviderError::insufficient_capacity(why_none(attempt, &base, refusals)))
    }

    /// Writes annotations on a NodeClaim before its machine is made.
    pub(crate) async fn write_down(
        &self,
        claim: &NodeClaim,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), ProviderError> {
        self.voice.annotate(claim, annotations).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => {
                ProviderError::not_found(format!("NodeClaim {} is gone", claim.name_any()))
            }
            error => ProviderError::other(error),
        })
    }

    /// A machine that is there already becomes this launch's.
    async fn adopt(
        &self,
        mut machine: VirtualMachine,
        scope: &Scope,
        candidates: &[Candidate],
        tags: &BTreeMap<String, String>,
    ) -> VirtualMachine {
        let mut tags = tags.clone();
        // Lost, perhaps, between its order and its tags: uncounted, its slot would be sold again.
        if machine.tag(labels::TAG_RESERVATION).is_none()
            && let Some(reservation) = reservations::of_untagged(&machine, candidates)
        {
            tags.insert(labels::TAG_RESERVATION.to_owned(), reservation.to_owned());
        }
        self.repair_tags(&machine, scope, &tags).await;
        add_ordered(&mut machine, &tags);
        machine
    }

    /// It was placed: so can be others of its network and of what its affinity leaves. Whether its zone has storage shows when it runs.
    fn allow(&self, candidate: &Candidate) {
        // A reservation with room says nothing of the hosts outside it.
        let group = candidate.group_refused_as.clone().filter(|_| candidate.reservation.is_none());
        let had =
            [candidate.refused(), candidate.refused_in_network(), Refused::Network(candidate.network())];
        for what in had.into_iter().chain(group) {
            self.unavailable.allow(&what, Stage::Placed);
        }
    }

    /// One at a time per NodeClaim.
    fn turn(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(uid.to_owned()).or_default())
    }

    /// What there is of a claim: the machine it names, or else the oldest that is on a host, or else the oldest that is alive. What it
    /// has certainly no use for goes.
    async fn survey(&self, claim: &NodeClaim, scope: &Scope) -> Result<Survey, ApiError> {
        let machines = self.inventory.fresh(scope, Care::Complete).await?;
        let found = self.machines_of(&machines, claim);
        let is_clear = found.len() <= 1 && found.iter().all(|(_, machine)| is_alive(machine));
        let standing = match is_clear {
            true => Standing::NamesNone,
            false => self.standing(&claim.name_any(), &claim.uid().unwrap_or_default()).await,
        };
        let alive = || found.iter().map(|(_, machine)| *machine).filter(|machine| is_alive(machine));
        let named = alive().find(|machine| standing.named() == Some(machine.id.as_str()));
        let placed = || alive().find(|machine| is_placed(machine));
        let kept = named.or_else(placed).or_else(|| alive().next()).cloned();
        for (_, machine) in &found {
            let is_kept = kept.as_ref().is_some_and(|kept| kept.id == machine.id);
            if !is_kept && !machine.has_pending_job() && self.is_to_go(machine, &standing) {
                // One that is protected is told of by garbage collection.
                let _ = self.discard(machine, scope, "duplicate").await;
            }
        }
        if let Some(machine) = kept {
            return Ok(Survey::Found(Box::new(machine)));
        }
        let taken = found.iter().map(|(attempt, _)| *attempt + 1).max().unwrap_or(0);
        Ok(Survey::Free(taken))
    }

    /// Deploys one candidate and sees it placed or refused.
    async fn attempt(
        &self,
        claim: &NodeClaim,
        candidate: &Candidate,
        base: &str,
        attempt: &mut u32,
        tags: &BTreeMap<String, String>,
    ) -> Result<Attempt, ProviderError> {
        let scope = candidate.deploy.scope.clone();
        let uid = claim.uid().unwrap_or_default();
        let uid = uid.as_str();
        let unreserved = tags;
        let mut tags = tags.clone();
        if let Some((reservation, _)) = &candidate.reservation {
            tags.insert(labels::TAG_RESERVATION.to_owned(), reservation.clone());
        }
        let tags = &tags;
        let (mut names_taken, mut step) = (0, 1);
        let ordered = self.clock.now();
        let (id, job) = loop {
            let deploy = Deploy {
                name: Naming::of_attempt(base, *attempt),
                job_id: self.new_job_id(),
                ..candidate.deploy.clone()
            };
            let answer = {
                let _turn = self.deploying.acquire().await;
                if self.unavailable.are_refused(candidate.takes(), uid) {
                    return Ok(Attempt::Refused("refused while this launch waited for its turn".to_owned()));
                }
                let begun = Instant::now();
                // From here on there may be one, whatever becomes of the answer.
                self.has_no_machines.store(false, std::sync::atomic::Ordering::Relaxed);
                let answer = self.client.call(&requests::deploy(&deploy)).await;
                self.metrics.launch_duration.with(&["accept"]).observe_duration(begun.elapsed());
                answer
            };
            let error = match answer {
                Ok(answer) => match (answer["id"].as_str(), answer["jobid"].as_str()) {
                    (Some(id), Some(job)) if !id.is_empty() => break (id.to_owned(), job.to_owned()),
                    _ => {
                        self.lost.note(&scope);
                        return Err(ProviderError::other(
                            "CloudStack accepted a deployment without naming it",
                        ));
                    }
                },
                Err(error) => error,
            };
            if error.outcome_unknown() {
                self.lost.note(&scope);
                match self.find_lost(&deploy, claim).await {
                    Some(id) => break (id, deploy.job_id),
                    // It may still arrive: the next call looks again before it sends anything.
                    None => return Err(failed(&error)),
                }
            }
            // No offering, network or limit is to blame.
            if error.kind == ErrorKind::Closed {
                return Err(failed(&error));
            }
            if error.kind == ErrorKind::NameTaken {
                names_taken += 1;
                match self.survey(claim, &scope).await.map_err(|error| failed(&error))? {
                    Survey::Found(machine) => {
                        let known = std::slice::from_ref(candidate);
                        let machine = self.adopt(*machine, &scope, known, unreserved).await;
                        return Ok(Attempt::Launched(Box::new(machine)));
                    }
                    // Taken by what we do not see: a machine that is destroyed, or somebody else's. There may be many.
                    Survey::Free(free) => *attempt = free.max(*attempt + step),
                }
                self.names_taken.note(uid, *attempt);
                step *= 2;
                if names_taken < MAX_NAMES_TAKEN {
                    continue;
                }
            }
            return self.refused(claim, candidate, &error, 0);
        };
        *attempt += 1;
        let machine = candidate.accepted(id, &job);
        self.launches.begun(&machine.id, &job, claim, &scope);
        self.ordered.add(&scope, candidate.need);
        self.repair_tags(&machine, &scope, tags).await;
        match self.placed(&machine, &job, &scope).await {
            Ok(mut machine) => {
                if let Some(made) = machine.created() {
                    self.compare_clocks(ordered, made);
                }
                add_ordered(&mut machine, tags);
                if is_placed(&machine) {
                    self.unexplained.forget(&candidate.key());
                    self.allow(candidate);
                }
                self.tag_disks(&machine, &scope, tags).await;
                if let Some(elder) = self.elder_of(claim, &machine.id, &scope).await {
                    let known = std::slice::from_ref(candidate);
                    let elder = self.adopt(elder, &scope, known, unreserved).await;
                    return Ok(Attempt::Launched(Box::new(elder)));
                }
                Ok(Attempt::Launched(Box::new(machine)))
            }
            Err(error) => {
                self.names_taken.note(uid, *attempt);
                self.metrics.jobs_ended.inc(&["deploy", "failed"]);
                // As it is listed: what is known of an order does not tell which disks are its own.
                let machines = self.inventory.recent(&scope, RECENT).await.unwrap_or_default();
                let listed = machines.iter().find(|listed| listed.id == machine.id).unwrap_or(&machine);
                let _ = self.discard(listed, &scope, "launch-failed").await;
                let beside = candidate.beside(&machines);
                self.refused(claim, candidate, &error, beside)
            }
        }
    }

    /// A machine whose deployment was never answered.
    async fn find_lost(&self, deploy: &Deploy, claim: &NodeClaim) -> Option<String> {
        let mut pause = Duration::from_secs(1);
        for _ in 0..3 {
            if let Ok(job) = self.client.job(&deploy.job_id).await
                && let Some(id) = job.instance_id
            {
                return Some(id);
            }
            if let Ok(machines) = self.inventory.fresh(&deploy.scope, Care::Glance).await
                && let found = self.machines_of(&machines, claim)
                && let Some((_, machine)) = found.iter().find(|(_, machine)| machine.name == deploy.name)
            {
                return Some(machine.id.clone());
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        None
    }

    /// Waits until the machine is on a host, or the time is up; what failed meanwhile is an error.
    async fn placed(
        &self,
        accepted: &VirtualMachine,
        job: &str,
        scope: &Scope,
    ) -> Result<VirtualMachine, ApiError> {
        // Nobody waits: what comes of it is seen to with the other launches.
        if self.options.launch_wait.is_zero() {
            return Ok(accepted.clone());
        }
        let begun = Instant::now();
        let deadline = begun + self.options.launch_wait;
        let id = accepted.id.as_str();
        // What was ordered, for as long as the server does not say what came of it.
        let mut last = accepted.clone();
        let mut pause = FIRST_LOOK;
        loop {
            tokio::time::sleep(pause).await;
            pause = NEXT_LOOK;
            // The server not answering is no reason to give a machine up that it has accepted. It writes down a machine before its
            // job: a list from before that shows one that stands still, as if nothing would come of it.
            if let Ok(machines) = self.inventory.recent_since(scope, NEXT_LOOK, begun).await
                && let Some(machine) = machines.iter().find(|machine| machine.id == id)
            {
                last = machine.clone();
                let pending = machine.has_pending_job() && machine.state == "Stopped";
                match machine.state.as_str() {
                    "Error" => return Err(self.reason(job).await),
                    _ if !pending => return Ok(last),
                    _ => {}
                }
            }
            if Instant::now() >= deadline {
                return Ok(last);
            }
        }
    }

    /// Why a job failed.
    pub(crate) async fn reason(&self, job: &str) -> ApiError {
        match self.client.job(job).await {
            Ok(job) => match job.state {
                JobState::Failed(error) => error,
                _ => ApiError::new(
                    "deployVirtualMachine",
                    ErrorKind::Internal,
                    "the machine is in state Error",
                ),
            },
            Err(error) => error,
        }
    }

    /// Remembers a refusal; what no other size would mend is an error.
    fn refused(
        &self,
        claim: &NodeClaim,
        candidate: &Candidate,
        error: &ApiError,
        beside: usize,
    ) -> Result<Attempt, ProviderError> {
        let refused = || {
            let is_unclear = error.kind == ErrorKind::Capacity(CapacityKind::InWords);
            let how = if is_unclear { Attempt::Unclear } else { Attempt::Refused };
            Ok(how(error.to_string()))
        };
        match &error.kind {
            ErrorKind::Capacity(CapacityKind::Addresses) => {
                self.catalogue.forget_networks();
                let is_only = candidate.deploy.network_ids.len() == 1;
                let text = no_address(&candidate.network_name, is_only, error);
                self.voice.warn(claim, "NetworkExhausted", text);
                // Which of several is meant the server does not say.
                let what = match is_only {
                    true => Refused::Network(candidate.network()),
                    false => candidate.refused_in_network(),
                };
                self.unavailable.refuse(what, Stage::Running);
                // Nor is that a matter of size.
                let how = if is_only { Attempt::Refused } else { Attempt::Unclear };
                Ok(how(error.to_string()))
            }
            ErrorKind::Capacity(kind) => {
                let this = || candidate.refused();
                let (what, why) = match kind {
                    CapacityKind::Storage => {
                        (this(), "it lacks capacity there, perhaps of storage".to_owned())
                    }
                    CapacityKind::Affinity => match &candidate.group_refused_as {
                        // A reservation that is full says nothing of the hosts outside it, and a group that is empty takes none.
                        Some(group) if candidate.reservation.is_none() && beside > 0 => (
                            group.clone(),
                            format!(
                                "every host that spec.affinity leaves is taken: a strict group takes one machine per host, and {beside} are in its groups; limit the NodePool to that many nodes (spec.limits.nodes), or take a soft type, which would give way"
                            ),
                        ),
                        _ => (this(), "no host that its affinity groups leave has room for it".to_owned()),
                    },
                    CapacityKind::Hosts | CapacityKind::Start | CapacityKind::Addresses => {
                        (this(), "no host has room for it".to_owned())
                    }
                    CapacityKind::InWords => (candidate.refused_in_network(), error.text.clone()),
                };
                let text = format!("{} in zone {}: {why}", candidate.type_name, candidate.zone_name);
                self.voice.warn(claim, "InsufficientCapacity", text);
                match kind {
                    CapacityKind::Storage => {
                        self.unavailable.refuse_unstored(what, &candidate.zone_id, &candidate.type_name);
                    }
                    _ => self.unavailable.refuse(what, Stage::Placed),
                }
                refused()
            }
            ErrorKind::Quota(excess) => {
                self.catalogue.forget_budgets();
                let (text, general) = self.quota_hits.add(&candidate.deploy.scope, excess, &candidate.need);
                if !general {
                    self.unavailable.refuse(candidate.refused(), Stage::Placed);
                }
                self.voice.warn(claim, "QuotaExceeded", text);
                refused()
            }
            // Which of several is meant the server does not say.
            ErrorKind::Network if candidate.deploy.network_ids.len() == 1 => {
                let text = format!(
                    "network {:?} in zone {} does not work, so machines go to others for a while: {error}; look at its router, or restart the network",
                    candidate.network_name, candidate.zone_name
                );
                self.voice.warn(claim, "NetworkUnavailable", text);
                self.unavailable.refuse(Refused::Network(candidate.network()), Stage::Running);
                refused()
            }
            // Nobody says why. Addresses running out looks like this to tenants, and lists say which network lacks them; where they do
            // not, another network may do.
            ErrorKind::Internal | ErrorKind::Network if self.unexplained.too_many(&candidate.key()) => {
                let text = format!(
                    "machines in network {:?} fail and CloudStack does not say why, which is how it looks when addresses run out; the network is left alone for a while",
                    candidate.network_name
                );
                self.voice.warn(claim, "NetworkExhausted", text);
                self.unavailable.refuse(Refused::Network(candidate.network()), Stage::Placed);
                refused()
            }
            ErrorKind::Internal | ErrorKind::Network => {
                self.catalogue.forget_networks();
                Err(failed(error))
            }
            ErrorKind::NotFound | ErrorKind::Gone => {
                self.catalogue.forget();
                Err(ProviderError::create(
                    error.clone(),
                    RESOURCE_NOT_FOUND,
                    format!("something the NodeClass selected is gone: {error}"),
                ))
            }
            ErrorKind::Denied if error.text.contains("Zone is currently disabled") => {
                self.unavailable.refuse(Refused::Zone(candidate.zone_id.clone()), Stage::Placed);
                self.catalogue.forget();
                refused()
            }
            // It is not sold to us. Whatever else is denied concerns more than one size: the account, the network, the template.
            ErrorKind::Denied if error.text.contains("There's no way to confirm") => {
                self.unavailable.refuse(candidate.refused(), Stage::Placed);
                refused()
            }
            // Nor does it take spec.rootDiskOffering, which lists that are a few minutes old do not say.
            ErrorKind::Parameter if error.text.contains("strictly mapped to its disk offering") => {
                self.unavailable.refuse(candidate.refused(), Stage::Placed);
                refused()
            }
            ErrorKind::Parameter | ErrorKind::Denied | ErrorKind::Barred => {
                Err(ProviderError::create(error.clone(), "LaunchRefused", error.to_string()))
            }
            _ => Err(failed(error)),
        }
    }

    /// The machine of a provider id, if the server says there is one.
    pub(crate) async fn machine(&self, id: &str, scope: &Scope) -> Result<Option<VirtualMachine>, ApiError> {
        // Many ask at once, and one list answers all of them. It knows machines by their names, which people can change: so
        // only the machine's own id says that it is not there.
        let machines = self.inventory.recent(scope, self.recent_enough(Duration::ZERO)).await?;
        if let Some(machine) = machines.iter().find(|machine| machine.id == id) {
            return Ok(Some(machine.clone()));
        }
        self.lookups.find(id, scope).await
    }

    /// Every machine of this cluster: by its tag, and by its name in case the tag is not there yet. One that slips through one of these
    /// lists is in the other, unless it lacks one of both: only with care is that one seen for certain.
    pub(crate) async fn all_machines(
        &self,
        scope: &Scope,
        care: Care,
    ) -> Result<Vec<VirtualMachine>, ApiError> {
        let cluster_tag = labels::cluster_tag(&self.options.cluster_name);
        let request = requests::list_virtual_machines_by_tag(&cluster_tag, "owned", scope);
        let mut machines = self.lists.read(&request, care).await?;
        machines.retain(|machine| {
            let of_karpenter = machine.tag(labels::TAG_MANAGED_BY).is_some();
            (of_karpenter || machine.name.starts_with(self.naming.prefix()))
                && !machine.is_of_kubernetes_service()
        });
        for machine in self.inventory.fresh(scope, care).await?.iter() {
            let is_ours = self.why_not_ours(machine).is_none();
            if is_ours && !machines.iter().any(|other| other.id == machine.id) {
                machines.push(machine.clone());
            }
        }
        machines.sort_by(|a, b| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
        Ok(machines)
    }
}

enum Survey {
    Found(Box<VirtualMachine>),
    /// Nothing alive; this attempt's name is free as far as we see.
    Free(u32),
}

enum Attempt {
    Launched(Box<VirtualMachine>),
    Refused(String),
    /// Refused too, for a reason that may have nothing to do with its size.
    Unclear(String),
}

impl Candidate {
    /// The machine as it was ordered: all that is known of it until a list shows it.
    fn accepted(&self, id: String, job: &str) -> VirtualMachine {
        let nic = |network: &String| Nic { networkid: network.clone(), ..Nic::default() };
        VirtualMachine {
            id,
            jobid: Some(job.to_owned()),
            zoneid: self.zone_id.clone(),
            zonename: self.zone_name.clone(),
            serviceofferingid: self.deploy.service_offering_id.clone(),
            serviceofferingname: self.offering_name.clone(),
            templateid: self.deploy.template_id.clone(),
            cpunumber: Some(self.need.cpu),
            memory: Some(self.need.memory_mib),
            nic: self.deploy.network_ids.iter().map(nic).collect(),
            ..VirtualMachine::default()
        }
    }

    fn refused(&self) -> Refused {
        Refused::Type { zone: self.zone_id.clone(), name: self.refused_name() }
    }

    fn refused_in_network(&self) -> Refused {
        Refused::TypeIn { zone: self.zone_id.clone(), name: self.refused_name(), network: self.network() }
    }

    fn refused_name(&self) -> String {
        let reservation = self.reservation.as_ref().map(|(name, _)| name.as_str());
        reservations::refused_name(&self.type_name, reservation)
    }

    /// All that must not be refused for it to be had.
    fn takes(&self) -> impl Iterator<Item = Refused> {
        let place = [Refused::Zone(self.zone_id.clone()), Refused::Network(self.network())];
        let size = [self.refused(), self.refused_in_network()];
        place.into_iter().chain(size).chain(self.group_refused_as.clone())
    }

    /// How many machines are in its affinity groups and on hosts already. What still looks for its place, as this one did, takes none.
    fn beside(&self, machines: &[VirtualMachine]) -> usize {
        let mine = |group: &Named| self.deploy.affinity_group_ids.contains(&group.id);
        let has_place = |machine: &VirtualMachine| is_alive(machine) && is_placed(machine);
        let in_group = |machine: &VirtualMachine| machine.affinitygroup.iter().any(mine);
        machines.iter().filter(|machine| has_place(machine) && in_group(machine)).count()
    }

    fn network(&self) -> String {
        self.deploy.network_ids.first().cloned().unwrap_or_default()
    }

    fn key(&self) -> String {
        format!("{}/{}/{}", self.zone_id, self.type_name, self.network())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_says_when_all_names_of_its_machine_are_used_up() {
        assert_eq!(why_none(0, "karpenter-x-a", Vec::new()), "no instance type is available");
        assert_eq!(why_none(1, "karpenter-x-a", vec!["small: no room".into()]), "small: no room");
        for refusals in [vec![], vec!["small: no room".to_owned()]] {
            let why = why_none(MAX_ATTEMPTS, "karpenter-x-a", refusals);
            assert!(why.contains("karpenter-x-a") && why.contains("until they are expunged"), "{why}");
            assert!(!why.contains("no instance type"), "{why}");
        }
    }
}
