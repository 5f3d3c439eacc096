//! The account's limits: what a machine takes of them, what of them is left, and what was refused for their sake.
//!
//! The server says now and then what is left. Between two answers what was ordered meanwhile is taken off, so that many
//! launches at once do not all count on the same remainder. A limit that was hit all the same (there are limits of domains,
//! which tenants do not see) is believed for a minute: limits are raised by people, who want to see that it helped.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::QuotaExcess;
use crate::client::model::Budget;
use crate::client::request::Scope;

/// How long a limit that was hit is believed.
const BELIEVED: Duration = Duration::from_secs(60);
/// How long it is told of.
const TOLD: Duration = Duration::from_secs(5 * 60);
/// How long an order is remembered; what is left is never asked for less often.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// What one machine takes of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) cpu: i64,
    pub(crate) memory_mib: i64,
    pub(crate) gpus: i64,
    /// Root disk and data disks.
    pub(crate) volumes: i64,
    /// Gigabytes of all of them.
    pub(crate) storage_gb: i64,
}

impl Need {
    /// How much of a resource, by CloudStack's name for it; nothing if it is none a machine takes.
    fn of(&self, resource: &str) -> Option<i64> {
        match resource {
            "user_vm" => Some(1),
            "cpu" => Some(self.cpu),
            "memory" => Some(self.memory_mib),
            "gpu" => Some(self.gpus),
            "volume" => Some(self.volumes),
            "primary_storage" => Some(self.storage_gb),
            _ => None,
        }
    }

    /// Whether what is left allows one more.
    pub(crate) fn is_within(&self, left: &Budget) -> bool {
        let enough = |left: Option<i64>, needed: i64| left.is_none_or(|left| left >= needed);
        enough(left.vmavailable, 1)
            && enough(left.cpuavailable, self.cpu)
            && enough(left.memoryavailable, self.memory_mib)
            && enough(left.gpuavailable, self.gpus)
            && enough(left.volumeavailable, self.volumes)
            && enough(left.primarystorageavailable, self.storage_gb)
    }
}

/// What was ordered lately, by whose it is.
#[derive(Debug, Default)]
pub(crate) struct Ordered(Mutex<BTreeMap<Scope, Vec<(Instant, Need)>>>);

impl Ordered {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Scope, Vec<(Instant, Need)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// The server accepted a machine.
    pub(crate) fn add(&self, scope: &Scope, need: Need) {
        let mut ordered = self.lock();
        let of_scope = ordered.entry(scope.clone()).or_default();
        of_scope.retain(|(at, _)| at.elapsed() < REMEMBERED);
        of_scope.push((Instant::now(), need));
    }

    /// What is left, of what was left at that time.
    pub(crate) fn rest(&self, scope: &Scope, since: Instant, mut left: Budget) -> Budget {
        let ordered = self.lock();
        for (_, need) in ordered.get(scope).into_iter().flatten().filter(|(at, _)| *at >= since) {
            let take = |left: &mut Option<i64>, amount: i64| {
                if let Some(left) = left {
                    *left = left.saturating_sub(amount).max(0);
                }
            };
            take(&mut left.vmavailable, 1);
            take(&mut left.cpuavailable, need.cpu);
            take(&mut left.memoryavailable, need.memory_mib);
            take(&mut left.gpuavailable, need.gpus);
            take(&mut left.volumeavailable, need.volumes);
            take(&mut left.primarystorageavailable, need.storage_gb);
        }
        left
    }
}

/// A limit that was hit.
#[derive(Clone, Debug)]
struct Hit {
    at: Instant,
    /// As much of it was asked for.
    needed: i64,
    told: String,
}

/// The limits that were hit, by whose they are and which.
#[derive(Debug, Default)]
pub(crate) struct Hits(Mutex<BTreeMap<(Scope, String), Hit>>);

