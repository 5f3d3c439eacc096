//! Looking after machines: what nobody wants goes, what stands still is started, what lost its tags gets them back.
//!
//! A machine goes only if it is provably ours (its name holds the digest of our cluster, and no tag says otherwise), no
//! NodeClaim wants it, nothing is at work on it, and it had time to be seen. If any of that cannot be found out, nothing goes. Which
//! machines may be meant the watch of NodeClaims tells; that nobody wants them is asked of the API server before each order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_runtime::object_key::ObjectKey;
use kube::ResourceExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::absence::Care;
use crate::client::error::{ApiError, ErrorKind};
use crate::client::model::VirtualMachine;
use crate::client::request::Scope;
use crate::client::requests;
use crate::controller::class_of;
use crate::instances::is_alive;
use crate::labels;
use crate::last_word::{LastWord, MadeFor};
use crate::naming::machine_id;
use crate::nodeclass::CloudStackNodeClass;
use crate::protection::{DeleteProtected, protected};
use crate::provider::CloudStackProvider;
use crate::resolved::scope_of;
use crate::shared::{CollectOrphans, OnStopped};

/// How often.
const INTERVAL: Duration = Duration::from_secs(120);
/// How often it is looked, without asking anybody, whether something is due sooner.
const LOOK: Duration = Duration::from_secs(10);
/// How often it is tried to reach the server at first.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// A machine younger than this may belong to a NodeClaim we have not seen yet.
pub(crate) const GRACE: Duration = Duration::from_secs(5 * 60);
/// No more than this at a time: a mistake must not empty the cloud.
pub(crate) const MAX_PER_ROUND: usize = 10;
/// How long a machine must have been seen standing still before anything is done about it: whoever stopped it may be about to start
/// it.
const STANDS_STILL: Duration = Duration::from_secs(2 * 60);
/// How often a machine that stands still is started before it is replaced.
const MAX_STARTS: u32 = 1;
/// How often the server may refuse to start it before it is replaced: a server that is busy or restarts does so in passing.
const MAX_REFUSED_STARTS: u32 = 5;
/// How long after that it must still run to be started again should it stop once more.
const RUNS_WELL: Duration = Duration::from_secs(60 * 60);

/// How often a machine that stood still was told to start.
#[derive(Debug)]
pub(crate) struct Starts {
    taken: u32,
    refused: u32,
    last: Instant,
}

impl Starts {
    fn new() -> Self {
        Self { taken: 0, refused: 0, last: Instant::now() }
    }

    /// What is next for a machine that stands still for all that. Rounds may follow each other closely, and lists are late: what came of
    /// the last order nobody knows sooner than a while after it.
    fn next(&self) -> Next {
        if self.last.elapsed() < INTERVAL {
            Next::Wait
        } else if self.taken < MAX_STARTS && self.refused < MAX_REFUSED_STARTS {
            Next::Start
        } else {
            Next::GiveUp
        }
    }
}

/// What is done about a machine that stands still.
enum Next {
    Start,
    Wait,
    GiveUp,
}

/// What is seen of machines in a round.
#[derive(Default)]
struct Survey {
    /// All of them.
    all: Vec<VirtualMachine>,
    /// Those that nobody wants, and where.
    orphans: Vec<(Scope, VirtualMachine)>,
    /// Where nobody may look.
    closed: BTreeSet<Scope>,
}

/// What a round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Ids of machines that were destroyed.
    pub destroyed: Vec<String>,
    /// Ids of machines that were started.
    pub started: Vec<String>,
    /// Ids of data disks that were destroyed because they lost their machine.
    pub disks: Vec<String>,
    /// Names of NodeClaims that were given up because their machines stand still.
    pub given_up: Vec<String>,
}

