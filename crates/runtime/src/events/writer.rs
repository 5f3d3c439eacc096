//! Brings events to the server, one after the other, in the order they were told.

use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event as CoreEvent;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::correlator::{Correlator, Verdict};
use crate::entropy::Stream;
use crate::environment::Environment;
use crate::error::ApiError;
use crate::sync::lock;

/// Attempts to reach the server for one event.
const TRIES: u32 = 12;
const BETWEEN_TRIES: Duration = Duration::from_secs(10);
/// What is still queued at the end gets this long.
const FLUSH: Duration = Duration::from_secs(2);

/// Writes what a recorder takes.
pub struct EventWriter {
    queued: mpsc::Receiver<CoreEvent>,
    correlator: Correlator,
    jitter: Mutex<Stream>,
}

impl EventWriter {
    pub(super) fn new(queued: mpsc::Receiver<CoreEvent>, environment: &Environment) -> Self {
        let jitter = Mutex::new(environment.entropy.stream("events/retry"));
        Self { queued, correlator: Correlator::new(), jitter }
    }

    /// Writes until stopped, then what is queued.
    pub async fn run(mut self, client: Client, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = self.queued.recv() => {
                    let Some(event) = event else { return };
                    self.record(&client, event, &stop).await;
                }
            }
        }
        let _ = tokio::time::timeout(FLUSH, async {
            while let Ok(event) = self.queued.try_recv() {
                self.record(&client, event, &stop).await;
            }
        })
        .await;
    }

    /// What was told and not written, for tests without a server.
    pub fn drain(&mut self) -> Vec<CoreEvent> {
        std::iter::from_fn(|| self.queued.try_recv().ok()).collect()
    }

    async fn record(&mut self, client: &Client, event: CoreEvent, stop: &CancellationToken) {
        let (mut event, mut patch) = match self.correlator.correlate(event, Instant::now()) {
            Verdict::Skip => return,
            Verdict::Create(event) => (event, None),
            Verdict::Update { event, patch } => (event, Some(patch)),
        };
        let api: Api<CoreEvent> =
            Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or("default"));
        for attempt in 1..=TRIES {
            let written = match &patch {
                Some(patch) => {
                    let name = event.metadata.name.as_deref().unwrap_or_default();
                    // Nothing but plain fields: a merge is the same as the strategic merge of Go's recorder, and every server knows it.
                    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
                }
                None => api.create(&PostParams::default(), &event).await,
            };
            match written {
                Ok(written) => {
                    self.correlator.written(&written);
                    return;
                }
                // The event to count on has expired: this one takes its place.
                Err(kube::Error::Api(status)) if status.code == 404 && patch.is_some() => {
                    event.metadata.resource_version = None;
                    patch = None;
                    continue;
                }
                Err(kube::Error::Api(status)) if status.code == 409 => return,
                Err(error @ kube::Error::Api(_)) => {
                    tracing::error!(error = %ApiError::from(error), reason = event.reason, "Server rejected event (will not retry!)");
                    return;
                }
                Err(error) if attempt == TRIES || stop.is_cancelled() => {
                    tracing::error!(error = %ApiError::from(error), reason = event.reason, "Unable to write event (retry limit exceeded!)");
                    return;
                }
                Err(error) => {
                    tracing::error!(error = %ApiError::from(error), reason = event.reason, "Unable to write event (may retry after sleeping)");
                }
            }
            // The first pause is random so that clients do not come back all at once.
            let pause = if attempt == 1 {
                BETWEEN_TRIES.mul_f64(lock(&self.jitter).fraction())
            } else {
                BETWEEN_TRIES
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
