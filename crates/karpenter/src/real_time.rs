//! Runs what a command has to wait for.

use anyhow::Context as _;

/// Runs this to its end on one thread, by the time of the clock on the wall.
///
/// # Errors
///
/// What this ends with, or that the runtime cannot be started.
pub fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(work)
}