impl CloudStackProvider {
    /// Goes round until stopped.
    pub async fn look_after(&self, stop: CancellationToken) {
        // Whether the server answers and how much it may be asked is found out before anything is at stake.
        while let Err(error) = self.shared.catalogue.capabilities().await {
            // Who says no is there, and machines are looked after by whoever may not ask what the server is.
            if error.is_a_verdict() {
                tracing::warn!(%error, "CloudStack does not tell what it is; no limit of calls and no right to expunge are taken for granted");
                break;
            }
            tracing::warn!(%error, "CloudStack does not answer yet");
            if stop.run_until_cancelled(tokio::time::sleep(FIRST_CONTACT)).await.is_none() {
                return;
            }
        }
        if let Some(text) = self.shared.voice.provider_id_of_some_node(self.shared.naming.prefix()).await {
            self.shared.form.learn(&text);
        }
        let mut next = None;
        let mut looked = Instant::now();
        loop {
            // While the keys work, so that new ones can be held against them after these are revoked.
            if let Err(error) = self.shared.client.account().await {
                tracing::warn!(%error, "whose the keys are is not known yet");
            }
            let regular = *next.get_or_insert(Instant::now() + INTERVAL);
            // Lists that others read show when a machine stopped; what is due need not wait for the next round, nor put it off.
            while Instant::now() < regular && !self.shared.sightings.has_come_to_rest(STANDS_STILL, looked) {
                let pause = tokio::time::sleep_until(regular.min(Instant::now() + LOOK));
                if stop.run_until_cancelled(pause).await.is_none() {
                    return;
                }
            }
            // What comes due while the round goes on is for the next one, however soon.
            looked = Instant::now();
            let went = if looked >= regular {
                next = None;
                // How much the server may be asked changes while everything runs.
                if let Err(error) = self.shared.catalogue.capabilities().await {
                    tracing::debug!(%error, "CloudStack does not tell what it is now");
                }
                self.round_until(&stop).await
            } else {
                self.early_round(&stop).await
            };
            match went {
                Ok(round) if round == Round::default() => {}
                Ok(round) => tracing::info!(?round, "looked after machines"),
                Err(error) => tracing::warn!(%error, "machines could not be looked after"),
            }
        }
    }

    /// Machines of this cluster that no NodeClaim wants, oldest first, and old by the server's clock; and where nobody could look, and
    /// why.
    ///
    /// # Errors
    ///
    /// If it is not known where there may be any.
    pub async fn orphans(&self) -> Result<(Vec<VirtualMachine>, Vec<(Scope, ApiError)>), ApiError> {
        let (mut orphans, mut unseen) = (Vec::new(), Vec::new());
        let Some(claims) = self.shared.objects.node_claims() else { return Ok((orphans, unseen)) };
        for scope in self.shared.scopes()? {
            match self.ours(&scope, Care::Glance).await {
                Ok(machines) => {
                    orphans.extend(machines.into_iter().filter(|machine| self.is_orphan(machine, &claims)));
                }
                Err(error) => unseen.push((scope, error)),
            }
        }
        Ok((orphans, unseen))
    }

    /// Whether NodeClaims name this NodeClass, as the API server has it: a watch may be late, and what it has not brought yet is
    /// launched and destroyed by what the NodeClass says, too.
    ///
    /// # Errors
    ///
    /// If that cannot be found out.
    pub async fn is_used(&self, class: &CloudStackNodeClass) -> Result<bool, String> {
        let key = Some(ObjectKey::cluster(class.name_any()));
        let claims = self.shared.voice.claims_now().await?;
        Ok(claims.iter().any(|claim| class_of(claim) == key))
    }

