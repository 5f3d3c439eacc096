//! A CloudStack cloud in memory: the API of a management server with its signatures, roles, jobs, placement, limits and bad
//! days, under virtual time.
//!
//! It answers HTTP requests ([`CloudStack::handle`]), in process or over a socket ([`serve`]), as CloudStack 4.23 with the
//! simulator hypervisor was seen to: the recorded samples in `conformance/cloudstack` are replayed against it, so it cannot
//! drift from the truth. Nothing runs in the background: whatever was to happen since the last request happens before
//! the next is looked at, so the same requests at the same times give the same answers.
//!
//! | Module | What it is |
//! |---|---|
//! | `wire` | parameters, signatures, envelopes |
//! | `permissions`, [`account`], `tenants` | who may do what, and whose it is |
//! | `commands`, `lists`, `deploy`, `volumes`, `tags` | what commands do |
//! | `jobs`, `power`, `placement`, `storage`, `limits` | what happens then |
//! | `render`, `state` | what there is, and how it looks |
//! | [`settings`], [`faults`], [`accidents`] | how the server is set up, and what goes wrong |
//! | [`snapshot`] | all of it at a moment, to come back to |
//! | [`guests`], `guest_data` | what boots inside the machines and joins a cluster |
//! | [`road`], [`checks`] | how a program under test gets here, and what it must keep to |

pub mod accidents;
pub mod account;
pub mod checks;
mod commands;
mod deploy;
pub mod faults;
mod guest_data;
pub mod guests;
mod hands;
mod jobs;
mod limits;
mod lists;
mod permissions;
mod placement;
mod power;
mod render;
pub mod road;
pub mod serve;
pub mod settings;
pub mod snapshot;
mod state;
mod storage;
mod tags;
mod tenants;
mod volumes;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::environment::Environment;
use serde_json::Value;

use crate::chance::{Chance, Span};
use account::{Account, Role};
use deploy::JobOf;
use faults::{Fault, Trouble, Weather, strike};
pub use hands::MachineView;
use jobs::after;
use settings::Settings;
pub use state::Router;
use state::{Event, State};
use wire::{Call, Refusal};

const FIXTURE: &str = include_str!("fixture.json");

/// A simulated cloud. Clones are handles to the same one.
#[derive(Clone)]
pub struct CloudStack(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    clock: SharedClock,
    faults: Mutex<Vec<Fault>>,
    weather: Mutex<Option<Weather>>,
    log: Mutex<Vec<Entry>>,
    /// How many entries of it are kept at least; older ones may go.
    log_kept: AtomicUsize,
}

impl std::fmt::Debug for CloudStack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudStack").finish_non_exhaustive()
    }
}

