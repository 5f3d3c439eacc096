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
pub(crate) struct Backoff(Mutex<State>);

type Place = (ScalableKey, Option<String>);

#[derive(Debug, Default)]
struct State {
    failed: BTreeMap<Place, Failed>,
    /// Where nothing came of it but waiting: the next Machine that appears shows that it works again, and says nothing of what failed.
    nothing_came: BTreeMap<ScalableKey, Failed>,
    version: u64,
}

/// What failed: a resource as its owner describes it, and what its Machines are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    described: u64,
    /// What Machines are made from, if it is there and can be read.
    template: Option<u64>,
}

impl Shape {
    /// Of a resource and its infrastructure template, as far as that has been read. Replicas and what others write into annotations are no
    /// part of it.
    pub(crate) fn of(scalable: &Scalable, template: Option<&Result<Template, String>>) -> Self {
        let is_owners = |key: &str| {
            let apart = [names::EPOCH, names::PROTECTED, names::PRICE];
            // What it costs changes by itself, and mends nothing.
            let is_price = key.strip_prefix(names::CAPACITY_DOMAIN).is_some_and(|name| name == "price");
            let read =
                [names::CAPACITY_DOMAIN, names::MIN_SIZE, names::MAX_SIZE, names::SKIP_PREFLIGHT_CHECKS];
            !apart.contains(&key)
                && !is_price
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
}

impl Failed {
    /// What is to be noted of a failure after this one, if anything.
    fn after(before: Option<&Self>, shape: Option<Shape>, why: &str) -> Option<Self> {
        let now = Instant::now();
        let pause = match before {
            Some(failed) if failed.is_of_another(shape) => FIRST,
            Some(failed) if failed.until > now => return None,
            // Long quiet since: start over.
            Some(failed) if now.saturating_duration_since(failed.until) > LONGEST => FIRST,
            Some(failed) => (failed.pause * 2).min(LONGEST),
            None => FIRST,
        };
        Some(Self { until: now + pause, pause, why: why.to_owned(), shape })
    }

    /// Whether it is another thing by now. One that is out of sight is as it was.
    fn is_of_another(&self, shape: Option<Shape>) -> bool {
        self.shape.zip(shape).is_some_and(|(before, now)| now.was_another(&before))
    }
}

impl Backoff {
    /// A launch failed. Failures while it is unavailable anyway are of the same kind and do not prolong it.
    pub(crate) fn failed(
        &self,
        id: &ScalableKey,
        failure_domain: Option<&str>,
        shape: Option<Shape>,
        why: &str,
    ) {
        let mut state = self.lock();
        let place = (id.clone(), failure_domain.map(str::to_owned));
        if let Some(failed) = Failed::after(state.failed.get(&place), shape, why) {
            state.failed.insert(place, failed);
            state.version += 1;
        }
    }

    /// No Machine comes of a resource.
    pub(crate) fn nothing_came(&self, id: &ScalableKey, shape: Option<Shape>, why: &str) {
        let mut state = self.lock();
        if let Some(failed) = Failed::after(state.nothing_came.get(id), shape, why) {
            state.nothing_came.insert(id.clone(), failed);
            state.version += 1;
        }
    }

    /// A Machine of a resource appeared.
    pub(crate) fn came(&self, id: &ScalableKey) {
        let mut state = self.lock();
        if state.nothing_came.remove(id).is_some() {
            state.version += 1;
        }
    }

    /// A launch worked.
    pub(crate) fn succeeded(&self, id: &ScalableKey, failure_domain: Option<&str>) {
        let mut state = self.lock();
        let failed = state.failed.remove(&(id.clone(), failure_domain.map(str::to_owned)));
        if state.nothing_came.remove(id).or(failed).is_some() {
            state.version += 1;
        }
    }

    /// Why an offering is unavailable, if it failed of late as it is now: there, or wherever its resource puts Machines. What it is now is
    /// asked for only if something failed: working that out takes a while.
    pub(crate) fn why(
        &self,
        id: &ScalableKey,
        failure_domain: Option<&str>,
        shape: impl FnOnce() -> Option<Shape>,
    ) -> Option<String> {
        let now = Instant::now();
        let failed: Vec<Failed> = {
            let state = self.lock();
            let at = |domain: Option<&str>| state.failed.get(&(id.clone(), domain.map(str::to_owned)));
            let places = [at(failure_domain), at(None), state.nothing_came.get(id)];
            places.into_iter().flatten().filter(|failed| failed.until > now).cloned().collect()
        };
        let shape = if failed.is_empty() { return None } else { shape() };
        let failed = failed.into_iter().find(|failed| !failed.is_of_another(shape))?;
        Some(format!("failed of late: {}", failed.why))
    }

    /// Counts changes, those that time brings included.
    pub(crate) fn version(&self) -> (u64, usize) {
        let now = Instant::now();
        let state = self.lock();
        let all = state.failed.values().chain(state.nothing_came.values());
        (state.version, all.filter(|failed| failed.until > now).count())
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
            assert_eq!(backoff.why(&id, None, || None).as_deref(), Some("failed of late: no host"));
            while backoff.why(&id, None, || None).is_some() {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            pauses.push(start.elapsed().as_secs() / 60);
        }
        assert_eq!(pauses, [3, 6, 12, 24, 30, 30]);
        backoff.succeeded(&id, None);
        backoff.failed(&id, None, None, "again");
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!(backoff.why(&id, None, || None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_domain_does_not_stand_for_another() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        backoff.failed(&id, Some("a"), None, "no host");
        assert!(
            backoff.why(&id, Some("a"), || None).is_some() && backoff.why(&id, Some("b"), || None).is_none()
        );
        backoff.failed(&id, None, None, "no Machine appears");
        assert!(
            backoff.why(&id, Some("b"), || None).is_some(),
            "where its Machines come is not for us to say"
        );
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
        let is_out = |shape: Option<Shape>| backoff.why(&id, None, || shape).is_some();
        assert!(is_out(shape(&plain)) && is_out(None), "out of sight is as it was");
        let of_others = deployment(&|object| {
            object["spec"]["replicas"] = 7.into();
            object["metadata"]["annotations"]["somebody/heartbeat"] = "12".into();
            object["metadata"]["annotations"][names::EPOCH] = "2026-01-01T00:00:00Z".into();
            for key in [names::PRICE, "capacity.cluster-autoscaler.kubernetes.io/price"] {
                object["metadata"]["annotations"][key] = "0.2".into();
            }
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
        assert_eq!(backoff.why(&id, None, || None), None);
        backoff.failed(&id, None, None, "no host");
        backoff.came(&id);
        assert!(backoff.why(&id, None, || None).is_some(), "it may fail as the one before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_appears_late_and_fails_again_is_kept_away_from_for_longer() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..3 {
            backoff.nothing_came(&id, None, "no Machine appears");
            tokio::time::sleep(Duration::from_secs(10)).await;
            backoff.came(&id);
            tokio::time::sleep(Duration::from_secs(20)).await;
            backoff.failed(&id, None, None, "no host");
            let start = Instant::now();
            while backoff.why(&id, None, || None).is_some() {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            pauses.push(start.elapsed().as_secs() / 60);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(pauses, [3, 6, 12]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_resource_is_is_worked_out_only_where_something_failed_of_late() {
        let id = ScalableKey::from_annotation("ns/m").expect("a key");
        let backoff = Backoff::default();
        let never = || -> Option<Shape> { panic!("asked for") };
        assert_eq!(backoff.why(&id, None, never), None);
        backoff.failed(&id, None, None, "no host");
        tokio::time::sleep(FIRST).await;
        assert_eq!(backoff.why(&id, None, never), None, "that is over");
    }
}
