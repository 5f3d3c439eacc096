//! What stands between a simulated process and the world: once the process is dead, nothing of it gets through.
//!
//! A process spawns tasks nobody can find. Killing it therefore means shutting its gate: whatever it still tries waits for
//! ever, as it would in a process that is gone. A gate can also be set to shut at the n-th write, before or after it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// When a process is to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// How many writes get through before.
    pub writes: u64,
    /// Whether the next one still takes effect, its answer unseen.
    pub after_commit: bool,
}

/// See the module. Clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    dead: CancellationToken,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    crash: Option<CrashPoint>,
    process: Option<AbortHandle>,
}

impl Gate {
    /// Goes on if the process lives; otherwise never.
    pub(crate) async fn pass(&self) {
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the process dies.
    pub(crate) async fn died(&self) {
        self.dead.cancelled().await;
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Stands before a write; the crash point may be here.
    pub(crate) async fn before_write(&self) {
        let due =
            self.with(|state| matches!(state.crash, Some(CrashPoint { writes: 0, after_commit: false })));
        if due {
            self.shut();
        }
        self.pass().await;
    }

    /// Stands behind a write that has taken effect; the crash point may be here.
    pub(crate) async fn after_write(&self) {
        let due = self.with(|state| {
            let Some(crash) = &mut state.crash else { return false };
            if crash.writes == 0 {
                return crash.after_commit;
            }
            crash.writes -= 1;
            false
        });
        if due {
            self.shut();
        }
        self.pass().await;
    }

    pub(crate) fn crash_at(&self, point: CrashPoint) {
        self.with(|state| state.crash = Some(point));
    }

    /// Which task to end when the gate shuts.
    pub(crate) fn guards(&self, process: AbortHandle) {
        if self.is_shut() {
            process.abort();
        }
        self.with(|state| state.process = Some(process));
    }

    /// The process dies.
    pub(crate) fn shut(&self) {
        self.dead.cancel();
        if let Some(process) = self.with(|state| state.process.take()) {
            process.abort();
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
