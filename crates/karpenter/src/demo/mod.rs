//! `karpenter demo`: Karpenter at work on a cluster that exists in memory only. It needs nothing: the embedded API server, a
//! simulated scheduler and kubelets, and Karpenter itself as `karpenter run` would start it. Time runs faster than on
//! the wall, so that minutes take seconds; with `--serve` it slows down to ours at the end and stays.

mod observer;
mod screen;
mod serving;
mod stage;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use karpenter_api::conditions::{self, HasConditions as _};
use karpenter_api::{ConditionStatus, NodePool};
use karpenter_cloudprovider::{CloudProvider, Measured, Registry, Surroundings};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Given, assemble};
use karpenter_runtime::compute::Compute;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events;
use karpenter_runtime::metrics::Registry as Metrics;
use karpenter_runtime::options::{Environ, Options};
use karpenter_sim::chance::Span;
use karpenter_sim::kubelet::Timing;
use karpenter_sim::objects::is_deleting;
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Objects, World, WorldOptions};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use observer::Observer;
use screen::Screen;

const WORKLOAD: &str = include_str!("../../../../examples/demo/workload.yaml");

/// How much virtual time passes between two looks.
const STEP: Duration = Duration::from_millis(250);

/// Karpenter at work on a cluster in memory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose machines to play with: kwok, cluster-api or cloudstack.
    #[arg(long, default_value = "kwok", value_name = "PROVIDER")]
    provider: String,
    /// Stay up at the end, for kubectl.
    #[arg(long)]
    serve: bool,
    /// Where to serve; port 0 picks a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", requires = "serve")]
    listen: SocketAddr,
    /// How many times faster than on the wall time runs; 16, and 24 where machines boot as slowly as CloudStack's.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    speed: Option<u32>,
    /// Another seed is another run; the same one is the same.
    #[arg(long, default_value_t = 7, hide = true)]
    seed: u64,
}

/// Shows it from the first pod to the summary.
pub fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(show(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &Args) -> anyhow::Result<()> {
    // Before the story: nobody wants to hear of a taken port at its end.
    let mut listener = None;
    if args.serve {
        listener = Some(serving::bind(args.listen).await?);
    }
    let mut world = World::new(WorldOptions {
        seed: args.seed,
        epoch: args.serve.then(serving::epoch),
        timing: Timing {
            ready: Span::secs(6, 14),
            start: Span::millis(500, 2500),
            end_percent: (10, 60),
            ..Timing::default()
        },
        ..WorldOptions::default()
    })
    .await?;
    let cluster = world.cluster().clone();
    let stop = CancellationToken::new();
    let stage = stage::set(&world, &args.provider).await?;
    let environment = Environment {
        clock: Arc::new(cluster.clock().clone()),
        entropy: cluster.entropy().child("karpenter"),
        registry: Metrics::new(),
    };
    let client = cluster.client("karpenter");
    let options = Arc::new(Options::parse(["--provider", &args.provider], &Environ::new())?);
    let (recorder, writer) = events::recorder(COMPONENT, &environment);
    let around = Surroundings {
        client: client.clone(),
        environment: environment.clone(),
        options: Arc::clone(&options),
        recorder: recorder.clone(),
    };
    let installation = stage.install(&world, &around).await?;
    let measured = Arc::new(Measured::new(installation.provider, &environment.registry));
    let (mut program, context) = assemble(Given {
        client,
        environment,
        options,
        providers: Registry::of([Arc::clone(&measured) as Arc<dyn CloudProvider>])?,
        events: (recorder, writer),
        compute: Compute::Inline,
    });
    for part in installation.parts {
        program.while_leading(part.name, part.run);
    }
    let karpenter = tokio::spawn(program.run(stop.clone(), None));

    let screen = Screen::new(args.speed.unwrap_or(stage.speed));
    let mut story = Story { world: &world, observer: Observer::new(cluster.clone(), screen) };
    story.observer.say("An empty cluster. Karpenter is running; there is not one node.");
    for object in documents(stage.pool)? {
        world.create(object).await?;
    }
    story
        .play("the NodePool is ready", 30, |objects| objects.node_pools.values().all(|pool| is_ready(pool)))
        .await?;
    // What machines cost is what the provider says they cost.
    let pools = context.stores.node_pools.list();
    for pool in &pools {
        story.observer.learn_prices(&measured.get_instance_types(pool).await?);
    }
    story.observer.say(stage.told);
    for object in documents(WORKLOAD)? {
        world.create(object).await?;
    }
    story.observer.say("Applied a shop: 48 web, 24 api, 3 db, 10 report pods, an agent on every node.");
    story
        .play("every pod runs", 300, |objects| {
            observer::pods_waiting(objects) == 0 && !objects.pods.is_empty()
        })
        .await?;
    story.observer.phase("Everything runs.");
    story.play("the reports are written", 300, |objects| !observer::working(objects, "reports")).await?;

    story.observer.say("Night falls: web 48 -> 9, api 24 -> 4.");
    scale(&world, "web", 9).await?;
    scale(&world, "api", 4).await?;
    story.settle(300).await?;
    story.observer.phase("The cluster has shrunk to what is needed.");

    if let Some(listener) = listener {
        story.observer.summary();
        serving::stay(&mut world, listener).await?;
    } else {
        story.observer.say("The shop closes: all workloads are deleted.");
        for (kind, name) in [("Deployment", "web"), ("Deployment", "api"), ("StatefulSet", "db")] {
            delete(&world, kind, name).await?;
        }
        let nothing_is_left = |objects: &Objects| objects.nodes.is_empty() && objects.node_claims.is_empty();
        story.play("every node is gone", 600, nothing_is_left).await?;
        story.observer.summary();
    }
    stop.cancel();
    karpenter.await.context("Karpenter ended with a panic")?.context("Karpenter ended badly")?;
    Ok(())
}

/// The world, seen step by step.
struct Story<'a> {
    world: &'a World,
    observer: Observer,
}

