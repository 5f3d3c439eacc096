//! A provider in memory that does what a test tells it to: err, hang, be slow, lose its answers, lie. It writes down every
//! call.
//!
//! Left alone it is a good provider: it launches the cheapest offering a NodeClaim allows, once per NodeClaim, and keeps its
//! instances until they are deleted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use karpenter_api::{NodeClaim, NodePool, Quantity, labels};
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_engine::node_pool::TaintedTypes;
use karpenter_engine::requirement::Requirement;
use karpenter_engine::requirements::Requirements;
use karpenter_engine::taints::Taint;
use karpenter_runtime::object_key::ObjectKey;

use crate::conversion;
use crate::error::ProviderError;
use crate::provider::{
    CloudProvider, DEFAULT_LAUNCH_TIMEOUT, DisruptionHold, Launch, LaunchHandle, LaunchWaker,
    LaunchedInstance, NodeClassKind, ProviderFuture, RegistrationHook,
};
use crate::repair::RepairPolicy;
use crate::selection;

/// The annotation that holds a fake launch's handle.
pub const HANDLE: &str = "fake.karpenter.sh/launch-handle";

/// A call of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names of the trait's methods")]
pub enum Method {
    Create,
    Delete,
    Get,
    List,
    GetInstanceTypes,
    IsDrifted,
    Reboot,
}

/// What a call does instead of what it should.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Nothing, and says so.
    Fail(ProviderError),
    /// Never answers, and does nothing.
    Hang,
    /// Does it, after a while.
    Slow(Duration),
    /// Does it, and then fails: the answer was lost.
    LoseReply,
    /// Create: the machine is being built; it is there after [`FakeProvider::finish`].
    Pending,
    /// List: forgets everything it has.
    EmptyList,
    /// Create: names an instance that is not there.
    WrongProviderId(String),
}

/// A call that was made: the method and what it was about (a NodeClaim's name, a provider id, a NodePool's name, or nothing).
pub type Call = (Method, String);

/// A provider in memory.
pub struct FakeProvider {
    name: String,
    node_classes: Vec<NodeClassKind>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    instance_types: Arc<[InstanceType]>,
    types_of_pool: BTreeMap<String, Arc<[InstanceType]>>,
    /// By provider id.
    instances: BTreeMap<String, NodeClaim>,
    /// Launches that are not done: the NodeClaim by its UID.
    pending: BTreeMap<String, NodeClaim>,
    /// The provider id of each NodeClaim that was launched, by UID.
    launched: BTreeMap<String, String>,
    launches: u64,
    scripts: BTreeMap<Method, VecDeque<Behaviour>>,
    standing: BTreeMap<Method, Behaviour>,
    calls: Vec<Call>,
    drifted: Option<String>,
    repair_policies: Vec<RepairPolicy>,
    rules: SchedulingRules,
    waker: Option<LaunchWaker>,
    launch_timeout: Option<Duration>,
    registration_timeout: Option<Duration>,
    secretive: bool,
    hooks: Vec<Arc<dyn RegistrationHook>>,
    /// What the platform does with instances, by NodeClaim.
    holds: BTreeMap<String, DisruptionHold>,
    /// Of every node.
    taints: Vec<Taint>,
    /// What has further taints.
    tainted: Vec<TaintedTypes>,
}

impl FakeProvider {
    /// Serves `FakeNodeClass` of `karpenter.test.sh` and offers [`instance_types`].
    pub fn new(name: &str) -> Self {
        Self::serving(name, [node_class()])
    }

    /// Serves these kinds.
    pub fn serving(name: &str, node_classes: impl IntoIterator<Item = NodeClassKind>) -> Self {
        let state = State { instance_types: instance_types(5).into(), ..State::default() };
        Self {
            name: name.to_owned(),
            node_classes: node_classes.into_iter().collect(),
            state: Mutex::new(state),
        }
    }

    /// Makes the next call of `method` that is not scripted yet behave like this.
    pub fn next(&self, method: Method, behaviour: Behaviour) {
        self.state().scripts.entry(method).or_default().push_back(behaviour);
    }

    /// Makes every call of `method` that is not scripted behave like this, or well again.
    pub fn always(&self, method: Method, behaviour: Option<Behaviour>) {
        let mut state = self.state();
        match behaviour {
            Some(behaviour) => state.standing.insert(method, behaviour),
            None => state.standing.remove(&method),
        };
    }

