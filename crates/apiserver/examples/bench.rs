//! Measures this server, in process and over HTTP, side by side in one run with a real kube-apiserver and etcd.
//!
//! Each server gets the same requests with the same concurrency: a fleet of nodes and pods created while watchers look
//! on, status patches, whole and chunked lists, and streaming lists to all watchers at once. Figures are printed, never
//! asserted: they depend on the machine. `docs/apiserver-bench.md` has some.
//!
//! ```text
//! cargo run --release -p karpenter-apiserver --example bench -- [--nodes N] [--pods N] [--watchers N] [--concurrency N] [--real DIR]
//! ```
//!
//! `DIR` is the run folder of a real cluster: `admin.kubeconfig`, and `pids` with a line "name pid start" per process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use karpenter_apiserver::{ApiServer, Options, Seeded, kubeconfig, serve};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

/// As in the `karpenter` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PODS: &str = "/api/v1/namespaces/bench/pods";

fn main() -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let arguments = Arguments::parse()?;
        match &arguments.role {
            Role::Compare => compare(&arguments).await,
            Role::InProcess => {
                let server = ApiServer::new(Seeded::default(), Options::default());
                let client = Client::new(server.service(), "default");
                let figures = measure(client, &[std::process::id()], &arguments.load).await?;
                println!("{}", figures.to_json());
                Ok(())
            }
            Role::Serve(file) => serve_http(file).await,
        }
    })
}

#[derive(Clone, Copy)]
struct Load {
    nodes: usize,
    pods: usize,
    watchers: usize,
    concurrency: usize,
}

/// What this process is for: the comparison, or a server in a process of its own, so that memory is told apart.
enum Role {
    Compare,
    InProcess,
    Serve(PathBuf),
}

struct Arguments {
    load: Load,
    role: Role,
    real: Option<PathBuf>,
}

impl Arguments {
    fn parse() -> Result<Self, Failure> {
        let load = Load { nodes: 5_000, pods: 100_000, watchers: 10, concurrency: 16 };
        let mut arguments = Self { load, role: Role::Compare, real: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "--in-process" {
                arguments.role = Role::InProcess;
                continue;
            }
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            match word.as_str() {
                "--nodes" => arguments.load.nodes = value.parse()?,
                "--pods" => arguments.load.pods = value.parse()?,
                "--watchers" => arguments.load.watchers = value.parse()?,
                "--concurrency" => arguments.load.concurrency = value.parse()?,
                "--real" => arguments.real = Some(value.into()),
                "--serve" => arguments.role = Role::Serve(value.into()),
                _ => return Err(format!("unknown argument {word}").into()),
            }
        }
        Ok(arguments)
    }
}

/// What one server did with the load.
#[derive(Clone, Copy, Default)]
struct Figures {
    creates_per_s: f64,
    patches_per_s: f64,
    cpu_us_per_write: f64,
    lists_objects_per_s: f64,
    lists_mib_per_s: f64,
    chunks_objects_per_s: f64,
    watch_events_per_s: f64,
    watch_mib_per_s: f64,
    wire_bytes_per_object: f64,
    rss_start_mib: f64,
    rss_mib: f64,
    rss_bytes_per_object: f64,
}

