//! A watch on which things go wrong: it lags, repeats itself, is told that it is too late, breaks off.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use karpenter_apiserver::Listener;
use tokio::time::Instant;

use super::service::{Body, BoxError, broken, status};
use super::{Fault, Faults, lens};
use crate::cluster_api::v1beta1;
use crate::gate::Gate;

/// What was drawn for a watch when it began.
pub(super) struct Conditions {
    /// After how long it ends.
    pub(super) ends: Option<Duration>,
    /// How much it lags.
    pub(super) lag: Option<Duration>,
    /// Whether it is told that its position is too old, after its first events.
    pub(super) gone: bool,
    /// Whether what it shows is converted to an older version.
    pub(super) older: bool,
}

struct Stream {
    events: karpenter_apiserver::Body,
    ends: Option<Instant>,
    lag: Option<Duration>,
    gone: bool,
    older: bool,
    faults: Faults,
    gate: Gate,
    outages: Listener,
    ready: VecDeque<Bytes>,
    over: bool,
    /// Puts on the tape that it repeats itself; once is enough.
    repeats: Option<Box<dyn FnOnce() + Send>>,
}

/// The body of a watch under these conditions.
pub(super) fn body(
    events: karpenter_apiserver::Body,
    conditions: Conditions,
    faults: Faults,
    gate: Gate,
    repeats: impl FnOnce() + Send + 'static,
) -> Body {
    let outages = faults.outages();
    let stream = Stream {
        events,
        ends: conditions.ends.map(|after| Instant::now() + after),
        lag: conditions.lag,
        gone: conditions.gone,
        older: conditions.older,
        faults,
        gate,
        outages,
        ready: VecDeque::new(),
        over: false,
        repeats: Some(Box::new(repeats)),
    };
    let chunks = stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((chunk.map(Frame::data), stream))
    });
    StreamBody::new(chunks).boxed_unsync()
}

/// What happens next on a watch.
enum Next {
    Dead,
    Broken,
    Ended,
    Events(Option<Bytes>),
}

impl Stream {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        if let Some(chunk) = self.ready.pop_front() {
            return Some(Ok(chunk));
        }
        if self.over {
            return None;
        }
        let ends = self.ends.filter(|_| self.faults.are_on());
        let end = async {
            match ends {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let next = tokio::select! {
            biased;
            () = self.gate.died() => Next::Dead,
            () = self.outages.changed() => Next::Broken,
            frame = self.events.frame() => {
                // The server's streams carry data only and never fail.
                Next::Events(frame.and_then(|frame| frame.ok()?.into_data().ok()))
            }
            () = end => Next::Ended,
        };
        match next {
            Next::Dead => std::future::pending().await,
            Next::Broken => {
                self.over = true;
                Some(Err(broken(io::ErrorKind::ConnectionReset)))
            }
            Next::Ended => {
                // Sometimes in good order, sometimes not.
                self.over = true;
                if self.faults.coin() { Some(Err(broken(io::ErrorKind::UnexpectedEof))) } else { None }
            }
            Next::Events(None) => None,
            Next::Events(Some(chunk)) => {
                if let Some(lag) = self.lag.filter(|_| self.faults.are_on()) {
                    tokio::time::sleep(lag).await;
                    self.gate.pass().await;
                }
                let chunk = if self.older { lens::events(&v1beta1::Conversion, &chunk) } else { chunk };
                let chunk = match self.faults.lens() {
                    Some(lens) => lens::events(&*lens, &chunk),
                    None => chunk,
                };
                Some(Ok(self.distort(chunk)))
            }
        }
    }

    /// Repeats events, and ends in "too old" if that was drawn.
    fn distort(&mut self, chunk: Bytes) -> Bytes {
        let mut out = BytesMut::with_capacity(chunk.len());
        for line in chunk.split_inclusive(|byte| *byte == b'\n') {
            out.extend_from_slice(line);
            let repeatable =
                line.starts_with(b"{\"type\":\"MODIFIED\"") || line.starts_with(b"{\"type\":\"DELETED\"");
            if repeatable && self.faults.strikes(Fault::DuplicateEvent) {
                out.extend_from_slice(line);
                if let Some(tell) = self.repeats.take() {
                    tell();
                }
            }
        }
        if self.gone && self.faults.are_on() {
            self.over = true;
            let status = status(410, "Expired", "too old resource version");
            self.ready.push_back(format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into());
        }
        out.freeze()
    }
}
