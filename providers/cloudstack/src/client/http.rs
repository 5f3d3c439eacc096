//! The real road to CloudStack: HTTPS with the system's certificates and those that were given, through a proxy where one is
//! set. Redirects are not followed: whoever answers instead of CloudStack must not get signed requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use karpenter_runtime::road::Road;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::transport::{Transport, TransportError};

/// No answer is larger: 500 machines with everything are about one megabyte.
const MAX_ANSWER: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// Whether its certificate is checked. Without, anybody on the way can take the machines over.
    pub verify: bool,
    /// Certificates in PEM to trust besides the system's.
    pub ca_bundle: Option<String>,
    /// The name its certificate carries, where that is not the host of the address.
    pub tls_server_name: Option<String>,
    /// A certificate and key in PEM of our own.
    pub client_certificate: Option<(String, String)>,
    /// The proxy, where the environment (`HTTPS_PROXY`, `NO_PROXY`) is not to decide.
    pub proxy: Option<String>,
    /// Hosts not to use that proxy for, separated by commas.
    pub no_proxy: String,
    /// Whether an address without TLS is taken: keys are signed, but everything is readable on the way.
    pub allow_insecure_http: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            verify: true,
            ca_bundle: None,
            tls_server_name: None,
            client_certificate: None,
            proxy: None,
            no_proxy: String::new(),
            allow_insecure_http: false,
        }
    }
}

/// What to say of a road on which no certificate is checked.
pub(crate) const NOT_CHECKED: &str = "the server's certificate is NOT checked: anybody on the way can read user data with its tokens, and answer in CloudStack's name; give the certificate of its authority instead, and set ssl-no-verify=false and CLOUDSTACK_VERIFY_SSL=true";

/// What keys say of the way to their server, where it is not as for all.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// Whether no certificate is checked.
    pub ssl_no_verify: bool,
}

impl HttpSettings {
    /// These settings on a way.
    pub(crate) fn on(&self, way: &Way) -> Self {
        Self { verify: self.verify && !way.ssl_no_verify, ..self.clone() }
    }
}

/// Settings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The address.
    #[error("API address {address:?}: {problem}; write it as https://HOST/client/api")]
    Endpoint {
        /// What was given.
        address: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The certificates to trust.
    #[error("caBundle: {0}; give certificates in PEM")]
    CaBundle(String),
    /// Our own certificate.
    #[error("client certificate: {0}; give certificate and key in PEM")]
    ClientCertificate(String),
    /// The name to expect.
    #[error("tlsServerName {0:?} is not a host name")]
    ServerName(String),
    /// TLS itself.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

/// HTTP over real sockets.
pub struct HttpTransport {
    client: HyperClient<HttpsConnector<Road>, Full<Bytes>>,
    verify: bool,
}

impl HttpTransport {
    /// To this address by these settings.
    pub fn new(endpoint: &str, settings: &HttpSettings) -> Result<Self, HttpError> {
        check_endpoint(endpoint, settings)?;
        let tls = tls_config(settings)?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let matcher = match &settings.proxy {
            Some(proxy) => Matcher::builder().all(proxy.clone()).no(settings.no_proxy.clone()).build(),
            None => Matcher::from_env(),
        };
        let road = Road::new(http, matcher);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let connector = match &settings.tls_server_name {
            Some(name) => {
                let name =
                    ServerName::try_from(name.clone()).map_err(|_| HttpError::ServerName(name.clone()))?;
                let resolver = FixedServerNameResolver::new(name);
                builder.with_server_name_resolver(resolver).enable_http1().wrap_connector(road)
            }
            None => builder.enable_http1().wrap_connector(road),
        };
        let client = HyperClient::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, verify: settings.verify })
    }
}