    /// What of this cluster is left where only this NodeClass leads, so that nobody would see to it once that is gone: what a launch
    /// made whose answer never came, perhaps. In words, the machines first.
    ///
    /// # Errors
    ///
    /// If that cannot be found out.
    pub async fn left_behind(&self, class: &CloudStackNodeClass) -> Result<Vec<String>, ApiError> {
        let shared = &self.shared;
        let scope = scope_of(&class.spec.clone().unwrap_or_default(), &shared.scope());
        let is_seen_to = shared.scopes_but(Some(&class.name_any()))?.contains(&scope);
        let nothing_can_be_done = shared.options.collect_orphans != CollectOrphans::Destroy
            || shared.client.session().has_no_keys();
        if is_seen_to || nothing_can_be_done {
            return Ok(Vec::new());
        }
        if shared.lost.may_come(&scope) {
            let text = format!("a machine that was ordered in {} may still come", scope.write());
            return Err(ApiError::new("listVirtualMachines", ErrorKind::NotSent, text));
        }
        let mut machines = match self.ours(&scope, Care::Complete).await {
            Err(error) if self.is_beyond_reach(class, &error) => return Ok(Vec::new()),
            Err(error) if error.kind == ErrorKind::Auth => {
                let text = format!(
                    "{}; its keys worked before, so machines may be left in {}: write keys of that account into {}, or delete it if nothing is left there",
                    error.text,
                    scope.write(),
                    shared.keys_place()
                );
                return Err(ApiError { text, ..error });
            }
            machines => machines?,
        };
        machines.retain(|machine| !matches!(machine.state.as_str(), "Destroyed" | "Expunging"));
        let machines = machines.into_iter().map(|machine| format!("virtual machine {}", machine.name));
        let mut left: Vec<String> = machines.collect();
        left.extend(self.disks_left(&scope, class).await?);
        // No group is in anybody's way while machines are in it, and they go first.
        if left.is_empty() {
            left.extend(self.groups_left(&scope, class).await?);
        }
        Ok(left)
    }

    /// Whether nobody will ever find out what is left where this NodeClass leads, or nothing can be: no keys of it were ever let in, or
    /// those that were are refused by now and somebody took their Secret away. While the Secret is there, keys that work may come.
    fn is_beyond_reach(&self, class: &CloudStackNodeClass, error: &ApiError) -> bool {
        let client = &self.shared.client;
        let is_refused = error.kind == ErrorKind::Auth;
        let is_without_secret = client.has_lost_its_secret();
        // Whoever led before wrote down what it found.
        let found = class.status.as_ref().is_some_and(|status| {
            status.zones.as_ref().is_some_and(|zones| !zones.is_empty())
                || status.networks.as_ref().is_some_and(|networks| !networks.is_empty())
                || status.templates.as_ref().is_some_and(|templates| !templates.is_empty())
        });
        if client.was_ever_let_in() || found {
            return is_refused && is_without_secret;
        }
        is_refused || is_without_secret
    }

    /// The machines that are ours by their names: no others go without being wanted by anybody.
    async fn ours(&self, scope: &Scope, care: Care) -> Result<Vec<VirtualMachine>, ApiError> {
        let mut machines = self.known(scope, care).await?;
        machines.retain(|machine| self.is_ours_by_name(machine));
        Ok(machines)
    }

    fn is_ours_by_name(&self, machine: &VirtualMachine) -> bool {
        machine.name.starts_with(self.shared.naming.prefix())
    }

    /// The machines that are ours by name or tags: people give machines other names, and Karpenter another prefix.
    async fn known(&self, scope: &Scope, care: Care) -> Result<Vec<VirtualMachine>, ApiError> {
        match self.shared.all_machines(scope, care).await {
            Err(error) if self.shared.may_leave_out(scope, &error) => Ok(Vec::new()),
            machines => machines,
        }
    }

    /// No machine is older than its NodeClaim, whatever the server's clock says: who launched nothing yet learns from that how far
    /// it is behind.
    fn compare_clocks(&self, machines: &[VirtualMachine], claims: &[Arc<NodeClaim>]) {
        for machine in machines {
            let claimed =
                self.owner(machine, claims).and_then(|claim| claim.metadata.creation_timestamp.as_ref());
            if let (Some(claimed), Some(made)) = (claimed, machine.created()) {
                self.shared.server_is_behind_by_at_least(claimed.0.duration_since(made));
            }
        }
    }

    fn age(&self, machine: &VirtualMachine) -> Option<Duration> {
        let seen = self.shared.sightings.least_age(&machine.id);
        machine.created().map(|created| self.shared.age(created).max(seen))
    }

    fn is_orphan(&self, machine: &VirtualMachine, claims: &[Arc<NodeClaim>]) -> bool {
        let gone = matches!(machine.state.as_str(), "Destroyed" | "Expunging");
        let old = self.age(machine).is_some_and(|age| age >= GRACE);
        !gone && old && !machine.has_pending_job() && !claims.iter().any(|claim| self.wants(claim, machine))
    }

