//! The demo's cluster on a socket, in real time, until a signal.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use jiff::{SignedDuration, Timestamp};
use karpenter_apiserver::{kubeconfig, serve};
use karpenter_sim::World;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How often writes of kubectl are passed on to the cluster's components.
const FOLLOW: Duration = Duration::from_millis(200);

/// When the demo's time begins: early enough that it never runs ahead of the wall clock, which kubectl shows ages by.
#[expect(clippy::disallowed_methods, reason = "the served cluster lives in real time")]
pub(super) fn epoch() -> Timestamp {
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
    now.saturating_sub(SignedDuration::from_mins(20)).unwrap_or(now)
}

/// Takes the address the cluster will be served on.
pub(super) async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    if !listen.ip().is_loopback() {
        bail!("refusing to serve on {listen} without authentication; give a loopback address with --listen");
    }
    TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}; give another address with --listen"))
}

/// Serves the cluster until a signal.
pub(super) async fn stay(world: &mut World, listener: TcpListener) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let address = listener.local_addr().context("cannot tell the address of the listener")?;
    let file = std::env::temp_dir().join(format!("karpenter-demo-{}.kubeconfig", address.port()));
    crate::files::write_atomically(&file, &kubeconfig(address, None))?;
    // From here on time is everyone's.
    tokio::time::resume();
    world.follow_outside(FOLLOW);
    writeln!(
        io::stdout(),
        "The cluster stays up. In another terminal:\n\n  export KUBECONFIG={}\n  kubectl get nodes,nodeclaims,pods -A\n  kubectl scale deployment web --replicas 60\n\nCtrl-C ends it.",
        file.display()
    )?;
    let stop = async {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let served = serve(listener, world.cluster().server(), stop).await;
    // It names a server that is gone.
    let _ = std::fs::remove_file(&file);
    Ok(served?)
}
