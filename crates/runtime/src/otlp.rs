//! Traces for a collector: spans in OpenTelemetry's protocol, as JSON over HTTP, to the address `OTEL_EXPORTER_OTLP_ENDPOINT` names.
//!
//! A reconcile is a trace, and its id is the `reconcileID` of the log lines; what a reconcile does in spans of its own, such as
//! a call to a cloud, are spans within it. Nothing ever waits for the collector: what it does not take in time is dropped.
//! Over TLS the system's certificates are trusted (`SSL_CERT_FILE`, `SSL_CERT_DIR`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::SharedClock;
use crate::entropy::Stream;
use crate::environment::Environment;
use crate::logging::Fields;
use crate::sync::lock;

/// How often spans are sent.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Spans that wait to be sent; more are dropped.
const MOST: usize = 4096;

/// The field whose value is the id of the trace.
const RECONCILE_ID: &str = "reconcileID";

/// An address nothing can be sent to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT): {address:?} {problem}; give the address of a collector that takes OTLP over HTTP, such as http://otel-collector:4318"
)]
pub struct EndpointError {
    address: String,
    problem: &'static str,
}

/// Spans that have ended and wait to be sent, and how many were too many.
#[derive(Debug, Default)]
struct Waiting {
    spans: Vec<Value>,
    dropped: u64,
}

/// Notes spans.
pub struct OtlpLayer {
    clock: SharedClock,
    ids: Mutex<Stream>,
    waiting: Arc<Mutex<Waiting>>,
}

/// Sends what the layer notes.
pub struct Exporter {
    address: Uri,
    waiting: Arc<Mutex<Waiting>>,
}

/// A span that has not ended.
struct Open {
    trace: String,
    id: String,
    parent: Option<String>,
    begun: Timestamp,
    fields: Fields,
    events: Vec<Value>,
    failed: bool,
}

/// What notes spans and what sends them to this address.
///
/// # Errors
///
/// If nothing can be sent there.
pub fn exporter(endpoint: &str, environment: &Environment) -> Result<(OtlpLayer, Exporter), EndpointError> {
    let address = traces_address(endpoint)?;
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let layer = OtlpLayer {
        clock: environment.clock.clone(),
        ids: Mutex::new(environment.entropy.stream("otlp")),
        waiting: Arc::clone(&waiting),
    };
    Ok((layer, Exporter { address, waiting }))
}

/// Where traces go at a collector of this address.
fn traces_address(endpoint: &str) -> Result<Uri, EndpointError> {
    let wrong = |problem| EndpointError { address: endpoint.to_owned(), problem };
    let text = endpoint.trim_end_matches('/');
    let text = text.strip_suffix("/v1/traces").unwrap_or(text);
    let address: Uri = format!("{text}/v1/traces").parse().map_err(|_| wrong("is no address"))?;
    match address.scheme_str() {
        Some("http" | "https") if address.host().is_some_and(|host| !host.is_empty()) => Ok(address),
        _ => Err(wrong("does not begin with http:// or https://")),
    }
}

type Sender = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// What sends to this address. Certificates are read only where they are needed.
fn sender(address: &Uri) -> Result<Sender, rustls::Error> {
    let mut roots = RootCertStore::empty();
    if address.scheme_str() == Some("https") {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = tls.with_root_certificates(roots).with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    Ok(Client::builder(TokioExecutor::new()).build(builder.wrap_connector(http)))
}

fn nanoseconds(time: Timestamp) -> String {
    time.as_nanosecond().to_string()
}

fn attributes(fields: &Fields) -> Vec<Value> {
    let value = |value: &Value| match value {
        Value::String(text) => json!({"stringValue": text}),
        Value::Bool(truth) => json!({"boolValue": truth}),
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            json!({"intValue": number.to_string()})
        }
        Value::Number(number) => json!({"doubleValue": number}),
        other => json!({"stringValue": other.to_string()}),
    };
    fields.iter().map(|(key, of)| json!({"key": key, "value": value(of)})).collect()
}