impl Figures {
    fn rows(&self) -> [(&'static str, f64, Better); 12] {
        [
            ("creates/s, watchers open", self.creates_per_s, Better::More),
            ("status patches/s, watchers open", self.patches_per_s, Better::More),
            ("CPU µs per write", self.cpu_us_per_write, Better::Less),
            ("list: objects/s", self.lists_objects_per_s, Better::More),
            ("list: MiB/s", self.lists_mib_per_s, Better::More),
            ("list in chunks of 500: objects/s", self.chunks_objects_per_s, Better::More),
            ("streaming list to all watchers: events/s", self.watch_events_per_s, Better::More),
            ("streaming list to all watchers: MiB/s", self.watch_mib_per_s, Better::More),
            ("JSON bytes per pod in a list", self.wire_bytes_per_object, Better::Less),
            ("resident MiB before", self.rss_start_mib, Better::Less),
            ("resident MiB with everything", self.rss_mib, Better::Less),
            ("resident bytes added per object", self.rss_bytes_per_object, Better::Less),
        ]
    }

    fn to_json(self) -> Value {
        json!(self.rows().map(|(_, value, _)| value))
    }

    fn from_json(value: &Value) -> Result<Self, Failure> {
        let values: Vec<f64> = serde_json::from_value(value.clone())?;
        let [creates, patches, cpu, objects, mib, chunks, events, watched, wire, start, rss, each] =
            values[..]
        else {
            return Err("the in-process run printed something else".into());
        };
        Ok(Self {
            creates_per_s: creates,
            patches_per_s: patches,
            cpu_us_per_write: cpu,
            lists_objects_per_s: objects,
            lists_mib_per_s: mib,
            chunks_objects_per_s: chunks,
            watch_events_per_s: events,
            watch_mib_per_s: watched,
            wire_bytes_per_object: wire,
            rss_start_mib: start,
            rss_mib: rss,
            rss_bytes_per_object: each,
        })
    }
}

enum Better {
    More,
    Less,
}

/// One after the other, each in processes of its own; the machine is theirs in turn.
async fn compare(arguments: &Arguments) -> Result<(), Failure> {
    let load = arguments.load;
    println!(
        "{} nodes, {} pods, {} watchers, {} writers",
        load.nodes, load.pods, load.watchers, load.concurrency
    );
    let in_process = in_process(&load)?;
    let over_http = over_http(&load).await?;
    let real = match &arguments.real {
        Some(directory) => Some(measure_real(directory, &load).await?),
        None => {
            println!("no --real DIR: kube-apiserver is not measured");
            None
        }
    };
    let header =
        ["ours in process", "ours over HTTP", "kube-apiserver", "in process vs it", "over HTTP vs it"];
    println!("{:<42}{}", "", header.map(|name| format!("{name:>18}")).join(""));
    for (at, (name, ours, better)) in in_process.rows().into_iter().enumerate() {
        let http = over_http.rows()[at].1;
        let mut line = format!("{name:<42}{ours:>18.1}{http:>18.1}");
        if let Some(real) = &real {
            let real = real.rows()[at].1;
            let ratio = |ours: f64| match better {
                Better::More => ours / real,
                Better::Less => real / ours,
            };
            line += &format!("{real:>18.1}{:>17.1}×{:>17.1}×", ratio(ours), ratio(http));
        }
        println!("{line}");
    }
    Ok(())
}

fn in_process(load: &Load) -> Result<Figures, Failure> {
    let output = myself(load).arg("--in-process").stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the in-process run failed".into());
    }
    Figures::from_json(&serde_json::from_slice(&output.stdout)?)
}

async fn over_http(load: &Load) -> Result<Figures, Failure> {
    let file = std::env::temp_dir().join(format!("apiserver-bench-{}.kubeconfig", std::process::id()));
    let server = Server(myself(load).arg("--serve").arg(&file).spawn()?);
    while !file.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let figures = measure(client_of(&file).await?, &[server.0.id()], load).await;
    std::fs::remove_file(&file)?;
    figures
}

async fn measure_real(directory: &Path, load: &Load) -> Result<Figures, Failure> {
    let pids = std::fs::read_to_string(directory.join("pids"))?;
    let pids: Vec<u32> = pids
        .lines()
        .filter(|line| line.starts_with("kube-apiserver ") || line.starts_with("etcd "))
        .filter_map(|line| line.split(' ').nth(1)?.parse().ok())
        .collect();
    measure(client_of(&directory.join("admin.kubeconfig")).await?, &pids, load).await
}

fn myself(load: &Load) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "bench".into()));
    for (name, value) in [
        ("--nodes", load.nodes),
        ("--pods", load.pods),
        ("--watchers", load.watchers),
        ("--concurrency", load.concurrency),
    ] {
        command.arg(name).arg(value.to_string());
    }
    command
}

/// A server process that ends with the measurement.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to do about it either way.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn serve_http(file: &Path) -> Result<(), Failure> {
    let server = ApiServer::new(Seeded::default(), Options::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let part = file.with_extension("part");
    std::fs::write(&part, kubeconfig(listener.local_addr()?, None))?;
    std::fs::rename(&part, file)?;
    Ok(serve(listener, &server, std::future::pending()).await?)
}

