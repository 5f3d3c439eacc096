//! `/healthz`, `/readyz` and `/metrics`: what kubelet and Prometheus ask. Paths and texts are controller-runtime's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::StatusCode;

use crate::http::{Answer, Handler};
use crate::logging::{Level, level};
use crate::metrics::Registry;
use crate::profiling;

/// Says whether something is as it should be, and if not, why.
pub type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Named checks behind one path.
#[derive(Clone, Default)]
pub struct Checks {
    all: BTreeMap<String, Check>,
    /// Answered only by name.
    aside: BTreeMap<String, Check>,
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.all.keys().chain(self.aside.keys())).finish()
    }
}

impl Checks {
    /// No checks: always well.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a check that is answered at once.
    #[must_use]
    pub fn with(self, name: &str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.with_async(name, move || std::future::ready(check()).boxed())
    }

    /// With a check that may wait.
    #[must_use]
    pub fn with_async(
        mut self,
        name: &str,
        check: impl Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
    ) -> Self {
        self.all.insert(name.to_owned(), Arc::new(check));
        self
    }

    /// With a check that is answered by its own name only: what it finds is worth knowing, but no reason to restart us.
    #[must_use]
    pub fn with_aside(
        mut self,
        name: &str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.aside.insert(name.to_owned(), Arc::new(move || std::future::ready(check()).boxed()));
        self
    }

    /// With a check that holds while the program answers at all.
    #[must_use]
    pub fn with_ping(self, name: &str) -> Self {
        self.with(name, || Ok(()))
    }

    /// All checks; `?verbose` names them, `?exclude=name` leaves one out.
    async fn all(&self, query: &str) -> Answer {
        let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut excluded: BTreeSet<&str> =
            parameters().filter(|(key, _)| *key == "exclude").map(|(_, name)| name).collect();
        let mut lines = String::new();
        let mut failed = false;
        for (name, check) in &self.all {
            if excluded.remove(name.as_str()) {
                lines.push_str(&format!("[+]{name} excluded: ok\n"));
                continue;
            }
            match check().await {
                Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
                Err(error) => {
                    tracing::info!(checker = name, error, "healthz check failed");
                    lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                    failed = true;
                }
            }
        }
        if self.all.is_empty() {
            lines.push_str("[+]ping ok\n");
        }
        if failed {
            return Answer::text(StatusCode::INTERNAL_SERVER_ERROR, lines + "healthz check failed\n");
        }
        if !parameters().any(|(key, _)| key == "verbose") {
            return Answer::text(StatusCode::OK, "ok");
        }
        if !excluded.is_empty() {
            let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
            lines.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {}\n",
                names.join(",")
            ));
        }
        Answer::text(StatusCode::OK, lines + "healthz check passed\n")
    }

    async fn one(&self, name: &str) -> Answer {
        let check = match self.all.get(name).or_else(|| self.aside.get(name)) {
            Some(check) => check,
            None if self.all.is_empty() && name == "ping" => return Answer::text(StatusCode::OK, "ok"),
            None => return Answer::not_found(),
        };
        match check().await {
            Ok(()) => Answer::text(StatusCode::OK, "ok"),
            Err(error) => {
                Answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {error}\n"))
            }
        }
    }
}

/// What is served on the probe port.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// Behind `/healthz`: whether to restart us.
    pub healthz: Checks,
    /// Behind `/readyz`: whether we do our work.
    pub readyz: Checks,
}

impl Handler for Probes {
    fn get<'a>(&'a self, path: &'a str, query: &'a str) -> BoxFuture<'a, Answer> {
        async move {
            let (checks, rest) = match (path.strip_prefix("/healthz"), path.strip_prefix("/readyz")) {
                (Some(rest), _) => (&self.healthz, rest),
                (_, Some(rest)) => (&self.readyz, rest),
                _ => return Answer::not_found(),
            };
            match rest.strip_prefix('/').map(|name| name.trim_end_matches('/')) {
                None if rest.is_empty() => checks.all(query).await,
                None => Answer::not_found(),
                Some("") => checks.all(query).await,
                Some(name) => checks.one(name).await,
            }
        }
        .boxed()
    }
}

