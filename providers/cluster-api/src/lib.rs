//! The Cluster API provider: nodes by scaling MachineDeployments and MachineSets, or by making Machines.
//!
//! | Module | What it is |
//! |---|---|
//! | [`nodeclass`] | the NodeClass and its status |
//! | `instancetypes` | what could be bought |
//! | `instances` | what was bought |
//! | [`client`] | the management cluster: what it has, what is written to it |
//! | [`wiring`] | puts it together |
//! | [`explanation`], [`gathering`] | why a resource is offered, or is not, and what that is told by |
//! | [`self_check`] | whether our accounts may do what we ask of the clusters |
//! | `labels`, `names` | names on the wire |
//! | [`metrics`] | what is counted |
//! | [`planted`] | faults made on purpose, for tests only |

pub mod client;
pub mod explanation;
#[cfg(test)]
mod fixtures;
pub mod gathering;
mod instances;
mod instancetypes;
mod labels;
pub mod metrics;
mod names;
pub mod nodeclass;
pub mod planted;
pub mod self_check;
pub mod wiring;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use karpenter_api::label_rules::LabelRules;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloudprovider::{
    CloudProvider, DisruptionHold, Launch, LaunchHandle, LaunchWaker, LaunchedInstance, NodeClassKind,
    ProviderError, ProviderFuture, RepairAction, RepairPolicy,
};
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::ingest::Ingest;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::node_pool::TaintedTypes;
use karpenter_engine::taints::Taint;
use karpenter_runtime::error::NotYet;

use client::hub::Hub;
use instances::fleet::Fleet;
use instances::notices::NODE_HEALTHY;
use instances::{drift, launch, lookup, removal, rollout, templates};
use metrics::Metrics;
use nodeclass::DEFAULT_REPAIR_AFTER;
use planted::{Fault, is_planted};

pub use nodeclass::ClusterAPINodeClass;
pub use wiring::install;

/// The provider's API group.
pub const GROUP: &str = "karpenter.cluster.x-k8s.io";

/// Its name, as in metrics and messages.
pub const NAME: &str = "clusterapi";

/// For launches that nobody asks about any more.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The provider. [`wiring::assemble`] makes it.
pub struct ClusterApi {
    fleet: Arc<Fleet>,
    kinds: Vec<NodeClassKind>,
}

impl ClusterApi {
    pub(crate) fn new(fleet: Arc<Fleet>) -> Self {
        let kind = NodeClassKind::new(GROUP, "v1alpha1", "ClusterAPINodeClass", "clusterapinodeclasses");
        Self { fleet, kinds: vec![kind] }
    }

    pub(crate) fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The way to the management cluster.
    pub fn hub(&self) -> &Hub {
        &self.fleet.hub
    }

    /// What the provider counts.
    pub fn metrics(&self) -> &Metrics {
        &self.fleet.metrics
    }
}

impl CloudProvider for ClusterApi {
    fn name(&self) -> &str {
        NAME
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        &self.kinds
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        launch::create(&self.fleet, claim).boxed()
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        removal::delete(&self.fleet, claim).boxed()
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        lookup::get(&self.fleet, provider_id).boxed()
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        lookup::list(&self.fleet).boxed()
    }

    fn get_instance_types<'a>(&'a self, pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        async move {
            let name = &pool.spec.template.spec.node_class_ref.name;
            self.fleet.ready().await?;
            let class = self.fleet.node_class(name);
            let missing = || ProviderError::other(format!("ClusterAPINodeClass {name:?} does not exist"));
            let class = class.ok_or_else(missing)?;
            // Nodes whose types are not offered would be replaced.
            if let Some(why) = templates::unlisted(&class, &self.fleet.mirror) {
                return Err(ProviderError::other(NotYet::new(why)));
            }
            Ok(self.fleet.offers(&class).types_for(pool))
        }
        .boxed()
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        std::future::ready(Ok(drift::drifted(&self.fleet, claim).map(str::to_owned))).boxed()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        let policy = |condition: &str, status: &str, reasons: &str, toleration| RepairPolicy {
            condition_type: condition.to_owned(),
            condition_status: status.to_owned(),
            reason_regex: reasons.to_owned(),
            toleration,
            termination_grace_period: None,
            priority: 0,
            action: RepairAction::ReplaceNode,
        };
        // Exactly one policy is the fallback: the one without a reason.
        vec![
            policy("Ready", "False", "", DEFAULT_REPAIR_AFTER),
            policy("Ready", "Unknown", ".*", DEFAULT_REPAIR_AFTER),
            // Said when what a NodeClass names has been borne for as long as it says.
            policy(NODE_HEALTHY, "False", ".*", Duration::ZERO),
        ]
    }

    fn expected_instance(&self, claim: &NodeClaim) -> Option<LaunchedInstance> {
        launch::expected(&self.fleet, claim)
    }

    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        if is_planted(Fault::LetsGoWithoutId) {
            return None;
        }
        let target = self.fleet.node_claims.target(claim).map(|target| target.to_string());
        let machine = || {
            let annotations = claim.metadata.annotations.as_ref()?;
            annotations.get(names::MACHINE).or_else(|| annotations.get(names::GO_MACHINE)).cloned()
        };
        // Whatever became of what it says itself: one that a Machine says is its own has that Machine.
        let claimed = || {
            let machine = self.fleet.mirror.machine_of(claim.metadata.uid.as_deref()?)?;
            Some(machine.key.to_string())
        };
        target.or_else(machine).or_else(claimed).map(LaunchHandle)
    }

    /// Each NodeClass has its own, which `launch` keeps: it knows whether time is up or the management cluster merely away.
    fn launch_timeout(&self) -> Duration {
        LAUNCH_TIMEOUT
    }

    fn registration_timeout(&self, claim: &NodeClaim) -> Option<Duration> {
        // A NodeClass that has not been seen, perhaps not yet, may allow for hours.
        let class = self.fleet.node_class(&claim.spec.node_class_ref.name)?;
        Some(class.registration_timeout())
    }

    fn inherited_taints(&self, pool: &NodePool) -> Vec<Taint> {
        let class = self.fleet.node_class(&pool.spec.template.spec.node_class_ref.name);
        let class = class.filter(|class| class.spec().inherit_taints == Some(true));
        let inherited = class.map(|class| self.fleet.offers(&class).inherited_taints(pool));
        Ingest::new().taints(inherited.as_ref())
    }

    fn tainted_types(&self, pool: &NodePool) -> Vec<TaintedTypes> {
        let class = self.fleet.node_class(&pool.spec.template.spec.node_class_ref.name);
        let kinds = class.map(|class| self.fleet.offers(&class).tainted_types(pool)).unwrap_or_default();
        let tainted = |(taints, instance_types)| TaintedTypes {
            taints: Ingest::new().taints(Some(&taints)),
            instance_types,
        };
        kinds.into_iter().map(tainted).collect()
    }

    fn disruption_hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        rollout::disruption_hold(&self.fleet, claim)
    }

    fn wake_with(&self, waker: LaunchWaker) {
        // Called once.
        let _ = self.fleet.waker.set(waker);
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        let mut rules = SchedulingRules::default();
        rules.well_known_labels.extend(labels::WELL_KNOWN.iter().map(|label| (*label).into()));
        rules.restricted_label_domains.insert(GROUP.into());
        rules.sells_spot = false;
        rules.reservation_id_label = labels::RESERVATION_ID.into();
        rules
    }

    fn label_rules(&self, core: LabelRules) -> LabelRules {
        labels::label_rules(core)
    }
}
