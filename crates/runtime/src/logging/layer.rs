//! The layer that turns events into lines.

use std::fmt::{self, Write as _};
use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::{Config, Format, STRUCTURED};
use crate::clock::SharedClock;
use crate::sync::lock;

/// Writes one line per event.
pub struct LogLayer {
    config: Config,
    clock: SharedClock,
    out: Arc<Mutex<dyn Write + Send>>,
}

/// The fields of a span, or an event, in the order they were given.
#[derive(Clone, Default)]
pub(crate) struct Fields(Vec<(String, Value)>);

impl LogLayer {
    /// Writes to `out` what `config` lets through.
    pub fn new(config: Config, clock: SharedClock, out: Arc<Mutex<dyn Write + Send>>) -> Self {
        Self { config, clock, out }
    }

    fn line(&self, metadata: &Metadata<'_>, fields: Fields) -> String {
        let mut message = String::new();
        let mut logger = logger_of(metadata.target());
        let mut rest = Fields::default();
        for (key, value) in fields.0 {
            match (key.as_str(), value) {
                ("message", Value::String(text)) => message = text,
                ("logger", Value::String(name)) => logger = format!("controller.{name}"),
                ("spread", Value::Object(values)) => {
                    for (key, value) in values {
                        rest.set(key, value);
                    }
                }
                (_, value) => rest.set(key, value),
            }
        }
        // zap's ISO 8601 with milliseconds.
        let time = self.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
        let level = metadata.level().as_str();
        let mut line = String::with_capacity(256);
        match self.config.format {
            Format::Json => {
                line.push('{');
                let mut put = |key: &str, value: &Value| {
                    if line.len() > 1 {
                        line.push(',');
                    }
                    // Writing to a string cannot fail.
                    let _ = write!(line, "{}:{value}", Value::from(key));
                };
                put("level", &level.into());
                put("time", &time.into());
                put("logger", &logger.into());
                if self.config.level.get() >= LevelFilter::DEBUG
                    && let (Some(file), Some(row)) = (metadata.file(), metadata.line())
                {
                    put("caller", &short_caller(file, row).into());
                }
                put("message", &message.into());
                if let Some(commit) = &self.config.commit {
                    put("commit", &commit.as_str().into());
                }
                for (key, value) in &rest.0 {
                    put(key, value);
                }
                line.push('}');
            }
            Format::Text => {
                let _ = write!(line, "{time} {level:<5} {message}");
                for (key, value) in &rest.0 {
                    let _ = match value {
                        Value::String(text) => write!(line, " {key}={text}"),
                        value => write!(line, " {key}={value}"),
                    };
                }
            }
        }
        line.push('\n');
        line
    }
}

/// `controller` for our own lines, and the crate behind it for those of others.
fn logger_of(target: &str) -> String {
    match target.split("::").next() {
        Some(krate) if !krate.starts_with("karpenter") => format!("controller.{krate}"),
        _ => "controller".to_owned(),
    }
}

/// The last directory and the file, as zap shortens them.
fn short_caller(file: &str, row: u32) -> String {
    let cut = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    format!("{}:{row}", &file[cut..])
}

/// Libraries below us chatter at the levels we speak at. What kube_runtime warns of, our informers tell with kind and remedy.
fn is_chatter(metadata: &Metadata<'_>) -> bool {
    let most = match metadata.target() {
        target if target.starts_with("karpenter") => Level::TRACE,
        target if target.starts_with("kube_runtime") => Level::ERROR,
        _ => Level::WARN,
    };
    *metadata.level() > most
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // What is answered here for good must not depend on the level, which may change.
        if is_chatter(metadata) { Interest::never() } else { Interest::sometimes() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.config.level.get() && !is_chatter(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // The most that it may be changed to.
        Some(self.config.level.get().max(LevelFilter::DEBUG))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if span.name() == "reconcile" {
            fields.name_object();
        }
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                for (key, value) in &of_span.0 {
                    fields.set(key.clone(), value.clone());
                }
            }
        }
        event.record(&mut fields);
        let line = self.line(event.metadata(), fields);
        // There is no one left to tell when the log itself cannot be written.
        let _ = lock(&self.out).write_all(line.as_bytes());
    }
}

impl Fields {
    fn set(&mut self, key: String, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => self.0.push((key, value)),
        }
    }

    /// Each field with its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The text of a field; empty if it has none.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(known, _)| known == key)
            .and_then(|(_, value)| value.as_str())
            .unwrap_or_default()
    }

    /// controller-runtime names the reconciled object by its kind, besides namespace and name. A loop has no kind.
    fn name_object(&mut self) {
        let kind = self.text("controllerKind").to_owned();
        if kind.is_empty() {
            self.0.retain(|(key, _)| key != "controllerGroup" && key != "controllerKind");
            return;
        }
        let key = crate::object_key::ObjectKey::namespaced(self.text("namespace"), self.text("name"));
        let at = self.0.iter().position(|(key, _)| key == "namespace").unwrap_or(self.0.len());
        self.0.insert(at, (kind, crate::error::object_json(&key)));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let structured = value.strip_prefix(STRUCTURED).and_then(|json| serde_json::from_str(json).ok());
        self.set(field.name().to_owned(), structured.unwrap_or_else(|| value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name().to_owned(), value.into());
    }
}
