//! The way to a server: straight, or through the tunnel of an HTTP proxy.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// Connects to servers; clones take the same ways.
#[derive(Clone)]
pub struct Road {
    http: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Road {
    /// Through the proxy that `proxies` has for a server, if it has one.
    pub fn new(http: HttpConnector, proxies: Matcher) -> Self {
        Self { http, proxies: Arc::new(proxies) }
    }
}

impl Service<Uri> for Road {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Uri>::poll_ready(&mut self.http, context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let mut http = self.http.clone();
        match self.proxies.intercept(&to) {
            None => http.call(to).map(|connected| connected.map_err(Into::into)).boxed(),
            Some(proxy) => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), http);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                async move { Service::call(&mut tunnel, with_port(to)?).await.map_err(Into::into) }.boxed()
            }
        }
    }
}

/// The address with the port it means by its scheme: a tunnel that is told none leads to that of https.
fn with_port(to: Uri) -> Result<Uri, http::Error> {
    match to.authority() {
        Some(authority) if to.scheme() == Some(&Scheme::HTTP) && to.port().is_none() => {
            let authority = format!("{authority}:80");
            Uri::builder().scheme(Scheme::HTTP).authority(authority).path_and_query("/").build()
        }
        _ => Ok(to),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_tunnel_leads_to_the_port_that_the_scheme_means() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = format!("http://{}", listener.local_addr().expect("an address"));
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        for (to, tunnel) in [
            ("http://cloud/client/api", "cloud:80"),
            ("http://[::1]/client/api", "[::1]:80"),
            ("http://cloud:8080/client/api", "cloud:8080"),
            ("https://cloud/client/api", "cloud:443"),
        ] {
            let mut road = Road::new(http.clone(), Matcher::builder().all(proxy.clone()).build());
            let call = tokio::spawn(road.call(Uri::from_static(to)));
            let (mut socket, _) = listener.accept().await.expect("a call");
            let mut head = [0; 64];
            let read = socket.read(&mut head).await.expect("a head");
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            assert!(head.starts_with(&format!("CONNECT {tunnel} ")), "{to}: {head}");
            call.abort();
        }
    }
}