    /// Whether this claim's machine is this one.
    fn wants(&self, claim: &NodeClaim, machine: &VirtualMachine) -> bool {
        let provider_id =
            claim.status.as_ref().and_then(|status| status.provider_id.as_deref()).unwrap_or_default();
        if let Some(id) = machine_id(provider_id) {
            return id == machine.id;
        }
        // Not launched yet, as far as the cluster knows: any machine of its name may become its own.
        match machine.tag(labels::TAG_NODE_CLAIM_UID) {
            Some(uid) => Some(uid) == claim.uid().as_deref(),
            None => self.shared.naming.attempt(claim, &machine.name).is_some(),
        }
    }

    /// The claim whose machine this is; of several that may want it the one of which it is surest.
    fn owner<'a>(
        &self,
        machine: &VirtualMachine,
        claims: &'a [Arc<NodeClaim>],
    ) -> Option<&'a Arc<NodeClaim>> {
        let sureness = |claim: &&Arc<NodeClaim>| {
            let names_it = claim.status.as_ref().is_some_and(|status| status.provider_id.is_some());
            (names_it, self.shared.naming.attempt(claim, &machine.name).is_some())
        };
        claims.iter().filter(|claim| self.wants(claim, machine)).max_by_key(sureness)
    }

    /// One round.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is. Nothing was destroyed then.
    pub async fn round(&self) -> Result<Round, ApiError> {
        self.round_until(&CancellationToken::new()).await
    }

    /// One round, in which nothing more is ordered once it is to stop: somebody else may lead by then.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is. Nothing was destroyed then.
    pub async fn round_until(&self, stop: &CancellationToken) -> Result<Round, ApiError> {
        let last_word = LastWord::new(&self.shared, stop);
        let mut round = Round::default();
        // Not knowing what is wanted is no reason to destroy anything.
        let Some(claims) = self.shared.objects.node_claims() else { return Ok(round) };
        let session = self.shared.client.session();
        self.recall_nodes(&claims).await;
        let scopes = self.shared.scopes()?;
        let ours = claims.iter().map(|claim| &**claim).filter(|claim| self.shared.is_ours(claim));
        self.look_at_events(&scopes, ours).await;
        // Whoever asks after the machine of a NodeClaim goes by the job of its order.
        let claimed = claims.iter().filter_map(|claim| claim.status.as_ref()?.provider_id.as_deref());
        let claimed: BTreeSet<&str> = claimed.filter_map(machine_id).collect();
        let mut going = self.shared.deletions.ids();
        going.retain(|id| !claimed.contains(id.as_str()));
        let Survey { all, mut orphans, closed } = self.tend_all(&scopes, &claims, &mut round, stop).await?;
        // What would not go before must not keep the others from going.
        orphans.sort_by_key(|(_, machine)| self.shared.deletions.has(&machine.id));
        for (scope, machine) in orphans {
            // The lists take a while, and so does every order: somebody may want it by now.
            let now = self.shared.objects.node_claims();
            let unwanted = now.is_some_and(|claims| self.is_orphan(&machine, &claims));
            if unwanted && round.destroyed.len() < MAX_PER_ROUND {
                self.collect(&machine, &scope, &last_word, &mut round).await;
            }
        }
        let nothing = all.is_empty() && closed.is_empty();
        self.shared.conclude(&self.shared.has_no_machines, nothing, &session);
        let mut seen: BTreeSet<String> = all.iter().map(|machine| machine.id.clone()).collect();
        seen.extend(self.out_of_sight(&closed));
        // What nobody has a claim to may be in a scope that cannot be looked into.
        self.forget_all_but(&seen, if closed.is_empty() { &going } else { &[] });
        let open: Vec<Scope> = scopes.into_iter().filter(|scope| !closed.contains(scope)).collect();
        if let Some(claims) = self.shared.objects.node_claims() {
            self.collect_disks(&open, (&claims, &last_word), &all, &mut round).await;
        }
        self.remove_empty_groups(&last_word).await?;
        Ok(round)
    }

    /// A round between two others, because something is due. It sees to the machines that are wanted; how many of the others may go is
    /// counted by full rounds.
    async fn early_round(&self, stop: &CancellationToken) -> Result<Round, ApiError> {
        let mut round = Round::default();
        if let Some(claims) = self.shared.objects.node_claims() {
            self.tend_all(&self.shared.scopes()?, &claims, &mut round, stop).await?;
        }
        Ok(round)
    }

    /// Looks at all machines and sees to those that are wanted.
    async fn tend_all(
        &self,
        scopes: &[Scope],
        claims: &[Arc<NodeClaim>],
        round: &mut Round,
        stop: &CancellationToken,
    ) -> Result<Survey, ApiError> {
        let mut survey = Survey::default();
        for scope in scopes {
            // What is missed goes or is tended two minutes later.
            let machines = match self.known(scope, Care::Glance).await {
                // Gone, or closed to us: nobody knows what is in it, and all others are looked after.
                Err(error) if self.shared.is_closed(scope, &error) => {
                    self.shared.tell_closed(scope, &error);
                    survey.closed.insert(scope.clone());
                    continue;
                }
                machines => machines?,
            };
            self.compare_clocks(&machines, claims);
            for machine in &machines {
                self.shared.sightings.see(machine);
                if self.is_orphan(machine, claims) {
                    if self.is_ours_by_name(machine) {
                        survey.orphans.push((scope.clone(), machine.clone()));
                    }
                } else if let Some(claim) = self.owner(machine, claims) {
                    // Two Secrets may hold keys of one account: one of them sees to it.
                    if self.shared.is_ours(claim) && !stop.is_cancelled() {
                        self.tend(machine, scope, (claim, claims), round).await;
                    }
                }
            }
            survey.all.extend(machines);
        }
        Ok(survey)
    }

    /// The machines of NodeClaims that may be in these scopes.
    fn out_of_sight(&self, closed: &BTreeSet<Scope>) -> Vec<String> {
        let claims = closed.iter().flat_map(|scope| self.shared.claims_that_may_be_in(scope));
        let named = claims.filter_map(|claim| claim.status.as_ref()?.provider_id.clone());
        named.filter_map(|id| machine_id(&id).map(str::to_owned)).collect()
    }

    /// What is remembered of machines that are gone goes too.
    fn forget_all_but(&self, seen: &BTreeSet<String>, going: &[String]) {
        // Nobody asks after machines that had no NodeClaim. What was ordered while they were listed is not meant.
        for id in going.iter().filter(|id| !seen.contains(*id)) {
            if self.shared.deletions.ended(id) {
                self.shared.metrics.jobs_ended.inc(&["destroy", "succeeded"]);
            }
        }
        self.started().retain(|id, _| seen.contains(id));
        self.shared.tagged_disks.keep(seen);
        self.shared.later_disks.keep(seen);
        self.shared.troubled.keep(seen);
        self.shared.sightings.keep(seen);
        self.shared.protected.keep(seen);
    }

    /// Sees to a machine that nobody wants.
    async fn collect(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        last_word: &LastWord<'_>,
        round: &mut Round,
    ) {
        let shared = &self.shared;
        let name = machine.tag(labels::TAG_NODE_CLAIM);
        let whose = MadeFor { name, uid: machine.tag(labels::TAG_NODE_CLAIM_UID) };
        // Whoever asks after the NodeClaim it was made for finds the answer there.
        let mut former = NodeClaim::default();
        former.metadata.name = whose.name.map(str::to_owned);
        former.metadata.uid = whose.uid.map(str::to_owned);
        let what = format!("virtual machine {} ({}) has no NodeClaim", machine.name, machine.id);
        match shared.options.collect_orphans {
            CollectOrphans::Never => {}
            CollectOrphans::Tell => {
                tracing::warn!("{what}; it would be destroyed (CLOUDSTACK_COLLECT_ORPHANS)");
                shared.voice.warn(&former, "OrphanFound", what);
            }
            CollectOrphans::Destroy => {
                let discarded = match machine.deleteprotection {
                    true => Err(DeleteProtected),
                    false if !last_word.nobody_wants(whose, |claim| self.wants(claim, machine)).await => {
                        Ok(false)
                    }
                    false => shared.discard(machine, scope, "orphaned").await,
                };
                match discarded {
                    Ok(true) => {
                        shared.metrics.orphans.inc(&[]);
                        shared.voice.inform(&former, "OrphanDeleted", format!("{what}; destroyed"));
                        round.destroyed.push(machine.id.clone());
                    }
                    Ok(false) => {}
                    Err(DeleteProtected) => {
                        tracing::warn!("{what}, and stays: {}", protected(machine));
                        shared.voice.warn(&former, "DeleteRefused", protected(machine));
                    }
                }
            }
        }
    }

    /// Sees to a machine that is wanted.
    async fn tend(
        &self,
        machine: &VirtualMachine,
        scope: &Scope,
        (claim, claims): (&NodeClaim, &[Arc<NodeClaim>]),
        round: &mut Round,
    ) {
        let seen_so = self.shared.sightings.see(machine);
        if machine.has_pending_job() || claim.metadata.deletion_timestamp.is_some() {
            return;
        }
        // It cannot be started, so nothing but another machine helps.
        if machine.state == "RestoreError" {
            return self.stands_still(machine, claim, claims, round).await;
        }
        if !is_alive(machine) {
            return;
        }
        self.look_at_protection(machine, claim);
        if let Some(class) = self.shared.objects.node_class(&claim.spec.node_class_ref.name) {
            let tags = self.tags(claim, &class);
            self.shared.repair_tags(machine, scope, &tags).await;
            self.attach_later_disks(machine, scope, claim, &class).await;
            // What the machine says, not the NodeClass, which may have got its disks later.
            if machine.tag(labels::TAG_DATA_DISKS).is_some() {
                self.shared.tag_disks(machine, scope, &tags).await;
            }
        }
        if self.leaves_before_interruption(machine, claim).await {
            return;
        }
        // What is just being made, or does not say when it was, is left alone however long it is seen so.
        let settled = seen_so >= STANDS_STILL && self.age(machine).is_some_and(|age| age >= STANDS_STILL);
        match machine.state.as_str() {
            "Running" => {
                self.forgive_starts(&machine.id);
                return self.runs(machine, claim).await;
            }
            "Unknown" if settled => return self.is_unknown(machine, claim).await,
            "Stopped" if settled => {}
            _ => return,
        }
        let next = match self.shared.options.on_stopped {
            OnStopped::Ignore => return,
            OnStopped::Start => self.started().get(&machine.id).map_or(Next::Start, Starts::next),
            OnStopped::Replace => Next::GiveUp,
        };
        match next {
            Next::Wait => {}
            Next::Start => {
                let answer = self.shared.client.call(&requests::start(&machine.id)).await;
                self.note_start(&machine.id, answer.is_ok());
                match answer {
                    Ok(_) => round.started.push(machine.id.clone()),
                    Err(error) => tracing::warn!(machine = machine.id, %error, "cannot start it"),
                }
            }
            Next::GiveUp => self.stands_still(machine, claim, claims, round).await,
        }
    }

    fn started(&self) -> MutexGuard<'_, BTreeMap<String, Starts>> {
        self.shared.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was told to start, and whether the server took the order. One whose answer was lost may be given again: the machine would not
    /// stand still had it come to anything.
    fn note_start(&self, id: &str, is_taken: bool) {
        let mut started = self.started();
        let starts = started.entry(id.to_owned()).or_insert_with(Starts::new);
        starts.last = Instant::now();
        let count = if is_taken { &mut starts.taken } else { &mut starts.refused };
        *count += 1;
    }

    /// It runs: what stopped it long ago says nothing of the next time.
    fn forgive_starts(&self, id: &str) {
        let mut started = self.started();
        if started.get(id).is_some_and(|starts| starts.last.elapsed() >= RUNS_WELL) {
            started.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use karpenter_runtime::environment::Environment;

    use super::*;
    use crate::client::model::Tag;
    use crate::client::signature::Credentials;
    use crate::client::throttle::Rate;
    use crate::client::transport::{Transport, TransportError};
    use crate::client::{Client, Session};
    use crate::{Objects, ProviderOptions};

    /// A cluster without anything.
    struct Empty;

    impl Objects for Empty {
        fn node_class(&self, _: &str) -> Option<Arc<CloudStackNodeClass>> {
            None
        }

        fn node_classes(&self) -> Option<Vec<Arc<CloudStackNodeClass>>> {
            Some(Vec::new())
        }

        fn node_claims(&self) -> Option<Vec<Arc<NodeClaim>>> {
            Some(Vec::new())
        }
    }

    /// A server that has nothing. This client moves to another account before it answers the next question.
    #[derive(Default)]
    struct Nothing {
        moves: Mutex<Option<Client>>,
    }

    impl Transport for Nothing {
        fn send(
            &self,
            request: http::Request<Bytes>,
        ) -> BoxFuture<'_, Result<http::Response<Bytes>, TransportError>> {
            let query = request.uri().query().unwrap_or_default();
            let command = query.split('&').find_map(|part| part.strip_prefix("command=")).unwrap_or_default();
            let answer = format!("{{\"{}response\":{{}}}}", command.to_lowercase());
            let moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(client) = moves {
                client.move_to(session("third", Arc::new(Nothing::default())));
            }
            std::future::ready(Ok(http::Response::new(Bytes::from(answer)))).boxed()
        }
    }

    fn session(key: &str, transport: Arc<dyn Transport>) -> Session {
        let endpoint = "https://cloud/client/api".to_owned();
        Session { endpoint, credentials: Credentials::new(key, "secret"), transport, project: None }
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_move_to_another_account_anything_may_be_there_until_a_list_of_it_was_read() {
        let environment = Environment::seeded("2026-01-01T00:00:00Z".parse().expect("a time"), 1);
        let server = Arc::new(Nothing::default());
        let client = Client::new(session("first", server.clone()), Rate::default(), &environment);
        let options = ProviderOptions::new("test");
        let provider = CloudStackProvider::new(client.clone(), options, Arc::new(Empty), &environment);
        let anything = || client.made().expect("known").anything;
        assert!(anything(), "nobody looked yet");
        provider.round().await.expect("a round");
        assert!(!anything());
        client.move_to(session("second", server.clone()));
        assert!(anything(), "that was another account");
        provider.round().await.expect("a round");
        assert!(!anything());
        *server.moves.lock().expect("a lock") = Some(client.clone());
        provider.round().await.expect("a round");
        assert_eq!(client.session().credentials.api_key(), "third");
        assert!(anything(), "the round began in another account");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_ordered_to_start_is_given_time_before_anything_else_is_done_about_it() {
        let mut starts = Starts::new();
        starts.taken = 1;
        assert!(matches!(starts.next(), Next::Wait), "a late list may still show it standing still");
        tokio::time::advance(INTERVAL).await;
        assert!(matches!(starts.next(), Next::GiveUp));
        starts.taken = 0;
        starts.refused = 1;
        assert!(matches!(starts.next(), Next::Start));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_of_cloudstacks_own_kubernetes_service_is_not_ours_whatever_its_tags() {
        let environment = Environment::seeded("2026-01-01T00:00:00Z".parse().expect("a time"), 1);
        let client = Client::new(session("key", Arc::new(Nothing::default())), Rate::default(), &environment);
        let options = ProviderOptions::new("test");
        let provider = CloudStackProvider::new(client, options, Arc::new(Empty), &environment);
        let tag = |key: &str| Tag { key: key.into(), value: "owned".into() };
        let mut machine = VirtualMachine::default();
        assert_eq!(provider.shared.why_not_ours(&machine), None);
        machine.tags = vec![tag("kubernetes.io/cluster/other"), tag("kubernetes.io/cluster/test")];
        assert_eq!(provider.shared.why_not_ours(&machine), None, "a tag says that it is ours");
        machine.vmtype = "CksNode".into();
        assert!(provider.shared.why_not_ours(&machine).is_some_and(|why| why.contains("Kubernetes service")));
    }
}
