//! Leader election on a Lease, by the rules of client-go, so that our replicas and Go Karpenter's hand over to each other.
//!
//! Whoever holds the lease renews it every two seconds; whoever wants it waits until it has not seen the lease change for
//! fifteen. That time runs on the local clock from the local observation: clocks of two machines are never compared. A
//! leader that could not renew for ten seconds, or sees another's name, stops at once: the work is dropped where it stands,
//! which every reconcile must be able to bear.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::SharedClock;
use crate::entropy::Stream;
use crate::environment::Environment;
use crate::error::{ApiError, remedy, told};
use crate::events::{Event, EventType, Recorder, reference};
use crate::metrics::Gauge;
use crate::sync::lock;

/// How much longer a wait between attempts to get the lease may be, as a part of itself.
const JITTER: f64 = 1.2;

/// Which lease, for whom, and how patient.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Who we are; see [`identity`].
    pub identity: String,
    /// How long a lease that is not renewed stays with its holder.
    pub lease_duration: Duration,
    /// How long a holder tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// How long between attempts.
    pub retry_period: Duration,
}

impl LeaseConfig {
    /// With Karpenter's times: 15, 10 and 2 seconds.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Who a replica is: its host and an id of this run.
pub fn identity(host: &str, environment: &Environment) -> String {
    format!("{host}_{}", environment.entropy.stream("lease/identity").uuid())
}

/// The lease went to someone else, or could not be renewed in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leader election lost: {lease} {reason}")]
pub struct LostLease {
    lease: String,
    reason: String,
}

/// What keeps a candidate from finding out whether it leads; clones look at the same.
#[derive(Clone, Debug, Default)]
pub struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    /// Why the last attempt to get the lease failed. None if it succeeded or another holds it.
    pub fn last(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    fn set(&self, reason: Option<String>) {
        *lock(&self.0) = reason;
    }
}

/// A candidate.
pub struct Elector {
    api: Api<Lease>,
    config: LeaseConfig,
    clock: SharedClock,
    jitter: Stream,
    leading: Gauge,
    recorder: Recorder,
    /// The lease as last seen or written, and when that was.
    observed: Option<(Lease, Instant)>,
    trouble: Trouble,
}

/// What an attempt came to.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    HeldBy(String),
    /// Another wrote first: who holds it now is not known yet, but all is well.
    Overtaken,
    Failed(String),
}

impl Elector {
    /// A candidate that does not try yet.
    pub fn new(client: Client, config: LeaseConfig, environment: &Environment, recorder: &Recorder) -> Self {
        let leading = environment
            .registry
            .gauge(
                "leader_election_master_status",
                "1 while this process leads, 0 while it stands by",
                &["name"],
            )
            .with(&[&config.name]);
        leading.set(0.0);
        Self {
            api: Api::namespaced(client, &config.namespace),
            clock: environment.clock.clone(),
            jitter: environment.entropy.stream("lease/jitter"),
            recorder: recorder.for_component(&config.identity),
            leading,
            config,
            observed: None,
            trouble: Trouble::default(),
        }
    }

    /// What goes wrong while it waits for the lease, for those who ask how the program is.
    pub fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    /// Waits for the lease, then runs `work` while renewing it.
    ///
    /// `work` gets a token that is cancelled when `stop` is; it winds up, still under the lease, and the lease is released
    /// when it returns. When the lease is lost `work` is dropped.
    pub async fn lead<W, F>(mut self, stop: CancellationToken, work: W) -> Result<(), LostLease>
    where
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = ()>,
    {
        if !self.acquire(&stop).await {
            return Ok(());
        }
        let result = {
            let work = work(stop.child_token());
            tokio::select! {
                biased;
                reason = self.renew() => Err(reason),
                () = work => Ok(()),
            }
        };
        self.leading.set(0.0);
        self.tell("stopped leading");
        match result {
            Ok(()) => {
                self.release().await;
                Ok(())
            }
            Err(reason) => {
                let lost = LostLease { lease: self.describe(), reason };
                tracing::error!(error = %lost, "stopping");
                Err(lost)
            }
        }
    }

