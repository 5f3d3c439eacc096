//! The API client: throttled on our side as Go's is, measured under its names.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use kube::client::ClientBuilder;
use kube::{Client, Config};
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::metrics::{CounterVec, HistogramVec, Registry, exponential_buckets};
use crate::rate_limit::TokenBucket;
use crate::sync::lock;

/// client-go's limits where none are given.
const DEFAULT_QPS: f64 = 5.0;
const DEFAULT_BURST: u32 = 10;

/// Requests per second, and at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In the long run; zero means client-go's default, negative no limit.
    pub qps: i64,
    /// At once; not positive means client-go's default.
    pub burst: i64,
}

/// A client of the cluster in `config`, named `karpenter/<version>`, throttled and measured.
pub fn build(
    mut config: Config,
    version: &str,
    limits: Limits,
    registry: &Registry,
) -> Result<Client, kube::Error> {
    // Controllers retry what fails, by their own rules; a second layer of retries would only hide it.
    config.default_retry = false;
    let agent = HeaderValue::from_str(&format!("karpenter/{version}"));
    config
        .headers
        .push((header::USER_AGENT, agent.unwrap_or_else(|_| HeaderValue::from_static("karpenter"))));
    let stack = ClientBuilder::try_from(config)?;
    Ok(stack.with_layer(&MeasureLayer::new(registry)).with_layer(&ThrottleLayer::new(limits)).build())
}

/// Holds requests back to a rate.
#[derive(Clone)]
pub struct ThrottleLayer(Option<Arc<Mutex<TokenBucket>>>);

impl ThrottleLayer {
    /// To these limits, shared by all clones.
    pub fn new(limits: Limits) -> Self {
        if limits.qps < 0 {
            return Self(None);
        }
        let qps = if limits.qps == 0 { DEFAULT_QPS } else { limits.qps as f64 };
        let burst = u32::try_from(limits.burst).ok().filter(|burst| *burst > 0).unwrap_or(DEFAULT_BURST);
        Self(Some(Arc::new(Mutex::new(TokenBucket::new(qps, burst)))))
    }
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = Throttle<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Throttle { inner: Arc::new(tokio::sync::Mutex::new(inner)), bucket: self.0.clone() }
    }
}

/// See [`ThrottleLayer`].
pub struct Throttle<S> {
    inner: Arc<tokio::sync::Mutex<S>>,
    bucket: Option<Arc<Mutex<TokenBucket>>>,
}

impl<S, B, R> Service<Request<B>> for Throttle<S>
where
    S: Service<Request<B>, Response = R> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
{
    type Response = R;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<R, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let wait =
            self.bucket.as_ref().map(|bucket| lock(bucket).reserve(Instant::now())).unwrap_or_default();
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let answer = {
                let mut inner = inner.lock().await;
                std::future::poll_fn(|context| inner.poll_ready(context)).await?;
                inner.call(request)
            };
            answer.await
        })
    }
}

/// Counts requests and their latency.
#[derive(Clone)]
pub struct MeasureLayer {
    total: CounterVec,
    duration: HistogramVec,
}

impl MeasureLayer {
    /// Into this registry.
    pub fn new(registry: &Registry) -> Self {
        // Registered as in controller-runtime, and without series as in Go Karpenter, which counts in client_go_request_total.
        registry.counter("rest_client_requests_total", "API requests", &["code", "method", "host"]);
        Self {
            total: registry.counter(
                "client_go_request_total",
                "API requests by status code and method",
                &["code", "method"],
            ),
            duration: registry.histogram(
                "client_go_request_duration_seconds",
                "Seconds an API request takes, by verb and resource",
                &["verb", "group", "version", "kind", "subresource"],
                &exponential_buckets(0.001, 1.5, 20),
            ),
        }
    }
}

impl<S> Layer<S> for MeasureLayer {
    type Service = Measure<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Measure { inner, metrics: self.clone() }
    }
}

/// See [`MeasureLayer`].
pub struct Measure<S> {
    inner: S,
    metrics: MeasureLayer,
}

impl<S, B, R> Service<Request<B>> for Measure<S>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.method().clone();
        let target = Target::of(&method, request.uri());
        let metrics = self.metrics.clone();
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code =
                answer.as_ref().map_or("<error>".to_owned(), |answer| answer.status().as_u16().to_string());
            metrics.total.inc(&[&code, method.as_str()]);
            if let Some(target) = target {
                metrics.duration.observe(&target.labels(), started.elapsed().as_secs_f64());
            }
            answer
        })
    }
}

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
}

