//! The way to a server: straight, or through the tunnel of an HTTP proxy.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Uri;
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
                async move { Service::call(&mut tunnel, to).await.map_err(Into::into) }.boxed()
            }
        }
    }
}
