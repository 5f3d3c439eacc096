//! A client whose credentials can be exchanged while it is in use: what is sent from then on goes by the new ones, and a watch whose
//! connection the server ends is opened by them again. Where new credentials come from is for others to know.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tower::Service;

use crate::sync::lock;

/// Says which client another one sends its requests by. Clones are the same switch.
#[derive(Clone)]
pub struct Switch(Arc<Mutex<Client>>);

/// A client that sends its requests by `first`, and by others as the switch says.
pub fn renewable(first: Client) -> (Client, Switch) {
    let namespace = first.default_namespace().to_owned();
    let switch = Switch(Arc::new(Mutex::new(first)));
    (Client::new(Through(switch.clone()), namespace), switch)
}

impl Switch {
    /// Sends what comes from now on by this client.
    pub fn point_at(&self, client: Client) {
        *lock(&self.0) = client;
    }
}

struct Through(Switch);

impl Service<Request<Body>> for Through {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, kube::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // The client that is asked waits for itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = lock(&self.0.0).clone();
        async move { client.send(request).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers with its name, and a client of it.
    fn server(name: &'static str) -> Client {
        let answer = move |request: Request<Body>| async move {
            let text = format!("{name} {}", request.uri().path());
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(text.into_bytes())))
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test]
    async fn requests_go_by_the_credentials_of_the_moment() {
        let (client, switch) = renewable(server("old"));
        let ask = || async {
            let request = Request::get("/version").body(Vec::new()).expect("a request");
            client.request_text(request).await.expect("an answer")
        };
        assert_eq!(ask().await, "old /version");
        switch.point_at(server("new"));
        assert_eq!(ask().await, "new /version");
    }
}
