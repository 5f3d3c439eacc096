//! Every setting of Karpenter and its providers: flags and environment variables in Go's syntax and precedence, read into
//! what they mean.
//!
//! A pure function of arguments and environment. Where Go silently falls back on an unreadable environment variable so do
//! we, with a warning; an unreadable flag, an impossible value or a flag nobody knows is an error that names the setting in
//! both its spellings and the remedy.

use std::ffi::OsString;
use std::fmt;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use tracing::level_filters::LevelFilter;

use crate::go_duration::GoDuration;
use crate::logging::level;
use crate::surroundings::Kubeconfigs;

mod feature_gates;
mod flags;
mod scheduler_config;

pub use feature_gates::FeatureGates;
pub use flags::Environ;
use flags::{Kind, Setting, Typed, key, parse_int};

/// Why the program cannot start with these arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Not an error: help was asked for.
    #[error("help requested")]
    Help,
    /// A flag nobody knows.
    #[error("unknown flag --{0}; see --help for the flags there are")]
    UnknownFlag(String),
    /// Neither a flag nor its value.
    #[error(
        "unexpected argument {0:?}; a value belongs to its flag as --flag=value, and true/false always does"
    )]
    UnexpectedArgument(String),
    /// Not a flag at all.
    #[error("bad flag syntax {0:?}; write --flag=value")]
    BadSyntax(String),
    /// A flag without its value.
    #[error("{setting} needs a value; write it as --flag=value")]
    MissingValue {
        /// Both names of the setting.
        setting: String,
    },
    /// A variable that is no text.
    #[error("{variable}: the environment variable is not UTF-8; set it to a text, or unset it")]
    NotText {
        /// Which.
        variable: String,
    },
    /// A value that cannot be.
    #[error("{setting}: {value:?} {problem}")]
    Invalid {
        /// Both names of the setting.
        setting: String,
        /// What was given.
        value: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
}

/// How scheduling preferences are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// As if they were required, while possible.
    Respect,
    /// Not at all.
    Ignore,
}

/// Whether `minValues` may be relaxed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// Never.
    Strict,
    /// When nothing else fits.
    BestEffort,
}

/// A text that is not shown in logs or messages.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for the one who needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "not set" } else { "redacted" })
    }
}

/// What the program was told.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--provider`: the providers to run, by name.
    pub providers: Vec<String>,
    /// `--kubeconfig`, `KUBECONFIG`.
    pub kubeconfig: Option<Kubeconfigs>,
    /// `--karpenter-service`; used by nothing, as in Go.
    pub service: String,
    /// `--metrics-port`.
    pub metrics_port: u16,
    /// `--health-probe-port`.
    pub health_probe_port: u16,
    /// `--kube-client-qps`.
    pub kube_client_qps: i64,
    /// `--kube-client-burst`.
    pub kube_client_burst: i64,
    /// `--enable-profiling`.
    pub enable_profiling: bool,
    /// `--disable-controller-warmup`; used by nothing: standbys always leave their watches closed.
    pub disable_controller_warmup: bool,
    /// `--disable-leader-election`.
    pub disable_leader_election: bool,
    /// `--disable-cluster-state-observability`.
    pub disable_cluster_state_observability: bool,
    /// `--leader-election-name`; see [`lease_name`](Self::lease_name).
    pub leader_election_name: String,
    /// `--leader-election-namespace`; empty means the pod's own.
    pub leader_election_namespace: String,
    /// `--memory-limit`; used by nothing: it is for Go's collector.
    pub memory_limit_bytes: i64,
    /// `--cpu-requests`; always positive.
    pub cpu_requests_millicores: i64,
    /// `--log-level`.
    pub log_level: LevelFilter,
    /// `--log-output-paths`.
    pub log_output_paths: String,
    /// `--log-error-output-paths`: where it is told what could not be written to the others.
    pub log_error_output_paths: String,
    /// `--otlp-endpoint`: where traces go; empty for nowhere.
    pub otlp_endpoint: String,
    /// `--batch-max-duration`.
    pub batch_max_duration: Duration,
    /// `--batch-idle-duration`.
    pub batch_idle_duration: Duration,
    /// `--preference-policy`.
    pub preference_policy: PreferencePolicy,
    /// `--min-values-policy`.
    pub min_values_policy: MinValuesPolicy,
    /// `--legacy-node-repair`.
    pub legacy_node_repair: bool,
    /// `--feature-gates`.
    pub feature_gates: FeatureGates,
    /// `--scheduler-config`: the spread constraints of pods that have none.
    pub default_topology_spread: Vec<TopologySpreadConstraint>,
    /// `--cluster-name`: the name of the cluster we work for.
    pub cluster_name: String,
    /// Settings of the kwok provider.
    pub kwok: KwokOptions,
    /// Settings of the Cluster API provider.
    pub cluster_api: ClusterApiOptions,
    /// Settings of the CloudStack provider.
    pub cloudstack: CloudStackOptions,
    /// What was set and is not used as written.
    pub warnings: Vec<String>,
    effective: Vec<(&'static str, String)>,
}

