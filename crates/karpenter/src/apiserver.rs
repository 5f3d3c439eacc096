//! `karpenter apiserver`: the embedded Kubernetes API server on a socket, for kubectl and for programs under test.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use karpenter::real_time;
use karpenter_apiserver::{ApiServer, Environment, Options, Seeded, kubeconfig, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

/// Serve an empty Kubernetes API from memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 picks a free one. Other addresses than loopback need --token.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where to write a kubeconfig once the server answers.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Bearer token that every request has to carry.
    #[arg(long, env = "KARPENTER_APISERVER_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<()> {
    if args.token.as_deref() == Some("") {
        bail!("--token is empty: give a token, or leave it out on a loopback address");
    }
    real_time::run(run(args))
}

async fn run(args: &Args) -> anyhow::Result<()> {
    // Listen for signals first: whoever reads the kubeconfig may stop us right away.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    if !args.listen.ip().is_loopback() && args.token.is_none() {
        bail!(
            "refusing to listen on {} without a token: pass --token, or listen on a loopback address",
            args.listen
        );
    }
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr().context("cannot tell the address of the listener")?;
    let options = Options { bearer_token: args.token.clone(), ..Options::default() };
    let server = ApiServer::new(WallClock::new(), options);
    // The socket already queues connections, so whoever finds the file is answered.
    karpenter::files::write_atomically(&args.kubeconfig, &kubeconfig(address, args.token.as_deref()))?;
    let stop = async {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve(listener, &server, stop).await?;
    Ok(())
}

/// The environment of a server that lives in this world: real time, and ids nobody else draws.
struct WallClock {
    ids: Seeded,
}

impl WallClock {
    fn new() -> Self {
        let now = now();
        // Two servers started at the same nanosecond by the same process are one and the same.
        let seed = now.as_nanosecond() as u64 ^ (u64::from(std::process::id()) << 32);
        Self { ids: Seeded::new(seed, now) }
    }
}

impl Environment for WallClock {
    fn now(&self) -> Timestamp {
        now()
    }

    fn uid(&self) -> Uuid {
        self.ids.uid()
    }

    fn name_suffix(&self) -> String {
        self.ids.name_suffix()
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where the embedded server meets the wall clock")]
fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}
