//! `karpenter run`: the operator in a cluster. Settings are Go Karpenter's, as flags or environment variables.
//!
//! Exit status: 0 after a signal, 1 when the lease was lost or a part failed, 2 when it could not start.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use karpenter_cloudprovider::{CloudProvider, Measured, Registry, Surroundings};
use karpenter_controllers::operator::COMPONENT;
use karpenter_controllers::{Given, Stores, assemble, check_repair_policies};
use karpenter_provider_cloudstack::client::LAST_SUCCESS as CLOUDSTACK_LAST_SUCCESS;
use karpenter_provider_cluster_api::client::credentials::Known;
use karpenter_provider_cluster_api::wiring;
use karpenter_runtime::client::{self, Limits};
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::compute::Compute;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::lease::{self, Elector, LeaseConfig, Trouble};
use karpenter_runtime::metrics::{Gauge, Registry as Metrics};
use karpenter_runtime::options::{Options, OptionsError, PROVIDERS};
use karpenter_runtime::otlp::{self, Exporter};
use karpenter_runtime::probes::{Checks, MetricsPage, Probes};
use karpenter_runtime::program::{self, Program};
use karpenter_runtime::{events, http, logging, renewal, surroundings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::definitions;
use crate::providers;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What it was built from, if whoever built it said so.
const COMMIT: Option<&str> = option_env!("KARPENTER_COMMIT");

/// A commit as Go Karpenter names it: seven digits, and whether anything was changed since.
fn short(commit: &str) -> Option<String> {
    let (digits, changed) = match commit.strip_suffix("-dirty") {
        Some(digits) => (digits, "-dirty"),
        None => (commit, ""),
    };
    let digits: String = digits.chars().take(7).collect();
    (!digits.is_empty()).then(|| format!("{digits}{changed}"))
}

/// Run Karpenter in a cluster.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Settings in Go's syntax: --provider=kwok, -log-level debug; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SETTING")]
    settings: Vec<String>,
}

