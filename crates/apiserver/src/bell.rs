//! Tells everyone who waits that a number has changed, always in the order they began to wait.
//!
//! tokio's `watch` channel wakes its receivers in random order: two watches of one resource would be told of a change now in
//! this order, now in that, and a simulation could not be replayed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Holds the number; clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    number: AtomicU64,
    news: Notify,
}

/// Someone who wants to know when the number changes.
#[derive(Debug)]
pub struct Listener {
    bell: Bell,
    heard: u64,
}

impl Bell {
    /// The number.
    pub fn number(&self) -> u64 {
        self.0.number.load(Ordering::Acquire)
    }

    /// Changes the number and wakes all who wait.
    pub fn ring(&self, number: u64) {
        self.0.number.store(number, Ordering::Release);
        self.0.news.notify_waiters();
    }

    /// Waits for changes from here on.
    pub fn listen(&self) -> Listener {
        Listener { bell: self.clone(), heard: self.number() }
    }
}

impl Listener {
    /// Changes up to now do not count.
    pub fn catch_up(&mut self) {
        self.heard = self.bell.number();
    }

    /// Waits until the number is another than it was.
    pub async fn changed(&mut self) {
        loop {
            let mut news = pin!(self.bell.0.news.notified());
            // In line before looking, so that no change is missed in between.
            news.as_mut().enable();
            let number = self.bell.number();
            if number != self.heard {
                self.heard = number;
                return;
            }
            news.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_first_hears_first() {
        let bell = Bell::default();
        let heard: Arc<Mutex<Vec<u32>>> = Arc::default();
        let waiting: Vec<_> = (0..16)
            .map(|number| {
                let (mut listener, heard) = (bell.listen(), Arc::clone(&heard));
                tokio::spawn(async move {
                    listener.changed().await;
                    heard.lock().expect("no panic").push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        bell.ring(1);
        for task in waiting {
            task.await.expect("no panic");
        }
        assert_eq!(*heard.lock().expect("no panic"), (0..16).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_change_before_the_wait_is_heard_unless_it_was_caught_up_with() {
        let bell = Bell::default();
        let mut listener = bell.listen();
        bell.ring(7);
        listener.changed().await;
        bell.ring(8);
        listener.catch_up();
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(5), listener.changed()).await;
        assert!(quiet.is_err());
    }
}
