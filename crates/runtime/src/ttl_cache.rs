//! What is remembered for a while: a map whose entries run out on tokio's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A map that forgets each entry a fixed time after it was put in.
#[derive(Clone, Debug)]
pub struct TtlCache<K, V> {
    ttl: Duration,
    entries: BTreeMap<K, (Instant, V)>,
    swept: Option<Instant>,
}

/// How often what has run out is thrown away; it is not seen before either.
const SWEEP: Duration = Duration::from_secs(60);

impl<K: Ord + Clone, V> TtlCache<K, V> {
    /// Remembers entries for `ttl`.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, entries: BTreeMap::new(), swept: None }
    }

    /// What was put in under `key`, if it was within the time.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (put, value) = self.entries.get(key)?;
        (put.elapsed() <= self.ttl).then_some(value)
    }

    /// Puts an entry in; its time starts now.
    pub fn insert(&mut self, key: K, value: V) {
        let now = Instant::now();
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            let ttl = self.ttl;
            self.entries.retain(|_, (put, _)| now.saturating_duration_since(*put) <= ttl);
            self.swept = Some(now);
        }
        self.entries.insert(key, (now, value));
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (put, value) = self.entries.remove(key)?;
        (put.elapsed() <= self.ttl).then_some(value)
    }

    /// Whether `key` is new; it is remembered from now on. Asking again does not prolong it.
    pub fn first_time(&mut self, key: K) -> bool
    where
        V: Default,
    {
        let first = self.get(&key).is_none();
        if first {
            self.insert(key, V::default());
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seconds(secs: u64) {
        tokio::time::sleep(Duration::from_secs(secs)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_there_until_their_time_is_over() {
        let mut cache = TtlCache::new(Duration::from_secs(100));
        cache.insert("a", 1);
        seconds(60).await;
        cache.insert("b", 2);
        seconds(40).await;
        assert_eq!((cache.get(&"a"), cache.get(&"b")), (Some(&1), Some(&2)), "to the very end");
        seconds(1).await;
        assert_eq!((cache.get(&"a"), cache.get(&"b")), (None, Some(&2)));
        assert_eq!((cache.remove(&"a"), cache.remove(&"b"), cache.remove(&"b")), (None, Some(2), None));
        for i in 0..100 {
            cache.insert("c", i);
            seconds(1000).await;
        }
        assert_eq!(cache.entries.len(), 1, "what has run out does not pile up");
    }

    #[tokio::test(start_paused = true)]
    async fn repetition_does_not_prolong() {
        let mut seen: TtlCache<_, ()> = TtlCache::new(Duration::from_secs(10));
        let mut firsts = Vec::new();
        for _ in 0..12 {
            firsts.push(seen.first_time("pod"));
            seconds(1).await;
        }
        assert_eq!(firsts.iter().filter(|first| **first).count(), 2);
    }
}