impl Target {
    /// Nothing of requests that are not about resources, and of watches, whose duration says nothing.
    fn of(method: &Method, uri: &Uri) -> Option<Self> {
        if uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true")) {
            return None;
        }
        let mut parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let group = match (!parts.is_empty()).then(|| parts.remove(0))? {
            "api" => "",
            "apis" if !parts.is_empty() => parts.remove(0),
            _ => return None,
        };
        let version = (!parts.is_empty()).then(|| parts.remove(0))?;
        if parts.first() == Some(&"namespaces") && parts.len() > 2 {
            parts.drain(..2);
        }
        let resource = *parts.first()?;
        let named = parts.len() > 1;
        let verb = match (method, named) {
            (&Method::POST, _) | (&Method::PUT, false) => "CREATE",
            (&Method::GET, false) => "LIST",
            (&Method::PUT, true) => "UPDATE",
            (method, _) => method.as_str(),
        };
        Some(Self {
            verb: verb.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            subresource: parts.get(2).copied().unwrap_or_default().to_owned(),
        })
    }

    fn labels(&self) -> [&str; 5] {
        [&self.verb, &self.group, &self.version, &self.resource, &self.subresource]
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    #[test]
    fn requests_are_named_by_what_they_do_to_what() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/pods?limit=5", "LIST||v1|pods|"),
            ("GET", "/api/v1/namespaces/ns/pods/p", "GET||v1|pods|"),
            ("POST", "/api/v1/namespaces/ns/pods/p/eviction", "CREATE||v1|pods|eviction"),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l",
                "UPDATE|coordination.k8s.io|v1|leases|",
            ),
            ("PATCH", "/apis/karpenter.sh/v1/nodeclaims/c/status", "PATCH|karpenter.sh|v1|nodeclaims|status"),
            ("DELETE", "/apis/karpenter.sh/v1/nodeclaims/c", "DELETE|karpenter.sh|v1|nodeclaims|"),
            ("GET", "/api/v1/namespaces/ns", "GET||v1|namespaces|"),
            ("GET", "/api/v1/namespaces", "LIST||v1|namespaces|"),
        ] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let target = Target::of(&method, &uri.parse().expect("a uri")).unwrap_or_else(|| panic!("{uri}"));
            assert_eq!(target.labels().join("|"), expected, "{uri}");
        }
        for uri in ["/version", "/", "/api", "/apis/karpenter.sh/v1", "/api/v1/pods?watch=true"] {
            assert_eq!(Target::of(&Method::GET, &uri.parse().expect("a uri")), None, "{uri}");
        }
    }

    fn client(limits: Limits, registry: &Registry) -> Client {
        let server = service_fn(|_: Request<Body>| async {
            let body = br#"{"kind":"Status","status":"Failure","code":404,"reason":"NotFound"}"#;
            Ok::<_, std::io::Error>(Response::builder().status(404).body(Body::from(body.to_vec())).unwrap())
        });
        ClientBuilder::new(server, "default")
            .with_layer(&MeasureLayer::new(registry))
            .with_layer(&ThrottleLayer::new(limits))
            .build()
    }

    async fn ask(client: Client, times: usize) -> std::time::Duration {
        let started = Instant::now();
        let pods: Api<Pod> = Api::namespaced(client, "ns");
        for _ in 0..times {
            assert!(pods.get_opt("p").await.expect("an answer").is_none());
        }
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_held_to_the_rate_and_counted() {
        let registry = Registry::new();
        let took = ask(client(Limits { qps: 10, burst: 5 }, &registry), 15).await;
        assert!((900..1100).contains(&took.as_millis()), "{took:?}");
        let text = registry.encode();
        assert!(text.contains("client_go_request_total{code=\"404\",method=\"GET\"} 15\n"), "{text}");
        let series = "client_go_request_duration_seconds_count{group=\"\",kind=\"pods\",subresource=\"\",verb=\"GET\",version=\"v1\"} 15\n";
        assert!(text.contains(series), "{text}");
        assert!(ask(client(Limits { qps: -1, burst: 0 }, &registry), 500).await.is_zero());
        let took = ask(client(Limits { qps: 0, burst: 0 }, &registry), 15).await;
        assert!((900..1100).contains(&took.as_millis()), "client-go's own limits: {took:?}");
    }
}
