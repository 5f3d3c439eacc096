//! A program under test: started with a client, a cloud and an environment of its own, killed at any moment, started again.
//!
//! Killing shuts the process's gate (see [`crate::gate`]) and drops its task. What it had in memory is gone; what it had
//! written is in the server and the cloud.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use karpenter_runtime::clock::{Clock as _, WallClock};
use karpenter_runtime::environment::Environment;
use karpenter_runtime::metrics::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::chance::{Chance, Span};
use crate::cloud::{Cloud, CloudHandle};
use crate::cloudstack::CloudStack;
use crate::cloudstack::road::Road;
use crate::cluster::Cluster;
use crate::faults::Faults;
use crate::faults::service::FaultyWire;
pub use crate::gate::CrashPoint;
use crate::gate::Gate;
use crate::wire::Wire;

/// How long a kubelet waits for a process that is to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one life of a process is given.
pub struct Life {
    /// Its client, with faults.
    pub client: kube::Client,
    /// Its way to the cloud.
    pub cloud: CloudHandle,
    /// Clock, randomness and metrics of this life.
    pub environment: Environment,
    /// Cancelled when it is to stop in good order.
    pub stop: CancellationToken,
    /// Which life it is, from 1.
    pub number: u32,
    wire: Wire,
    gate: Gate,
}

impl Life {
    /// Puts something that happens to the process on the tape.
    pub fn note(&self, what: &str) {
        let deed = format!("process {} {what}", self.wire.actor());
        self.wire.cluster().record(self.wire.actor(), deed, "done".to_owned(), &[]);
    }

    /// Another client of the process, with faults of its own: to a second cluster, say.
    pub fn client_behind(&self, faults: &Faults) -> kube::Client {
        kube::Client::new(FaultyWire::new(self.wire.clone(), faults.clone(), self.gate.clone()), "default")
    }

    /// The process's way to a simulated CloudStack, which ends with this life.
    pub fn road_to(&self, cloud: &CloudStack) -> Road {
        Road::new(
            cloud.clone(),
            self.wire.cluster().clone(),
            Arc::clone(self.wire.actor()),
            self.gate.clone(),
        )
    }
}

type Start = dyn Fn(Life) -> BoxFuture<'static, ()> + Send + Sync;

/// A program that can be started, killed and started again.
pub struct Process {
    name: String,
    cluster: Cluster,
    cloud: Cloud,
    faults: Faults,
    start: Box<Start>,
    lives: AtomicU32,
    /// By how many seconds its clock is ahead of the world's.
    ahead: Arc<AtomicI64>,
    running: Mutex<Option<Running>>,
}

struct Running {
    gate: Gate,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Process {
    /// A program that does not run yet. Its writes stand on the tape under its name.
    pub fn new(
        name: &str,
        cluster: &Cluster,
        cloud: &Cloud,
        faults: Faults,
        start: impl Fn(Life) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            cluster: cluster.clone(),
            cloud: cloud.clone(),
            faults,
            start: Box::new(start),
            lives: AtomicU32::new(0),
            ahead: Arc::default(),
            running: Mutex::new(None),
        }
    }

    /// What goes wrong between it and the server.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Starts it, unless it runs.
    pub fn start(&self) {
        if self.is_running() {
            return;
        }
        let number = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        // Nobody can know of a clock that was wrong from the start.
        self.ahead.store(0, Ordering::Relaxed);
        let gate = Gate::default();
        let stop = CancellationToken::new();
        let wire = Wire::new(self.cluster.clone(), &self.name);
        let life = Life {
            client: kube::Client::new(
                FaultyWire::new(wire.clone(), self.faults.clone(), gate.clone()),
                "default",
            ),
            wire,
            gate: gate.clone(),
            cloud: self.cloud.handle_behind(&self.name, gate.clone()),
            environment: Environment {
                clock: Arc::new(self.clock()),
                entropy: self.cluster.entropy().child(&format!("{}/{number}", self.name)),
                registry: Registry::new(),
            },
            stop: stop.clone(),
            number,
        };
        self.note("starts");
        let task = tokio::spawn((self.start)(life));
        gate.guards(task.abort_handle());
        *self.lock() = Some(Running { gate, stop, task });
    }