fn check_endpoint(endpoint: &str, settings: &HttpSettings) -> Result<(), HttpError> {
    let wrong = |problem| HttpError::Endpoint { address: endpoint.to_owned(), problem };
    let uri: Uri = endpoint.parse().map_err(|_| wrong("it is no address"))?;
    if uri.host().is_none_or(str::is_empty) {
        return Err(wrong("it names no host"));
    }
    if uri.query().is_some() {
        return Err(wrong("it has a query"));
    }
    match uri.scheme_str() {
        Some("https") => Ok(()),
        Some("http") if settings.allow_insecure_http => Ok(()),
        Some("http") => Err(wrong("plain http is only taken with allowInsecureHTTP")),
        _ => Err(wrong("it does not begin with https://")),
    }
}

fn tls_config(settings: &HttpSettings) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Tls(error.to_string()))?;
    let builder = if settings.verify {
        builder.with_root_certificates(roots(settings)?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnybody(provider)))
    };
    match &settings.client_certificate {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let wrong = |error: &dyn std::fmt::Display| HttpError::ClientCertificate(error.to_string());
            let chain = certificates(certificate).map_err(|error| wrong(&error))?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| wrong(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(&error))
        }
    }
}

fn roots(settings: &HttpSettings) -> Result<RootCertStore, HttpError> {
    let mut roots = RootCertStore::empty();
    // Systems carry the odd certificate nobody can read, and some carry none; what was given explicitly must do then.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(bundle) = &settings.ca_bundle {
        let given = certificates(bundle).map_err(HttpError::CaBundle)?;
        if given.is_empty() {
            return Err(HttpError::CaBundle("there is no certificate in it".to_owned()));
        }
        for certificate in given {
            roots.add(certificate).map_err(|error| HttpError::CaBundle(error.to_string()))?;
        }
    }
    Ok(roots)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())
}

impl Transport for HttpTransport {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, TransportError>> {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert(header::USER_AGENT, HeaderValue::from_static("karpenter"));
        let request = Request::from_parts(parts, Full::new(body));
        async move {
            let answer = self.client.request(request).await.map_err(|error| {
                // Its text never holds the query, and so no key.
                let text = causes(&error);
                if error.is_connect() {
                    TransportError::NotSent(text)
                } else {
                    TransportError::NoAnswer(text)
                }
            })?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER)
                .collect()
                .await
                .map_err(|error| TransportError::NoAnswer(error.to_string()))?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        }
        .boxed()
    }

    fn checks_certificates(&self) -> bool {
        self.verify
    }
}

/// An error with everything behind it: "untrusted certificate" stands at the end.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}

/// Checks nothing, as was asked for.
#[derive(Debug)]
struct TrustAnybody(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(endpoint: &str, settings: &HttpSettings) -> String {
        HttpTransport::new(endpoint, settings).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn settings_that_cannot_be_used_say_what_to_write() {
        let plain = HttpSettings::default();
        assert!(refusal("http://c/client/api", &plain).contains("allowInsecureHTTP"));
        assert!(refusal("cloud", &plain).contains("https://HOST/client/api"));
        assert!(refusal("https://c/client/api?x=1", &plain).contains("query"));
        assert_eq!(refusal("https://c/client/api", &plain), "");
        let bundle =
            |text: &str| HttpSettings { ca_bundle: Some(text.to_owned()), ..HttpSettings::default() };
        assert!(refusal("https://c/client/api", &bundle("nothing")).contains("no certificate in it"));
        let garbage = bundle("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(refusal("https://c/client/api", &garbage).starts_with("caBundle: "));
    }

    #[tokio::test]
    async fn a_port_nobody_listens_on_is_a_request_that_never_left() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let settings = HttpSettings { allow_insecure_http: true, ..HttpSettings::default() };
        let endpoint = format!("http://{address}/client/api");
        let transport = HttpTransport::new(&endpoint, &settings).expect("settings");
        let request = Request::get(&endpoint).body(Bytes::new()).expect("a request");
        let error = transport.send(request).await.expect_err("nobody is there");
        assert!(matches!(error, TransportError::NotSent(_)), "{error}");
    }
}
