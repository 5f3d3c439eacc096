//! `karpenter explain node NAME`: why a node is not taken away, or what would take it away. For MachineDeployments see
//! [`machine_deployment`].
//!
//! The answer is computed on the spot, from a cluster (by kubeconfig) or from files as `karpenter simulate` reads them, by the
//! same code that decides in the operator. What only a running operator knows (commands under way, nominations) is not part
//! of it.

pub(crate) mod machine_deployment;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use karpenter_engine::Snapshot;
use karpenter_engine::disruption::{self, Decision, DisruptionOptions, Memory, Method, Pass, Verdict, Why};
use karpenter_runtime::options::{Environ, FeatureGates, Options};
use karpenter_runtime::surroundings::{self, Kubeconfigs};
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::real_time;
use crate::simulate::{Cluster, ClusterFiles, Rejected, Unlaunched};

/// Say why something is as it is.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Why a node is not taken away, or what would take it away.
    Node(NodeArgs),
    /// Why a MachineDeployment of Cluster API is offered, or is not.
    MachineDeployment(machine_deployment::Args),
}

#[derive(Debug, clap::Args)]
struct NodeArgs {
    /// The Node, or the NodeClaim it comes from
    name: String,

    /// Scenario or dump instead of a running cluster; JSON or YAML, optionally gzipped
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// What can be bought, in the kwok provider's format [default: the scenario's list, or the kwok provider's own]
    #[arg(long, value_name = "FILE")]
    instance_types: Option<PathBuf>,

    /// Feature gates of the operator, as for `karpenter run` [default: the scenario's, or none changed]
    #[arg(long, value_name = "GATES")]
    feature_gates: Option<String>,

    /// The time to assume [default: now, or the newest timestamp of the files]
    #[arg(long, value_name = "TIME")]
    now: Option<String>,

    /// The cluster to ask when no FILE is given [default: KUBECONFIG, or where it is usually found]
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,

    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// An answer, printed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The answer.
    pub text: String,
    /// What goes to stderr beside it: what was left out of the input, or is odd about it.
    pub remarks: Vec<String>,
}

/// Runs the command.
pub fn cmd(args: &Args) -> anyhow::Result<()> {
    let report = report(args)?;
    for remark in &report.remarks {
        writeln!(io::stderr(), "{remark}")?;
    }
    io::stdout().lock().write_all(report.text.as_bytes())?;
    Ok(())
}

/// The answer, without touching stdout or stderr.
pub fn report(args: &Args) -> anyhow::Result<Report> {
    let args = match &args.what {
        What::Node(args) => args,
        What::MachineDeployment(args) => {
            return Ok(Report { text: machine_deployment::report(args)?, remarks: Vec::new() });
        }
    };
    let types = args.instance_types.as_deref();
    let mut unread = Vec::new();
    let cluster = if args.files.is_empty() {
        let Reading { dump, now, remarks } = read_cluster(args)?;
        unread = remarks;
        Cluster::read(ClusterFiles::Dump(&dump), types, Some(args.now.as_deref().unwrap_or(&now)))
    } else {
        Cluster::read(ClusterFiles::Files(&args.files), types, args.now.as_deref())
    };
    let mut cluster = cluster?;
    if let Some(gates) = &args.feature_gates {
        cluster.set_gates(&feature_gates(gates)?);
    }
    let snapshot = cluster.snapshot();
    let left_out = cluster.left_out();
    let (text, mut json) = match explain(&snapshot, cluster.options(), &args.name) {
        Some(mut explanation) => {
            explanation.blame(left_out);
            (explanation.to_text(), explanation.to_json())
        }
        None => match cluster.unlaunched(&args.name) {
            Some(claim) => (unlaunched_text(claim), unlaunched_json(claim)),
            None => return Err(no_such_node(&args.name, &snapshot, left_out)),
        },
    };
    json["leftOut"] = left_out.iter().map(ToString::to_string).collect();
    let text = match args.output {
        Output::Text => text,
        Output::Json => format!("{json:#}\n"),
    };
    let doubts = cluster.doubts().iter().map(Rejected::doubt);
    let remarks = left_out.iter().map(Rejected::remark).chain(doubts);
    Ok(Report { text, remarks: unread.into_iter().chain(remarks).collect() })
}

/// Names some that there are, and what was left out: it may be among that.
fn no_such_node(name: &str, snapshot: &Snapshot, left_out: &[Rejected]) -> anyhow::Error {
    let known: Vec<&str> = snapshot.nodes.iter().map(|machine| &**machine.name()).collect();
    let mut text = format!("there is no node {name:?}; there are {} nodes", known.len());
    if !known.is_empty() {
        let shown = known.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        let _ = write!(text, ", such as {shown}");
    }
    for rejected in left_out {
        let _ = write!(text, "; {}", rejected.remark());
    }
    anyhow::Error::msg(text)
}

