//! Collects what asks for a pass: pods come in bursts, and one decision about many is better than many about one.
//!
//! A pass starts when nothing new has asked for a while, or when it has been asked for long enough. Asking twice for the same
//! thing within a window does not prolong it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_runtime::context::stopping;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a wait may be without anyone asking.
const QUIET: Duration = Duration::from_secs(1);

pub(crate) struct Batcher {
    idle: Duration,
    max: Duration,
    asked: Mutex<Asked>,
    news: Notify,
}

#[derive(Default)]
struct Asked {
    armed: bool,
    /// Who has asked in this window.
    by: BTreeSet<String>,
}

impl Batcher {
    pub(crate) fn new(idle: Duration, max: Duration) -> Self {
        Self { idle, max, asked: Mutex::default(), news: Notify::new() }
    }

    /// Asks for a pass on behalf of the object of this UID.
    pub(crate) fn trigger(&self, uid: &str) {
        let mut asked = self.asked();
        if asked.by.contains(uid) {
            return;
        }
        asked.by.insert(uid.to_owned());
        asked.armed = true;
        self.news.notify_one();
    }

    /// Asks for a pass on nobody's behalf.
    pub(crate) fn trigger_now(&self) {
        self.asked().armed = true;
        self.news.notify_one();
    }

    /// Waits for a window to open and close. False when nobody asks for a second, or the program is to stop.
    pub(crate) async fn wait(&self) -> bool {
        let stopping = stopping();
        tokio::select! {
            biased;
            () = stopping.cancelled() => false,
            closed = self.window() => closed,
        }
    }

    async fn window(&self) -> bool {
        if timeout(QUIET, self.armed()).await.is_err() {
            return false;
        }
        let latest = Instant::now() + self.max;
        loop {
            let end = latest.min(Instant::now() + self.idle);
            if timeout_at(end, self.armed()).await.is_err() {
                self.asked().by.clear();
                return true;
            }
            if Instant::now() >= latest {
                self.asked().by.clear();
                return true;
            }
        }
    }

    async fn armed(&self) {
        while !std::mem::take(&mut self.asked().armed) {
            self.news.notified().await;
        }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn batcher() -> Arc<Batcher> {
        Arc::new(Batcher::new(Duration::from_secs(1), Duration::from_secs(10)))
    }

    /// Asks every so often, by new objects or always the same.
    fn asking(batcher: &Arc<Batcher>, every: Duration, anew: bool) -> tokio::task::JoinHandle<()> {
        let batcher = Arc::clone(batcher);
        tokio::spawn(async move {
            for number in 0.. {
                batcher.trigger(&if anew { number.to_string() } else { "same".to_owned() });
                tokio::time::sleep(every).await;
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_asking_is_no_batch_and_takes_a_second() {
        let started = Instant::now();
        assert!(!batcher().wait().await);
        assert_eq!(started.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_ends_when_nothing_new_asks() {
        let batcher = batcher();
        batcher.trigger("a");
        let started = Instant::now();
        assert!(batcher.wait().await);
        assert_eq!(started.elapsed().as_millis(), 1000);
        assert!(!batcher.wait().await, "what was asked before is done");
        batcher.trigger("a");
        assert!(batcher.wait().await, "the same object may ask again in the next window");
    }

    #[tokio::test(start_paused = true)]
    async fn new_objects_prolong_a_batch_up_to_its_longest() {
        let batcher = batcher();
        let asker = asking(&batcher, Duration::from_millis(300), true);
        let started = Instant::now();
        assert!(batcher.wait().await);
        asker.abort();
        assert!((10.0..10.4).contains(&started.elapsed().as_secs_f64()), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_object_does_not_prolong_a_batch() {
        let batcher = batcher();
        let asker = asking(&batcher, Duration::from_millis(300), false);
        let started = Instant::now();
        assert!(batcher.wait().await);
        asker.abort();
        assert!(started.elapsed() < Duration::from_millis(1400), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_given_up_at_once_when_the_program_is_to_stop() {
        let batcher = batcher();
        batcher.trigger("a");
        let stop = tokio_util::sync::CancellationToken::new();
        let waiting = karpenter_runtime::context::until_stopped(stop.clone(), batcher.wait());
        let started = Instant::now();
        let stopping = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            stop.cancel();
        };
        let (decides, ()) = tokio::join!(waiting, stopping);
        assert!(!decides, "a decision now would be made from a view that no watch keeps");
        assert_eq!(started.elapsed().as_millis(), 300);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_may_be_asked_for_on_nobodys_behalf() {
        let batcher = batcher();
        batcher.trigger_now();
        assert!(batcher.wait().await);
    }
}
