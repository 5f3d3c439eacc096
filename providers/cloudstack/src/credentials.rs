//! Keys from a Secret, mounted or read from the cluster, exchanged while everything runs.
//!
//! A new pair is tried before it is used; until it works the old one goes on. So a Secret may be written before the old keys
//! are revoked, or a moment after.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::client::error::ErrorKind;
use crate::client::http::{HttpError, HttpSettings, HttpTransport};
use crate::client::signature::Credentials;
use crate::client::transport::{Transport, TransportError};
use crate::client::{Accounts, Client, NO_KEYS, Notice, Session, UNKNOWN, only};
use crate::nodeclass::CredentialsRef;

/// How often files are looked at; Kubernetes itself takes about a minute to change them.
const INTERVAL: Duration = Duration::from_secs(5);
/// When keys that were not taken are tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long a watch may take to begin before it is asked why nothing comes of it.
pub(crate) const WATCH_BEGINS: Duration = Duration::from_secs(15);
/// How often the Secret a NodeClass names is read.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// How an address becomes a road to it.
pub type Roads = Arc<dyn Fn(&str) -> Result<Arc<dyn Transport>, HttpError> + Send + Sync>;

/// Roads by HTTP.
pub fn http_roads(settings: HttpSettings) -> Roads {
    Arc::new(move |endpoint| Ok(Arc::new(HttpTransport::new(endpoint, &settings)?) as Arc<dyn Transport>))
}

/// What a Secret says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) api_url: String,
    pub(crate) credentials: Credentials,
}

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeysError {
    #[error(
        "{place}: {problem}; the Secret needs the keys api-url, api-key and secret-key (or cloud-config, as the cloud controller manager has it)"
    )]
    Missing { place: String, problem: String },
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Puts keys together from named values.
fn keys(place: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<Keys, KeysError> {
    let missing = |problem: String| KeysError::Missing { place: place.to_owned(), problem };
    let named = |name: &str| match value(name) {
        Ok(text) if text.trim().is_empty() => Err(missing(format!("{name} is empty"))),
        Ok(text) => Ok(text.trim().to_owned()),
        Err(problem) => Err(missing(format!("{name}: {problem}"))),
    };
    if value("api-url").is_err()
        && let Ok(config) = value("cloud-config")
    {
        let of_config = |name: &str| {
            let line =
                config.lines().filter_map(|line| line.split_once('=')).find(|(key, _)| key.trim() == name);
            let found = line.map(|(_, value)| value.trim().trim_matches('"').trim().to_owned());
            found
                .filter(|value| !value.is_empty())
                .ok_or_else(|| missing(format!("cloud-config has no {name}, or an empty one")))
        };
        return Ok(Keys {
            api_url: of_config("api-url")?,
            credentials: Credentials::new(of_config("api-key")?, of_config("secret-key")?),
        });
    }
    Ok(Keys {
        api_url: named("api-url")?,
        credentials: Credentials::new(named("api-key")?, named("secret-key")?),
    })
}

/// Reads the keys of a mounted Secret.
pub(crate) fn read(directory: &Path) -> Result<Keys, KeysError> {
    keys(&directory.display().to_string(), |name| {
        std::fs::read_to_string(directory.join(name)).map_err(|error| error.to_string())
    })
}

/// Reads the keys of a Secret.
pub(crate) fn of_secret(place: &str, secret: &Secret) -> Result<Keys, KeysError> {
    keys(place, |name| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(name)).ok_or("there is none")?;
        String::from_utf8(bytes.0.clone()).map_err(|_| "it is no text".to_owned())
    })
}

impl Keys {
    /// A session with these keys.
    pub(crate) fn session(self, roads: &Roads) -> Result<Session, KeysError> {
        let transport = roads(&self.api_url)?;
        let Self { api_url: endpoint, credentials } = self;
        Ok(Session { endpoint, credentials, transport })
    }
}

/// A session of somebody who has no keys yet: every call says what is missing.
pub(crate) fn no_session(why: String) -> Session {
    nobodys(UNKNOWN, why)
}