    /// Says of launches under way nothing of what they will come to.
    pub fn keep_secrets(&self) {
        self.state().secretive = true;
    }

    /// Offers these to every NodePool that has no list of its own.
    pub fn offer(&self, types: impl Into<Arc<[InstanceType]>>) {
        self.state().instance_types = types.into();
    }

    /// Offers these to one NodePool.
    pub fn offer_to(&self, pool: &str, types: impl Into<Arc<[InstanceType]>>) {
        self.state().types_of_pool.insert(pool.to_owned(), types.into());
    }

    /// Says that every instance has drifted for this reason, or none.
    pub fn drift(&self, reason: Option<&str>) {
        self.state().drifted = reason.map(str::to_owned);
    }

    /// Wants these conditions repaired.
    pub fn repair(&self, policies: Vec<RepairPolicy>) {
        self.state().repair_policies = policies;
    }

    /// Adds these to the rules of scheduling.
    pub fn rule(&self, rules: SchedulingRules) {
        self.state().rules = rules;
    }

    /// Gives launches this long.
    pub fn launch_within(&self, limit: Duration) {
        self.state().launch_timeout = Some(limit);
    }

    /// Says how long nodes may take to register once they are launched.
    pub fn limit_registrations(&self, limit: Duration) {
        self.state().registration_timeout = Some(limit);
    }

    /// Says what the platform is doing with a NodeClaim's instance, or that it is done.
    pub fn hold(&self, claim: &str, hold: Option<DisruptionHold>) {
        let mut state = self.state();
        match hold {
            Some(hold) => state.holds.insert(claim.to_owned(), hold),
            None => state.holds.remove(claim),
        };
    }

    /// Has NodePools planned for with taints that they do not declare.
    pub fn taint(&self, taints: Vec<Taint>) {
        self.state().taints = taints;
    }

    /// Offers NodePools what has taints that they do not declare, besides what they are offered.
    pub fn offer_tainted(&self, tainted: Vec<TaintedTypes>) {
        self.state().tainted = tainted;
    }

    /// Holds nodes back until this hook lets them go.
    pub fn hook(&self, hook: impl RegistrationHook) {
        self.state().hooks.push(Arc::new(hook));
    }

    /// Finishes the pending launch of this NodeClaim and wakes the core for it.
    pub fn finish(&self, claim: &str) {
        let waker = {
            let mut state = self.state();
            let Some((_, pending)) = state.pending.iter().find(|(_, pending)| name_of(pending) == claim)
            else {
                return;
            };
            let pending = pending.clone();
            // A launch that cannot be had stays pending; the next create says why.
            if state.launch(&self.name, &pending).is_ok() {
                state.pending.remove(&uid_of(&pending));
            }
            state.waker.clone()
        };
        if let Some(waker) = waker {
            waker.wake(ObjectKey::cluster(claim));
        }
    }

    /// Makes an instance vanish, as clouds do.
    pub fn vanish(&self, provider_id: &str) {
        self.state().instances.remove(provider_id);
    }

    /// Puts an instance there that nobody launched.
    pub fn plant(&self, instance: NodeClaim) {
        let id = instance.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
        self.state().instances.insert(id, instance);
    }

    /// The instances there are, by provider id.
    pub fn instances(&self) -> Vec<NodeClaim> {
        self.state().instances.values().cloned().collect()
    }

    /// How many instances were ever launched.
    pub fn launches(&self) -> u64 {
        self.state().launches
    }

