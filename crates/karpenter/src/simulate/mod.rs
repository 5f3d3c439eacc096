//! `karpenter simulate`: what Karpenter would do with a cluster given as files.
//!
//! Reads a scenario (instance types, options and objects in one file) or dumps of a real cluster
//! (`kubectl get … -o yaml`) with an instance type file, and prints the plan: a table for people, or with `-o json` the form
//! in which Go Karpenter's decisions are recorded:
//!
//! ```text
//! cargo build --release -p karpenter
//! $ORACLE/agree DIR -- target/release/karpenter simulate -o json
//! cargo test -p karpenter decisions          # the recorded decisions in conformance/decisions, in process
//! ```
//!
//! | module | what it is for |
//! |---|---|
//! | `source` | files as JSON documents |
//! | `scenario` | documents as one scenario, not yet understood |
//! | `objects`, `settings` | understanding objects and options, each on its own |
//! | `budgets` | what of the objects no API server lets through |
//! | `cluster` | the same for other commands that look at a cluster |
//! | `input` | all of it together: a cluster mirror and how to decide |
//! | `outcome`, `explanation` | the plan and its reasons as JSON |
//! | `table`, `sentences` | the plan and its reasons for people |
//! | `disrupt`, `disrupt_table` | the same for disruption: every method's outcome, and why each node stays |
//! | `timing` | how long it took |

mod budgets;
mod cluster;
mod disrupt;
mod disrupt_table;
mod explanation;
mod input;
mod objects;
mod outcome;
mod rejected;
mod scenario;
mod sentences;
mod settings;
mod source;
mod table;
mod timing;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use karpenter_engine::{Plan, solve};
use serde_json::Value;

pub(crate) use cluster::{Cluster, ClusterFiles};
use input::{Input, InputError, Mode};
pub(crate) use objects::Unlaunched;
pub(crate) use rejected::Rejected;
use source::SourceFile;
use table::Notes;
use timing::{Stopwatch, Timings};

/// Show what Karpenter would do with a cluster given as files: what it would buy, what stays pending, and why.
/// Or, in a disrupt scenario (or with --mode disrupt): which nodes it would take away, what that saves, and why the others stay.
///
/// FILE is a scenario (instance types, options and objects), or a dump made by `kubectl get … -o yaml` or `-o json`, which
/// needs --instance-types. Several files make one cluster. Files may be gzipped.
///
/// Exit status: 0 every pod has a place (or nodes were looked at), 1 some pod has none, 2 the input could not be understood.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Scenario or dump; JSON or YAML, optionally gzipped
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// How to print the plan
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,

    /// What to decide [default: the scenario's, or provision]
    #[arg(long, value_enum)]
    mode: Option<Mode>,

    /// What can be bought, in the kwok provider's format; replaces the scenario's own list
    #[arg(long, value_name = "FILE")]
    instance_types: Option<PathBuf>,

    /// The time to assume [default: the scenario's, or the newest timestamp of the dump]
    #[arg(long, value_name = "TIME")]
    now: Option<String>,

    /// Add the reasons for every decision under the key `reasons` (with -o json)
    #[arg(long)]
    reasons: bool,

    /// Print how long the decision took as one line of JSON on stderr
    #[arg(long)]
    timings: bool,

    /// Decide this many times (with --timings)
    #[arg(long, value_name = "N", default_value = "1", requires = "timings")]
    count: NonZeroUsize,
}

/// How to print a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Why there is no plan to print.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input could not be understood.
    #[error(transparent)]
    Input(InputProblem),
    /// The plan could not be printed.
    #[error("cannot write the plan: {0}")]
    Output(#[from] io::Error),
}

/// What is wrong with the input, naming file and field.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct InputProblem(InputError);

impl From<InputError> for Error {
    fn from(e: InputError) -> Self {
        Self::Input(InputProblem(e))
    }
}

/// A plan, printed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plan, as a table or as JSON.
    pub text: String,
    /// What goes to stderr beside it: what was left out of the input or is odd about it, and timings.
    pub remarks: Vec<String>,
    /// Whether every pod that needs a place has one.
    pub all_placed: bool,
}

