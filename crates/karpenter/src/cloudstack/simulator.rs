//! `karpenter cloudstack simulator`: the simulated cloud on a socket, for other programs to talk to.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::{SignedDuration, Timestamp};
use karpenter_api::duration::Duration as GoDuration;
use karpenter_runtime::clock::WallClock;
use karpenter_runtime::environment::Environment;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use karpenter_sim::cloudstack::settings::Throttle;
use karpenter_sim::cloudstack::{CloudStack, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::real_time;

/// Serve a simulated CloudStack from memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 picks a free one. Loopback only: its keys are no secret.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// File with a certificate in PEM to serve HTTPS with, followed by those that vouch for it.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with its key in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Calls per account and second; each counts twice, as on the real server.
    #[arg(long, value_name = "N")]
    throttle: Option<u64>,
    /// Whether ordinary users may expunge virtual machines.
    #[arg(long)]
    users_may_expunge: bool,
    /// How much its clock is behind, such as 10m: what it makes looks that much older.
    #[arg(long, value_name = "DURATION", value_parser = span, default_value = "0s")]
    clock_behind: Duration,
    /// How much its clock is ahead, such as 5m: signatures are good for that much less.
    #[arg(long, value_name = "DURATION", value_parser = span, default_value = "0s", conflicts_with = "clock_behind")]
    clock_ahead: Duration,
    /// How long ago the virtual machines were as lists show them, such as 5s.
    #[arg(long, value_name = "DURATION", value_parser = span, default_value = "0s")]
    read_lag: Duration,
    /// Largest page of a list.
    #[arg(long, value_name = "N", default_value_t = 500)]
    page_size: usize,
    /// How many rows of a page are repeated on the next one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    repeat_rows: usize,
    /// Whether it takes what changes something only by POST, and signatures only with a time.
    #[arg(long)]
    enforce_post: bool,
    /// Whether it is under maintenance, and takes no new jobs.
    #[arg(long)]
    maintenance: bool,
    /// After how long it refuses the ordinary user's keys, such as 1m.
    #[arg(long, value_name = "DURATION", value_parser = span)]
    revoke_keys_after: Option<Duration>,
    /// Name of a virtual machine of the ordinary user's that is there from the beginning; may be given several times.
    #[arg(long, value_name = "NAME")]
    machine: Vec<String>,
    /// What goes wrong with a call of a command, as COMMAND[@NUMBER][/ACCOUNT]=TROUBLE: with the next one, or the one of this number, by
    /// anybody or this account; `*` is any command. Trouble is `lost-request`, `lost-answer`, `truncated`, `late:DURATION`, `twice` (as
    /// from two leaders), `restart` (the server dies before it answers, and its jobs with it), or the HTTP status that something on the way
    /// answers with. May be given several times.
    #[arg(long, value_name = "COMMAND[@NUMBER][/ACCOUNT]=TROUBLE", value_parser = fault)]
    fault: Vec<Fault>,
}

fn fault(text: &str) -> Result<Fault, String> {
    let (of, trouble) = text.split_once('=').ok_or("write it as COMMAND[@NUMBER][/ACCOUNT]=TROUBLE")?;
    let (of, account) = of.split_once('/').map_or((of, None), |(of, account)| (of, Some(account)));
    let (command, number) = match of.split_once('@') {
        None => (of, 1),
        Some((command, number)) => {
            let known = number.parse().ok().filter(|number| *number > 0);
            (
                command,
                known.ok_or_else(|| format!("{number:?} is not the number of a call, which begin with 1"))?,
            )
        }
    };
    let trouble = match trouble {
        "lost-request" => Trouble::DropRequest,
        "lost-answer" => Trouble::DropResponse,
        "truncated" => Trouble::Truncate,
        "twice" => Trouble::Twice,
        "restart" => Trouble::Restart,
        other => match (other.strip_prefix("late:"), other.parse()) {
            (Some(late), _) => Trouble::Delay(span(late)?),
            (_, Ok(status @ 300..=599)) => Trouble::Proxy(status),
            _ => {
                return Err(format!(
                    "{other:?} is none of lost-request, lost-answer, truncated, late:DURATION, twice, restart, 300 to 599"
                ));
            }
        },
    };
    let fault = match command {
        "*" => Fault::of_any(1, trouble),
        command => Fault::once(command, trouble),
    };
    Ok(Fault { account: account.map(str::to_owned), ..fault.after(number - 1) })
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
    real_time::run(run(args))?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
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
    cloud.set_clock_ahead(SignedDuration::try_from(args.clock_ahead).context("--clock-ahead is too long")?);
    cloud.configure(|settings| {
        settings.user_may_expunge = args.users_may_expunge;
        settings.read_lag = args.read_lag;
        settings.page_size = args.page_size;
        settings.rows_repeated = args.repeat_rows;
        settings.enforce_post = args.enforce_post;
        settings.maintenance = args.maintenance;
        settings.throttle =
            args.throttle.map(|max| Throttle { max, interval: Duration::from_secs(1), counts_twice: true });
    });
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let (certificate, key) = (read(certificate)?, read(key)?);
            Some(
                serve::tls(&certificate, &key)
                    .map_err(|problem| anyhow!("--tls-cert, --tls-key: {problem}"))?,
            )
        }
        _ => None,
    };
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr().context("cannot tell the address of the listener")?;
    // The socket already queues connections, so whoever reads this is answered.
    let mut out = std::io::stdout().lock();
    let scheme = if tls.is_some() { "https" } else { "http" };
    writeln!(out, "endpoint={scheme}://{address}{}", serve::PATH)?;
    for (name, role) in [("user", Role::User), ("domain-admin", Role::DomainAdmin), ("root", Role::Root)] {
        if let Some(account) = cloud.account(role) {
            let (key, secret) = (account.api_key, account.secret_key);
            writeln!(out, "role={name} account={} api-key={key} secret-key={secret}", account.name)?;
        }
    }
    out.flush()?;
    drop(out);
    if let Some(wait) = args.revoke_keys_after {
        let cloud = cloud.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            cloud.revoke_keys(true);
        });
    }
    let stop = async {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve::serve(listener, cloud, tls, stop).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_the_command_the_call_the_account_and_what_happens() {
        let read = |text: &str| {
            let Fault { command, account, after, times, what } = fault(text).expect("a fault");
            (command.unwrap_or_default(), account.unwrap_or_default(), after, times, what)
        };
        let late = Trouble::Delay(Duration::from_secs(90));
        assert_eq!(read("listZones=502"), ("listZones".into(), String::new(), 0, 1, Trouble::Proxy(502)));
        assert_eq!(read("createTags@3=late:1m30s"), ("createTags".into(), String::new(), 2, 1, late));
        assert_eq!(read("*@2/karp=restart"), (String::new(), "karp".into(), 1, 1, Trouble::Restart));
        for wrong in ["listZones", "listZones@0=502", "listZones=slow", "listZones=late:soon"] {
            assert!(fault(wrong).is_err(), "{wrong}");
        }
    }
}