fn nobodys(endpoint: &str, why: String) -> Session {
    Session {
        endpoint: endpoint.to_owned(),
        credentials: Credentials::new("none", "none"),
        transport: Arc::new(Nowhere(why)),
    }
}

struct Nowhere(String);

impl Transport for Nowhere {
    fn send(
        &self,
        _: http::Request<bytes::Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<bytes::Bytes>, TransportError>> {
        std::future::ready(Err(TransportError::NotSent(self.0.clone()))).boxed()
    }
}

/// Watches the files and changes the client's session when they change, until stopped.
pub(crate) async fn follow(
    directory: PathBuf,
    current: Keys,
    roads: Roads,
    client: Client,
    stop: CancellationToken,
) {
    let files = Arc::new(Files { directory, roads, current: Mutex::new(current), client: client.clone() });
    let look = Arc::downgrade(&files);
    client.look_for_keys_by(Arc::new(move || {
        let look = look.upgrade();
        async move {
            match look {
                Some(files) => files.follow().await,
                None => false,
            }
        }
        .boxed()
    }));
    while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
        files.follow().await;
    }
}

/// The files of a mounted Secret.
struct Files {
    directory: PathBuf,
    roads: Roads,
    client: Client,
    current: Mutex<Keys>,
}

impl Files {
    /// Takes up what the files say; whether that is something new.
    async fn follow(&self) -> bool {
        let current = || self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match read(&self.directory) {
            Ok(keys) if keys == *current() => {
                // Put back, perhaps, after others were refused.
                self.client.set_notice(None);
                false
            }
            Ok(keys) => {
                let taken = exchange(&self.client, keys.clone(), &self.roads).await;
                if taken {
                    *current() = keys;
                }
                taken
            }
            Err(error) => {
                tracing::error!(%error, "the keys cannot be read; the old ones go on");
                let text = format!("{error}; the keys read before go on");
                self.client.set_notice(Some(Notice { reason: "SecretNotUsable", text }));
                false
            }
        }
    }
}

/// Tries new keys and uses them if they work and see the same machines, that is, are of the same account; whether they do.
/// Where the old ones never worked, so that nobody knows whose they were, only what NodeClaims record can be held against them;
/// and where nothing was made, keys of any account will do.
async fn exchange(client: &Client, keys: Keys, roads: &Roads) -> bool {
    let tried = async {
        let session = keys.session(roads).map_err(|error| error.to_string())?;
        client.probe(&session).await.map_err(|error| error.to_string())?;
        let theirs = client.account_of(&session).await.map_err(|error| error.to_string())?;
        let ours = match client.account().await {
            Ok(ours) => Some(ours),
            // Refused ever since we began: they will never say whose they were. What was made with them before that, NodeClaims record.
            Err(error) if error.kind == ErrorKind::Auth => None,
            // An address that leads nowhere: nothing was made there, and it will never say whose they are.
            Err(error)
                if error.is_nobodys_answer() && client.made().is_some_and(|made| made.is_all_of(&theirs)) =>
            {
                None
            }
            Err(error) => {
                return Err(format!(
                    "whose the old ones are cannot be found out: {error}; restart Karpenter if the new ones are meant"
                ));
            }
        };
        // Names can be changed; ids cannot. Of several accounts nobody knows which is meant.
        let same = |ours: &Accounts| only(ours).is_some() && only(ours) == only(&theirs);
        if let Some(ours) = ours.as_ref().filter(|ours| !same(ours))
            && client.made().is_none_or(|made| made.anything)
        {
            let names = |accounts: &Accounts| accounts.values().cloned().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "they are of account {} at {}, the machines are of account {}; restart Karpenter if that is meant",
                names(&theirs),
                session.endpoint,
                names(ours)
            ));
        }
        if ours.as_ref().is_some_and(same) {
            client.become_session(session);
        } else {
            client.move_to(session);
        }
        client.set_account(Some(theirs));
        Ok::<(), String>(())
    };
    match tried.await {
        Ok(()) => {
            tracing::info!("CloudStack takes the new keys");
            client.set_notice(None);
            true
        }
        Err(problem) => {
            tracing::error!(%problem, "the new keys are not used; the old ones go on");
            let text = format!("the new keys are not used, the old ones go on: {problem}");
            client.set_notice(Some(Notice { reason: "NewKeysRefused", text }));
            false
        }
    }
}

