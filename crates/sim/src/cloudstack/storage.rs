//! Primary storage: pools of a zone with so much space and tags, of which volumes take their part when their machine first starts.

use super::CloudStack;
use super::placement::words;
use super::state::State;

/// A storage pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    id: String,
    zone: String,
    bytes: i64,
    tags: String,
}

impl State {
    /// Finds a place for all volumes of a machine that have none; whether there was room for all of them. An offering that names no tags
    /// takes any pool.
    pub(crate) fn store(&mut self, machine: u64) -> bool {
        let before = self.volumes.clone();
        for at in 0..self.volumes.len() {
            let volume = &self.volumes[at];
            if volume.machine != Some(machine) || volume.pool.is_some() || volume.destroyed.is_some() {
                continue;
            }
            let mut of_zone = self.pools.iter().filter(|pool| pool.zone == volume.zone).peekable();
            if of_zone.peek().is_none() {
                continue;
            }
            // The root disk is of a service offering, unless a disk offering is named for it.
            let offerings = [(&self.offerings, "storagetags"), (&self.disk_offerings, "tags")];
            let tags = offerings.into_iter().find_map(|(offerings, key)| {
                Self::by_id(offerings, &volume.offering).map(|offering| offering[key].clone())
            });
            let tags = tags.unwrap_or_default();
            let is_for = |pool: &&Pool| words(&tags).is_subset(&words(&pool.tags.as_str().into()));
            let fits = |pool: &&Pool| self.free_in(pool) >= volume.size_bytes;
            let Some(pool) = of_zone.filter(is_for).find(fits).map(|pool| pool.id.clone()) else {
                self.volumes = before;
                return false;
            };
            self.volumes[at].pool = Some(pool);
        }
        true
    }

    /// What volumes leave of a pool. Destroyed ones take space until they are cleaned up.
    fn free_in(&self, pool: &Pool) -> i64 {
        let used = self.volumes.iter().filter(|volume| volume.pool.as_ref() == Some(&pool.id));
        pool.bytes - used.map(|volume| volume.size_bytes).sum::<i64>()
    }
}

impl CloudStack {
    /// Gives a zone primary storage of so many gigabytes, with these tags, separated by commas. A zone that was given none has as much as
    /// is wanted.
    pub fn add_storage_pool(&self, zone_id: &str, gb: i64, tags: &str) {
        let mut state = self.state();
        let id = state.uuid();
        state.pools.push(Pool { id, zone: zone_id.to_owned(), bytes: gb << 30, tags: tags.to_owned() });
    }
}
