//! The road from a client to the server on which things go wrong.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use serde_json::json;

use super::{Fault, Faults, Lens, Refusal, lens, watch};
use crate::chance::Span;
use crate::cluster_api::v1beta1;
use crate::gate::Gate;
use crate::wire::{Wire, collect};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

const DELAY: Span = Span::millis(1, 2000);
/// Shorter than a lease and longer.
const OUTAGE: Span = Span::secs(2, 40);

/// A client's end of a road on which things go wrong.
#[derive(Clone)]
pub(crate) struct FaultyWire {
    wire: Wire,
    faults: Faults,
    gate: Gate,
}

impl FaultyWire {
    pub(crate) fn new(wire: Wire, faults: Faults, gate: Gate) -> Self {
        Self { wire, faults, gate }
    }

    /// Draws whether a fault happens to a request; the tape tells.
    fn strikes(&self, fault: Fault, request: &str) -> bool {
        let strikes = self.faults.strikes(fault);
        if strikes {
            self.note(fault, request);
        }
        strikes
    }

    fn note(&self, fault: Fault, request: &str) {
        let deed = format!("fault {fault} on {request}");
        self.wire.cluster().record(self.wire.actor(), deed, "injected".to_owned(), &[]);
    }

    async fn delay(&self, request: &str) {
        if self.strikes(Fault::Latency, request) {
            let delay = self.faults.duration(&DELAY);
            tokio::time::sleep(delay).await;
            self.gate.pass().await;
        }
    }

    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Body>, BoxError> {
        self.gate.pass().await;
        let lens = self.faults.lens();
        if let Some(lens) = &lens {
            lens.sent(&mut request);
        }
        let older = v1beta1::is_asked_for(&request);
        if older {
            v1beta1::Conversion.sent(&mut request);
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let what = format!("{} {}", request.method(), request.uri().path());
        if !self.faults.is_cut_off() && self.strikes(Fault::Outage, &what) {
            let period = self.faults.duration(&OUTAGE);
            self.faults.cut_off(period);
        }
        if self.faults.is_cut_off() {
            return Err(broken(io::ErrorKind::ConnectionRefused));
        }
        match self.faults.refusal() {
            Some(Refusal::Unauthorized) => return Ok(refusal(401, "Unauthorized", "Unauthorized")),
            Some(Refusal::Forbidden) => {
                return Ok(refusal(403, "Forbidden", "the user cannot do this in the namespace"));
            }
            None => {}
        }
        if reads && is_watch(&request) {
            return self.watch(request, &what, older).await;
        }
        self.delay(&what).await;
        let changes = matches!(*request.method(), Method::PUT | Method::PATCH);
        if changes && self.strikes(Fault::Conflict, &what) {
            return Ok(refusal(
                409,
                "Conflict",
                "the object has been modified; please apply your changes to the latest version and try again",
            ));
        }
        if self.strikes(Fault::TooManyRequests, &what) {
            return Ok(refusal(
                429,
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later",
            ));
        }
        if self.strikes(Fault::InternalError, &what) {
            return Ok(refusal(500, "InternalError", "etcdserver: leader changed"));
        }
        let late = self.strikes(Fault::GatewayTimeout, &what);
        if late && self.faults.coin() {
            return Ok(refusal(
                504,
                "Timeout",
                "the server was unable to return a response in the time allotted",
            ));
        }
        if !reads {
            self.gate.before_write().await;
        }
        let answer = self.wire.send(request).await;
        if !reads {
            self.gate.after_write().await;
        }
        if late {
            return Ok(refusal(
                504,
                "Timeout",
                "the server was unable to return a response in the time allotted",
            ));
        }
        if !reads && self.strikes(Fault::LostReply, &what) {
            return Err(broken(io::ErrorKind::ConnectionReset));
        }
        self.delay(&what).await;
        let conversion = older.then_some(&v1beta1::Conversion as &dyn Lens);
        let lenses: Vec<&dyn Lens> =
            conversion.into_iter().chain(lens.as_deref().map(|lens| lens as &dyn Lens)).collect();
        match lenses.as_slice() {
            [] => Ok(answer.map(whole)),
            lenses => Ok(seen_through(lenses, answer).await),
        }
    }

    /// Watches; what is shown is converted to an older version, if it was asked for in that.
    async fn watch(
        &self,
        request: Request<Bytes>,
        what: &str,
        older: bool,
    ) -> Result<Response<Body>, BoxError> {
        let gone = self.strikes(Fault::Gone, what);
        // The server tells so either at once or inside the stream.
        if gone && self.faults.coin() {
            return Ok(refusal(410, "Expired", "The resourceVersion for the provided watch is too old."));
        }
        let answer = self.wire.send(request).await;
        if !answer.status().is_success() {
            return Ok(answer.map(whole));
        }
        let ends = self.strikes(Fault::WatchDrop, what).then(|| self.faults.duration(&Span::secs(1, 180)));
        let lag =
            self.strikes(Fault::StaleWatch, what).then(|| self.faults.duration(&Span::millis(200, 15_000)));
        let conditions = watch::Conditions { ends, lag, gone, older };
        let repeats = {
            let (wire, what) = (self.clone(), what.to_owned());
            move || wire.note(Fault::DuplicateEvent, &what)
        };
        Ok(answer.map(|body| watch::body(body, conditions, self.faults.clone(), self.gate.clone(), repeats)))
    }
}

/// An answer as lenses show it, one behind the other.
async fn seen_through(lenses: &[&dyn Lens], answer: Response<karpenter_apiserver::Body>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(never) => match never {},
    };
    parts.headers.remove(CONTENT_LENGTH);
    let body = Full::new(lenses.iter().fold(body, |body, lens| lens::answer(*lens, &body)));
    Response::from_parts(parts, body.map_err(|never| match never {}).boxed_unsync())
}

fn is_watch(request: &Request<Bytes>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
}

fn whole(body: karpenter_apiserver::Body) -> Body {
    body.map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn broken(kind: io::ErrorKind) -> BoxError {
    Box::new(io::Error::from(kind))
}

/// The server's way of saying no.
pub(super) fn status(code: u16, reason: &str, message: &str) -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn refusal(code: u16, reason: &str, message: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(status(code, reason, message).to_string()));
    let mut answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if code == 429 {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

impl tower::Service<Request<kube::client::Body>> for FaultyWire {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let wire = self.clone();
        Box::pin(async move { wire.send(collect(request).await).await })
    }
}