impl Hits {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Scope, String), Hit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys are of another account.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// A machine of this need was refused; in words what for. Whether anything can be concluded for others.
    pub(crate) fn add(&self, scope: &Scope, excess: &QuotaExcess, need: &Need) -> (String, bool) {
        let number = |number: Option<i64>| number.map_or("?".to_owned(), |number| number.to_string());
        let told = format!(
            "the limit of {} is {}, {} are used and {} more were asked for; ask for more, or delete what is not needed",
            if excess.resource.is_empty() { "a resource" } else { excess.resource.as_str() },
            number(excess.limit),
            number(excess.used),
            number(excess.requested),
        );
        let needed = need.of(&excess.resource);
        let hit = Hit { at: Instant::now(), needed: needed.unwrap_or(i64::MAX), told: told.clone() };
        self.lock().insert((scope.clone(), excess.resource.clone()), hit);
        (told, needed.is_some())
    }

    /// Whether a machine of this need would be refused as another was that needed no more.
    pub(crate) fn refuse(&self, scope: &Scope, need: &Need) -> bool {
        self.refusal(scope, |resource, hit| need.of(resource).is_some_and(|needed| needed >= hit.needed))
            .is_some()
    }

    /// The last limit that was hit and still counts, in words.
    pub(crate) fn believed(&self, scope: &Scope) -> Option<String> {
        self.refusal(scope, |_, _| true)
    }

    /// The last limit that counts and is meant, in words.
    fn refusal(&self, scope: &Scope, is_meant: impl Fn(&str, &Hit) -> bool) -> Option<String> {
        let hits = self.lock();
        let mine = hits.iter().filter(|((of, resource), hit)| {
            of == scope && hit.at.elapsed() < BELIEVED && is_meant(resource, hit)
        });
        mine.max_by_key(|(_, hit)| hit.at).map(|(_, hit)| hit.told.clone())
    }

    /// The last one in words, if it is not long ago.
    pub(crate) fn recent(&self, scope: &Scope) -> Option<String> {
        let hits = self.lock();
        let mine = hits.iter().filter(|((of, _), hit)| of == scope && hit.at.elapsed() < TOLD);
        mine.max_by_key(|(_, hit)| hit.at).map(|(_, hit)| hit.told.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Need = Need { cpu: 2, memory_mib: 4096, gpus: 0, volumes: 1, storage_gb: 20 };
    const BIG: Need = Need { cpu: 64, memory_mib: 4096, gpus: 0, volumes: 3, storage_gb: 200 };

    #[test]
    fn a_limit_hides_what_it_does_not_allow_disks_included() {
        assert!(BIG.is_within(&Budget::default()), "no limit");
        assert!(!BIG.is_within(&Budget { cpuavailable: Some(40), ..Budget::default() }));
        assert!(!BIG.is_within(&Budget { volumeavailable: Some(2), ..Budget::default() }));
        assert!(!BIG.is_within(&Budget { primarystorageavailable: Some(199), ..Budget::default() }));
        assert!(SMALL.is_within(&Budget {
            cpuavailable: Some(2),
            vmavailable: Some(1),
            ..Budget::default()
        }));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_ordered_since_is_taken_off_what_was_left() {
        let ordered = Ordered::default();
        ordered.add(&Scope::Own, SMALL);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let said = Instant::now();
        ordered.add(&Scope::Own, SMALL);
        ordered.add(&Scope::Project("p".into()), BIG);
        let left = Budget { cpuavailable: Some(5), vmavailable: Some(9), ..Budget::default() };
        let rest = ordered.rest(&Scope::Own, said, left);
        assert_eq!((rest.cpuavailable, rest.vmavailable, rest.memoryavailable), (Some(3), Some(8), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_was_hit_is_believed_for_a_minute_for_what_needs_as_much() {
        let hits = Hits::default();
        let excess = QuotaExcess { resource: "cpu".into(), limit: Some(40), ..QuotaExcess::default() };
        let (told, general) = hits.add(&Scope::Own, &excess, &BIG);
        assert!(general && told.contains("the limit of cpu is 40"), "{told}");
        assert!(hits.refuse(&Scope::Own, &BIG) && !hits.refuse(&Scope::Own, &SMALL));
        assert!(!hits.refuse(&Scope::Project("p".into()), &BIG), "whose limit it is matters");
        assert_eq!(hits.believed(&Scope::Own).as_ref(), Some(&told));
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(!hits.refuse(&Scope::Own, &BIG));
        assert_eq!(hits.recent(&Scope::Own), Some(told), "but still told of");
    }
}
