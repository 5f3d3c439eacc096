//! Watches launches to their end. A launch returns once its machine is on a host; what goes wrong after that is found here:
//! the reason is remembered, the machine goes, and so does its NodeClaim, so that the core tries something else at once
//! instead of when its patience ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::{ConditionStatus, NodeClaim, labels as well_known, nodeclaim};
use kube::ResourceExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::absence::Whereabouts;
use crate::client::error::{ApiError, CapacityKind, ErrorKind};
use crate::client::job::JobState;
use crate::client::model::{Nic, VirtualMachine};
use crate::client::request::Scope;
use crate::client::requests;
use crate::instances::no_address;
use crate::naming::machine_id;
use crate::provider::CloudStackProvider;
use crate::unavailable::{Refused, Stage};
use crate::{GROUP, affinity, labels, node_names, reservations};

/// How often launches are looked at while there are any.
const INTERVAL: Duration = Duration::from_secs(5);

/// How long a running machine may be without a registered Node before it is looked for, and how often then; and how long a machine may
/// be missing from lists before it is asked after.
const LOOK_CLOSER: Duration = Duration::from_secs(30);

/// How long a Node may wait for a cloud controller manager before that is told of.
const NAMED_WITHIN: Duration = Duration::from_secs(2 * 60);

/// How long lists may take to show a machine that was ordered.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// How long a machine that its NodeClaim has no use for is thought of; after that it is garbage collection's.
const ESTRANGED_FOR: Duration = Duration::from_secs(10 * 60);

/// Jobs that make machines, by the machine's id, and whether the machine was seen running.
#[derive(Debug, Default)]
pub(crate) struct Launches(Mutex<BTreeMap<String, Launching>>);

#[derive(Clone, Debug, Default)]
struct Launching {
    job: Option<String>,
    ran: bool,
    /// When its Node was last looked for, or the machine itself where no list shows it.
    looked: Option<Instant>,
    /// Whom it was ordered for, if that was here.
    order: Option<Order>,
}

/// For which NodeClaim a machine was ordered, where and when.
#[derive(Clone, Debug)]
struct Order {
    claim: String,
    uid: String,
    scope: Scope,
    at: Instant,
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Launching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine is being made by this job.
    pub(crate) fn begun(&self, machine: &str, job: &str, claim: &NodeClaim, scope: &Scope) {
        let (uid, at) = (claim.uid().unwrap_or_default(), Instant::now());
        let order = Order { claim: claim.name_any(), uid, scope: scope.clone(), at };
        let mut launches = self.lock();
        let launching = launches.entry(machine.to_owned()).or_default();
        (launching.job, launching.order) = (Some(job.to_owned()), Some(order));
    }

    /// A machine is of no further interest here.
    pub(crate) fn forget(&self, machine: &str) {
        self.lock().remove(machine);
    }

    /// Machines that were ordered here for NodeClaims that have another by now, or are gone.
    fn estranged(&self, claims: &[Arc<NodeClaim>]) -> Vec<(String, Order)> {
        let is_estranged = |id: &str, order: &Order| {
            match claims.iter().find(|claim| claim.uid().as_deref() == Some(order.uid.as_str())) {
                // With it go its machines.
                Some(claim) if claim.metadata.deletion_timestamp.is_some() => false,
                Some(claim) => machine_of(claim).is_some_and(|named| named != id),
                None => true,
            }
        };
        let launches = self.lock();
        let ordered = launches.iter().filter_map(|(id, launching)| Some((id, launching.order.as_ref()?)));
        let estranged = ordered.filter(|(id, order)| is_estranged(id, order));
        estranged.map(|(id, order)| (id.clone(), order.clone())).collect()
    }

    fn job_of(&self, machine: &str) -> Option<String> {
        self.lock().get(machine).and_then(|launching| launching.job.clone())
    }