/// Takes up what a Secret says, wherever it was read.
pub(crate) struct KeyKeeper {
    roads: Roads,
    client: Client,
    current: Mutex<Option<Keys>>,
}

impl KeyKeeper {
    pub(crate) fn new(roads: &Roads, client: Client) -> Self {
        Self { roads: Arc::clone(roads), client, current: Mutex::default() }
    }

    fn current(&self) -> MutexGuard<'_, Option<Keys>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up the keys of this Secret; whether there is nothing left to do about them.
    async fn take_up(&self, place: &str, secret: &Secret) -> bool {
        let keys = match of_secret(place, secret) {
            Ok(keys) => keys,
            Err(error) => {
                tracing::error!(%error, "the keys cannot be read");
                self.without(error.to_string());
                return true;
            }
        };
        let before = self.current().clone();
        if before.as_ref() == Some(&keys) {
            // Put back, perhaps, after others were refused.
            self.client.set_notice(None);
            return true;
        }
        if before.is_none() {
            // The first keys are better than none: whatever is wrong with them, conditions will say it.
            match keys.clone().session(&self.roads) {
                Ok(session) => {
                    self.client.become_session(session);
                    self.client.set_notice(None);
                }
                Err(error) => {
                    tracing::error!(%error, "the keys cannot be used");
                    self.without(error.to_string());
                    return true;
                }
            }
            *self.current() = Some(keys);
            return true;
        }
        let taken = exchange(&self.client, keys.clone(), &self.roads).await;
        if taken {
            *self.current() = Some(keys);
        }
        taken
    }

    /// Reads a Secret and takes up what it says; whether there is nothing left to do about it.
    async fn read(&self, secrets: &Api<Secret>, name: &str, place: &str, rights: &str) -> bool {
        let problem = match secrets.get_opt(name).await {
            Ok(Some(secret)) => return self.take_up(place, &secret).await,
            Ok(None) => missing(place),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                format!("{place} may not be read; {rights}")
            }
            Err(error) => {
                // The cluster's own trouble passes, and says nothing about the Secret.
                tracing::warn!(%error, %place, "cannot be read yet");
                return false;
            }
        };
        tracing::warn!("{problem}");
        self.without(problem);
        false
    }

    /// There is nothing to read: what runs goes on, and who never had keys says why.
    fn without(&self, problem: String) {
        if self.current().is_some() {
            let text = format!("{problem}; the keys read before go on");
            self.client.set_notice(Some(Notice { reason: "SecretNotUsable", text }));
            return;
        }
        let session = self.client.session();
        let said = self.client.notice().map(|notice| notice.text);
        if !session.has_no_keys() || said.as_ref() != Some(&problem) {
            self.client.become_session(nobodys(NO_KEYS, problem.clone()));
        }
        self.client.set_notice(Some(Notice { reason: "SecretNotUsable", text: problem }));
    }
}

fn missing(place: &str) -> String {
    format!("there is no {place}; create it with the keys api-url, api-key and secret-key")
}

/// Keeps the client's session as a Secret of the cluster says, which is watched.
pub(crate) struct SecretKeys {
    pub(crate) secrets: Store<Secret>,
    pub(crate) api: Api<Secret>,
    pub(crate) keeper: KeyKeeper,
}

/// Follows the Secret as it changes.
pub(crate) struct FollowsSecret(pub(crate) Arc<SecretKeys>);

impl Reconciler for FollowsSecret {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        self.0.follow(key).await
    }
}