impl OtlpLayer {
    fn new_id(&self) -> u128 {
        lock(&self.ids).uuid().as_u128()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for OtlpLayer {
    fn on_new_span(&self, new: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        new.record(&mut fields);
        let above = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            extensions.get::<Open>().map(|open| (open.trace.clone(), open.id.clone()))
        });
        let random = self.new_id();
        let (trace, parent) = match above {
            Some((trace, parent)) => (trace, Some(parent)),
            None => {
                let named: String = fields.text(RECONCILE_ID).chars().filter(|c| *c != '-').collect();
                let hexadecimal = named.len() == 32 && named.bytes().all(|byte| byte.is_ascii_hexdigit());
                (if hexadecimal { named } else { format!("{random:032x}") }, None)
            }
        };
        // Half of a random number is one, and never all zeros, which no id may be.
        let id = format!("{:016x}", (random as u64) | 1);
        let begun = self.clock.now();
        let open = Open { trace, id, parent, begun, fields, events: Vec::new(), failed: false };
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.fields);
        }
    }

    /// What is worth a warning stands in the trace too.
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let Some(span) = context.event_span(event) else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let name = fields.text("message").to_owned();
        let said = json!({
            "timeUnixNano": nanoseconds(self.clock.now()), "name": name, "attributes": attributes(&fields),
        });
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.failed |= *event.metadata().level() == Level::ERROR;
            open.events.push(said);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else { return };
        let mut told = json!({
            "traceId": open.trace, "spanId": open.id, "name": span.name(), "kind": 1,
            "startTimeUnixNano": nanoseconds(open.begun), "endTimeUnixNano": nanoseconds(self.clock.now()),
            "attributes": attributes(&open.fields), "events": open.events,
        });
        if let Some(parent) = open.parent {
            told["parentSpanId"] = parent.into();
        }
        if open.failed {
            told["status"] = json!({"code": 2});
        }
        let mut waiting = lock(&self.waiting);
        if waiting.spans.len() < MOST {
            waiting.spans.push(told);
        } else {
            waiting.dropped += 1;
        }
    }
}

impl Exporter {
    /// Sends every few seconds until stopped, and what is left then.
    pub async fn run(self, stop: CancellationToken) {
        let client = match sender(&self.address) {
            Ok(client) => client,
            Err(error) => {
                tracing::warn!(%error, "TLS cannot be set up, so no traces are sent");
                return stop.cancelled().await;
            }
        };
        let mut heard = true;
        loop {
            let stopped = stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none();
            let result = self.send(&client).await;
            // Once, and not every five seconds.
            if let Err(problem) = &result
                && heard
            {
                tracing::warn!(address = %self.address, problem, "traces are not taken and are dropped");
            }
            heard = result.is_ok();
            if stopped {
                return;
            }
        }
    }