async fn client_of(file: &Path) -> Result<Client, Failure> {
    let kubeconfig = kube::config::Kubeconfig::read_from(file)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn measure(client: Client, processes: &[u32], load: &Load) -> Result<Figures, Failure> {
    let mut figures = Figures { rss_start_mib: resident_mib(processes)?, ..Figures::default() };
    let objects = load.nodes + load.pods;
    post(&client, "/api/v1/namespaces", json!({"metadata": {"name": "bench"}}).to_string()).await?;
    let watchers = open_watchers(&client, load, "resourceVersion=0").await?;

    let (cpu, started) = (cpu_seconds(processes)?, Instant::now());
    concurrently(load, objects, |at| {
        let client = client.clone();
        let nodes = load.nodes;
        async move {
            if at < nodes {
                post(&client, "/api/v1/nodes", node(at)).await
            } else {
                post(&client, PODS, pod(at - nodes, nodes)).await
            }
        }
    })
    .await?;
    figures.creates_per_s = per_second(objects, started);
    let patches = load.pods / 10;
    let patching = Instant::now();
    concurrently(load, patches, |at| {
        let client = client.clone();
        async move {
            let path = format!("{PODS}/{}/status", pod_name(at * 10));
            send(&client, "PATCH", &path, POD_RUNNING.to_owned()).await.map(drop)
        }
    })
    .await?;
    figures.patches_per_s = per_second(patches, patching);
    for watcher in watchers {
        watcher.await??;
    }
    figures.cpu_us_per_write = (cpu_seconds(processes)? - cpu) * 1e6 / (objects + patches) as f64;
    figures.rss_mib = resident_mib(processes)?;
    figures.rss_bytes_per_object = (figures.rss_mib - figures.rss_start_mib) * 1048576.0 / objects as f64;

    let (rounds, mut bytes, started) = (3, 0, Instant::now());
    for _ in 0..rounds {
        bytes = send(&client, "GET", PODS, String::new()).await?.len();
    }
    figures.lists_objects_per_s = per_second(rounds * load.pods, started);
    figures.lists_mib_per_s = per_second(rounds * bytes, started) / 1048576.0;
    figures.wire_bytes_per_object = bytes as f64 / load.pods as f64;

    let started = Instant::now();
    let mut token = String::new();
    loop {
        let page = send(&client, "GET", &format!("{PODS}?limit=500&continue={token}"), String::new()).await?;
        match member(&page, "continue") {
            Some(next) if !next.is_empty() => token = next,
            _ => break,
        }
    }
    figures.chunks_objects_per_s = per_second(load.pods, started);

    let started = Instant::now();
    let mut streamed = 0;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for watcher in open_watchers(&client, load, initial).await? {
        streamed += watcher.await??;
    }
    figures.watch_events_per_s = per_second(load.watchers * load.pods, started);
    figures.watch_mib_per_s = per_second(streamed, started) / 1048576.0;
    Ok(figures)
}

type Watcher = tokio::task::JoinHandle<Result<usize, Failure>>;

/// Watches that end when every pod has been seen; each gives the number of bytes it read.
async fn open_watchers(client: &Client, load: &Load, from: &str) -> Result<Vec<Watcher>, Failure> {
    let mut watchers = Vec::new();
    for _ in 0..load.watchers {
        let (client, from, pods) = (client.clone(), from.to_owned(), load.pods);
        let mut response = watch(&client, &from).await?;
        watchers.push(tokio::spawn(async move {
            let (mut bytes, mut seen, mut last, mut line) = (0, 0, Vec::new(), Vec::new());
            while seen < pods {
                let Some(frame) = response.body_mut().frame().await else {
                    // kube-apiserver ends a watcher that falls behind; it goes on from the last event it has.
                    let version =
                        member(&last, "resourceVersion").ok_or("a watch ended before its first event")?;
                    response = watch(&client, &format!("resourceVersion={version}")).await?;
                    line.clear();
                    continue;
                };
                let Ok(data) = frame?.into_data() else { continue };
                bytes += data.len();
                for part in data.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(part);
                    if part.ends_with(b"\n") {
                        seen += usize::from(line.starts_with(br#"{"type":"ADDED""#));
                        last = std::mem::take(&mut line);
                    }
                }
            }
            Ok(bytes)
        }));
    }
    Ok(watchers)
}

async fn watch(client: &Client, from: &str) -> Result<Response<Body>, Failure> {
    let path = format!("{PODS}?watch=true&timeoutSeconds=3600&{from}");
    let request = Request::get(path).header("Accept", "application/json").body(Body::empty())?;
    let response = client.send(request).await?;
    if response.status() != 200 {
        return Err(format!("watch: {}", response.status()).into());
    }
    Ok(response)
}

/// Runs `count` requests, `concurrency` of them at a time.
async fn concurrently<F>(load: &Load, count: usize, request: impl Fn(usize) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let next = AtomicUsize::new(0);
    let writers = (0..load.concurrency).map(|_| async {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            // A task of its own, so that the runtime is as busy as it is with many controllers.
            tokio::spawn(request(at)).await??;
        }
    });
    for outcome in futures_util::future::join_all(writers).await {
        outcome.map_err(|error: Failure| error)?;
    }
    Ok(())
}

async fn post(client: &Client, path: &str, body: String) -> Result<(), Failure> {
    send(client, "POST", path, body).await.map(drop)
}

async fn send(client: &Client, method: &str, path: &str, body: String) -> Result<Vec<u8>, Failure> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", kind)
        .header("Accept", "application/json");
    let response = client.send(request.body(Body::from(body.into_bytes()))?).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    if !status.is_success() {
        return Err(format!("{method} {path}: {status}: {}", String::from_utf8_lossy(&bytes)).into());
    }
    Ok(bytes.to_vec())
}

