//! Kubernetes events: what happened to an object, for the people who look at it.
//!
//! [`Recorder::publish`] never waits and never fails: an event repeated too soon, beyond its rate or beyond the bound of the
//! queue is dropped. An [`EventWriter`] writes the rest as client-go's recorder does: core/v1, repeats counted, many
//! similar ones combined, a flood about one object stopped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use karpenter_primitives::names::dns1123_subdomain_errors;
use kube::Resource;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock::SharedClock;
use crate::entropy::Stream;
use crate::environment::Environment;
use crate::rate_limit::TokenBucket;
use crate::sync::lock;

mod correlator;
mod lru;
mod writer;

pub use writer::EventWriter;

/// How long an event is not repeated unless it says otherwise.
pub const DEFAULT_DEDUPE: Duration = Duration::from_secs(120);

/// Events waiting to be written; more are dropped.
const QUEUE: usize = 1000;

/// How often expired dedupe entries are swept.
const SWEEP: Duration = Duration::from_secs(10);

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// As it should.
    Normal,
    /// Someone should look.
    Warning,
}

impl EventType {
    /// As written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something to tell about an object.
#[derive(Clone, Debug)]
pub struct Event {
    object: ObjectReference,
    event_type: EventType,
    reason: Cow<'static, str>,
    message: String,
    dedupe_values: Vec<String>,
    dedupe_for: Duration,
    limiter: Option<EventLimiter>,
}

impl Event {
    /// About `object`. Without [`dedupe_by`](Self::dedupe_by) it is never taken for a repetition.
    pub fn new(
        object: ObjectReference,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            object,
            event_type,
            reason: reason.into(),
            message: message.into(),
            dedupe_values: Vec::new(),
            dedupe_for: DEFAULT_DEDUPE,
            limiter: None,
        }
    }

    /// Not repeated while these values and the reason stay the same; the message does not count.
    #[must_use]
    pub fn dedupe_by<V: Into<String>>(mut self, values: impl IntoIterator<Item = V>) -> Self {
        self.dedupe_values = values.into_iter().map(Into::into).collect();
        self
    }

    /// Not repeated for this long instead of [`DEFAULT_DEDUPE`].
    #[must_use]
    pub fn dedupe_for(mut self, time: Duration) -> Self {
        self.dedupe_for = time;
        self
    }

    /// Dropped when its kind has used up its rate.
    #[must_use]
    pub fn limited_by(mut self, limiter: &EventLimiter) -> Self {
        self.limiter = Some(limiter.clone());
        self
    }

    /// Why it happened, in one word.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.message
    }

    fn dedupe_key(&self) -> Option<String> {
        let values = &self.dedupe_values;
        (!values.is_empty()).then(|| format!("{}-{}", self.reason.to_lowercase(), values.join("-")))
    }
}

/// A rate shared by all events of one kind in a program.
#[derive(Clone, Debug)]
pub struct EventLimiter(Arc<Mutex<TokenBucket>>);

impl EventLimiter {
    /// This many per second, with bursts.
    pub fn new(per_second: f64, burst: u32) -> Self {
        Self(Arc::new(Mutex::new(TokenBucket::new(per_second, burst))))
    }

    fn allows(&self) -> bool {
        lock(&self.0).try_take(Instant::now())
    }
}

/// What an event says it is about.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// Takes events; clones share what they remember.
#[derive(Clone)]
pub struct Recorder {
    component: Arc<str>,
    shared: Arc<Shared>,
    queue: mpsc::Sender<CoreEvent>,
}

struct Shared {
    clock: SharedClock,
    state: Mutex<State>,
}

struct State {
    /// When what was said may be said again.
    deduped: BTreeMap<String, Instant>,
    swept: Option<Instant>,
    /// The last event's place in time: no two events are given the same name.
    last_nanos: i64,
    ids: Stream,
}

/// A recorder of events of `component`, and the writer that brings them to the server.
pub fn recorder(component: &str, environment: &Environment) -> (Recorder, EventWriter) {
    let (queue, queued) = mpsc::channel(QUEUE);
    let ids = environment.entropy.stream("events");
    let state = State { deduped: BTreeMap::new(), swept: None, last_nanos: 0, ids };
    let shared = Shared { clock: Arc::clone(&environment.clock), state: Mutex::new(state) };
    let recorder = Recorder { component: component.into(), shared: Arc::new(shared), queue };
    (recorder, EventWriter::new(queued, environment))
}

impl Recorder {
    /// The same recorder speaking as another component.
    #[must_use]
    pub fn for_component(&self, component: &str) -> Self {
        Self { component: component.into(), ..self.clone() }
    }

    /// Tells, unless it was told a moment ago or too much is being told.
    pub fn publish(&self, event: Event) {
        if let Some(key) = event.dedupe_key()
            && !lock(&self.shared.state).first_time(key, event.dedupe_for)
        {
            return;
        }
        // After the dedupe, as in Go: an event dropped here is not tried again until its dedupe time is over.
        if event.limiter.as_ref().is_some_and(|limiter| !limiter.allows()) {
            return;
        }
        let now = self.shared.clock.now();
        let name = lock(&self.shared.state).name(event.object.name.as_deref().unwrap_or_default(), now);
        if let Err(dropped) = self.queue.try_send(self.core_event(event, name, now)) {
            let (mpsc::error::TrySendError::Full(event) | mpsc::error::TrySendError::Closed(event)) = dropped;
            tracing::error!(
                reason = event.reason,
                "Unable to record event: too many queued events, dropped event"
            );
        }
    }

    fn core_event(&self, event: Event, name: String, now: Timestamp) -> CoreEvent {
        // Events about cluster-scoped objects live in the default namespace.
        let namespace = event.object.namespace.clone().filter(|namespace| !namespace.is_empty());
        CoreEvent {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: event.object,
            reason: Some(event.reason.into_owned()),
            message: Some(event.message),
            type_: Some(event.event_type.as_str().to_owned()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            source: Some(EventSource { component: Some(self.component.to_string()), host: None }),
            reporting_component: Some(self.component.to_string()),
            reporting_instance: Some(String::new()),
            ..CoreEvent::default()
        }
    }
}

impl State {
    /// Whether this has not been said of late; it is taken as said from now on.
    fn first_time(&mut self, key: String, dedupe_for: Duration) -> bool {
        let now = Instant::now();
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            self.deduped.retain(|_, until| *until >= now);
            self.swept = Some(now);
        }
        if self.deduped.get(&key).is_some_and(|until| *until >= now) {
            return false;
        }
        self.deduped.insert(key, now + dedupe_for);
        true
    }

    fn name(&mut self, object: &str, now: Timestamp) -> String {
        let nanos =
            i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX).max(self.last_nanos.saturating_add(1));
        self.last_nanos = nanos;
        let name = format!("{object}.{nanos:x}");
        // An object's name may be more than an event's can be.
        if dns1123_subdomain_errors(&name).is_empty() { name } else { self.ids.uuid().to_string() }
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
