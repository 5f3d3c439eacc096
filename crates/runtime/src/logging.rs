//! Log lines as Go Karpenter writes them: one JSON object per line, zap's keys, time from the clock.
//!
//! The program logs through `tracing`. Names that are not Rust identifiers are written as literals
//! (`"provider-id" = %id`); what is more than a text or number goes through [`object`], [`json`] or [`duration`]:
//!
//! ```
//! # use karpenter_runtime::{logging, object_key::ObjectKey};
//! let claim = ObjectKey::cluster("default-x7k2p");
//! tracing::info!(NodeClaim = %logging::object(&claim), "instance-type" = "c-4x", "launched nodeclaim");
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::clock::SharedClock;
use crate::error::object_json;
use crate::go_duration::GoDuration;
use crate::object_key::ObjectKey;
use crate::otlp::OtlpLayer;

mod layer;
pub mod level;

pub(crate) use layer::Fields;
pub use layer::LogLayer;
pub use level::Level;

/// Opens a structured value inside what is otherwise a text. Not a character anyone logs.
const STRUCTURED: char = '\u{1e}';

/// A structured value for a log line.
pub struct Json(Value);

/// A reference to an object: `{"name": …, "namespace": …}`.
pub fn object(key: &ObjectKey) -> Json {
    Json(object_json(key))
}

/// References to several objects.
pub fn objects<'a>(keys: impl IntoIterator<Item = &'a ObjectKey>) -> Json {
    Json(Value::Array(keys.into_iter().map(object_json).collect()))
}

/// Any value.
pub fn json(value: impl Into<Value>) -> Json {
    Json(value.into())
}

/// A duration in Go's way: `1m30s`.
pub fn duration(duration: Duration) -> GoDuration {
    duration.into()
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STRUCTURED}{}", self.0)
    }
}

/// The values of a structured error, each to become a field of its own; logged as `spread`.
pub struct Spread(pub BTreeMap<String, Value>);

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: serde_json::Map<String, Value> = self.0.clone().into_iter().collect();
        write!(f, "{STRUCTURED}{}", Value::Object(values))
    }
}

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For machines: JSON.
    #[default]
    Json,
    /// For people: time, level, message, fields.
    Text,
}

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The least urgent level that is written.
    pub level: Level,
    /// How lines look.
    pub format: Format,
    /// The revision of the program, if known.
    pub commit: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { level: LevelFilter::INFO.into(), format: Format::Json, commit: None }
    }
}

/// A subscriber that writes lines to `out`: for `tracing::subscriber::set_global_default` in the binary and
/// `with_default` in a simulation.
pub fn subscriber(
    config: Config,
    clock: SharedClock,
    out: impl Write + Send + 'static,
) -> impl tracing::Subscriber + Send + Sync {
    tracing_subscriber::registry().with(LogLayer::new(config, clock, Arc::new(Mutex::new(out))))
}

/// As [`subscriber`], with traces for a collector besides.
pub fn subscriber_with_traces(
    config: Config,
    clock: SharedClock,
    out: impl Write + Send + 'static,
    traces: OtlpLayer,
) -> impl tracing::Subscriber + Send + Sync {
    tracing_subscriber::registry().with(LogLayer::new(config, clock, Arc::new(Mutex::new(out)))).with(traces)
}

/// Where lines go.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write logs to {path:?} ({setting}): {source}; give stdout, stderr or a file that can be written"
)]
pub struct OutputError {
    path: String,
    setting: &'static str,
    source: io::Error,
}

/// Opens the outputs of lines, and those that are told what cannot be written there; both are comma separated lists of `stdout`,
/// `stderr` and files.
pub fn open_outputs(paths: &str, error_paths: &str) -> Result<Box<dyn Write + Send>, OutputError> {
    let setting = "--log-output-paths, LOG_OUTPUT_PATHS";
    let outputs = open_all(paths, setting)?;
    if outputs.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it names no output");
        return Err(OutputError { path: paths.to_owned(), setting, source });
    }
    let errors = open_all(error_paths, "--log-error-output-paths, LOG_ERROR_OUTPUT_PATHS")?;
    Ok(Box::new(Tee { outputs, errors }))
}

fn open_all(paths: &str, setting: &'static str) -> Result<Vec<Output>, OutputError> {
    let paths = paths.split(',').map(str::trim).filter(|path| !path.is_empty());
    let open = |path: &str| {
        let out: Box<dyn Write + Send> = match path {
            "stdout" => Box::new(io::stdout()),
            "stderr" => Box::new(io::stderr()),
            path => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                Box::new(file.map_err(|source| OutputError { path: path.to_owned(), setting, source })?)
            }
        };
        Ok(Output { path: path.to_owned(), out, is_broken: false })
    };
    paths.map(open).collect()
}

struct Output {
    path: String,
    out: Box<dyn Write + Send>,
    /// Whether the last line did not get there, which was told.
    is_broken: bool,
}

/// Writes everywhere: an output that is full or gone does not silence the others.
struct Tee {
    outputs: Vec<Output>,
    errors: Vec<Output>,
}

impl Tee {
    fn each(&mut self, write: impl Fn(&mut (dyn Write + Send)) -> io::Result<()>) {
        for Output { path, out, is_broken } in &mut self.outputs {
            let written = write(&mut **out);
            let was_broken = std::mem::replace(is_broken, written.is_err());
            if let (Err(error), false) = (written, was_broken) {
                for errors in &mut self.errors {
                    // There is nobody left to tell.
                    let _ = writeln!(errors.out, "cannot write logs to {path:?}: {error}");
                }
            }
        }
    }
}

impl Write for Tee {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.each(|out| out.write_all(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.each(|out| out.flush());
        Ok(())
    }
}

#[cfg(test)]
#[path = "logging_tests.rs"]
mod tests;
