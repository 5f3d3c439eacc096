//! Watches: a resource's log, followed from a position and narrowed to what a client selected.
//!
//! A watcher owns nothing but its position; events are read from the shared log when there are any, so a slow watcher
//! costs no memory and, once the log has run away from it, is told so (410) and starts over. A watch of a version that is
//! served no longer ends. Waiting is done on tokio's clock, so a paused one works.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::answer::Answer;
use crate::bell::Listener;
use crate::body::Body;
use crate::field_error::FieldError;
use crate::list::{invalid_options, revision};
use crate::negotiate::Form;
use crate::object::Stored;
use crate::registry::Resource;
use crate::request::Query;
use crate::selection::Selection;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Change, Event, TooOld, range};

/// How often a quiet watch tells its position.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// How long before its end a watch tells its position a last time.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// How long a watch lasts that does not say; kube-apiserver's least.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// How many events are taken from the log at a time.
const BATCH_EVENTS: usize = 512;

/// Answers a watch.
pub(crate) fn watch(
    server: &ApiServer,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    query: &Query,
    form: Form,
) -> Result<Answer, ApiError> {
    check_options(query)?;
    let selection = Selection::parse(query, resource, &server.read(|state| Arc::clone(&state.registry)))?;
    let timeout = query.integer("timeoutSeconds").map_err(ApiError::bad_request)?;
    let timeout = timeout.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    let asked = revision(query).map_err(ApiError::internal)?.unwrap_or(0);
    // Without a position a watch starts with what is there, unless it says otherwise.
    let initial = match query.get("sendInitialEvents") {
        Some(_) => query.flag("sendInitialEvents"),
        None => asked == 0,
    };
    let bookmarks = query.flag("allowWatchBookmarks");
    let started = Instant::now();
    let (listener, unserved, position, pending) = server.read(|state| {
        let listener = state.store.subscribe(resource.storage);
        let unserved = state.unserved.listen();
        let current = state.store.revision();
        let pending: VecDeque<Pending> = if initial {
            let objects = range(state.store.objects(), resource.storage, namespace, None);
            let selected = objects.filter(|(key, object)| selection.matches_key(key, object));
            let end = bookmarks.then_some(Pending::InitialEnd(current));
            selected.map(|(_, object)| Pending::Initial(Arc::clone(object))).chain(end).collect()
        } else {
            VecDeque::new()
        };
        let position = if initial || asked == 0 { current } else { asked };
        (listener, unserved, position, pending)
    });
    let ends = started + timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let watcher = Watcher {
        server: server.clone(),
        resource: Arc::clone(resource),
        prefix: namespace.map(|namespace| format!("{namespace}/")),
        selection,
        metadata_only: form != Form::Whole,
        bookmarks,
        listener,
        unserved,
        position,
        pending,
        ends,
        next_bookmark: next_bookmark(started, ends),
        over: false,
    };
    Ok(Answer {
        code: 200,
        content_type: "application/json",
        body: Body::stream(watcher.into_stream()),
        warnings: Vec::new(),
        retry_after_seconds: None,
    })
}

/// Something to be told before the log is followed.
enum Pending {
    Initial(Arc<Stored>),
    InitialEnd(u64),
}

struct Watcher {
    server: ApiServer,
    resource: Arc<Resource>,
    /// What the path of an object in the watched namespace starts with.
    prefix: Option<String>,
    selection: Selection,
    metadata_only: bool,
    bookmarks: bool,
    listener: Listener,
    unserved: Listener,
    /// The revision up to which everything has been told.
    position: u64,
    pending: VecDeque<Pending>,
    ends: Instant,
    next_bookmark: Instant,
    over: bool,
}

/// The next minute's bookmark, or the last one shortly before the end.
fn next_bookmark(now: Instant, ends: Instant) -> Instant {
    let last = ends.checked_sub(LAST_BOOKMARK).filter(|last| *last > now).unwrap_or(ends);
    last.min(now + BOOKMARK_PERIOD)
}

