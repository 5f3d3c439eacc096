//! A scenario: what the files say is given, before anything is made of it.
//!
//! One header at most (the document without `kind`) plus any number of Kubernetes objects, from any number
//! of files; `kind: List` dumps are unpacked. Objects and instance types stay raw text here, because one that
//! cannot be understood must not take the others with it.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::source::{SourceError, SourceFile};

/// Where an object came from, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) file: &'a str,
    /// Counted from 1 over the objects of the file.
    pub(crate) index: usize,
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: object {}", self.file, self.index)
    }
}

/// Everything the files say.
#[derive(Debug)]
pub(crate) struct Scenario<'a> {
    pub(crate) header: Header<'a>,
    /// The file the header stood in; none for a plain dump.
    pub(crate) header_file: Option<&'a str>,
    /// Fields of the header that mean nothing.
    pub(crate) unknown_fields: Vec<String>,
    pub(crate) objects: Vec<(Origin<'a>, &'a RawValue)>,
}

/// The document without `kind`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Header<'a> {
    pub(crate) mode: Option<String>,
    pub(crate) now: Option<String>,
    pub(crate) options: ScenarioOptions,
    pub(crate) well_known_labels: Vec<String>,
    #[serde(rename = "reservationIDLabel")]
    pub(crate) reservation_id_label: Option<String>,
    #[serde(borrow)]
    pub(crate) instance_types: Vec<&'a RawValue>,
    pub(crate) state: StateHints,
    #[serde(borrow)]
    objects: Vec<&'a RawValue>,
}

/// What [`Header`] has, and what stands there for people.
pub(crate) const HEADER_FIELDS: [&str; 11] = [
    "mode",
    "now",
    "options",
    "wellKnownLabels",
    "reservationIDLabel",
    "instanceTypes",
    "state",
    "objects",
    "name",
    "seed",
    "features",
];

/// The controller's settings that reach a decision.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ScenarioOptions {
    pub(crate) preference_policy: Option<String>,
    pub(crate) min_values_policy: Option<String>,
    #[serde(rename = "ignoreDRARequests")]
    pub(crate) ignore_dra_requests: Option<bool>,
    pub(crate) feature_gates: BTreeMap<String, bool>,
    pub(crate) scheduler_config: Option<serde_json::Value>,
}

/// State that has no API object: names of nodes (or of NodeClaims in flight).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StateHints {
    pub(crate) marked_for_deletion: Vec<String>,
    pub(crate) nominated: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ScenarioError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{file}: {source}")]
    Malformed { file: String, source: serde_json::Error },
    #[error(
        "{second}: a second scenario header (a document without `kind`); the first is in {first}, and several files make one scenario"
    )]
    TwoHeaders { first: String, second: String },
    #[error("{file}: a document must be a scenario header or a Kubernetes object, not {found}")]
    NotAnObject { file: String, found: &'static str },
    #[error("{file}: now: {value:?} is not an RFC 3339 time such as 2026-01-01T00:00:00Z")]
    Now { file: String, value: String },
}

#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(default)]
    kind: Option<String>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

impl<'a> Scenario<'a> {
    /// Merges the files in the order given.
    pub(crate) fn parse(files: &'a [SourceFile]) -> Result<Self, ScenarioError> {
        let mut out = Self {
            header: Header::default(),
            header_file: None,
            unknown_fields: Vec::new(),
            objects: Vec::new(),
        };
        for file in files {
            let malformed = |source| ScenarioError::Malformed { file: file.name.clone(), source };
            let mut index = 0;
            for document in file.values()? {
                if let Some(found) = not_a_map(document) {
                    return Err(ScenarioError::NotAnObject { file: file.name.clone(), found });
                }
                let probe: Probe<'a> = serde_json::from_str(document.get()).map_err(malformed)?;
                let objects = match (probe.kind, probe.items) {
                    // `kubectl get -o json` wraps in v1 List; the API server itself in PodList, NodeList …
                    (Some(kind), Some(items)) if kind.ends_with("List") => items,
                    (Some(_), _) => vec![document],
                    (None, _) => {
                        if let Some(first) = out.header_file {
                            let (first, second) = (first.to_owned(), file.name.clone());
                            return Err(ScenarioError::TwoHeaders { first, second });
                        }
                        out.header = serde_json::from_str(document.get()).map_err(malformed)?;
                        let fields: BTreeMap<String, IgnoredAny> =
                            serde_json::from_str(document.get()).map_err(malformed)?;
                        let unknown = fields.into_keys().filter(|field| !HEADER_FIELDS.contains(&&**field));
                        out.unknown_fields = unknown.collect();
                        out.header_file = Some(&file.name);
                        std::mem::take(&mut out.header.objects)
                    }
                };
                for object in objects {
                    index += 1;
                    out.objects.push((Origin { file: &file.name, index }, object));
                }
            }
        }
        Ok(out)
    }