/// Settings of the kwok provider.
#[derive(Clone, Debug)]
pub struct KwokOptions {
    /// `--instance-types-file-path`; none means the built-in catalogue.
    pub instance_types_file_path: Option<PathBuf>,
}

/// Settings of the Cluster API provider: where the management cluster is.
#[derive(Clone, Debug)]
pub struct ClusterApiOptions {
    /// `--cluster-api-kubeconfig`; goes before the rest.
    pub kubeconfig: Option<PathBuf>,
    /// `--cluster-api-url`.
    pub url: String,
    /// `--cluster-api-token`.
    pub token: Secret,
    /// `--cluster-api-certificate-authority-data`, as PEM.
    pub certificate_authority_data: String,
    /// `--cluster-api-skip-tls-verify`.
    pub skip_tls_verify: bool,
    /// `--cluster-api-in-management-cluster`: the cluster we run in is the management cluster, not the one we work for.
    pub in_management_cluster: bool,
    /// `--cluster-namespace`.
    pub cluster_namespace: String,
    /// `--cluster-api-default-arch`.
    pub default_arch: String,
    /// `--cluster-api-sync-labels`, regular expressions separated by commas.
    pub sync_labels: String,
    /// `--vm-memory-overhead-percent`, a part of one.
    pub vm_memory_overhead_percent: String,
    /// `--cluster-api-qps`.
    pub qps: i64,
    /// `--cluster-api-burst`.
    pub burst: i64,
    /// `--cluster-api-max-age`.
    pub max_age: Duration,
    /// `--cluster-api-batch-max-duration`.
    pub batch_max_duration: Duration,
    /// `--cluster-api-batch-idle-duration`.
    pub batch_idle_duration: Duration,
}

/// Settings of the CloudStack provider. Whether they are needed is for the provider to say.
#[derive(Clone, Debug)]
pub struct CloudStackOptions {
    /// `CLOUDSTACK_API_URL`.
    pub api_url: String,
    /// `CLOUDSTACK_API_KEY`.
    pub api_key: Secret,
    /// `CLOUDSTACK_SECRET_KEY`.
    pub secret_key: Secret,
    /// `CLOUDSTACK_VERIFY_SSL`: only the word `false` turns it off.
    pub verify_ssl: bool,
    /// [`Options::cluster_name`], which tells this cluster's machines from those of others.
    pub cluster_name: String,
}

/// A setting as documents list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the flag.
    pub flag: Option<&'static str>,
    /// Name of the environment variable.
    pub env: Option<&'static str>,
    /// What holds when neither is given.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// The providers there are.
pub const PROVIDERS: [&str; 3] = ["kwok", "cluster-api", "cloudstack"];

const DEFAULT_LEASE: &str = "karpenter-leader-election";
const DEFAULT_CPU_MILLICORES: i64 = 1000;
/// Shown instead of a secret.
const CONCEALED: &str = "redacted";

