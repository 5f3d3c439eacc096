//! Reviews over real sockets, trusted by the bundle that would be published.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt as _;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::*;
use crate::webhook::certificate::{self, Certificates};
use crate::webhook::keeper::serving;

const HOST: &str = "karpenter-cloudstack-webhook.karpenter.svc";

fn reviewer() -> Arc<Reviewer> {
    let doubts: Doubts = Arc::new(|class| {
        let zone = class.spec.unwrap_or_default().zone;
        std::future::ready(if zone.as_deref() == Some("moon") {
            vec!["spec.zone: no moon".to_owned()]
        } else {
            Vec::new()
        })
        .boxed()
    });
    Arc::new(Reviewer { max_user_data: 32_768, doubts })
}

fn body(spec: &Value) -> String {
    let resource =
        json!({"group": "karpenter.k8s.cloudstack", "version": "v1", "resource": "cloudstacknodeclasses"});
    let object = json!({"metadata": {"name": "default"}, "spec": spec});
    let request = json!({"uid": "u-1", "operation": "CREATE", "resource": resource, "object": object});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

fn now() -> Timestamp {
    // Certificates are checked by the machine's clock.
    let elapsed = rustls::pki_types::UnixTime::now();
    Timestamp::from_second(i64::try_from(elapsed.as_secs()).expect("a time")).expect("a time")
}

/// A client that trusts this bundle.
fn trusting(bundle: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Calls the server as an API server does that trusts this bundle; nothing if it does not trust the certificate.
async fn call(port: u16, bundle: &str, host: &'static str, path: &str, body: &str) -> Option<(u16, String)> {
    let config = trusting(bundle);
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    let host_name = ServerName::try_from(host).expect("a name");
    let mut stream = TlsConnector::from(Arc::new(config)).connect(host_name, stream).await.ok()?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // A server that closes without a word of TLS has said all the same what it had to say.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("a text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Some((status, body.to_owned()))
}

#[tokio::test]
async fn reviews_are_answered_to_whoever_trusts_the_bundle() {
    let Certificates { authority, certificate, key } = certificate::make(HOST, now()).expect("certificates");
    let config = serving(&authority, &certificate, &key, HOST, now()).expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (_sender, current) = watch::channel(Some(Arc::new(config)));
    let stop = CancellationToken::new();
    let served = tokio::spawn(serve(listener, current, reviewer(), stop.clone()));

    let good = json!({"zone": "moon"});
    let (status, answer) = call(port, &authority, HOST, "/validate", &body(&good)).await.expect("trusted");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
    assert_eq!(answer["response"]["warnings"], json!(["spec.zone: no moon"]), "and told of");

    let bad = json!({"zone": "z", "gpuResource": "gpu of mine"});
    let (_, answer) = call(port, &authority, HOST, "/validate", &body(&bad)).await.expect("trusted");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["response"]["allowed"], false);
    assert!(
        answer["response"]["status"]["message"].as_str().is_some_and(|why| why.contains("spec.gpuResource"))
    );

    let (_, answer) = call(port, &authority, HOST, "/default", &body(&good)).await.expect("trusted");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let patch = STANDARD.decode(answer["response"]["patch"].as_str().expect("a patch")).expect("base64");
    assert!(String::from_utf8_lossy(&patch).contains("/spec/networkSelection"));

    let (status, why) = call(port, &authority, HOST, "/validate", "{}").await.expect("trusted");
    assert!(status == 400 && why.contains("apiVersion"), "{status} {why}");
    assert_eq!(call(port, &authority, HOST, "/else", "{}").await.expect("trusted").0, 404);

    let other = certificate::make(HOST, now()).expect("certificates").authority;
    assert!(
        call(port, &other, HOST, "/validate", "{}").await.is_none(),
        "another authority vouches for nothing"
    );
    assert!(
        call(port, &(other + &authority), HOST, "/validate", "{}").await.is_some(),
        "nor does it get in the way"
    );
    assert!(call(port, &authority, "elsewhere.karpenter.svc", "/validate", "{}").await.is_none());
    stop.cancel();
    served.await.expect("an end");
}

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_after_the_handshake_loses_its_place() {
    let Certificates { authority, certificate, key } = certificate::make(HOST, now()).expect("certificates");
    for protocol in ["h2", "http/1.1"] {
        let config = serving(&authority, &certificate, &key, HOST, now()).expect("a server");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let begun = Instant::now();
        let converses = async move { converse(ours, &acceptor, reviewer(), CancellationToken::new()).await };
        let served = tokio::spawn(converses);
        let mut config = trusting(&authority);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let host = ServerName::try_from(HOST).expect("a name");
        let silent = TlsConnector::from(Arc::new(config)).connect(host, theirs).await.expect("a handshake");
        tokio::time::timeout(PATIENCE * 2, served).await.expect("closed in time").expect("an end");
        assert!(begun.elapsed() >= PATIENCE, "{protocol}");
        drop(silent);
    }
}

#[test]
fn a_certificate_that_does_not_fit_its_key_host_or_time_is_not_served() {
    let one = certificate::make(HOST, now()).expect("certificates");
    let two = certificate::make(HOST, now()).expect("certificates");
    let year = jiff::SignedDuration::from_hours(24 * 366);
    assert!(serving(&one.authority, &one.certificate, &one.key, HOST, now()).is_ok());
    assert!(serving(&one.authority, &one.certificate, &two.key, HOST, now()).is_err());
    assert!(serving(&two.authority, &one.certificate, &one.key, HOST, now()).is_err());
    assert!(serving(&one.authority, &one.certificate, &one.key, "other.karpenter.svc", now()).is_err());
    assert!(serving(&one.authority, &one.certificate, &one.key, HOST, now() + year).is_err());
    let broken = serving(&one.authority, &one.certificate, "no key", HOST, now()).expect_err("no key");
    assert_eq!(broken, "its key cannot be read");
}