impl SecretKeys {
    /// Has the client look here before it passes a refusal on: the Secret may have changed a moment ago.
    pub(crate) fn be_asked_for(self: &Arc<Self>, key: ObjectKey) {
        let look = Arc::downgrade(self);
        self.keeper.client.look_for_keys_by(Arc::new(move || {
            let (look, key) = (look.upgrade(), key.clone());
            async move {
                let Some(look) = look else { return false };
                let before = look.keeper.client.session().credentials;
                let _ = look.follow(key).await;
                look.keeper.client.session().credentials != before
            }
            .boxed()
        }));
    }

    async fn follow(&self, key: ObjectKey) -> ReconcileResult {
        let place = format!("Secret {key}");
        let is_watched = self.secrets.is_synced();
        let settled = match self.secrets.get(&key) {
            Some(secret) => self.keeper.take_up(&place, &secret).await,
            // Whoever deletes it may be about to write it anew; what runs goes on.
            None if is_watched => {
                tracing::warn!(%place, "is not there");
                self.keeper.without(missing(&place));
                true
            }
            // Why a watch does not begin only the log knows.
            None => {
                let rights = "let Karpenter's service account get, list and watch it by a Role";
                self.keeper.read(&self.api, &key.name, &place, rights).await
            }
        };
        Ok(if settled && is_watched { Outcome::Done } else { Outcome::After(AGAIN) })
    }
}

/// Keeps the client's session as a Secret says that a NodeClass names. It is read now and then, and when a call is refused, so
/// that the right to get this very Secret is enough.
pub(crate) struct NamedKeys {
    pub(crate) reference: CredentialsRef,
    pub(crate) cluster: kube::Client,
    pub(crate) keeper: KeyKeeper,
}

