//! How long a decision takes and how much memory it needs, measured as Go Karpenter's bench measures its own.
//!
//! CPU time is that of the whole process, all threads. Peak memory is the kernel's high-water mark, reset once the input is
//! parsed and mirrored; "new scheduler" is everything between that and solving, as it is there: a controller mirrors the cluster while
//! it watches, not when it decides. What mirroring the parsed objects took is told besides.

use std::collections::BTreeMap;
use std::fs;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// One line for stderr, with the names the oracle's bench uses.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timings {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    new_scheduler_ms: Vec<f64>,
    #[serde(rename = "newSchedulerCPUMs", skip_serializing_if = "Vec::is_empty")]
    new_scheduler_cpu_ms: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    solve_ms: Vec<f64>,
    #[serde(rename = "solveCPUMs", skip_serializing_if = "Vec::is_empty")]
    solve_cpu_ms: Vec<f64>,
    /// By disruption method, of the last repetition; the first method includes all set-up.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    method_ms: BTreeMap<&'static str, f64>,
    #[serde(rename = "methodCPUMs", skip_serializing_if = "BTreeMap::is_empty")]
    method_cpu_ms: BTreeMap<&'static str, f64>,
    #[serde(rename = "peakRSSMiB")]
    peak_rss_mib: f64,
    #[serde(rename = "rssBuiltMiB")]
    rss_built_mib: f64,
    mirror_ms: f64,
    #[serde(rename = "mirrorCPUMs")]
    mirror_cpu_ms: f64,
}

impl Timings {
    /// Starts with the input in memory: resets the high-water mark and notes what is in use.
    pub(crate) fn start(mirroring: &Stopwatch) -> Self {
        // Fails where /proc is not writable; the peak then includes reading, which is only pessimistic.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self {
            rss_built_mib: memory_mib("VmRSS"),
            mirror_ms: mirroring.spent.wall_ms,
            mirror_cpu_ms: mirroring.spent.cpu_ms,
            ..Self::default()
        }
    }

    /// Times one cold repetition: setting up, then solving.
    pub(crate) fn repeat<S, P>(&mut self, set_up: impl FnOnce() -> S, solve: impl FnOnce(&S) -> P) -> P {
        let start = Moment::now();
        let ready = set_up();
        let middle = Moment::now();
        let plan = solve(&ready);
        let end = Moment::now();
        self.new_scheduler_ms.push(middle.wall_ms - start.wall_ms);
        self.new_scheduler_cpu_ms.push(middle.cpu_ms - start.cpu_ms);
        self.solve_ms.push(end.wall_ms - middle.wall_ms);
        self.solve_cpu_ms.push(end.cpu_ms - middle.cpu_ms);
        self.peak_rss_mib = memory_mib("VmHWM");
        plan
    }

    /// Now, to measure from.
    pub(crate) fn now() -> Moment {
        Moment::now()
    }

    /// Notes that the method has taken the time since `since`; the moment it ended.
    pub(crate) fn method(&mut self, name: &'static str, since: &Moment) -> Moment {
        let end = Moment::now();
        self.method_ms.insert(name, end.wall_ms - since.wall_ms);
        self.method_cpu_ms.insert(name, end.cpu_ms - since.cpu_ms);
        self.peak_rss_mib = memory_mib("VmHWM");
        end
    }
}

/// Adds up the time between starts and stops; one that is not made ready measures nothing and costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    ready: bool,
    since: Option<Moment>,
    spent: Moment,
}

impl Stopwatch {
    pub(crate) fn ready() -> Self {
        Self { ready: true, ..Self::default() }
    }

    pub(crate) fn start(&mut self) {
        self.since = self.ready.then(Moment::now);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(since) = self.since.take() {
            let now = Moment::now();
            self.spent.wall_ms += now.wall_ms - since.wall_ms;
            self.spent.cpu_ms += now.cpu_ms - since.cpu_ms;
        }
    }
}

/// A point in time, by the clock on the wall and by the CPU; or a length of it.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    wall_ms: f64,
    cpu_ms: f64,
}

impl Moment {
    fn now() -> Self {
        let ms = |clock| {
            let t = clock_gettime(clock);
            t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
        };
        Self { wall_ms: ms(ClockId::Monotonic), cpu_ms: ms(ClockId::ProcessCPUTime) }
    }
}

/// A figure of `/proc/self/status`; zero where there is none.
fn memory_mib(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    let kib: f64 = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or_default();
    kib / 1024.0
}
