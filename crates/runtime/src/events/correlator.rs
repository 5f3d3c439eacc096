//! What becomes of an event on its way to the server, by the rules of client-go's correlator: the same again is counted on
//! the first one, ten that differ only in their message within ten minutes are combined, and one source may tell 25 things
//! about an object before it is held to one every five minutes.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::lru::{Lru, digest};
use crate::rate_limit::TokenBucket;

const CACHE: usize = 4096;
const SIMILAR_MAX: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
const SPAM_BURST: u32 = 25;
const SPAM_PER_SECOND: f64 = 1.0 / 300.0;

/// Remembers what was told.
pub(super) struct Correlator {
    similar: Lru<Similar>,
    told: Lru<Told>,
    spam: Lru<TokenBucket>,
}

#[derive(Default)]
struct Similar {
    /// Digests of them.
    messages: BTreeSet<u64>,
    last: Option<Instant>,
}

#[derive(Clone, Default)]
struct Told {
    count: i32,
    first_timestamp: Option<Time>,
    name: Option<String>,
}

/// What to do with an event.
pub(super) enum Verdict {
    /// Nothing.
    Skip,
    /// Write it.
    Create(CoreEvent),
    /// Count it on the one already written; write it anew if that is gone.
    Update { event: CoreEvent, patch: Value },
}

impl Correlator {
    pub(super) fn new() -> Self {
        Self { similar: Lru::new(CACHE), told: Lru::new(CACHE), spam: Lru::new(CACHE) }
    }

    pub(super) fn correlate(&mut self, event: CoreEvent, now: Instant) -> Verdict {
        let (mut event, key) = self.aggregate(event, now);
        let told = self.told.entry(&key, Told::default);
        let mut patch = None;
        if told.count > 0 {
            event.metadata.name.clone_from(&told.name);
            event.first_timestamp.clone_from(&told.first_timestamp);
            event.count = Some(told.count.saturating_add(1));
            let mut changed = json!({"count": event.count, "lastTimestamp": event.last_timestamp});
            if let Some(message) = event.message.as_ref().filter(|message| !message.is_empty()) {
                changed["message"] = json!(message);
            }
            patch = Some(changed);
        }
        *told = Told::of(&event);
        let allowed = self
            .spam
            .entry(&spam_key(&event), || TokenBucket::new(SPAM_PER_SECOND, SPAM_BURST))
            .try_take(now);
        match (allowed, patch) {
            (false, _) => Verdict::Skip,
            (true, None) => Verdict::Create(event),
            (true, Some(patch)) => Verdict::Update { event, patch },
        }
    }

    /// The server has this event now.
    pub(super) fn written(&mut self, event: &CoreEvent) {
        *self.told.entry(&event_key(event), Told::default) = Told::of(event);
    }

    /// The event to write and the key it is remembered by: its own, or that of the combined one.
    fn aggregate(&mut self, event: CoreEvent, now: Instant) -> (CoreEvent, String) {
        let key = similar_key(&event);
        let similar = self.similar.entry(&key, Similar::default);
        if similar.last.is_none_or(|last| now.saturating_duration_since(last) > SIMILAR_WITHIN) {
            similar.messages.clear();
        }
        similar.messages.insert(digest(event.message.as_deref().unwrap_or_default()));
        similar.last = Some(now);
        if similar.messages.len() < SIMILAR_MAX {
            let key = event_key(&event);
            return (event, key);
        }
        similar.messages.pop_first();
        let message = event.message.as_deref().unwrap_or_default();
        let combined = CoreEvent {
            metadata: ObjectMeta {
                name: event.metadata.name,
                namespace: event.metadata.namespace,
                ..ObjectMeta::default()
            },
            count: Some(1),
            first_timestamp: event.last_timestamp.clone(),
            last_timestamp: event.last_timestamp,
            involved_object: event.involved_object,
            message: Some(format!("(combined from similar events): {message}")),
            type_: event.type_,
            reason: event.reason,
            source: event.source,
            reporting_component: Some(String::new()),
            reporting_instance: Some(String::new()),
            ..CoreEvent::default()
        };
        (combined, key)
    }
}

impl Told {
    fn of(event: &CoreEvent) -> Self {
        Self {
            count: event.count.unwrap_or(0),
            first_timestamp: event.first_timestamp.clone(),
            name: event.metadata.name.clone(),
        }
    }
}

/// By whom, about what and of which type.
fn spam_key(event: &CoreEvent) -> String {
    let object = &event.involved_object;
    let component = event.source.as_ref().and_then(|source| source.component.as_ref());
    let parts = [
        component,
        object.kind.as_ref(),
        object.namespace.as_ref(),
        object.name.as_ref(),
        object.uid.as_ref(),
        object.api_version.as_ref(),
        event.type_.as_ref(),
    ];
    parts.map(|part| part.map_or("", String::as_str)).join("\u{1f}")
}

fn similar_key(event: &CoreEvent) -> String {
    format!("{}\u{1f}{}", spam_key(event), event.reason.as_deref().unwrap_or_default())
}

fn event_key(event: &CoreEvent) -> String {
    format!("{}\u{1f}{}", similar_key(event), event.message.as_deref().unwrap_or_default())
}
