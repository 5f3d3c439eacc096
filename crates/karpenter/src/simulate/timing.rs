//! How long a decision takes and how much memory it needs, measured as Go Karpenter's bench measures its own.
//!
//! CPU time is that of the whole process, all threads. Peak memory is the kernel's high-water mark, reset once the input is
//! parsed. "New scheduler" is everything between that and solving. It begins with mirroring the parsed objects, which Go's
//! bench leaves out and a controller does while it watches; how much of it that is is told besides.

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
    /// Mirroring, which every repetition counts as part of its set-up.
    mirror_ms: f64,
    #[serde(rename = "mirrorCPUMs")]
    mirror_cpu_ms: f64,
}

impl Timings {
    /// Starts with the input mirrored.
    pub(crate) fn start(mirroring: &Stopwatch) -> Self {
        Self {
            rss_built_mib: mirroring.rss_before_mib,
            mirror_ms: mirroring.spent.wall_ms,
            mirror_cpu_ms: mirroring.spent.cpu_ms,
            ..Self::default()
        }
    }

    /// When a repetition that starts now would have had to start to do the mirroring as well.
    pub(crate) fn set_out(&self) -> Moment {
        let now = Moment::now();
        Moment { wall_ms: now.wall_ms - self.mirror_ms, cpu_ms: now.cpu_ms - self.mirror_cpu_ms }
    }

    /// Times one cold repetition: setting up, then solving.
    pub(crate) fn repeat<S, P>(&mut self, set_up: impl FnOnce() -> S, solve: impl FnOnce(&S) -> P) -> P {
        let start = self.set_out();
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

    /// Notes that the method has taken the time since `since`; the moment it ended.
    pub(crate) fn method(&mut self, name: &'static str, since: &Moment) -> Moment {
        let end = Moment::now();
        self.method_ms.insert(name, end.wall_ms - since.wall_ms);
        self.method_cpu_ms.insert(name, end.cpu_ms - since.cpu_ms);
        self.peak_rss_mib = memory_mib("VmHWM");
        end
    }
}

/// Times mirroring; one that is not made ready measures nothing and costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    ready: bool,
    spent: Moment,
    rss_before_mib: f64,
}

impl Stopwatch {
    pub(crate) fn ready() -> Self {
        Self { ready: true, ..Self::default() }
    }

    /// Does what comes once the input is parsed: notes the memory in use, resets the high-water mark, and times the work.
    pub(crate) fn time(&mut self, work: impl FnOnce()) {
        if !self.ready {
            return work();
        }
        // Fails where /proc is not writable; the peak then includes reading, which is only pessimistic.
        let _ = fs::write("/proc/self/clear_refs", "5");
        self.rss_before_mib = memory_mib("VmRSS");
        let since = Moment::now();
        work();
        let now = Moment::now();
        self.spent = Moment { wall_ms: now.wall_ms - since.wall_ms, cpu_ms: now.cpu_ms - since.cpu_ms };
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
