//! What a provider does for Karpenter.
//!
//! Every call may be repeated, may be the first after a restart, and may be made by two leaders for some seconds: providers
//! recognise a NodeClaim they have already served by its UID and never launch it twice.
//!
//! # Slow machines
//!
//! A platform that takes minutes to say which machine it is building answers [`Launch::Pending`]. Before it asks the platform
//! for anything it writes down a [`LaunchHandle`] for the NodeClaim (an annotation, say), so that whoever comes after a crash
//! finds the machine. From then on the claim counts as having an instance: deleting it calls
//! [`delete`](CloudProvider::delete), which goes by the handle. When something happens to the machine the provider calls the
//! [`LaunchWaker`] it was given and the core asks [`create`](CloudProvider::create) again; nobody polls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use karpenter_api::label_rules::LabelRules;
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodeClaim, NodeClassReference, NodePool, ResourceList};
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::node_pool::TaintedTypes;
use karpenter_engine::taints::Taint;
use karpenter_runtime::object_key::ObjectKey;

use crate::error::ProviderError;
use crate::repair::RepairPolicy;

/// An answer that takes a while.
pub type ProviderFuture<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// How long a launch may take when the provider says nothing else.
pub const DEFAULT_LAUNCH_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// A cloud.
pub trait CloudProvider: Send + Sync + 'static {
    /// Its name, as in metrics and messages.
    fn name(&self) -> &str;

    /// The kinds of NodeClass it serves; the first is the default.
    fn supported_node_classes(&self) -> &[NodeClassKind];

    /// Launches what the NodeClaim asks for, or says how far that is.
    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch>;

    /// Starts removing the NodeClaim's instance, by its provider id or its handle. `Ok` means it is under way: the core asks
    /// again until it hears [`ProviderError::NodeClaimNotFound`].
    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()>;

    /// The instance of this provider id, as a NodeClaim.
    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim>;

    /// Every instance this cluster has at the provider. A list that may be incomplete is an error.
    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>>;

    /// What this NodePool could buy, whether available at the moment or not. NodePools that are offered the same get the same
    /// list, shared: the engine then compiles it once.
    fn get_instance_types<'a>(&'a self, pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>>;

    /// Why the instance is no longer what its NodeClass says, if so.
    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>>;

    /// Restarts the instance in place. The same operation id is the same reboot. `Ok` means the provider took the order.
    fn reboot<'a>(&'a self, _claim: &'a NodeClaim, _operation_id: &'a str) -> ProviderFuture<'a, ()> {
        std::future::ready(Err(ProviderError::RebootNotImplemented)).boxed()
    }

    /// Which node conditions it wants repaired: the complete set, always the same.
    fn repair_policies(&self) -> Vec<RepairPolicy> {
        Vec::new()
    }

    /// Reasons of its own to disrupt nodes, which show as conditions of NodeClaims.
    fn disruption_reasons(&self) -> Vec<DisruptionReason> {
        Vec::new()
    }

    /// The handle of this NodeClaim's launch, if one was written down: the claim then counts as having an instance.
    fn launch_handle(&self, _claim: &NodeClaim) -> Option<LaunchHandle> {
        None
    }

    /// What a launch that is under way will come to, as far as the provider can tell: labels, capacity, what pods may use.
    /// Decisions count on it; without it they all wait until the launch is done.
    fn expected_instance(&self, _claim: &NodeClaim) -> Option<LaunchedInstance> {
        None
    }

    /// How long a launch may take before the NodeClaim is given up.
    fn launch_timeout(&self) -> Duration {
        DEFAULT_LAUNCH_TIMEOUT
    }

    /// How long a node may take to register once its instance is launched, where the provider knows better than the core, which
    /// counts from the NodeClaim's creation.
    fn registration_timeout(&self, claim: &NodeClaim) -> Option<Duration> {
        let _ = claim;
        None
    }

    /// Taints that all nodes this NodePool can get have, and that it is to be planned for with as if it declared them. What
    /// [`get_instance_types`](Self::get_instance_types) offers it has no others.
    fn inherited_taints(&self, pool: &NodePool) -> Vec<Taint> {
        let _ = pool;
        Vec::new()
    }

    /// What this NodePool can get that has taints besides those it declares and inherits, for pods that tolerate them.
    fn tainted_types(&self, pool: &NodePool) -> Vec<TaintedTypes> {
        let _ = pool;
        Vec::new()
    }

    /// What the platform itself is doing with the instance, if disruption has to reckon with it.
    fn disruption_hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        let _ = claim;
        None
    }

    /// Keeps `waker` to be called when something happens to a pending launch. Called once, before anything else.
    fn wake_with(&self, _waker: LaunchWaker) {}

    /// What must hold before a node counts as registered.
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        Vec::new()
    }

    /// What it adds to the rules of scheduling: labels its instance types describe, storage it cannot serve.
    fn scheduling_rules(&self) -> SchedulingRules {
        SchedulingRules::default()
    }

    /// Labels that reserved offerings carry and all others lack; such a difference is no drift.
    fn reserved_capacity_labels(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// How long drains may take in NodePools that do not say.
    fn default_termination_grace_period(&self) -> Option<Duration> {
        None
    }

    /// The labels its instance types carry and its users may (not) set, added to the core's.
    fn label_rules(&self, core: LabelRules) -> LabelRules {
        core
    }
}

