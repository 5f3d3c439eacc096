//! `/debug/pprof/`: where CPU and memory go, served beside the metrics with `--enable-profiling`.
//!
//! The paths are those of Go's pprof, so that people know where to look. The answers are plain text of what Linux knows about
//! the process, by thread and not by function; for functions there is `perf record -g -p PID`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use crate::http::Answer;
use crate::metrics::process::TICKS_PER_SECOND;
use crate::options;

/// How long CPU is watched unless the request says otherwise, and at most.
const DEFAULT_SECONDS: u64 = 30;
const MOST_SECONDS: u64 = 300;

const INDEX: &str = "\
/debug/pprof/cmdline            the command line, secrets left out
/debug/pprof/heap               memory of the process
/debug/pprof/threadcreate       its threads, with the CPU each has used
/debug/pprof/profile?seconds=N  CPU of each thread during the next N seconds (30)

Plain text, by thread: this is no Go program, and `go tool pprof` cannot read it.
CPU by function: perf record -g -p PID, where the process runs.
";

/// What is behind a path, if it is one of these pages.
pub(crate) async fn page(path: &str, query: &str) -> Option<Answer> {
    let name = path.strip_prefix("/debug/pprof")?;
    let text = match name.trim_matches('/') {
        "" => INDEX.to_owned(),
        "cmdline" => {
            let line = fs::read("/proc/self/cmdline").unwrap_or_default();
            command_line(&String::from_utf8_lossy(&line))
        }
        "heap" | "allocs" => memory(),
        "threadcreate" | "goroutine" => table(&threads()),
        "profile" => match seconds(query) {
            Ok(seconds) => profile(Duration::from_secs(seconds)).await,
            Err(problem) => return Some(Answer::text(StatusCode::BAD_REQUEST, problem)),
        },
        _ => {
            return Some(Answer::text(
                StatusCode::NOT_FOUND,
                format!("no such profile; there are\n\n{INDEX}"),
            ));
        }
    };
    Some(Answer::text(StatusCode::OK, text))
}

/// The arguments, each ended by a zero byte, as a line.
fn command_line(arguments: &str) -> String {
    let arguments = arguments.strip_suffix('\0').unwrap_or(arguments);
    options::without_secrets(arguments.split('\0')).join(" ")
}

fn seconds(query: &str) -> Result<u64, String> {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("seconds="));
    let Some(given) = given else { return Ok(DEFAULT_SECONDS) };
    let seconds: Option<u64> = given.parse().ok().filter(|seconds| (1..=MOST_SECONDS).contains(seconds));
    seconds.ok_or_else(|| format!("seconds={given}: give a number from 1 to {MOST_SECONDS}\n"))
}

/// The lines of the process's status that speak of memory.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.starts_with("Vm") || line.starts_with("Rss"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Name and CPU seconds of each thread, by id.
fn threads() -> BTreeMap<u64, (String, f64)> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // The name is in parentheses and may contain anything; fields are counted from behind it.
        let (front, rest) = stat.rsplit_once(')')?;
        let (_, name) = front.split_once('(')?;
        let field = |at: usize| rest.split_whitespace().nth(at)?.parse::<f64>().ok();
        Some((id, (name.to_owned(), (field(11)? + field(12)?) / TICKS_PER_SECOND)))
    };
    tasks.filter_map(thread).collect()
}

fn table(threads: &BTreeMap<u64, (String, f64)>) -> String {
    let mut lines: Vec<(&u64, &(String, f64))> = threads.iter().collect();
    lines.sort_by(|(_, (_, a)), (_, (_, b))| b.total_cmp(a));
    let total: f64 = threads.values().map(|(_, cpu)| cpu).sum();
    let mut text = format!("{} threads, {total:.2} CPU seconds\n", threads.len());
    for (id, (name, cpu)) in lines {
        text.push_str(&format!("{cpu:10.2}  {id:>8}  {name}\n"));
    }
    text
}

async fn profile(time: Duration) -> String {
    let (before, started) = (threads(), Instant::now());
    tokio::time::sleep(time).await;
    let mut used = threads();
    for (id, (_, cpu)) in &mut used {
        *cpu -= before.get(id).map_or(0.0, |(_, cpu)| *cpu);
    }
    format!("in {:.1} s: {}", started.elapsed().as_secs_f64(), table(&used))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(path: &str, query: &str) -> (u16, String) {
        let answer = page(path, query).await.expect("a page");
        (answer.status.as_u16(), answer.body)
    }

    #[tokio::test(start_paused = true)]
    async fn the_pages_tell_of_threads_and_memory_and_say_what_they_are_not() {
        assert!(get("/debug/pprof/", "").await.1.contains("go tool pprof"));
        let (_, threads) = get("/debug/pprof/threadcreate", "").await;
        assert!(threads.contains(" threads, ") && threads.lines().count() > 1, "{threads}");
        assert!(get("/debug/pprof/heap", "").await.1.contains("VmRSS:"));
        let (code, profile) = get("/debug/pprof/profile", "seconds=7").await;
        assert!(code == 200 && profile.starts_with("in 7.0 s: "), "{profile}");
    }

    #[test]
    fn the_command_line_is_shown_without_secrets() {
        let given = "karpenter\0--provider=kwok\0--cluster-api-token=s3cret\0-cluster-api-token\0s3cret\0--log-level\0debug\0";
        let shown = "karpenter --provider=kwok --cluster-api-token=redacted -cluster-api-token redacted --log-level debug";
        assert_eq!(command_line(given), shown);
        assert_eq!(command_line("karpenter\0--cluster-api-token\0"), "karpenter --cluster-api-token");
        assert_eq!(command_line(""), "");
    }

    #[tokio::test]
    async fn what_is_not_there_or_makes_no_sense_is_answered_with_what_there_is() {
        assert_eq!(page("/metrics", "").await, None);
        let (code, text) = get("/debug/pprof/mutex", "").await;
        assert!(code == 404 && text.contains("/debug/pprof/heap"), "{text}");
        for wrong in ["seconds=0", "seconds=x", "seconds=301"] {
            let (code, text) = get("/debug/pprof/profile", wrong).await;
            assert!(code == 400 && text.contains("1 to 300"), "{text}");
        }
    }
}