    /// The time the scenario is at: said in the header, else a fixed one for a scenario and the newest
    /// timestamp seen for a dump.
    pub(crate) fn now(&self) -> Result<Timestamp, ScenarioError> {
        match (self.header_file, &self.header.now) {
            (file, Some(value)) if !value.is_empty() => value.parse().map_err(|_| ScenarioError::Now {
                file: file.unwrap_or("--now").to_owned(),
                value: value.clone(),
            }),
            (Some(_), _) => Ok(DEFAULT_NOW),
            (None, _) => {
                Ok(newest_timestamp(self.objects.iter().map(|(_, o)| o.get())).unwrap_or(DEFAULT_NOW))
            }
        }
    }
}

/// 2026-01-01T00:00:00Z, the documented default of the scenario format.
const DEFAULT_NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

fn not_a_map(document: &RawValue) -> Option<&'static str> {
    match document.get().as_bytes().first() {
        Some(b'{') => None,
        Some(b'[') => Some("a list (is this an instance type file? pass it with --instance-types)"),
        Some(b'"') => Some("a text"),
        _ => Some("a number or boolean"),
    }
}

/// The newest RFC 3339 time among the strings of the texts.
fn newest_timestamp<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Timestamp> {
    let mut newest = None;
    for text in texts {
        for piece in text.split('"') {
            // Cheap test first: most strings are not times.
            let bytes = piece.as_bytes();
            if bytes.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T' && bytes[0].is_ascii_digit() {
                newest = newest.max(piece.parse::<Timestamp>().ok());
            }
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<SourceFile> {
        texts
            .iter()
            .map(|(name, text)| SourceFile::from_bytes((*name).into(), (*text).into()).expect("readable"))
            .collect()
    }

    #[test]
    fn files_are_merged_and_lists_unpacked() {
        let files = files(&[
            ("s.yaml", "now: 2026-02-03T04:05:06Z\nobjects: [{kind: Pod}]\n---\nkind: Node\n"),
            ("d.json", r#"{"kind":"List","items":[{"kind":"Pod"},{"kind":"Pod"}]}"#),
        ]);
        let scenario = Scenario::parse(&files).expect("a scenario");
        assert_eq!(scenario.objects.len(), 4);
        assert_eq!(scenario.objects[3].0.to_string(), "d.json: object 2");
        assert_eq!(scenario.now().unwrap().to_string(), "2026-02-03T04:05:06Z");
    }

    #[test]
    fn fields_of_the_header_that_mean_nothing_are_remembered() {
        let files = files(&[("s.yaml", "mod: provision\nname: x\nseed: 1\nfeatures: [a]\noptions: {}\n")]);
        assert_eq!(Scenario::parse(&files).expect("a scenario").unknown_fields, ["mod"]);
    }

    #[test]
    fn a_second_header_is_an_error_that_names_both_files() {
        let files = files(&[("a.yaml", "mode: provision"), ("b.yaml", "mode: provision")]);
        let error = Scenario::parse(&files).expect_err("two headers").to_string();
        assert!(error.contains("b.yaml") && error.contains("a.yaml"), "{error}");
    }

    #[test]
    fn the_time_of_a_dump_is_its_newest_timestamp() {
        let files = files(&[(
            "d.yaml",
            "kind: Pod\nmetadata: {creationTimestamp: '2026-05-01T00:00:00Z'}\n---\nkind: Pod\n\
             status: {conditions: [{lastTransitionTime: '2026-05-02T00:00:00Z'}]}\n",
        )]);
        let scenario = Scenario::parse(&files).expect("a scenario");
        assert_eq!(scenario.now().unwrap().to_string(), "2026-05-02T00:00:00Z");
    }

    #[test]
    fn an_instance_type_file_given_as_a_scenario_is_told_where_it_belongs() {
        let error = Scenario::parse(&files(&[("t.json", "[]")])).expect_err("a list").to_string();
        assert!(error.contains("--instance-types"), "{error}");
    }

    #[test]
    fn a_time_that_is_none_is_quoted_with_the_remedy() {
        let files = files(&[("s.yaml", "now: yesterday")]);
        let error = Scenario::parse(&files).unwrap().now().expect_err("no time").to_string();
        assert!(error.contains("\"yesterday\"") && error.contains("RFC 3339"), "{error}");
    }
}
