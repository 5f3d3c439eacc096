//! Keys from a Secret, mounted or read from the cluster, exchanged while everything runs.
//!
//! A new pair is tried before it is used; until it works the old one goes on. So a Secret may be written before the old keys
//! are revoked, or a moment after.

use std::path::PathBuf;
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
use crate::client::http::{HttpError, HttpSettings, HttpTransport, Way};
use crate::client::signature::Credentials;
use crate::client::transport::{Transport, TransportError};
use crate::client::{Accounts, Client, NO_KEYS, Notice, Session, UNKNOWN, only};
use crate::keys::{Keys, KeysError, of_secret, read};
use crate::nodeclass::CredentialsRef;

/// How often files are looked at; Kubernetes itself takes about a minute to change them.
const INTERVAL: Duration = Duration::from_secs(5);
/// When keys that were not taken are tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long a watch may take to begin before it is asked why nothing comes of it.
pub(crate) const WATCH_BEGINS: Duration = Duration::from_secs(15);
/// How often the Secret a NodeClass names is read.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// How an address becomes a road to it, the way its keys say.
pub type Roads = Arc<dyn Fn(&str, &Way) -> Result<Arc<dyn Transport>, HttpError> + Send + Sync>;

/// Roads by HTTP. One on which nobody's certificate is checked is told of whenever it is taken.
pub fn http_roads(settings: HttpSettings) -> Roads {
    Arc::new(move |endpoint, way| {
        let settings = settings.on(way);
        let transport = HttpTransport::new(endpoint, &settings)?;
        if !settings.verify {
            let said = if way.ssl_no_verify { "ssl-no-verify of the keys" } else { "CLOUDSTACK_VERIFY_SSL" };
            tracing::warn!(endpoint, said, "{}", crate::client::http::NOT_CHECKED);
        }
        Ok(Arc::new(transport) as Arc<dyn Transport>)
    })
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
        project: None,
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

/// The files of a mounted Secret.
pub(crate) struct Files {
    pub(crate) directory: PathBuf,
    pub(crate) keeper: KeyKeeper,
}

impl Files {
    /// What they say as the program begins. Files that are not all there yet, or make no sense, may be put right while it runs.
    pub(crate) fn begin(&self) {
        match read(&self.directory) {
            Ok(keys) => self.keeper.begin(keys),
            Err(error) => self.keeper.cannot_read(&error),
        }
    }

    /// Watches the files and changes the client's session when they change, until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let files = Arc::new(self);
        let look = Arc::downgrade(&files);
        files.keeper.client.look_for_keys_by(Arc::new(move || {
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

    /// Takes up what the files say; whether that is something new.
    async fn follow(&self) -> bool {
        let before = self.keeper.current().clone();
        match read(&self.directory) {
            Ok(keys) => {
                self.keeper.take(keys).await;
            }
            Err(error) => self.keeper.cannot_read(&error),
        }
        *self.keeper.current() != before
    }
}

/// Whose the keys in use are, as far as that stands in the way of new ones of these accounts.
async fn whose_were(client: &Client, theirs: &Accounts) -> Result<Option<Accounts>, String> {
    match client.account().await {
        Ok(ours) => Ok(Some(ours)),
        // Refused ever since we began: they will never say whose they were. What was made with them before that, NodeClaims record.
        Err(error) if error.kind == ErrorKind::Auth => Ok(None),
        // An address that leads nowhere: nothing was made there, and it will never say whose they are.
        Err(error)
            if error.is_nobodys_answer() && client.made().is_some_and(|made| made.is_all_of(theirs)) =>
        {
            Ok(None)
        }
        Err(error) => Err(format!(
            "whose the old ones are cannot be found out: {error}; restart Karpenter if the new ones are meant"
        )),
    }
}

/// Tries new keys and uses them if they work and see the same machines, that is, are of the same account; whether they do.
/// Where the old ones never worked, so that nobody knows whose they were, only what NodeClaims record can be held against them;
/// and where nothing was made, keys of any account will do.
async fn exchange(client: &Client, keys: Keys, roads: &Roads) -> bool {
    let place = keys.place.clone();
    let before = client.session();
    // The same keys at the same address are the same user's, whatever the way there, even if the old way leads nowhere.
    let is_same_user = before.credentials == keys.credentials && before.endpoint == keys.api_url;
    let is_other_way_only = is_same_user && before.project == keys.project;
    let tried = async {
        let session = keys.session(roads).map_err(|error| error.to_string())?;
        let capabilities = match client.probe(&session).await {
            Ok(capabilities) => Some(capabilities),
            // Who may not ask that was let in all the same.
            Err(error) if error.is_a_verdict() => None,
            Err(error) => return Err(error.to_string()),
        };
        let theirs = client.account_of(&session).await.map_err(|error| error.to_string())?;
        let ours = if is_same_user { None } else { whose_were(client, &theirs).await? };
        // Names can be changed; ids cannot. Of several accounts nobody knows which is meant.
        let same = |ours: &Accounts| only(ours).is_some() && only(ours) == only(&theirs);
        let may_be_made = client.made().is_none_or(|made| made.anything);
        if let Some(ours) = ours.as_ref().filter(|ours| !same(ours))
            && may_be_made
        {
            let names = |accounts: &Accounts| accounts.values().cloned().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "they are of account {} at {}, the machines are of account {}; restart Karpenter if that is meant",
                names(&theirs),
                session.endpoint,
                names(ours)
            ));
        }
        let same_project = before.project == session.project || !client.keys_choose_project();
        if !same_project && may_be_made {
            let named =
                |project: Option<&str>| project.map_or("no project".to_owned(), |id| format!("project {id}"));
            return Err(format!(
                "project-id names {} instead of {}, and machines are where it was; name projects in NodeClasses (spec.projectID), or restart Karpenter if that is meant",
                named(session.project.as_deref()),
                named(before.project.as_deref())
            ));
        }
        if (is_same_user || ours.as_ref().is_some_and(same)) && same_project {
            client.become_session(session);
        } else {
            client.move_to(session);
        }
        if let Some(capabilities) = capabilities {
            client.heed(&capabilities);
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
            tracing::error!(%problem, %place, "the new keys are not used; the old ones go on");
            let text = if is_other_way_only {
                format!(
                    "the new way to the server that {place} names (ca-bundle, proxy and the like) is not taken, the old one goes on: {problem}"
                )
            } else {
                format!("the new keys of {place} are not used, the old ones go on: {problem}")
            };
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
        self.client.set_lost_its_secret(false);
        match of_secret(place, secret) {
            Ok(keys) => self.take(keys).await,
            Err(error) => {
                self.cannot_read(&error);
                true
            }
        }
    }

    /// Takes up these keys; whether there is nothing left to do about them.
    async fn take(&self, keys: Keys) -> bool {
        let before = self.current().clone();
        if before.as_ref() == Some(&keys) {
            // Put back, perhaps, after others were refused.
            self.client.set_notice(None);
            return true;
        }
        if before.is_none() {
            self.begin(keys);
            return true;
        }
        let taken = exchange(&self.client, keys.clone(), &self.roads).await;
        if taken {
            *self.current() = Some(keys);
        }
        taken
    }

    /// The first keys are better than none: whatever is wrong with them, conditions will say it.
    fn begin(&self, keys: Keys) {
        match keys.clone().session(&self.roads) {
            Ok(session) => {
                self.client.become_session(session);
                self.client.set_notice(None);
                *self.current() = Some(keys);
            }
            Err(error) => {
                tracing::error!(%error, "the keys cannot be used");
                self.without(error.to_string());
            }
        }
    }

    fn cannot_read(&self, error: &KeysError) {
        tracing::error!(%error, "the keys cannot be read");
        self.without(error.to_string());
    }

    /// Reads a Secret and takes up what it says; whether there is nothing left to do about it.
    async fn read(&self, secrets: &Api<Secret>, name: &str, place: &str, rights: &str) -> bool {
        let problem = match secrets.get_opt(name).await {
            Ok(Some(secret)) => return self.take_up(place, &secret).await,
            Ok(None) => {
                self.lost(place);
                return false;
            }
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

    /// The Secret is not there, and was perhaps.
    fn lost(&self, place: &str) {
        tracing::warn!(%place, "is not there");
        self.client.set_lost_its_secret(true);
        self.without(missing(place));
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
                self.keeper.lost(&place);
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
#[path = "credentials_tests.rs"]
mod tests;
