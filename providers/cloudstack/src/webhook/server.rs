//! HTTPS for reviews: two paths, whole bodies, a limit on everything a caller could do without end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::keeper::Current;
use super::review::{self, Review};
use crate::nodeclass::CloudStackNodeClass;

/// Where NodeClasses are checked, and where defaults are filled in.
const VALIDATE: &str = "/validate";
const DEFAULT: &str = "/default";
/// An object and the one before it are less than half of this each.
const MAX_BODY: usize = 8 << 20;
/// How long a caller may take for a handshake, for its first request, for a request's head, and to say that it is still there.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a caller may take for a request in all; the API server does not wait longer than the chart's `timeoutSeconds`.
const MAX_REVIEW: Duration = Duration::from_secs(30);
/// How many may call at once: API servers keep a connection or two each.
const MAX_CONNECTIONS: usize = 128;
/// What is still being answered at the end gets this long.
const GRACE: Duration = Duration::from_secs(5);

/// What is known to lead nowhere in a NodeClass, without asking anybody.
pub(crate) type Doubts = Arc<dyn Fn(CloudStackNodeClass) -> BoxFuture<'static, Vec<String>> + Send + Sync>;

/// Answers reviews.
pub(crate) struct Reviewer {
    pub(crate) max_user_data: usize,
    pub(crate) doubts: Doubts,
}

impl Reviewer {
    /// The answer to a review that was sent to a path; with 400 what is wrong with it.
    pub(crate) async fn answer(&self, path: &str, body: &[u8]) -> (StatusCode, String) {
        if path != VALIDATE && path != DEFAULT {
            return (StatusCode::NOT_FOUND, format!("there are {VALIDATE} and {DEFAULT}\n"));
        }
        let review = match Review::read(body) {
            Ok(review) => review,
            Err(fault) => return (StatusCode::BAD_REQUEST, format!("{fault}\n")),
        };
        let answer = match review.changed() {
            None => review.allow(&[]),
            Some(object) if path == DEFAULT => review.patch(&review::defaults(object)),
            Some(object) => match review::validate(object, self.max_user_data) {
                Ok(class) => review.allow(&(self.doubts)(class).await),
                Err(why) => review.refuse(&why),
            },
        };
        (StatusCode::OK, answer.to_string())
    }
}

/// Serves until stopped, each connection with the certificate that is current when it comes; none before there is one.
pub(crate) async fn serve(
    listener: TcpListener,
    current: watch::Receiver<Current>,
    reviewer: Arc<Reviewer>,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            next = next => next,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, mostly: others may close theirs.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let config = current.borrow().clone();
        if let Some(config) = config {
            let acceptor = TlsAcceptor::from(config);
            let (reviewer, stop) = (Arc::clone(&reviewer), stop.clone());
            connections.spawn(async move {
                converse(stream, &acceptor, reviewer, stop).await;
                drop(place);
            });
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let _ = tokio::time::timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

/// How a connection ends is its peer's business.
async fn converse<S>(stream: S, acceptor: &TlsAcceptor, reviewer: Arc<Reviewer>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await else { return };
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    server.http2().timer(TokioTimer::new()).keep_alive_interval(PATIENCE).keep_alive_timeout(PATIENCE);
    let asked = Arc::new(Notify::new());
    // Before a connection says which HTTP it speaks nothing else limits it.
    let silent = {
        let asked = Arc::clone(&asked);
        async move {
            if tokio::time::timeout(PATIENCE, asked.notified()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        }
    };
    let service = service_fn(move |request| {
        asked.notify_one();
        respond(Arc::clone(&reviewer), request)
    });
    let connection = server.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        _ = connection.as_mut() => {}
        () = silent => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn respond(
    reviewer: Arc<Reviewer>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match tokio::time::timeout(MAX_REVIEW, read_and_answer(&reviewer, request)).await {
        Ok(answer) => answer,
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the request takes too long\n".to_owned()),
    };
    let kind = if status == StatusCode::OK { "application/json" } else { "text/plain; charset=utf-8" };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

async fn read_and_answer(reviewer: &Reviewer, request: Request<Incoming>) -> (StatusCode, String) {
    if request.method() != Method::POST {
        return (StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned());
    }
    let (parts, body) = request.into_parts();
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => reviewer.answer(parts.uri.path(), &body.to_bytes()).await,
        Err(error) => (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")),
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
