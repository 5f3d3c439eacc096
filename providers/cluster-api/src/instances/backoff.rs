//! Which offerings have failed of late: unavailable for three minutes, then twice as long each time, up to half an hour; forgotten
//! when one works again, or when what failed is no longer what it was: somebody may have mended it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::scalable::{Scalable, ScalableKey};
use crate::client::template::Template;
use crate::{GROUP, names};

const FIRST: Duration = Duration::from_secs(3 * 60);
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// What failed where, by resource and failure domain.
#[derive(Debug, Default)]
pub struct Backoff(Mutex<State>);

type Place = (ScalableKey, Option<String>);

#[derive(Debug, Default)]
struct State {
    failed: BTreeMap<Place, Failed>,
    version: u64,
}

/// What failed: a resource as its owner describes it, and what its Machines are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    described: u64,
    /// What Machines are made from, if it is there and can be read.
    template: Option<u64>,
}

impl Shape {
    /// Of a resource and its infrastructure template, as far as that has been read. Replicas and what others write into annotations are no
    /// part of it.
    pub fn of(scalable: &Scalable, template: Option<&Result<Template, String>>) -> Self {
        let is_owners = |key: &str| {
            let ours = [names::EPOCH, names::PROTECTED];
            let read =
                [names::CAPACITY_DOMAIN, names::MIN_SIZE, names::MAX_SIZE, names::SKIP_PREFLIGHT_CHECKS];
            !ours.contains(&key)
                && (read.iter().any(|prefix| key.starts_with(prefix)) || key.starts_with(GROUP))
        };
        let annotations: BTreeMap<&String, &String> =
            scalable.annotations.iter().filter(|(key, _)| is_owners(key)).collect();
        let template = template.and_then(|read| read.as_ref().ok()).map(|template| template.hash);
        let machines = (&scalable.template_labels, &scalable.template_annotations, &scalable.template_spec);
        let described = karpenter_api::structure_hash::text(&format!("{annotations:?} {machines:?}"));
        Self { described, template }
    }

    /// Whether this was another thing once. A template that cannot be read now may be what it was.
    fn was_another(&self, before: &Self) -> bool {
        self.described != before.described || self.template.is_some() && self.template != before.template
    }
}

#[derive(Clone, Debug)]
struct Failed {
    until: Instant,
    pause: Duration,
    why: String,
    shape: Option<Shape>,
    /// Whether nothing came of it but waiting: the next Machine that appears shows that it works again.
    nothing_came: bool,
}

impl Failed {
    /// Whether it is another thing by now. One that is out of sight is as it was.
    fn is_of_another(&self, shape: Option<Shape>) -> bool {
        self.shape.zip(shape).is_some_and(|(before, now)| now.was_another(&before))
    }
}

impl Backoff {
    /// A launch failed. Failures while it is unavailable anyway are of the same kind and do not prolong it.
    pub fn failed(&self, id: &ScalableKey, failure_domain: Option<&str>, shape: Option<Shape>, why: &str) {
        self.note(id, failure_domain, shape, why, false);
    }

    /// No Machine comes of a resource.
    pub fn nothing_came(&self, id: &ScalableKey, shape: Option<Shape>, why: &str) {
        self.note(id, None, shape, why, true);
    }

    fn note(
        &self,
        id: &ScalableKey,
        failure_domain: Option<&str>,
        shape: Option<Shape>,
        why: &str,
        nothing_came: bool,
    ) {
        let now = Instant::now();
        let mut state = self.lock();
        let place = (id.clone(), failure_domain.map(str::to_owned));
        let pause = match state.failed.get(&place) {
            Some(failed) if failed.is_of_another(shape) => FIRST,
            Some(failed) if failed.until > now => return,
            // Long quiet since: start over.
            Some(failed) if now.saturating_duration_since(failed.until) > LONGEST => FIRST,
            Some(failed) => (failed.pause * 2).min(LONGEST),
            None => FIRST,
        };
        let (until, why) = (now + pause, why.to_owned());
        state.failed.insert(place, Failed { until, pause, why, shape, nothing_came });
        state.version += 1;
    }

    /// A Machine of a resource appeared.
    pub fn came(&self, id: &ScalableKey) {
        let mut state = self.lock();
        let before = state.failed.len();
        state.failed.retain(|(of, _), failed| of != id || !failed.nothing_came);
        if state.failed.len() != before {
            state.version += 1;
        }
    }