    /// The world's clock, but for what [`Self::mislead`] does to it.
    fn clock(&self) -> WallClock {
        let (clock, ahead) = (self.cluster.clock().clone(), Arc::clone(&self.ahead));
        WallClock::reading(move || {
            let ahead = SignedDuration::from_secs(ahead.load(Ordering::Relaxed));
            clock.now().checked_add(ahead).unwrap_or_else(|_| clock.now())
        })
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.lock().as_ref().is_some_and(|running| !running.task.is_finished() && !running.gate.is_shut())
    }

    /// How many lives it has had.
    pub fn lives(&self) -> u32 {
        self.lives.load(Ordering::Relaxed)
    }

    /// Kills it where it stands.
    pub fn kill(&self) {
        if let Some(running) = self.lock().take() {
            running.gate.shut();
            // Tasks that nobody can find any more get a chance to end; what they try leads nowhere.
            running.stop.cancel();
            self.note("is killed");
        }
    }

    /// Has it die at a write.
    pub fn crash_at(&self, point: CrashPoint) {
        if let Some(running) = &*self.lock() {
            running.gate.crash_at(point);
        }
    }

    /// Asks it to stop and waits; kills it if it takes longer than it may.
    pub async fn stop(&self, patience: Duration) {
        let Some(running) = self.lock().take() else { return };
        running.stop.cancel();
        let ended = tokio::time::timeout(patience, running.task).await;
        running.gate.shut();
        self.note(if ended.is_ok() { "stops" } else { "is killed for not stopping" });
    }

    /// Ends it again and again and starts it again, until its faults are healed: kills it at drawn moments and at drawn writes,
    /// or asks it to stop, as a rollout does.
    pub fn endanger(self: &Arc<Self>, life: Span, downtime: Span) -> JoinHandle<()> {
        let process = Arc::clone(self);
        let mut chance = Chance::new(process.cluster.entropy(), &format!("dangers/{}", process.name));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(chance.duration(&life)).await;
                let point = CrashPoint { writes: chance.below(12), after_commit: chance.happens(0.5) };
                let at_write = chance.happens(0.5);
                let politely = chance.happens(0.3);
                if !process.faults.are_on() {
                    break;
                }
                if politely {
                    process.stop(PATIENCE).await;
                } else if at_write {
                    process.crash_at(point);
                    let _ = tokio::time::timeout(Duration::from_secs(30), process.death()).await;
                }
                process.kill();
                tokio::time::sleep(chance.duration(&downtime)).await;
                process.start();
            }
            process.start();
        })
    }

    /// Has its clock leap ahead now and then and be set right again within the time in which it is doubted, until its faults are
    /// healed.
    pub fn mislead(self: &Arc<Self>, between: Span, by: Span) -> JoinHandle<()> {
        let process = Arc::clone(self);
        let mut chance = Chance::new(process.cluster.entropy(), &format!("clock/{}", process.name));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(chance.duration(&between)).await;
                let (leap, wrong) = (chance.duration(&by), chance.duration(&Span::secs(5, 50)));
                if !process.faults.are_on() {
                    return;
                }
                process.set_ahead(leap);
                tokio::time::sleep(wrong).await;
                process.set_ahead(Duration::ZERO);
            }
        })
    }

    /// Sets its clock so far ahead of the world's; by nothing sets it right.
    pub fn set_ahead(&self, by: Duration) {
        let seconds = i64::try_from(by.as_secs()).unwrap_or_default();
        self.ahead.store(seconds, Ordering::Relaxed);
        match seconds {
            0 => self.note("is told the time"),
            seconds => self.note(&format!("is told that it is {seconds} s later")),
        }
    }

    async fn death(&self) {
        let gate = self.lock().as_ref().map(|running| running.gate.clone());
        if let Some(gate) = gate {
            gate.died().await;
        }
    }

    fn note(&self, what: &str) {
        let deed = format!("process {} {what}", self.name);
        self.cluster.record(&self.name.as_str().into(), deed, "done".to_owned(), &[]);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