    async fn send(&self, client: &Sender) -> Result<(), String> {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        if waiting.spans.is_empty() {
            return Ok(());
        }
        let body = Full::from(message(waiting).to_string());
        let request =
            Request::post(&self.address).header(header::CONTENT_TYPE, "application/json").body(body);
        let request = request.map_err(|error| error.to_string())?;
        match tokio::time::timeout(PATIENCE, client.request(request)).await {
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(answer)) if !answer.status().is_success() => Err(format!("HTTP {}", answer.status())),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

/// The body of a request.
fn message(waiting: Waiting) -> Value {
    let mut about = vec![json!({"key": "service.name", "value": {"stringValue": "karpenter"}})];
    if waiting.dropped > 0 {
        let count = json!({"intValue": waiting.dropped.to_string()});
        about.push(json!({"key": "karpenter.dropped_spans", "value": count}));
    }
    json!({"resourceSpans": [{
        "resource": {"attributes": about},
        "scopeSpans": [{"scope": {"name": "karpenter"}, "spans": waiting.spans}],
    }]})
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn noted(work: impl FnOnce()) -> Waiting {
        let (layer, exporter) = exporter("http://collector:4318", &Environment::real()).expect("an address");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        std::mem::take(&mut *lock(&exporter.waiting))
    }

    #[test]
    fn a_reconcile_is_a_trace_of_its_own_id_and_what_it_does_is_within_it() {
        let id = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let waiting = noted(|| {
            let reconcile = tracing::error_span!("reconcile", controller = "nodeclaim", reconcileID = %id);
            let _reconcile = reconcile.enter();
            let call = tracing::error_span!("cloudstack", command = "deploy", code = tracing::field::Empty);
            call.record("code", 533);
            call.in_scope(|| tracing::error!(reason = "full", "no room"));
        });
        let [call, reconcile] = &waiting.spans[..] else { panic!("{waiting:?}") };
        assert_eq!(reconcile["traceId"], "0f8fad5bd9cb469fa16570867728950e");
        assert_eq!(call["traceId"], reconcile["traceId"]);
        assert_eq!(call["parentSpanId"], reconcile["spanId"]);
        assert!(reconcile["parentSpanId"].is_null() && reconcile["status"].is_null());
        let code = json!({"key": "code", "value": {"intValue": "533"}});
        assert!(call["attributes"].as_array().is_some_and(|all| all.contains(&code)), "{call}");
        assert_eq!((&call["status"]["code"], &call["events"][0]["name"]), (&json!(2), &json!("no room")));
        let begun: i128 = call["startTimeUnixNano"].as_str().and_then(|t| t.parse().ok()).expect("a time");
        let ended: i128 = call["endTimeUnixNano"].as_str().and_then(|t| t.parse().ok()).expect("a time");
        assert!(begun <= ended);
    }

    #[test]
    fn what_waits_is_bounded() {
        let waiting = noted(|| {
            for _ in 0..MOST + 7 {
                let _span = tracing::error_span!("reconcile").entered();
            }
        });
        assert_eq!((waiting.spans.len(), waiting.dropped), (MOST, 7));
        let body = message(waiting);
        assert_eq!(body["resourceSpans"][0]["resource"]["attributes"][1]["value"]["intValue"], "7");
    }

    #[test]
    fn addresses_nothing_can_be_sent_to_are_refused_with_the_remedy() {
        for (address, expected) in [
            ("http://collector:4318", Some("http://collector:4318/v1/traces")),
            ("http://collector:4318/", Some("http://collector:4318/v1/traces")),
            ("http://collector:4318/v1/traces", Some("http://collector:4318/v1/traces")),
            ("https://collector:4318", Some("https://collector:4318/v1/traces")),
            ("https://", None),
            ("grpc://collector:4317", None),
            ("collector:4318", None),
            ("http://", None),
            ("not an address", None),
        ] {
            let found = traces_address(address);
            assert_eq!(found.as_ref().ok().map(ToString::to_string).as_deref(), expected, "{address}");
            if let Err(error) = found {
                assert!(error.to_string().contains("http://otel-collector:4318"), "{error}");
            }
        }
    }

    /// A collector to be, and what sends it one reconcile right before the end.
    async fn at_the_end(scheme: &str) -> (tokio::net::TcpListener, impl Future<Output = ()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("{scheme}://{}", listener.local_addr().expect("an address"));
        let (layer, exporter) = exporter(&address, &Environment::real()).expect("an address");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _span = tracing::error_span!("reconcile", controller = "x").entered();
        });
        let stop = CancellationToken::new();
        stop.cancel();
        (listener, exporter.run(stop))
    }

    #[tokio::test]
    async fn a_collector_gets_what_was_noted_before_the_end() {
        let (listener, sending) = at_the_end("http").await;
        let collector = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut heard = Vec::new();
            // The body ends the request, and this is how it ends.
            while !heard.ends_with(b"]}]}]}") {
                let mut part = [0; 4096];
                let count = stream.read(&mut part).await.expect("readable");
                assert!(count > 0, "it ended early: {}", String::from_utf8_lossy(&heard));
                heard.extend_from_slice(&part[..count]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.expect("writable");
            String::from_utf8(heard).expect("a text")
        };
        let ((), heard) = tokio::join!(sending, collector);
        assert!(heard.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{heard}");
        assert!(
            heard.contains("content-type: application/json") && heard.contains(r#""name":"reconcile""#),
            "{heard}"
        );
    }

    #[tokio::test]
    async fn a_collector_whose_address_says_https_is_never_sent_plain_text() {
        let (listener, sending) = at_the_end("https").await;
        let collector = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut begin = [0; 3];
            stream.read_exact(&mut begin).await.expect("readable");
            begin
        };
        let ((), begin) = tokio::join!(sending, collector);
        assert_eq!(begin[..2], [0x16, 0x03], "a handshake of TLS");
    }
}
