//! Where long computations run: beside the runtime, so that watches, probes and leases stay alive while the engine thinks.
//!
//! Under a paused clock a computation on a foreign thread would let virtual time run away, so simulations compute in place.

use std::panic::resume_unwind;
use std::time::Duration;

/// How to run a computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compute {
    /// On a thread of its own.
    #[default]
    Beside,
    /// Here and now: for simulations.
    Inline,
    /// Here, after which so much time has passed: a simulated machine that thinks slowly.
    Taking(Duration),
}

impl Compute {
    /// Runs `work` and waits for it. A panic in it is a panic here. If the wait is given up, work beside runs to its end.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Self::Inline => work(),
            Self::Taking(time) => {
                let result = work();
                tokio::time::sleep(time).await;
                result
            }
            Self::Beside => match tokio::task::spawn_blocking(work).await {
                Ok(result) => result,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime is going down; whoever waits here is about to be dropped.
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_stands_still_while_something_is_computed() {
        let started = Instant::now();
        let timer = tokio::spawn(async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        });
        for compute in [Compute::Inline, Compute::Beside] {
            assert_eq!(compute.run(|| (0..100_000_u64).sum::<u64>()).await, 4_999_950_000);
        }
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert_eq!(Compute::Taking(Duration::from_secs(60)).run(|| 1).await, 1);
        assert!(started.elapsed() >= Duration::from_secs(60), "unless it is said to take time");
        timer.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_panic_reaches_whoever_asked() {
        let asked = tokio::spawn(Compute::Beside.run(|| panic!("boom")));
        let panic = asked.await.expect_err("a panic").into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"boom"));
    }
}
