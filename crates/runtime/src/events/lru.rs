//! A map that forgets what was not used for longest. Keys are long and only compared: it remembers digests of them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) struct Lru<V> {
    capacity: usize,
    entries: BTreeMap<u64, (u64, V)>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

pub(super) fn digest(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl<V> Lru<V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// The value of `key`, made if it is not there; the oldest goes if there is no room.
    pub(super) fn entry(&mut self, key: &str, new: impl FnOnce() -> V) -> &mut V {
        self.uses += 1;
        let key = digest(key);
        if let Some((used, _)) = self.entries.get(&key) {
            self.by_use.remove(used);
        } else if self.entries.len() >= self.capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.by_use.insert(self.uses, key);
        let (used, value) = self.entries.entry(key).or_insert_with(|| (0, new()));
        *used = self.uses;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_is_forgotten_first() {
        let mut lru = Lru::new(2);
        *lru.entry("a", || 0) = 1;
        *lru.entry("b", || 0) = 2;
        assert_eq!(*lru.entry("a", || 0), 1);
        lru.entry("c", || 3);
        assert_eq!((lru.entries.len(), lru.by_use.len()), (2, 2));
        assert_eq!(*lru.entry("a", || 0), 1);
        assert_eq!(*lru.entry("c", || 0), 3);
        assert_eq!(*lru.entry("b", || 0), 0, "forgotten");
    }
}
