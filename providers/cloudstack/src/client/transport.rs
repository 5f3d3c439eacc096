//! The road to the server: takes an HTTP request, gives back an HTTP answer. Over a socket in earnest ([`super::http`]), into
//! a simulator in tests; nothing above it can tell.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};

/// Carries requests.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request and waits for the whole answer.
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, TransportError>>;

    /// Whether it makes sure who answers, where there is a certificate to tell.
    fn checks_certificates(&self) -> bool {
        true
    }
}

/// Why there is no answer. What matters is whether the request may have been carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// It never left.
    #[error("cannot reach the server: {0}")]
    NotSent(String),
    /// It may have arrived.
    #[error("no answer from the server: {0}")]
    NoAnswer(String),
}
