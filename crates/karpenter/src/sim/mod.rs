//! `karpenter sim`: Karpenter in a simulated world in which things go wrong, seed by seed. Each seed is half an hour or so of
//! virtual time in about a second; the rules of the lifecycle are checked after every write, and once
//! everything has healed the cluster must come right. The same seed always gives the same tape.

mod cloud;
mod cloudstack;
mod cluster_api;
mod core;
mod course;
mod disruption;
pub(crate) mod operator;
#[cfg(test)]
mod outage_tests;
#[cfg(test)]
mod planted_tests;
mod plants;
mod tally;

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use karpenter_runtime::clock::TokioClock;
use karpenter_runtime::logging;
use karpenter_sim::{Process, in_virtual_time};
use tracing::level_filters::LevelFilter;

use self::plants::Plant;
use self::tally::Tally;

/// Run Karpenter in simulated worlds with faults; exit status 1 if a rule is broken.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").args(["seed", "seeds"]).required(true)))]
pub struct Args {
    /// Which world.
    #[arg(long, value_enum, default_value_t = World::All)]
    world: World,
    /// One seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Several seeds, the last not included.
    #[arg(long, value_name = "A..B")]
    seeds: Option<Seeds>,
    /// Print every write and call of a run.
    #[arg(long)]
    tape: bool,
    /// Print Karpenter's log, on stderr.
    #[arg(long)]
    log: bool,
    /// Let nothing go wrong.
    #[arg(long)]
    calm: bool,
    /// Have Karpenter make a mistake, to see that it is noticed.
    #[arg(long, value_enum, value_name = "MISTAKE")]
    plant: Option<Plant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum World {
    /// Nodes come and go with their pods; everything of the lifecycle.
    Core,
    /// Nodes are consolidated, drift, expire and break while budgets and pods' wishes change.
    Disruption,
    /// Nodes are virtual machines of a CloudStack that has bad days.
    Cloudstack,
    /// Nodes are Machines of Cluster API, which has a life of its own.
    ClusterApi,
    /// Every world there is.
    All,
}

/// A range of seeds.
#[derive(Clone, Copy, Debug)]
struct Seeds {
    from: u64,
    to: u64,
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let (from, to) = range.ok_or_else(|| format!("{text:?} is no range of seeds; write it as 0..100"))?;
        if from < to { Ok(Self { from, to }) } else { Err(format!("{text} holds no seed")) }
    }
}

/// What came of a seed.
struct Report {
    tape: String,
    digest: String,
    summary: String,
    failure: Option<String>,
}

/// What is to be simulated.
#[derive(Clone, Copy, Debug)]
struct Run {
    world: &'static str,
    seed: u64,
    calm: bool,
    plant: Option<Plant>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "karpenter sim --world {} --seed {}", self.world, self.seed)?;
        f.write_str(if self.calm { " --calm" } else { "" })?;
        self.plant.map_or(Ok(()), |plant| write!(f, " --plant {}", plant.name()))
    }
}

impl Run {
    /// Has the process make the mistake that was asked for.
    fn plant_into(&self, process: &Process) {
        if let Some(plant) = self.plant {
            process.faults().plant(Arc::new(plant));
        }
    }
}

/// Runs the seeds; whether all kept every rule.
pub fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let seeds = match (args.seed, args.seeds) {
        (_, Some(seeds)) => seeds,
        (Some(seed), None) => Seeds { from: seed, to: seed.saturating_add(1) },
        (None, None) => unreachable!("clap requires one of them"),
    };
    let worlds: &[&'static str] = match args.world {
        World::Core => &["core"],
        World::Disruption => &["disruption"],
        World::Cloudstack => &["cloudstack"],
        World::ClusterApi => &["cluster-api"],
        World::All => &["core", "disruption", "cluster-api", "cloudstack"],
    };
    if let Some(plant) = args.plant
        && let Some(world) = worlds.iter().find(|world| !plant.worlds().contains(world))
    {
        let useful = plant.worlds().join(" or ");
        bail!("--plant {} does nothing in the world {world}; give --world {useful}", plant.name());
    }
    let (mut failed, mut tally) = (0u64, Tally::default());
    let mut out = io::stdout();
    for seed in seeds.from..seeds.to {
        for world in worlds {
            let run = Run { world, seed, calm: args.calm, plant: args.plant };
            let simulation = async {
                let _logging = args.log.then(log_to_stderr);
                match run.world {
                    "cluster-api" => cluster_api::simulate(run).await,
                    "disruption" => disruption::simulate(run).await,
                    "cloudstack" => cloudstack::simulate(run).await,
                    _ => core::simulate(run).await,
                }
            };
            let report = in_virtual_time(simulation).context("cannot start the simulation")?;
            if args.tape {
                write!(out, "{}", report.tape)?;
            }
            tally.add(&report.tape);
            let Report { digest, summary, failure, .. } = report;
            match failure {
                None => writeln!(out, "seed={seed} world={world} tape={digest} result=ok {summary}")?,
                Some(failure) => {
                    failed += 1;
                    writeln!(out, "seed={seed}: {failure}\nseed={seed}: replay with: {run} --tape")?;
                    writeln!(out, "seed={seed} world={world} tape={digest} result=FAILED {summary}")?;
                }
            }
        }
    }
    eprintln!("what happened: {tally}");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Logs in the world's time until dropped.
pub(crate) fn log_to_stderr() -> tracing::subscriber::DefaultGuard {
    let config =
        logging::Config { level: LevelFilter::DEBUG.into(), format: logging::Format::Text, commit: None };
    let clock = Arc::new(TokioClock::starting_at(karpenter_sim::cluster::EPOCH));
    tracing::subscriber::set_default(logging::subscriber(config, clock, std::io::stderr()))
}
