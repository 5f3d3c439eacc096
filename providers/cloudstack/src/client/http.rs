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
pub(crate) const NOT_CHECKED: &str = "the server's certificate is NOT checked: anybody on the way can read user data with its tokens, and answer in CloudStack's name; give the certificate of its authority instead (ca-bundle in the Secret, or CLOUDSTACK_CA_FILE), and set ssl-no-verify=false and CLOUDSTACK_VERIFY_SSL=true";

/// What keys say of the way to their server, where it is not as for all.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// Whether no certificate is checked.
    pub ssl_no_verify: bool,
    /// Certificates in PEM to trust, too.
    pub ca_bundle: Option<String>,
    /// The name the server's certificate carries.
    pub tls_server_name: Option<String>,
    /// A certificate and key in PEM of our own.
    pub client_certificate: Option<(String, String)>,
    /// The proxy, and hosts not to use it for.
    pub proxy: Option<(String, String)>,
}

impl Way {
    /// The first key of a Secret whose value cannot be used, with why and the remedy. What is secret is not repeated.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        let mut roots = RootCertStore::empty();
        if let Some(bundle) = &self.ca_bundle
            && let Err(problem) = trust(&mut roots, bundle)
        {
            return Some(("ca-bundle", format!("cannot be used: {problem}; give certificates in PEM")));
        }
        if let Some(name) = &self.tls_server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            let text = format!(
                "is {name:?}, which is not a host name; give the one the server's certificate carries"
            );
            return Some(("tls-server-name", text));
        }
        if self.client_certificate.is_some() {
            let settings = HttpSettings::default().on(self);
            if let Err(HttpError::ClientCertificate(problem)) = tls_config(&settings, roots) {
                let text = format!(
                    "and client-key cannot be used: {problem}; give a certificate and its key in PEM"
                );
                return Some(("client-certificate", text));
            }
        }
        let wrong = self.proxy.as_ref().is_some_and(|(proxy, _)| !is_proxy(proxy));
        wrong.then(|| ("proxy", "is no address of an HTTP proxy; write it as http://HOST:PORT".to_owned()))
    }
}

impl HttpSettings {
    /// These settings on a way: what it says comes before what is said for all, and its certificates are trusted besides.
    pub(crate) fn on(&self, way: &Way) -> Self {
        let (proxy, no_proxy) = match &way.proxy {
            Some((proxy, no_proxy)) => (Some(proxy.clone()), no_proxy.clone()),
            None => (self.proxy.clone(), self.no_proxy.clone()),
        };
        let bundles = self.ca_bundle.iter().chain(&way.ca_bundle).cloned();
        Self {
            verify: self.verify && !way.ssl_no_verify,
            ca_bundle: bundles.reduce(|all, more| format!("{all}\n{more}")),
            tls_server_name: way.tls_server_name.clone().or_else(|| self.tls_server_name.clone()),
            client_certificate: way.client_certificate.clone().or_else(|| self.client_certificate.clone()),
            proxy,
            no_proxy,
            allow_insecure_http: self.allow_insecure_http,
        }
    }
}

/// Whether this is a proxy that can be gone through: one that cannot be understood would be left out in silence.
pub(crate) fn is_proxy(address: &str) -> bool {
    address.parse::<Uri>().is_ok_and(|uri| {
        let host_and_port = |server: &http::uri::Authority| {
            !server.host().is_empty()
                && (server.port_u16().is_some() || server.as_str().ends_with(server.host()))
        };
        matches!(uri.scheme_str(), None | Some("http")) && uri.authority().is_some_and(host_and_port)
    })
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
    #[error("CLOUDSTACK_CA_FILE or CLOUDSTACK_CA_BUNDLE: {0}; give certificates in PEM")]
    CaBundle(String),
    /// Our own certificate.
    #[error(
        "CLOUDSTACK_CLIENT_CERTIFICATE_FILE, CLOUDSTACK_CLIENT_KEY_FILE: {0}; give a certificate and its key in PEM"
    )]
    ClientCertificate(String),
    /// The name to expect.
    #[error(
        "CLOUDSTACK_TLS_SERVER_NAME is {0:?}, which is not a host name; give the one the server's certificate carries"
    )]
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
        let roots = if settings.verify { roots(settings)? } else { RootCertStore::empty() };
        let tls = tls_config(settings, roots)?;
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
        Some("http") => Err(wrong("plain http is only taken with CLOUDSTACK_ALLOW_INSECURE_HTTP=true")),
        _ => Err(wrong("it does not begin with https://")),
    }
}

fn tls_config(settings: &HttpSettings, roots: RootCertStore) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Tls(error.to_string()))?;
    let builder = if settings.verify {
        builder.with_root_certificates(roots)
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
        trust(&mut roots, bundle).map_err(HttpError::CaBundle)?;
    }
    Ok(roots)
}

/// Adds certificates in PEM, all of them or why not.
fn trust(roots: &mut RootCertStore, bundle: &str) -> Result<(), String> {
    let given = certificates(bundle)?;
    if given.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    for certificate in given {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(())
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
        assert!(refusal("http://c/client/api", &plain).contains("CLOUDSTACK_ALLOW_INSECURE_HTTP"));
        assert!(refusal("cloud", &plain).contains("https://HOST/client/api"));
        assert!(refusal("https://c/client/api?x=1", &plain).contains("query"));
        assert_eq!(refusal("https://c/client/api", &plain), "");
        let bundle =
            |text: &str| HttpSettings { ca_bundle: Some(text.to_owned()), ..HttpSettings::default() };
        assert!(refusal("https://c/client/api", &bundle("nothing")).contains("no certificate in it"));
        let garbage = bundle("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(refusal("https://c/client/api", &garbage).starts_with("CLOUDSTACK_CA_FILE or "));
    }

    #[test]
    fn what_keys_say_of_the_way_comes_before_what_is_said_for_all_and_certificates_add_up() {
        let said = |text: &str| Some(text.to_owned());
        let all = HttpSettings {
            ca_bundle: said("a"),
            tls_server_name: said("all"),
            proxy: said("http://all:1"),
            no_proxy: "inside".to_owned(),
            ..HttpSettings::default()
        };
        assert_eq!(all.on(&Way::default()), all);
        let way = Way {
            ca_bundle: said("b"),
            tls_server_name: said("one"),
            proxy: Some(("http://one:1".to_owned(), String::new())),
            ..Way::default()
        };
        let one = all.on(&way);
        assert_eq!((one.ca_bundle.as_deref(), one.tls_server_name.as_deref()), (Some("a\nb"), Some("one")));
        assert_eq!((one.proxy.as_deref(), one.no_proxy.as_str()), (Some("http://one:1"), ""));
        assert!(one.verify && !all.on(&Way { ssl_no_verify: true, ..Way::default() }).verify);
        let unverified = HttpSettings { verify: false, ..HttpSettings::default() };
        assert!(!unverified.on(&Way::default()).verify, "nobody can ask for more than is given");
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