    /// Whether it is seen running for the first time.
    fn first_runs(&self, machine: &str) -> bool {
        let mut launches = self.lock();
        let launching = launches.entry(machine.to_owned()).or_default();
        !std::mem::replace(&mut launching.ran, true)
    }

    /// Whether it is time to look closer: it has run a while and nobody has registered its Node, or no list shows it.
    fn is_due(&self, machine: &str) -> bool {
        let mut launches = self.lock();
        let looked = &mut launches.entry(machine.to_owned()).or_default().looked;
        let due = looked.is_some_and(|looked| looked.elapsed() >= LOOK_CLOSER);
        if due || looked.is_none() {
            *looked = Some(Instant::now());
        }
        due
    }

    /// How many machines are being made.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().filter(|launching| !launching.ran).count()
    }
}

/// A NodeClaim of ours that has a machine and no node yet.
fn is_under_way(claim: &NodeClaim) -> bool {
    claim.spec.node_class_ref.group == GROUP
        && claim.metadata.deletion_timestamp.is_none()
        && claim.condition_status(nodeclaim::REGISTERED) != ConditionStatus::True
}

fn machine_of(claim: &NodeClaim) -> Option<&str> {
    machine_id(claim.status.as_ref()?.provider_id.as_deref()?)
}

impl CloudStackProvider {
    /// Goes on until stopped.
    pub async fn watch_launches(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            if let Err(error) = self.look_at_launches().await {
                tracing::warn!(%error, "launches could not be looked at");
            }
        }
    }

    /// Looks at every launch once.
    ///
    /// # Errors
    ///
    /// If CloudStack cannot say what there is.
    pub async fn look_at_launches(&self) -> Result<(), ApiError> {
        let shared = &self.shared;
        let Some(claims) = shared.objects.node_claims() else { return Ok(()) };
        for claim in self.measure_registered(&claims) {
            self.learn_from(claim).await;
        }
        let under_way = claims.iter().filter(|claim| is_under_way(claim) && shared.is_ours(claim));
        let under_way: Vec<&Arc<NodeClaim>> = under_way.collect();
        let ids: BTreeSet<&str> = under_way.iter().filter_map(|claim| machine_of(claim)).collect();
        // A launch whose id is not written down yet is one too, so what is new is kept a while: until its claim is.
        if under_way.iter().all(|claim| machine_of(claim).is_some()) {
            shared.launches.lock().retain(|id, launching| {
                let is_recent = |order: &Order| order.at.elapsed() < ESTRANGED_FOR;
                ids.contains(id.as_str()) || launching.order.as_ref().is_some_and(is_recent)
            });
        }
        self.part_from_estranged(&claims).await;
        let mut unseen: BTreeMap<&str, &Arc<NodeClaim>> = BTreeMap::new();
        let mut by_scope: BTreeMap<Scope, Vec<&Arc<NodeClaim>>> = BTreeMap::new();
        for claim in under_way.iter().filter(|claim| machine_of(claim).is_some()) {
            unseen.extend(machine_of(claim).map(|id| (id, *claim)));
            for scope in self.scopes_of(claim)? {
                by_scope.entry(scope).or_default().push(claim);
            }
        }
        for (scope, claims) in by_scope {
            let machines = match shared.inventory.recent(&scope, INTERVAL).await {
                // What is in it cannot be seen, and holds up no other launch.
                Err(error) if shared.is_closed(&scope, &error) => {
                    unseen.retain(|id, _| !claims.iter().any(|claim| machine_of(claim) == Some(*id)));
                    continue;
                }
                machines => machines?,
            };
            for claim in claims {
                let Some(id) = machine_of(claim) else { continue };
                let listed = machines.iter().find(|machine| machine.id == id).cloned();
                // The list knows machines by their names, which people can change.
                let machine = match listed {
                    Some(machine) => Some(machine),
                    None => shared.lookups.find(id, &scope).await?,
                };
                shared.part_from_twins(claim, id, &machines, &scope).await;
                if let Some(machine) = machine {
                    if !matches!(machine.state.as_str(), "Destroyed" | "Expunging") {
                        unseen.remove(id);
                    }
                    self.look_at_launch(claim, &machine, &machines).await;
                    if let Some(class) = shared.objects.node_class(&claim.spec.node_class_ref.name) {
                        self.attach_later_disks(&machine, &scope, claim, &class).await;
                    }
                }
            }
        }
        for (id, claim) in unseen {
            self.ask_after(claim, id).await;
        }
        let jobs = &shared.metrics.jobs;
        jobs.set(&["deploying", &shared.whose_label], shared.launches.count() as f64);
        jobs.set(&["destroying", &shared.whose_label], shared.deletions.count() as f64);
        Ok(())
    }

    /// No list shows the machine of a launch. If it is gone, whoever removed it, its NodeClaim waits for nothing.
    async fn ask_after(&self, claim: &NodeClaim, id: &str) {
        let shared = &self.shared;
        if !shared.launches.is_due(id) {
            return;
        }
        // A server on which the machine never was says the same of it as one on which it is gone.
        if let Err(error) = shared.must_see(claim).await {
            tracing::warn!(machine = id, %error, "whether it is there is not known");
            return;
        }
        match shared.whereabouts(id).await {
            Ok(Whereabouts::Gone) => {
                shared.unavailable.end_trial(&claim.uid().unwrap_or_default());
                let why = format!("virtual machine {id} is gone, and no Node had registered");
                shared.voice.give_up(claim, "LaunchFailed", &why).await;
            }
            // It may come, and how long that may take others say.
            Ok(Whereabouts::Going | Whereabouts::Hidden(_)) => {}
            Err(error) => tracing::warn!(machine = id, %error, "whether it is there is not known"),
        }
    }

    /// A launch of ours may have lost: another wrote down its own machine first, or the NodeClaim went meanwhile. Then what we made goes.
    async fn part_from_estranged(&self, claims: &[Arc<NodeClaim>]) {
        let shared = &self.shared;
        for (id, order) in shared.launches.estranged(claims) {
            // Not knowing what is there is no reason to forget it.
            let Ok(machines) = shared.inventory.recent(&order.scope, INTERVAL).await else { continue };
            let is_done = match machines.iter().find(|machine| machine.id == id) {
                Some(machine) if matches!(machine.state.as_str(), "Destroyed" | "Expunging") => true,
                Some(machine) => {
                    shared.part_from(machine, (&order.claim, &order.uid), &order.scope).await
                        || shared.deletions.has(&id)
                }
                None => order.at.elapsed() >= SHOWN_WITHIN,
            };
            if is_done {
                shared.launches.forget(&id);
            }
        }
    }

    /// How long it took to a registered Node, once for every machine whose launch was seen here: those are given back.
    fn measure_registered<'a>(&self, claims: &'a [Arc<NodeClaim>]) -> Vec<&'a NodeClaim> {
        let shared = &self.shared;
        let mut measured = Vec::new();
        for claim in claims.iter().filter(|claim| !is_under_way(claim)) {
            let registered = claim.condition_status(nodeclaim::REGISTERED) == ConditionStatus::True;
            let begun = claim.metadata.creation_timestamp.as_ref();
            if let (true, Some(machine), Some(begun)) = (registered, machine_of(claim), begun)
                && shared.launches.lock().remove(machine).is_some()
            {
                shared.unavailable.allow_tried(&claim.uid().unwrap_or_default());
                let took = shared.clock.since(begun.0);
                shared.metrics.launch_duration.with(&["registered"]).observe_duration(took);
                measured.push(&**claim);
            }
        }
        measured
    }

    /// The first node of an instance type shows how much memory such nodes have.
    async fn learn_from(&self, claim: &NodeClaim) {
        let name = claim.status.as_ref().and_then(|status| status.node_name.clone());
        if let Some(name) = name.filter(|_| self.shared.learnt_memory.lacks(claim))
            && let Some(node) = self.shared.voice.node(&name).await
        {
            self.shared.learnt_memory.learn(claim, &node);
        }
    }

    async fn look_at_launch(&self, claim: &NodeClaim, machine: &VirtualMachine, machines: &[VirtualMachine]) {
        let shared = &self.shared;
        match machine.state.as_str() {
            "Running" if shared.launches.first_runs(&machine.id) => {
                shared.metrics.jobs_ended.inc(&["deploy", "succeeded"]);
                shared.unavailable.allow(&Refused::Zone(machine.zoneid.clone()), Stage::Running);
                shared.unavailable.allow(&type_of(claim, machine), Stage::Running);
                shared.unavailable.allow(&type_in_network(claim, machine), Stage::Running);
                shared.unavailable.allow(&Refused::Network(network_of(machine)), Stage::Running);
                shared.unavailable.allow_tried(&claim.uid().unwrap_or_default());
                if let Some(created) = machine.created() {
                    let took = shared.clock.since(created);
                    shared.metrics.launch_duration.with(&["job"]).observe_duration(took);
                }
            }
            "Running" if shared.launches.is_due(&machine.id) => self.match_node(claim, machine).await,
            "Error" => {
                shared.metrics.jobs_ended.inc(&["deploy", "failed"]);
                let error = self.why_it_failed(&machine.id).await;
                self.remember_failure(claim, machine, machines, &error);
                shared.unavailable.end_trial(&claim.uid().unwrap_or_default());
                // With its NodeClaim goes the machine: nothing of a living NodeClaim is destroyed.
                let why = format!("virtual machine {} could not be started: {error}", machine.name);
                shared.voice.give_up(claim, "LaunchFailed", &why).await;
            }
            _ => {}
        }
    }

    /// A Node that names this machine in another form is this machine's all the same. Its provider id cannot be changed, so the
    /// NodeClaim carries it from now on, and so do those that come after.
    async fn match_node(&self, claim: &NodeClaim, machine: &VirtualMachine) {
        let voice = &self.shared.voice;
        let named = match voice.node(&machine.name).await {
            Some(node) => {
                let named = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
                let Some(named) = named.filter(|id| !id.is_empty()) else {
                    return self.name_node(&node, claim, machine).await;
                };
                named
            }
            // Nodes may be called otherwise than their machines.
            None => match self.shared.unregistered.provider_id_of(&machine.id, voice).await {
                Some(named) => named,
                None => return,
            },
        };
        let carried = claim.status.as_ref().and_then(|status| status.provider_id.as_ref());
        if machine_id(&named) == Some(machine.id.as_str()) && carried != Some(&named) {
            self.shared.form.learn(&named);
            voice.carry(claim, &named).await;
        }
    }

    /// A Node that nobody has named is its machine's by name and address, and gets the provider id of its NodeClaim; unless it waits for a
    /// cloud controller manager, which knows more of it. One that does not come is told of.
    async fn name_node(&self, node: &Node, claim: &NodeClaim, machine: &VirtualMachine) {
        let shared = &self.shared;
        let carried = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
        // Then others see to it.
        let (Some(carried), false) = (carried, shared.options.name_nodes) else { return };
        if node_names::waits(node) {
            let since = node.metadata.creation_timestamp.as_ref();
            if since.is_some_and(|since| shared.clock.since(since.0) >= NAMED_WITHIN) {
                let text = format!(
                    "Node {} waits for a cloud controller manager to give it a provider id, and none does; set CLOUDSTACK_NAME_NODES=true, start kubelet with --provider-id={carried}, or see to the cloud controller manager",
                    machine.name
                );
                shared.voice.warn(claim, "NodeWithoutProviderID", text);
            }
        } else if node_names::is_of(node, machine) {
            shared.voice.name_node(node, carried).await;
        }
    }

    async fn why_it_failed(&self, machine: &str) -> ApiError {
        let known = self.shared.launches.job_of(machine);
        match known {
            Some(job) => self.shared.reason(&job).await,
            // After a restart: servers since 4.22.1 know the last job of a machine.
            None => match self.shared.client.call(&requests::query_job_of_machine(machine)).await {
                Ok(answer) => match crate::client::job::Job::from_answer(&answer).map(|job| job.state) {
                    Ok(JobState::Failed(error)) => error,
                    _ => unknown(),
                },
                Err(_) => unknown(),
            },
        }
    }

    /// What failed is not offered again for a while.
    fn remember_failure(
        &self,
        claim: &NodeClaim,
        machine: &VirtualMachine,
        machines: &[VirtualMachine],
        error: &ApiError,
    ) {
        let label = |key: &str| claim.labels().get(key).cloned().unwrap_or_default();
        let this = type_of(claim, machine);
        let refused = match &error.kind {
            ErrorKind::Capacity(CapacityKind::Storage) => {
                let type_name = label(well_known::INSTANCE_TYPE);
                return self.shared.unavailable.refuse_unstored(this, &machine.zoneid, &type_name);
            }
            // A reservation that is full says nothing of the hosts outside it.
            ErrorKind::Capacity(CapacityKind::Affinity) if machine.tag(labels::TAG_RESERVATION).is_none() => {
                let class = self.shared.objects.node_class(&claim.spec.node_class_ref.name);
                let spec = class.and_then(|class| class.spec.clone()).unwrap_or_default();
                let claims = self.shared.objects.node_claims().unwrap_or_default();
                affinity::refused_as(&spec, &label(well_known::NODEPOOL))
                    .filter(|_| affinity::has_others_beside(&spec, claim, &claims, machines))
                    .unwrap_or(this)
            }
            ErrorKind::Capacity(CapacityKind::InWords) => type_in_network(claim, machine),
            // Which of several is meant the server does not say.
            ErrorKind::Network if machine.nic.len() == 1 => Refused::Network(network_of(machine)),
            ErrorKind::Network => type_in_network(claim, machine),
            ErrorKind::Capacity(CapacityKind::Addresses) => {
                self.shared.catalogue.forget_networks();
                let is_only = machine.nic.len() == 1;
                let text = no_address(&first_nic(machine).networkname, is_only, error);
                self.shared.voice.warn(claim, "NetworkExhausted", text);
                match is_only {
                    true => Refused::Network(network_of(machine)),
                    false => type_in_network(claim, machine),
                }
            }
            _ => this,
        };
        self.shared.unavailable.refuse(refused, Stage::Running);
    }
}

/// The network a machine is in first of all.
fn network_of(machine: &VirtualMachine) -> String {
    first_nic(machine).networkid
}

fn first_nic(machine: &VirtualMachine) -> Nic {
    machine.nic.iter().find(|nic| nic.isdefault).or(machine.nic.first()).cloned().unwrap_or_default()
}

/// What is refused when this machine is, for a reason that may be its network's.
fn type_in_network(claim: &NodeClaim, machine: &VirtualMachine) -> Refused {
    let (zone, name) = (machine.zoneid.clone(), refused_name(claim, machine));
    Refused::TypeIn { zone, name, network: network_of(machine) }
}

fn refused_name(claim: &NodeClaim, machine: &VirtualMachine) -> String {
    let type_name = claim.labels().get(well_known::INSTANCE_TYPE).map_or("", String::as_str);
    reservations::refused_name(type_name, machine.tag(labels::TAG_RESERVATION))
}

/// What is refused when this machine is.
fn type_of(claim: &NodeClaim, machine: &VirtualMachine) -> Refused {
    Refused::Type { zone: machine.zoneid.clone(), name: refused_name(claim, machine) }
}

fn unknown() -> ApiError {
    ApiError::new("deployVirtualMachine", ErrorKind::Internal, "the server does not say why")
}