    /// The calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// How often `method` was called.
    pub fn count(&self, method: Method) -> usize {
        self.state().calls.iter().filter(|(called, _)| *called == method).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the call and does it as scripted; `work` does it well.
    async fn perform<T>(
        &self,
        method: Method,
        about: &str,
        work: impl FnOnce(&mut State, Option<Behaviour>) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let behaviour = {
            let mut state = self.state();
            state.calls.push((method, about.to_owned()));
            let scripted = state.scripts.get_mut(&method).and_then(VecDeque::pop_front);
            scripted.or_else(|| state.standing.get(&method).cloned())
        };
        match &behaviour {
            Some(Behaviour::Fail(error)) => return Err(error.clone()),
            Some(Behaviour::Hang) => std::future::pending::<()>().await,
            Some(Behaviour::Slow(time)) => tokio::time::sleep(*time).await,
            _ => {}
        }
        let lost = matches!(behaviour, Some(Behaviour::LoseReply));
        let result = work(&mut self.state(), behaviour);
        if lost { Err(ProviderError::other("connection reset by peer")) } else { result }
    }
}

impl CloudProvider for FakeProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        &self.node_classes
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        self.perform(Method::Create, name_of(claim), move |state, behaviour| {
            let handle = LaunchHandle(uid_of(claim));
            if matches!(behaviour, Some(Behaviour::Pending)) && !state.launched.contains_key(&uid_of(claim)) {
                state.pending.insert(uid_of(claim), claim.clone());
            }
            if state.pending.contains_key(&uid_of(claim)) {
                let message = "the machine is being built".to_owned();
                return Ok(Launch::Pending { reason: "MachineProvisioning".to_owned(), message, handle });
            }
            let mut instance = state.launch(&self.name, claim)?;
            if let Some(Behaviour::WrongProviderId(id)) = behaviour {
                instance.provider_id = id;
            }
            Ok(Launch::Launched(Box::new(instance)))
        })
        .boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        self.perform(Method::Delete, name_of(claim), move |state, _| {
            let uid = uid_of(claim);
            let by_id = claim.status.as_ref().and_then(|status| status.provider_id.clone());
            let id = by_id.or_else(|| state.launched.get(&uid).cloned());
            let pending = state.pending.remove(&uid).is_some();
            let existed = id.as_ref().is_some_and(|id| state.instances.remove(id).is_some());
            if pending || existed { Ok(()) } else { Err(ProviderError::not_found(id.unwrap_or(uid))) }
        })
        .boxed()
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        self.perform(Method::Get, provider_id, move |state, _| {
            state.instances.get(provider_id).cloned().ok_or_else(|| ProviderError::not_found(provider_id))
        })
        .boxed()
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        self.perform(Method::List, "", |state, behaviour| {
            if matches!(behaviour, Some(Behaviour::EmptyList)) {
                return Ok(Vec::new());
            }
            Ok(state.instances.values().cloned().collect())
        })
        .boxed()
    }

    fn get_instance_types<'a>(&'a self, pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        self.perform(Method::GetInstanceTypes, name, move |state, _| {
            Ok(Arc::clone(state.types_of_pool.get(name).unwrap_or(&state.instance_types)))
        })
        .boxed()
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        self.perform(Method::IsDrifted, name_of(claim), |state, _| Ok(state.drifted.clone())).boxed()
    }

    fn reboot<'a>(&'a self, claim: &'a NodeClaim, _operation_id: &'a str) -> ProviderFuture<'a, ()> {
        self.perform(Method::Reboot, name_of(claim), move |state, _| {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
            if state.instances.contains_key(&id) { Ok(()) } else { Err(ProviderError::not_found(id)) }
        })
        .boxed()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.state().repair_policies.clone()
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        self.state().rules.clone()
    }

    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        let written =
            claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(HANDLE).cloned());
        written
            .or_else(|| self.state().pending.contains_key(&uid_of(claim)).then(|| uid_of(claim)))
            .map(LaunchHandle)
    }

    fn expected_instance(&self, claim: &NodeClaim) -> Option<LaunchedInstance> {
        let state = self.state();
        if state.secretive {
            return None;
        }
        state.describe("", claim).ok()
    }

    fn launch_timeout(&self) -> Duration {
        self.state().launch_timeout.unwrap_or(DEFAULT_LAUNCH_TIMEOUT)
    }

    fn registration_timeout(&self, _claim: &NodeClaim) -> Option<Duration> {
        self.state().registration_timeout
    }

    fn inherited_taints(&self, _pool: &NodePool) -> Vec<Taint> {
        self.state().taints.clone()
    }

    fn tainted_types(&self, _pool: &NodePool) -> Vec<TaintedTypes> {
        self.state().tainted.clone()
    }

    fn disruption_hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        self.state().holds.get(claim.metadata.name.as_deref()?).cloned()
    }

    fn wake_with(&self, waker: LaunchWaker) {
        self.state().waker = Some(waker);
    }

    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        self.state().hooks.clone()
    }
}

