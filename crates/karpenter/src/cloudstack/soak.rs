//! `karpenter cloudstack soak`: hours with many nodes on the simulated cloud while things go wrong, in virtual time. Rules are
//! checked all the while, and how often the cloud was asked at the end.

use std::process::ExitCode;
use std::time::Duration;

use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_sim::chance::{Chance, Span};
use karpenter_sim::cloudstack::accidents::Accidents;
use karpenter_sim::cloudstack::checks::{self, MachinesAreWanted};
use karpenter_sim::cloudstack::faults::Rates;
use karpenter_sim::cloudstack::guests::GuestOptions;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::invariants::Invariant;
use karpenter_sim::objects::{is_active, is_ready};
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Objects, Trouble, WorldOptions, in_virtual_time};
use serde_json::{Value, json};

use crate::sim::log_to_stderr;

use super::stage::{Stage, apply_credentials, furnish, node_class, node_class_ref};

const MINUTE: Duration = Duration::from_secs(60);
/// How often the load changes.
const SWING: Duration = Duration::from_secs(30 * 60);

/// Run Karpenter for hours of virtual time on a simulated CloudStack with bad days.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Args {
    /// Nodes at most; at least half of them are there at any time.
    #[arg(long, default_value_t = 500)]
    pub nodes: u64,
    /// Hours of virtual time.
    #[arg(long, default_value_t = 24)]
    pub hours: u64,
    /// Everything follows from it.
    #[arg(long, default_value_t = 8)]
    pub seed: u64,
    /// Print Karpenter's log, on stderr.
    #[arg(long)]
    pub log: bool,
    /// Print every write and call at the end.
    #[arg(long)]
    pub tape: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Calls to the cloud.
    pub calls: usize,
    /// Machines that were ordered.
    pub deployed: usize,
    /// Minutes of virtual time.
    pub minutes: usize,
}

impl Figures {
    /// As many calls as it may take: some for every machine that comes and goes, and some every minute.
    pub fn budget(&self) -> usize {
        12 * self.deployed + 20 * self.minutes + 200
    }
}

pub(super) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    match soak(*args, |line| println!("{line}"))? {
        Ok(figures) if figures.calls <= figures.budget() => Ok(ExitCode::SUCCESS),
        Ok(figures) => {
            println!("more calls than the {} they should be", figures.budget());
            Ok(ExitCode::FAILURE)
        }
        Err(trouble) => {
            println!("{trouble}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// A NodePool whose nodes hold one pod each and go soon after it.
fn node_pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {
            "template": {"spec": {"nodeClassRef": node_class_ref(), "requirements": [
                {"key": "karpenter.k8s.cloudstack/instance-cpu", "operator": "In", "values": ["2"]},
            ]}},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]},
        },
    })
}

fn deployment(replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "app"}}, "template": {
            "metadata": {"labels": {"app": "app"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "c", "image": "registry.k8s.io/pause", "resources": {"requests": {"cpu": "1500m"}}},
            ]},
        }},
    })
}

/// Plays it in virtual time and tells every half hour how far it is. Inside: the rule that was broken, if one was.
///
/// # Errors
///
/// If virtual time cannot be had.
pub fn soak(args: Args, mut tell: impl FnMut(String)) -> anyhow::Result<Result<Figures, Trouble>> {
    let played = in_virtual_time(async {
        let _logging = args.log.then(log_to_stderr);
        let options = WorldOptions { seed: args.seed, ..WorldOptions::default() };
        let stage = Stage::new(options, GuestOptions::default()).await?;
        let played = play(&stage, args, &mut tell).await;
        if args.tape {
            stage
                .world
                .cluster()
                .tape(|tape| tape.entries().iter().for_each(|entry| tell(entry.to_string())));
        }
        played
    });
    Ok(played?)
}

async fn play(stage: &Stage, args: Args, tell: &mut impl FnMut(String)) -> Result<Figures, Trouble> {
    let Args { nodes, hours, .. } = args;
    furnish(&stage.cloud, 40);
    let world = &stage.world;
    let wanted = MachinesAreWanted::within(&stage.cloud, checks::WITHIN).always();
    world.cluster().watch_over(checks::all(&stage.cloud));
    world.cluster().watch_over([Box::new(wanted) as Box<dyn Invariant>]);
    apply_credentials(&stage.world).await?;
    let mut class = node_class();
    class["spec"]["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    world.create(class).await?;
    world.create(node_pool()).await?;
    let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("soak"));
    karpenter.start();
    world.create(deployment(nodes)).await?;
    let accidents = Accidents::new(&stage.cloud, world.cluster(), Rates::mild());
    let accidents = tokio::spawn(accidents.every(Span::secs(300, 1200)).happen());
    let mut chance = Chance::new(world.cluster().entropy(), "soak");
    let figures = |minutes: usize| {
        let calls = stage.cloud.calls();
        let deployed = calls.get("deployVirtualMachine").copied().unwrap_or(0);
        Figures { calls: calls.values().sum(), deployed, minutes }
    };
    let minutes = || usize::try_from(world.cluster().elapsed().as_secs() / MINUTE.as_secs()).unwrap_or(0);
    for _ in 0..hours * 2 {
        // The load goes up and down.
        let replicas = chance.between(nodes / 2, nodes);
        let act = Act::Scale { kind: "Deployment", name: "app".to_owned(), replicas };
        Script { acts: vec![(Duration::ZERO, act)] }.play(world).await?;
        world.run_for(SWING).await?;
        let there = world.cluster().read(|objects| objects.nodes.len());
        let Figures { calls, deployed, minutes } = figures(minutes());
        tell(format!(
            "minute {minutes}: {replicas} pods, {there} nodes, {deployed} deployments, {calls} calls"
        ));
    }
    stage.cloud.heal();
    let _ = accidents.await;
    let content =
        |objects: &Objects| objects.pods.values().filter(|pod| is_active(pod)).all(|pod| is_ready(pod));
    world.wait_until("every pod runs", 90 * MINUTE, content).await?;
    world.run_for(15 * MINUTE).await?;
    world.cluster().check_at_rest(15 * MINUTE)?;
    let figures = figures(minutes());
    tell(format!(
        "every rule held; {} calls, {} deployments, {} minutes: {:?}",
        figures.calls,
        figures.deployed,
        figures.minutes,
        stage.cloud.calls()
    ));
    karpenter.stop(MINUTE).await;
    Ok(figures)
}
