//! Where the certificate is kept: in a Secret that all replicas share, made by whoever comes first and renewed long before its
//! end; and whom the API server is told to trust for it, in the two webhook configurations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt as _};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{RootCertStore, ServerConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::WebhookOptions;
use super::certificate::{self, Certificates};

/// A certificate that ends sooner than this is renewed.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 90);
/// How often the Secret and the configurations are looked at.
const LOOK: Duration = Duration::from_secs(60);
/// How often others may write at the same moment.
const ATTEMPTS: usize = 5;
/// Marks the Secret as one that may be written.
const OURS: &str = "karpenter.k8s.cloudstack/webhook";

const BUNDLE: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// What connections are served with, once it is known.
pub(crate) type Current = Option<Arc<ServerConfig>>;

/// A certificate with its key, and who vouches for it.
pub(crate) struct Held {
    pub(crate) config: Arc<ServerConfig>,
    /// Certificates of authorities in PEM: the one that signed it, and the one before.
    pub(crate) bundle: String,
    /// The key is known by it.
    pub(crate) certificate: String,
}

/// Keeps the Secret and the configurations.
pub(crate) struct Keeper {
    options: WebhookOptions,
    secrets: Api<Secret>,
    validating: Api<ValidatingWebhookConfiguration>,
    mutating: Api<MutatingWebhookConfiguration>,
    clock: SharedClock,
}