impl Watcher {
    fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, |mut watcher| async move {
            let chunk = watcher.next_chunk().await?;
            Some((chunk, watcher))
        })
    }

    /// The next events in wire form, `None` at the end.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            let mut out = Vec::new();
            self.tell_pending(&mut out);
            if out.is_empty() {
                self.listener.catch_up();
                self.tell_events(&mut out);
            }
            if !out.is_empty() {
                return Some(out.into());
            }
            let wake = self.ends.min(if self.bookmarks { self.next_bookmark } else { self.ends });
            tokio::select! {
                biased;
                () = self.listener.changed() => {}
                () = self.unserved.changed() => self.over = !self.is_served(),
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    if now >= self.ends {
                        return None;
                    }
                    self.next_bookmark = next_bookmark(now, self.ends);
                    self.tell_bookmark(self.position, false, &mut out);
                    return Some(out.into());
                }
            }
        }
    }

    /// Whether somebody who asked now would be answered.
    fn is_served(&self) -> bool {
        let Resource { group, version, plural, .. } = &*self.resource;
        self.server.read(|state| state.registry.find(group, version, plural).is_some())
    }

    fn tell_pending(&mut self, out: &mut Vec<u8>) {
        for pending in self.pending.drain(..self.pending.len().min(BATCH_EVENTS)).collect::<Vec<_>>() {
            match pending {
                Pending::Initial(object) => self.tell("ADDED", &object, object.revision, out),
                Pending::InitialEnd(revision) => self.tell_bookmark(revision, true, out),
            }
        }
    }

    fn tell_events(&mut self, out: &mut Vec<u8>) {
        let (events, current) = self.server.read(|state| {
            let events = state.store.events_after(self.resource.storage, self.position, BATCH_EVENTS);
            (events, state.store.revision())
        });
        match events {
            Err(TooOld) => {
                self.over = true;
                let message = format!("too old resource version: {} ({current})", self.position);
                let status = ApiError::expired(message).to_status();
                out.extend_from_slice(format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").as_bytes());
            }
            Ok(events) => {
                let all = events.len() < BATCH_EVENTS;
                for event in &events {
                    self.position = self.position.max(event.revision);
                    self.tell_event(event, out);
                }
                if all {
                    self.position = self.position.max(current);
                }
            }
        }
    }

    fn tell_event(&self, event: &Event, out: &mut Vec<u8>) {
        if self.prefix.as_ref().is_some_and(|prefix| !event.path.starts_with(prefix.as_str())) {
            return;
        }
        let selects = |object: &Arc<Stored>| self.selection.matches(&event.path, object);
        let (was, is) = match event.change {
            Change::Added => (false, selects(&event.object)),
            Change::Modified => (event.previous.as_ref().is_some_and(selects), selects(&event.object)),
            Change::Deleted => (selects(&event.object), false),
        };
        match (was, is) {
            (false, true) => self.tell("ADDED", &event.object, event.revision, out),
            (true, true) => self.tell("MODIFIED", &event.object, event.revision, out),
            // What is told is the object as the client last knew it, under the revision of its disappearance.
            (true, false) => {
                let known = event.previous.as_ref().unwrap_or(&event.object);
                self.tell("DELETED", known, event.revision, out);
            }
            (false, false) => {}
        }
    }

    fn tell(&self, kind: &str, object: &Stored, revision: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        if self.metadata_only {
            object.write_metadata(revision, out);
        } else {
            object.write(&self.resource, false, revision, out);
        }
        out.extend_from_slice(b"}\n");
    }

    fn tell_bookmark(&self, revision: u64, initial_end: bool, out: &mut Vec<u8>) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, api_version) = if self.metadata_only {
            ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned())
        } else {
            (self.resource.kind.as_str(), self.resource.api_version())
        };
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        out.extend_from_slice(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").as_bytes());
    }
}

fn check_options(query: &Query) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let matching = query.get("resourceVersionMatch");
    let initial = query.get("sendInitialEvents").is_some();
    let path = "resourceVersionMatch";
    if initial && matches!(matching, None | Some("Exact")) {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(path, why));
    }
    if let Some(matching) = matching {
        if !initial {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(path, why));
        }
        if matching != "NotOlderThan" {
            errors.push(FieldError::not_supported(path, &json!(matching), &["NotOlderThan"]));
        }
    }
    if query.get("continue").is_some() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(FieldError::forbidden(path, why));
    }
    invalid_options(&errors)
}
