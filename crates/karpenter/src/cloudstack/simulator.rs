//! `karpenter cloudstack simulator`: the simulated cloud on a socket, for other programs to talk to.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use karpenter_api::duration::Duration as GoDuration;
use karpenter_runtime::clock::WallClock;
use karpenter_runtime::environment::Environment;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use karpenter_sim::cloudstack::settings::Throttle;
use karpenter_sim::cloudstack::{CloudStack, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serve a simulated CloudStack from memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 picks a free one. Loopback only: its keys are no secret.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Calls per account and second; each counts twice, as on the real server.
    #[arg(long, value_name = "N")]
    throttle: Option<u64>,
    /// Whether ordinary users may expunge virtual machines.
    #[arg(long)]
    users_may_expunge: bool,
    /// How much its clock is behind, such as 10m: what it makes looks that much older.
    #[arg(long, value_name = "DURATION", value_parser = span, default_value = "0s")]
    clock_behind: Duration,
    /// Name of a virtual machine of the ordinary user's that is there from the beginning; may be given several times.
    #[arg(long, value_name = "NAME")]
    machine: Vec<String>,
    /// What goes wrong with the next call of a command, as COMMAND=TROUBLE: `lost-request`, `lost-answer`, `truncated` or the HTTP status
    /// that something on the way answers with; may be given several times.
    #[arg(long, value_name = "COMMAND=TROUBLE", value_parser = fault)]
    fault: Vec<Fault>,
}

fn fault(text: &str) -> Result<Fault, String> {
    let (command, trouble) = text.split_once('=').ok_or("write it as COMMAND=TROUBLE")?;
    let trouble = match trouble {
        "lost-request" => Trouble::DropRequest,
        "lost-answer" => Trouble::DropResponse,
        "truncated" => Trouble::Truncate,
        status => match status.parse() {
            Ok(status @ 300..=599) => Trouble::Proxy(status),
            _ => {
                return Err(format!(
                    "{status:?} is none of lost-request, lost-answer, truncated, 300 to 599"
                ));
            }
        },
    };
    Ok(Fault::once(command, trouble))
}

fn span(text: &str) -> Result<Duration, String> {
    GoDuration::parse(text).map(|duration| duration.to_std()).map_err(|error| error.to_string())
}

/// Real time, but late by so much.
fn late(by: Duration) -> Environment {
    let real = Environment::real();
    let clock = real.clock.clone();
    let read = move || clock.now().checked_sub(by).unwrap_or(Timestamp::MIN);
    Environment { clock: Arc::new(WallClock::reading(read)), ..real }
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() {
        bail!("refusing to listen on {}: the keys are no secret; give a loopback address", args.listen);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(run(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: &Args) -> anyhow::Result<()> {
    // Listen for signals first: whoever reads the address may stop us right away.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let cloud = CloudStack::new(&late(args.clock_behind));
    for name in &args.machine {
        cloud.add_machine(name, &[]);
    }
    for fault in &args.fault {
        cloud.inject(fault.clone());
    }
    cloud.configure(|settings| {
        settings.user_may_expunge = args.users_may_expunge;
        settings.throttle =
            args.throttle.map(|max| Throttle { max, interval: Duration::from_secs(1), counts_twice: true });
    });
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr().context("cannot tell the address of the listener")?;
    // The socket already queues connections, so whoever reads this is answered.
    let mut out = std::io::stdout().lock();
    writeln!(out, "endpoint=http://{address}{}", serve::PATH)?;
    for (name, role) in [("user", Role::User), ("domain-admin", Role::DomainAdmin), ("root", Role::Root)] {
        if let Some(account) = cloud.account(role) {
            let (key, secret) = (account.api_key, account.secret_key);
            writeln!(out, "role={name} account={} api-key={key} secret-key={secret}", account.name)?;
        }
    }
    out.flush()?;
    drop(out);
    let stop = async {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve::serve(listener, cloud, stop).await;
    Ok(())
}
