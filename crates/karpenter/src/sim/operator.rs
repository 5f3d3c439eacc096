//! Karpenter as `karpenter run` starts it, in a simulated world: what every world has for its process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use karpenter_cloudprovider::{CloudProvider, Installation, Measured, Part, Registry, Surroundings};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Given, assemble};
use karpenter_runtime::compute::Compute;
use karpenter_runtime::events;
use karpenter_runtime::lease::{Elector, LeaseConfig};
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::chance::Chance;
use karpenter_sim::process::Life;

use super::cloud::{Platform, SimulatedCloud, collect_orphans};

/// Settings that are known to be valid.
pub(crate) fn settings(flags: &[&str]) -> Arc<Options> {
    match Options::parse(flags.iter().copied(), &Environ::new()) {
        Ok(options) => Arc::new(options),
        Err(error) => unreachable!("these settings are valid: {error}"),
    }
}

/// A process that runs Karpenter with these settings on the simulated cloud.
pub(super) fn karpenter(
    options: Arc<Options>,
    platform: Platform,
) -> impl Fn(Life) -> BoxFuture<'static, ()> + Send + Sync + 'static {
    move |life| {
        let cloud = life.cloud.clone();
        let provider: Arc<dyn CloudProvider> = Arc::new(SimulatedCloud::new(cloud.clone(), platform.clone()));
        let install = move |around: Surroundings| {
            let (provider, cloud) = (Arc::clone(&provider), cloud.clone());
            let collect = Part::new("instance garbage collection", move |stop| {
                collect_orphans(around.client, cloud, around.environment.clock, stop).boxed()
            });
            async move { Some(Installation { provider, parts: vec![collect] }) }.boxed()
        };
        live(life, Arc::clone(&options), Leads::IfElected, install).boxed()
    }
}

/// Whether a process asks before it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// Only while it holds the lease.
    IfElected,
    /// It believes that it does.
    Always,
}

/// One life of Karpenter, which is started again and again as a kubelet would when it ends by itself. `install` gives the provider,
/// or nothing if it cannot be had just now.
pub(crate) async fn live(
    life: Life,
    options: Arc<Options>,
    leads: Leads,
    install: impl Fn(Surroundings) -> BoxFuture<'static, Option<Installation>>,
) {
    for start in 0u32.. {
        let mut environment = life.environment.clone();
        environment.entropy = environment.entropy.child(&format!("start {start}"));
        environment.registry = karpenter_runtime::metrics::Registry::new();
        // Some machines think slowly: what they decide is of yesterday.
        let compute = match Chance::new(&environment.entropy, "thinking").below(8) {
            thoughts @ 5.. => Compute::Taking(Duration::from_millis(400 * thoughts)),
            _ => Compute::Inline,
        };
        let (recorder, writer) = events::recorder(COMPONENT, &environment);
        let around = Surroundings {
            client: life.client.clone(),
            environment: environment.clone(),
            options: Arc::clone(&options),
            recorder: recorder.clone(),
        };
        let Some(installation) = install(around).await else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let measured = Measured::new(installation.provider, &environment.registry);
        let Ok(providers) = Registry::of([Arc::new(measured) as Arc<dyn CloudProvider>]) else {
            unreachable!("one provider is not contested")
        };
        let identity = karpenter_runtime::lease::identity("karpenter", &environment);
        let lease = LeaseConfig::new("kube-system", "karpenter-leader-election", identity);
        let elector = Elector::new(life.client.clone(), lease, &environment, &recorder);
        let (mut program, _) = assemble(Given {
            client: life.client.clone(),
            environment,
            options: Arc::clone(&options),
            providers,
            events: (recorder, writer),
            compute,
        });
        for part in installation.parts {
            program.while_leading(part.name, part.run);
        }
        let elector = (leads == Leads::IfElected).then_some(elector);
        // Losing the lease ends a process; the next one starts a moment later.
        if program.run(life.stop.clone(), elector).await.is_ok() {
            return;
        }
        life.note("loses the lease");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