const fn setting(
    flag: &'static str,
    env: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { flag: Some(flag), env: Some(env), kind, default, help }
}

const fn env_only(env: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting { flag: None, env: Some(env), kind, default, help }
}

/// All settings; one place feeds parsing, help and the list of effective values.
#[rustfmt::skip]
static SETTINGS: &[Setting] = &[
    Setting { flag: Some("provider"), env: None, kind: Kind::Text, default: "", help: "Providers to run, separated by commas: kwok, cluster-api, cloudstack" },
    setting("kubeconfig", "KUBECONFIG", Kind::Text, "", "Where the cluster is; in a cluster it finds itself"),
    setting("karpenter-service", "KARPENTER_SERVICE", Kind::Text, "", "Accepted for old charts; used by nothing"),
    setting("metrics-port", "METRICS_PORT", Kind::Int, "8080", "Port of /metrics"),
    setting("health-probe-port", "HEALTH_PROBE_PORT", Kind::Int, "8081", "Port of /healthz and /readyz"),
    setting("kube-client-qps", "KUBE_CLIENT_QPS", Kind::Int, "200", "Requests per second to the API server in the long run"),
    setting("kube-client-burst", "KUBE_CLIENT_BURST", Kind::Int, "300", "Requests to the API server at once"),
    setting("enable-profiling", "ENABLE_PROFILING", Kind::Bool, "false", "Serve profiles beside /metrics"),
    setting("disable-controller-warmup", "DISABLE_CONTROLLER_WARMUP", Kind::Bool, "true", "Accepted, used by nothing (false gets a warning); watches open once leading"),
    setting("disable-leader-election", "DISABLE_LEADER_ELECTION", Kind::Bool, "false", "Run without a lease; only ever one replica then"),
    setting("disable-cluster-state-observability", "DISABLE_CLUSTER_STATE_OBSERVABILITY", Kind::Bool, "false", "No metrics and events about pods, nodes, NodePools and conditions"),
    setting("leader-election-name", "LEADER_ELECTION_NAME", Kind::Text, DEFAULT_LEASE, "Name of the lease; in a management cluster the default carries CLUSTER_NAMESPACE and CLUSTER_NAME"),
    setting("leader-election-namespace", "LEADER_ELECTION_NAMESPACE", Kind::Text, "", "Namespace of the lease; by default the pod's own"),
    setting("memory-limit", "MEMORY_LIMIT", Kind::Int, "-1", "Memory limit of the container in bytes; used by nothing"),
    setting("cpu-requests", "CPU_REQUESTS", Kind::Int, "1000", "CPU request of the container in millicores; more means more reconciles at once"),
    setting("log-level", "LOG_LEVEL", Kind::Text, "info", "debug, info, warn or error"),
    setting("log-output-paths", "LOG_OUTPUT_PATHS", Kind::Text, "stdout", "Where log lines go: stdout, stderr or files, separated by commas"),
    setting("log-error-output-paths", "LOG_ERROR_OUTPUT_PATHS", Kind::Text, "stderr", "Where errors of the logger itself go"),
    setting("otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", Kind::Text, "", "Collector that traces are sent to by OTLP over HTTP or HTTPS, such as http://otel-collector:4318; one that cannot be used is warned of"),
    setting("batch-max-duration", "BATCH_MAX_DURATION", Kind::Duration, "10s", "The longest time pods are collected before nodes are launched for them"),
    setting("batch-idle-duration", "BATCH_IDLE_DURATION", Kind::Duration, "1s", "The time without a new pod that ends collecting"),
    setting("preference-policy", "PREFERENCE_POLICY", Kind::Text, "Respect", "Respect or Ignore pods' scheduling preferences"),
    setting("min-values-policy", "MIN_VALUES_POLICY", Kind::Text, "Strict", "Strict, or BestEffort to relax minValues when nothing else fits"),
    setting("ignore-dra-requests", "IGNORE_DRA_REQUESTS", Kind::Bool, "true", "Ignore pods with resource claims; only true is supported"),
    setting("legacy-node-repair", "LEGACY_NODE_REPAIR", Kind::Bool, "false", "With the gate NodeRepair: repair by the old controller"),
    setting("feature-gates", "FEATURE_GATES", Kind::Text, "NodeRepair=false,ReservedCapacity=true,SpotToSpotConsolidation=false,NodeOverlay=false,StaticCapacity=false,CapacityBuffer=false,TerminateFirstDrift=false,TerminateFirstRepair=false,PodDeletionCostManagement=false", "Gates to change, as Name=true,Name=false"),
    setting("scheduler-config", "SCHEDULER_CONFIG", Kind::Text, "", "The cluster's default topology spread constraints, as YAML"),
    setting("instance-types-file-path", "INSTANCE_TYPES_FILE_PATH", Kind::Text, "", "kwok: a catalogue of instance types instead of the built-in one"),
    setting("cluster-api-kubeconfig", "CLUSTER_API_KUBECONFIG", Kind::Text, "", "Cluster API: where the management cluster is, if it is another"),
    setting("cluster-api-url", "CLUSTER_API_URL", Kind::Text, "", "Cluster API: URL of the management cluster"),
    setting("cluster-api-token", "CLUSTER_API_TOKEN", Kind::Secret, "", "Cluster API: bearer token for the management cluster"),
    setting("cluster-api-certificate-authority-data", "CLUSTER_API_CERTIFICATE_AUTHORITY_DATA", Kind::Text, "", "Cluster API: certificates of the management cluster, as PEM, or base64 of it"),
    setting("cluster-api-skip-tls-verify", "CLUSTER_API_SKIP_TLS_VERIFY", Kind::Bool, "false", "Cluster API: trust any certificate of the management cluster"),
    setting("cluster-api-in-management-cluster", "CLUSTER_API_IN_MANAGEMENT_CLUSTER", Kind::Bool, "false", "Cluster API: Karpenter runs in the management cluster and works for CLUSTER_NAME, by its Secret CLUSTER_NAME-kubeconfig"),
    setting("cluster-api-default-arch", "CLUSTER_API_DEFAULT_ARCH", Kind::Text, "amd64", "Cluster API: architecture of nodes whose template does not say; --default-arch is the same"),
    setting("cluster-api-sync-labels", "CLUSTER_API_SYNC_LABELS", Kind::List, "", "Cluster API: regular expressions of further Machine labels that it copies to Nodes, separated by commas, as its own --additional-sync-machine-labels has them; that flag works here, too, and may be repeated"),
    setting("vm-memory-overhead-percent", "VM_MEMORY_OVERHEAD_PERCENT", Kind::Text, "0", "Cluster API: the part of its memory that a virtual machine never sees, as a fraction such as 0.075, where neither annotations nor a Node say"),
    setting("cluster-namespace", "CLUSTER_NAMESPACE", Kind::Text, "", "Cluster API: namespace of this cluster's Cluster"),
    setting("cluster-api-qps", "CLUSTER_API_QPS", Kind::Int, "50", "Cluster API: requests per second to the management cluster in the long run"),
    setting("cluster-api-burst", "CLUSTER_API_BURST", Kind::Int, "100", "Cluster API: requests to the management cluster at once"),
    setting("cluster-api-max-age", "CLUSTER_API_MAX_AGE", Kind::Duration, "15m", "Cluster API: how long a management cluster may be away before nothing is offered by what was last seen of it"),
    setting("cluster-api-batch-max-duration", "CLUSTER_API_BATCH_MAX_DURATION", Kind::Duration, "1s", "Cluster API: the longest time launches are collected before replicas are written for them"),
    setting("cluster-api-batch-idle-duration", "CLUSTER_API_BATCH_IDLE_DURATION", Kind::Duration, "100ms", "Cluster API: the time without a new launch that ends collecting"),
    env_only("CLOUDSTACK_API_URL", Kind::Text, "", "CloudStack: URL of the API"),
    env_only("CLOUDSTACK_API_KEY", Kind::Secret, "", "CloudStack: API key"),
    env_only("CLOUDSTACK_SECRET_KEY", Kind::Secret, "", "CloudStack: secret key"),
    env_only("CLOUDSTACK_VERIFY_SSL", Kind::Text, "true", "CloudStack: false to trust any certificate"),
    setting("cluster-name", "CLUSTER_NAME", Kind::Text, "", "Name of this cluster: CloudStack's ownership tag, Cluster API's Cluster"),
    env_only("KUBERNETES_MIN_VERSION", Kind::Text, "", "Accepted for old charts; used by nothing"),
    env_only("SYSTEM_NAMESPACE", Kind::Text, "", "Accepted for old charts; used by nothing"),
];

