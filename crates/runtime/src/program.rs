//! Runs everything together and takes it down in order: signal → stop → controllers drain under the lease → lease released →
//! the rest ends.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::controller::Runnable;
use crate::lease::{Elector, LostLease};

/// What is under way at the end gets this long, as in controller-runtime.
pub const GRACE: Duration = Duration::from_secs(30);

/// Parts of a program, in two groups: what runs always and what runs only while leading.
#[derive(Default)]
pub struct Program {
    always: Vec<Part>,
    leading: Vec<Part>,
}

struct Part {
    name: String,
    runnable: Box<dyn Runnable>,
}

/// Why a program ended that was not asked to.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Another leads; restarting means standing by.
    #[error(transparent)]
    LostLease(#[from] LostLease),
    /// A part ended by itself, which none should.
    #[error("{part} ended unexpectedly: {reason}; the log says more")]
    PartEnded {
        /// Which.
        part: String,
        /// How.
        reason: String,
    },
}

impl Program {
    /// Without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part that runs from the start to the very end: servers, the event writer.
    pub fn always(&mut self, name: impl Into<String>, runnable: impl Runnable) {
        self.always.push(Part { name: name.into(), runnable: Box::new(runnable) });
    }

    /// Adds a part that runs only while this replica leads.
    pub fn while_leading(&mut self, name: impl Into<String>, runnable: impl Runnable) {
        self.leading.push(Part { name: name.into(), runnable: Box::new(runnable) });
    }

    /// Runs until stopped, the lease is lost or a part ends by itself. Without an elector it leads from the start.
    pub async fn run(self, stop: CancellationToken, elector: Option<Elector>) -> Result<(), ProgramError> {
        let Self { always, leading } = self;
        let end = CancellationToken::new();
        // Whatever happens first stops the other group too.
        let stop = stop.child_token();
        let background = tokio::spawn(run_parts(always, end.clone(), stop.clone()));
        let result = match elector {
            None => run_parts(leading, stop.clone(), stop.clone()).await,
            Some(elector) => {
                let mut parts = Ok(());
                let led = elector
                    .lead(stop.clone(), |token| async {
                        parts = run_parts(leading, token.clone(), token).await;
                    })
                    .await;
                led.map_err(ProgramError::from).and(parts)
            }
        };
        end.cancel();
        let background = background.await.unwrap_or_else(|panic| {
            Err(ProgramError::PartEnded { part: "background".to_owned(), reason: panic.to_string() })
        });
        result.and(background)
    }
}

/// Runs parts until `stop`; if one ends before, `failed` is cancelled and all are stopped.
async fn run_parts(
    parts: Vec<Part>,
    stop: CancellationToken,
    failed: CancellationToken,
) -> Result<(), ProgramError> {
    let stop = stop.child_token();
    let mut running = JoinSet::new();
    for Part { name, runnable } in parts {
        let stop = stop.clone();
        running.spawn(async move {
            let ended = AbortOnDropHandle::new(tokio::spawn(runnable.run(stop))).await;
            (name, ended.err().map(|error| error.to_string()))
        });
    }
    let mut result = Ok(());
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        Some(ended) = running.join_next(), if !running.is_empty() => {
            let (part, reason) = ended.unwrap_or_else(|error| ("a part".to_owned(), Some(error.to_string())));
            let reason = reason.unwrap_or_else(|| "it returned".to_owned());
            tracing::error!(part, reason, "a part of the program ended, stopping");
            result = Err(ProgramError::PartEnded { part, reason });
            failed.cancel();
            stop.cancel();
        }
    }
    let drained = tokio::time::timeout(GRACE, async {
        while let Some(ended) = running.join_next().await {
            if let Ok((part, Some(reason))) = ended {
                tracing::error!(part, reason, "a part of the program failed while stopping");
            }
        }
    })
    .await;
    if drained.is_err() {
        tracing::error!("not everything ended in time, abandoning the rest");
    }
    result
}

/// Any function of a stop token is a part.
impl<F> Runnable for F
where
    F: FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send + 'static,
{
    fn run(self: Box<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        (*self)(stop)
    }
}

/// A token that is cancelled by SIGTERM or SIGINT; a second signal ends the process at once.
pub fn stop_on_signal() -> std::io::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                tracing::info!("stopping: finishing what is under way; signal again to end at once");
                token.cancel();
            } else {
                std::process::exit(1);
            }
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::FutureExt;

    use super::*;
    use crate::sync::lock;

    type Diary = Arc<Mutex<Vec<String>>>;

    /// A part that notes its start and end and takes its time to wind up.
    fn part(diary: &Diary, name: &'static str, winding_secs: u64) -> impl Runnable {
        let diary = Arc::clone(diary);
        move |stop: CancellationToken| {
            async move {
                lock(&diary).push(format!("{name} starts"));
                stop.cancelled().await;
                tokio::time::sleep(Duration::from_secs(winding_secs)).await;
                lock(&diary).push(format!("{name} ends"));
            }
            .boxed()
        }
    }

    fn entries(diary: &Diary) -> Vec<String> {
        lock(diary).clone()
    }

    #[tokio::test(start_paused = true)]
    async fn what_leads_ends_before_what_always_runs() {
        let diary = Diary::default();
        let mut program = Program::new();
        program.always("server", part(&diary, "server", 0));
        program.while_leading("controller", part(&diary, "controller", 20));
        let stop = CancellationToken::new();
        let running = tokio::spawn(program.run(stop.clone(), None));
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        running.await.expect("no panic").expect("a clean end");
        assert_eq!(entries(&diary)[2..], ["controller ends", "server ends"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_does_not_end_in_time_is_abandoned() {
        let diary = Diary::default();
        let mut program = Program::new();
        program.while_leading("stuck", part(&diary, "stuck", 3600));
        let stop = CancellationToken::new();
        stop.cancel();
        let started = tokio::time::Instant::now();
        program.run(stop, None).await.expect("a clean end");
        assert_eq!(started.elapsed(), GRACE);
        tokio::time::sleep(Duration::from_secs(7200)).await;
        assert_eq!(entries(&diary), ["stuck starts"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_or_returns_stops_the_program_with_its_name() {
        for (always, how) in
            [(false, "panicked"), (true, "panicked"), (false, "returned"), (true, "returned")]
        {
            let diary = Diary::default();
            let mut program = Program::new();
            program.while_leading("controller", part(&diary, "controller", 0));
            program.always("server", part(&diary, "server", 0));
            let bad = move |_: CancellationToken| {
                async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    assert!(how == "returned", "on purpose");
                }
                .boxed()
            };
            if always {
                program.always("bad", bad);
            } else {
                program.while_leading("bad", bad);
            }
            let error = program.run(CancellationToken::new(), None).await.expect_err("an error").to_string();
            assert!(error.starts_with("bad ended unexpectedly") && error.contains(how), "{error}");
            assert_eq!(entries(&diary).iter().filter(|entry| entry.ends_with("ends")).count(), 2);
        }
    }
}
