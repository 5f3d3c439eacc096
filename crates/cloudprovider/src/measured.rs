//! A provider with a watch beside it: how long calls take, how they fail, and an end to those that never answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use karpenter_api::label_rules::LabelRules;
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{NodeClaim, NodePool, labels};
use karpenter_engine::Provider as SchedulingRules;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::node_pool::TaintedTypes;
use karpenter_engine::taints::Taint;
use karpenter_runtime::context::controller_name;
use karpenter_runtime::metrics::{CounterVec, DEFAULT_BUCKETS, HistogramVec, Registry};
use tokio::time::Instant;

use crate::error::ProviderError;
use crate::provider::{
    CloudProvider, DisruptionHold, HookResult, Launch, LaunchHandle, LaunchWaker, LaunchedInstance,
    NodeClassKind, ProviderFuture, RegistrationHook,
};
use crate::repair::RepairPolicy;

/// How long any call may take before it counts as failed. Longer than any healthy cloud needs, short enough that a loop over
/// all instances comes round.
const CALL_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Counts and limits the calls of another provider. Wrap a provider once.
pub struct Measured {
    inner: Arc<dyn CloudProvider>,
    duration: HistogramVec,
    errors: CounterVec,
}

impl Measured {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn CloudProvider>, registry: &Registry) -> Self {
        Self {
            inner,
            duration: registry.histogram(
                "karpenter_cloudprovider_duration_seconds",
                "Seconds a call of the cloud provider takes, by controller, method and provider",
                &["controller", "method", "provider"],
                DEFAULT_BUCKETS,
            ),
            errors: registry.counter(
                "karpenter_cloudprovider_errors_total",
                "Errors of the cloud provider, by controller, method, provider, kind of error and NodePool",
                &["controller", "method", "provider", "error", "nodepool"],
            ),
        }
    }

    fn call<'a, T: 'a>(
        &'a self,
        method: &'static str,
        pool: &'a str,
        call: ProviderFuture<'a, T>,
    ) -> ProviderFuture<'a, T> {
        async move {
            let (controller, provider) = (controller_name(), self.inner.name());
            let started = Instant::now();
            let result = tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| {
                Err(ProviderError::Timeout { provider: provider.to_owned(), method, limit: CALL_LIMIT })
            });
            self.duration.observe(&[&controller, method, provider], started.elapsed().as_secs_f64());
            if let Err(error) = &result {
                self.errors.inc(&[&controller, method, provider, error.metric_label(), pool]);
            }
            result
        }
        .boxed()
    }
}

/// A hook with an end to questions that are never answered: it holds up its claim, not the worker that asks.
struct Limited {
    hook: Arc<dyn RegistrationHook>,
    provider: String,
}

impl RegistrationHook for Limited {
    fn name(&self) -> &str {
        self.hook.name()
    }

    fn registered<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, HookResult> {
        async move {
            tokio::time::timeout(CALL_LIMIT, self.hook.registered(claim)).await.unwrap_or_else(|_| {
                let provider = self.provider.clone();
                Err(ProviderError::Timeout { provider, method: "RegistrationHook", limit: CALL_LIMIT })
            })
        }
        .boxed()
    }
}

fn pool_of(claim: &NodeClaim) -> &str {
    let labels = claim.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(labels::NODEPOOL)).map(String::as_str).unwrap_or_default()
}

impl CloudProvider for Measured {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn supported_node_classes(&self) -> &[NodeClassKind] {
        self.inner.supported_node_classes()
    }

    fn create<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Launch> {
        self.call("Create", pool_of(claim), self.inner.create(claim))
    }

    fn delete<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, ()> {
        self.call("Delete", pool_of(claim), self.inner.delete(claim))
    }

    fn get<'a>(&'a self, provider_id: &'a str) -> ProviderFuture<'a, NodeClaim> {
        self.call("Get", "", self.inner.get(provider_id))
    }

