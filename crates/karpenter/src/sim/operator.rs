//! Karpenter as `karpenter run` starts it, on the simulated cloud: what every world has for its process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use karpenter_cloudprovider::{CloudProvider, Measured, Registry};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Given, assemble};
use karpenter_runtime::compute::Compute;
use karpenter_runtime::events;
use karpenter_runtime::lease::{Elector, LeaseConfig};
use karpenter_runtime::options::Options;
use karpenter_sim::process::Life;

use super::cloud::{Platform, SimulatedCloud, collect_orphans};

/// A process that runs Karpenter with these settings, again and again as a kubelet would.
pub(super) fn karpenter(
    options: Arc<Options>,
    platform: Platform,
) -> impl Fn(Life) -> BoxFuture<'static, ()> + Send + Sync + 'static {
    move |life| live(life, Arc::clone(&options), platform.clone()).boxed()
}

async fn live(life: Life, options: Arc<Options>, platform: Platform) {
    let provider: Arc<dyn CloudProvider> = Arc::new(SimulatedCloud::new(life.cloud.clone(), platform));
    for start in 0u32.. {
        let mut environment = life.environment.clone();
        environment.entropy = environment.entropy.child(&format!("start {start}"));
        environment.registry = karpenter_runtime::metrics::Registry::new();
        let (recorder, writer) = events::recorder(COMPONENT, &environment);
        let measured = Measured::new(Arc::clone(&provider), &environment.registry);
        let Ok(providers) = Registry::of([Arc::new(measured) as Arc<dyn CloudProvider>]) else {
            unreachable!("one provider is not contested")
        };
        let identity = karpenter_runtime::lease::identity("karpenter", &environment);
        let lease = LeaseConfig::new("kube-system", "karpenter-leader-election", identity);
        let elector = Elector::new(life.client.clone(), lease, &environment, &recorder);
        let clock = Arc::clone(&environment.clock);
        let (mut program, _) = assemble(Given {
            client: life.client.clone(),
            environment,
            options: Arc::clone(&options),
            providers,
            events: (recorder, writer),
            compute: Compute::Inline,
        });
        let (client, cloud) = (life.client.clone(), life.cloud.clone());
        program.while_leading("instance garbage collection", move |stop| {
            collect_orphans(client, cloud, clock, stop).boxed()
        });
        // Losing the lease ends a process; the next one starts a moment later.
        if program.run(life.stop.clone(), Some(elector)).await.is_ok() {
            return;
        }
        life.note("loses the lease");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