impl State {
    /// The cheapest instance that fits a NodeClaim.
    fn describe(&self, id: &str, claim: &NodeClaim) -> Result<LaunchedInstance, ProviderError> {
        let pool = claim.metadata.labels.as_ref().and_then(|labels| labels.get(labels::NODEPOOL));
        let types = pool.and_then(|pool| self.types_of_pool.get(pool)).unwrap_or(&self.instance_types);
        let tainted = self.tainted.iter().flat_map(|kind| kind.instance_types.iter());
        let types: Vec<InstanceType> = types.iter().chain(tainted).cloned().collect();
        let choices = selection::by_price(&types, claim, &[]).map_err(ProviderError::other)?;
        let (instance_type, offering) = *choices
            .first()
            .ok_or_else(|| ProviderError::insufficient_capacity("no instance type fits the NodeClaim"))?;
        Ok(selection::describe(id, instance_type, offering))
    }

    /// The instance of this NodeClaim, launched if it is not there yet.
    fn launch(&mut self, provider: &str, claim: &NodeClaim) -> Result<LaunchedInstance, ProviderError> {
        let (id, new) = match self.launched.get(&uid_of(claim)) {
            Some(id) => (id.clone(), false),
            None => (format!("{provider}:///{}", self.launches + 1), true),
        };
        let instance = self.describe(&id, claim)?;
        if new {
            self.launches += 1;
            let mut launched = claim.clone();
            instance.write_into(&mut launched);
            self.launched.insert(uid_of(claim), id.clone());
            self.instances.insert(id, launched);
        }
        Ok(instance)
    }
}

/// The kind a fake provider serves.
pub fn node_class() -> NodeClassKind {
    NodeClassKind::new("karpenter.test.sh", "v1alpha1", "FakeNodeClass", "fakenodeclasses")
}

/// `count` instance types, the n-th with n CPUs, 2n GiB and 10n pods, spot and on demand in three zones; price by size.
pub fn instance_types(count: u32) -> Vec<InstanceType> {
    (1..=count).map(instance_type).collect()
}

fn instance_type(size: u32) -> InstanceType {
    let name = format!("fake-it-{size}");
    let quantity = |text: String| Quantity::parse(&text).unwrap_or_default();
    let capacity = BTreeMap::from([
        ("cpu".to_owned(), quantity(size.to_string())),
        ("memory".to_owned(), quantity(format!("{}Gi", 2 * size))),
        ("pods".to_owned(), quantity((10 * size).to_string())),
    ]);
    let mut offerings = Vec::new();
    for (capacity_type, discount) in
        [(labels::CAPACITY_TYPE_SPOT, 0.7), (labels::CAPACITY_TYPE_ON_DEMAND, 1.0)]
    {
        for zone in ["test-zone-1", "test-zone-2", "test-zone-3"] {
            offerings.push(Offering {
                requirements: one_of_each(&[
                    (labels::CAPACITY_TYPE, &[capacity_type]),
                    (labels::TOPOLOGY_ZONE, &[zone]),
                ]),
                price: f64::from(size) * 0.1 * discount,
                available: true,
                ..Offering::default()
            });
        }
    }
    InstanceType {
        name: name.as_str().into(),
        requirements: one_of_each(&[
            (labels::INSTANCE_TYPE, &[&name]),
            (labels::ARCH, &[labels::ARCH_AMD64]),
            (labels::OS, &["linux"]),
            (labels::TOPOLOGY_ZONE, &["test-zone-1", "test-zone-2", "test-zone-3"]),
            (labels::CAPACITY_TYPE, &[labels::CAPACITY_TYPE_SPOT, labels::CAPACITY_TYPE_ON_DEMAND]),
        ]),
        offerings,
        capacity: conversion::resources(&capacity),
        ..InstanceType::default()
    }
}

fn one_of_each(pairs: &[(&str, &[&str])]) -> Requirements {
    let mut requirements = Requirements::new();
    for (key, values) in pairs {
        requirements.add(Requirement::one_of(*key, values.iter().copied()));
    }
    requirements
}

/// A NodeClaim of this name for a fake provider.
pub fn claim(name: &str) -> NodeClaim {
    let mut claim = NodeClaim::default();
    claim.metadata.name = Some(name.to_owned());
    claim.metadata.uid = Some(format!("uid-{name}"));
    let kind = node_class();
    claim.spec.node_class_ref.group = kind.group;
    claim.spec.node_class_ref.kind = kind.kind;
    claim.spec.node_class_ref.name = "default".to_owned();
    claim
}

fn name_of(claim: &NodeClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

fn uid_of(claim: &NodeClaim) -> String {
    claim.metadata.uid.clone().unwrap_or_else(|| name_of(claim).to_owned())
}

#[cfg(test)]
#[path = "fake_tests.rs"]
mod tests;