/// A request that was made.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When it arrived.
    pub at: Timestamp,
    /// Name of the account; empty if nobody's.
    pub account: String,
    /// Command.
    pub command: String,
    /// Parameters, without what is the same in every request.
    pub parameters: BTreeMap<String, String>,
    /// Status of the answer, whether it arrived or not; 0 if there was none.
    pub status: u16,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Nobody listens: the request never left.
    #[error("connection refused")]
    Refused,
    /// It left, and nothing came back.
    #[error("connection reset")]
    NoAnswer,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CloudStack {
    /// The cloud that was measured: one zone, four hosts of 8 GiB, eight offerings, a template, two networks of
    /// account `karp`.
    pub fn new(environment: &Environment) -> Self {
        let fixture: Value = serde_json::from_str(FIXTURE).unwrap_or_default();
        let list = |key: &str| fixture[key].as_array().cloned().unwrap_or_default();
        let now = environment.clock.now();
        let types = list("resourcetypes")
            .iter()
            .filter_map(|pair| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned())))
            .collect();
        let mut state = State {
            settings: Settings::default(),
            ahead: SignedDuration::ZERO,
            accounts: list("account").iter().map(Account::from_fixture).collect(),
            capability: fixture["capability"].clone(),
            zones: list("zone"),
            hosts: list("host"),
            offerings: list("serviceoffering"),
            system_offerings: list("systemoffering"),
            disk_offerings: list("diskoffering"),
            templates: list("template"),
            networks: list("network"),
            network_services: fixture["networkservice"].clone(),
            security_groups: list("securitygroup"),
            tariffs: list("tariff"),
            management_servers: list("managementserver"),
            resource_types: types,
            project_limits: list("account")
                .first()
                .map(|a| Account::from_fixture(a).limits)
                .unwrap_or_default(),
            gpu_cards: Vec::new(),
            vgpu_profiles: Vec::new(),
            user_data: Vec::new(),
            key_pairs: Vec::new(),
            machines: state::Machines::default(),
            machine_ids: BTreeMap::new(),
            volumes: Vec::new(),
            groups: Vec::new(),
            projects: Vec::new(),
            jobs: BTreeMap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            next_machine: 4,
            busy_until: BTreeMap::new(),
            ids: Chance::new(&environment.entropy, "cloudstack/ids"),
            delays: Chance::new(&environment.entropy, "cloudstack/delays"),
            pools: Vec::new(),
            broken_hosts: BTreeSet::new(),
            broken_routers: BTreeMap::new(),
            removed: BTreeSet::new(),
            history: Vec::new(),
            past: VecDeque::new(),
        };
        let interval = state.settings.expunge_interval;
        state.schedule(after(now, interval), Event::ExpungeThread);
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            clock: environment.clock.clone(),
            faults: Mutex::default(),
            weather: Mutex::default(),
            log: Mutex::default(),
            log_kept: AtomicUsize::new(usize::MAX),
        }))
    }

    /// The state as it is now, with everything that has happened meanwhile.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.0.state);
        let now = state.server_time(self.0.clock.now());
        state.catch_up(now);
        state.remember(now);
        state
    }

    /// The time by the server's clock, which may be wrong.
    fn now(&self) -> Timestamp {
        lock(&self.0.state).server_time(self.0.clock.now())
    }

    /// Takes a request, carries it out, answers.
    pub async fn handle(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Lost> {
        let call = Call::read(&request);
        let account =
            self.caller(&call).and_then(|caller| Some(self.state().accounts.get(caller)?.name.clone()));
        let account = account.unwrap_or_default();
        let scripted = strike(&mut lock(&self.0.faults), call.command(), &account);
        let trouble = scripted.or_else(|| lock(&self.0.weather).as_mut()?.strike());
        match &trouble {
            Some(Trouble::Refuse) => return Err(Lost::Refused),
            Some(Trouble::DropRequest) => {
                self.note(&call, "", 0);
                return Err(Lost::NoAnswer);
            }
            Some(Trouble::Proxy(status)) => {
                self.note(&call, "", *status);
                let page = Bytes::from_static(b"<html><body><h1>Bad Gateway</h1></body></html>");
                let mut response = Response::new(page);
                *response.status_mut() =
                    http::StatusCode::from_u16(*status).unwrap_or(http::StatusCode::BAD_GATEWAY);
                return Ok(response);
            }
            _ => {}
        }
        let outcome = match &trouble {
            Some(Trouble::Fail(code, cs_code, text)) => Err(Refusal::new(*code, *cs_code, text.clone())),
            Some(Trouble::Twice) => {
                // Both read before either writes, whatever each takes.
                let (ours, theirs) = futures_util::future::join(
                    self.answer(&call, JobOf::Caller),
                    self.answer(&call, JobOf::Server),
                )
                .await;
                self.note(&call, &account, wire::answer(call.command(), theirs).status().as_u16());
                ours
            }
            Some(Trouble::TwiceUnderOneJob) => {
                let (theirs, ours) = futures_util::future::join(
                    self.answer(&call, JobOf::Nobody),
                    self.answer(&call, JobOf::Caller),
                )
                .await;
                self.note(&call, &account, wire::answer(call.command(), theirs).status().as_u16());
                ours
            }
            _ => self.answer(&call, JobOf::Caller).await,
        };
        let mut response = wire::answer(call.command(), outcome);
        self.note(&call, &account, response.status().as_u16());
        match trouble {
            Some(Trouble::DropResponse) => Err(Lost::NoAnswer),
            Some(Trouble::Restart) => {
                self.restart();
                Err(Lost::NoAnswer)
            }
            Some(Trouble::Truncate) => {
                let whole = response.body().clone();
                *response.body_mut() = whole.slice(..whole.len() / 2);
                Ok(response)
            }
            Some(Trouble::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(response)
            }
            _ => Ok(response),
        }
    }

    /// Carries a request out, under whatever job.
    async fn answer(&self, call: &Call, job: JobOf) -> Result<Value, Refusal> {
        let caller = self.admitted(call)?;
        if call.command() == "deployVirtualMachine" {
            let (prepared, accepted) = {
                let now = self.now();
                let mut state = self.state();
                let prepared = state.prepare(caller, call, now)?.under(job);
                let span = state.settings.latencies.accept;
                let delay = state.delays.duration(&span);
                let begin = state.busy_until.get(&caller).copied().unwrap_or(now).max(now);
                let end = after(begin, delay);
                state.busy_until.insert(caller, end);
                (prepared, end)
            };
            let wait = accepted.duration_since(self.now());
            tokio::time::sleep(wait.try_into().unwrap_or_default()).await;
            let now = self.now();
            return self.state().commit(caller, prepared, now);
        }
        let delay = {
            let mut state = self.state();
            let span: Span = state.settings.latencies.answer;
            state.delays.duration(&span)
        };
        tokio::time::sleep(delay).await;
        let now = self.now();
        self.state().execute(caller, call, now)
    }

    fn caller(&self, call: &Call) -> Option<usize> {
        let key = call.get("apikey")?;
        self.state().accounts.iter().position(|account| account.secret_of(key).is_some())
    }

    /// Who calls, if the request may pass: signature, rate, permission, parameters.
    fn admitted(&self, call: &Call) -> Result<usize, Refusal> {
        let caller = self.caller(call).ok_or_else(Refusal::unauthorized)?;
        let now = self.now();
        let mut state = self.state();
        let account = state.accounts.get(caller).ok_or_else(Refusal::unauthorized)?.clone();
        let command = call.command();
        let entry = permissions::command(command)
            .filter(|_| !permissions::of_plugin(command) || state.settings.quota_plugin)
            .ok_or_else(Refusal::unknown_command)?;
        if !call.is_signed_by(&account, now, state.settings.enforce_post) {
            return Err(Refusal::unauthorized());
        }
        state.count_call(caller, now)?;
        if !permissions::allowed(entry, account.role) {
            let text = format!(
                "The API [{command}] does not exist or is not available for the account {}.",
                account.name
            );
            return Err(Refusal { anonymous: true, ..Refusal::new(432, 9999, text) });
        }
        state.check_project(caller, call)?;
        let reads = ["list", "get", "query", "find", "is", "quota"].iter().any(|p| command.starts_with(p));
        if state.settings.enforce_post && !reads && !call.by_post {
            let text = format!("State changing command {command} needs to be sent using POST request");
            return Err(Refusal::new(400, 9999, text));
        }
        if state.settings.maintenance && entry["async"] == true {
            return Err(Refusal::new(
                503,
                9999,
                "Maintenance or Shutdown has been initiated on this management server. Can not accept new jobs",
            ));
        }
        check_parameters(&state, call, entry)?;
        if command.starts_with("list") {
            state.check_scope(caller, call)?;
        }
        Ok(caller)
    }

    fn note(&self, call: &Call, account: &str, status: u16) {
        const COMMON: [&str; 6] =
            ["command", "response", "apikey", "signature", "signatureversion", "expires"];
        let parameters = call
            .all()
            .iter()
            .filter(|(name, _)| !COMMON.contains(&name.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()));
        let entry = Entry {
            at: self.0.clock.now(),
            account: account.to_owned(),
            command: call.command().to_owned(),
            parameters: parameters.collect(),
            status,
        };
        let mut log = lock(&self.0.log);
        log.push(entry);
        let kept = self.0.log_kept.load(Ordering::Relaxed);
        // Many at once, so that it is not moved for every request.
        if log.len() >= kept.saturating_mul(2) {
            let old = log.len() - kept;
            log.drain(..old);
        }
    }

    /// From now on only the last so many requests are remembered for certain: who serves for days would fill the memory with them.
    pub fn keep_last_requests(&self, count: usize) {
        self.0.log_kept.store(count, Ordering::Relaxed);
    }

    /// Keys of the first account of a role.
    pub fn account(&self, role: Role) -> Option<Account> {
        self.state().accounts.iter().find(|account| account.role == role).cloned()
    }

    /// Changes settings.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state().settings);
    }

    /// Something will go wrong.
    pub fn inject(&self, fault: Fault) {
        lock(&self.0.faults).push(fault);
    }

    /// From now on things go wrong at random.
    pub fn expose_to(&self, weather: Weather) {
        *lock(&self.0.weather) = Some(weather);
    }

    /// Whether things go wrong at random.
    pub fn is_exposed(&self) -> bool {
        lock(&self.0.weather).is_some()
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        lock(&self.0.faults).clear();
        *lock(&self.0.weather) = None;
    }

    /// All requests so far.
    pub fn log(&self) -> Vec<Entry> {
        lock(&self.0.log).clone()
    }

    /// How often each command was called.
    pub fn calls(&self) -> BTreeMap<String, usize> {
        let mut calls = BTreeMap::new();
        for entry in lock(&self.0.log).iter() {
            *calls.entry(entry.command.clone()).or_default() += 1;
        }
        calls
    }
}

