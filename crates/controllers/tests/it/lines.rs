//! Log lines as Karpenter writes them.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use karpenter_runtime::clock::TokioClock;
use karpenter_runtime::logging::{Config, subscriber};
use serde_json::Value;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Subscriber};

/// Every line that is written on this thread from its making on.
pub(crate) struct Lines {
    written: Written,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// While there is a single subscriber, a place that logs is judged for good by whichever thread comes by first, and most of this
/// binary have none. Two that stay make tracing ask all there are.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| std::array::from_fn(|_| Dispatch::new(writing_to(Written::default()))));

fn writing_to(written: Written) -> impl Subscriber + Send + Sync {
    let config = Config { level: LevelFilter::DEBUG.into(), ..Config::default() };
    let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")));
    subscriber(config, clock, written)
}

impl Lines {
    pub(crate) fn capture() -> Self {
        LazyLock::force(&OTHERS);
        let written = Written::default();
        let guard = tracing::subscriber::set_default(writing_to(written.clone()));
        Self { written, _guard: guard }
    }

    /// Those with this message, in order.
    pub(crate) fn saying(&self, message: &str) -> Vec<Value> {
        let written = self.written.0.lock().expect("no panic").clone();
        let text = String::from_utf8(written).expect("UTF-8");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line["message"] == message).collect()
    }
}