/// These arguments with the values of secret flags left out, for people to see.
pub(crate) fn without_secrets<'a>(args: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut value_follows = false;
    let shown = args.into_iter().map(|arg| {
        if std::mem::take(&mut value_follows) {
            return CONCEALED.to_owned();
        }
        let (flag, value) = arg.split_once('=').map_or((arg, None), |(flag, value)| (flag, Some(value)));
        let name = flag.strip_prefix("--").or_else(|| flag.strip_prefix('-'));
        let is_secret = |setting: &Setting| setting.kind == Kind::Secret && setting.flag == name;
        if name.is_none() || !SETTINGS.iter().any(is_secret) {
            return arg.to_owned();
        }
        value_follows = value.is_none();
        if value.is_some() { format!("{flag}={CONCEALED}") } else { arg.to_owned() }
    });
    shown.collect()
}

/// Whether we or one of the providers read the variable.
fn is_ours(variable: &str) -> bool {
    let prefixes = ["CLOUDSTACK_", "CLUSTER_API_"];
    SETTINGS.iter().any(|setting| setting.env == Some(variable))
        || prefixes.iter().any(|prefix| variable.starts_with(prefix))
}

impl Options {
    /// Reads arguments (without the program's name) and environment.
    pub fn parse<'a>(
        args: impl IntoIterator<Item = &'a str>,
        environ: &Environ,
    ) -> Result<Self, OptionsError> {
        Reader { typed: Typed::read(SETTINGS, args, environ)? }.options()
    }

    /// The environment as texts. A variable that is none and none of ours belongs to somebody else, and is left out.
    pub fn environ(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Environ, OptionsError> {
        let mut environ = Environ::new();
        for (name, value) in variables {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => {
                    environ.insert(name, value);
                }
                Err(_) if is_ours(&name) => return Err(OptionsError::NotText { variable: name }),
                Err(_) => {}
            }
        }
        Ok(environ)
    }

    /// The name of the lease by which one replica leads. In a management cluster several Karpenters may share a namespace, each for
    /// a cluster of its own: there it carries that cluster's name, unless somebody chose another.
    pub fn lease_name(&self) -> String {
        let name = &self.leader_election_name;
        if !self.cluster_api.in_management_cluster || name != DEFAULT_LEASE {
            return name.clone();
        }
        format!("{name}-{}-{}", self.cluster_api.cluster_namespace, self.cluster_name)
    }

    /// The text for `--help`.
    pub fn help() -> String {
        let mut text = String::new();
        for setting in SETTINGS {
            let default = if setting.default.is_empty() {
                String::new()
            } else {
                format!(" (default {})", setting.default)
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}\n      {}{default}", setting.names(), setting.help);
        }
        text
    }

    /// Every setting there is.
    pub fn described() -> impl Iterator<Item = Description> {
        SETTINGS.iter().map(|Setting { flag, env, default, help, .. }| Description {
            flag: *flag,
            env: *env,
            default,
            help,
        })
    }

    /// Every setting as it was taken, secrets left out: by the flag's name or, without one, the variable's.
    pub fn effective(&self) -> &[(&'static str, String)] {
        &self.effective
    }
}