impl NamedKeys {
    /// Reads the Secret until stopped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let look = Arc::downgrade(&self);
        self.keeper.client.look_for_keys_by(Arc::new(move || {
            let look = look.upgrade();
            async move {
                let Some(look) = look else { return false };
                let before = look.keeper.client.session().credentials;
                look.follow().await;
                look.keeper.client.session().credentials != before
            }
            .boxed()
        }));
        loop {
            let pause = if self.follow().await { READ_AGAIN } else { AGAIN };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// Takes up what the Secret says; whether there is nothing left to do about it.
    async fn follow(&self) -> bool {
        let CredentialsRef { namespace, name } = &self.reference;
        let place = format!("Secret {namespace}/{name}");
        let secrets = Api::namespaced(self.cluster.clone(), namespace);
        let rights =
            "let Karpenter's service account get it by a Role (cloudstack.credentialsSecrets of the chart)";
        self.keeper.read(&secrets, name, &place, rights).await
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::client::{Estate, Made};

    #[test]
    fn a_secret_that_lacks_a_key_says_which() {
        let directory =
            std::env::temp_dir().join(format!("karpenter-cloudstack-keys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("api-url"), "https://cloud/client/api\n").expect("a file");
        std::fs::write(directory.join("api-key"), "key\n").expect("a file");
        let error = read(&directory).err().expect("no secret-key").to_string();
        assert!(error.contains("secret-key") && error.contains("api-url, api-key and secret-key"), "{error}");
        std::fs::write(directory.join("secret-key"), "secret\n").expect("a file");
        let url = read(&directory).map(|credentials| credentials.api_url);
        assert_eq!(url.expect("keys"), "https://cloud/client/api");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn the_secret_of_the_cloud_controller_manager_will_do() {
        let config = "[Global]\napi-url = https://cloud/client/api\napi-key = key\nsecret-key = secret\n";
        let data = [("cloud-config".to_owned(), ByteString(config.into()))].into();
        let secret = Secret { data: Some(data), ..Secret::default() };
        let keys = of_secret("Secret x", &secret).expect("keys");
        assert_eq!((keys.api_url.as_str(), keys.credentials.api_key()), ("https://cloud/client/api", "key"));
        let error = of_secret("Secret x", &Secret::default()).err().expect("nothing").to_string();
        assert!(error.contains("Secret x") && error.contains("cloud-config"), "{error}");
    }

    #[test]
    fn a_cloud_config_with_an_empty_key_is_none() {
        for config in [
            "api-url = https://cloud/client/api\napi-key =\nsecret-key = secret\n",
            "api-url = https://cloud/client/api\napi-key = \" \"\nsecret-key = secret\n",
        ] {
            let data = [("cloud-config".to_owned(), ByteString(config.into()))].into();
            let secret = Secret { data: Some(data), ..Secret::default() };
            let error = of_secret("Secret x", &secret).err().expect("no key").to_string();
            assert!(error.contains("api-key, or an empty one"), "{error}");
        }
    }

    /// A server that knows the accounts of some keys.
    #[derive(Default)]
    struct Doorman(Mutex<std::collections::BTreeMap<&'static str, &'static str>>);

    impl Doorman {
        fn knows(&self, keys: &[(&'static str, &'static str)]) {
            *self.0.lock().expect("a lock") = keys.iter().copied().collect();
        }
    }

    impl Transport for Doorman {
        fn send(
            &self,
            request: http::Request<bytes::Bytes>,
        ) -> BoxFuture<'_, Result<http::Response<bytes::Bytes>, TransportError>> {
            let asked =
                format!("{}&{}", request.uri(), String::from_utf8_lossy(request.body())).to_lowercase();
            let known = self.0.lock().expect("a lock");
            let account = known.iter().find(|(key, _)| asked.contains(&format!("apikey={key}")));
            let (status, body) = match account {
                None => {
                    (401, r#"{"errorcode":401,"errortext":"unable to verify user credentials"}"#.to_owned())
                }
                Some((_, &"unknown")) if asked.contains("listaccounts") => {
                    (530, r#"{"errorcode":530,"errortext":"internal error"}"#.to_owned())
                }
                Some((_, &"many")) if asked.contains("listaccounts") => {
                    let rows = r#"{"id":"id-many","name":"many"},{"id":"id-more","name":"more"}"#;
                    (200, format!(r#"{{"count":2,"account":[{rows}]}}"#))
                }
                Some((_, account)) if asked.contains("listaccounts") => {
                    (200, format!(r#"{{"count":1,"account":[{{"id":"id-{account}","name":"{account}"}}]}}"#))
                }
                Some(_) => (200, r#"{"capability":{}}"#.to_owned()),
            };
            let command = match asked.contains("command=listaccounts") {
                true => "listaccounts",
                false => "listcapabilities",
            };
            let answer = http::Response::builder().status(status);
            let answer = answer.body(format!(r#"{{"{command}response":{body}}}"#).into()).expect("an answer");
            std::future::ready(Ok(answer)).boxed()
        }
    }

    fn pair(key: &str) -> Keys {
        Keys { api_url: "https://cloud/client/api".into(), credentials: Credentials::new(key, "secret") }
    }

    /// A client with the keys "old" of account "ours".
    fn at_the_door() -> (Arc<Doorman>, Roads, Client) {
        let doorman = Arc::new(Doorman::default());
        doorman.knows(&[("old", "ours"), ("new", "ours"), ("foreign", "theirs")]);
        let there = Arc::clone(&doorman);
        let roads: Roads = Arc::new(move |_| Ok(Arc::clone(&there) as Arc<dyn Transport>));
        let environment = karpenter_runtime::environment::Environment::seeded(
            "2026-01-01T00:00:00Z".parse().expect("a time"),
            1,
        );
        let session = pair("old").session(&roads).expect("a session");
        let client = Client::new(session, crate::client::throttle::Rate::default(), &environment);
        (doorman, roads, client)
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_another_account_are_not_taken_and_those_of_the_same_are() {
        let (doorman, roads, client) = at_the_door();
        assert!(!exchange(&client, pair("foreign"), &roads).await, "its machines are others");
        let notice = client.notice().expect("a notice").text;
        assert!(notice.contains("account theirs") && notice.contains("account ours"), "{notice}");
        assert_eq!(client.session().credentials.api_key(), "old");
        // Revoked meanwhile: whose they were is remembered.
        doorman.knows(&[("new", "ours"), ("foreign", "theirs")]);
        assert!(!exchange(&client, pair("foreign"), &roads).await);
        assert!(exchange(&client, pair("new"), &roads).await);
        assert_eq!((client.notice(), client.session().credentials.api_key()), (None, "new"));
        assert!(!exchange(&client, pair("foreign"), &roads).await, "held against the new ones now");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_not_taken_where_the_server_shows_many_accounts_and_not_whose_they_are() {
        let (doorman, roads, client) = at_the_door();
        doorman.knows(&[("old", "many"), ("new", "many")]);
        assert!(!exchange(&client, pair("new"), &roads).await);
        let notice = client.notice().expect("a notice").text;
        assert!(notice.contains("account many, more") && notice.contains("restart Karpenter"), "{notice}");
        assert_eq!(client.session().credentials.api_key(), "old");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_never_worked_do_not_stand_in_the_way_of_those_that_do() {
        let (doorman, roads, client) = at_the_door();
        doorman.knows(&[("new", "ours")]);
        assert!(exchange(&client, pair("new"), &roads).await);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_not_taken_while_nobody_can_say_whose_the_old_ones_are() {
        let (doorman, roads, client) = at_the_door();
        doorman.knows(&[("old", "unknown"), ("foreign", "theirs")]);
        assert!(!exchange(&client, pair("foreign"), &roads).await);
        let notice = client.notice().expect("a notice").text;
        assert!(notice.contains("whose the old ones are"), "{notice}");
        assert_eq!(client.session().credentials.api_key(), "old");
    }

    /// The Secrets of a cluster that refuses to show any.
    fn refusing(code: u16, reason: &'static str) -> Api<Secret> {
        let answer = move |_: http::Request<kube::client::Body>| async move {
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": reason, "code": code});
            let body = kube::client::Body::from(status.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).expect("an answer");
            Ok::<_, std::convert::Infallible>(answer)
        };
        Api::namespaced(kube::Client::new(tower::service_fn(answer), "default"), "karpenter")
    }

    #[tokio::test]
    async fn a_secret_that_may_not_be_read_is_told_from_one_that_is_not_there() {
        let (_, roads, client) = at_the_door();
        let key = ObjectKey::namespaced("karpenter", "keys");
        let watching = |api: Api<Secret>| SecretKeys {
            secrets: Store::new(),
            api,
            keeper: KeyKeeper::new(&roads, client.clone()),
        };
        let said = || client.notice().map(|notice| notice.text).unwrap_or_default();
        let forbidden = watching(refusing(403, "Forbidden"));
        assert!(forbidden.follow(key.clone()).await.is_ok());
        assert!(
            said().contains("Secret karpenter/keys may not be read") && said().contains("Role"),
            "{}",
            said()
        );
        let missing = watching(refusing(404, "NotFound"));
        assert!(missing.follow(key.clone()).await.is_ok());
        assert!(said().starts_with("there is no Secret karpenter/keys; create it"), "{}", said());
        // Deleted while it is used.
        let entry = |name: &str, text: &str| (name.to_owned(), ByteString(text.into()));
        let data =
            [entry("api-url", "https://cloud/client/api"), entry("api-key", "old"), entry("secret-key", "s")];
        let secret = Secret { data: Some(data.into()), ..Secret::default() };
        assert!(missing.keeper.take_up("Secret karpenter/keys", &secret).await);
        assert_eq!(said(), "");
        assert!(missing.follow(key).await.is_ok());
        assert!(said().contains("the keys read before go on"), "{}", said());
        assert_eq!(client.session().credentials.api_key(), "old");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_whose_files_are_gone_go_on_and_are_told_of() {
        let (_, roads, client) = at_the_door();
        let directory = std::env::temp_dir().join(format!("karpenter-keys-gone-{}", std::process::id()));
        let files = Files { directory, roads, client: client.clone(), current: Mutex::new(pair("old")) };
        assert!(!files.follow().await);
        let notice = client.notice().expect("a notice");
        assert_eq!(notice.reason, "SecretNotUsable");
        assert!(
            notice.text.contains("karpenter-keys-gone") && notice.text.contains("go on"),
            "{}",
            notice.text
        );
        assert_eq!(client.session().credentials.api_key(), "old");
    }

    /// What the cluster says was made.
    struct Recorded(Made);

    impl Estate for Recorded {
        fn made(&self) -> Option<Made> {
            Some(self.0.clone())
        }

        fn forget(&self) {}
    }

    fn recorded(client: &Client, made: Made) -> Arc<dyn Estate> {
        let estate: Arc<dyn Estate> = Arc::new(Recorded(made));
        client.has_estate(Arc::downgrade(&estate));
        estate
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_never_answered_does_not_stand_in_the_way_of_the_right_one() {
        let (_, roads, client) = at_the_door();
        client.become_session(nobodys("https://clodu/client/api", "nobody listens there".into()));
        assert!(!exchange(&client, pair("new"), &roads).await, "what was made is not known");
        let of = |accounts: &[&str], unrecorded| Made {
            accounts: accounts.iter().map(|account| (*account).to_owned()).collect(),
            unrecorded,
            anything: true,
        };
        let _theirs = recorded(&client, of(&["id-theirs"], false));
        assert!(!exchange(&client, pair("new"), &roads).await, "machines are of another account");
        let _unrecorded = recorded(&client, of(&["id-ours"], true));
        assert!(!exchange(&client, pair("new"), &roads).await, "of one machine nobody knows");
        let _ours = recorded(&client, of(&["id-ours"], false));
        assert!(exchange(&client, pair("new"), &roads).await);
        assert_eq!((client.notice(), client.session().credentials.api_key()), (None, "new"));
    }

    /// Counts how often everything was forgotten.
    #[derive(Default)]
    struct Forgetful(std::sync::atomic::AtomicUsize);

    impl Estate for Forgetful {
        fn made(&self) -> Option<Made> {
            None
        }

        fn forget(&self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_keys_saw_is_forgotten_unless_the_new_ones_are_known_to_see_the_same() {
        let (doorman, roads, client) = at_the_door();
        let estate = Arc::new(Forgetful::default());
        let seen: Arc<dyn Estate> = estate.clone();
        client.has_estate(Arc::downgrade(&seen));
        let forgotten = || estate.0.load(std::sync::atomic::Ordering::Relaxed);
        // Refused before they said whose they are.
        doorman.knows(&[("new", "ours"), ("old", "ours")]);
        client.become_session(pair("revoked").session(&roads).expect("a session"));
        assert!(exchange(&client, pair("new"), &roads).await);
        assert_eq!(forgotten(), 1);
        assert!(exchange(&client, pair("old"), &roads).await);
        assert_eq!(forgotten(), 1, "of the same account");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_another_account_are_taken_while_nothing_was_made() {
        let (_, roads, client) = at_the_door();
        let something = recorded(&client, Made { anything: true, ..Made::default() });
        assert!(!exchange(&client, pair("foreign"), &roads).await);
        drop(something);
        assert!(!exchange(&client, pair("foreign"), &roads).await, "what was made is not known");
        let _nothing = recorded(&client, Made::default());
        assert!(exchange(&client, pair("foreign"), &roads).await);
        assert_eq!(client.session().credentials.api_key(), "foreign");
        let _nothing = recorded(&client, Made { anything: true, ..Made::default() });
        assert!(!exchange(&client, pair("new"), &roads).await, "held against the new ones now");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_refused_any_more_once_the_old_keys_are_back() {
        let (_, roads, client) = at_the_door();
        let directory = std::env::temp_dir().join(format!("karpenter-keys-back-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
        write("api-url", "https://cloud/client/api");
        write("secret-key", "secret");
        write("api-key", "wrong");
        let stop = CancellationToken::new();
        let follows =
            tokio::spawn(follow(directory.clone(), pair("old"), roads, client.clone(), stop.clone()));
        tokio::time::sleep(INTERVAL * 3).await;
        assert!(client.notice().is_some(), "wrong keys are told of");
        write("api-key", "old");
        tokio::time::sleep(INTERVAL * 3).await;
        assert_eq!(client.notice(), None);
        stop.cancel();
        follows.await.expect("it ends");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