impl Story<'_> {
    /// Goes on until something holds.
    async fn play(
        &mut self,
        what: &str,
        within_secs: u64,
        holds: impl Fn(&Objects) -> bool,
    ) -> anyhow::Result<()> {
        let mut left = Duration::from_secs(within_secs);
        loop {
            self.step().await?;
            if self.world.cluster().read(|objects| holds(objects)) {
                return Ok(());
            }
            left = left.saturating_sub(STEP);
            if left.is_zero() {
                bail!("{what}: not within {within_secs} seconds; this is a bug worth reporting");
            }
        }
    }

    /// Goes on until no node has come or gone for a minute.
    async fn settle(&mut self, within_secs: u64) -> anyhow::Result<()> {
        let (mut quiet, mut all) = (Duration::ZERO, Duration::ZERO);
        let mut known = None;
        while quiet < Duration::from_secs(60) && all < Duration::from_secs(within_secs) {
            self.step().await?;
            let now = self.world.cluster().read(|objects| {
                let claims: Vec<_> = objects.node_claims.keys().cloned().collect();
                let going = objects.node_claims.values().any(|claim| is_deleting(&**claim));
                (claims, going)
            });
            quiet = if known.as_ref() == Some(&now) && !now.1 { quiet + STEP } else { Duration::ZERO };
            known = Some(now);
            all += STEP;
        }
        Ok(())
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        self.world.run_for(STEP).await?;
        self.observer.look(STEP);
        Ok(())
    }
}

fn is_ready(pool: &NodePool) -> bool {
    pool.condition_status(conditions::READY) == ConditionStatus::True
}

fn documents(yaml: &str) -> anyhow::Result<Vec<Value>> {
    serde_saphyr::from_multiple(yaml).context("the demo's own manifests cannot be read")
}

async fn scale(world: &World, name: &str, replicas: u64) -> anyhow::Result<()> {
    let act = Act::Scale { kind: "Deployment", name: name.to_owned(), replicas };
    Ok(Script { acts: vec![(Duration::ZERO, act)] }.play(world).await?)
}

async fn delete(world: &World, kind: &'static str, name: &str) -> anyhow::Result<()> {
    let act = Act::Delete { kind, name: name.to_owned() };
    Ok(Script { acts: vec![(Duration::ZERO, act)] }.play(world).await?)
}
