//! A small HTTP server for probes and metrics: short questions, whole answers, stops gracefully.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What is still being answered at the end gets this long.
const GRACE: Duration = Duration::from_secs(5);
/// What may be put anywhere are words.
const LONGEST_TEXT: usize = 1024;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Content type.
    pub content_type: &'static str,
    /// Text.
    pub body: String,
}

impl Answer {
    /// A text.
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    /// Nothing is there.
    pub fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// The answer for a path and query.
    fn get<'a>(&'a self, path: &'a str, query: &'a str) -> BoxFuture<'a, Answer>;

    /// The answer to a text that is put at a path, by somebody who may (`kubectl port-forward` comes from the pod itself).
    fn put(&self, _path: &str, _text: &str) -> Answer {
        only_get()
    }
}

fn only_get() -> Answer {
    Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n")
}

/// A port that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on port {port} ({setting}): {source}; give another port, or stop what uses it")]
pub struct BindError {
    port: u16,
    setting: &'static str,
    source: io::Error,
}

/// Listens on a port of all addresses; `setting` is what the user would change. Port 0 picks one.
pub async fn bind(port: u16, setting: &'static str) -> Result<TcpListener, BindError> {
    // A dual-stack socket takes both; a machine without IPv6 has only the other.
    let addresses: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    TcpListener::bind(&addresses[..]).await.map_err(|source| BindError { port, setting, source })
}

/// Serves until stopped, then finishes what it is answering.
pub async fn serve(listener: TcpListener, handler: Arc<dyn Handler>, stop: CancellationToken) {
    let server = auto::Builder::new(TokioExecutor::new());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: others may close theirs.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let handler = Arc::clone(&handler);
        let service =
            service_fn(move |request: Request<Incoming>| respond(Arc::clone(&handler), peer.ip(), request));
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        let stop = stop.clone();
        connections.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            // How a connection ends is its peer's business.
            let _ = tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let _ = tokio::time::timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

pub(crate) async fn respond<B>(
    handler: Arc<dyn Handler>,
    peer: IpAddr,
    request: Request<B>,
) -> Result<Response<Full<Bytes>>, Infallible>
where
    B: Body,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let answer = match *request.method() {
        Method::GET | Method::HEAD => {
            handler.get(request.uri().path(), request.uri().query().unwrap_or_default()).await
        }
        Method::PUT if !peer.to_canonical().is_loopback() => {
            Answer::text(StatusCode::FORBIDDEN, "only from the pod itself: use kubectl port-forward\n")
        }
        Method::PUT => {
            let path = request.uri().path().to_owned();
            match Limited::new(request.into_body(), LONGEST_TEXT).collect().await {
                Ok(body) => handler.put(&path, &String::from_utf8_lossy(&body.to_bytes())),
                Err(error) => {
                    Answer::text(StatusCode::BAD_REQUEST, format!("cannot read the text: {error}\n"))
                }
            }
        }
        _ => only_get(),
    };
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = answer.status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(answer.content_type));
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    Ok(response)
}
