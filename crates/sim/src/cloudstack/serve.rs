//! The simulated cloud on a socket, for other programs.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::CloudStack;

/// The path of the API.
pub const PATH: &str = "/client/api";
/// Larger requests are refused, as by the real server.
const MAX_BODY: usize = 1 << 20;

/// How many requests are remembered.
const KEPT_REQUESTS: usize = 10_000;

/// A certificate, followed by those that vouch for it, and its key, all in PEM.
///
/// # Errors
///
/// What is wrong with them.
pub fn tls(certificates: &[u8], key: &[u8]) -> Result<TlsAcceptor, String> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(certificates).collect();
    let chain = chain.map_err(|error| format!("the certificate is not in PEM: {error}"))?;
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key is not in PEM: {error}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| format!("the certificate cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until `stop` is ready, over TLS if there is a certificate for it.
pub async fn serve(
    listener: TcpListener,
    cloud: CloudStack,
    tls: Option<TlsAcceptor>,
    stop: impl Future<Output = ()>,
) {
    cloud.keep_last_requests(KEPT_REQUESTS);
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
        let (cloud, tls) = (cloud.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => converse(cloud, stream).await,
                // Who does not trust the certificate goes away.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(cloud, stream).await;
                    }
                }
            }
        });
    }
}

async fn converse<S>(cloud: CloudStack, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| respond(cloud.clone(), request));
    // How a connection ends is its peer's business.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Answers a request. What is lost is not answered at all: the connection ends, as it does on the way to a real server.
async fn respond(cloud: CloudStack, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
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
        Err(lost) => Err(io::Error::other(lost.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::environment::Environment;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_many_requests_the_last_are_remembered() {
        let environment = Environment::seeded("2026-11-15T08:00:00Z".parse().expect("a time"), 1);
        let cloud = CloudStack::new(&environment);
        cloud.keep_last_requests(10);
        for i in 0..100 {
            let address = format!("{PATH}?command=listZones&page={i}");
            let request = Request::get(address).body(Bytes::new()).expect("a request");
            cloud.handle(request).await.expect("an answer");
        }
        let log = cloud.log();
        assert!((10..20).contains(&log.len()), "{}", log.len());
        assert_eq!(log.last().expect("an entry").parameters["page"], "99");
    }
}