/// Gives meaning to what was typed.
struct Reader {
    typed: Typed,
}

impl Reader {
    fn options(mut self) -> Result<Options, OptionsError> {
        if !self.bool("ignore-dra-requests") {
            return Err(self.invalid(
                "ignore-dra-requests",
                "is not supported: dynamic resource allocation is not simulated yet; leave it at true",
            ));
        }
        let gates = self.typed.text("feature-gates");
        let (feature_gates, unknown) = FeatureGates::parse(gates)
            .map_err(|problem| self.invalid("feature-gates", &format!(": {problem}")))?;
        for name in unknown {
            let known = FeatureGates::NAMES.join(", ");
            self.typed.warnings.push(format!(
                "--feature-gates (FEATURE_GATES) names {name}, which is no gate; there are {known}"
            ));
        }
        if !self.bool("disable-controller-warmup") {
            self.typed.warnings.push(
                "--disable-controller-warmup=false (DISABLE_CONTROLLER_WARMUP) changes nothing: a replica that stands by lists the cluster once it leads".to_owned(),
            );
        }
        let default_topology_spread = scheduler_config::parse(self.typed.text("scheduler-config"))
            .map_err(|problem| self.invalid("scheduler-config", &format!(": {problem}")))?;
        let cpu = self.int("cpu-requests");
        Ok(Options {
            providers: self.providers()?,
            kubeconfig: self.kubeconfig(),
            service: self.string("karpenter-service"),
            metrics_port: self.port("metrics-port")?,
            health_probe_port: self.port("health-probe-port")?,
            kube_client_qps: self.int("kube-client-qps"),
            kube_client_burst: self.int("kube-client-burst"),
            enable_profiling: self.bool("enable-profiling"),
            disable_controller_warmup: self.bool("disable-controller-warmup"),
            disable_leader_election: self.bool("disable-leader-election"),
            disable_cluster_state_observability: self.bool("disable-cluster-state-observability"),
            leader_election_name: self.string("leader-election-name"),
            leader_election_namespace: self.string("leader-election-namespace"),
            memory_limit_bytes: self.int("memory-limit"),
            cpu_requests_millicores: if cpu > 0 { cpu } else { DEFAULT_CPU_MILLICORES },
            log_level: self.choice("log-level", &[&[("", LevelFilter::INFO)][..], &level::NAMED].concat())?,
            log_output_paths: self.string("log-output-paths"),
            log_error_output_paths: self.string("log-error-output-paths"),
            otlp_endpoint: self.string("otlp-endpoint"),
            batch_max_duration: self.duration("batch-max-duration")?,
            batch_idle_duration: self.duration("batch-idle-duration")?,
            preference_policy: self.choice(
                "preference-policy",
                &[("Respect", PreferencePolicy::Respect), ("Ignore", PreferencePolicy::Ignore)],
            )?,
            min_values_policy: self.choice(
                "min-values-policy",
                &[("Strict", MinValuesPolicy::Strict), ("BestEffort", MinValuesPolicy::BestEffort)],
            )?,
            legacy_node_repair: self.bool("legacy-node-repair"),
            feature_gates,
            default_topology_spread,
            kwok: KwokOptions { instance_types_file_path: self.path("instance-types-file-path") },
            cluster_api: ClusterApiOptions {
                kubeconfig: self.path("cluster-api-kubeconfig"),
                url: self.string("cluster-api-url"),
                token: Secret(self.string("cluster-api-token")),
                certificate_authority_data: self.string("cluster-api-certificate-authority-data"),
                skip_tls_verify: self.bool("cluster-api-skip-tls-verify"),
                in_management_cluster: self.bool("cluster-api-in-management-cluster"),
                cluster_namespace: self.string("cluster-namespace"),
                default_arch: self.string("cluster-api-default-arch"),
                sync_labels: self.string("cluster-api-sync-labels"),
                vm_memory_overhead_percent: self.string("vm-memory-overhead-percent"),
                qps: self.int("cluster-api-qps"),
                burst: self.int("cluster-api-burst"),
                max_age: self.duration("cluster-api-max-age")?,
                batch_max_duration: self.duration("cluster-api-batch-max-duration")?,
                batch_idle_duration: self.duration("cluster-api-batch-idle-duration")?,
            },
            cloudstack: CloudStackOptions {
                api_url: self.string("CLOUDSTACK_API_URL"),
                api_key: Secret(self.string("CLOUDSTACK_API_KEY")),
                secret_key: Secret(self.string("CLOUDSTACK_SECRET_KEY")),
                verify_ssl: self.typed.text("CLOUDSTACK_VERIFY_SSL") != "false",
                cluster_name: self.string("cluster-name"),
            },
            cluster_name: self.string("cluster-name"),
            effective: self.effective(),
            warnings: self.typed.warnings,
        })
    }