/// What the server checks of parameters before any command sees them.
fn check_parameters(state: &State, call: &Call, entry: &Value) -> Result<(), Refusal> {
    let command = call.command();
    for (name, value) in call.all() {
        if value.chars().any(|c| c.is_ascii_control() && c != '\n' && c != '\r') {
            let text = format!(
                "Received value containing illegal ASCII non-printable characters for parameter {name}"
            );
            return Err(Refusal::new(431, 9999, text));
        }
    }
    for (name, kind) in permissions::parameters(entry) {
        let value = call.get(name);
        let indexed = || call.all().keys().any(|key| key.starts_with(&format!("{name}[")));
        if kind.contains("required") && value.is_none() && !indexed() {
            let text = format!(
                "Unable to execute API command {} due to missing parameter {name}",
                command.to_lowercase()
            );
            return Err(Refusal::new(431, 9999, text));
        }
        let Some(value) = value else { continue };
        let longest = permissions::longest(kind);
        if longest.is_some_and(|longest| value.encode_utf16().count() > longest) {
            let longest = longest.unwrap_or_default();
            let text = format!("Value greater than max allowed length {longest} for param: {name}");
            return Err(Refusal::parameter(text));
        }
        if kind.starts_with("uuid") && !(name == "projectid" && value == "-1") && !state.knows(value) {
            return Err(Refusal::entity(command, name, value));
        }
    }
    for name in ["networkids", "affinitygroupids", "securitygroupids", "volumeids"] {
        if let Some(unknown) = call.list(name).iter().find(|id| !state.knows(id)) {
            return Err(Refusal::entity(command, name, unknown));
        }
    }
    call.map("tags").map(|_| ())
}