/// Runs until SIGTERM or SIGINT.
pub fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    let environ = Options::environ(std::env::vars_os())?;
    let options = match Options::parse(args.settings.iter().map(String::as_str), &environ) {
        Err(OptionsError::Help) => {
            writeln!(
                io::stdout(),
                "Run Karpenter in a cluster.\n\nUsage: karpenter run [SETTING]...\n\nSettings:\n{}",
                Options::help()
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        parsed => Arc::new(parsed?),
    };
    check(&options)?;
    let environment = Environment::real();
    let commit = COMMIT.and_then(short);
    let level = logging::Level::from(options.log_level);
    let config = logging::Config { level: level.clone(), commit, ..logging::Config::default() };
    let output = logging::open_outputs(&options.log_output_paths, &options.log_error_output_paths)?;
    let clock = Arc::clone(&environment.clock);
    let collector = Some(options.otlp_endpoint.as_str()).filter(|address| !address.is_empty());
    let traces = collector.map(|address| otlp::exporter(address, &environment)).transpose();
    // The address often comes from whoever runs the cluster and is meant for every program there: it is no reason not to start.
    let (traces, no_traces) = traces.map_or_else(|error| (None, Some(error)), |traces| (traces, None));
    let (layer, exporter) = traces.unzip();
    match layer {
        Some(layer) => tracing::subscriber::set_global_default(logging::subscriber_with_traces(
            config, clock, output, layer,
        )),
        None => tracing::subscriber::set_global_default(logging::subscriber(config, clock, output)),
    }
    .context("cannot set up logging")?;
    if let Some(error) = no_traces {
        tracing::warn!(%error, "no traces are sent");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The engine thinks for moments, minutes apart: what a thread has for itself is given back in between.
        .thread_keep_alive(Duration::from_millis(100))
        .build()
        .context("cannot start the async runtime")?;
    let ended = runtime.block_on(run(options, environment, exporter, level));
    // Whatever is still being computed concerns nobody: the lease is another's by now.
    runtime.shutdown_background();
    ended
}

/// What can be read and yet cannot be run with.
fn check(options: &Options) -> anyhow::Result<()> {
    if options.providers.is_empty() {
        let known = PROVIDERS.join(", ");
        anyhow::bail!("--provider is not set, so there would be nothing to do; name one or more of {known}");
    }
    if !options.disable_leader_election && options.lease_name().is_empty() {
        anyhow::bail!(
            "--leader-election-name (LEADER_ELECTION_NAME) is empty, and the lease needs a name; leave it out for the default, or set --disable-leader-election if there is only ever one replica"
        );
    }
    Ok(())
}

/// Says on the metrics page which program this is, with Go Karpenter's labels.
fn publish_build(metrics: &Metrics) {
    let compiler = concat!("rust", env!("CARGO_PKG_RUST_VERSION"));
    let commit = COMMIT.and_then(short);
    // As Go calls them.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    metrics
        .gauge(
            "karpenter_build_info",
            "Always 1; the labels say which program this is",
            &["version", "goversion", "goarch", "commit"],
        )
        .set(&[VERSION, compiler, architecture, commit.as_deref().unwrap_or("unknown")], 1.0);
}

async fn run(
    options: Arc<Options>,
    environment: Environment,
    traces: Option<Exporter>,
    log_level: logging::Level,
) -> anyhow::Result<ExitCode> {
    let stop = program::stop_on_signal().context("cannot listen for SIGTERM and SIGINT")?;
    let started = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
        started = start(options, environment, traces, log_level, &stop) => started?,
    };
    let Some((program, elector)) = started else { return Ok(ExitCode::SUCCESS) };
    match program.run(stop, elector).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!(%error, "stopped");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Everything up to the first controller, which may wait for servers; nothing if it was stopped while it did.
async fn start(
    options: Arc<Options>,
    environment: Environment,
    traces: Option<Exporter>,
    log_level: logging::Level,
    stop: &CancellationToken,
) -> anyhow::Result<Option<(Program, Option<Elector>)>> {
    for warning in &options.warnings {
        tracing::warn!("{warning}");
    }
    tracing::debug!(version = VERSION, "discovered karpenter version");
    if !options.default_topology_spread.is_empty() {
        let constraints = serde_json::to_value(&options.default_topology_spread).unwrap_or_default();
        tracing::info!(
            "default-topology-spread-constraints" = %logging::json(constraints),
            "scheduler-config is set: applying these default topology spread constraints during scheduling to pods that declare none of their own"
        );
    }
    publish_build(&environment.registry);
    // Where we run, and the lease is; with Cluster API we may work for another cluster.
    let own = surroundings::cluster(options.kubeconfig.as_ref()).await?;
    let (config, known) = if options.cluster_api.in_management_cluster {
        let waiting = Waiting::serve(&options).await?;
        let found = wiring::workload(own.clone(), &options, |why| waiting.tell(why), stop).await;
        waiting.end().await;
        let Some(workload) = found? else { return Ok(None) };
        (workload.config, workload.known)
    } else {
        (own.clone(), Known::default())
    };
    let server = config.cluster_url.to_string();
    let limits = Limits { qps: options.kube_client_qps, burst: options.kube_client_burst };
    let metrics = environment.registry.clone();
    let make = move |config| client::build(config, VERSION, limits, &metrics);
    let mut client = make(config).context("cannot make a client of the cluster")?;
    let mut switch = None;
    if options.cluster_api.in_management_cluster {
        let (renewable, of) = renewal::renewable(client);
        client = renewable;
        switch = Some(of);
    }
    definitions::check_core(&client, &options).await.with_context(|| format!("API server {server}"))?;

    let (recorder, writer) = events::recorder(COMPONENT, &environment);
    let around = Surroundings {
        client: client.clone(),
        environment: environment.clone(),
        options: Arc::clone(&options),
        recorder: recorder.clone(),
    };
    let mut registry = Registry::new();
    let mut parts = Vec::new();
    for name in &options.providers {
        let installation = providers::install(name, &around).await?;
        definitions::check_node_classes(&client, name, &*installation.provider).await?;
        let measured = Measured::new(installation.provider, &environment.registry);
        registry.register(Arc::new(measured) as Arc<dyn CloudProvider>)?;
        parts.extend(installation.parts);
    }
    check_repair_policies(&options, &registry)?;

    let (mut program, context) = assemble(Given {
        client,
        environment: environment.clone(),
        options: Arc::clone(&options),
        providers: registry,
        events: (recorder.clone(), writer),
        compute: Compute::Beside,
    });
    for part in parts {
        match part.always {
            true => program.always(part.name, part.run),
            false => program.while_leading(part.name, part.run),
        }
    }
    if let Some(switch) = switch {
        let (own, options) = (own.clone(), Arc::clone(&options));
        program.always("workload credentials", move |stop| {
            wiring::follow_workload((own, known), options, switch, Box::new(make), stop).boxed()
        });
    }
    let elector = match options.disable_leader_election {
        true => None,
        false => {
            let client =
                client::for_lease(own, VERSION, limits).context("cannot make a client for the lease")?;
            let namespace = surroundings::lease_namespace(&options.leader_election_namespace)?;
            let identity = lease::identity(&surroundings::host_name(), &environment);
            let config = LeaseConfig::new(namespace, options.lease_name(), identity);
            Some(Elector::new(client, config, &environment, &recorder))
        }
    };
    // After the elector, which brings the gauge that readiness looks at.
    let trouble = elector.as_ref().map(Elector::trouble).unwrap_or_default();
    if let Some(traces) = traces {
        program.always("traces", move |stop| traces.run(stop).boxed());
    }
    serve(&mut program, &options, &environment, log_level, context.stores.clone(), trouble).await?;
    Ok(Some((program, elector)))
}

/// Probes while the cluster to work for is waited for: alive, and not ready.
struct Waiting {
    why: Arc<Mutex<String>>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Waiting {
    async fn serve(options: &Options) -> anyhow::Result<Self> {
        let listener =
            http::bind(options.health_probe_port, "--health-probe-port, HEALTH_PROBE_PORT").await?;
        let why = Arc::new(Mutex::new("the cluster to work for is being looked for".to_owned()));
        let told = Arc::clone(&why);
        let readyz = Checks::new().with_ping("readyz").with("workload-cluster", move || {
            Err(told.lock().unwrap_or_else(PoisonError::into_inner).clone())
        });
        let probes = Arc::new(Probes { healthz: Checks::new().with_ping("healthz"), readyz });
        let stop = CancellationToken::new();
        let serving = tokio::spawn(http::serve(listener, probes, stop.clone()));
        Ok(Self { why, stop, serving })
    }

    fn tell(&self, why: &str) {
        why.clone_into(&mut self.why.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Leaves the port to those that come after.
    async fn end(self) {
        self.stop.cancel();
        let _ = self.serving.await;
    }
}

/// How long CloudStack may be silent before `/healthz/cloudstack` says so, in seconds.
const CLOUDSTACK_SILENCE_SECS: f64 = 300.0;

/// Metrics and probes, from the start to the very end.
async fn serve(
    program: &mut Program,
    options: &Options,
    environment: &Environment,
    log_level: logging::Level,
    stores: Stores,
    trouble: Trouble,
) -> anyhow::Result<()> {
    let (metrics, clock) = (&environment.registry, &environment.clock);
    let listener = http::bind(options.metrics_port, "--metrics-port, METRICS_PORT").await?;
    let (registry, profiling) = (metrics.clone(), options.enable_profiling);
    let page = Arc::new(MetricsPage { registry, profiling, log_level });
    program.always("metrics", move |stop| http::serve(listener, page, stop).boxed());

    let listener = http::bind(options.health_probe_port, "--health-probe-port, HEALTH_PROBE_PORT").await?;
    // Who stands by has nothing to sync: it is ready to take over.
    let leading = (!options.disable_leader_election).then(|| {
        metrics.gauge("leader_election_master_status", "", &["name"]).with(&[&options.lease_name()])
    });
    let leads = move || leading.as_ref().is_none_or(|leading| leading.get() > 0.0);
    let manager_leads = leads.clone();
    // That the definitions are there was seen to before anything started.
    let mut healthz = Checks::new().with_ping("healthz");
    let mut readyz = Checks::new().with_ping("readyz").with_ping("crd").with("manager", move || {
        if !manager_leads() || stores.are_synced() { Ok(()) } else { Err("failed to sync caches".to_owned()) }
    });
    // Who cannot even ask for the lease stands by for nothing.
    readyz = readyz.with("lease", move || trouble.last().map_or(Ok(()), Err));
    if options.providers.iter().any(|provider| provider == "cloudstack") {
        let reached = metrics.gauge(CLOUDSTACK_LAST_SUCCESS, "", &[]).with(&[]);
        Probes { healthz, readyz } = of_cloudstack(Probes { healthz, readyz }, reached, leads, clock);
    }
    let probes = Arc::new(Probes { healthz, readyz });
    program.always("probes", move |stop| http::serve(listener, probes, stop).boxed());
    Ok(())
}

/// Probes that know when CloudStack answered last, as far as whoever leads asks it.
fn of_cloudstack(
    probes: Probes,
    reached: Gauge,
    leads: impl Fn() -> bool + Clone + Send + Sync + 'static,
    clock: &SharedClock,
) -> Probes {
    let (answered, acts, clock) = (reached.clone(), leads.clone(), Arc::clone(clock));
    let healthz = probes.healthz.with_aside("cloudstack", move || {
        let silent_secs = clock.now().as_second() as f64 - answered.get();
        if !acts() || silent_secs <= CLOUDSTACK_SILENCE_SECS {
            Ok(())
        } else {
            Err("CloudStack has not answered for more than five minutes".to_owned())
        }
    });
    // Only until the first answer: a controller that is taken away while the API is down helps nobody.
    let readyz = probes.readyz.with("cloudstack", move || {
        if !leads() || reached.get() > 0.0 {
            Ok(())
        } else {
            Err("CloudStack has not answered yet".to_owned())
        }
    });
    Probes { healthz, readyz }
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::http::Handler as _;
    use karpenter_runtime::options::Environ;

    use super::*;

    fn checked(settings: &[&str]) -> Result<(), String> {
        let options = Options::parse(settings.iter().copied(), &Environ::new()).expect("settings");
        check(&options).map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_waits_for_cloudstacks_first_answer_and_its_silence_is_told_aside() {
        let environment = Environment::seeded("2026-11-15T08:00:00Z".parse().expect("a time"), 1);
        let reached = environment.registry.gauge(CLOUDSTACK_LAST_SUCCESS, "", &[]).with(&[]);
        let leading = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let leads = {
            let leading = Arc::clone(&leading);
            move || leading.load(std::sync::atomic::Ordering::Relaxed)
        };
        let plain =
            Probes { healthz: Checks::new().with_ping("healthz"), readyz: Checks::new().with_ping("readyz") };
        let probes = of_cloudstack(plain, reached.clone(), leads, &environment.clock);
        let states = async || {
            let mut states = Vec::new();
            for path in ["/healthz", "/healthz/cloudstack", "/readyz"] {
                states.push(probes.get(path, "").await.status.as_u16());
            }
            states
        };
        assert_eq!(states().await, [200, 200, 200], "who stands by asks nobody");
        leading.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(states().await, [200, 500, 500], "not ready before the first answer, and alive");
        reached.set(environment.clock.now().as_second() as f64);
        assert_eq!(states().await, [200, 200, 200]);
        tokio::time::advance(Duration::from_secs(301)).await;
        assert_eq!(states().await, [200, 500, 200], "taken away it would help nobody");
    }

    #[test]
    fn a_commit_is_named_by_seven_digits_and_whether_it_was_changed() {
        let named = |commit| short(commit).unwrap_or_default();
        assert_eq!(named("1f1e9f5c0ffee"), "1f1e9f5");
        assert_eq!(named("1f1e9f5c0ffee-dirty"), "1f1e9f5-dirty");
        assert_eq!((short(""), short("-dirty")), (None, None));
    }

    #[test]
    fn a_program_without_a_provider_or_a_name_for_its_lease_does_not_start() {
        let error = checked(&[]).expect_err("nothing to do");
        assert!(error.contains("--provider") && error.contains("kwok, cluster-api, cloudstack"), "{error}");
        let error = checked(&["--provider=kwok", "--leader-election-name="]).expect_err("no name");
        assert!(error.contains("--leader-election-name (LEADER_ELECTION_NAME)"), "{error}");
        let alone = ["--provider=kwok", "--leader-election-name=", "--disable-leader-election"];
        assert_eq!((checked(&alone), checked(&["--provider=kwok"])), (Ok(()), Ok(())));
    }

    #[test]
    fn the_metrics_page_says_which_program_this_is_with_upstreams_labels() {
        let list: serde_json::Value =
            serde_json::from_str(include_str!("../../../conformance/metrics/metrics.json"))
                .expect("the list");
        let metrics = list["metrics"].as_array().expect("metrics");
        let wanted =
            metrics.iter().find(|family| family["name"] == "karpenter_build_info").expect("upstream has it");
        let registry = Metrics::new();
        publish_build(&registry);
        let family = registry
            .families()
            .into_iter()
            .find(|family| family.name == "karpenter_build_info")
            .expect("it is there");
        assert_eq!(serde_json::json!(family.labels), wanted["labels"]);
        assert_eq!(family.kind, wanted["type"].as_str().expect("a type"));
        let page = registry.encode();
        let line = page.lines().find(|line| line.starts_with("karpenter_build_info{")).expect("a value");
        assert!(line.contains(&format!("version=\"{VERSION}\"")) && line.ends_with(" 1"), "{line}");
    }
}