impl Keeper {
    pub(crate) fn new(options: WebhookOptions, client: &kube::Client, clock: SharedClock) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &options.namespace),
            validating: Api::all(client.clone()),
            mutating: Api::all(client.clone()),
            options,
            clock,
        }
    }

    /// Looks every minute, until stopped, and says what to serve with. A trouble is told once.
    pub(crate) async fn follow(self, current: watch::Sender<Current>, stop: CancellationToken) {
        let mut told = None;
        let mut shown = String::new();
        loop {
            let Some(looked) = stop.run_until_cancelled(self.look()).await else { return };
            let trouble = match looked {
                Ok((held, trouble)) => {
                    if held.certificate != shown {
                        shown = held.certificate;
                        current.send_replace(Some(held.config));
                    }
                    trouble
                }
                Err(trouble) => Some(trouble),
            };
            if let Some(trouble) = trouble.as_ref().filter(|trouble| told.as_ref() != Some(*trouble)) {
                tracing::warn!("the admission webhook is not called: {trouble}");
            }
            told = trouble;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// What to serve with, made if there is nothing, and whether the API server was told whom to trust for it; if not, why.
    ///
    /// # Errors
    ///
    /// If there is nothing to serve with.
    pub(crate) async fn look(&self) -> Result<(Held, Option<String>), String> {
        for _ in 0..ATTEMPTS {
            // Before the Secret: whoever wrote either since then makes our write a conflict, and newer always wins.
            let validating = self.validating.get_opt(&self.options.name).await;
            let mutating = self.mutating.get_opt(&self.options.name).await;
            let found = self
                .secrets
                .get_opt(&self.options.name)
                .await
                .map_err(|error| format!("Secret {} cannot be read: {error}", self.options))?;
            // One that is not good yet was made by a clock ahead of ours, and perhaps of the API server's.
            let lasting = |secret: &Secret| {
                self.read(secret, self.clock.undoubted_now()).and_then(|_| self.read(secret, self.later()))
            };
            let held = match found.as_ref().map(lasting) {
                Some(Ok(held)) => held,
                _ => match self.renew(found).await? {
                    Some(held) => held,
                    None => continue,
                },
            };
            let told = [
                self.publish(&self.validating, validating, &held.bundle, |configuration| {
                    configuration.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config).collect()
                })
                .await,
                self.publish(&self.mutating, mutating, &held.bundle, |configuration| {
                    configuration.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config).collect()
                })
                .await,
            ];
            if told.iter().any(|told| matches!(told, Ok(false))) {
                continue;
            }
            let troubles: Vec<String> = told.into_iter().filter_map(Result::err).collect();
            return Ok((held, Some(troubles.join("; ")).filter(|text| !text.is_empty())));
        }
        Err(format!("Secret {} and its webhook configurations change all the time", self.options))
    }

    /// Makes a certificate and writes it down in place of what was found. Nothing if somebody else wrote first. What was found and
    /// cannot be replaced will do for as long as it is good.
    pub(crate) async fn renew(&self, found: Option<Secret>) -> Result<Option<Held>, String> {
        let now = self.clock.undoubted_now();
        let otherwise = |trouble: String| match found.as_ref().map(|secret| self.read(secret, now)) {
            Some(Ok(held)) => {
                tracing::warn!("the certificate of the admission webhook is not renewed: {trouble}");
                Ok(Some(held))
            }
            _ => Err(trouble),
        };
        if found.as_ref().is_some_and(|secret| !secret.labels().contains_key(OURS)) {
            return otherwise(format!(
                "Secret {} has no label {OURS}, so it is somebody else's; delete it, or set CLOUDSTACK_WEBHOOK_NAME",
                self.options
            ));
        }
        let made = certificate::make(&self.options.host(), now)
            .map_err(|_| "the system has no randomness for a key".to_owned())?;
        let wanted = self.secret(made, found.as_ref());
        let written = match &found {
            None => self.secrets.create(&PostParams::default(), &wanted).await,
            Some(_) => self.secrets.replace(&self.options.name, &PostParams::default(), &wanted).await,
        };
        match written {
            Ok(_) => {
                tracing::info!(secret = %self.options, "made a certificate for the admission webhook");
                self.read(&wanted, now).map(Some)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => otherwise(format!("Secret {} cannot be written: {error}", self.options)),
        }
    }

    /// When a certificate must still be good that is not to be renewed now.
    fn later(&self) -> Timestamp {
        let now = self.clock.undoubted_now();
        now.checked_add(RENEW_BEFORE).unwrap_or(now)
    }

    /// The Secret as it is to be. Replicas that still show the certificate before are trusted until they look again.
    fn secret(&self, made: Certificates, found: Option<&Secret>) -> Secret {
        let before = found.and_then(|secret| first_certificate(&text_of(secret, BUNDLE).ok()?));
        let bundle = made.authority + &before.unwrap_or_default();
        let data = [(BUNDLE, bundle), (CERTIFICATE, made.certificate), (KEY, made.key)];
        Secret {
            metadata: ObjectMeta {
                name: Some(self.options.name.clone()),
                namespace: Some(self.options.namespace.clone()),
                labels: Some(BTreeMap::from([(OURS.to_owned(), "true".to_owned())])),
                // Only in place of the very one that was found.
                resource_version: found.and_then(Secret::resource_version),
                ..ObjectMeta::default()
            },
            data: Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).into()),
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        }
    }

    /// What a Secret holds, if whoever trusts its bundle would take its certificate at this time.
    fn read(&self, secret: &Secret, at: Timestamp) -> Result<Held, String> {
        let bundle = text_of(secret, BUNDLE)?;
        let certificate = text_of(secret, CERTIFICATE)?;
        let config = serving(&bundle, &certificate, &text_of(secret, KEY)?, &self.options.host(), at)?;
        Ok(Held { config: Arc::new(config), bundle, certificate })
    }

    /// Has a configuration name whom to trust for our Service; what is for other Services is left alone. Whether it does by now: not
    /// if somebody else wrote first.
    async fn publish<K>(
        &self,
        api: &Api<K>,
        found: Result<Option<K>, kube::Error>,
        bundle: &str,
        clients: impl Fn(&mut K) -> Vec<&mut WebhookClientConfig>,
    ) -> Result<bool, String>
    where
        K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let (kind, name) = (K::kind(&()), &self.options.name);
        let missing =
            || format!("there is no {kind} {name}; the chart makes it with cloudstack.webhook.enabled");
        let found = found.map_err(|error| format!("{kind} {name} cannot be read: {error}"))?;
        let before = found.ok_or_else(missing)?;
        let mut after = before.clone();
        for client in clients(&mut after) {
            let ours = client
                .service
                .as_ref()
                .is_some_and(|service| service.name == *name && service.namespace == self.options.namespace);
            if ours {
                client.ca_bundle = Some(ByteString(bundle.as_bytes().to_vec()));
            }
        }
        match writes::patch(api, &before, &after, Lock::Optimistic).await {
            Ok(Written::Conflict) => Ok(false),
            Ok(Written::Gone) => Err(missing()),
            Ok(_) => Ok(true),
            Err(error) => Err(format!("{kind} {name} cannot be written: {error}")),
        }
    }
}

fn text_of(secret: &Secret, key: &str) -> Result<String, String> {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    let text = data.and_then(|data| String::from_utf8(data.0.clone()).ok());
    text.ok_or_else(|| format!("it has no {key}"))
}

/// The first of several certificates, if it is one.
fn first_certificate(bundle: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let end = bundle.find(END)? + END.len();
    let first = bundle.get(..end)?;
    CertificateDer::from_pem_slice(first.as_bytes()).ok()?;
    Some(first.to_owned())
}

/// How to serve under a certificate, if it and its key fit together and whoever trusts this bundle takes it for this host then.
pub(crate) fn serving(
    bundle: &str,
    certificate: &str,
    key: &str,
    host: &str,
    at: Timestamp,
) -> Result<ServerConfig, String> {
    let certificates = |pem: &str| -> Result<Vec<CertificateDer<'static>>, String> {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(bundle)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| error.to_string())?;
    let chain = certificates(certificate)?;
    let first = chain.first().ok_or("there is no certificate")?;
    let host = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let seconds = u64::try_from(at.as_second()).map_err(|error| error.to_string())?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let others = chain.get(1..).unwrap_or_default();
    verifier.verify_server_cert(first, others, &host, &[], at).map_err(|error| error.to_string())?;
    // What is wrong with a key is said without it.
    let key =
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| "its key cannot be read".to_owned())?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