fn unlaunched_text(claim: &Unlaunched) -> String {
    let pool = of("NodePool", &claim.node_pool);
    format!("NodeClaim {}{pool}\nno node yet: {}\n", claim.name, not_launched(claim))
}

fn unlaunched_json(claim: &Unlaunched) -> Value {
    json!({
        "node": "", "nodeClaim": claim.name, "nodePool": claim.node_pool,
        "verdict": {"goes": false, "method": "", "rule": "notLaunched", "text": not_launched(claim)},
        "methods": [],
    })
}

fn not_launched(claim: &Unlaunched) -> String {
    match claim.launched.as_str() {
        "" => "it has not been launched, and says nothing of it; is Karpenter running?".to_owned(),
        launched => format!("it has not been launched; its condition Launched is {launched}"),
    }
}

/// `, Kind name`; nothing where there is none.
fn of(kind: &str, name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(", {kind} {name}") }
}

/// Gates as `karpenter run` takes them; here a name that nobody knows is an error.
fn feature_gates(text: &str) -> anyhow::Result<FeatureGates> {
    let names = text.split(',').filter_map(|pair| Some(pair.split_once('=')?.0.trim()));
    if let Some(unknown) = names.into_iter().find(|name| !FeatureGates::NAMES.contains(name)) {
        anyhow::bail!(
            "--feature-gates: there is no gate {unknown:?}; there are {}",
            FeatureGates::NAMES.join(", ")
        );
    }
    let flag = format!("--feature-gates={text}");
    Ok(Options::parse([flag.as_str()], &Environ::default())?.feature_gates)
}

/// Why a node stays, or how it goes.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The node.
    pub node: String,
    /// Its NodeClaim; empty when it has none.
    pub claim: String,
    /// Its NodePool; empty when it has none.
    pub node_pool: String,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why each method leaves it, in the order they are asked.
    pub methods: Vec<(Method, Why)>,
    /// What is wrong with its NodePool, if that was left out of the input for it.
    pub unread_pool: Option<String>,
}

/// What becomes of the node of this name in this cluster; none if there is no such node.
pub fn explain(snapshot: &Snapshot, options: &DisruptionOptions, name: &str) -> Option<Explanation> {
    let machine = snapshot.nodes.iter().find(|machine| {
        let claim = machine.claim.as_ref().map(|claim| &*claim.name);
        &**machine.name() == name || claim == Some(name)
    })?;
    let memory = Memory::default();
    let mut pass = Pass::new(snapshot, options, &memory);
    let outcomes: Vec<disruption::Outcome> = options.methods().map(|method| pass.run(method)).collect();
    let verdict = disruption::explain(&outcomes).remove(machine.name())?;
    let stays = outcomes.iter().flat_map(|outcome| &outcome.stays);
    let methods = stays.filter(|stays| stays.node == *machine.name());
    Some(Explanation {
        node: machine.name().to_string(),
        claim: machine.claim.as_ref().map(|claim| claim.name.to_string()).unwrap_or_default(),
        node_pool: machine.labels().get_or_empty(karpenter_api::labels::NODEPOOL).to_owned(),
        verdict,
        methods: methods.map(|stays| (stays.method, stays.why.clone())).collect(),
        unread_pool: None,
    })
}

impl Explanation {
    /// A NodePool that was left out of the input is not one that does not exist.
    fn blame(&mut self, left_out: &[Rejected]) {
        let pool = format!("NodePool/{}", self.node_pool);
        let rejected = left_out.iter().find(|rejected| rejected.object == pool);
        self.unread_pool = rejected.map(|rejected| match rejected.field.as_str() {
            "" => rejected.problem.clone(),
            field => format!("{field}: {}", rejected.problem),
        });
    }

    fn words(&self, why: &Why) -> String {
        match (why, &self.unread_pool) {
            (Why::PoolNotFound(pool), Some(problem)) => {
                format!("its NodePool {pool} was left out of the input: {problem}")
            }
            _ => why.to_string(),
        }
    }

    /// For people: one sentence, then what each method says.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "Node {}{}{}",
            self.node,
            of("NodeClaim", &self.claim),
            of("NodePool", &self.node_pool)
        );
        let _ = match &self.verdict {
            Verdict::Goes { method, decision, together_with } => {
                let others = match together_with {
                    0 | 1 => String::new(),
                    count => format!(", together with {} other node(s)", count - 1),
                };
                writeln!(text, "goes: {} {}{others}", method.as_str(), does(*decision))
            }
            Verdict::Stays { why, .. } => writeln!(text, "stays: {}", self.words(why)),
        };
        if !self.methods.is_empty() {
            let _ = writeln!(text, "\nWhat each method says:");
        }
        for (method, why) in &self.methods {
            let _ = writeln!(text, "  {:<24} {}", method.as_str(), self.words(why));
        }
        text
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let verdict = match &self.verdict {
            Verdict::Goes { method, decision, together_with } => json!({
                "goes": true, "method": method.as_str(), "decision": decision.as_str(), "nodes": together_with,
            }),
            Verdict::Stays { method, why } => {
                json!({"goes": false, "method": method.as_str(), "rule": why.rule(), "text": self.words(why)})
            }
        };
        let methods = self.methods.iter().map(
            |(method, why)| json!({"method": method.as_str(), "rule": why.rule(), "text": self.words(why)}),
        );
        json!({
            "node": self.node, "nodeClaim": self.claim, "nodePool": self.node_pool,
            "verdict": verdict, "methods": methods.collect::<Vec<_>>(),
        })
    }
}

