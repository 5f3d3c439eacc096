//! The KWOK provider: instances that are nothing but Node objects, for which kwok (or the embedded world) plays kubelet.
//!
//! It does what the kwok provider of Go Karpenter does, so that a cluster can be handed from one to the other, and what the
//! core demands of every provider besides: a NodeClaim is launched once however often it is asked for, and what it made it
//! removes.
//!
//! | Module | What it is |
//! |---|---|
//! | [`nodeclass`], [`labels`] | the KWOKNodeClass and the labels of nodes |
//! | [`instancetypes`] | what could be bought: the catalogue |
//! | `instances` | what was bought: NodeClaims as Nodes |
//! | `boot` | Nodes that join some time after their launch |
//! | `client` | the wire |
//! | [`installation`] | how it joins the program |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use karpenter_api::conditions::HasConditions as _;
use karpenter_api::label_rules::LabelRules;
use karpenter_api::{ConditionStatus, NodeClaim, NodePool};
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::{CloudProvider, Launch, LaunchHandle, NodeClassKind, ProviderFuture};
use karpenter_cloudprovider::repair::{RepairAction, RepairPolicy};
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::InstanceType;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::informer::Informer;
use karpenter_runtime::ttl_cache::TtlCache;
use kube::ResourceExt as _;

mod boot;
mod client;
pub mod installation;
mod instances;
pub mod instancetypes;
pub mod labels;
pub mod nodeclass;

pub use installation::install;
pub use instancetypes::Catalogue;
pub use nodeclass::KWOKNodeClass;

/// The provider's API group.
pub const GROUP: &str = "karpenter.kwok.sh";

/// A node condition that stands for a broken node: kwok does not manage it, so it stays once set.
pub const UNHEALTHY: &str = "KWOKUnhealthy";
/// A node condition that stands for a fault a reboot mends.
pub const REBOOT_REQUIRED: &str = "KWOKRebootRequired";

/// How long it is remembered that an instance has been removed: longer than a NodeClaim outlives its Node.
const REMEMBERED: Duration = Duration::from_mins(10);

/// Simulated instances.
pub struct KwokProvider {
    kinds: [NodeClassKind; 1],
    types: Arc<[InstanceType]>,
    catalogue: Arc<Catalogue>,
    wire: client::Wire,
    boots: Arc<boot::Boots>,
    /// UIDs of NodeClaims whose instance has been removed of late.
    removed: Mutex<TtlCache<String, ()>>,
}

impl KwokProvider {
    /// Of this catalogue, with the watch that keeps its NodeClasses at hand. The watch may stay unused: each is then asked for.
    pub fn new(
        client: &kube::Client,
        catalogue: Catalogue,
        environment: &Environment,
    ) -> (Self, Informer<KWOKNodeClass>) {
        let watch = nodeclass::watch(client, environment);
        let wire = client::Wire::new(client, watch.store());
        let catalogue = Arc::new(catalogue);
        let boots = boot::Boots::new(wire.clone(), Arc::clone(&catalogue), Arc::clone(&environment.clock));
        let provider = Self {
            kinds: [nodeclass::kind()],
            types: catalogue.types.clone().into(),
            catalogue,
            wire,
            boots: Arc::new(boots),
            removed: Mutex::new(TtlCache::new(REMEMBERED)),
        };
        (provider, watch)
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<Launch, ProviderError> {
        let node = instances::node(claim, &self.catalogue)?;
        let name = &claim.spec.node_class_ref.name;
        let node_class = self.wire.node_class(name).await?.ok_or_else(|| {
            ProviderError::insufficient_capacity(format!(
                "resolving node class from nodeclaim, {}.{GROUP} {name:?} not found",
                nodeclass::PLURAL
            ))
        })?;
        if let Some(ready) = node_class.condition("Ready").filter(|c| c.status == ConditionStatus::False) {
            return Err(ProviderError::node_class_not_ready(ready.message().to_owned()));
        }
        let delay = node_class.registration_delay();
        let node = if delay.is_zero() {
            self.wire.make_node(&node).await?
        } else {
            self.boots.start(claim, delay);
            node
        };
        Ok(Launch::Launched(Box::new(instances::describe(&node))))
    }

    async fn remove(&self, claim: &NodeClaim) -> Result<(), ProviderError> {
        self.boots.cancel(claim);
        let name = instances::node_name(claim)?;
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        // Draining a Node and letting its NodeClaim go both ask; what is gone for a claim does not come back for it.
        if self.removed().get(&uid).is_some() {
            return Err(ProviderError::not_found("instance terminated"));
        }
        let Some(node) = self.wire.node(&name).await?.filter(instances::is_instance) else {
            return Err(ProviderError::not_found(format!("nodes {name:?} not found")));
        };
        // A Node that is going counts as gone: it may be waiting for this very answer.
        if node.metadata.deletion_timestamp.is_none() {
            self.wire.delete_node(&node).await?;
        }
        if !uid.is_empty() {
            self.removed().insert(uid, ());
        }
        Err(ProviderError::not_found("instance terminated"))
    }

    fn removed(&self) -> MutexGuard<'_, TtlCache<String, ()>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find(&self, provider_id: &str) -> Result<NodeClaim, ProviderError> {
        let name = instances::name_in_id(provider_id)?;
        let node = self.wire.node(name).await?.filter(|node| node.metadata.deletion_timestamp.is_none());
        let node = node.ok_or_else(|| ProviderError::not_found(format!("nodes {name:?} not found")))?;
        Ok(instances::as_claim(&node))
    }