impl fmt::Debug for dyn CloudProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudProvider").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// What a launch comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Launch {
    /// There is an instance.
    Launched(Box<LaunchedInstance>),
    /// There will be one.
    Pending {
        /// What it waits for, in one word: the reason of the condition `Launched`.
        reason: String,
        /// What it waits for, in a sentence.
        message: String,
        /// What it is known by until it has a provider id.
        handle: LaunchHandle,
    },
}

/// What a launch is known by before there is a provider id, in the provider's words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaunchHandle(pub String);

impl fmt::Display for LaunchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An instance as the provider describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchedInstance {
    /// Its id: what the Node will carry too.
    pub provider_id: String,
    /// The image it runs.
    pub image_id: String,
    /// Labels its node will have.
    pub labels: BTreeMap<String, String>,
    /// Annotations for the NodeClaim.
    pub annotations: BTreeMap<String, String>,
    /// What it has.
    pub capacity: ResourceList,
    /// What of it pods may use.
    pub allocatable: ResourceList,
}

impl LaunchedInstance {
    /// Writes what is known of the instance into its NodeClaim (rule L1.12): labels the claim has stay, annotations of the
    /// provider win.
    pub fn write_into(&self, claim: &mut NodeClaim) {
        let labels = claim.metadata.labels.get_or_insert_default();
        for (key, value) in &self.labels {
            labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
        claim.metadata.annotations.get_or_insert_default().extend(self.annotations.clone());
        let status = claim.status.get_or_insert_default();
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        status.provider_id = text(&self.provider_id);
        status.image_id = text(&self.image_id);
        status.capacity = Some(self.capacity.clone());
        status.allocatable = Some(self.allocatable.clone());
    }
}

/// What a platform is doing with an instance of its own accord.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisruptionHold {
    /// What it does, in a sentence. Meanwhile the node is not disrupted for gain or drift, unless nothing runs on it.
    pub reason: String,
    /// Whether the instance is going: it then counts against the budgets of its NodePool.
    pub leaving: bool,
    /// Whether it can neither be ended nor replaced for now: then nothing takes the node away, not even because it is empty,
    /// broken, expired or late to register.
    pub stuck: bool,
}

/// Wakes the core for a NodeClaim whose launch has come along.
#[derive(Clone)]
pub struct LaunchWaker(Arc<dyn Fn(ObjectKey) + Send + Sync>);

impl LaunchWaker {
    /// Calls `wake` with the NodeClaim's key.
    pub fn new(wake: impl Fn(ObjectKey) + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Something happened to the launch of this NodeClaim. Never waits.
    pub fn wake(&self, claim: ObjectKey) {
        (self.0)(claim);
    }
}

impl fmt::Debug for LaunchWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaunchWaker")
    }
}

/// A kind of NodeClass.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeClassKind {
    /// API group.
    pub group: String,
    /// Version to watch it in.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Name of the resource in URLs.
    pub plural: String,
}

impl NodeClassKind {
    /// Of these names.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into(), plural: plural.into() }
    }

    /// Whether a reference is to this kind; the name does not matter.
    pub fn is_referred_to_by(&self, reference: &NodeClassReference) -> bool {
        reference.group == self.group && reference.kind == self.kind
    }

    /// The label of nodes built from it: `<group>/<lowercase kind>`.
    pub fn label_key(&self) -> String {
        format!("{}/{}", self.group, self.kind.to_lowercase())
    }
}

impl fmt::Display for NodeClassKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.kind)
    }
}

/// Holds back the registration of nodes until the provider is content with them.
pub trait RegistrationHook: Send + Sync + 'static {
    /// Its name, as in the condition `Registered`.
    fn name(&self) -> &str;

    /// Whether this NodeClaim's node may be registered.
    fn registered<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, HookResult>;
}

/// What a hook says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookResult {
    /// Go on.
    Ready,
    /// Ask again soon, with growing pauses.
    Requeue,
    /// Ask again after this long.
    After(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claims_labels_stay_and_the_providers_annotations_win() {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let mut claim = NodeClaim::default();
        claim.metadata.labels = Some(map(&[("zone", "claimed")]));
        claim.metadata.annotations = Some(map(&[("a", "claimed"), ("b", "claimed")]));
        let instance = LaunchedInstance {
            provider_id: "fake://1".into(),
            labels: map(&[("zone", "provided"), ("type", "provided")]),
            annotations: map(&[("a", "provided")]),
            ..LaunchedInstance::default()
        };
        instance.write_into(&mut claim);
        assert_eq!(claim.metadata.labels, Some(map(&[("zone", "claimed"), ("type", "provided")])));
        assert_eq!(claim.metadata.annotations, Some(map(&[("a", "provided"), ("b", "claimed")])));
        let status = claim.status.expect("a status");
        assert_eq!((status.provider_id.as_deref(), status.image_id), (Some("fake://1"), None));
    }

    #[test]
    fn a_node_class_is_told_by_group_and_kind_and_names_a_label() {
        let kind = NodeClassKind::new("karpenter.kwok.sh", "v1alpha1", "KWOKNodeClass", "kwoknodeclasses");
        let reference = |group: &str, kind: &str| NodeClassReference {
            group: group.into(),
            kind: kind.into(),
            name: "x".into(),
        };
        assert!(kind.is_referred_to_by(&reference("karpenter.kwok.sh", "KWOKNodeClass")));
        assert!(!kind.is_referred_to_by(&reference("karpenter.sh", "KWOKNodeClass")));
        assert!(!kind.is_referred_to_by(&reference("karpenter.kwok.sh", "Other")));
        assert_eq!(kind.label_key(), "karpenter.kwok.sh/kwoknodeclass");
    }
}
