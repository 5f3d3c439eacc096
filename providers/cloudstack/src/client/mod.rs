//! The wire to CloudStack: signs, holds back, retries what may be retried, pages, and says what went wrong. Nothing else in the
//! provider speaks HTTP.
//!
//! | Module | What it is |
//! |---|---|
//! | [`request`], [`requests`] | what can be asked, as values |
//! | [`signature`] | keys and signatures |
//! | [`transport`], [`http`] | the road, and the real one |
//! | [`throttle`] | not too much at once |
//! | `envelope` | requests and answers as they travel |
//! | [`error`], [`job`], [`model`], [`host`] | what comes back |
//! | `refused_keys`, `maintenance` | what is not sent again at once |
//! | `estate` | what was made with the keys, which others must not make look gone |

mod envelope;
pub mod error;
mod estate;
pub mod host;
pub mod http;
pub mod job;
mod maintenance;
pub mod model;
mod refused_keys;
pub mod request;
pub mod requests;
pub mod signature;
pub mod throttle;
pub mod transport;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::entropy::Stream;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::metrics::{CounterVec, DURATION_BUCKETS, GaugeVec, HistogramVec};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::Instrument as _;
use tracing::field::Empty;

pub(crate) use envelope::decoded;
use envelope::{allowed_page_size, has_key, http_request, lacking, named, opened, rows};
use error::{ApiError, ErrorKind};
pub(crate) use estate::{Accounts, Estate, Made, only};
use job::Job;
use maintenance::Maintenance;
use model::Capabilities;
use refused_keys::{RefusedKeys, Word};
use request::Request;
use signature::Credentials;
use throttle::{Lane, Rate, Throttle};
use transport::{Transport, TransportError};

/// A read that takes longer than this is tried again.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Deployments of one account queue up at the server: 58 s were measured for 40 at once.
const WRITE_TIMEOUT: Duration = Duration::from_secs(180);
/// Attempts of a call that may be repeated.
const ATTEMPTS: u32 = 4;
/// First pause between attempts; it doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a call waits for the first keys, while it is not known yet whether there are any.
const FIRST_KEYS: Duration = Duration::from_secs(5);
/// What a server takes as a page unless configured otherwise.
const PAGE_SIZE: usize = 500;
/// How long a server is believed to take smaller pages only.
const PAGE_SIZE_HOLDS: Duration = Duration::from_secs(10 * 60);
/// The command that lists machines.
const MACHINES: &str = "listVirtualMachines";
/// More pages than this are a server that never ends.
const MAX_PAGES: usize = 1000;

/// The status of who is asked too often, whoever says so.
const TOO_MANY: u16 = 429;

/// The metric that says when the server last answered; readiness looks at it.
pub const LAST_SUCCESS: &str = "karpenter_cloudstack_api_last_success_timestamp_seconds";

/// Where the server is and who we are there.
#[derive(Clone)]
pub struct Session {
    /// The address, such as `https://cloud.example.com/client/api`.
    pub endpoint: String,
    /// Our keys.
    pub credentials: Credentials,
    /// The road there.
    pub transport: Arc<dyn Transport>,
    /// The project everything belongs to, where neither a NodeClass nor the settings name one.
    pub project: Option<String>,
}

/// The address of a server nobody has keys for: where they were to be, there are none.
pub(crate) const NO_KEYS: &str = "https://no-keys.invalid/client/api";

/// The address of a server nobody has keys for yet.
pub(crate) const UNKNOWN: &str = "https://unknown.invalid/client/api";

impl Session {
    /// Whether nobody has keys for it.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.endpoint == UNKNOWN || self.has_no_keys()
    }

    /// Whether it is known that there are no keys, so that nothing can be asked.
    pub(crate) fn has_no_keys(&self) -> bool {
        self.endpoint == NO_KEYS
    }
}

/// Something about the keys that somebody should know although calls work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// In a word, for conditions.
    pub reason: &'static str,
    /// With the remedy.
    pub text: String,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Speaks to one server as one user. Clones share everything.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

/// Looks for newer keys and takes them up if they are any good; whether it did.
pub(crate) type NewerKeys = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