/// Runs the command; `Ok(true)` when every pod has a place.
pub fn run(args: &Args) -> Result<bool, Error> {
    let report = report(args)?;
    for remark in &report.remarks {
        writeln!(io::stderr(), "{remark}")?;
    }
    match io::stdout().lock().write_all(report.text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(report.all_placed)
}

/// Reads, decides and prints, without touching stdout or stderr.
pub fn report(args: &Args) -> Result<Report, Error> {
    let mirroring = if args.timings { Stopwatch::ready() } else { Stopwatch::default() };
    let (types, now) = (args.instance_types.as_deref(), args.now.as_deref());
    let mut input = Input::read(&args.files, types, now, mirroring)?;
    if args.mode.unwrap_or(input.mode) == Mode::Disrupt {
        return disruption_report(args, &input);
    }
    // Whoever measures wants the decision alone.
    input.options.solve.explain = args.reasons || (args.output == Output::Table && !args.timings);
    let mut remarks: Vec<String> = input.doubts.iter().map(Rejected::doubt).collect();
    let plan = if args.timings {
        let (plan, timings) = timed(&input, args.count);
        remarks.push(serde_json::to_string(&timings).map_err(io::Error::from)?);
        plan
    } else {
        solve(&input.snapshot(), &input.options.solve)
    };
    let text = match args.output {
        Output::Json => {
            remarks.splice(0..0, input.rejected.iter().map(Rejected::remark));
            let mut json = outcome::to_json(&plan, &input.unreadable_pods);
            if args.reasons {
                json["reasons"] = explanation::to_json(&plan, &input.rejected);
            }
            format!("{json:#}\n")
        }
        Output::Table => table::render(&plan, &notes(&input)),
    };
    Ok(Report { text, remarks, all_placed: all_placed(&plan, &input) })
}

fn notes(input: &Input) -> Notes<'_> {
    Notes {
        now: input.now,
        waiting: input.waiting(),
        unreadable_pods: &input.unreadable_pods,
        rejected: &input.rejected,
        passed_over: &input.passed_over,
        unmet_conditions: &input.unmet_conditions,
    }
}

fn disruption_report(args: &Args, input: &Input) -> Result<Report, Error> {
    let mut remarks: Vec<String> = input.doubts.iter().map(Rejected::doubt).collect();
    let outcomes = if args.timings {
        let mut timings = Timings::start(&input.mirroring);
        let mut outcomes = Vec::new();
        for _ in 0..args.count.get() {
            drop(std::mem::take(&mut outcomes));
            outcomes = disrupt::decide(|| input.snapshot(), &input.options, Some(&mut timings));
        }
        remarks.push(serde_json::to_string(&timings).map_err(io::Error::from)?);
        outcomes
    } else {
        disrupt::decide(|| input.snapshot(), &input.options, None)
    };
    let text = match args.output {
        Output::Json => {
            remarks.splice(0..0, input.rejected.iter().map(Rejected::remark));
            let mut json = disrupt::to_json(&outcomes);
            if args.reasons {
                json["reasons"] = disrupt::reasons(&outcomes, &input.rejected);
            }
            format!("{json:#}\n")
        }
        Output::Table => disrupt_table::render(&outcomes, &notes(input)),
    };
    Ok(Report { text, remarks, all_placed: true })
}

fn all_placed(plan: &Plan, input: &Input) -> bool {
    // With no pool to ask there are no answers at all, and those who wait still wait.
    let unanswered = input.waiting() > 0 && plan.new_claims.is_empty() && plan.existing_nodes.is_empty();
    plan.pod_errors.is_empty()
        && plan.ignored_pods.is_empty()
        && input.unreadable_pods.is_empty()
        && plan.error.is_none()
        && !unanswered
}

fn timed(input: &Input, count: NonZeroUsize) -> (Plan, Timings) {
    let mut timings = Timings::start(&input.mirroring);
    let mut plan = Plan::default();
    for _ in 0..count.get() {
        // Nothing of the repetition before may be held while the next one runs.
        drop(std::mem::take(&mut plan));
        plan = timings.repeat(|| input.snapshot(), |snapshot| solve(snapshot, &input.options.solve));
    }
    (plan, timings)
}

/// The plan for the scenario in `files`, as `-o json` prints it.
pub fn decide(files: &[impl AsRef<Path>]) -> Result<Value, Error> {
    Ok(plan(&Input::read(files, None, None, Stopwatch::default())?))
}

/// The plan for a scenario in memory. Without `caching` the engine asks every question anew: the answer must be the same.
pub fn decide_scenario(scenario: &Value, caching: bool) -> Result<Value, Error> {
    let source = SourceFile::from_bytes("scenario.json".into(), scenario.to_string().into_bytes());
    let sources = [source.map_err(InputError::from)?];
    let mut input = Input::from_sources(&sources, None, None, Stopwatch::default())?;
    input.options.solve.caching = caching;
    Ok(plan(&input))
}

fn plan(input: &Input) -> Value {
    match input.mode {
        Mode::Provision => {
            outcome::to_json(&solve(&input.snapshot(), &input.options.solve), &input.unreadable_pods)
        }
        Mode::Disrupt => disrupt::to_json(&disrupt::decide(|| input.snapshot(), &input.options, None)),
    }
}