    /// Tries until it is ours; false if stopped first.
    async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        tracing::info!(lock = self.describe(), "Attempting to acquire leader lease...");
        let mut reported = None;
        loop {
            let attempt = tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                attempt = self.attempt() => attempt,
            };
            match attempt {
                Attempt::Held => break,
                Attempt::HeldBy(holder) => {
                    self.trouble.set(None);
                    if reported.as_ref() != Some(&holder) {
                        tracing::info!(lock = self.describe(), holder, "waiting for the leader");
                        reported = Some(holder);
                    }
                }
                Attempt::Overtaken => {
                    tracing::debug!(lock = self.describe(), "another wrote the lease first, will retry");
                    self.trouble.set(None);
                }
                Attempt::Failed(error) => {
                    tracing::error!(error, lock = self.describe(), "cannot acquire lease, will retry");
                    self.trouble.set(Some(format!("lease {}: {error}", self.describe())));
                }
            }
            let pause = self.jitter.jitter(self.config.retry_period, JITTER);
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.trouble.set(None);
        self.leading.set(1.0);
        self.tell("became leader");
        tracing::info!(lock = self.describe(), "Successfully acquired lease");
        true
    }

    /// Renews for as long as it works; why it works no more.
    async fn renew(&mut self) -> String {
        loop {
            tokio::time::sleep(self.config.retry_period).await;
            let deadline = Instant::now() + self.config.renew_deadline;
            let mut last = "could not be renewed in time".to_owned();
            let renewed = tokio::time::timeout_at(deadline, async {
                loop {
                    match self.attempt().await {
                        Attempt::Held => return None,
                        // Two leaders at once are worse than none.
                        Attempt::HeldBy(holder) => return Some(format!("is held by {holder}")),
                        // By whom, the next attempt finds out.
                        Attempt::Overtaken => {
                            last = "could not be renewed in time: it was changed by another".to_owned();
                        }
                        Attempt::Failed(error) => last = format!("could not be renewed in time: {error}"),
                    }
                    tokio::time::sleep(self.config.retry_period).await;
                }
            })
            .await;
            match renewed {
                Ok(None) => {}
                Ok(Some(reason)) => return reason,
                Err(_) => return last,
            }
        }
    }

    /// Gets or renews the lease, if that is possible now.
    async fn attempt(&mut self) -> Attempt {
        // A request that hangs must leave time for another before the deadline.
        let patience = (self.config.renew_deadline / 2).max(Duration::from_secs(1));
        match tokio::time::timeout(patience, self.try_attempt()).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Attempt::Overtaken,
            Ok(Err(error)) => Attempt::Failed(told(&error) + remedy(&error)),
            Err(_) => Attempt::Failed(format!("no answer within {}s", patience.as_secs())),
        }
    }

    async fn try_attempt(&mut self) -> Result<Attempt, kube::Error> {
        // The leader writes without reading first, on the version it wrote last.
        if let Some((lease, seen)) = &self.observed
            && self.is_ours(lease)
            && self.is_valid(lease, *seen)
        {
            let renewed = self.successor(lease);
            match self.write(renewed).await {
                Ok(()) => return Ok(Attempt::Held),
                Err(error) => {
                    tracing::debug!(error = %ApiError::from(error), lock = self.describe(), "cannot renew from the version written last")
                }
            }
        }
        let Some(lease) = self.api.get_opt(&self.config.name).await? else {
            let created = self.api.create(&PostParams::default(), &self.first_lease()).await?;
            self.observed = Some((created, Instant::now()));
            return Ok(Attempt::Held);
        };
        let seen = match self.observed.take() {
            Some((known, seen)) if known.spec == lease.spec => seen,
            _ => Instant::now(),
        };
        self.observed = Some((lease.clone(), seen));
        let holder = holder(&lease);
        if !holder.is_empty() && !self.is_ours(&lease) && self.is_valid(&lease, seen) {
            return Ok(Attempt::HeldBy(holder.to_owned()));
        }
        let ours = self.successor(&lease);
        self.write(ours).await?;
        Ok(Attempt::Held)
    }

    /// Gives the lease up, so that another need not wait for it to run out.
    async fn release(&mut self) {
        let released = async {
            let Some(mut lease) = self.api.get_opt(&self.config.name).await? else { return Ok(()) };
            if !self.is_ours(&lease) {
                return Ok(());
            }
            let now = Some(MicroTime(self.clock.now()));
            let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
            lease.spec = Some(LeaseSpec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                acquire_time: now.clone(),
                renew_time: now,
                lease_transitions: transitions,
                ..LeaseSpec::default()
            });
            self.api.replace(&self.config.name, &PostParams::default(), &lease).await.map(|_| ())
        };
        match tokio::time::timeout(self.config.renew_deadline, released).await {
            Ok(Ok(())) => tracing::info!(lock = self.describe(), "released lease"),
            Ok(Err(error)) => {
                tracing::error!(error = %ApiError::from(error), lock = self.describe(), "Failed to release lease");
            }
            Err(_) => tracing::error!(lock = self.describe(), "Failed to release lease: no answer"),
        }
    }

    async fn write(&mut self, lease: Lease) -> Result<(), kube::Error> {
        let written = self.api.replace(&self.config.name, &PostParams::default(), &lease).await?;
        self.observed = Some((written, Instant::now()));
        Ok(())
    }

    /// The lease in our hands: renewed if it was in them, else taken over.
    fn successor(&self, lease: &Lease) -> Lease {
        let now = self.clock.now();
        let before = lease.spec.clone().unwrap_or_default();
        let transitions = before.lease_transitions.unwrap_or(0);
        let (acquired, transitions) = if self.is_ours(lease) {
            (before.acquire_time, transitions)
        } else {
            (Some(MicroTime(now)), transitions.saturating_add(1))
        };
        Lease { metadata: lease.metadata.clone(), spec: Some(self.spec(acquired, now, transitions)) }
    }

    fn first_lease(&self) -> Lease {
        let now = self.clock.now();
        let metadata = ObjectMeta {
            name: Some(self.config.name.clone()),
            namespace: Some(self.config.namespace.clone()),
            ..ObjectMeta::default()
        };
        Lease { metadata, spec: Some(self.spec(Some(MicroTime(now)), now, 0)) }
    }

    fn spec(&self, acquired: Option<MicroTime>, now: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: Some(
                i32::try_from(self.config.lease_duration.as_secs()).unwrap_or(i32::MAX),
            ),
            acquire_time: acquired,
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        holder(lease) == self.config.identity
    }

    /// Whether the holder's time, counted from when we saw it renew, is not over.
    fn is_valid(&self, lease: &Lease, seen: Instant) -> bool {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        Instant::now() < seen + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }

    fn describe(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    fn tell(&self, what: &str) {
        if let Some((lease, _)) = &self.observed {
            let message = format!("{} {what}", self.config.identity);
            self.recorder.publish(Event::new(reference(lease), EventType::Normal, "LeaderElection", message));
        }
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