    fn providers(&self) -> Result<Vec<String>, OptionsError> {
        let mut providers = Vec::new();
        for name in self.typed.text("provider").split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if !PROVIDERS.contains(&name) {
                let known = PROVIDERS.join(", ");
                return Err(self.invalid(
                    "provider",
                    &format!("names {name:?}, which is no provider; there are {known}"),
                ));
            }
            if !providers.iter().any(|known| known == name) {
                providers.push(name.to_owned());
            }
        }
        Ok(providers)
    }

    fn string(&self, name: &'static str) -> String {
        self.typed.text(name).to_owned()
    }

    fn path(&self, name: &'static str) -> Option<PathBuf> {
        Some(self.typed.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// A flag names one file; the variable may name several.
    fn kubeconfig(&self) -> Option<Kubeconfigs> {
        let path = self.path("kubeconfig")?;
        let flagged = self.typed.is_flagged("kubeconfig");
        Some(if flagged { Kubeconfigs::File(path) } else { Kubeconfigs::List(path.into()) })
    }

    fn bool(&self, name: &'static str) -> bool {
        self.typed.text(name) == "true"
    }

    /// What was typed is known to be a number; environment variables are decimal and decimals are read the same way, but for
    /// leading zeros.
    fn int(&self, name: &'static str) -> i64 {
        let text = self.typed.text(name);
        text.parse().ok().or_else(|| parse_int(text)).unwrap_or_default()
    }

    fn port(&self, name: &'static str) -> Result<u16, OptionsError> {
        u16::try_from(self.int(name)).map_err(|_| self.invalid(name, "must be a port between 0 and 65535"))
    }

    fn duration(&self, name: &'static str) -> Result<Duration, OptionsError> {
        let duration: Option<GoDuration> = self.typed.text(name).parse().ok();
        duration.and_then(GoDuration::to_std).ok_or_else(|| self.invalid(name, "must not be negative"))
    }

    fn choice<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> Result<T, OptionsError> {
        let text = self.typed.text(name);
        choices.iter().find(|(choice, _)| *choice == text).map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> =
                choices.iter().map(|(choice, _)| *choice).filter(|choice| !choice.is_empty()).collect();
            self.invalid(name, &format!("must be one of {}", names.join(", ")))
        })
    }

    fn invalid(&self, name: &'static str, problem: &str) -> OptionsError {
        let setting =
            SETTINGS.iter().find(|setting| key(setting) == name).map_or_else(String::new, Setting::names);
        OptionsError::Invalid {
            setting,
            value: self.string(name),
            problem: problem.trim_start_matches(": ").to_owned(),
        }
    }

    fn effective(&self) -> Vec<(&'static str, String)> {
        SETTINGS
            .iter()
            .map(|setting| {
                let text = self.typed.text(key(setting));
                let hidden = setting.kind == Kind::Secret && !text.is_empty();
                (key(setting), if hidden { CONCEALED.to_owned() } else { text.to_owned() })
            })
            .collect()
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