    /// A launch worked.
    pub fn succeeded(&self, id: &ScalableKey, failure_domain: Option<&str>) {
        let mut state = self.lock();
        if state.failed.remove(&(id.clone(), failure_domain.map(str::to_owned))).is_some() {
            state.version += 1;
        }
    }

    /// Why an offering is unavailable, if it failed of late as it is now: there, or wherever its resource puts Machines.
    pub fn why(
        &self,
        id: &ScalableKey,
        failure_domain: Option<&str>,
        shape: Option<Shape>,
    ) -> Option<String> {
        let (state, now) = (self.lock(), Instant::now());
        let failed = |domain: Option<&str>| {
            let failed = state.failed.get(&(id.clone(), domain.map(str::to_owned)))?;
            (failed.until > now && !failed.is_of_another(shape))
                .then(|| format!("failed of late: {}", failed.why))
        };
        failed(failure_domain).or_else(|| failed(None))
    }

    /// Counts changes, those that time brings included.
    pub fn version(&self) -> (u64, usize) {
        let now = Instant::now();
        let state = self.lock();
        (state.version, state.failed.values().filter(|failed| failed.until > now).count())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures::{deployment_json, read_deployment};

    #[tokio::test(start_paused = true)]
    async fn failures_keep_an_offering_away_for_longer_each_time_until_one_works() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            backoff.failed(&id, None, None, "no host");
            backoff.failed(&id, None, None, "no host either");
            let start = Instant::now();
            assert_eq!(backoff.why(&id, None, None).as_deref(), Some("failed of late: no host"));
            while backoff.why(&id, None, None).is_some() {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            pauses.push(start.elapsed().as_secs() / 60);
        }
        assert_eq!(pauses, [3, 6, 12, 24, 30, 30]);
        backoff.succeeded(&id, None);
        backoff.failed(&id, None, None, "again");
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!(backoff.why(&id, None, None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_domain_does_not_stand_for_another() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        backoff.failed(&id, Some("a"), None, "no host");
        assert!(backoff.why(&id, Some("a"), None).is_some() && backoff.why(&id, Some("b"), None).is_none());
        backoff.failed(&id, None, None, "no Machine appears");
        assert!(backoff.why(&id, Some("b"), None).is_some(), "where its Machines come is not for us to say");
    }
    #[tokio::test(start_paused = true)]
    async fn what_is_mended_is_available_at_once_and_what_others_write_mends_nothing() {
        let deployment = |change: &dyn Fn(&mut Value)| {
            let mut object = deployment_json("m", &[(names::MAX_SIZE, "3")]);
            change(&mut object);
            read_deployment(object)
        };
        let plain = deployment(&|_| {});
        let (id, shape) = (plain.id.clone(), |scalable: &Scalable| Some(Shape::of(scalable, None)));
        let backoff = Backoff::default();
        backoff.failed(&id, None, shape(&plain), "no room");
        let is_out = |shape: Option<Shape>| backoff.why(&id, None, shape).is_some();
        assert!(is_out(shape(&plain)) && is_out(None), "out of sight is as it was");
        let of_others = deployment(&|object| {
            object["spec"]["replicas"] = 7.into();
            object["metadata"]["annotations"]["somebody/heartbeat"] = "12".into();
            object["metadata"]["annotations"][names::EPOCH] = "2026-01-01T00:00:00Z".into();
        });
        assert!(is_out(shape(&of_others)));
        let larger = deployment(&|object| object["metadata"]["annotations"][names::MAX_SIZE] = "5".into());
        assert!(!is_out(shape(&larger)));
        let there = Shape { template: Some(1), ..Shape::of(&plain, None) };
        assert!(!is_out(Some(there)), "its template was not there");
        backoff.failed(&id, None, shape(&larger), "no room either");
        tokio::time::sleep(FIRST).await;
        assert!(!is_out(shape(&larger)), "it begins with the shortest pause");
        backoff.failed(&id, None, Some(there), "no host");
        assert!(is_out(shape(&plain)), "a template that cannot be read may be what it was");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_appears_ends_what_began_for_want_of_one() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        backoff.nothing_came(&id, None, "no Machine appears");
        backoff.came(&id);
        assert_eq!(backoff.why(&id, None, None), None);
        backoff.failed(&id, None, None, "no host");
        backoff.came(&id);
        assert!(backoff.why(&id, None, None).is_some(), "it may fail as the one before");
    }
}