fn does(decision: Decision) -> &'static str {
    match decision {
        Decision::Delete => "would delete it",
        Decision::Replace => "would replace it",
        Decision::TerminateFirst => "would delete it and leave its replacement to provisioning",
        Decision::Reboot => "would reboot it",
    }
}

/// The kinds a decision looks at: group, version, kind. One that the cluster does not have is left out.
const KINDS: [(&str, &str, &str); 12] = [
    ("karpenter.sh", "v1", "NodePool"),
    ("karpenter.sh", "v1", "NodeClaim"),
    ("", "v1", "Node"),
    ("", "v1", "Pod"),
    ("", "v1", "Namespace"),
    ("", "v1", "PersistentVolume"),
    ("", "v1", "PersistentVolumeClaim"),
    ("apps", "v1", "DaemonSet"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("storage.k8s.io", "v1", "StorageClass"),
    ("storage.k8s.io", "v1", "CSINode"),
    ("storage.k8s.io", "v1", "VolumeAttachment"),
];

/// Those that a decision looks at only with some feature gates or settings. The chart lets Karpenter read them only then, so the
/// account that asks may not.
const KINDS_OF_GATES: [(&str, &str, &str); 8] = [
    ("karpenter.sh", "v1alpha1", "NodeOverlay"),
    ("autoscaling.x-k8s.io", "v1beta1", "CapacityBuffer"),
    ("", "v1", "PodTemplate"),
    ("", "v1", "Service"),
    ("", "v1", "ReplicationController"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "StatefulSet"),
];

/// What was read of a cluster.
struct Reading {
    /// Everything a decision looks at, as one `List`.
    dump: String,
    now: String,
    /// What may not be read.
    remarks: Vec<String>,
}

fn read_cluster(args: &NodeArgs) -> anyhow::Result<Reading> {
    // As for `karpenter run`: named, else by KUBECONFIG, else as usual.
    let kubeconfig = Kubeconfigs::named(args.kubeconfig.as_deref());
    let (items, remarks) = real_time::run(async {
        let config = surroundings::cluster(kubeconfig.as_ref()).await?;
        let client = Client::try_from(config).context("cannot make a client of the cluster")?;
        dump(&client).await
    })?;
    let environment = karpenter_runtime::environment::Environment::real();
    let now = environment.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let dump = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    Ok(Reading { dump, now, remarks })
}

/// All objects of the kinds there are, and what may not be read.
async fn dump(client: &Client) -> anyhow::Result<(Vec<Value>, Vec<String>)> {
    let (mut items, mut remarks) = (Vec::new(), Vec::new());
    let all = KINDS.iter().map(|kind| (kind, false)).chain(KINDS_OF_GATES.iter().map(|kind| (kind, true)));
    for (&(group, version, kind), is_of_gate) in all {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let list = match api.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(kube::Error::Api(status)) if status.code == 403 && is_of_gate => {
                remarks.push(format!("left out: {} may not be listed: {}", resource.plural, status.message));
                continue;
            }
            list => list.with_context(|| format!("cannot list {}", resource.plural))?,
        };
        for object in list {
            let mut object = serde_json::to_value(object)?;
            object["apiVersion"] = resource.api_version.clone().into();
            object["kind"] = kind.into();
            items.push(object);
        }
    }
    Ok((items, remarks))
}

#[cfg(test)]
mod tests {
    use kube::client::Body;

    use super::*;

    /// A client of a cluster that refuses to list this, and has nothing of anything else.
    fn refusing(plural: &'static str) -> Client {
        let answer = move |request: http::Request<Body>| async move {
            let (code, answer) = if request.uri().path().ends_with(plural) {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
                    "message": "not for you", "metadata": {},
                });
                (403, status)
            } else {
                (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}))
            };
            let body = Body::from(answer.to_string().into_bytes());
            http::Response::builder().status(code).body(body)
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test]
    async fn an_account_that_may_not_read_what_closed_gates_are_about_gets_an_answer_and_is_told() {
        let (items, remarks) = dump(&refusing("nodeoverlays")).await.expect("an answer");
        assert_eq!((items, remarks.len()), (Vec::<Value>::new(), 1));
        assert!(remarks[0].starts_with("left out: nodeoverlays may not be listed"), "{remarks:?}");
        let error = dump(&refusing("/pods")).await.expect_err("nothing can be said without pods");
        assert_eq!(error.to_string(), "cannot list pods");
    }
}