struct Shared {
    session: RwLock<Session>,
    clock: SharedClock,
    jitter: Mutex<Stream>,
    throttle: Throttle,
    metrics: Metrics,
    /// What is wrong with the keys although calls work.
    notice: Mutex<Option<Notice>>,
    /// Whether the keys in use are refused.
    refused: AtomicBool,
    /// Whether any keys were ever let in.
    let_in: AtomicBool,
    /// Whether the Secret is gone that the keys in use were read from.
    orphaned: AtomicBool,
    /// Which keys the server refused a moment ago.
    refused_keys: RefusedKeys,
    /// Whether the server takes orders.
    maintenance: Maintenance,
    /// The size of page the server takes, and when it said so.
    page_size: Mutex<Option<(usize, Instant)>>,
    /// Why the server did not answer when it was last asked.
    away: Mutex<Option<String>>,
    /// Rings when we become somebody.
    told: Notify,
    /// Held while it is asked whose the keys are; when and why that was last not told.
    whose: tokio::sync::Mutex<Option<(Instant, ApiError)>>,
    /// Since when they are in use.
    since: Mutex<Timestamp>,
    /// Looks for newer keys where keys come from, before a refusal is passed on.
    newer_keys: Mutex<Option<NewerKeys>>,
    /// One at a time.
    looking: tokio::sync::Mutex<()>,
    /// Told when what is to be said about the keys changes.
    watcher: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// Whose the session is, once it said so.
    account: Mutex<Option<Accounts>>,
    estate: Mutex<Option<Weak<dyn Estate>>>,
    calls: AtomicU64,
}

struct Metrics {
    requests: CounterVec,
    duration: HistogramVec,
    throttled: CounterVec,
    inflight: GaugeVec,
    last_success: GaugeVec,
}

impl Metrics {
    fn new(environment: &Environment) -> Self {
        let registry = &environment.registry;
        Self {
            requests: registry.counter(
                "karpenter_cloudstack_api_requests_total",
                "Number of calls to the CloudStack API, by command and code; code 0 is no answer.",
                &["command", "code"],
            ),
            duration: registry.histogram(
                "karpenter_cloudstack_api_request_duration_seconds",
                "Duration of calls to the CloudStack API, by command.",
                &["command"],
                DURATION_BUCKETS,
            ),
            throttled: registry.counter(
                "karpenter_cloudstack_api_throttled_total",
                "Number of calls the CloudStack API refused because there were too many.",
                &[],
            ),
            inflight: registry.gauge(
                "karpenter_cloudstack_api_inflight",
                "Number of calls to the CloudStack API without an answer yet.",
                &[],
            ),
            last_success: registry.gauge(
                LAST_SUCCESS,
                "When the CloudStack API last did what it was asked, in seconds since 1970; 0 before it ever did.",
                &[],
            ),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("session", &self.session()).finish_non_exhaustive()
    }
}

impl Client {
    /// Of a session, at most at this rate.
    pub fn new(session: Session, rate: Rate, environment: &Environment) -> Self {
        Self(Arc::new(Shared {
            session: RwLock::new(session),
            clock: environment.clock.clone(),
            jitter: Mutex::new(environment.entropy.stream("cloudstack/client")),
            throttle: Throttle::new(rate),
            metrics: Metrics::new(environment),
            notice: Mutex::default(),
            refused: AtomicBool::new(false),
            let_in: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
            refused_keys: RefusedKeys::default(),
            maintenance: Maintenance::default(),
            page_size: Mutex::default(),
            away: Mutex::default(),
            told: Notify::new(),
            whose: tokio::sync::Mutex::default(),
            since: Mutex::new(environment.clock.now()),
            newer_keys: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            watcher: Mutex::default(),
            account: Mutex::default(),
            estate: Mutex::default(),
            calls: AtomicU64::new(0),
        }))
    }

    /// What is wrong with the keys although calls work: new ones that are not taken, or a Secret that is gone.
    pub fn notice(&self) -> Option<Notice> {
        self.0.notice.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_notice(&self, notice: Option<Notice>) {
        let before = std::mem::replace(
            &mut *self.0.notice.lock().unwrap_or_else(PoisonError::into_inner),
            notice.clone(),
        );
        if before != notice {
            self.tell();
        }
    }

    /// Calls this whenever what is to be said about the keys changes.
    pub(crate) fn watch_keys(&self, watcher: impl Fn() + Send + Sync + 'static) {
        *self.0.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(watcher));
    }

