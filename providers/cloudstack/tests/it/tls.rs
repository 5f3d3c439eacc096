//! The road over real sockets: certificates, proxies, redirects. Scenario 22.
//!
//! The certificates beside this file are of an authority made for these tests; nobody else trusts it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Request;
use karpenter_provider_cloudstack::client::http::{HttpSettings, HttpTransport, Way};
use karpenter_provider_cloudstack::client::transport::{Transport, TransportError};
use karpenter_provider_cloudstack::credentials::http_roads;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const AUTHORITY: &str = include_str!("certificates/ca.pem");
const SERVER: &str = include_str!("certificates/server.pem");
const EXPIRED: &str = include_str!("certificates/expired.pem");
const KEY: &str = include_str!("certificates/server.key");
const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";

/// Reads a request's head and writes an answer.
async fn answer(mut socket: impl AsyncRead + AsyncWrite + Unpin, text: &str) {
    let mut head = Vec::new();
    let mut byte = [0u8; 1];
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let _ = socket.write_all(text.as_bytes()).await;
    let _ = socket.shutdown().await;
}

/// A server with this certificate that gives this answer.
async fn serve(certificate: &str, text: String) -> SocketAddr {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .collect::<Result<_, _>>()
        .expect("certificates");
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a server");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, text) = (acceptor.clone(), text.clone());
            tokio::spawn(async move {
                if let Ok(socket) = acceptor.accept(socket).await {
                    answer(socket, &text).await;
                }
            });
        }
    });
    address
}

/// A proxy that tunnels, and counts.
async fn proxy() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let tunnels = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tunnels);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut head = Vec::new();
                let mut byte = [0u8; 1];
                while !head.ends_with(b"\r\n\r\n") {
                    match socket.read(&mut byte).await {
                        Ok(1) => head.push(byte[0]),
                        _ => return,
                    }
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let Some(target) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next())
                else {
                    return;
                };
                count.fetch_add(1, Ordering::SeqCst);
                let Ok(mut there) = TcpStream::connect(target).await else { return };
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut there).await;
            });
        }
    });
    (address, tunnels)
}

async fn call(address: SocketAddr, settings: &HttpSettings) -> Result<(u16, Bytes), TransportError> {
    let endpoint = format!("https://{address}/client/api");
    let transport = HttpTransport::new(&endpoint, settings).expect("settings");
    let request =
        Request::get(format!("{endpoint}?command=listZones")).body(Bytes::new()).expect("a request");
    transport.send(request).await.map(|answer| (answer.status().as_u16(), answer.into_body()))
}

fn trusting() -> HttpSettings {
    HttpSettings { ca_bundle: Some(AUTHORITY.to_owned()), ..HttpSettings::default() }
}

#[tokio::test]
async fn scenario_22_a_private_authority_is_trusted_only_when_given() {
    let server = serve(SERVER, ANSWER.to_owned()).await;
    let error = call(server, &HttpSettings::default()).await.expect_err("nobody trusts it");
    assert!(matches!(&error, TransportError::NotSent(why) if why.contains("certificate")), "{error}");
    assert_eq!(call(server, &trusting()).await.expect("trusted").0, 200);
    let unchecked = HttpSettings { verify: false, ..HttpSettings::default() };
    assert_eq!(call(server, &unchecked).await.expect("whoever it is").0, 200);
    let other_name = HttpSettings { tls_server_name: Some("elsewhere".into()), ..trusting() };
    assert!(call(server, &other_name).await.is_err(), "the certificate carries another name");
    let its_name = HttpSettings { tls_server_name: Some("localhost".into()), ..trusting() };
    assert_eq!(call(server, &its_name).await.expect("its name").0, 200);
}

#[tokio::test]
async fn scenario_22_an_expired_certificate_is_refused_even_of_a_trusted_authority() {
    let server = serve(EXPIRED, ANSWER.to_owned()).await;
    let error = call(server, &trusting()).await.expect_err("expired").to_string();
    assert!(error.to_lowercase().contains("expired"), "{error}");
}

#[tokio::test]
async fn scenario_22_a_proxy_is_tunnelled_through_and_left_out_where_told_so() {
    let server = serve(SERVER, ANSWER.to_owned()).await;
    let (address, tunnels) = proxy().await;
    let through = HttpSettings { proxy: Some(format!("http://{address}")), ..trusting() };
    assert_eq!(call(server, &through).await.expect("through the proxy").0, 200);
    assert_eq!(tunnels.load(Ordering::SeqCst), 1);
    let around = HttpSettings { no_proxy: "127.0.0.1".into(), ..through };
    assert_eq!(call(server, &around).await.expect("around the proxy").0, 200);
    assert_eq!(tunnels.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn scenario_22_keys_bring_an_authority_and_a_proxy_of_their_own() {
    let server = serve(SERVER, ANSWER.to_owned()).await;
    let (address, tunnels) = proxy().await;
    let endpoint = format!("https://{server}/client/api");
    let roads = http_roads(HttpSettings::default());
    let get = async |way: &Way| {
        let request = Request::get(&endpoint).body(Bytes::new()).expect("a request");
        let road = roads(&endpoint, way).expect("a road");
        road.send(request).await.map(|answer| answer.status().as_u16())
    };
    get(&Way::default()).await.expect_err("nobody trusts it");
    let trusting = Way { ca_bundle: Some(AUTHORITY.to_owned()), ..Way::default() };
    assert_eq!(get(&trusting).await, Ok(200));
    assert_eq!(tunnels.load(Ordering::SeqCst), 0);
    let through = Way { proxy: Some((format!("http://{address}"), String::new())), ..trusting };
    assert_eq!(get(&through).await, Ok(200));
    assert_eq!(tunnels.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn scenario_22_a_redirect_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = elsewhere.local_addr().expect("an address");
    let text = format!(
        "HTTP/1.1 302 Found\r\nLocation: https://{target}/client/api\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let server = serve(SERVER, text).await;
    assert_eq!(call(server, &trusting()).await.expect("an answer").0, 302);
    let visited = elsewhere.accept().now_or_never();
    assert!(visited.is_none(), "signed requests go nowhere else");
}