    async fn restart(&self, claim: &NodeClaim, operation_id: &str) -> Result<(), ProviderError> {
        let name = claim.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
        if name.is_empty() {
            return Err(ProviderError::other(format!(
                "rebooting nodeclaim, node is not registered (NodeClaim={})",
                claim.name_any()
            )));
        }
        if self.wire.reboot_node(name, &format!("kwok-{operation_id}")).await? {
            Ok(())
        } else {
            Err(ProviderError::not_found(format!("nodes {name:?} not found")))
        }
    }
}

impl CloudProvider for KwokProvider {
    fn name(&self) -> &str {
        "kwok"
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        &self.kinds
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        self.launch(claim).boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        self.remove(claim).boxed()
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        self.find(provider_id).boxed()
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        async { Ok(self.wire.instances().await?.iter().map(instances::as_claim).collect()) }.boxed()
    }

    fn get_instance_types<'a>(&'a self, _: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        std::future::ready(Ok(Arc::clone(&self.types))).boxed()
    }

    fn is_drifted<'a>(&'a self, _: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn reboot<'a>(&'a self, claim: &'a NodeClaim, operation_id: &'a str) -> ProviderFuture<'a, ()> {
        self.restart(claim, operation_id).boxed()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        let policy =
            |kind: &str, status: &str, reasons: &str, toleration_secs, grace_secs, action| RepairPolicy {
                condition_type: kind.to_owned(),
                condition_status: status.to_owned(),
                reason_regex: reasons.to_owned(),
                toleration: Duration::from_secs(toleration_secs),
                termination_grace_period: Some(Duration::from_secs(grace_secs)),
                priority: 0,
                action,
            };
        vec![
            policy("Ready", "False", "", 600, 0, RepairAction::ReplaceNode),
            policy("Ready", "Unknown", ".*", 600, 0, RepairAction::ReplaceNode),
            policy(UNHEALTHY, "True", ".*", 30, 45, RepairAction::ReplaceNode),
            policy(REBOOT_REQUIRED, "True", ".*", 30, 60, RepairAction::RebootNode),
        ]
    }

    /// Always: the Node of a NodeClaim can be told from its UID, so it can be removed even if nobody wrote down its launch.
    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        claim.metadata.uid.as_ref().map(|_| LaunchHandle(instances::first_name(claim)))
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        let mut rules = SchedulingRules::default();
        rules.restricted_label_domains.insert(GROUP.into());
        rules.well_known_labels.insert(rules.reservation_id_label.clone());
        rules.well_known_labels.extend(labels::WELL_KNOWN.iter().map(|key| (*key).into()));
        rules.well_known_labels.extend(self.catalogue.labels.iter().cloned());
        rules
    }

    fn label_rules(&self, core: LabelRules) -> LabelRules {
        labels::label_rules(core).with_well_known(self.catalogue.labels.iter().map(|key| &**key))
    }
}