    fn list(&self) -> ProviderFuture<'_, Vec<NodeClaim>> {
        self.call("List", "", self.inner.list())
    }

    fn get_instance_types<'a>(&'a self, pool: &'a NodePool) -> ProviderFuture<'a, Arc<[InstanceType]>> {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        self.call("GetInstanceTypes", name, self.inner.get_instance_types(pool))
    }

    fn is_drifted<'a>(&'a self, claim: &'a NodeClaim) -> ProviderFuture<'a, Option<String>> {
        self.call("IsDrifted", pool_of(claim), self.inner.is_drifted(claim))
    }

    fn reboot<'a>(&'a self, claim: &'a NodeClaim, operation_id: &'a str) -> ProviderFuture<'a, ()> {
        self.call("Reboot", pool_of(claim), self.inner.reboot(claim, operation_id))
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.inner.repair_policies()
    }

    fn disruption_reasons(&self) -> Vec<DisruptionReason> {
        self.inner.disruption_reasons()
    }

    fn launch_handle(&self, claim: &NodeClaim) -> Option<LaunchHandle> {
        self.inner.launch_handle(claim)
    }

    fn expected_instance(&self, claim: &NodeClaim) -> Option<LaunchedInstance> {
        self.inner.expected_instance(claim)
    }

    fn launch_timeout(&self) -> Duration {
        self.inner.launch_timeout()
    }

    fn registration_timeout(&self, claim: &NodeClaim) -> Option<Duration> {
        self.inner.registration_timeout(claim)
    }

    fn inherited_taints(&self, pool: &NodePool) -> Vec<Taint> {
        self.inner.inherited_taints(pool)
    }

    fn tainted_types(&self, pool: &NodePool) -> Vec<TaintedTypes> {
        self.inner.tainted_types(pool)
    }

    fn disruption_hold(&self, claim: &NodeClaim) -> Option<DisruptionHold> {
        self.inner.disruption_hold(claim)
    }

    fn wake_with(&self, waker: LaunchWaker) {
        self.inner.wake_with(waker);
    }

    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        let limited = |hook| Arc::new(Limited { hook, provider: self.inner.name().to_owned() });
        self.inner
            .registration_hooks()
            .into_iter()
            .map(|hook| limited(hook) as Arc<dyn RegistrationHook>)
            .collect()
    }

    fn scheduling_rules(&self) -> SchedulingRules {
        self.inner.scheduling_rules()
    }

    fn reserved_capacity_labels(&self) -> BTreeSet<String> {
        self.inner.reserved_capacity_labels()
    }

    fn default_termination_grace_period(&self) -> Option<Duration> {
        self.inner.default_termination_grace_period()
    }

    fn label_rules(&self, core: LabelRules) -> LabelRules {
        self.inner.label_rules(core)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::context::on_behalf_of;

    use super::*;
    use crate::fake::{Behaviour, FakeProvider, Method, claim};

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_under_the_controller_that_makes_them() {
        let fake = Arc::new(FakeProvider::new("fake"));
        let registry = Registry::new();
        let provider = Measured::new(Arc::clone(&fake) as Arc<dyn CloudProvider>, &registry);
        fake.next(Method::Create, Behaviour::Fail(ProviderError::insufficient_capacity("full")));
        fake.next(Method::Delete, Behaviour::Slow(Duration::from_secs(3)));
        fake.next(Method::List, Behaviour::Fail(ProviderError::other("down")));
        let mut claim = claim("c");
        claim.metadata.labels = Some([(labels::NODEPOOL.to_owned(), "pool".to_owned())].into());
        on_behalf_of("nodeclaim.lifecycle".into(), async {
            provider.create(&claim).await.expect_err("full");
            provider.delete(&claim).await.expect_err("there is none");
        })
        .await;
        provider.list().await.expect_err("down");
        let text = registry.encode();
        for line in [
            "karpenter_cloudprovider_errors_total{controller=\"nodeclaim.lifecycle\",error=\"InsufficientCapacityError\",method=\"Create\",nodepool=\"pool\",provider=\"fake\"} 1",
            "karpenter_cloudprovider_errors_total{controller=\"nodeclaim.lifecycle\",error=\"NodeClaimNotFoundError\",method=\"Delete\",nodepool=\"pool\",provider=\"fake\"} 1",
            "karpenter_cloudprovider_errors_total{controller=\"\",error=\"unknown\",method=\"List\",nodepool=\"\",provider=\"fake\"} 1",
            "karpenter_cloudprovider_duration_seconds_sum{controller=\"nodeclaim.lifecycle\",method=\"Delete\",provider=\"fake\"} 3",
            "karpenter_cloudprovider_duration_seconds_bucket{controller=\"nodeclaim.lifecycle\",method=\"Delete\",provider=\"fake\",le=\"5\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn names_and_labels_are_as_recorded() {
        let recorded: serde_json::Value =
            serde_json::from_str(include_str!("../../../conformance/metrics/metrics.json")).expect("JSON");
        let registry = Registry::new();
        Measured::new(Arc::new(FakeProvider::new("fake")), &registry);
        let rows = recorded["metrics"].as_array().expect("rows");
        let ours = registry.families();
        for row in
            rows.iter().filter(|row| row["name"].as_str().is_some_and(|n| n.contains("_cloudprovider_")))
        {
            let family = ours.iter().find(|family| row["name"] == family.name.as_str()).expect("a family");
            assert_eq!((&row["type"], &row["labels"]), (&family.kind.into(), &family.labels.clone().into()));
        }
        assert_eq!(ours.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_never_answers_fails_in_the_end() {
        let fake = Arc::new(FakeProvider::new("fake"));
        fake.next(Method::List, Behaviour::Hang);
        let provider = Measured::new(fake, &Registry::new());
        let error = provider.list().await.expect_err("no answer");
        assert_eq!(error.to_string(), "List of provider fake gave no answer within 300s");
        assert!(!error.is_not_found(), "no answer is not an absence");
    }

    /// A hook that never answers.
    struct Silent;

    impl RegistrationHook for Silent {
        fn name(&self) -> &str {
            "silent"
        }

        fn registered<'a>(&'a self, _: &'a NodeClaim) -> ProviderFuture<'a, HookResult> {
            std::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_hook_that_never_answers_fails_in_the_end() {
        let fake = FakeProvider::new("fake");
        fake.hook(Silent);
        let provider = Measured::new(Arc::new(fake), &Registry::new());
        let hooks = provider.registration_hooks();
        assert_eq!(hooks.iter().map(|hook| hook.name()).collect::<Vec<_>>(), ["silent"]);
        let error = hooks[0].registered(&claim("c")).await.expect_err("no answer");
        assert_eq!(error.to_string(), "RegistrationHook of provider fake gave no answer within 300s");
    }
}
