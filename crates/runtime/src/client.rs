//! The API client: throttled on our side as Go's is, measured under its names, and as there all requests share one connection
//! where the server speaks HTTP/2.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder};

use crate::metrics::{CounterVec, HistogramVec, Registry, exponential_buckets};
use crate::rate_limit::TokenBucket;
use crate::road::Road;
use crate::sync::lock;

/// client-go's limits where none are given.
const DEFAULT_QPS: f64 = 5.0;
const DEFAULT_BURST: u32 = 10;

/// When a shared connection on which nothing is heard is asked whether it lives; without an answer in time it is given up, and
/// with it everything that waits on it.
#[derive(Clone, Copy)]
struct Pings {
    after: Duration,
    answer_within: Duration,
}

/// As client-go does.
const PINGS: Pings = Pings { after: Duration::from_secs(30), answer_within: Duration::from_secs(15) };
/// A lease is lost within ten seconds: a connection that has died has to be known and replaced before.
const LEASE_PINGS: Pings = Pings { after: Duration::from_secs(2), answer_within: Duration::from_secs(2) };

/// What environments name a proxy by that kube takes for every server, and what they exempt servers by.
const PROXY_VARIABLES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const NO_PROXY_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// What no proxy of an environment is asked for, as in Go.
const NEVER_PROXIED: &str = "localhost,127.0.0.0/8,::1";

/// How long the server may take to begin an answer, watches excepted. Longer than it gives itself.
const ANSWER_BEGINS_WITHIN: Duration = Duration::from_secs(90);
/// How long a connection may be silent. Watches hear something every minute or end before.
const SILENCE: Duration = Duration::from_secs(300);

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
    config: Config,
    version: &str,
    limits: Limits,
    registry: &Registry,
) -> Result<Client, kube::Error> {
    with_pings(config, version, limits, registry, PINGS)
}

/// A client for the lease alone: its renewals never wait behind other requests, nor for a connection that has died.
pub fn for_lease(config: Config, version: &str, limits: Limits) -> Result<Client, kube::Error> {
    with_pings(config, version, limits, &Registry::new(), LEASE_PINGS)
}

fn with_pings(
    mut config: Config,
    version: &str,
    limits: Limits,
    registry: &Registry,
    pings: Pings,
) -> Result<Client, kube::Error> {
    // Controllers retry what fails, by their own rules; a second layer of retries would only hide it.
    config.default_retry = false;
    let agent = HeaderValue::from_str(&format!("karpenter/{version}"));
    config
        .headers
        .push((header::USER_AGENT, agent.unwrap_or_else(|_| HeaderValue::from_static("karpenter"))));
    config.read_timeout.get_or_insert(SILENCE);
    let (measure, throttle) = (MeasureLayer::new(registry), ThrottleLayer::new(limits));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections(&config, pings)?);
    let stack = ClientBuilder::new(service, config.default_namespace);
    Ok(stack.with_layer(&DeadlineLayer).with_layer(&measure).with_layer(&throttle).build())
}

type Connections =
    hyper_util::client::legacy::Client<TimeoutConnector<hyper_rustls::HttpsConnector<Road>>, Body>;

/// The proxy to the server of `config`, if there is one. A kubeconfig's holds for its server; an environment's may exempt it, which
/// kube asks about the proxy instead.
fn proxy(config: &Config, variable: impl Fn(&str) -> Option<String>) -> Result<Matcher, kube::Error> {
    let Some(url) = &config.proxy_url else { return Ok(Matcher::builder().build()) };
    let is_environments = PROXY_VARIABLES
        .iter()
        .any(|name| variable(name).and_then(|value| value.parse::<Uri>().ok()).as_ref() == Some(url));
    let mut exempt = String::new();
    if is_environments {
        let named = NO_PROXY_VARIABLES.iter().find_map(|name| variable(name)).unwrap_or_default();
        exempt = format!("{named},{NEVER_PROXIED}");
    }
    let matcher = Matcher::builder().all(url.to_string()).no(exempt).build();
    if matcher.intercept(&config.cluster_url).is_some() && !matches!(url.scheme_str(), None | Some("http")) {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(url.clone()) });
    }
    Ok(matcher)
}

/// Connections to the server: one for everything with HTTP/2, else as many as there are requests at a time.
fn connections(config: &Config, pings: Pings) -> Result<Connections, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    // Requests are small and on one connection: none waits for the acknowledgement of another.
    http.set_nodelay(true);
    let road = Road::new(http, proxy(config, |name| std::env::var(name).ok())?);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let invalid = |error| kube::Error::RustlsTls(kube::client::RustlsTlsError::InvalidServerName(error));
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name.try_into().map_err(invalid)?));
    }
    let mut connector = TimeoutConnector::new(tls.enable_http1().enable_http2().wrap_connector(road));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    Ok(hyper_util::client::legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(pings.after)
        .http2_keep_alive_timeout(pings.answer_within)
        .http2_keep_alive_while_idle(true)
        .build(connector))
}

