//! The road from a client to the server: a tower service that collects the request and commits it under an actor's name.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use karpenter_apiserver::Body;

use crate::cluster::Cluster;

/// A client's end of the road. Nothing goes wrong on it.
#[derive(Clone)]
pub(crate) struct Wire {
    cluster: Cluster,
    actor: Arc<str>,
}

impl Wire {
    pub(crate) fn new(cluster: Cluster, actor: &str) -> Self {
        Self { cluster, actor: actor.into() }
    }

    pub(crate) fn actor(&self) -> &Arc<str> {
        &self.actor
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) async fn send(&self, request: Request<Bytes>) -> Response<Body> {
        self.cluster.commit(&self.actor, request).await
    }
}

/// Reads a client's request into memory.
pub(crate) async fn collect(request: Request<kube::client::Body>) -> Request<Bytes> {
    let (parts, body) = request.into_parts();
    // The bodies of our own clients are in memory already and cannot fail.
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Request::from_parts(parts, bytes)
}

impl tower::Service<Request<kube::client::Body>> for Wire {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let wire = self.clone();
        Box::pin(async move { Ok(wire.send(collect(request).await).await) })
    }
}