const LOG_LEVEL: &str = "/log-level";

/// What is served on the metrics port.
#[derive(Clone, Debug)]
pub struct MetricsPage {
    /// Behind `/metrics`.
    pub registry: Registry,
    /// Whether `/debug/pprof/` is served too.
    pub profiling: bool,
    /// Behind `/log-level`, where another may be put.
    pub log_level: Level,
}

impl Handler for MetricsPage {
    fn get<'a>(&'a self, path: &'a str, query: &'a str) -> BoxFuture<'a, Answer> {
        async move {
            if path == "/metrics" {
                self.registry.observe_process();
                return Answer {
                    status: StatusCode::OK,
                    content_type: "text/plain; version=0.0.4; charset=utf-8",
                    body: self.registry.encode(),
                };
            }
            if path == LOG_LEVEL {
                return Answer::text(StatusCode::OK, format!("{}\n", self.log_level.get()));
            }
            let profile = if self.profiling { profiling::page(path, query).await } else { None };
            profile.unwrap_or_else(Answer::not_found)
        }
        .boxed()
    }

    fn put(&self, path: &str, text: &str) -> Answer {
        if path != LOG_LEVEL {
            return Answer::not_found();
        }
        match level::named(text) {
            Ok(level) => {
                self.log_level.set(level);
                tracing::info!(%level, "the log level was changed");
                Answer::text(StatusCode::OK, format!("{level}\n"))
            }
            Err(error) => Answer::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;
    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::http::{bind, respond, serve};

    fn probes(synced: &Arc<AtomicBool>) -> Probes {
        let synced = Arc::clone(synced);
        Probes {
            healthz: Checks::new().with_ping("healthz"),
            readyz: Checks::new().with_ping("readyz").with_ping("crd").with("manager", move || {
                if synced.load(Ordering::Relaxed) { Ok(()) } else { Err("failed to sync caches".to_owned()) }
            }),
        }
    }

    fn page(registry: Registry) -> MetricsPage {
        MetricsPage { registry, profiling: false, log_level: LevelFilter::INFO.into() }
    }

    #[tokio::test]
    async fn profiles_are_served_only_when_asked_for() {
        for (profiling, code) in [(false, 404), (true, 200)] {
            let page = MetricsPage { profiling, ..page(Registry::new()) };
            assert_eq!(page.get("/debug/pprof/heap", "").await.status, code);
        }
    }

    async fn get(probes: &Probes, path: &str, query: &str) -> (u16, String) {
        let answer = probes.get(path, query).await;
        (answer.status.as_u16(), answer.body)
    }

    #[tokio::test]
    async fn readiness_waits_for_every_check_and_health_does_not() {
        let synced = Arc::new(AtomicBool::new(false));
        let probes = probes(&synced);
        assert_eq!(get(&probes, "/healthz", "").await, (200, "ok".to_owned()));
        assert_eq!(
            get(&probes, "/readyz", "").await,
            (
                500,
                "[+]crd ok\n[-]manager failed: reason withheld\n[+]readyz ok\nhealthz check failed\n"
                    .to_owned()
            )
        );
        assert_eq!(
            get(&probes, "/readyz/manager", "").await,
            (500, "internal server error: failed to sync caches\n".to_owned())
        );
        assert_eq!(get(&probes, "/readyz/", "exclude=manager").await, (200, "ok".to_owned()));
        synced.store(true, Ordering::Relaxed);
        assert_eq!(get(&probes, "/readyz", "").await, (200, "ok".to_owned()));
        assert_eq!(
            get(&probes, "/readyz", "verbose&exclude=crd&exclude=x").await.1,
            "[+]crd excluded: ok\n[+]manager ok\n[+]readyz ok\n\
             warn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n"
        );
    }

    #[tokio::test]
    async fn a_check_aside_is_answered_by_name_and_fails_nothing_else() {
        let healthz = Checks::new().with_ping("healthz").with_aside("cloud", || Err("it is away".to_owned()));
        let probes = Probes { healthz, readyz: Checks::new() };
        assert_eq!(get(&probes, "/healthz", "").await.0, 200);
        let (status, text) = get(&probes, "/healthz/cloud", "").await;
        assert!(status == 500 && text.contains("it is away"), "{status} {text}");
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_found() {
        let probes = probes(&Arc::default());
        for path in ["/", "/metrics", "/healthzz", "/healthz/nothing"] {
            assert_eq!(get(&probes, path, "").await.0, 404, "{path}");
        }
        assert_eq!(page(Registry::new()).get("/", "").await.status, 404);
        assert_eq!(get(&Probes::default(), "/healthz/ping", "").await.0, 200);
    }

    async fn asked(port: u16, what: &str, body: &str) -> String {
        let mut connection = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
        let length = body.len();
        let request = format!(
            "{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        connection.write_all(request.as_bytes()).await.expect("writes");
        let mut text = String::new();
        connection.read_to_string(&mut text).await.expect("reads");
        text
    }

    #[tokio::test]
    async fn the_log_level_is_told_and_changed_over_http() {
        let page = page(Registry::new());
        let level = page.log_level.clone();
        let listener = bind(0, "--metrics-port, METRICS_PORT").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, Arc::new(page), stop.clone()));
        assert!(asked(port, "GET /log-level", "").await.ends_with("\r\n\r\ninfo\n"));
        assert!(asked(port, "PUT /log-level", "debug\n").await.starts_with("HTTP/1.1 200 OK"));
        assert_eq!(level.get(), LevelFilter::DEBUG);
        let refused = asked(port, "PUT /log-level", "loud").await;
        assert!(
            refused.starts_with("HTTP/1.1 400") && refused.contains("debug, info, warn or error"),
            "{refused}"
        );
        assert!(asked(port, "PUT /log-level", &"x".repeat(2000)).await.starts_with("HTTP/1.1 400"));
        assert!(asked(port, "PUT /metrics", "debug").await.starts_with("HTTP/1.1 404"));
        assert!(asked(port, "POST /log-level", "info").await.starts_with("HTTP/1.1 405"));
        assert_eq!(level.get(), LevelFilter::DEBUG, "what is refused changes nothing");
        stop.cancel();
        serving.await.expect("no panic");
    }

    #[tokio::test]
    async fn the_log_level_is_changed_from_the_pod_itself_and_by_nobody_else() {
        let page = page(Registry::new());
        let level = page.log_level.clone();
        let page: Arc<dyn Handler> = Arc::new(page);
        let put = async |peer: &str, text: &'static str| {
            let request =
                http::Request::put("/log-level").body(Full::<bytes::Bytes>::from(text)).expect("a request");
            let peer = peer.parse().expect("an address");
            let Ok(answer) = respond(Arc::clone(&page), peer, request).await;
            answer.status().as_u16()
        };
        for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            for (text, wanted) in [("debug", LevelFilter::DEBUG), ("info", LevelFilter::INFO)] {
                assert_eq!((put(peer, text).await, level.get()), (200, wanted), "{peer}");
            }
        }
        for peer in ["10.0.0.7", "::ffff:10.0.0.7", "fd00::7", "0.0.0.0"] {
            assert_eq!((put(peer, "debug").await, level.get()), (403, LevelFilter::INFO), "{peer}");
        }
    }

    #[tokio::test]
    async fn metrics_are_served_over_http_until_stopped() {
        let registry = Registry::new();
        registry.counter("karpenter_nodes_created_total", "Nodes", &["nodepool"]).inc(&["p"]);
        let listener = bind(0, "--metrics-port, METRICS_PORT").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, Arc::new(page(registry)), stop.clone()));
        let text = asked(port, "GET /metrics", "").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
        assert!(text.contains("karpenter_nodes_created_total{nodepool=\"p\"} 1\n"), "{text}");
        let taken =
            bind(port, "--metrics-port, METRICS_PORT").await.expect_err("the port is taken").to_string();
        assert!(
            taken.contains("--metrics-port, METRICS_PORT") && taken.contains(&port.to_string()),
            "{taken}"
        );
        stop.cancel();
        serving.await.expect("no panic");
    }
}