/// The first string member of this name in a JSON text: enough for list metadata and single events, and cheap.
fn member(text: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(text);
    let (_, rest) = head.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next().map(str::to_owned)
}

fn per_second(count: usize, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

fn pod_name(at: usize) -> String {
    format!("web-7d9c5b8f6d-{at:06}")
}

fn pod(at: usize, nodes: usize) -> String {
    let app = format!("app-{}", at % 200);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod_name(at), "labels": {"app": app, "pod-template-hash": "7d9c5b8f6d", "team": "bench"},
            "annotations": {"example.com/revision": "12"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9c5b8f6d", "controller": true,
                "blockOwnerDeletion": true, "uid": "3f2b7a52-6f1e-4d7e-9a55-0a3a4a6a1c11"}]},
        "spec": {"nodeName": format!("node-{:05}", at % nodes.max(1)), "serviceAccountName": "default",
            "automountServiceAccountToken": false,
            "containers": [{"name": "web", "image": "registry.example.com/web:1.2.3",
                "env": [{"name": "MODE", "value": "production"}], "ports": [{"containerPort": 8080}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": app}}}]},
    })
    .to_string()
}

const POD_RUNNING: &str = r#"{"status":{"phase":"Running","podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}],"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}"#;

fn node(at: usize) -> String {
    let name = format!("node-{at:05}");
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "c-8x-amd64-linux",
            "topology.kubernetes.io/zone": format!("zone-{}", at % 3), "karpenter.sh/capacity-type": "on-demand"}},
        "spec": {"providerID": format!("bench://{name}")},
        "status": {"capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"},
            "allocatable": {"cpu": "7900m", "memory": "31Gi", "pods": "110", "ephemeral-storage": "95Gi"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
                "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z"}]},
    })
    .to_string()
}

/// User and system time of the server's processes; ticks are hundredths of a second on Linux.
fn cpu_seconds(processes: &[u32]) -> Result<f64, Failure> {
    let mut ticks = 0u64;
    for process in processes {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
        let (_, after_name) = stat.rsplit_once(')').ok_or("no process name in /proc/PID/stat")?;
        ticks += after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum::<u64>();
    }
    Ok(ticks as f64 / 100.0)
}

fn resident_mib(processes: &[u32]) -> Result<f64, Failure> {
    let mut kib = 0u64;
    for process in processes {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        kib += line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(kib as f64 / 1024.0)
}