/// Gives up on requests that are never answered: whoever asked asks again, instead of waiting for ever while the lease is renewed.
#[derive(Clone, Copy)]
struct DeadlineLayer;

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Deadline(inner)
    }
}

struct Deadline<S>(S);

impl<S, B, R> Service<Request<B>> for Deadline<S>
where
    S: Service<Request<B>, Response = R, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = R;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<R, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let watches =
            request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        let answer = self.0.call(request);
        if watches {
            return Box::pin(answer);
        }
        Box::pin(async move {
            tokio::time::timeout(ANSWER_BEGINS_WITHIN, answer).await.unwrap_or_else(|_| {
                Err(format!("no answer from the API server within {} s", ANSWER_BEGINS_WITHIN.as_secs())
                    .into())
            })
        })
    }
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

    #[test]
    fn a_proxy_of_the_environment_is_asked_for_servers_it_is_meant_for_and_a_kubeconfigs_always() {
        let by = |server: &str, proxy: &str, variables: &[(&str, &str)]| {
            let mut config = Config::new(server.parse().expect("an address"));
            config.proxy_url = Some(proxy.parse().expect("an address"));
            let found = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            super::proxy(&config, found).map(|matcher| matcher.intercept(&config.cluster_url).is_some())
        };
        let (server, proxy) = ("https://10.0.0.1:6443", "http://proxy:3128");
        let environment = ("HTTPS_PROXY", proxy);
        assert!(by(server, proxy, &[environment]).expect("a way"));
        assert!(by(server, proxy, &[environment, ("NO_PROXY", "example.com,proxy")]).expect("a way"));
        assert!(!by(server, proxy, &[environment, ("NO_PROXY", "10.0.0.0/8")]).expect("a way"));
        assert!(!by("https://127.0.0.1:6443", proxy, &[environment]).expect("a way"));
        assert!(by(server, proxy, &[("NO_PROXY", "10.0.0.0/8")]).expect("a way"), "a kubeconfig's");
        let error = by(server, "socks5://proxy:1080", &[]).expect_err("not spoken here");
        assert!(error.to_string().contains("socks5://proxy:1080"), "{error}");
    }

    #[tokio::test]
    async fn requests_go_through_the_tunnel_of_a_proxy() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut heads = Vec::new();
            let body = r#"{"kind":"Status","status":"Failure","code":404,"reason":"NotFound"}"#;
            let missing = format!(
                "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            for answer in ["HTTP/1.1 200 OK\r\n\r\n", &missing] {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a head"));
                }
                heads.push(String::from_utf8(head).expect("UTF-8").to_lowercase());
                stream.write_all(answer.as_bytes()).await.expect("a reader");
            }
            heads
        });
        let mut config = Config::new("http://cluster.example:8080".parse().expect("an address"));
        config.proxy_url = Some(format!("http://user:word@{address}").parse().expect("an address"));
        let client = build(config, "1", Limits { qps: -1, burst: 0 }, &Registry::new()).expect("a client");
        assert!(Api::<Pod>::namespaced(client, "ns").get_opt("p").await.expect("an answer").is_none());
        let heads = proxy.await.expect("no panic");
        assert!(heads[0].starts_with("connect cluster.example:8080 http/1.1\r\n"), "{heads:?}");
        assert!(heads[0].contains("proxy-authorization: basic "), "{heads:?}");
        assert!(heads[1].starts_with("get /api/v1/namespaces/ns/pods/p http/1.1\r\n"), "{heads:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_answered_fails_and_a_watch_may_take_its_time() {
        let server = service_fn(|_: Request<Body>| async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok::<_, BoxError>(Response::new(Body::empty()))
        });
        let client = ClientBuilder::new(server, "default").with_layer(&DeadlineLayer).build();
        let (started, pods) = (Instant::now(), Api::<Pod>::all(client));
        let error = pods.get_opt("p").await.expect_err("no answer");
        assert_eq!(started.elapsed(), ANSWER_BEGINS_WITHIN);
        assert!(format!("{error:?}").contains("no answer from the API server within 90 s"), "{error:?}");
        let started = Instant::now();
        let _ = pods.watch(&kube::api::WatchParams::default(), "0").await;
        assert_eq!(started.elapsed(), Duration::from_secs(600));
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
