//! The tape as data: chapters of requests with the answers the real kube-apiserver gave, read from and written back to
//! `conformance/tape/*.json`.
//!
//! What a step means is said here; sending it is `player.rs`, comparing answers is `compare.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::pretty;

/// One file of the tape: a subject with its own set-up, played from its first step to its last on one server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chapter {
    pub(crate) subject: String,
    /// Which real cluster can answer it: `apiserver` alone, or `full` where controllers of the control plane take part.
    pub(crate) cluster: Cluster,
    pub(crate) steps: Vec<Step>,
}

/// The real peer a chapter was recorded on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cluster {
    /// etcd and kube-apiserver only: nothing happens that was not asked for.
    Apiserver,
    /// With kube-controller-manager: garbage collection and the end of namespaces.
    Full,
}

/// One request (or one look into a watch opened before) and the recorded answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) id: String,
    /// What the step shows; printed when it differs.
    pub(crate) why: String,
    #[serde(default)]
    pub(crate) method: Option<String>,
    /// Path and query; `{{name}}` is replaced by what an earlier step captured.
    #[serde(default)]
    pub(crate) path: Option<String>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// A JSON body.
    #[serde(default)]
    pub(crate) body: Option<Value>,
    /// A body sent byte for byte: what is not JSON, or must not be written canonically.
    #[serde(default)]
    pub(crate) text: Option<String>,
    /// What `{{filler}}` in the body stands for, so that an oversized body need not be stored.
    #[serde(default)]
    pub(crate) filler: Option<Filler>,
    /// Keeps the answer open as a watch under this name instead of reading it to its end.
    #[serde(default)]
    pub(crate) opens: Option<String>,
    /// Reads from a watch opened before; no request is sent.
    #[serde(default)]
    pub(crate) collect: Option<Collect>,
    /// Sends the request again until the answer is so: for what a controller does in its own time.
    #[serde(default)]
    pub(crate) until: Option<Until>,
    /// Variables for later steps, by JSON pointer into the answer's body.
    #[serde(default)]
    pub(crate) capture: BTreeMap<String, String>,
    /// Compares a digest of the body instead of the body.
    #[serde(default)]
    pub(crate) view: Option<View>,
    #[serde(default)]
    pub(crate) expect: Option<Answer>,
}

/// A text many times over.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filler {
    pub(crate) text: String,
    pub(crate) times: usize,
}

/// Which watch to read, and how far.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Collect {
    pub(crate) watch: String,
    /// Without it: until the server closes the stream.
    #[serde(default)]
    pub(crate) events: Option<usize>,
}

/// What to wait for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Until {
    #[serde(default)]
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) pointer: Option<String>,
    #[serde(default)]
    pub(crate) equals: Option<Value>,
}

/// Digests of large bodies in which a server may rightly offer less than kube-apiserver, but nothing else.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum View {
    /// A line per resource or group of a discovery document; the server's lines must be among the recorded ones.
    Discovery,
    /// The paths of the OpenAPI v3 index; the server's must be among the recorded ones.
    OpenapiIndex,
    /// The members of the body that say which Kubernetes this is.
    Version,
    /// Only that there is a body of the recorded JSON type.
    Presence,
}

/// What came back, after normalisation.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// `Content-Type` (where it is not plain JSON), `Warning` and `Retry-After`.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// The document, or its text where it is none.
    #[serde(default)]
    pub(crate) body: Value,
    /// What a watch delivered, instead of a body.
    #[serde(default)]
    pub(crate) events: Option<Vec<Value>>,
}

impl Answer {
    /// Status and body on one line.
    pub(crate) fn summary(&self) -> String {
        let body = match &self.body["message"] {
            Value::String(message) => {
                format!("{} {message}", self.body["reason"].as_str().unwrap_or_default())
            }
            _ => pretty::shortened(&self.body),
        };
        format!("{} {body}", self.status)
    }

    /// The answer as one document, so that a JSON pointer reaches every part of it.
    pub(crate) fn document(&self) -> Value {
        let mut members = Map::new();
        members.insert("status".into(), json!(self.status));
        if !self.headers.is_empty() {
            members.insert("headers".into(), json!(self.headers));
        }
        match &self.events {
            Some(events) => members.insert("events".into(), Value::Array(events.clone())),
            None => members.insert("body".into(), self.body.clone()),
        };
        Value::Object(members)
    }
}

/// Where the chapters are.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/tape")
}

impl Chapter {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes the chapter in its one canonical form: members of a step in reading order, short values on one line.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let cluster = match self.cluster {
            Cluster::Apiserver => "apiserver",
            Cluster::Full => "full",
        };
        let mut out = String::from("{\n");
        out += &format!(
            "  \"subject\": {},\n  \"cluster\": {},\n  \"steps\": [\n",
            json!(self.subject),
            json!(cluster)
        );
        for (at, step) in self.steps.iter().enumerate() {
            let members: Vec<String> = step
                .members()
                .into_iter()
                .map(|(name, value)| {
                    format!("      \"{name}\": {}", pretty::render(&value, 6, name.len() + 4))
                })
                .collect();
            out += &format!("    {{\n{}\n    }}", members.join(",\n"));
            out += if at + 1 < self.steps.len() { ",\n" } else { "\n" };
        }
        out += "  ]\n}\n";
        std::fs::write(path, out).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Step {
    fn members(&self) -> Vec<(&'static str, Value)> {
        let mut members = vec![("id", json!(self.id)), ("why", json!(self.why))];
        let mut add = |name, value: Option<Value>| {
            if let Some(value) = value {
                members.push((name, value));
            }
        };
        add("method", self.method.as_ref().map(|v| json!(v)));
        add("path", self.path.as_ref().map(|v| json!(v)));
        add("headers", (!self.headers.is_empty()).then(|| json!(self.headers)));
        add("body", self.body.clone());
        add("text", self.text.as_ref().map(|v| json!(v)));
        add("filler", self.filler.as_ref().map(|v| json!({"text": v.text, "times": v.times})));
        add("opens", self.opens.as_ref().map(|v| json!(v)));
        add("collect", self.collect.as_ref().map(Collect::document));
        add("until", self.until.as_ref().map(Until::document));
        add("capture", (!self.capture.is_empty()).then(|| json!(self.capture)));
        add("view", self.view.map(View::document));
        add("expect", self.expect.as_ref().map(Answer::document));
        members
    }
}

impl Collect {
    fn document(&self) -> Value {
        match self.events {
            Some(events) => json!({"watch": self.watch, "events": events}),
            None => json!({"watch": self.watch}),
        }
    }
}

impl Until {
    fn document(&self) -> Value {
        let mut members = Map::new();
        if let Some(status) = self.status {
            members.insert("status".into(), json!(status));
        }
        if let Some(pointer) = &self.pointer {
            members.insert("pointer".into(), json!(pointer));
        }
        if let Some(value) = &self.equals {
            members.insert("equals".into(), value.clone());
        }
        Value::Object(members)
    }
}

impl View {
    fn document(self) -> Value {
        json!(match self {
            Self::Discovery => "discovery",
            Self::OpenapiIndex => "openapi-index",
            Self::Version => "version",
            Self::Presence => "presence",
        })
    }
}
