//! The simulated cloud on a socket, for other programs.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

use super::CloudStack;

/// The path of the API.
pub const PATH: &str = "/client/api";
/// Larger requests are refused, as by the real server.
const MAX_BODY: usize = 1 << 20;

/// Serves until `stop` is ready.
pub async fn serve(listener: TcpListener, cloud: CloudStack, stop: impl Future<Output = ()>) {
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, mostly: others may close theirs.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let cloud = cloud.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| respond(cloud.clone(), request));
            // How a connection ends is its peer's business.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn respond(cloud: CloudStack, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    let (parts, body) = request.into_parts();
    if parts.uri.path().trim_end_matches('/') != PATH {
        return Ok(plain(StatusCode::NOT_FOUND, "the API is at /client/api\n"));
    }
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n"));
    };
    match cloud.handle(Request::from_parts(parts, body.to_bytes())).await {
        Ok(response) => Ok(response.map(Full::new)),
        Err(_) => Ok(plain(StatusCode::BAD_GATEWAY, "lost\n")),
    }
}