    fn tell(&self) {
        let watcher = self.0.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            watcher();
        }
    }

    /// Why the server did not answer when it was last asked; nothing if it did.
    pub(crate) fn away(&self) -> Option<String> {
        self.0.away.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where newer keys are looked for before a refusal is passed on.
    pub(crate) fn look_for_keys_by(&self, newer: NewerKeys) {
        *self.0.newer_keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(newer);
    }

    /// How long the keys are in use.
    pub(crate) fn age_of_keys(&self) -> Duration {
        self.0.clock.since(*self.0.since.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_refused(&self, refused: bool) {
        if self.0.refused.swap(refused, Ordering::Relaxed) != refused {
            self.tell();
        }
    }

    /// Whether the server refused the keys when they were last used.
    pub(crate) fn is_refused(&self) -> bool {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Whether the server ever let anybody in with keys of ours, so that something may have been made with them.
    pub(crate) fn was_ever_let_in(&self) -> bool {
        self.0.let_in.load(Ordering::Relaxed)
    }

    /// Whether the Secret is gone from which the keys in use were read: no others are to come.
    pub(crate) fn has_lost_its_secret(&self) -> bool {
        self.0.orphaned.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lost_its_secret(&self, lost: bool) {
        self.0.orphaned.store(lost, Ordering::Relaxed);
    }

    /// Whether there are other keys by now than those that were refused.
    async fn has_other_keys(&self, refused: &Session) -> bool {
        let _turn = self.0.looking.lock().await;
        if self.session().credentials != refused.credentials {
            return true;
        }
        let newer = self.0.newer_keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match newer {
            Some(look) => look().await && self.session().credentials != refused.credentials,
            None => false,
        }
    }

    /// Who we are at the moment.
    pub fn session(&self) -> Session {
        self.0.session.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who we are, once that is known: at the start the keys are being looked for, and whoever does not wait for them would find a
    /// server away that nobody has asked.
    async fn known_session(&self) -> Session {
        let until = Instant::now() + FIRST_KEYS;
        loop {
            let told = self.0.told.notified();
            let session = self.session();
            if session.endpoint != UNKNOWN || tokio::time::timeout_at(until, told).await.is_err() {
                return session;
            }
        }
    }

    /// Whether we are still who we were.
    pub(crate) fn is_still(&self, session: &Session) -> bool {
        let current = self.session();
        current.credentials == session.credentials
            && current.endpoint == session.endpoint
            && current.project == session.project
    }

    /// From now on as somebody else: calls under way end as they began.
    pub fn become_session(&self, session: Session) {
        self.set_account(None);
        if self.session().credentials != session.credentials {
            *self.0.since.lock().unwrap_or_else(PoisonError::into_inner) = self.0.clock.now();
        }
        *self.0.session.write().unwrap_or_else(PoisonError::into_inner) = session;
        self.0.told.notify_waiters();
        self.tell();
    }

    /// Whose the current session is: asked once, remembered even after its keys are revoked.
    pub(crate) async fn account(&self) -> Result<Accounts, ApiError> {
        if let Some(known) = self.known_account() {
            return Ok(known);
        }
        let came = Instant::now();
        // Launches come in bursts, and what one of them is told holds for all.
        let mut failed = self.0.whose.lock().await;
        if let Some(known) = self.known_account() {
            return Ok(known);
        }
        if let Some((when, error)) = failed.as_ref()
            && *when > came
        {
            return Err(error.clone());
        }
        let session = self.known_session().await;
        let account = match self.account_of(&session).await {
            Ok(account) => account,
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                return Err(error);
            }
        };
        if self.session().credentials == session.credentials {
            self.set_account(Some(account.clone()));
        }
        Ok(account)
    }

    pub(crate) fn set_account(&self, account: Option<Accounts>) {
        *self.0.account.lock().unwrap_or_else(PoisonError::into_inner) = account;
    }

    /// Who knows what was made with the keys.
    pub(crate) fn has_estate(&self, estate: Weak<dyn Estate>) {
        *self.0.estate.lock().unwrap_or_else(PoisonError::into_inner) = Some(estate);
    }

    fn estate(&self) -> Option<Arc<dyn Estate>> {
        let estate = self.0.estate.lock().unwrap_or_else(PoisonError::into_inner).clone();
        estate.and_then(|estate| estate.upgrade())
    }

    /// What was made with the keys so far; nothing while that is not known.
    pub(crate) fn made(&self) -> Option<Made> {
        self.estate().and_then(|estate| estate.made())
    }

    pub(crate) fn keys_choose_project(&self) -> bool {
        self.estate().is_none_or(|estate| estate.keys_choose_project())
    }

    /// From now on as somebody else of another account, or in another project.
    pub(crate) fn move_to(&self, session: Session) {
        self.become_session(session);
        self.0.throttle.limit_to(None);
        *self.0.page_size.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(estate) = self.estate() {
            estate.forget();
        }
    }

    fn known_account(&self) -> Option<Accounts> {
        self.0.account.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whose a session is, without becoming it.
    pub(crate) async fn account_of(&self, session: &Session) -> Result<Accounts, ApiError> {
        let request = requests::list_accounts();
        self.must_not_be_refused(session, &request).await?;
        let answer = self.attempts(session, &request, Lane::Action).await?;
        let (_, mut rows) = rows(request.command(), answer)?;
        if rows.iter().any(|row| has_key(row, session)) {
            rows.retain(|row| has_key(row, session));
        }
        let account = |row: &Value| -> Result<(String, String), ApiError> {
            let name = row["name"].as_str().unwrap_or_default().to_owned();
            // Without an id all accounts would be the same.
            let id = row["id"].as_str().filter(|id| !id.is_empty()).ok_or_else(|| {
                let text = format!("the answer is not as expected: {} has no id that is a text", named(row));
                ApiError::new(request.command(), ErrorKind::Internal, text)
            })?;
            Ok((id.to_owned(), name))
        };
        let accounts = rows.iter().map(account).collect::<Result<Accounts, ApiError>>()?;
        if accounts.is_empty() {
            return Err(ApiError::new(request.command(), ErrorKind::Internal, "the server shows no account"));
        }
        Ok(accounts)
    }

    /// Whether a session would be let in, without becoming it.
    pub async fn probe(&self, session: &Session) -> Result<Capabilities, ApiError> {
        match self.0.refused_keys.word_on(session) {
            Word::Refused(error) => Err(error),
            Word::AskAgain | Word::None => self.probe_now(session).await,
        }
    }

    /// As [`Self::probe`], however lately they were refused: what comes of it is remembered.
    async fn probe_now(&self, session: &Session) -> Result<Capabilities, ApiError> {
        let answer = self.attempts(session, &requests::list_capabilities(), Lane::Action).await;
        match &answer {
            Err(error) if error.kind == ErrorKind::Auth => self.0.refused_keys.note(session, error),
            // Whatever else is wrong says nothing of the keys; but who is told that this is not for them was let in.
            Err(error) if !error.is_a_verdict() => {}
            _ => self.0.refused_keys.forget(session),
        }
        decoded("listCapabilities", answer?["capability"].clone())
    }

    /// Keys that were refused a moment ago are not sent: many ask, and each would be told the same. Now and then one of them finds
    /// out whether that still holds.
    async fn must_not_be_refused(&self, session: &Session, request: &Request) -> Result<(), ApiError> {
        let refused = match self.0.refused_keys.word_on(session) {
            Word::None => return Ok(()),
            Word::Refused(error) => error,
            Word::AskAgain => match self.probe_now(session).await {
                Err(error) if error.kind == ErrorKind::Auth => error,
                // Who is let in, or not answered, finds out the rest by asking what was to be asked.
                _ => return Ok(()),
            },
        };
        Err(ApiError { command: request.command(), ..refused })
    }

    /// What the server is and we may do there.
    pub async fn capabilities(&self) -> Result<Capabilities, ApiError> {
        let session = self.known_session().await;
        let capabilities = self.probe(&session).await?;
        // Those of a server that is only tried say nothing of this one.
        if self.is_still(&session) {
            self.heed(&capabilities);
        }
        Ok(capabilities)
    }

    /// No more calls from now on than the server says it takes.
    pub(crate) fn heed(&self, capabilities: &Capabilities) {
        let limits = capabilities.apilimitmax.zip(capabilities.apilimitinterval);
        self.0.throttle.limit_to(limits.and_then(|(max, interval)| Rate::under_limit(max, interval)));
    }

    /// Sends a request and gives back what is inside the answer's envelope. Reads are repeated when they fail in passing,
    /// writes only when they certainly did nothing.
    pub async fn call(&self, request: &Request) -> Result<Value, ApiError> {
        self.call_in(request, Lane::Action).await
    }

    async fn call_in(&self, request: &Request, lane: Lane) -> Result<Value, ApiError> {
        let session = self.known_session().await;
        match self.heard(self.call_as(&session, request, lane).await) {
            // Nothing was done, so it can be sent again by whoever is let in.
            Err(error) if error.kind == ErrorKind::Auth => {
                if self.has_other_keys(&session).await {
                    return self.heard(self.call_as(&self.session(), request, lane).await);
                }
                self.set_refused(true);
                Err(error)
            }
            answer => {
                if answer.is_ok() {
                    self.set_refused(false);
                }
                answer
            }
        }
    }

    /// Remembers whether anybody answered; a refusal is an answer too.
    fn heard(&self, answer: Result<Value, ApiError>) -> Result<Value, ApiError> {
        if answer.as_ref().map_or_else(ApiError::is_a_verdict, |_| true) {
            self.0.let_in.store(true, Ordering::Relaxed);
        }
        let cause = answer.as_ref().err().filter(|error| error.is_nobodys_answer());
        *self.0.away.lock().unwrap_or_else(PoisonError::into_inner) = cause.map(|error| error.text.clone());
        answer
    }

    async fn call_as(&self, session: &Session, request: &Request, lane: Lane) -> Result<Value, ApiError> {
        self.must_not_be_refused(session, request).await?;
        let answer = if request.is_read() {
            self.attempts(session, request, lane).await
        } else {
            self.order(session, request, lane).await
        };
        match answer {
            // Unknown commands and those of disabled plug-ins look like wrong keys. Whoever is let in has the right ones.
            Err(error) if error.kind == ErrorKind::Auth && request.command() != "listCapabilities" => {
                match self.probe_now(session).await {
                    Ok(_) => Err(ApiError { kind: ErrorKind::Denied, ..error }),
                    Err(probe) if probe.kind == ErrorKind::Auth => Err(error),
                    Err(probe) => Err(probe),
                }
            }
            other => other,
        }
    }

    /// Sends what changes something, unless the server said a moment ago that it takes no orders.
    async fn order(&self, session: &Session, request: &Request, lane: Lane) -> Result<Value, ApiError> {
        let maintenance = &self.0.maintenance;
        if let Some(error) = maintenance.refuses_order(&session.endpoint) {
            return Err(ApiError { command: request.command(), ..error });
        }
        let answer = self.attempts(session, request, lane).await;
        match &answer {
            Err(error) if error.kind == ErrorKind::Closed => maintenance.note(&session.endpoint, Some(error)),
            // Who did not answer has not said that orders are taken.
            Err(error) if error.is_nobodys_answer() => {}
            _ => maintenance.note(&session.endpoint, None),
        }
        answer
    }

    /// Why the server takes no orders, if it said so a moment ago: then what only prepares one need not be asked either.
    pub(crate) fn takes_no_orders(&self) -> Option<ApiError> {
        self.0.maintenance.refuses(&self.session().endpoint)
    }

    /// The same, for who asks at once for what his order needs: of many one finds out whether it still holds.
    pub(crate) fn takes_no_prepared_order(&self) -> Option<ApiError> {
        self.0.maintenance.refuses_preparations(&self.session().endpoint)
    }

    /// Whether the server took no orders when it was last given one.
    pub(crate) fn is_closed_to_orders(&self) -> bool {
        self.0.maintenance.is_closed(&self.session().endpoint)
    }

    /// All objects of a list, none twice. Fails as a whole: half a list is worse than none.
    ///
    /// The server takes no snapshot: while machines come and go, rows move from one page to another and one may slip through
    /// between two. So a list of several pages is read twice, and what either reading saw is there. Machines that are still fewer than
    /// the list says are no list.
    pub async fn list<T: DeserializeOwned>(&self, request: &Request, lane: Lane) -> Result<Vec<T>, ApiError> {
        self.list_in(request, lane, 2).await
    }

    /// The same read once, for those who take nothing for gone because this list lacks it: they ask for it by its id, or look again
    /// a while later.
    pub(crate) async fn list_once<T: DeserializeOwned>(
        &self,
        request: &Request,
        lane: Lane,
    ) -> Result<Vec<T>, ApiError> {
        self.list_in(request, lane, 1).await
    }

    /// A list in at most so many readings.
    async fn list_in<T: DeserializeOwned>(
        &self,
        request: &Request,
        lane: Lane,
        readings: usize,
    ) -> Result<Vec<T>, ApiError> {
        let mut rows = Vec::new();
        let mut seen = BTreeSet::new();
        let mut reading = self.read_pages(request, lane, &mut seen, &mut rows).await?;
        // One that turned out too short is read again by everybody.
        if reading.pages > 1 && (readings > 1 || reading.lacks.is_some()) {
            reading = self.read_pages(request, lane, &mut seen, &mut rows).await?;
        }
        if let Some(text) = reading.lacks.filter(|_| request.command() == MACHINES) {
            return Err(ApiError::new(request.command(), ErrorKind::Internal, text));
        }
        // Without an id it could be neither found again nor told from others, without a name it would not be known as ours; that is
        // no reason to take it for gone.
        if request.command() == MACHINES
            && let Some((row, lacks)) = rows.iter().find_map(|row| Some((row, lacking(row)?)))
        {
            let text = format!("the answer is not as expected: {} has no {lacks}", named(row));
            return Err(ApiError::new(request.command(), ErrorKind::Internal, text));
        }
        rows.into_iter().map(|row| decoded(request.command(), row)).collect()
    }

    fn page_size(&self) -> usize {
        let said = *self.0.page_size.lock().unwrap_or_else(PoisonError::into_inner);
        said.filter(|(_, at)| at.elapsed() < PAGE_SIZE_HOLDS).map_or(PAGE_SIZE, |(size, _)| size)
    }

    /// Reads all pages and keeps the rows that were not seen yet.
    async fn read_pages(
        &self,
        request: &Request,
        lane: Lane,
        seen: &mut BTreeSet<String>,
        kept: &mut Vec<Value>,
    ) -> Result<Reading, ApiError> {
        let mut page_size = self.page_size();
        let mut page = 1;
        let mut read = 0;
        let mut said = None;
        while page <= MAX_PAGES {
            let paged =
                request.clone().with("page", page.to_string()).with("pagesize", page_size.to_string());
            let answer = match self.call_in(&paged, lane).await {
                Err(error) if page == 1 => match allowed_page_size(&error).filter(|size| *size < page_size) {
                    Some(size) => {
                        page_size = size;
                        // It would say so before every list.
                        let said = Some((size, Instant::now()));
                        *self.0.page_size.lock().unwrap_or_else(PoisonError::into_inner) = said;
                        continue;
                    }
                    None => return Err(error),
                },
                other => other?,
            };
            let (count, rows) = rows(request.command(), answer)?;
            said = count.or(said);
            if rows.is_empty() {
                let lacks = said.filter(|said| *said > read);
                let lacks =
                    lacks.map(|said| format!("the list says that it has {said} rows and shows {read}"));
                return match lacks {
                    // Nothing is not what there is none of.
                    Some(text) if page == 1 => {
                        Err(ApiError::new(request.command(), ErrorKind::Internal, text))
                    }
                    lacks => Ok(Reading { pages: page, lacks }),
                };
            }
            read += rows.len();
            // Where it is not said how many there are, only a page that is not full is the last. Some servers count the rows of
            // the page: of a full one that says nothing.
            let is_full = rows.len() == page_size;
            let is_last = count.map_or(!is_full, |count| read >= count && (!is_full || count > rows.len()));
            kept.extend(
                rows.into_iter().filter(|row| row["id"].is_null() || seen.insert(row["id"].to_string())),
            );
            if is_last {
                return Ok(Reading { pages: page, lacks: None });
            }
            page += 1;
        }
        Err(ApiError::new(request.command(), ErrorKind::Internal, "the list has no end"))
    }

    /// How far a job is.
    pub async fn job(&self, id: &str) -> Result<Job, ApiError> {
        Job::from_answer(&self.call(&requests::query_job(id)).await?)
    }

    async fn attempts(&self, session: &Session, request: &Request, lane: Lane) -> Result<Value, ApiError> {
        let mut pause = PAUSE;
        for attempt in 1.. {
            self.0.throttle.turn(lane).await;
            let error = match self.once(session, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let mut wait = self.jittered(pause);
            if let ErrorKind::Throttled(ask_again) = error.kind {
                self.0.metrics.throttled.inc(&[]);
                self.0.throttle.pause(self.jittered(ask_again));
                wait = Duration::ZERO;
            } else if error.code == TOO_MANY {
                self.0.throttle.pause(wait);
            }
            let again = if request.is_read() { error.read_again() } else { error.write_again() };
            if !again || attempt >= ATTEMPTS {
                return Err(error);
            }
            tracing::debug!(command = request.command(), attempt, %error, "calling CloudStack again");
            tokio::time::sleep(wait).await;
            pause *= 2;
        }
        unreachable!("the loop returns")
    }

    fn jittered(&self, duration: Duration) -> Duration {
        self.0.jitter.lock().unwrap_or_else(PoisonError::into_inner).jitter(duration, 0.2)
    }

    /// One call is one span: a trace shows where a launch spent its time.
    async fn once(&self, session: &Session, request: &Request) -> Result<Value, ApiError> {
        let span =
            tracing::error_span!("cloudstack", command = request.command(), code = Empty, jobid = Empty);
        self.send(session, request).instrument(span).await
    }

    async fn send(&self, session: &Session, request: &Request) -> Result<Value, ApiError> {
        let command = request.command();
        let metrics = &self.0.metrics;
        let started = Instant::now();
        let limit = if request.is_read() { READ_TIMEOUT } else { WRITE_TIMEOUT };
        let sent = http_request(session, request, self.0.clock.now())?;
        metrics.inflight.with(&[]).add(1.0);
        let answer = tokio::time::timeout(limit, session.transport.send(sent)).await;
        metrics.inflight.with(&[]).add(-1.0);
        let answer = match answer {
            Err(_) => Err(ApiError::new(
                command,
                ErrorKind::LostResponse,
                format!("no answer within {} s", limit.as_secs()),
            )),
            Ok(Err(error @ TransportError::NotSent(_))) => {
                Err(ApiError::new(command, ErrorKind::NotSent, error.to_string()))
            }
            Ok(Err(error @ TransportError::NoAnswer(_))) => {
                Err(ApiError::new(command, ErrorKind::LostResponse, error.to_string()))
            }
            Ok(Ok(answer)) => opened(command, answer.status().as_u16(), answer.body()),
        };
        let code = answer.as_ref().map_or_else(|error| error.code, |_| 200);
        metrics.requests.inc(&[command, &code.to_string()]);
        metrics.duration.with(&[command]).observe_duration(started.elapsed());
        if answer.is_ok() {
            metrics.last_success.set(&[], self.0.clock.now().as_second() as f64);
        }
        // The id of a call stands with the job it began: who follows a machine finds all of it by either.
        let job = answer.as_ref().ok().and_then(|answer| answer["jobid"].as_str()).unwrap_or_default();
        tracing::Span::current().record("code", code).record("jobid", job);
        tracing::debug!(
            call = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1,
            command,
            code,
            jobid = job,
            about = request.about(),
            elapsed = ?started.elapsed(),
            "called CloudStack"
        );
        answer
    }
}

/// How a list was read.
struct Reading {
    /// How many pages were asked for; the last may have been empty by then, because its rows moved up.
    pages: usize,
    /// What to say if it ended before all rows were shown that it says it has.
    lacks: Option<String>,
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
