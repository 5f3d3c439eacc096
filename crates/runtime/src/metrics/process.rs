//! What the operating system says about this process, under the names of Go's process collector. Linux only; elsewhere the
//! families are absent.

use std::fs;

use super::Registry;

/// Clock ticks per second in `/proc`; 100 on every Linux that matters.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: f64 = 4096.0;

impl Registry {
    /// Brings the `process_*` families up to date; call before [`encode`](Self::encode).
    pub fn observe_process(&self) {
        let Some(stat) = fs::read_to_string("/proc/self/stat").ok() else { return };
        // The command name is in parentheses and may contain anything; fields are counted from behind it.
        let Some(fields) = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>())
        else {
            return;
        };
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        let gauge = |name, help, value| self.gauge(name, help, &[]).set(&[], value);

        let cpu = self
            .counter("process_cpu_seconds_total", "CPU seconds of this process, user and system", &[])
            .with(&[]);
        cpu.add((number(11) + number(12)) / TICKS_PER_SECOND - cpu.get());
        gauge("process_virtual_memory_bytes", "Virtual memory of this process", number(20));
        gauge("process_resident_memory_bytes", "Resident memory of this process", number(21) * PAGE_BYTES);
        if let Some(boot) = boot_time() {
            let started = boot + number(19) / TICKS_PER_SECOND;
            gauge("process_start_time_seconds", "When this process started, in seconds since 1970", started);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open file descriptors of this process", open.count() as f64);
        }
        if let Some(max) = max_open_files() {
            gauge("process_max_fds", "File descriptors this process may open", max);
        }
    }
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn max_open_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
